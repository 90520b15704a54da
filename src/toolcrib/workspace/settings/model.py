"""What a workspace may do: the model of `.toolcrib/workspace.yml`, its keys, its defaults, and which of two allows
less.

In: nothing; or settings, and what a file says (`SettingsFromFile`). Out: `WorkspaceSettings`, the keys of its
limits with the bounds of each, and settings as a file would say them. Everything a person did not trust
goes through `narrow_settings`, which is the meet of a lattice: its result is never wider than the first in any key,
whatever the second says. `read` makes settings of a file, `load` puts the layers on top of each other; the tools,
the session and the sandbox read them, and the documentation is held against the keys.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolcrib.config.show import visible

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
class WorkspaceSettings:
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


DEFAULTS = WorkspaceSettings()


_VARIABLES = (
    "CI",
    "CONTINUOUS_INTEGRATION",
    "BUILD_NUMBER",
    "GITHUB_ACTIONS",
    "GITEA_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "JENKINS_URL",
    "HUDSON_URL",
    "TF_BUILD",
    "TEAMCITY_VERSION",
    "CIRCLECI",
    "TRAVIS",
    "APPVEYOR",
    "DRONE",
    "WOODPECKER_CI",
    "BITBUCKET_BUILD_NUMBER",
    "CODEBUILD_BUILD_ID",
    "CIRRUS_CI",
    "SEMAPHORE",
    "bamboo_buildKey",
)
_NO = frozenset({"", "0", "false", "no", "off"})


def in_ci(environ: Mapping[str, str]) -> str:
    """The first variable that says so, or nothing. One that is set to a no does not."""
    return next((name for name in _VARIABLES if environ.get(name, "").strip().lower() not in _NO), "")


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LimitKey:
    """One key beneath `limits:`."""

    name: str
    """The field of `Limits`."""
    unit: int = 1
    """What one of it is there."""
    least: float
    most: float
    whole: bool = True


LIMITS: Mapping[str, LimitKey] = MappingProxyType(
    {
        "memory_mb": LimitKey(name="memory", unit=MB, least=64, most=1_048_576),
        "processes": LimitKey(name="processes", least=16, most=65_536),
        "file_mb": LimitKey(name="file_size", unit=MB, least=1, most=1_048_576),
        "output_kb": LimitKey(name="output", unit=KB, least=1, most=1024),
        "kept_mb": LimitKey(name="kept", unit=MB, least=0, most=1024),
        "read_kb": LimitKey(name="read", unit=KB, least=1, most=10_240),
        "session_calls": LimitKey(name="session_calls", least=1, most=1_000_000_000),
        "session_seconds": LimitKey(name="session_seconds", least=1, most=365 * _DAY, whole=False),
        "session_mb": LimitKey(name="session_bytes", unit=MB, least=0, most=1_048_576),
    }
)

SECONDS_LIMIT = LimitKey(name="seconds", least=0.1, most=_DAY, whole=False)
"""Every key beneath `limits.seconds`."""

SECONDS_KEYS = ("default", *TOOL_NAMES)
LIMITS_KEYS = ("seconds", *LIMITS)


def flat_settings(settings: WorkspaceSettings) -> dict[str, Any]:
    """Every value under its key, as a file would give it: `limits.seconds.run_tests` → 600."""
    limits = settings.limits
    values: dict[str, Any] = {"read_only": settings.read_only}
    values |= {f"tools.{name}": "off" if name in settings.off else "on" for name in TOOL_NAMES}
    values |= {
        "git": str(settings.git),
        "network": settings.network,
        "forbid_shell_in_ci": settings.forbid_shell_in_ci,
        "environment": list(settings.environment),
        "readable": [str(folder) for folder in settings.readable],
        "hidden": list(settings.hidden),
        "guarded": list(settings.guarded),
        "repositories": settings.repositories,
        "python": settings.python,
    }
    values |= {f"limits.seconds.{name}": _plain(limits.seconds[name]) for name in TOOL_NAMES}
    values |= {f"limits.{word}": _plain(getattr(limits, key.name) / key.unit) for word, key in LIMITS.items()}
    return values


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


@dataclass(frozen=True, kw_only=True)
class SettingsFromFile:
    """What one file says. None, or a name that is missing: nothing is said of it."""

    read_only: bool | None = None
    tools: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    """Whether a tool is on."""
    git: GitMode | None = None
    network: bool | None = None
    forbid_shell_in_ci: bool | None = None
    environment: tuple[str, ...] | None = None
    readable: tuple[Path, ...] | None = None
    hidden: tuple[str, ...] | None = None
    guarded: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    """By pattern: whether it is guarded."""
    repositories: bool | None = None
    python: str | None = None
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    limits: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """By the fields of `Limits`."""


_REPLACED = ("read_only", "git", "network", "forbid_shell_in_ci", "environment", "readable", "repositories", "python")


def apply_file(below: WorkspaceSettings, said: SettingsFromFile) -> WorkspaceSettings:
    """The settings of a file that may widen, on top of those below it. What one file hides, no other shows."""
    chosen = {name: value for name in _REPLACED if (value := getattr(said, name)) is not None}
    on = {name for name, is_on in said.tools.items() if is_on}
    guarded = tuple(pattern for pattern, is_on in said.guarded.items() if is_on)
    return dataclasses.replace(
        below,
        **chosen,
        off=frozenset((below.off - on) | (said.tools.keys() - on)),
        hidden=_joined(below.hidden, said.hidden or ()),
        guarded=_joined(tuple(one for one in below.guarded if said.guarded.get(one) is not False), guarded),
        limits=dataclasses.replace(
            below.limits, **said.limits, seconds=MappingProxyType({**below.limits.seconds, **said.seconds})
        ),
    )


def anchored_below(way: tuple[str, ...], said: SettingsFromFile) -> SettingsFromFile:
    """With patterns as they read from further up: a file's own start in the folder that it is for."""
    if not way:
        return said
    start = "/" + "/".join(_SPECIAL.sub(r"\\\g<0>", part) for part in way)
    hidden = said.hidden and tuple(f"{start}{_anchored(pattern)}" for pattern in said.hidden)
    # What is no longer guarded is one of the usual patterns, which have no place.
    guarded = {f"{start}{_anchored(one)}" if is_on else one: is_on for one, is_on in said.guarded.items()}
    return dataclasses.replace(said, hidden=hidden, guarded=MappingProxyType(guarded))


