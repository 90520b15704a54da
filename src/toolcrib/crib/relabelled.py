"""The daemon's list of tools, with the names that they have at their own servers.

In: definitions as the daemon's endpoint lists them for a program: under the gateway's names, each with its source. Out:
a catalog by server and tool, and the way back to the gateway's names. `Connection` has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import Pair, fold
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import BadDefinition, Tool, decode_definition
from toolcrib.errors import UnknownTool
from toolcrib.listing import SOURCE

NOWHERE = "toolcrib"
"""The server of a tool whose source is not told: the daemon is of another version."""

_Fields = dict[str, Raw]


@dataclass(frozen=True, kw_only=True)
class Relabelled:
    definitions: tuple[bytes, ...] = field(default=(), repr=False)
    """As the daemon gave them."""
    catalog: Catalog = field(default_factory=lambda: Catalog(version=0))
    _public: dict[Pair, str] = field(default_factory=dict, repr=False)
    _by_public: dict[str, Pair] = field(default_factory=dict, repr=False)

    def anew(self, definitions: tuple[bytes, ...]) -> Self:
        """The same with what the daemon lists now; where nothing changed, with the very same catalog."""
        listings: dict[str, list[bytes]] = {}
        public: dict[Pair, str] = {}
        for definition in definitions:
            try:
                name, fields = decode_definition(definition)
            except BadDefinition:
                # It cannot be called by us; the daemon's own list leaves such out, too.
                continue
            server, tool = pair = _source(fields) or (NOWHERE, name)
            public[pair] = name
            fields["name"] = Raw(msgspec.json.encode(tool))
            listings.setdefault(server, []).append(msgspec.json.encode(fields))
        last = self.catalog
        made = Catalog.build(
            {server: tuple(listed) for server, listed in listings.items()}, version=last.version + 1, previous=last
        )
        return type(self)(
            definitions=definitions,
            catalog=last if made.tools == last.tools else made,
            _public=public,
            _by_public={fold(name): pair for pair, name in public.items()},
        )

    def find(self, name: str) -> Tool | None:
        """By any of its names here, or by the gateway's."""
        try:
            return self.catalog.find(name, shown=lambda _: False)
        except UnknownTool:
            pair = self._by_public.get(fold(name))
            return None if pair is None else self._of(pair)

    def public(self, tool: Tool) -> str:
        """What the gateway calls it."""
        return self._public[tool.server, tool.name]

    def _of(self, pair: Pair) -> Tool | None:
        return next((tool for tool in self.catalog.of_server(pair[0]) if tool.name == pair[1]), None)


def _source(fields: _Fields) -> Pair | None:
    """Takes the source out of a definition's fields, which are then as the server gave them."""
    try:
        meta = msgspec.json.decode(fields["_meta"], type=_Fields)
        pair: Pair = msgspec.json.decode(meta.pop(SOURCE), type=Pair)
    except (KeyError, msgspec.ValidationError):
        return None
    if meta:
        fields["_meta"] = Raw(msgspec.json.encode(meta))
    else:
        del fields["_meta"]
    return pair
