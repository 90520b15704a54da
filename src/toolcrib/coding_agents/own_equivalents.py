"""The workspace tools that a client does not need, because its own tools do the same.

In: a client's name, its environment and folder. Out: names of workspace tools. A tool counts only if the client's
settings allow all its own tools for the same work: yours, the project's and the organization's. A rule that denies part
of what an own tool can do, such as deleting with a shell, changes nothing: the own tool still does the normal work, and
the workspace tool would do what the rule denies. If settings cannot be read, the client needs every tool.
`cli.bridge` uses this when it starts, and `connect` for an entry with a URL. Imports nothing heavy.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.config.paths import home_of

_MAX_FILE_SIZE = 512 * 1024
_MAX_FILES = 200
"""In one folder."""
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\Z))|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OwnEquivalents:
    tools: Mapping[str, tuple[str, ...]]
    """By workspace tool: the client's own tools for the same work, all of which must be allowed."""
    denied: Callable[[Mapping[str, str], Sequence[Path]], frozenset[str]]
    """The own tools that settings deny or switch off. Takes the environment, and the folders from the working folder up
    to the project's root. Raises one of `_UNREADABLE` if settings cannot be read."""


_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)
"""The errors of reading a file, or of a file with another content than expected."""


def not_needed(client: str, environ: Mapping[str, str], cwd: Path, root: Path) -> frozenset[str]:
    """The workspace tools that this client does not need in this project."""
    known = EQUIVALENTS.get(client)
    if known is None:
        return frozenset()
    between = (folder for folder in (cwd, *cwd.parents) if folder != root and folder.is_relative_to(root))
    try:
        denied = known.denied(environ, (*between, root))
    except _UNREADABLE:
        return frozenset()
    return frozenset(tool for tool, own in known.tools.items() if denied.isdisjoint(own))


# -- Claude Code -------------------------------------------------------------------------------------------------------

_CLAUDE = {
    "read_file": ("Read",),
    # A rule for Edit applies to all tools that write, and one for Read to all that read.
    "write_file": ("Write", "Edit"),
    "edit_file": ("Edit",),
    "list_dir": ("Bash", "Read"),
    # Some versions have no Glob and Grep, and run find and grep in Bash.
    "find_files": ("Glob", "Bash", "Read"),
    "search_text": ("Grep", "Bash", "Read"),
    "run_shell_safe": ("Bash",),
}
CLAUDE_MANAGED = (Path("/etc/claude-code"), Path("/Library/Application Support/ClaudeCode"))
_CLAUDE_ASKS = frozenset({"Bash", "Edit", "Write"})
"""Their use needs an approval, which nobody can give in a run with `-p`: it sets the variable below for its servers."""
_CLAUDE_ENTRYPOINT, _CLAUDE_PRINTS = "CLAUDE_CODE_ENTRYPOINT", "sdk-cli"


def _denied_by_claude(environ: Mapping[str, str], folders: Sequence[Path]) -> frozenset[str]:
    own = Path(environ.get("CLAUDE_CONFIG_DIR") or home_of(environ) / ".claude")
    managed = (file for folder in CLAUDE_MANAGED for file in _managed(folder))
    projects = (folder / ".claude" / name for folder in folders for name in ("settings.json", "settings.local.json"))
    denied = set(_CLAUDE_ASKS if environ.get(_CLAUDE_ENTRYPOINT) == _CLAUDE_PRINTS else ())
    for file in (*managed, own / "remote-settings.json", own / "settings.json", *projects):
        settings = _json(file)
        rules = _part(settings, "permissions")
        # An agent has its own list of tools, and `dontAsk` denies all that are not allowed in advance.
        if "agent" in settings or rules.get("defaultMode") == "dontAsk":
            return _all_of(_CLAUDE)
        denied.update(filter(None, map(_wholly, _names(rules, "deny"))))
    return _matching(denied, _all_of(_CLAUDE))


