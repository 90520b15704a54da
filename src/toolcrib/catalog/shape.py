"""What a configuration's rules make of one tool.

In: nothing. Out: `Shape`, which `shaping` makes and a `Tool` carries: what is shown in place of the server's own
definition, and the way back to what the server takes.
"""

from __future__ import annotations

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


def taken_back(undo: Iterable[Undo], given: Mapping[str, Any]) -> dict[str, Any]:
    """`undo` is in the order in which things were changed."""
    arguments = dict(given)
    for back in reversed(tuple(undo)):
        arguments = back(arguments)
    return arguments
