"""Large results of tools: the agent gets the beginning, the shape and an id, and reads the rest with `crib_result`.

In: a raw result, the client's name, the setting `result_tokens`. Out: a result that fits, or the same bytes.
`identity.kept_results` keeps the whole result, `result_text` reads it. `dispatcher` passes every result for a model
that is larger than the smallest limit. The id answers for the tool's agent, as long as it may use the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.catalog.schema_check import matches
from toolcrib.catalog.tool import Tool
from toolcrib.core.project import Project
from toolcrib.errors import InvalidArguments, ToolcribError
from toolcrib.gateway.messages import ReadLimiter, error_as_tool_result
from toolcrib.gateway.result_text import (
    NO_DATA,
    ResultText,
    encoded_length,
    matches_in,
    page_end,
    page_starts,
    read_result,
    shape_of,
)
from toolcrib.identity.kept_results import KeptResult, KeptResults, new_id, unknown_result
from toolcrib.identity.principal import ReaderKind, RequestContext
from toolcrib.listing import GatewayTool, listed_name
from toolcrib.listing.json_path import find
from toolcrib.policy import Verdict

RESULT_KEY = "toolcrib/result"
"""The key in a shortened result's `_meta` under which programs find the id."""

_DEFAULT_TOKENS = 25_000
_CLIENT_TOKENS: Mapping[str, int] = MappingProxyType(
    {
        # It refuses more than 25,000 tokens.
        "claude-code": 16_000,
        # Reported: it cuts out the middle of more than 10,000 bytes.
        "codex": 3_000,
        # Reported: it cuts out the middle of more than 40,000 characters.
        "gemini-cli": 13_000,
    }
)
"""What the known clients take, less a margin, by how their names begin."""
_BYTES_PER_TOKEN = 3
"""JSON has about 3, English text more than 4."""
MIN_TOKENS = 1000
SMALLEST_LIMIT = MIN_TOKENS * _BYTES_PER_TOKEN
_SMALLEST_SHARE = 600
"""Bytes of a result among others: enough for its id and its beginning."""
_LARGE = 256 * 1024
"""Bytes above which an agent's results are read one at a time, with pauses."""
_LONGEST_SEARCH = 200
_CUTS = ((4000, 200), (1000, 100), (400, 40), (150, 15), (60, 5), (20, 1))
"""Longest texts and lists in shortened structured content, from the most generous to the strictest."""
_MAX_CUT_VALUES = 20_000


def limit_bytes(client: str, tokens: int | None) -> int:
    """`tokens`: the setting; None: what the client takes. 0 is no limit."""
    if tokens is None:
        tokens = next((known for name, known in _CLIENT_TOKENS.items() if client.startswith(name)), _DEFAULT_TOKENS)
    return tokens * _BYTES_PER_TOKEN


class _Wanted(msgspec.Struct, kw_only=True):
    id: str
    page: int = 1
    search: str = ""
    path: str = ""


