"""The tools that a program offers to its model.

In: offered tools, and a function that calls one. Out: immutable `Tools`: definitions for each provider, and calls by
the names in them. `core` creates them; filters and transforms derive others.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, get_args, overload

import msgspec

from toolcrib.catalog.names import folded_name, is_legal, shortened, similar
from toolcrib.catalog.offered_tool import Filter, OfferedTool
from toolcrib.catalog.schema_check import ArgumentChecker, CallerView, check_is_mapping
from toolcrib.catalog.tool import Tool, callers_arguments
from toolcrib.catalog.transforms import (
    DropTools,
    KeepTools,
    OnSkipped,
    Transform,
    UnmatchedNames,
    apply_transforms,
    unmatched_names,
)
from toolcrib.errors import InvalidArguments, UnknownTool, UsageError
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Adaptation, Api, Definition, Provider, refuse_unknown_api
from toolcrib.formats.undo import undo_arguments

if TYPE_CHECKING:
    from toolcrib.core.results import Result


class CallTool(Protocol):
    """Calls a tool with arguments as its server expects them; `timeout` is in seconds."""

    def __call__(self, tool: Tool, arguments: dict[str, Any], /, *, timeout: float | None) -> Awaitable[Result]: ...


_NEAREST = 5
_LISTED = 20


class Tools(Sequence[OfferedTool]):
    """A snapshot of the tools for a model: a sequence of `OfferedTool`, created by `tools()` of a `Crib` or `Kit`.

    It has definitions for each provider (`to_openai`, `to_anthropic`, `to_google`) and calls tools by the names in them
    (`call`). See also `tools["read_file"]`, `tools.of("files")` and `tools.names`.
    """

    def __init__(self, offers: Iterable[OfferedTool], *, call: CallTool, unmatched: Sequence[UsageError] = ()) -> None:
        self.unmatched = tuple(unmatched)
        """Errors for names in the transforms that match no tool."""
        self._offers = tuple(_fitted(offer) for offer in offers)
        self._by_name = _by_name(self._offers)
        self._call = call
        self._checker = ArgumentChecker()

    def transformed(
        self,
        *,
        keep: Filter | None = None,
        drop: Filter | None = None,
        transform: Sequence[Transform] | Transform = (),
        unmatched: UnmatchedNames = UnmatchedNames.REFUSED,
        on_skipped: OnSkipped | None = None,
    ) -> Tools:
        """Applies `keep`, then `drop`, then the transforms in order.

        Raises `UsageError` for a transform that names a missing tool or argument, unless `unmatched` allows it, and for
        a tool that a transform does not fit or gives a used name; with `on_skipped`, such a tool is left out instead.
        """
        chain: list[Transform] = [] if keep is None else [KeepTools(keep)]
        chain += [] if drop is None else [DropTools(drop)]
        chain += [transform] if callable(transform) else transform
        offers, found = self._offers, []
        for one in chain:
            found += unmatched_names(one, offers)
            offers = apply_transforms(offers, one, on_skipped=on_skipped)
        if found and unmatched is UnmatchedNames.REFUSED:
            raise found[0]
        return Tools(offers if on_skipped is None else _offered(offers, on_skipped), call=self._call, unmatched=found)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(offer.name for offer in self._offers)

    def of(self, server: str) -> Tools:
        """The tools of one server."""
        return Tools((offer for offer in self._offers if offer.server == server), call=self._call)

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, item: object) -> bool:
        return folded_name(item) in self._by_name if isinstance(item, str) else item in self._offers

    def __repr__(self) -> str:
        return f"Tools({', '.join(self.names)})"

    @overload
    def __getitem__(self, key: str | int) -> OfferedTool: ...

    @overload
    def __getitem__(self, key: slice) -> Tools: ...

    def __getitem__(self, key: str | int | slice) -> OfferedTool | Tools:
        if isinstance(key, int):
            return self._offers[key]
        if isinstance(key, slice):
            return Tools(self._offers[key], call=self._call)
        return self._named(key)

    def _named(self, name: str) -> OfferedTool:
        if found := self._by_name.get(folded_name(name)):
            return found
        if found := self._at_google.get(folded_name(name)):
            return found
        for displayed in (
            [offer for offer in self._offers if offer.tool.display == name],
            [offer for offer in self._offers if f"{offer.server}:{offer.name}" == name],
        ):
            if len(displayed) == 1:
                return displayed[0]
        names = self.names
        nearest = [names[at] for at in itertools.islice(similar(name, names), _NEAREST)]
        more = ", …" if len(self) > _LISTED else ""
        there = f"Available: {', '.join(self.names[:_LISTED]) or 'none'}{more}."
        raise UnknownTool(
            f'There is no tool "{name}".',
            remedy=f"Did you mean {', '.join(nearest)}?" if nearest else there,
            data={"name": name, "nearest": nearest},
        )

    @cached_property
    def _at_google(self) -> dict[str, OfferedTool]:
        """Offers whose name for Google differs."""
        named = {folded_name(google.google_name(offer.name, self._by_name)): offer for offer in self._offers}
        return {name: offer for name, offer in named.items() if name not in self._by_name}

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        provider: Provider | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Calls the tool with the model's arguments and returns its `Result`; `timeout` is in seconds.

        Pass the model's provider (`provider="openai"`) if you know it, because each encodes some values differently.
        """
        real = self.real_arguments(name, arguments, provider=provider)
        return await self.call_real(name, real, timeout=timeout)

    def real_arguments(
        self, name: str, given: Mapping[str, Any] | None = None, *, provider: Provider | None = None
    ) -> dict[str, Any]:
        """Converts the model's arguments to the tool's real ones, for `call_real`."""
        if provider is not None:
            _refuse_unknown(provider)
        offer = self._named(name)
        check_is_mapping(name, given)
        try:
            shown = undo_arguments(offer, dict(given or {}), provider)
            return self._taken_back(offer, shown) if offer.undo else shown
        except RecursionError:
            raise InvalidArguments(
                f"The arguments for {name} are nested too deeply.", remedy="Use a flatter structure."
            ) from None

    async def call_real(self, name: str, arguments: Mapping[str, Any], *, timeout: float | None = None) -> Result:
        """Calls the tool with these arguments, unchanged."""
        offer = self._named(name)
        try:
            return await self._call(offer.tool, dict(arguments), timeout=timeout)
        except InvalidArguments:
            if not offer.undo:
                raise
            # The original message may quote values that the model must not see.
            raise InvalidArguments(
                f"{offer.name} rejects these arguments, although they match its schema: the tool has changed.",
                remedy="List the tools again.",
                data={"schema": offer.schema},
            ) from None

    def _taken_back(self, offer: OfferedTool, shown: dict[str, Any]) -> dict[str, Any]:
        # Errors use the names that the model knows.
        self._checker.check(offer.as_tool, shown)
        real = offer.arguments(shown)
        try:
            encoded = msgspec.json.encode(real)
        except (TypeError, ValueError, msgspec.MsgspecError):
            # `call_request` reports invalid JSON.
            return real
        seen = CallerView(schema=offer.schema, own=partial(callers_arguments, offer.undo, shown))
        self._checker.check(offer.tool.shown, encoded, seen=seen)
        return real

    def to_openai(self, api: Api = "chat") -> list[dict[str, Any]]:
        """Definitions for `tools` of Chat Completions, or of Responses."""
        refuse_unknown_api(api)
        return [openai.definition(offer, api).wire for offer in self._offers]

    def to_anthropic(self) -> list[dict[str, Any]]:
        """Definitions for `tools` of Messages."""
        return [anthropic.definition(offer).wire for offer in self._offers]

    def to_google(self) -> list[dict[str, Any]]:
        """Definitions for `tools`: `[{"functionDeclarations": …}]`."""
        return [google.definition(offer, self._by_name).wire for offer in self._offers]

    def adaptations(self, provider: Provider) -> tuple[Adaptation, ...]:
        """The differences between the definitions for this provider and the servers' own."""
        _refuse_unknown(provider)
        made: Iterable[Definition]
        match provider:
            case "openai":
                made = map(openai.definition, self._offers)
            case "anthropic":
                made = map(anthropic.definition, self._offers)
            case "google":
                made = (google.definition(offer, self._by_name) for offer in self._offers)
        return tuple(one for definition in made for one in definition.adaptations)