def _managed(folder: Path) -> Iterator[Path]:
    yield folder / "managed-settings.json"
    yield from _found(folder / "managed-settings.d", "*.json")


# -- Codex -------------------------------------------------------------------------------------------------------------

_CODEX = {
    **dict.fromkeys(("read_file", "list_dir", "find_files", "search_text"), ("shell",)),
    **dict.fromkeys(("write_file", "edit_file"), ("apply_patch",)),
    # Its commands can write only where its patches can.
    "run_shell_safe": ("shell", "apply_patch"),
}
CODEX_SYSTEM = Path("/etc/codex")
_WRITABLE = frozenset({"workspace-write", "danger-full-access", ":workspace", ":danger-full-access"})


def _denied_by_codex(environ: Mapping[str, str], folders: Sequence[Path]) -> frozenset[str]:
    home = Path(environ.get("CODEX_HOME") or home_of(environ) / ".codex")
    files = (CODEX_SYSTEM / "config.toml", home / "config.toml", CODEX_SYSTEM / "managed_config.toml")
    users = [_toml(file) for file in files]
    users += [_part(_part(layer, "profiles"), str(layer["profile"])) for layer in users if "profile" in layer]
    required = _toml(CODEX_SYSTEM / "requirements.toml")
    layers = [*users, required, *(_toml(folder / ".codex" / "config.toml") for folder in folders)]
    shell = all(_part(layer, "features").get("shell_tool", True) is True for layer in layers)
    writes = _codex_writes(users, layers, folders) and (
        "allowed_sandbox_modes" not in required or not _WRITABLE.isdisjoint(_names(required, "allowed_sandbox_modes"))
    )
    return frozenset((() if shell else ("shell",)) + (() if writes else ("apply_patch",)))


def _codex_writes(users: Sequence[_Settings], layers: Sequence[_Settings], folders: Sequence[Path]) -> bool:
    """Whether the sandbox certainly lets it write in the project. A project's file can only narrow this."""
    modes = [layer[key] for layer in layers for key in ("sandbox_mode", "default_permissions") if key in layer]
    if not all(mode in _WRITABLE for mode in modes):
        return False
    chosen = any(key in layer for layer in users for key in ("sandbox_mode", "default_permissions"))
    known = (_part(_part(layer, "projects"), str(folder)) for layer in users for folder in folders)
    # In a trusted project, writing is the default.
    return chosen or any(project.get("trust_level") == "trusted" for project in known)


# -- Gemini CLI --------------------------------------------------------------------------------------------------------

_GEMINI = {
    "read_file": ("read_file",),
    "write_file": ("write_file",),
    "edit_file": ("replace",),
    "list_dir": ("list_directory",),
    "find_files": ("glob",),
    "search_text": ("grep_search",),
    "run_shell_safe": ("run_shell_command",),
}
_GEMINI_NAMES = {
    "ReadFileTool": "read_file",
    "WriteFileTool": "write_file",
    "EditTool": "replace",
    "LSTool": "list_directory",
    "GlobTool": "glob",
    **dict.fromkeys(("search_file_content", "GrepTool", "RipGrepTool"), "grep_search"),
    "ShellTool": "run_shell_command",
}
"""Other names for them in settings."""
GEMINI_SYSTEM = (Path("/etc/gemini-cli"), Path("/Library/Application Support/GeminiCli"))
_NARROWING = frozenset({"argsPattern", "commandPrefix", "commandRegex", "mcpName", "subagent"})
"""Keys that limit a policy's rule to some calls, or to tools of servers."""


