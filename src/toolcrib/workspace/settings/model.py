"""What a workspace may do: the model of `.toolcrib/workspace.yml`, its keys and defaults, and how settings combine.

In: settings, and the content of a file (`SettingsFromFile`). Out: `WorkspaceSettings`, the keys of its limits with
their bounds, and settings as flat keys. All untrusted settings go through `narrow_settings`, the meet of a lattice: its
result never allows more than the first settings in any key. `read` parses a file, `load` combines the layers; the
tools, the session and the sandbox use the result, and a test compares the documentation with the keys.
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
"""Every tool, with the time limit of one call."""

TOOL_NAMES = tuple(TOOL_SECONDS)

WRITING_TOOLS = frozenset({"write_file", "edit_file", "run_shell_safe"})
"""Not available in read-only mode. Tests and linters are: they run with the folder bound read-only."""

SHELL_TOOLS = frozenset({"run_shell_safe"})
"""Not available in CI if `forbid_shell_in_ci` is set."""


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
"""Files that coding agents, editors, debuggers, shells and git hooks obey as soon as a person opens the folder, enters
it or commits. Excludes files that only the project's own build obeys, and instructions such as AGENTS.md."""


class GitMode(enum.StrEnum):
    READ_ONLY = "read-only"
    """Nothing can write `.git`."""
    COMMIT = "commit"
    """Commands may commit; hooks, configuration and anything that runs later stay read-only."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    seconds: Mapping[str, float] = field(default_factory=lambda: TOOL_SECONDS)
    """For one call; every tool has an entry."""
    memory: int = 4096 * MB
    """For a command and everything it starts."""
    processes: int = 512
    """For a command and everything it starts, including threads."""
    file_size: int = 1024 * MB
    """The largest file that a command may write."""
    output: int = 16 * KB
    """How much of a command's output a model gets."""
    kept: int = 16 * MB
    """How much of a command's output is kept as a file."""
    read: int = 32 * KB
    """How much one `read_file` returns."""
    session_calls: int = 10_000
    session_seconds: float = 21_600.0
    """Total for commands."""
    session_bytes: int = 1024 * MB
    """Total written by `write_file` and `edit_file`."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceSettings:
    read_only: bool = False
    off: frozenset[str] = frozenset()
    """Tools that are switched off, by name."""
    git: GitMode = GitMode.READ_ONLY
    network: bool = False
    """Whether commands can use the network."""
    forbid_shell_in_ci: bool = True
    environment: tuple[str, ...] = ()
    """Names of the variables that commands inherit from the server."""
    readable: tuple[Path, ...] = ()
    """Outside folders that commands may read."""
    hidden: tuple[str, ...] = ()
    """Patterns of files that no tool shows, finds, reads or writes; relative to `above`."""
    guarded: tuple[str, ...] = GUARDED
    """Patterns of files that tools and commands cannot write because other programs obey them; relative to `above`."""
    repositories: bool = False
    """Whether tools and commands may create git repositories."""
    above: str = ""
    """The path from the folder of the outermost settings file down to the root; empty if they are the same."""
    python: str | None = None
    """The interpreter for tests and linters; None: searched for."""
    limits: Limits = Limits()
    broken: str = ""
    """The error in a settings file. If not empty, every tool refuses with this text."""


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
    """The first variable that indicates CI, or an empty string. A value such as "false" doesn't count."""
    return next((name for name in _VARIABLES if environ.get(name, "").strip().lower() not in _NO), "")


_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LimitKey:
    """One key below `limits:`."""

    name: str
    """The field in `Limits`."""
    unit: int = 1
    """Factor from the file's value to the field's."""
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
"""For every key below `limits.seconds`."""

SECONDS_KEYS = ("default", *TOOL_NAMES)
LIMITS_KEYS = ("seconds", *LIMITS)


def flat_settings(settings: WorkspaceSettings) -> dict[str, Any]:
    """Every value by its key in a settings file: `limits.seconds.run_tests` → 600."""
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
    """The content of one file. None or a missing name means that the file does not set it."""

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


def apply_file(below: WorkspaceSettings, given: SettingsFromFile) -> WorkspaceSettings:
    """Applies a trusted file to the settings below it. Patterns hidden by one file stay hidden."""
    chosen = {name: value for name in _REPLACED if (value := getattr(given, name)) is not None}
    on = {name for name, is_on in given.tools.items() if is_on}
    guarded = tuple(pattern for pattern, is_on in given.guarded.items() if is_on)
    return dataclasses.replace(
        below,
        **chosen,
        off=frozenset((below.off - on) | (given.tools.keys() - on)),
        hidden=_joined(below.hidden, given.hidden or ()),
        guarded=_joined(tuple(one for one in below.guarded if given.guarded.get(one) is not False), guarded),
        limits=dataclasses.replace(
            below.limits, **given.limits, seconds=MappingProxyType({**below.limits.seconds, **given.seconds})
        ),
    )


def anchored_below(way: tuple[str, ...], given: SettingsFromFile) -> SettingsFromFile:
    """Rewrites a file's patterns, which are relative to its own folder, to start at a folder further up."""
    if not way:
        return given
    start = "/" + "/".join(_SPECIAL.sub(r"\\\g<0>", part) for part in way)
    hidden = given.hidden and tuple(f"{start}{_anchored(pattern)}" for pattern in given.hidden)
    # Patterns that are switched off are built-in ones, which are not tied to a folder.
    guarded = {f"{start}{_anchored(one)}" if is_on else one: is_on for one, is_on in given.guarded.items()}
    return dataclasses.replace(given, hidden=hidden, guarded=MappingProxyType(guarded))


_SPECIAL = re.compile(r"[\\*?\[\]{}!#]")


def _anchored(pattern: str) -> str:
    has_place = "/" in pattern.removesuffix("/")
    return f"/{pattern.removeprefix('/')}" if has_place else f"/**/{pattern}"


def narrow_settings(first: WorkspaceSettings, second: WorkspaceSettings) -> WorkspaceSettings:
    """What both allow. If two values cannot be compared, as with `python`, the first one wins."""
    return WorkspaceSettings(
        read_only=first.read_only or second.read_only,
        off=first.off | second.off,
        git=first.git if first.git is GitMode.READ_ONLY else second.git,
        network=first.network and second.network,
        forbid_shell_in_ci=first.forbid_shell_in_ci or second.forbid_shell_in_ci,
        environment=tuple(name for name in first.environment if name in second.environment),
        # Equal paths only: a path below another may be a link to somewhere else.
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
    """One line for each key in which the wanted and the allowed settings differ, safe to print."""
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
            return "gives commands network access"
        case "forbid_shell_in_ci":
            return "allows the shell in CI"
        case "environment":
            return f"gives commands these variables: {more}"
        case "readable":
            return f"lets commands read {more}"
        case "guarded":
            less = visible(", ".join(one for one in given if one not in wished))
            return f"lets tools and commands write files that configure other programs: {less}"
        case "repositories":
            return "lets tools and commands create git repositories"
        case "python":
            return f"runs tests and linters with {visible(wished)}"
        case _ if key.startswith("tools."):
            return f"switches {key.removeprefix('tools.')} on"
        case _:
            return f"raises {key} from {given} to {wished}"
