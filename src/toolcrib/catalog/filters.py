"""Which tools are meant.

In: a `Filter`: a name or glob, a function of an `Offer`, or several of these, of which one is enough. Out: whether an
offer is meant. `transforms` and `toolbox` ask; the rules of configuration files come here too, by `shaping`.

The annotations are the server's own word on its tools. They serve to choose what a model is shown; what an agent may
do is decided by permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from toolcrib.catalog.claims import claims_of
from toolcrib.catalog.offer import Offer

Predicate: TypeAlias = Callable[[Offer], bool]
Filter: TypeAlias = "str | Predicate | Iterable[Filter]"
"""`read_file`, `*_status` (the offer's name), `git:*` (`server:tool`), a function, or any of several."""


def matches(wanted: Filter, offer: Offer) -> bool:
    if isinstance(wanted, str):
        return any(name == wanted or fnmatchcase(name, wanted) for name in _names(offer, wanted))
    if callable(wanted):
        return bool(wanted(offer))
    return any(matches(one, offer) for one in wanted)


def names_it(wanted: Filter, offer: Offer) -> bool:
    """Whether it is meant by its very name, and not as one of many."""
    if isinstance(wanted, str):
        return wanted in _names(offer, wanted)
    return not callable(wanted) and any(names_it(one, offer) for one in wanted)


def kept(wanted: Filter) -> Filter:
    """The same, also where it can be gone through only once."""
    return wanted if isinstance(wanted, str) or callable(wanted) else tuple(map(kept, wanted))


def not_(unwanted: Filter) -> Predicate:
    meant = kept(unwanted)
    return lambda offer: not matches(meant, offer)


def read_only(offer: Offer) -> bool:
    """It changes nothing, as its server says of it: `tools(keep=read_only)`. A server that says nothing means no."""
    return claims_of(offer.annotations)["read_only"]


def destructive(offer: Offer) -> bool:
    """It may overwrite or delete something: so does what does not only read, unless its server says otherwise."""
    return claims_of(offer.annotations)["destructive"]


def idempotent(offer: Offer) -> bool:
    """A second call with the same arguments changes nothing more."""
    return claims_of(offer.annotations)["idempotent"]


def open_world(offer: Offer) -> bool:
    """It deals with things outside, as a web search does: so does every tool, unless its server says otherwise."""
    return claims_of(offer.annotations)["open_world"]


def claiming(name: str) -> Predicate:
    """The predicate of one of the `CLAIMS`."""
    return lambda offer: claims_of(offer.annotations)[name]


def _names(offer: Offer, pattern: str) -> tuple[str, ...]:
    tool = offer.tool
    if ":" in pattern:
        return (tool.display,)
    # A plain name that several tools share is nobody's name; the tools are still found by it.
    given = offer.name in (tool.names.plain, tool.names.server, tool.names.mcp)
    return (offer.name, tool.name) if given else (offer.name,)
