"""Bytes of a connection ↔ JSON-RPC messages: one decode of the envelope, everything inside left raw.

In: chunks as a pipe or socket hands them out. Out: lines (`LineSplitter`) and server-sent events (`SseParser`), in time
linear in the bytes. A line past the limit is dropped up to its end, and what it began and ended with is reported; an
event past the limit raises `TooLarge`.

In: one message as it came off a pipe, frame or body. Out: an `Envelope` whose params, result and error are raw JSON,
or `NotAMessage`. The other way: a request's parts → its bytes. Every link reads and writes through here.

Ids of ours are strings that begin with `PREFIX`. The SDK counts with integers and `listen-N`, so that both can share
one pipe without meeting.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn, Self

import msgspec
from msgspec import UNSET, Raw, UnsetType

from toolcrib.servers.model import Era, ServerAnswer

PREFIX = "tc-"

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
PROGRESS_TOKEN_KEY = "progressToken"  # noqa: S105 - the protocol's word, no secret
_CONNECTION_KEYS = (PROTOCOL_VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, PROGRESS_TOKEN_KEY)

_OWN_ID = re.compile(rb'"id"\s*:\s*"(' + PREFIX.encode() + rb'\d+)"')
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_STEP = 1024 * 1024
_utf8 = codecs.getincrementaldecoder("utf-8")
_MOST_ESCAPES = 100_000
"""Of a message that is mended: each costs a call."""
_LARGEST_BATCH = 1024 * 1024
_LARGEST_PARAMS = 64 * 1024
"""Bytes of what a server says unasked that is looked into: making objects of JSON costs many times its size."""
_LONGEST_EVENT_ID = 1024
EDGE = 300
"""Bytes of either end of a line that was too long, or of a message that is broken: its id is looked for there."""


class _Typed(msgspec.Struct):
    kind: Any = msgspec.field(name="resultType", default=None)


_typed = msgspec.json.Decoder(_Typed).decode


def result_type(result: bytes) -> str | None:
    """The `resultType` of a raw result; None where it has none that is a text. Looked for only where the word is there
    at all."""
    if b'"resultType"' not in result:
        return None
    try:
        kind = _typed(result).kind
    except (msgspec.MsgspecError, RecursionError):
        return None
    return kind if isinstance(kind, str) else None


class NotAMessage(Exception):
    """The bytes are no JSON-RPC message. Says why, never what stood there."""


class Envelope(msgspec.Struct):
    id: str | int | float | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    def answer(self) -> ServerAnswer | None:
        """What this message says to a request, or None if it says nothing: only an object says something in MCP."""
        if self.result is not UNSET and bytes(memoryview(self.result)[:1]) == b"{":
            return ServerAnswer(result=bytes(self.result))
        if self.error is not UNSET and bytes(memoryview(self.error)[:1]) == b"{":
            return ServerAnswer(error=bytes(self.error))
        return None


class ProtocolError(msgspec.Struct):
    """What an error says, as far as we read it."""

    code: int = 0
    message: str = ""


_envelope = msgspec.json.Decoder(Envelope)
_fault = msgspec.json.Decoder(ProtocolError)
_batch = msgspec.json.Decoder(list[Raw])
encode = msgspec.json.encode


def decode(message: bytes) -> Envelope:
    """Raises NotAMessage. The text is checked to be UTF-8: raw parts go on to others who rely on it."""
    try:
        if not message.isascii():
            _check_text(message)
        try:
            return _envelope.decode(message)
        except msgspec.DecodeError:
            if message.count(b"\\") > _MOST_ESCAPES or b"\\ud" not in message.lower():
                raise
        return _decode_mended(message)
    except msgspec.MsgspecError as error:
        raise NotAMessage(str(error)) from None
    except RecursionError:
        raise NotAMessage("nested too deeply") from None


def _check_text(message: bytes) -> None:
    """In steps: the text of a large message may take four times its bytes."""
    decoder = _utf8()
    for start in range(0, len(message), _STEP):
        step = message[start : start + _STEP]
        try:
            decoder.decode(step, final=start + _STEP >= len(message))
        except UnicodeDecodeError as error:
            # What is reported begins with the bytes that were left of the step before.
            raise NotAMessage(f"not UTF-8 (byte {start + len(step) - len(error.object) + error.start})") from None


def _decode_mended(message: bytes) -> Envelope:
    """Decodes what holds half a surrogate pair, as programs leave that cut a text inside an emoji.

    No client could read such a text, so each half becomes the replacement character; the rest stays as it is.
    """
    return _envelope.decode(_ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], message))


def error_in(error: bytes) -> ProtocolError:
    try:
        return _fault.decode(error)
    except (msgspec.MsgspecError, RecursionError):
        return ProtocolError(message="it gave an error that is not MCP")


def split_batch(message: bytes) -> list[bytes]:
    """The messages of a batch, which protocol 2025-03-26 allowed."""
    if len(message) > _LARGEST_BATCH:
        raise NotAMessage(f"a batch of more than {_LARGEST_BATCH // 1024} KB")
    try:
        return [bytes(part) for part in _batch.decode(message)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotAMessage(str(error)) from None


def own_id_in(broken: bytes) -> str | None:
    """The id of ours that a message which cannot be decoded was meant for, so that its caller need not wait."""
    found = _OWN_ID.search(broken[:EDGE]) or _OWN_ID.search(broken[-EDGE:])
    return found.group(1).decode() if found else None


def meta_for(
    era: Era, version: str, client_info: Mapping[str, Any], own: Mapping[str, Any], token: str | None
) -> dict[str, Any]:
    """The `_meta` of a request: the caller's keys, and those that belong to this connection."""
    meta = {key: value for key, value in own.items() if key not in _CONNECTION_KEYS}
    if token is not None:
        meta[PROGRESS_TOKEN_KEY] = token
    if era is Era.MODERN:
        meta[PROTOCOL_VERSION_KEY] = version
        meta[CLIENT_INFO_KEY] = client_info
        meta[CLIENT_CAPABILITIES_KEY] = {}
    return meta


