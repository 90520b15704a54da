"""The servers and tools of a daemon, as a program sees them.

In: the daemon's socket and the agent's token; definitions from the daemon's endpoint, under the gateway's names, each
with its origin. Out: each server's state, kept up to date; a catalog by server and tool, and the mapping to the
gateway's names. `Connection` uses both; `commands.agent` is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import ToolKey, folded_name, name_tools
from toolcrib.catalog.offers import Offer, OfferCatalog, resource_or_prompt
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import BadDefinition, OfferKind, Tool, ToolOverride, decode_definition
from toolcrib.daemon_client.connection import DaemonConnection, DaemonDisconnected
from toolcrib.errors import ToolcribError
from toolcrib.listing import ORIGIN_KEY, ToolOrigin
from toolcrib.servers.model import Offers, ServerState

_COMMAND = "agent:servers"
_FIRST_WITHIN = 10.0
_LOOK_AGAIN = 0.5
"""Seconds between attempts to reach the daemon again."""


class DaemonServerStates:
    def __init__(self, on_change: Callable[[str, ServerState], None]) -> None:
        self.by_server: Mapping[str, ServerState] = {}
        self._on_change = on_change
        self._first = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def begin(self, socket: Path, token: str, root: Path) -> None:
        """Returns after the first answer, or when none can come."""
        self._following = asyncio.create_task(self._follow(socket, token, root))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WITHIN):
                await self._first.wait()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self, socket: Path, token: str, root: Path) -> None:
        while True:
            try:
                await self._until_disconnected(await DaemonConnection.to(socket), token, root)
            except DaemonDisconnected:
                self._update({})
            except ToolcribError:
                # The agent ended, or the daemon does not know the command.
                self._update({})
                return
            finally:
                self._first.set()
            await asyncio.sleep(_LOOK_AGAIN)

    async def _until_disconnected(self, connection: DaemonConnection, token: str, root: Path) -> None:
        try:
            await connection.ask(_COMMAND, {"token": token}, root)
            while (event := await connection.event()) is not None:
                self._update(_states_in(event))
                self._first.set()
        finally:
            await connection.close()

    def _update(self, states: Mapping[str, ServerState]) -> None:
        before, self.by_server = self.by_server, states
        for name, state in states.items():
            if before.get(name) is not state:
                self._on_change(name, state)


def _states_in(event: Mapping[str, Any]) -> dict[str, ServerState]:
    match event:
        case {"servers": list(servers)}:
            known = {state.value for state in ServerState}
            return {one["name"]: ServerState(one["state"]) for one in servers if one["state"] in known}
    return {}


UNKNOWN_SERVER = "toolcrib"
"""The server of a tool without an origin, from a daemon of another version."""

_Fields = dict[str, Raw]


@dataclass(frozen=True, kw_only=True)
class _ListedTool:
    public: str
    """The gateway's name for it."""
    source: ToolOrigin
    fields: _Fields
    """The definition under the server's own name."""

    @property
    def pair(self) -> ToolKey:
        return self.source.server, self.source.tool

    @property
    def override(self) -> ToolOverride | None:
        """How the daemon's configuration changed it; the daemon maps the arguments back."""
        source = self.source
        if not source.shown and not source.options:
            return None
        return ToolOverride(name=source.shown or source.tool, fields=self.fields, options=source.options)


@dataclass(frozen=True, kw_only=True)
class DaemonCatalog:
    definitions: tuple[bytes, ...] = field(default=(), repr=False)
    """As the daemon listed them."""
    catalog: Catalog = field(default_factory=lambda: Catalog(version=0))
    _public: dict[ToolKey, str] = field(default_factory=dict, repr=False)
    _by_public: dict[str, Tool] = field(default_factory=dict, repr=False)

    def anew(self, definitions: tuple[bytes, ...]) -> Self:
        """A catalog of the daemon's current definitions."""
        if definitions == self.definitions:
            return self
        listed = {one.pair: one for one in map(_listed_tool, definitions) if one is not None}
        names = name_tools(listed, called={pair: one.source.shown or pair[1] for pair, one in listed.items()})
        tools = {
            pair: Tool(
                server=pair[0],
                name=pair[1],
                fields=one.fields,
                names=names[pair],
                override=one.override,
            )
            for pair, one in sorted(listed.items(), key=lambda item: item[0][0])
        }
        return type(self)(
            definitions=definitions,
            catalog=Catalog(version=self.catalog.version + 1, tools=tuple(tools.values())),
            _public={pair: one.public for pair, one in listed.items()},
            _by_public={folded_name(one.public): tools[pair] for pair, one in listed.items()},
        )

    def find(self, name: str) -> Tool | None:
        """Finds a tool by any of its names here, or by the gateway's."""
        return self.catalog.find(name) if name in self.catalog else self._by_public.get(folded_name(name))

    def public(self, tool: Tool) -> str:
        """The gateway's name of the tool."""
        return self._public[tool.server, tool.name]


def daemon_offers(listed: Offers) -> OfferCatalog:
    """The daemon's resources and prompts. Addresses are the daemon's; prompts have names of their own."""
    prompts = {(source.server, source.tool): fields for source, fields in _sourced(listed.prompts, "name")}
    names = name_tools(prompts)
    return OfferCatalog(
        resources=tuple(_resources(listed.resources, "uri")),
        templates=tuple(_resources(listed.templates, "uriTemplate")),
        prompts=tuple(
            Offer(
                tool=replace(
                    resource_or_prompt(OfferKind.PROMPT, *pair, fields),
                    names=replace(names[pair], display=f"{OfferKind.PROMPT}:{names[pair].display}"),
                ),
                shown_as=names[pair].plain,
                key="name",
            )
            for pair, fields in prompts.items()
        ),
    )


def _resources(definitions: Iterable[bytes], key: str) -> Iterator[Offer]:
    for raw in definitions:
        public = msgspec.json.decode(msgspec.json.decode(raw, type=_Fields)[key], type=str)
        for source, fields in _sourced((raw,), key):
            tool = resource_or_prompt(OfferKind.RESOURCE, source.server, source.tool, fields)
            yield Offer(tool=tool, shown_as=public, key=key)


def _sourced(definitions: Iterable[bytes], key: str) -> Iterator[tuple[ToolOrigin, _Fields]]:
    """Each definition's origin, and its fields as the server sent them."""
    for raw in definitions:
        fields = msgspec.json.decode(raw, type=_Fields)
        named = msgspec.json.decode(fields[key], type=str)
        source = _source(fields) or ToolOrigin(server=UNKNOWN_SERVER, tool=named)
        yield source, {**fields, key: Raw(msgspec.json.encode(source.tool))}


def _listed_tool(definition: bytes) -> _ListedTool | None:
    try:
        public, fields = decode_definition(definition)
    except BadDefinition:
        # Unexpected: the daemon lists only readable definitions.
        return None
    source = _source(fields) or ToolOrigin(server=UNKNOWN_SERVER, tool=public)
    fields["name"] = Raw(msgspec.json.encode(source.tool))
    return _ListedTool(public=public, source=source, fields=fields)


def _source(fields: _Fields) -> ToolOrigin | None:
    """Removes the origin from a definition's fields, which are then as the server sent them."""
    try:
        meta = msgspec.json.decode(fields["_meta"], type=_Fields)
        source = msgspec.json.decode(meta.pop(ORIGIN_KEY), type=ToolOrigin)
    except (KeyError, msgspec.ValidationError):
        return None
    if meta:
        fields["_meta"] = Raw(msgspec.json.encode(meta))
    else:
        del fields["_meta"]
    return source
