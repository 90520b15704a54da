"""Words of transformers that name nothing.

In: a transformer and the offers that come to it. Out: a `UsageError` for each name in it that none of them has. Who
fixes an argument and misspells it would leave it to the model, and hear nothing. `toolbox` asks. Filters are no
mistake if they choose nothing, and of functions nobody knows what they look for.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from toolcrib.catalog.filters import Filter, matches
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.schema_change import Schema, declared, is_silent, mentioned
from toolcrib.catalog.transforms import Default, Fix, Rename, RenameArgument
from toolcrib.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.catalog.transforms import Transform

_NEAREST = 3
_LISTED = 20


class Idle(enum.Enum):
    """What becomes of a transformer that names nothing which is there."""

    REFUSED = "refused"
    TAKEN = "taken"
    """It is noted in `Tools.idle`: not all tools are known now."""


def idle_in(transform: Transform, offers: Sequence[Offer]) -> list[UsageError]:
    if not offers:
        return []
    match transform:
        case Rename(names=names) if not callable(names):
            return _tools(transform, names, offers)
        case Fix(arguments=arguments, tools=tools):
            meant = _meant(tools, offers)
            # One that does not say what it takes gets what is meant for it.
            looked_for = () if tools is not None and any(is_silent(one.schema) for one in meant) else arguments
            return _tools(transform, _words(tools), offers) or _arguments(transform, looked_for, meant, named=mentioned)
        case Default(arguments=arguments):
            return _arguments(transform, arguments, offers)
        case RenameArgument(names=names):
            return _arguments(transform, names, offers)
    return []


def common(found: Iterable[Sequence[UsageError]]) -> list[UsageError]:
    """Those that are said of each of several collections of tools."""
    first, *others = list(found) or [()]
    return [one for one in first if all(one.message in {other.message for other in more} for more in others)]


def _tools(transform: Transform, words: Iterable[str], offers: Sequence[Offer]) -> list[UsageError]:
    there = [name for offer in offers for name in (offer.name, offer.tool.display)]
    return [
        _error(transform, f"no tool is {word!r}", word, there, {"tool": word})
        for word in words
        if not any(matches(word, offer) for offer in offers)
    ]


def _arguments(
    transform: Transform,
    names: Iterable[str],
    offers: Sequence[Offer],
    *,
    named: Callable[[Schema], Iterable[str]] = declared,
) -> list[UsageError]:
    there = sorted({name for offer in offers for name in named(offer.schema)})
    return [
        _error(transform, f"no tool has an argument {name!r}", name, there, {"argument": name})
        for name in names
        if offers and name not in there
    ]


def _meant(tools: Filter | None, offers: Sequence[Offer]) -> list[Offer]:
    return [offer for offer in offers if tools is None or matches(tools, offer)]


def _words(tools: Filter | None) -> Iterator[str]:
    if isinstance(tools, str):
        yield tools
    elif tools is not None and not callable(tools):
        for one in tools:
            yield from _words(one)


def _error(transform: Transform, what: str, word: str, there: Sequence[str], data: dict[str, str]) -> UsageError:
    near = difflib.get_close_matches(word, there, n=_NEAREST)
    more = ", …" if len(there) > _LISTED else ""
    listed = f"There are: {', '.join(there[:_LISTED]) or 'none'}{more}."
    return UsageError(
        f"{type(transform).__name__}: {what}.",
        remedy=f"Did you mean {', '.join(near)}?" if near else listed,
        data=data,
    )
