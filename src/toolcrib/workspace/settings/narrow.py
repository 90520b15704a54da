"""Which of two settings allows less, key by key, and what of a file is let through.

In: settings, and what a file says (`Said`). Out: settings. Everything a person did not trust goes through `narrow`,
which is the meet of a lattice: its result is never wider than the first in any key, whatever the second says.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolcrib.config.visible import visible
from toolcrib.workspace.settings.keys import flat
from toolcrib.workspace.settings.model import GitMode, Limits, Settings


@dataclass(frozen=True, kw_only=True)
class Said:
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


def over(below: Settings, said: Said) -> Settings:
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


def starting_at(way: tuple[str, ...], said: Said) -> Said:
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


def narrow(first: Settings, second: Settings) -> Settings:
    """What both allow. Where two values cannot be compared, as with `python`, the first stands."""
    return Settings(
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


def effects(wanted: Settings, allowed: Settings) -> tuple[str, ...]:
    """One line for each key in which the wanted settings differ from those that are allowed, safe to print."""
    given, wished = flat(allowed), flat(wanted)
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
