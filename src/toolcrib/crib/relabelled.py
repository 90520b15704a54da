"""The daemon's list of tools, with the names that they have at their own servers.

In: definitions as the daemon's endpoint lists them for a program: under the gateway's names, each with its source. Out:
a catalog by server and tool, and the way back to the gateway's names. `Connection` has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import Pair, fold, name_tools
from toolcrib.catalog.shape import Shape
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import BadDefinition, Tool, decode_definition
from toolcrib.errors import UnknownTool
from toolcrib.listing import SOURCE, ToolSource

NOWHERE = "toolcrib"
"""The server of a tool whose source is not told: the daemon is of another version."""

_Fields = dict[str, Raw]


@dataclass(frozen=True, kw_only=True)
class _Listed:
    public: str
    """The gateway's name for it."""
    source: ToolSource
    fields: _Fields
    """The definition under the server's own name."""

    @property
    def pair(self) -> Pair:
        return self.source.server, self.source.tool

    @property
    def shape(self) -> Shape | None:
        """What the daemon's configuration made of it; the arguments are taken back there."""
        told = self.source
        if not told.shown and not told.options:
            return None
        return Shape(name=told.shown or told.tool, fields=self.fields, options=told.options)


@dataclass(frozen=True, kw_only=True)
class Relabelled:
    definitions: tuple[bytes, ...] = field(default=(), repr=False)
    """As the daemon gave them."""
    catalog: Catalog = field(default_factory=lambda: Catalog(version=0))
    _public: dict[Pair, str] = field(default_factory=dict, repr=False)
    _by_public: dict[str, Tool] = field(default_factory=dict, repr=False)

    def anew(self, definitions: tuple[bytes, ...]) -> Self:
        """The same with what the daemon lists now."""
        if definitions == self.definitions:
            return self
        listed = {one.pair: one for one in map(_listed, definitions) if one is not None}
        names = name_tools(listed, called={pair: one.source.shown or pair[1] for pair, one in listed.items()})
        tools = {
            pair: Tool(server=pair[0], name=pair[1], fields=one.fields, names=names[pair], shape=one.shape)
            for pair, one in sorted(listed.items(), key=lambda item: item[0][0])
        }
        return type(self)(
            definitions=definitions,
            catalog=Catalog(version=self.catalog.version + 1, tools=tuple(tools.values())),
            _public={pair: one.public for pair, one in listed.items()},
            _by_public={fold(one.public): tools[pair] for pair, one in listed.items()},
        )

    def find(self, name: str) -> Tool | None:
        """By any of its names here, or by the gateway's."""
        try:
            return self.catalog.find(name, shown=lambda _: False)
        except UnknownTool:
            return self._by_public.get(fold(name))

    def public(self, tool: Tool) -> str:
        """What the gateway calls it."""
        return self._public[tool.server, tool.name]


def _listed(definition: bytes) -> _Listed | None:
    try:
        public, fields = decode_definition(definition)
    except BadDefinition:
        # Not the daemon's way: it leaves out what it cannot read.
        return None
    source = _source(fields) or ToolSource(server=NOWHERE, tool=public)
    fields["name"] = Raw(msgspec.json.encode(source.tool))
    return _Listed(public=public, source=source, fields=fields)


def _source(fields: _Fields) -> ToolSource | None:
    """Takes the source out of a definition's fields, which are then as the server gave them."""
    try:
        meta = msgspec.json.decode(fields["_meta"], type=_Fields)
        source = msgspec.json.decode(meta.pop(SOURCE), type=ToolSource)
    except (KeyError, msgspec.ValidationError):
        return None
    if meta:
        fields["_meta"] = Raw(msgspec.json.encode(meta))
    else:
        del fields["_meta"]
    return source
