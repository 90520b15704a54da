"""A tool's result as one text with pages, and as data for JSON paths.

In: a raw result, which a server wrote. Out: `ResultText`; the pages of a text, the shape of a value, the lines that
contain a word. Everything here runs in a thread, in time that is linear in the size of the result; what would take too
long to decode is text only. Used by `large_results` and `batch`.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.gateway.messages import MAX_DEPTH
from toolcrib.servers.wire import ValueCounter

MAX_VALUES = 262_144
"""Values that are decoded at once. No other thread runs meanwhile: some hundredths of a second."""
NO_DATA: Any = object()
_STEP = 64 * 1024
_LINKS_BYTES = 700
"""Links to resources stay content blocks up to this size."""
_AROUND = 120
"""Characters before and after a match."""
MAX_MATCHES = 500
_KEYS = 30
_SAMPLE = 20
_LEVELS = 5


class _Resource(msgspec.Struct):
    uri: str = ""
    text: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    resource: _Resource | None = None


class _Failed(msgspec.Struct):
    failed: bool = msgspec.field(name="isError", default=False)


_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_blocks = msgspec.json.Decoder(list[Raw]).decode
_block = msgspec.json.Decoder(_Block).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""`ValueError`: a number with more digits than Python converts."""


@dataclass(frozen=True, kw_only=True)
class ResultText:
    text: str
    data: Any = NO_DATA
    """What paths apply to: the structured content, or else the JSON in the text, also if the structured content is an
    object with only this text."""
    structured: Any = NO_DATA
    links: tuple[Raw, ...] = ()
    """Content blocks that link to resources."""
    media: tuple[Raw, ...] = ()
    """Content blocks that are not text: pictures, sound, files."""
    others: Mapping[str, Raw] = field(default_factory=dict)
    """All other members of the result."""
    size: int
    """Bytes that a model reads as text. Clients show it either the content or the structured content."""

    @property
    def failed(self) -> bool:
        return bytes(self.others.get("isError", b"")) == b"true"


def read_result(result: bytes) -> ResultText | None:
    """None if it is not a complete result of a tool."""
    if not _is_affordable(result):
        failed = False
        with contextlib.suppress(*_UNREADABLE):
            failed = msgspec.json.decode(result, type=_Failed).failed
        others = {"isError": Raw(b"true")} if failed else {}
        return ResultText(text=result.decode(errors="replace"), others=others, size=len(result))
    try:
        fields = _fields(result)
        blocks = _blocks(fields.pop("content", b"[]"))
    except _UNREADABLE:
        return None
    structured = bytes(fields.pop("structuredContent", b"null"))
    if bytes(fields.get("resultType", b'"complete"')) != b'"complete"' or not (blocks or structured != b"null"):
        return None
    texts, links, media = _sorted(blocks)
    size = sum(map(len, blocks)) - sum(map(len, media))
    if sum(map(len, links)) > _LINKS_BYTES:
        texts += (bytes(link).decode(errors="replace") for link in links)
        links = []
    text, written = "\n".join(texts), _json_in(texts)
    value, data = NO_DATA, written
    if structured != b"null":
        value = _decoded(structured)
        wrapped = _only_member(value)
        if value is not NO_DATA and (written is NO_DATA or wrapped != text):
            data = value
        if wrapped != text and (written is NO_DATA or written not in (value, wrapped)):
            text += ("\n" if text else "") + structured.decode(errors="replace")
    return ResultText(
        text=text,
        data=data,
        structured=value,
        links=tuple(links),
        media=tuple(media),
        others=fields,
        size=max(size, len(structured)),
    )


def _only_member(value: Any) -> Any:
    """Structured content is an object, so servers wrap other values: `{"result": …}`, `{"content": …}`."""
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else NO_DATA


def _sorted(blocks: list[Raw]) -> tuple[list[str], list[Raw], list[Raw]]:
    """Texts, links and media."""
    texts: list[str] = []
    links: list[Raw] = []
    media: list[Raw] = []
    for raw in blocks:
        try:
            block = _block(raw)
        except _UNREADABLE:
            block = _Block()
        if block.type == "text" and block.text is not None:
            texts.append(block.text)
        elif block.type == "resource" and block.resource is not None and block.resource.text is not None:
            texts.append(f"{block.resource.uri}\n{block.resource.text}")
        elif block.type in ("image", "audio", "resource"):
            media.append(raw)
        elif block.type == "resource_link":
            links.append(raw)
        else:
            texts.append(bytes(raw).decode(errors="replace"))
    return texts, links, media


