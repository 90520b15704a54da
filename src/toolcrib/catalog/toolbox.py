"""The tools that a program offers to its model.

In: offers, and how a tool is called. Out: `Tools`, which never changes: definitions as each provider wants them, and
calls by the names that stand in these. `crib` makes them; filters and transformers make others of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from toolcrib.catalog import formats
from toolcrib.catalog.filters import Filter
from toolcrib.catalog.formats import Adaptation, Api
from toolcrib.catalog.names import fold, is_legal, shortened
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.schema_check import Checker
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import Drop, Keep, Transform, transformed
from toolcrib.errors import UnknownTool, UsageError

if TYPE_CHECKING:
    from toolcrib.crib.results import Result

Call: TypeAlias = "Callable[[Tool, dict[str, Any]], Awaitable[Result]]"
"""Calls a tool with arguments as its server takes them."""

Provider = Literal["openai", "anthropic", "google"]

_NEAREST = 5
_LISTED = 20


class Tools(Sequence[Offer]):
    def __init__(self, offers: Iterable[Offer], *, call: Call) -> None:
        self._offers = tuple(_fitted(offer) for offer in offers)
        self._by_name = _by_name(self._offers)
        self._call = call
        self._checker = Checker()

    def shaped(
        self,
        *,
        keep: Filter | None = None,
        drop: Filter | None = None,
        transform: Sequence[Transform] | Transform = (),
    ) -> Tools:
        """First what is kept, then what is dropped of it, then the transformers in their order."""
        chain: list[Transform] = [] if keep is None else [Keep(keep)]
        chain += [] if drop is None else [Drop(drop)]
        chain += [transform] if callable(transform) else transform
        return Tools(transformed(self._offers, chain), call=self._call)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(offer.name for offer in self._offers)

    def of(self, server: str) -> Tools:
        return Tools((offer for offer in self._offers if offer.server == server), call=self._call)

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, item: object) -> bool:
        return fold(item) in self._by_name if isinstance(item, str) else item in self._offers

    def __repr__(self) -> str:
        return f"Tools({', '.join(self.names)})"

    @overload
    def __getitem__(self, key: str | int) -> Offer: ...

    @overload
    def __getitem__(self, key: slice) -> Tools: ...

    def __getitem__(self, key: str | int | slice) -> Offer | Tools:
        if isinstance(key, int):
            return self._offers[key]
        if isinstance(key, slice):
            return Tools(self._offers[key], call=self._call)
        return self._named(key)

    def _named(self, name: str) -> Offer:
        if found := self._by_name.get(fold(name)):
            return found
        if name.startswith("_") and (found := self._by_name.get(fold(name[1:]))):
            # Google's names begin with a letter, so its format puts this before others.
            return found
        displayed = [offer for offer in self._offers if offer.tool.display == name]
        if len(displayed) == 1:
            return displayed[0]
        nearest = difflib.get_close_matches(name, self.names, n=_NEAREST)
        more = ", …" if len(self) > _LISTED else ""
        there = f"There are: {', '.join(self.names[:_LISTED]) or 'none'}{more}."
        raise UnknownTool(
            f'There is no tool "{name}".',
            remedy=f"Did you mean {', '.join(nearest)}?" if nearest else there,
            data={"name": name, "nearest": nearest},
        )

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> Result:
        """Calls the tool with what the model gave, and gives back its `Result`."""
        offer = self._named(name)
        given = formats.undo(offer, dict(arguments or {}))
        if offer.undo:
            # What is wrong is told in the words that the model knows; the tool's own schema is checked on the way.
            self._checker.check(offer.as_tool, given)
        return await self._call(offer.tool, offer.arguments(given))

    def to_openai(self, api: Api = "chat") -> list[dict[str, Any]]:
        return [formats.openai.definition(offer, api).wire for offer in self._offers]

    def to_anthropic(self) -> list[dict[str, Any]]:
        return [formats.anthropic.definition(offer).wire for offer in self._offers]

    def to_google(self) -> list[dict[str, Any]]:
        return [formats.google.definition(offer).wire for offer in self._offers]

    def adaptations(self, provider: Provider) -> tuple[Adaptation, ...]:
        """Where the definitions for this provider differ from what the servers said."""
        found = {"openai": formats.openai, "anthropic": formats.anthropic, "google": formats.google}.get(provider)
        if found is None:
            raise UsageError(f"There is no provider {provider!r}.", remedy="There are openai, anthropic and google.")
        return tuple(one for offer in self._offers for one in found.definition(offer).adaptations)


def _fitted(offer: Offer) -> Offer:
    """The offer with a name that providers take."""
    name = shortened(offer.name, (offer.server, offer.tool.name))
    if not is_legal(name):
        raise UsageError(
            f"{offer.tool.display} cannot be offered as {name!r}: providers do not take that name.",
            remedy="Use letters, digits, _ and - in names.",
        )
    return offer if name == offer.name else replace(offer, name=name)


def _by_name(offers: Iterable[Offer]) -> dict[str, Offer]:
    by_name: dict[str, Offer] = {}
    for offer in offers:
        held = by_name.setdefault(fold(offer.name), offer)
        if held is not offer:
            raise UsageError(
                f"Two tools would be offered as {offer.name!r}: {held.tool.display} and {offer.tool.display}.",
                remedy="Rename or drop one of them.",
            )
    return by_name
