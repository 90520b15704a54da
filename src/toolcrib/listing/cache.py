"""The lists of tools, in each mode: the tools that a permission shows, with their definitions.

In: a catalog, a permission, a mode, the gateway's name style. Out: the JSON array of definitions as bytes, cached until
one of them changes. The permission decides, as it does for calls. A program that renames tools also gets each tool's
origin; for a model that would waste tokens. `modes` chooses the mode, `thin` shortens definitions, `gateway_tools` has
the ones that Toolcrib adds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw

from toolcrib.catalog.offers import Offer, OfferCatalog, app_of
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE, ListingMode, NameStyle
from toolcrib.identity.principal import Principal, ReaderKind
from toolcrib.listing.gateway_tools import gateway_tool_definitions
from toolcrib.listing.hints import NO_HINTS, ListingHints
from toolcrib.listing.modes import resolve_mode, size_in_tokens
from toolcrib.listing.thin import Level, thin_definition
from toolcrib.policy import Permission

_MAX_CACHED = 256
_MAX_CACHED_BYTES = 64 * 1024 * 1024
OfferList = Literal["resources", "templates", "prompts"]
_Key = tuple[int, int, str, str, frozenset[str]]

ORIGIN_KEY = "toolcrib/tool"
"""The key in a definition's `_meta` under which a program finds the `ToolOrigin`."""

_NO_OFFERS = OfferCatalog()
_Fields = dict[str, Raw]


class ToolOrigin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tool's origin: `["files", "read_file"]`, with more fields only if the configuration changes the tool."""

    server: str
    """The configured name."""
    tool: str
    """The server's own name for it."""
    shown: str = ""
    """The name that the configuration gives it instead."""
    options: Mapping[str, Any] = {}
    """The configuration's additions to its definitions, by provider."""


class ToolList(NamedTuple):
    array: bytes
    mode: ListingMode


class ListingCache:
    def __init__(self, style: NameStyle) -> None:
        self.style = style
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._size = 0
        self._making = asyncio.Lock()
        """So that agents that ask at the same time do not take all threads for the same work."""

    def tools(
        self,
        catalog: Catalog,
        permission: Permission,
        reader: ReaderKind = ReaderKind.MODEL,
        offers: OfferCatalog = _NO_OFFERS,
        without: frozenset[str] = frozenset(),
    ) -> bytes:
        """The JSON array of definitions. `without`: workspace tools to leave out."""
        key = (catalog.version, offers.version, permission.key, str(reader), without)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        shown = [(tool.public(self.style), tool) for tool in _shown(catalog, permission, without)]
        if reader is ReaderKind.PROGRAM:
            made = (_with_origin(tool.render(name), tool) for name, tool in shown)
        else:
            made = (_rendered(tool, name, offers, permission) for name, tool in shown)
        array = b"[" + b",".join(made) + b"]"
        self._keep(key, array)
        return array

    async def listed(
        self,
        catalog: Catalog,
        principal: Principal,
        wanted: ListingMode,
        *,
        client: str = "",
        offers: OfferCatalog = _NO_OFFERS,
        hints: ListingHints = NO_HINTS,
        without: frozenset[str] = frozenset(),
        results: bool = True,
    ) -> ToolList:
        """The list for a model. `without`: workspace tools to leave out; `results`: whether it may get long results in
        parts."""
        while True:
            permission = principal.permission()
            mode = wanted
            if wanted in (ListingMode.AUTO, ListingMode.HANDSHAKE):
                full = self.tools(catalog, permission, offers=offers, without=without)
                mode = resolve_mode(wanted, client=client, tokens=size_in_tokens(full))
            key = (catalog.version, offers.version, permission.key, f"{mode} {hints.version} {results}", without)
            if key not in self._kept:
                async with self._making:
                    if key not in self._kept:
                        shown = _shown(catalog, permission, without)
                        full = self.tools(catalog, permission, offers=offers, without=without)
                        make = partial(self._in_mode, mode, full, shown, offers, permission, hints, results=results)
                        self._keep(key, await asyncio.to_thread(make))
            array = self._kept[key]
            self._kept.move_to_end(key)
            if principal.permission() is permission:
                return ToolList(array, mode)

    def _in_mode(
        self,
        mode: ListingMode,
        full: bytes,
        shown: list[Tool],
        offers: OfferCatalog,
        permission: Permission,
        hints: ListingHints,
        *,
        results: bool,
    ) -> bytes:
        if not shown:
            return full
        added = gateway_tool_definitions(mode, self.style, shown, offers, results=results)
        if mode is ListingMode.FULL:
            return b"[" + b",".join([full[1:-1], *added]) + b"]"
        if mode is ListingMode.SEARCH:
            by_name = {tool.display: tool for tool in shown}
            shown = [by_name[name] for name in hints.listed(by_name.__contains__)]
        made = [_thin(tool, tool.public(self.style), offers, permission, hints) for tool in shown]
        return b"[" + b",".join([*added, *made] if mode is ListingMode.SEARCH else [*made, *added]) + b"]"

    def offers(
        self, catalog: OfferCatalog, permission: Permission, kind: OfferList, reader: ReaderKind = ReaderKind.MODEL
    ) -> bytes:
        """The JSON array of resources, templates or prompts."""
        key = (0, catalog.version, permission.key, f"{kind} {reader}", frozenset[str]())
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        listed: tuple[Offer, ...] = getattr(catalog, kind)
        made = (one.render() for one in listed if permission.shows(one.tool))
        if reader is ReaderKind.PROGRAM:
            made = (_with_origin(one.render(), one.tool) for one in listed if permission.shows(one.tool))
        array = b"[" + b",".join(made) + b"]"
        self._keep(key, array)
        return array

    def _keep(self, key: _Key, array: bytes) -> None:
        self._size -= len(self._kept.pop(key, b""))
        self._kept[key] = array
        self._size += len(array)
        while len(self._kept) > _MAX_CACHED or (self._size > _MAX_CACHED_BYTES and len(self._kept) > 1):
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)


