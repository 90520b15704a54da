"""What a workspace may do: the model of `.toolcrib/workspace.yml`, and what holds where no file says anything.

In: nothing. Out: `Settings` and `DEFAULTS`. `read_settings` makes settings of a file, `narrow` says which of two is
wider, `load` puts the layers on top of each other; the tools, the session and the sandbox read them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

KB = 1024
MB = 1024 * KB

USUAL_SECONDS = 30.0

TOOL_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        "read_file": USUAL_SECONDS,
        "write_file": USUAL_SECONDS,
        "edit_file": USUAL_SECONDS,
        "list_dir": USUAL_SECONDS,
        "stat_file": USUAL_SECONDS,
        "find_files": USUAL_SECONDS,
        "search_text": USUAL_SECONDS,
        "run_tests": 600.0,
        "run_lint": 300.0,
        "run_shell_safe": 120.0,
        "project_diff": USUAL_SECONDS,
        "project_structure": USUAL_SECONDS,
    }
)
"""Every tool by its name, and how long one call of it may take."""

TOOL_NAMES = tuple(TOOL_SECONDS)

WRITING_TOOLS = frozenset({"write_file", "edit_file", "run_shell_safe"})
"""What read-only mode takes away. Tests and linters stay: they run with the folder bound read-only."""

SHELL_TOOLS = frozenset({"run_shell_safe"})
"""What `forbid_shell_in_ci` takes away where the environment says CI."""


GUARDED = (
    *(".agents", ".aider.conf.yml", ".amazonq", ".claude", ".codex", ".continue", ".cursor", ".gemini", ".kiro"),
    *(".mcp.json", ".opencode", "opencode.json", "opencode.jsonc", ".qwen", ".roo", ".windsurf"),
    *("*.code-workspace", ".devcontainer", ".devcontainer.json", ".dir-locals.el", ".idea", ".vscode", ".zed"),
    *(".exrc", ".nvim.lua", ".nvimrc", ".vimrc", ".gdbinit", ".lldbinit"),
    *(".direnv", ".envrc", ".mise", ".mise.toml", ".mise.local.toml", ".tool-versions", "mise.toml", "mise.local.toml"),
    *(".githooks", ".hg", ".husky", ".pre-commit-config.yaml"),
    *(".lefthook.yml", ".lefthook.yaml", ".lefthook.toml", ".lefthook.json", ".lefthook-local.yml"),
    *("lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json", "lefthook-local.yml"),
)
"""What coding agents, editors, debuggers, shells and git's hooks obey by themselves when a person opens the folder,
goes into it or commits. Not what only the project's own build obeys, nor instructions such as AGENTS.md."""


class GitMode(enum.StrEnum):
    READ_ONLY = "read-only"
    """`.git` cannot be written by anything."""
    COMMIT = "commit"
    """Commands may commit; hooks, configuration and whatever runs later stay read-only."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    seconds: Mapping[str, float] = field(default_factory=lambda: TOOL_SECONDS)
    """For one call; every tool has an entry."""
    memory: int = 4096 * MB
    """Of a command with all that it starts."""
    processes: int = 512
    """Of a command with all that it starts; threads count."""
    file_size: int = 1024 * MB
    """Of the largest file that a command may write."""
    output: int = 16 * KB
    """What a model gets of a command's output."""
    kept: int = 16 * MB
    """What is kept of a command's output as a file."""
    read: int = 32 * KB
    """What one `read_file` gives."""
    session_calls: int = 10_000
    session_seconds: float = 21_600.0
    """Of commands, added up."""
    session_bytes: int = 1024 * MB
    """Written by `write_file` and `edit_file`, added up."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    read_only: bool = False
    off: frozenset[str] = frozenset()
    """Tools that are switched off, by name."""
    git: GitMode = GitMode.READ_ONLY
    network: bool = False
    """Whether commands reach the network."""
    forbid_shell_in_ci: bool = True
    environment: tuple[str, ...] = ()
    """Names of the server's variables that commands get."""
    readable: tuple[Path, ...] = ()
    """Folders outside that commands may read."""
    hidden: tuple[str, ...] = ()
    """Patterns of files that no tool shows, finds, reads or writes; they start at `above`."""
    guarded: tuple[str, ...] = GUARDED
    """Patterns of files that tools and commands do not write, as other programs obey them; they start at `above`."""
    repositories: bool = False
    """Whether tools and commands may make git repositories."""
    above: str = ""
    """The way down to the root from the folder of the outermost settings that hold there; empty: the same folder."""
    python: str | None = None
    """The interpreter for tests and linters; None: found by looking."""
    limits: Limits = Limits()
    broken: str = ""
    """What is wrong with a file of settings. While it says something every tool refuses, with these words."""


DEFAULTS = Settings()