def _denied_by_gemini(environ: Mapping[str, str], folders: Sequence[Path]) -> frozenset[str]:
    home = Path(environ.get("GEMINI_CLI_HOME") or home_of(environ))
    own = [folder / ".gemini" for folder in (home, *folders)]
    files = [folder / name for folder in GEMINI_SYSTEM for name in ("settings.json", "system-defaults.json")]
    moved = (environ.get(f"GEMINI_CLI_SYSTEM_{name}_PATH") for name in ("SETTINGS", "DEFAULTS"))
    files += map(Path, filter(None, moved))
    files += [folder / "settings.json" for folder in own]
    files += [file for folder in own for file in _found(folder / "extensions", "*/gemini-extension.json")]
    every = _all_of(_GEMINI)
    denied: set[str] = set()
    for file in files:
        settings = _json(file)
        tools = _part(settings, "tools")
        if settings.get("policyPaths") or settings.get("adminPolicyPaths"):
            return every
        denied.update(filter(None, map(_wholly, (*_names(tools, "exclude"), *_names(settings, "excludeTools")))))
        for layer, key in ((tools, "core"), (settings, "coreTools")):
            if key in layer:
                denied |= every - {_GEMINI_NAMES.get(name, name) for name in _names(layer, key)}
    policies = [file for folder in (*GEMINI_SYSTEM, *own) for file in _found(folder / "policies", "*.toml")]
    denied.update(itertools.chain.from_iterable(map(_denied_by_policy, policies)))
    return _matching({_GEMINI_NAMES.get(name, name) for name in denied}, every)


def _denied_by_policy(file: Path) -> Iterator[str]:
    for rule in _toml(file).get("rule", ()):
        if rule.get("decision") == "deny" and _NARROWING.isdisjoint(rule):
            named = rule.get("toolName", "*")
            yield from (named,) if isinstance(named, str) else _names(rule, "toolName")


EQUIVALENTS: Mapping[str, OwnEquivalents] = {
    "claude": OwnEquivalents(tools=_CLAUDE, denied=_denied_by_claude),
    "codex": OwnEquivalents(tools=_CODEX, denied=_denied_by_codex),
    "gemini": OwnEquivalents(tools=_GEMINI, denied=_denied_by_gemini),
}
"""By client. No client has tools that run tests or linters, or show the project's structure or changes."""


# -- reading settings --------------------------------------------------------------------------------------------------


def _all_of(tools: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    return frozenset(itertools.chain.from_iterable(tools.values()))


def _matching(denied: set[str], tools: frozenset[str]) -> frozenset[str]:
    # A wildcard may mean any of them.
    if any("*" in name and not name.startswith("mcp_") for name in denied):
        return tools
    return tools & denied


def _wholly(rule: str) -> str:
    """The tool that the rule denies with all its uses, such as `Read(//**)`; empty if it denies some uses."""
    name, _, uses = rule.partition("(")
    return "" if uses.strip().removesuffix(")").strip("*:/.~ ") else name.strip()


def _part(settings: _Settings, name: str) -> _Settings:
    found = settings.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"{name} is not a table")
    return found


def _names(settings: _Settings, name: str) -> list[str]:
    found = settings.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError(f"{name} is not a list of names")
    return found


def _found(folder: Path, pattern: str) -> list[Path]:
    found = list(itertools.islice(folder.glob(pattern), _MAX_FILES + 1))
    if len(found) > _MAX_FILES:
        raise ValueError(f"{folder} has too many files")
    return found


def _json(file: Path) -> _Settings:
    return _part({"file": json.loads(without_comments(_text(file)) or "{}")}, "file")


def without_comments(text: str) -> str:
    """JSON with comments, as JSON."""
    return _COMMENT.sub(lambda match: match[1] or "", text)


def _toml(file: Path) -> _Settings:
    return tomllib.loads(_text(file))


def _text(file: Path) -> str:
    """Empty if the file doesn't exist. A project's file may be anything, so this does not wait for a pipe."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{file} is not a file")
        found = os.read(descriptor, _MAX_FILE_SIZE + 1)
    finally:
        os.close(descriptor)
    if len(found) > _MAX_FILE_SIZE:
        raise ValueError(f"{file} is too large")
    return found.decode("utf-8-sig")