def _refuse_unknown(provider: str) -> None:
    if provider not in get_args(Provider):
        raise UsageError(f"There is no provider {provider!r}.", remedy="Use openai, anthropic or google.")


def _fitted(offer: OfferedTool) -> OfferedTool:
    """The offer with a name that providers accept."""
    name = shortened(offer.name, (offer.server, offer.tool.name))
    if not is_legal(name):
        raise UsageError(
            f"{offer.tool.display} cannot be offered as {name!r}: providers do not accept that name.",
            remedy="Use letters, digits, _ and - in names.",
        )
    return offer if name == offer.name else replace(offer, name=name)


def _by_name(offers: Iterable[OfferedTool]) -> dict[str, OfferedTool]:
    by_name: dict[str, OfferedTool] = {}
    for offer in offers:
        held = by_name.setdefault(folded_name(offer.name), offer)
        if held is not offer:
            raise _doubled(held, offer)
    return by_name


def _doubled(held: OfferedTool, offer: OfferedTool) -> UsageError:
    return UsageError(
        f"Two tools would be offered as {offer.name!r}: {held.tool.display} and {offer.tool.display}.",
        remedy="Rename or drop one of them.",
    )


def _offered(offers: Iterable[OfferedTool], on_skipped: OnSkipped) -> list[OfferedTool]:
    """The offers that fit together: the first one with a name keeps it."""
    by_name: dict[str, OfferedTool] = {}
    for offer in offers:
        try:
            fitted = _fitted(offer)
        except UsageError as error:
            on_skipped(offer, error)
            continue
        held = by_name.setdefault(folded_name(fitted.name), fitted)
        if held is not fitted:
            on_skipped(fitted, _doubled(held, fitted))
    return list(by_name.values())
