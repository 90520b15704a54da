"""Which columns of a table a terminal has room for, and how wide each may be.

In: how wide each would like to be. Out: the same for those that stay, so that every row takes one line. `output` draws
them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GAP = 2
"""Spaces between two columns."""

_NARROWEST = 20
"""Characters that the text keeps, however little room there is."""


class Cut(enum.Enum):
    """Whether a table shows all of its text."""

    NOTHING = enum.auto()
    SOME = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Yielding:
    """How a table's columns make room; those that are not named stay as they are."""

    text: str
    """Gets what room the others leave."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """May be shortened, the last first, to so many characters at least."""
    optional: Sequence[str] = ()
    """May be left out, the first first."""


def fitted(natural: Mapping[str, int], room: int, yielding: Yielding) -> dict[str, int]:
    """The widths of the columns that stay, in their order."""
    widths = {name: min(width, _least(name, width, yielding)) for name, width in natural.items()}
    for name in yielding.optional:
        if _needed(widths) <= room:
            break
        del widths[name]
    spare = room - _needed(widths)
    for name in (*yielding.cut, yielding.text):
        if name in widths:
            more = max(0, min(natural[name] - widths[name], spare))
            widths[name] += more
            spare -= more
    return widths


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _least(name: str, width: int, yielding: Yielding) -> int:
    if name == yielding.text:
        return _NARROWEST
    return yielding.cut.get(name, width)


def _needed(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