def _shown(catalog: Catalog, permission: Permission, without: frozenset[str]) -> list[Tool]:
    # Approvals and conditions on arguments are decided at the call.
    return [tool for tool in catalog.tools if permission.shows(tool) and not is_left_out(tool, without)]


def is_left_out(tool: Tool, without: frozenset[str]) -> bool:
    """Whether it is one of these workspace tools."""
    return tool.server == WORKSPACE and tool.name in without


def _rendered(tool: Tool, name: str, offers: OfferCatalog, permission: Permission) -> bytes:
    return _with_readable_app(tool.render(name), tool, offers, permission)


def _thin(tool: Tool, name: str, offers: OfferCatalog, permission: Permission, hints: ListingHints) -> bytes:
    return _with_readable_app(hinted_definition(tool, name, hints), tool, offers, permission)


def hinted_definition(tool: Tool, name: str, hints: ListingHints) -> bytes:
    """The thin definition, at a higher level for tools that are often called wrongly."""
    more = hints.levels.get(tool.display, 0)
    return thin_definition(tool, name, at_least=Level(min(Level.BRIEF + more, Level.FULL)))


def _with_readable_app(definition: bytes, tool: Tool, offers: OfferCatalog, permission: Permission) -> bytes:
    """An app that the agent may not read is not linked."""
    if "_meta" not in tool.fields or not (uri := tool.app_uri):
        return definition
    public = offers.public_uri(tool.server, uri) if permission.shows(app_of(tool)) else ""
    return definition if public == uri else tool.with_app(definition, public)


def _with_origin(definition: bytes, tool: Tool) -> bytes:
    fields = msgspec.json.decode(definition, type=_Fields)
    try:
        meta = msgspec.json.decode(fields.get("_meta", b"{}"), type=_Fields)
    except msgspec.ValidationError:
        meta = {}
    meta[ORIGIN_KEY] = Raw(_origin_of(tool))
    return msgspec.json.encode({**fields, "_meta": meta})


def _origin_of(tool: Tool) -> bytes:
    if tool.override is None:
        return msgspec.json.encode((tool.server, tool.name))
    shown = "" if tool.override.name == tool.name else tool.override.name
    return msgspec.json.encode(
        ToolOrigin(server=tool.server, tool=tool.name, shown=shown, options=tool.override.options)
    )
