"""The full listing: every tool that a permission shows, with its whole definition.

In: a catalog, a permission, the gateway's name style. Out: the JSON array of definitions as bytes, cached until one of
them changes. The permission decides, as it does for calls. A program that renames tools also gets each tool's origin;
for a model that would waste tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw

from toolcrib.catalog.offers import Offer, OfferCatalog, app_of
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import WORKSPACE, NameStyle
from toolcrib.identity.principal import ReaderKind
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


class ListingCache:
    def __init__(self, style: NameStyle) -> None:
        self.style = style
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._size = 0

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
        public = catalog.by_public(self.style)
        # Approvals and conditions on arguments are decided at the call.
        shown = {
            name: tool
            for name, tool in public.items()
            if permission.shows(tool) and not (tool.server == WORKSPACE and tool.name in without)
        }
        if reader is ReaderKind.PROGRAM:
            made = (_with_origin(tool.render(name), tool) for name, tool in shown.items())
        else:
            made = (_rendered(tool, name, offers, permission) for name, tool in shown.items())
        array = b"[" + b",".join(made) + b"]"
        self._keep(key, array)
        return array

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
        self._kept[key] = array
        self._size += len(array)
        while len(self._kept) > _MAX_CACHED or (self._size > _MAX_CACHED_BYTES and len(self._kept) > 1):
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)


def _rendered(tool: Tool, name: str, offers: OfferCatalog, permission: Permission) -> bytes:
    """An app that the agent may not read is not linked."""
    definition = tool.render(name)
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
