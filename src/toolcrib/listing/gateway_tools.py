"""The tools that Toolcrib adds to lists, so that a short list is enough: find, describe, call, batch, result.

In: a listing mode, the tools that an agent may use. Out: the definitions to list, as short as they can be. They are the
gateway's, not a server's, and lead only to tools that are decided on one by one. `gateway.gateway_tools` answers them.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from toolcrib.catalog.names import name_tools
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.masking import printable
from toolcrib.config.model import COMMANDS, GATEWAY_TOOLS, ListingMode, NameStyle


class GatewayTool(enum.StrEnum):
    FIND, DESCRIBE, CALL, BATCH, RESULT = GATEWAY_TOOLS

    @property
    def display(self) -> str:
        return f"{COMMANDS}:{self}"


_NAMES = name_tools([(COMMANDS, tool) for tool in GatewayTool])

NAMED_GATEWAY_TOOLS: Mapping[str, GatewayTool] = {
    name: GatewayTool(tool)
    for (_, tool), names in _NAMES.items()
    for name in (names.plain, names.mcp, names.server, names.display)
}
"""By their names in every style, and as `crib:find`."""


def listed_name(tool: GatewayTool, style: NameStyle) -> str:
    return _NAMES[COMMANDS, tool].of(style)


MOST_HITS = 20
MOST_DESCRIBED = 8
MOST_IN_BATCH = 32


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT: dict[str, Any] = {"type": "string"}
_CALL = _object(["tool"], tool=_TEXT, arguments={"type": "object"})

_DEFINITIONS: Mapping[GatewayTool, tuple[str, dict[str, Any]]] = {
    GatewayTool.FIND: (
        "Find tools by what they do; {call} calls a hit. Servers:{servers}",
        _object(["query"], query=_TEXT, server=_TEXT, limit={"type": "integer", "minimum": 1, "maximum": MOST_HITS}),
    ),
    GatewayTool.DESCRIBE: (
        "The full definitions of tools.",
        _object(["tools"], tools={"type": "array", "items": _TEXT, "maxItems": MOST_DESCRIBED}),
    ),
    GatewayTool.CALL: ("Call a tool by name.", _CALL),
    GatewayTool.BATCH: (
        'Make several calls. An argument {{"$from": 0, "path": "$.a[0].b"}} takes that part of the result of call 0.',
        _object(["calls"], calls={"type": "array", "items": _CALL, "maxItems": MOST_IN_BATCH}),
    ),
    GatewayTool.RESULT: (
        "Read the rest of a long result: a page, the lines with a text, or a JSON path such as $.items[0:9].name.",
        _object(["id"], id=_TEXT, page={"type": "integer", "minimum": 1}, search=_TEXT, path=_TEXT),
    ),
}
_READS = frozenset({GatewayTool.FIND, GatewayTool.DESCRIBE, GatewayTool.RESULT})
_LISTED: Mapping[ListingMode, tuple[GatewayTool, ...]] = {
    ListingMode.FULL: (GatewayTool.RESULT,),
    ListingMode.THIN: (GatewayTool.BATCH, GatewayTool.RESULT),
    ListingMode.SEARCH: tuple(GatewayTool),
}


def gateway_tool_definitions(
    mode: ListingMode, style: NameStyle, shown: Iterable[Tool], offers: OfferCatalog, *, results: bool = True
) -> list[bytes]:
    """`shown`: the tools that the agent may use. `results`: whether it may get long results in parts."""
    servers = "".join(f"\n{line}" for line in server_lines(shown, offers)) if mode is ListingMode.SEARCH else ""
    call = listed_name(GatewayTool.CALL, style)
    made = []
    for tool in _LISTED[mode]:
        if tool is GatewayTool.RESULT and not results:
            continue
        description, schema = _DEFINITIONS[tool]
        definition: dict[str, Any] = {
            "name": listed_name(tool, style),
            "description": description.format(call=call, servers=servers),
            "inputSchema": schema,
        }
        if tool in _READS:
            definition["annotations"] = {"readOnlyHint": True}
        made.append(msgspec.json.encode(definition))
    return made


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_VERBS = frozenset(
    re.findall(
        r"\w+",
        "get list create update delete add remove set search find read write run query fetch send make move copy show "
        "open close start stop check by to from of in for the a and or with all",
    )
)
_TOPICS = 5
_LONGEST_ABOUT = 70
_MOST_DETAILED = 40
"""Servers up to which each line says what the server is about."""


def server_lines(shown: Iterable[Tool], offers: OfferCatalog) -> list[str]:
    """One line for each server: its name, how many tools it has, and what they are about."""
    groups = [(server, tuple(tools)) for server, tools in groupby(shown, key=lambda tool: tool.server)]
    return [
        f"{server} ({len(tools)})" + (f": {_about(server, tools, offers)}" if len(groups) <= _MOST_DETAILED else "")
        for server, tools in groups
    ]


def _about(server: str, tools: Sequence[Tool], offers: OfferCatalog) -> str:
    """The first sentence of the server's own instructions if it is short; otherwise the words in its tools' names."""
    found = offers.offers.get(server)
    text = "" if found is None else printable(" ".join(found.instructions.split()))
    sentence = text.partition(". ")[0].rstrip(".")
    if 0 < len(sentence) <= _LONGEST_ABOUT:
        return sentence
    own = {word.lower() for word in _WORD.findall(server)}
    words = Counter(
        word.lower()
        for tool in tools
        for word in dict.fromkeys(_WORD.findall(tool.shown_name))
        if len(word) > 2 and word.lower() not in _VERBS | own
    )
    return ", ".join(word for word, _ in sorted(words.items(), key=lambda one: (-one[1], one[0]))[:_TOPICS])