def _json_in(texts: list[str]) -> Any:
    """The JSON that the texts are. Some servers write one text for each item of a list."""
    if not texts or not all(text.lstrip()[:1] in ("{", "[") for text in texts):
        return NO_DATA
    encoded = [text.encode(errors="replace") for text in texts]
    if not _is_affordable(b",".join(encoded)):
        return NO_DATA
    found = [_decoded(one) for one in encoded]
    if NO_DATA in found:
        return NO_DATA
    return found[0] if len(found) == 1 else found


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except _UNREADABLE:
        return NO_DATA


def _is_affordable(text: bytes) -> bool:
    counter = ValueCounter()
    for start in range(0, len(text), _STEP):
        counter.add(text[start : start + _STEP])
        if counter.values > MAX_VALUES or counter.deepest > MAX_DEPTH:
            return False
    return True


def encoded_length(text: str) -> int:
    """In bytes, as part of a JSON string."""
    return len(msgspec.json.encode(text)) - 2


def page_end(text: str, start: int, most: int) -> int:
    """The end of the longest piece that takes at most so many bytes, at the end of a line if there is one."""
    piece = text[start : start + most]
    while (taken := encoded_length(piece)) > most:
        piece = piece[: max(1, min(len(piece) - 1, len(piece) * most // taken))]
        if len(piece) == 1:
            break
    if start + len(piece) < len(text):
        line = piece.rfind("\n", len(piece) // 2)
        piece = piece[: line + 1] or piece
    return start + len(piece)


def page_starts(text: str, most: int, first: int | None = None) -> list[int]:
    """`first`: the bytes of the first page, if it differs."""
    starts, room = [0], most if first is None else first
    while (end := page_end(text, starts[-1], room)) < len(text):
        starts.append(end)
        room = most
    return starts


def matches_in(text: str, wanted: str, starts: list[int]) -> Iterator[str]:
    """Each place where the text is found, regardless of case, with what surrounds it in its line."""
    # The only letter whose lower-case form has another length.
    lowered, wanted = text.replace("\u0130", "i").lower(), wanted.replace("\u0130", "i").lower()
    line, counted, at, found = 1, 0, lowered.find(wanted), 0
    total = lowered.count(wanted)
    if total > MAX_MATCHES:
        yield f"{total:,} matches. The first places:"
    while at >= 0 and found < MAX_MATCHES:
        line += text.count("\n", counted, at)
        counted, end = at, at + len(wanted)
        begin = max(text.rfind("\n", max(0, at - _AROUND), at) + 1, at - _AROUND, 0)
        last = text.find("\n", end, end + _AROUND)
        last = last if last >= 0 else min(len(text), end + _AROUND)
        before = "…" if begin and text[begin - 1] != "\n" else ""
        after = "…" if last < len(text) and text[last] != "\n" else ""
        yield f"line {line}, page {bisect_right(starts, at)}: {before}{text[begin:last]}{after}"
        found += 1
        at = lowered.find(wanted, max(last, end))


def shape_of(value: Any, most: int) -> str:
    """Names, types and lengths, as deep as fits in so many characters."""
    best = ""
    for levels in range(1, _LEVELS + 1):
        shape = _shape(value, levels)
        if len(shape) > most or shape == best:
            break
        best = shape
    return best


def _shape(value: Any, levels: int) -> str:
    if isinstance(value, dict):
        if not levels:
            return "{…}" if value else "{}"
        shown = [f"{_key(key)}: {_shape(inner, levels - 1)}" for key, inner in islice(value.items(), _KEYS)]
        more = [f"{len(value) - _KEYS:,} more"] if len(value) > _KEYS else []
        return f"{{{', '.join(shown + more)}}}"
    if isinstance(value, list):
        return f"[{len(value):,} of {_shape(_typical(value), levels - 1)}]" if value and levels else f"[{len(value):,}]"
    if isinstance(value, str):
        return f"text of {len(value):,}" if len(value) > 200 else "text"
    return json.dumps(value) if value is None or isinstance(value, bool) else "number"


def _typical(items: list[Any]) -> Any:
    """The first item, with the members of those that follow."""
    if not isinstance(items[0], dict):
        return items[0]
    found: dict[str, Any] = {}
    for item in items[:_SAMPLE]:
        if isinstance(item, dict):
            for key, inner in islice(item.items(), _KEYS + 1):
                found.setdefault(key, inner)
    return found


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) <= 40 else json.dumps(key[:40], ensure_ascii=False)
