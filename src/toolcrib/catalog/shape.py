"""What a configuration's rules make of one tool.

In: nothing. Out: `Shape`, which `shaping` makes and a `Tool` carries: what is shown in place of the server's own
definition, and the way back to what the server takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

Undo = Callable[[dict[str, Any]], dict[str, Any]]
"""From the arguments as they were offered to those of what the offer was made of."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    """In place of the server's own name, in every style."""
    fields: Mapping[str, Raw] = field(repr=False)
    """The definition that is shown."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By provider, for the offers that are made of the tool."""
    undo: tuple[Undo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Renames:
    """The way back of arguments that are shown under other names."""

    names: Mapping[str, str]
    """From the names that are shown."""
    gone: frozenset[str]
    """Names that nothing has any more. An argument is not taken under its old one as well: nothing in the schema says
    what it must be."""

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): value for name, value in given.items() if name not in self.gone}


def taken_back(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, Any]:
    """`undo` is in the order in which things were changed."""
    arguments = dict(given)
    for back in reversed(tuple(undo)):
        arguments = back(arguments)
    return arguments


def callers_own(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, str]:
    """Which of the arguments that `taken_back` gives are just what the caller gave, each with the caller's name of it.
    The others hold what the caller does not know, and may not be told."""
    own = {name: name for name in given}
    before = dict(given)
    try:
        for back in reversed(tuple(undo)):
            # One that changes what it gets would make both the same.
            after = back(copy.deepcopy(before))
            if isinstance(back, Renames):
                own = {back.names.get(name, name): shown for name, shown in own.items() if name not in back.gone}
            else:
                own = {name: shown for name, shown in own.items() if name in after and after[name] == before[name]}
            before = after
    except RecursionError:
        return {}
    return own