_SPECIAL = re.compile(r"[\\*?\[\]{}!#]")


def _anchored(pattern: str) -> str:
    has_place = "/" in pattern.removesuffix("/")
    return f"/{pattern.removeprefix('/')}" if has_place else f"/**/{pattern}"


def narrow_settings(first: WorkspaceSettings, second: WorkspaceSettings) -> WorkspaceSettings:
    """What both allow. Where two values cannot be compared, as with `python`, the first stands."""
    return WorkspaceSettings(
        read_only=first.read_only or second.read_only,
        off=first.off | second.off,
        git=first.git if first.git is GitMode.READ_ONLY else second.git,
        network=first.network and second.network,
        forbid_shell_in_ci=first.forbid_shell_in_ci or second.forbid_shell_in_ci,
        environment=tuple(name for name in first.environment if name in second.environment),
        # Equal paths only: one that lies beneath another may be a link to somewhere else.
        readable=tuple(folder for folder in first.readable if folder in second.readable),
        hidden=_joined(first.hidden, second.hidden),
        guarded=_joined(first.guarded, second.guarded),
        repositories=first.repositories and second.repositories,
        python=first.python,
        limits=_narrow_limits(first.limits, second.limits),
        broken=first.broken or second.broken,
    )


def _narrow_limits(first: Limits, second: Limits) -> Limits:
    numbers: dict[str, Any] = {
        one.name: min(getattr(first, one.name), getattr(second, one.name))
        for one in dataclasses.fields(Limits)
        if one.name != "seconds"
    }
    seconds = {name: min(value, second.seconds[name]) for name, value in first.seconds.items()}
    return Limits(**numbers, seconds=MappingProxyType(seconds))


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return first + tuple(pattern for pattern in dict.fromkeys(second) if pattern not in first)


def widening_effects(wanted: WorkspaceSettings, allowed: WorkspaceSettings) -> tuple[str, ...]:
    """One line for each key in which the wanted settings differ from those that are allowed, safe to print."""
    given, wished = flat_settings(allowed), flat_settings(wanted)
    return tuple(_effect(key, wished[key], given[key]) for key in wished if wished[key] != given[key])


def _effect(key: str, wished: Any, given: Any) -> str:
    more = visible(", ".join(one for one in wished if one not in given)) if isinstance(wished, list) else ""
    match key:
        case "read_only":
            return "allows writing and the shell, which are off now (read_only: false)"
        case "git":
            return "lets commands commit (git: commit)"
        case "network":
            return "gives commands the network"
        case "forbid_shell_in_ci":
            return "allows the shell in CI"
        case "environment":
            return f"gives commands these variables: {more}"
        case "readable":
            return f"lets commands read {more}"
        case "guarded":
            less = visible(", ".join(one for one in given if one not in wished))
            return f"lets tools and commands write what other programs obey: {less}"
        case "repositories":
            return "lets tools and commands make git repositories"
        case "python":
            return f"runs tests and linters with {visible(wished)}"
        case _ if key.startswith("tools."):
            return f"switches {key.removeprefix('tools.')} on"
        case _:
            return f"raises {key} from {given} to {wished}"