def request(request_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def cancelled(request_id: str, reason: str) -> bytes:
    params = {"requestId": request_id, "reason": reason}
    return encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One up for what opens, one down (as a signed byte) for what closes."""
_NO_STEP = bytes(set(range(256)) - set(b"[{]}"))


class ValueCounter:
    """How many values a JSON text holds and how deep it nests, counted piece by piece before anything parses it.

    Exact for JSON. A text that is none is counted right up to its first mistake, which is as far as a parser gets.
    No loop of ours looks at single bytes.
    """

    __slots__ = ("_depth", "_inside", "_left", "deepest", "values")

    def __init__(self) -> None:
        self.values = 1
        self.deepest = 0
        self._depth = 0
        self._inside = False
        """Whether the last piece ended within a string."""
        self._left = b""
        """A backslash at the end of the last piece: what it escapes comes with the next."""

    def add(self, piece: bytes) -> None:
        piece = self._left + piece
        self._left = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(self._left)].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[self._inside :: 2])
        self._inside ^= len(parts) % 2 == 0
        self.values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        steps = memoryview(outside.translate(_STEPS, _NO_STEP)).cast("b")
        if steps:
            highest = max(accumulate(steps, initial=self._depth))
            self.deepest = max(self.deepest, highest)
            self._depth += sum(steps)


def deeper_than(limit: int, text: bytes) -> bool:
    """Whether a JSON text nests deeper. Most have so few brackets that counting them is enough."""
    if text.count(b"{") + text.count(b"[") <= limit:
        return False
    weight = ValueCounter()
    weight.add(text)
    return weight.deepest > limit


def on_one_line(message: bytes) -> bytes:
    """The same JSON without line ends. In JSON they can stand between tokens only, so a blank says the same."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ")
    return message


def params_object(params: Raw | UnsetType) -> dict[str, Any]:
    """Params as a dict; empty where they are missing, odd, too large or too deep."""
    if params is UNSET or len(memoryview(params)) > _LARGEST_PARAMS:
        return {}
    try:
        decoded = msgspec.json.decode(params)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


class TooLarge(OSError):
    """A server sent more than is taken from it. The text says what it was and which setting allows more."""

    @classmethod
    def message(cls, limit: int) -> Self:
        size = round(limit / 1024 / 1024, 3)
        return cls(f"It sent a message of more than {size:g} MB. Raise its max_message_mb if it should be taken.")


class LineSplitter:
    """Collects chunks and copies them once per line, however many chunks a line came in."""

    def __init__(self, *, limit: int, on_overlong: Callable[[bytes], None] = lambda edges: None) -> None:
        """`on_overlong` gets the beginning and the end of a line that was dropped."""
        self._limit = limit
        self._on_overlong = on_overlong
        self._kept = bytearray()
        self._tail = b""
        self.dropping = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line: bytes | None = chunk[start:end]
            if self._kept or self.dropping or end - start > self._limit:
                line = self._finish(chunk[start:end])
            start = end + 1
            if line is not None:
                yield line
        if start < len(chunk):
            self._keep(chunk[start:])

    def rest(self) -> bytes:
        """What came after the last line end."""
        rest = bytes(self._kept)
        self._kept, self._tail, self.dropping = bytearray(), b"", False
        return rest

    def _keep(self, part: bytes) -> None:
        if not self.dropping:
            self._kept += part
            if len(self._kept) <= self._limit:
                return
            self.dropping = True
            part = bytes(self._kept[-EDGE:])
            self._kept = self._kept[:EDGE]
        self._tail = (self._tail + part[-EDGE:])[-EDGE:]

    def _finish(self, last: bytes) -> bytes | None:
        self._keep(last)
        if not self.dropping:
            return self.rest()
        tail = self._tail
        self._on_overlong(self.rest() + b"\n" + tail)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class SseEvent:
    """One server-sent event."""

    kind: str
    data: bytes
    id: str | None = None
    """The last id the stream has shown so far."""
    retry: float | None = None
    """Seconds, where the event said so."""


class SseParser:
    """The text/event-stream format, as far as MCP uses it. Raises `TooLarge`."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._lines = LineSplitter(limit=limit, on_overlong=self._refuse)
        self._after_return = False
        self._first = True
        self._kind = ""
        self._data: bytearray | None = None
        self._id: str | None = None
        self._retry: float | None = None

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        for line in self._lines.feed(self._unified(chunk)):
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                yield event
        if self._lines.dropping:
            self._refuse()

    def _refuse(self, _edges: bytes = b"") -> NoReturn:
        raise TooLarge.message(self._limit)

    def _unified(self, chunk: bytes) -> bytes:
        """CR LF and CR as LF, also where a pair falls into two chunks."""
        if self._first and chunk:
            self._first = False
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
                if len(self._data) > self._limit:
                    self._refuse()
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value and len(value) <= _LONGEST_EVENT_ID:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value) / 1000

    def _dispatch(self) -> SseEvent | None:
        kind, data, retry = self._kind or "message", self._data, self._retry
        self._kind, self._data, self._retry = "", None, None
        if data is None and retry is None:
            return None
        return SseEvent(kind=kind, data=bytes(data or b""), id=self._id, retry=retry)
