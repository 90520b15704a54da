"""A server's lists, page by page → raw definitions of its tools, resources, resource templates and prompts.

In: a link. Out: each definition's exact JSON bytes, in the server's order. Invalid ones (not an object, no name or
address) and duplicates are skipped and logged; they never hide the others. Used by `server`, by `refused_calls` to
compare two lists, and by the catalogs to leave tools out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.config.masking import printable, storable
from toolcrib.errors import METHOD_NOT_FOUND, ProtocolViolation, ServerFailure, ServerUnavailable
from toolcrib.servers import wire
from toolcrib.servers.link import ServerLink
from toolcrib.servers.model import LONGEST_ADDRESS, Era, Offers
from toolcrib.servers.param_headers import header_fault
from toolcrib.servers.wire import MAX_DEPTH, deeper_than

log = logging.getLogger(__name__)

MAX_PAGES = 1000
MAX_TOOLS = 5000
"""Per server. Building a catalog of this size blocks all other requests for some tenths of a second."""
MAX_OTHERS = 20_000
"""Resources or prompts per server."""
MAX_TEMPLATES = 1000
"""Per server. Each address that no list has is compared with all of them."""
LARGEST_LISTING = 16 * 1024 * 1024
"""Bytes of all pages together."""
MAX_ODD = 100
"""Resources per server whose addresses can be read in many ways: each costs every rule a millisecond."""
_ODD_ADDRESS = re.compile(r"%25|\\|/\.{1,2}(?:/|$)|(?<!:)//")
_MAX_VALUES = 500_000
"""JSON values in one page."""
_STEP = 64 * 1024
_SHOWN_ERROR = 500


class _Page(msgspec.Struct):
    items: list[Raw]
    nextCursor: str | None = None


@dataclass(frozen=True, kw_only=True)
class _List:
    method: str
    key: str
    """The member of the answer that has the definitions."""
    named_by: str
    what: str

    def decode(self, answer: bytes) -> _Page:
        fields = msgspec.json.decode(answer, type=dict[str, Raw])
        if self.key not in fields:
            raise msgspec.ValidationError(f"it has no member `{self.key}`")
        cursor = msgspec.json.decode(fields.get("nextCursor", b"null"), type=str | None)
        return _Page(items=msgspec.json.decode(fields[self.key], type=list[Raw]), nextCursor=cursor)


_TOOLS = _List(method="tools/list", key="tools", named_by="name", what="tool")
_RESOURCES = _List(method="resources/list", key="resources", named_by="uri", what="resource")
_TEMPLATES = _List(
    method="resources/templates/list", key="resourceTemplates", named_by="uriTemplate", what="resource template"
)
_MOST = {"tools": MAX_TOOLS, "resourceTemplates": MAX_TEMPLATES}
_PROMPTS = _List(method="prompts/list", key="prompts", named_by="name", what="prompt")


class _Tool(msgspec.Struct):
    name: str
    inputSchema: Any = None


class _Name(msgspec.Struct):
    name: str


_names = msgspec.json.Decoder(_Name)
_tools = msgspec.json.Decoder(_Tool)


def without_tools(definitions: tuple[bytes, ...], names: Collection[str]) -> tuple[bytes, ...]:
    """The definitions of all other tools."""
    return tuple(raw for raw in definitions if _names.decode(raw).name not in names) if names else definitions


async def list_tools(link: ServerLink, limit: float) -> tuple[bytes, ...]:
    """Raises ServerUnavailable, CallTimeout, ProtocolViolation."""
    return await _listed(link, _TOOLS, limit)


async def list_offers(link: ServerLink, limit: float) -> Offers:
    """Everything else that the server offers. A list that it refuses counts as empty: its tools are still of use."""
    capabilities = link.peer.capabilities

    async def listed(kind: _List, capability: str) -> tuple[bytes, ...]:
        if capability not in capabilities:
            return ()
        try:
            return await _listed(link, kind, limit)
        except ServerFailure as error:
            if link.is_over:
                # The server refused nothing, and may still offer it.
                raise
            log.warning("%s: no %ss are offered: %s", link.name, kind.what, error.text())
            return ()

    resources, templates, prompts = await asyncio.gather(
        listed(_RESOURCES, "resources"), listed(_TEMPLATES, "resources"), listed(_PROMPTS, "prompts")
    )
    return Offers(
        resources=resources,
        templates=templates,
        prompts=prompts,
        capabilities=capabilities,
        instructions=link.peer.instructions,
    )


async def _listed(link: ServerLink, kind: _List, limit: float) -> tuple[bytes, ...]:
    tools: dict[str, bytes] = {}
    odd: set[str] = set()
    cursors: set[str] = set()
    params: dict[str, Any] = {}
    size = 0
    for _ in range(MAX_PAGES):
        page, length = await _page(link, kind, params, limit)
        size += length
        if size > LARGEST_LISTING:
            raise _too_much(link, f"{LARGEST_LISTING // 1024 // 1024} MB")
        most = _MOST.get(kind.key, MAX_OTHERS)
        if len(tools) + len(page.items) > most:
            raise _too_much(link, f"{most:,} {kind.what}s")
        for raw in page.items:
            _take(link, kind, bytes(raw), tools, odd)
        cursor = page.nextCursor
        if cursor is None:
            return tuple(tools.values())
        if cursor in cursors:
            log.warning("%s: its list of %ss repeats a page; skipping the rest", link.name, kind.what)
            return tuple(tools.values())
        cursors.add(cursor)
        params = {"cursor": cursor}
    log.warning("%s: its list of %ss has more than %d pages; skipping the rest", link.name, kind.what, MAX_PAGES)
    return tuple(tools.values())


async def _page(link: ServerLink, kind: _List, params: dict[str, Any], limit: float) -> tuple[_Page, int]:
    """Returns one page and its size in bytes."""
    answer = await link.request(kind.method, params, meta={}, limit=limit)
    if answer.result is None:
        error = wire.error_in(answer.error or b"{}")
        if error.code == METHOD_NOT_FOUND:
            return _Page(items=[]), 0
        why = f"{error.message[:_SHOWN_ERROR]} (code {error.code})"
        raise ServerUnavailable(f"Server '{link.name}' refuses to list its {kind.what}s: {why}.")
    await _weigh(link, answer.result)
    try:
        return kind.decode(answer.result), len(answer.result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{link.name}' sent an invalid list of {kind.what}s: {error}.") from None


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
        remedy="Make it list fewer, or split it into several servers.",
    )


def _take(link: ServerLink, kind: _List, raw: bytes, tools: dict[str, bytes], odd: set[str]) -> None:
    """`odd` has the addresses that can be read in many ways."""
    try:
        # A raw value is not checked, and invalid UTF-8 in one would break a client.
        raw.decode()
        name = msgspec.json.decode(msgspec.json.decode(raw, type=dict[str, Raw]).get(kind.named_by, b"null"), type=str)
        if kind is not _TOOLS and deeper_than(MAX_DEPTH, raw):
            raise msgspec.ValidationError(f"nested deeper than {MAX_DEPTH} levels")
        if kind is not _TOOLS and len(name) > LONGEST_ADDRESS:
            raise msgspec.ValidationError(f"its {kind.named_by} has more than {LONGEST_ADDRESS} characters")
        if kind is _RESOURCES and _ODD_ADDRESS.search(name):
            odd.add(name)
            if len(odd) > MAX_ODD:
                raise msgspec.ValidationError(f"more than {MAX_ODD} addresses have `..`, `//`, a backslash or %25")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: skipped an invalid %s: %s", link.name, kind.what, printable(str(error)))
        return
    # The database's form of the name: pins could not tell two tools apart whose names are stored alike.
    stored = storable(name)
    if not name or stored in tools:
        log.warning(
            "%s: skipped a %s: its name '%s' is empty or already used", link.name, kind.what, printable(name[:80])
        )
        return
    marked = kind is _TOOLS and link.peer.era is Era.MODERN and b"x-mcp-header" in raw
    if marked and (fault := _header_fault(raw)) is not None:
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
