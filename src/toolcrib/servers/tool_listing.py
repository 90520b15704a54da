"""tools/list, page by page → the tools' raw definitions.

In: a link. Out: each tool's exact JSON bytes, in the server's order. Invalid tools (not an object, no name) and
duplicate names are skipped and logged; they never hide the others. Used by `server`, by `refused_calls` to compare two
lists, and by the catalogs to leave tools out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.config.masking import printable, storable
from toolcrib.errors import METHOD_NOT_FOUND, ProtocolViolation, ServerUnavailable
from toolcrib.servers import wire
from toolcrib.servers.link import ServerLink
from toolcrib.servers.model import Era
from toolcrib.servers.param_headers import header_fault

log = logging.getLogger(__name__)

MAX_PAGES = 1000
MAX_TOOLS = 5000
"""Per server. Building a catalog of this size blocks all other requests for some tenths of a second."""
LARGEST_LISTING = 16 * 1024 * 1024
"""Bytes of all pages together."""
_MAX_VALUES = 500_000
"""JSON values in one page."""
_STEP = 64 * 1024
_SHOWN_ERROR = 500


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


def without_tools(definitions: tuple[bytes, ...], names: Collection[str]) -> tuple[bytes, ...]:
    """The definitions of all other tools."""
    return tuple(raw for raw in definitions if _names.decode(raw).name not in names) if names else definitions


async def list_tools(link: ServerLink, limit: float) -> tuple[bytes, ...]:
    """Raises ServerUnavailable, CallTimeout, ProtocolViolation."""
    tools: dict[str, bytes] = {}
    cursors: set[str] = set()
    params: dict[str, Any] = {}
    size = 0
    for _ in range(MAX_PAGES):
        page, length = await _page(link, params, limit)
        size += length
        if size > LARGEST_LISTING:
            raise _too_much(link, f"{LARGEST_LISTING // 1024 // 1024} MB")
        if len(tools) + len(page.tools) > MAX_TOOLS:
            raise _too_much(link, f"{MAX_TOOLS:,} tools")
        for raw in page.tools:
            _take(link, bytes(raw), tools)
        cursor = page.nextCursor
        if cursor is None:
            return tuple(tools.values())
        if cursor in cursors:
            log.warning("%s: its list of tools repeats a page; skipping the rest", link.name)
            return tuple(tools.values())
        cursors.add(cursor)
        params = {"cursor": cursor}
    log.warning("%s: its list of tools has more than %d pages; skipping the rest", link.name, MAX_PAGES)
    return tuple(tools.values())


async def _page(link: ServerLink, params: dict[str, Any], limit: float) -> tuple[_Page, int]:
    """Returns one page and its size in bytes."""
    answer = await link.request("tools/list", params, meta={}, limit=limit)
    if answer.result is None:
        error = wire.error_in(answer.error or b"{}")
        if error.code == METHOD_NOT_FOUND:
            return _Page(tools=[]), 0
        raise ServerUnavailable(
            f"Server '{link.name}' refuses to list its tools: {error.message[:_SHOWN_ERROR]} (code {error.code})."
        )
    await _weigh(link, answer.result)
    try:
        return _pages.decode(answer.result), len(answer.result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{link.name}' sent an invalid list of tools: {error}.") from None


async def _weigh(link: ServerLink, page: bytes) -> None:
    """Rejects a page that would take long to decode, since decoding blocks the interpreter. Counts in steps."""
    if len(page) > LARGEST_LISTING:
        raise _too_much(link, f"{LARGEST_LISTING // 1024 // 1024} MB")
    weight = wire.ValueCounter()
    for start in range(0, len(page) - _STEP, _STEP):
        weight.add(page[start : start + _STEP])
        if weight.values > _MAX_VALUES:
            raise _too_much(link, f"{_MAX_VALUES:,} values")
        await asyncio.sleep(0)


def _too_much(link: ServerLink, what: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"Server '{link.name}' lists more than {what}, the limit for one server.",
        remedy="Make it list fewer tools, or split it into several servers.",
    )


def _take(link: ServerLink, raw: bytes, tools: dict[str, bytes]) -> None:
    try:
        name = _names.decode(raw).name
    except (msgspec.MsgspecError, RecursionError) as error:
        log.warning("%s: skipped an invalid tool: %s", link.name, printable(str(error)))
        return
    # The database's form of the name: pins could not tell two tools apart whose names are stored alike.
    stored = storable(name)
    if not name or stored in tools:
        log.warning("%s: skipped a tool: its name '%s' is empty or already used", link.name, printable(name[:80]))
        return
    if link.peer.era is Era.MODERN and b"x-mcp-header" in raw and (fault := _header_fault(raw)) is not None:
        log.warning("%s: skipped the tool '%s': %s", link.name, printable(name[:80]), printable(fault[:200]))
        return
    tools[stored] = raw


def _header_fault(raw: bytes) -> str | None:
    """The specification demands that tools with invalid header marks are left out."""
    try:
        return header_fault(_tools.decode(raw).inputSchema)
    except (msgspec.MsgspecError, RecursionError) as error:
        return str(error)


def definition_of(listed: tuple[bytes, ...] | None, tool: str) -> bytes | None:
    """The tool's raw definition, if it is listed."""
    for definition in listed or ():
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            if _names.decode(definition).name == tool:
                return definition
    return None
