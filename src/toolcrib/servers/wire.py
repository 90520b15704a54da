"""Bytes of a connection ↔ JSON-RPC messages. Only the envelope is decoded; its content stays raw.

In: chunks from a pipe or socket. Out: lines (`LineSplitter`) and server-sent events (`SseParser`), in linear time. A
line over the limit is dropped, and its beginning and end are reported; an event over the limit raises `TooLarge`.

In: one message from a pipe, frame or body. Out: an `Envelope` whose params, result and error are raw JSON, or
`NotAMessage`. The other direction: a request's parts → its bytes. Every link reads and writes through this module.

Our ids are strings that begin with `PREFIX`. The SDK uses integers and `listen-N`, so both can share one pipe.
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
PROGRESS_TOKEN_KEY = "progressToken"  # noqa: S105 - a protocol key, not a secret
_CONNECTION_KEYS = (PROTOCOL_VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, PROGRESS_TOKEN_KEY)

_OWN_ID = re.compile(rb'"id"\s*:\s*"(' + PREFIX.encode() + rb'\d+)"')
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_STEP = 1024 * 1024
_utf8 = codecs.getincrementaldecoder("utf-8")
_MAX_ESCAPES = 100_000
"""In a message to repair: each escape costs a call."""
_LARGEST_BATCH = 1024 * 1024
_LARGEST_PARAMS = 64 * 1024
"""Bytes of notification params that we decode; decoded JSON takes many times its size."""
LARGEST_QUESTION = 1024 * 1024
"""Bytes of a request's params: sampling may contain a picture."""
_MAX_EVENT_ID = 1024
EDGE = 300
"""Bytes at both ends of an overlong or invalid message that are searched for its id."""


class _Typed(msgspec.Struct):
    kind: Any = msgspec.field(name="resultType", default=None)


_typed = msgspec.json.Decoder(_Typed).decode
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")


def result_type(result: bytes) -> str | None:
    """The `resultType` of a raw result; None if it is missing or not a string."""
    if b'"resultType"' not in result and _ESCAPED_LETTER.search(result) is None:
        return None
    try:
        kind = _typed(result).kind
    except (msgspec.MsgspecError, RecursionError):
        return None
    return kind if isinstance(kind, str) else None


class NotAMessage(Exception):
    """The bytes are not a JSON-RPC message. The text gives the reason, never the content."""


class Envelope(msgspec.Struct):
    id: str | int | float | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    def answer(self) -> ServerAnswer | None:
        """The answer in this message, or None. In MCP, results and errors are objects."""
        if self.result is not UNSET and bytes(memoryview(self.result)[:1]) == b"{":
            return ServerAnswer(result=bytes(self.result))
        if self.error is not UNSET and bytes(memoryview(self.error)[:1]) == b"{":
            return ServerAnswer(error=bytes(self.error))
        return None


class ProtocolError(msgspec.Struct):
    """The fields of a JSON-RPC error that we read."""

    code: int = 0
    message: str = ""


_envelope = msgspec.json.Decoder(Envelope)
_fault = msgspec.json.Decoder(ProtocolError)
_batch = msgspec.json.Decoder(list[Raw])
encode = msgspec.json.encode


def decode(message: bytes) -> Envelope:
    """Raises NotAMessage. Checks that the text is UTF-8, because raw parts are passed on unchecked."""
    try:
        if not message.isascii():
            _check_text(message)
        try:
            return _envelope.decode(message)
        except msgspec.DecodeError:
            if message.count(b"\\") > _MAX_ESCAPES or b"\\ud" not in message.lower():
                raise
        return _decode_repaired(message)
    except msgspec.MsgspecError as error:
        raise NotAMessage(str(error)) from None
    except RecursionError:
        raise NotAMessage("nested too deeply") from None


def _check_text(message: bytes) -> None:
    """Checks in steps, because a decoded string may take four times the memory of its bytes."""
    decoder = _utf8()
    for start in range(0, len(message), _STEP):
        step = message[start : start + _STEP]
        try:
            decoder.decode(step, final=start + _STEP >= len(message))
        except UnicodeDecodeError as error:
            # The reported object starts with the bytes left over from the previous step.
            raise NotAMessage(f"not UTF-8 (byte {start + len(step) - len(error.object) + error.start})") from None


def _decode_repaired(message: bytes) -> Envelope:
    """Decodes a message with half a surrogate pair, which programs produce when they cut a string inside an emoji.

    No client could read such a string, so each half becomes the replacement character.
    """
    return _envelope.decode(_ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], message))


def error_in(error: bytes) -> ProtocolError:
    try:
        return _fault.decode(error)
    except (msgspec.MsgspecError, RecursionError):
        return ProtocolError(message="it sent an invalid error")


