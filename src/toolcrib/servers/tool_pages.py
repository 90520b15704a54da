"""tools/list, page by page → the tools' raw definitions.

In: a link. Out: each tool's exact JSON bytes, in the server's order. What is no tool (no object, no name) or a second
tool of the same name is left out and logged; it never hides the others. `server` is the only user.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.config.redact import printable
from toolcrib.errors import METHOD_NOT_FOUND, ProtocolViolation, ServerAway
from toolcrib.servers import sdk, wire
from toolcrib.servers.link import Link
from toolcrib.servers.model import Era

log = logging.getLogger(__name__)

MOST_PAGES = 1000


class _Page(msgspec.Struct):
    tools: list[Raw]
    nextCursor: str | None = None


class _Tool(msgspec.Struct):
    name: str
    inputSchema: Any = None


class _Name(msgspec.Struct):
    name: str


_pages = msgspec.json.Decoder(_Page)
_names = msgspec.json.Decoder(_Name)
_tools = msgspec.json.Decoder(_Tool)


async def list_tools(link: Link, limit: float) -> tuple[bytes, ...]:
    """Raises ServerAway, CallTimeout, ProtocolViolation."""
    tools: dict[str, bytes] = {}
    cursors: set[str] = set()
    params: dict[str, Any] = {}
    for _ in range(MOST_PAGES):
        page = await _page(link, params, limit)
        for raw in page.tools:
            _take(link, bytes(raw), tools)
        cursor = page.nextCursor
        if cursor is None:
            return tuple(tools.values())
        if cursor in cursors:
            log.warning("%s: its list of tools comes back to a page that was read; the rest is left out", link.name)
            return tuple(tools.values())
        cursors.add(cursor)
        params = {"cursor": cursor}
    log.warning("%s: its list of tools has more than %d pages; the rest is left out", link.name, MOST_PAGES)
    return tuple(tools.values())


async def _page(link: Link, params: dict[str, Any], limit: float) -> _Page:
    answer = await link.request("tools/list", params, meta={}, limit=limit)
    if answer.result is None:
        error = wire.fault_in(answer.error or b"{}")
        if error.code == METHOD_NOT_FOUND:
            return _Page(tools=[])
        raise ServerAway(f"Server '{link.name}' refuses to list its tools: {error.message} (code {error.code}).")
    try:
        return _pages.decode(answer.result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{link.name}' gave a list of tools that is not MCP: {error}.") from None


def _take(link: Link, raw: bytes, tools: dict[str, bytes]) -> None:
    try:
        name = _names.decode(raw).name
    except (msgspec.MsgspecError, RecursionError) as error:
        log.warning("%s: one of its tools was left out: %s", link.name, printable(str(error)))
        return
    if not name or name in tools:
        log.warning("%s: a tool was left out: its name '%s' is empty or taken", link.name, printable(name[:80]))
        return
    if link.peer.era is Era.MODERN and b"x-mcp-header" in raw and (fault := _header_fault(raw)) is not None:
        log.warning("%s: the tool '%s' was left out: %s", link.name, printable(name[:80]), printable(fault[:200]))
        return
    tools[name] = raw


def _header_fault(raw: bytes) -> str | None:
    """The specification wants tools with wrong header marks left out."""
    try:
        return sdk.fault_in_headers(_tools.decode(raw).inputSchema)
    except (msgspec.MsgspecError, RecursionError) as error:
        return str(error)