class LargeResults:
    def __init__(self, kept: KeptResults) -> None:
        self._kept = kept
        self._turns = ReadLimiter()

    async def shortened(
        self, result: bytes, tool: Tool, arguments: bytes, context: RequestContext[Project], limit: int, shares: int = 0
    ) -> bytes:
        """The result itself if it fits or cannot be kept. In a batch, it gets one of so many `shares` of the limit."""
        share = max(limit // (shares or 1), min(limit, _SMALLEST_SHARE))
        if not 0 < share < len(result) or context.reader is not ReaderKind.MODEL:
            return result
        id, agent = new_id(), context.principal.name
        async with self._turn(agent, result):
            reader = listed_name(GatewayTool.RESULT, context.project.listings.style)
            # A batch has no structured content, so there is none to check.
            schema = None if shares else tool.shown.output_schema
            made = await asyncio.to_thread(shorten, result, id, share, schema, reader, limit)
        if made is None:
            return result
        kept = KeptResult(tool.server, tool.name, arguments, result)
        return made if await self._kept.keep(agent, id, kept) else result

    async def read(self, arguments: Mapping[str, Any], context: RequestContext[Project], limit: int) -> bytes:
        """The answer of `crib_result`."""
        try:
            wanted = _wanted(arguments)
            # In turn before it is opened, so that many reads at once don't hold as many results in memory.
            async with self._turns.of(context.principal.name) as turn:
                with turn.pause_after():
                    kept = await self._kept.open(context.principal.name, wanted.id)
                    tool = _readable(kept, context)
                    if tool is None:
                        raise unknown_result(wanted.id)
                    most = limit or len(kept.result) + SMALLEST_LIMIT
                    return await asyncio.to_thread(_answer, kept.result, wanted, most, tool.shown.output_schema)
        except ToolcribError as error:
            return error_as_tool_result(error)

    @asynccontextmanager
    async def _turn(self, agent: str, result: bytes) -> AsyncIterator[None]:
        if len(result) <= _LARGE:
            yield
            return
        async with self._turns.of(agent) as turn:
            with turn.pause_after():
                yield


def _wanted(arguments: Mapping[str, Any]) -> _Wanted:
    try:
        wanted = msgspec.convert(arguments, _Wanted, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"The arguments do not match {GatewayTool.RESULT.display}: {error}.") from None
    if len(wanted.search) > _LONGEST_SEARCH:
        raise InvalidArguments(f"`search` has more than {_LONGEST_SEARCH} characters.", remedy="Search for a word.")
    return wanted


def _readable(kept: KeptResult, context: RequestContext[Project]) -> Tool | None:
    """The tool, if the agent could make the call now. The answer to an earlier question, ask, still counts."""
    tool = next((one for one in context.project.catalog.of_server(kept.server) if one.name == kept.tool), None)
    if tool is None:
        return None
    try:
        arguments = tool.taken(msgspec.json.decode(kept.arguments or b"{}", type=dict[str, Any]))
        denied = context.principal.permission().decide(tool, arguments).verdict is Verdict.DENY
    except (msgspec.MsgspecError, ToolcribError):
        return None
    return None if denied else tool


def shorten(
    result: bytes,
    id: str,
    limit: int,
    output_schema: Mapping[str, Any] | None,
    reader: str = "crib_result",
    page_limit: int = 0,
) -> bytes | None:
    """The result in at most `limit` bytes, besides pictures and the like. None if it fits, or if the client would
    refuse it: clients check structured content against the tool's schema. `reader`: the listed name of the tool that
    reads the rest; `page_limit`: the limit of its pages if it is another."""
    found = read_result(result)
    if found is None or found.size <= limit:
        return None
    rest = f'{reader}(id="{id}"'
    members = {key: value for key, value in found.others.items() if key != "_meta"}
    if output_schema is not None and _stays_structured(found):
        structured = _shortened_data(found, rest, limit // 3, output_schema)
        if structured is None:
            return None
        # Many clients show their model only one of the two.
        members["structuredContent"] = Raw(structured)
    most = _head_bytes(found, limit, output_schema)
    # Without room for the whole first page, the agent must read it first.
    page = 1 if found.links or most < _head_bytes(found, page_limit or limit, output_schema) else 2
    most -= sum(map(len, found.links))
    text = _with_notes(found, f"{rest}, page={page})", limit, most)
    content = [Raw(msgspec.json.encode({"type": "text", "text": text})), *found.links, *found.media]
    meta = {**_meta(found), RESULT_KEY: Raw(msgspec.json.encode(id))}
    return msgspec.json.encode({"content": content, **members, "_meta": meta})


def _meta(found: ResultText) -> Mapping[str, Raw]:
    try:
        return msgspec.json.decode(found.others.get("_meta", b"{}"), type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _stays_structured(found: ResultText) -> bool:
    return found.structured is not NO_DATA and not found.failed


def _page_bytes(limit: int) -> int:
    """For the text of a page; the notes below it get the rest."""
    return limit - min(limit // 3, 2400)


def _head_bytes(found: ResultText, limit: int, output_schema: Mapping[str, Any] | None) -> int:
    """For the text of the first page, which the agent gets beside the structured content."""
    return _page_bytes(limit) - (limit // 3 if output_schema is not None and _stays_structured(found) else 0)


def _with_notes(found: ResultText, rest: str, limit: int, most: int) -> str:
    """`rest`: the call that reads the rest."""
    text = found.text
    end = page_end(text, 0, most)
    path = f', or path="{_example(found.data)}"' if found.data is not NO_DATA else ""
    note = f'[Shown: {end:,} of {len(text):,} characters. The rest: {rest}, or search="…"{path}.]'
    return f"{text[:end]}\n\n{_shape_line(text, found.data, limit)}\n{note}"


def _shape_line(text: str, data: Any, limit: int) -> str:
    if data is NO_DATA:
        return f"[Text: {text.count(chr(10)) + 1:,} lines.]"
    most = min(limit // 3, 2400) - 600
    shape = shape_of(data, most // 3)
    return f"[JSON: {shape}]" if shape and encoded_length(shape) <= most else "[JSON.]"


def _example(data: Any) -> str:
    if isinstance(data, list):
        return "$[0:20]"
    if not isinstance(data, dict):
        return "$"
    names = [key for key in list(data)[:100] if key.isidentifier() and len(key) < 40]
    lists = [f"$.{key}[0:20]" for key in names if isinstance(data[key], list)]
    return (lists or [f"$.{key}" for key in names] or ["$"])[0]


class _TooManyValues(Exception):
    pass


class _Cut:
    """A copy of a JSON value with shorter texts and lists. The first text that it cuts says how to read it."""

    def __init__(self, rest: str, texts: int, items: int) -> None:
        self.note = f" {rest})"
        self.cut_text = False
        self._texts = texts
        self._items = items
        self._left = _MAX_CUT_VALUES

    def of(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooManyValues
        if isinstance(value, dict):
            return {key: self.of(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.of(inner) for inner in value[: self._items]]
        if isinstance(value, str) and len(value) > self._texts:
            note, self.cut_text = "" if self.cut_text else self.note, True
            return f"{value[: self._texts]}… [{len(value) - self._texts:,} more characters{':' if note else ''}{note}]"
        return value


def _shortened_data(found: ResultText, rest: str, most: int, schema: Mapping[str, Any]) -> bytes | None:
    """Shorter structured content that the schema allows and that says how to read the rest; None if there is none."""
    value = found.structured
    if not isinstance(value, dict):
        return None
    for texts, items in ((most // 2, most), *_CUTS):
        cut = _Cut(rest, texts, items)
        try:
            made = cut.of(value)
        except _TooManyValues:
            continue
        noted = {**made, RESULT_KEY: f'Shortened. The rest: {rest}, path="{_example(found.data)}")'}
        if len(encoded := msgspec.json.encode(noted)) <= most:
            if matches(schema, noted):
                return encoded
            # Many schemas allow no other members.
            return msgspec.json.encode(made) if cut.cut_text and matches(schema, made) else None
    return None


def _answer(result: bytes, wanted: _Wanted, limit: int, output_schema: Mapping[str, Any] | None) -> bytes:
    found = read_result(result)
    if found is None:
        raise unknown_result(wanted.id)
    text, data = found.text, NO_DATA
    if wanted.path:
        text, data = _at_path(found, wanted.path)
    most = _page_bytes(limit)
    starts = page_starts(text, most, most if wanted.path else _head_bytes(found, limit, output_schema))
    if wanted.search:
        text, data = "\n".join(matches_in(text, wanted.search, starts)) or "No line contains it.", NO_DATA
        starts = page_starts(text, most)
    if not 1 <= wanted.page <= len(starts):
        raise InvalidArguments(f"There is no page {wanted.page}: the last one is {len(starts)}.")
    ends = [*starts[1:], len(text)]
    shown = text[starts[wanted.page - 1] : ends[wanted.page - 1]]
    if len(starts) > 1:
        if wanted.page == 1 and data is not NO_DATA:
            shown += f"\n\n{_shape_line(text, data, limit)}"
        following = f" Next: page={wanted.page + 1}." if wanted.page < len(starts) else ""
        shown += f"\n[Page {wanted.page} of {len(starts)}.{following}]"
    return msgspec.json.encode({"content": [{"type": "text", "text": shown}]})


def _at_path(found: ResultText, path: str) -> tuple[str, Any]:
    """A text as it is, anything else as JSON; several values as a list."""
    if found.data is NO_DATA:
        raise InvalidArguments("This result is not JSON that can be read by path.", remedy="Use page or search.")
    values = find(found.data, path)
    value = values[0] if len(values) == 1 and "*" not in path and ":" not in path else values
    if isinstance(value, str):
        return value, NO_DATA
    return msgspec.json.encode(value).decode(), value