def split_batch(message: bytes) -> list[bytes]:
    """The messages of a batch, which protocol 2025-03-26 allowed."""
    if len(message) > _LARGEST_BATCH:
        raise NotAMessage(f"a batch of more than {_LARGEST_BATCH // 1024} KB")
    try:
        return [bytes(part) for part in _batch.decode(message)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotAMessage(str(error)) from None


def own_id_in(broken: bytes) -> str | None:
    """The request id in an invalid message, so that its caller fails at once."""
    found = _OWN_ID.search(broken[:EDGE]) or _OWN_ID.search(broken[-EDGE:])
    return found.group(1).decode() if found else None


def meta_for(
    era: Era, version: str, client_info: Mapping[str, Any], own: Mapping[str, Any], token: str | None
) -> dict[str, Any]:
    """The `_meta` of a request: the caller's keys and this connection's."""
    meta = {key: value for key, value in own.items() if key not in _CONNECTION_KEYS}
    if token is not None:
        meta[PROGRESS_TOKEN_KEY] = token
    if era is Era.MODERN:
        meta[PROTOCOL_VERSION_KEY] = version
        meta[CLIENT_INFO_KEY] = client_info
        meta[CLIENT_CAPABILITIES_KEY] = own.get(CLIENT_CAPABILITIES_KEY, {})
    return meta


def request(request_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def reply(
    id: str | int | float, *, result: Mapping[str, Any] | None = None, error: Mapping[str, Any] | None = None
) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, **({"result": result} if error is None else {"error": error})})


def cancelled(request_id: str, reason: str) -> bytes:
    params = {"requestId": request_id, "reason": reason}
    return encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""+1 for an opening bracket, -1 (as a signed byte) for a closing one."""
_NO_STEP = bytes(set(range(256)) - set(b"[{]}"))


class ValueCounter:
    """Counts the values and the nesting depth of JSON text, piece by piece, before it is parsed.

    Exact for valid JSON. Invalid text is counted correctly up to the first error, which is as far as a parser gets.
    Works without a Python loop over single bytes.
    """

    __slots__ = ("_depth", "_inside", "_left", "deepest", "values")

    def __init__(self) -> None:
        self.values = 1
        self.deepest = 0
        self._depth = 0
        self._inside = False
        """Whether the last piece ended inside a string."""
        self._left = b""
        """A backslash at the end of the last piece, whose escaped character is in the next."""

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


MAX_DEPTH = 128
"""Levels in a definition: more than any real schema has, and few enough for any client's parser."""


def deeper_than(limit: int, text: bytes) -> bool:
    """Whether JSON text nests deeper than `limit`. Most has so few brackets that counting them is enough."""
    if text.count(b"{") + text.count(b"[") <= limit:
        return False
    weight = ValueCounter()
    weight.add(text)
    return weight.deepest > limit


def on_one_line(message: bytes) -> bytes:
    """The same JSON without line ends. They occur only between tokens, so spaces are equivalent."""
    if b"\n" in message or b"\r" in message:
        return message.replace(b"\n", b" ").replace(b"\r", b" ")
    return message


def params_object(params: Raw | UnsetType) -> dict[str, Any]:
    """Params as a dict; empty if they are missing, invalid, too large or too deep."""
    return {} if params is UNSET else _decoded(params, _LARGEST_PARAMS) or {}


def question_params(params: Raw | UnsetType) -> dict[str, Any] | None:
    """Those of a request from the server; None if they are invalid, too large or too deep."""
    return {} if params is UNSET else _decoded(params, LARGEST_QUESTION)


def _decoded(params: Raw, limit: int) -> dict[str, Any] | None:
    if len(memoryview(params)) > limit:
        return None
    try:
        decoded = msgspec.json.decode(params)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


class TooLarge(OSError):
    """A server sent more than the limit. The text names the setting that raises it."""

    @classmethod
    def message(cls, limit: int) -> Self:
        size = round(limit / 1024 / 1024, 3)
        return cls(f"It sent a message of more than {size:g} MB. Raise its max_message_mb to accept it.")


class LineSplitter:
    """Splits chunks into lines. Copies each line only once, however many chunks it spans."""

    def __init__(self, *, limit: int, on_overlong: Callable[[bytes], None] = lambda edges: None) -> None:
        """`on_overlong` receives the beginning and end of a dropped line."""
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
        """Returns and clears the bytes after the last line end."""
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
    kind: str
    data: bytes
    id: str | None = None
    """The last id of the stream so far."""
    retry: float | None = None
    """Seconds, if the event has a retry field."""


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
        """Converts CR LF and CR to LF, also if a pair spans two chunks."""
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
        elif name == b"id" and b"\0" not in value and len(value) <= _MAX_EVENT_ID:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value) / 1000

    def _dispatch(self) -> SseEvent | None:
        kind, data, retry = self._kind or "message", self._data, self._retry
        self._kind, self._data, self._retry = "", None, None
        if data is None and retry is None:
            return None
        return SseEvent(kind=kind, data=bytes(data or b""), id=self._id, retry=retry)
