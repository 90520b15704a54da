"""JSON-RPC messages at the gateway: a client's bytes → `ClientMessage`; an error or a result → the reply's bytes.

Other modules of the gateway raise `Rejected`; here each case of `errors.ANSWERS` becomes an answer. Only the envelope
and the first level of params are decoded. Used by `dispatcher`.

Two parsers that disagree about a text are a vulnerability: the bytes that Toolcrib checks must mean the same to the
server. So duplicate keys, invalid UTF-8 and extreme nesting are refused here.

Parsers hold the GIL, even in a thread, and their cost depends on the number of values far more than on the number of
bytes. So the values of a large body are counted first, in small steps that let other tasks run, and each agent has
one large read at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.catalog.schema_minify import schema_for_model
from toolcrib.errors import ANSWERS, ErrorCase, InvalidArguments, ToolcribError
from toolcrib.servers.model import Era
from toolcrib.servers.wire import ValueCounter, deeper_than


class Reply(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    accepted: bool = True
    """Whether it carries a result; an error otherwise."""
    extra: Sequence[tuple[bytes, bytes]] = ()


class Rejected(Exception):
    """A refused request, with the reason."""

    def __init__(
        self,
        case: ErrorCase,
        *,
        id: bytes = b"null",
        data: Any = None,
        extra: Sequence[tuple[bytes, bytes]] = (),
        **fields: object,
    ) -> None:
        answer = ANSWERS[case]
        if answer.code is None:
            raise ValueError(f"{case} is a result for the model, not an error")
        super().__init__(case)
        self.case = case
        self.code = answer.code
        self.message = answer.text.format(**fields)
        self.id = id
        self.data = data
        self.extra = extra

    def status(self, era: Era | None) -> int:
        """Until the protocol version is known, the case's only status, or that of the generation it occurs in."""
        answer = ANSWERS[self.case]
        first, second = (answer.legacy, answer.modern) if era is Era.LEGACY else (answer.modern, answer.legacy)
        status = second if first is None else first
        return 400 if status is None else status

    def reply(self, era: Era | None = None, request_id: bytes | None = None) -> Reply:
        body = error_message(request_id or self.id, self.code, self.message, self.data)
        return Reply(body, self.status(era), accepted=False, extra=self.extra)


def error_reply(error: ToolcribError, era: Era | None = None, request_id: bytes = b"null") -> Reply:
    """A Toolcrib error as a JSON-RPC error. Legacy clients read a status other than 200 as a connection failure."""
    body = error_message(request_id, error.code, error.text(), error.data or None)
    return Reply(body, 200 if era is Era.LEGACY else error.http_status, accepted=False)


def error_as_tool_result(error: ToolcribError) -> bytes:
    """A failure that the model can act on is a tool result, not a protocol error."""
    text = error.text()
    if isinstance(error, InvalidArguments) and "schema" in error.data:
        text += f"\nThe tool's schema: {schema_for_model(error.data['schema'], error.message).decode()}"
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


def error_for_program(error: ToolcribError, request_id: bytes) -> Reply:
    """Carries everything the library needs to raise the error again. The HTTP status is 200: HTTP did not fail."""
    data = {**error.data, "remedy": error.remedy, "kind": type(error).__name__}
    return Reply(error_message(request_id, error.code, error.message, data), accepted=False)


def result_message(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def readdressed(reply: Reply, before: bytes, now: bytes) -> Reply:
    """The reply for another request with the same answer."""
    rest = reply.body.removeprefix(b'{"jsonrpc":"2.0","id":%b,' % before)
    return msgspec.structs.replace(reply, body=b'{"jsonrpc":"2.0","id":%b,%b' % (now, rest))


def error_message(request_id: bytes, code: int, message: str, data: Any = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return raw_error_message(request_id, msgspec.json.encode(error))


def raw_error_message(request_id: bytes, error: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, error)


MAX_BODY = 16 * 1024 * 1024
MAX_DEPTH = 128
MAX_VALUES = 131_072
"""Objects, lists and their members: about a tenth of a second for any parser used here."""
MAX_DIGITS = 512
"""In an integer: conversion time grows with the square of the number of digits."""
SMALL_BODY = 8 * 1024
"""Bytes up to which a body is read without counting its values first."""
_STEP = 64 * 1024
_MAX_VALUES_ON_LOOP = 8192
"""Values that may be read on the event loop: a few milliseconds."""
_PAUSE_FACTOR, _MAX_PAUSE_SECONDS = 3.0, 1.0
"""After a large read an agent pauses for this multiple of its duration, up to the maximum."""


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    id: bytes | None
    """The id's original bytes, which the reply repeats; None for a notification."""
    params: Mapping[str, Raw]
    meta: Mapping[str, Any]
    is_response: bool = False
    """Whether it answers a request of ours, so that it has no method."""
    result: bytes = b""
    error: bytes = b""
    """Of a response."""

    @property
    def key(self) -> str | int:
        """The decoded id, as a cancellation names it."""
        if self.id is None:
            raise ValueError("a notification has no id")
        key: str | int = _decode_id(self.id)
        return key


class _Envelope(msgspec.Struct):
    jsonrpc: str = ""
    id: Raw = Raw()
    method: str | None = None
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(str | int).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_meta = msgspec.json.Decoder(dict[str, Any]).decode


def read_message(body: bytes) -> ClientMessage:
    """Raises `Rejected` unless the body is a single JSON-RPC request or notification."""
    _refuse_ambiguous(body)
    try:
        envelope = _decode_envelope(body)
    except msgspec.ValidationError as error:
        raise Rejected(
            ErrorCase.ENVELOPE, why=f"The body must be a single JSON-RPC request or notification object: {error}"
        ) from error
    except msgspec.DecodeError as error:
        # `json` accepts half a surrogate pair, but UTF-8 cannot encode it.
        raise Rejected(ErrorCase.MALFORMED, why="a \\u escape is half of a surrogate pair") from error
    request_id = bytes(envelope.id) or None
    if request_id is not None and request_id[:1] != b'"' and not request_id.lstrip(b"-").isdigit():
        raise Rejected(ErrorCase.ENVELOPE, why="The id must be a string or an integer")
    if envelope.jsonrpc != "2.0":
        raise Rejected(ErrorCase.ENVELOPE, why='The member "jsonrpc" must be "2.0"', id=request_id or b"null")
    if envelope.method is None and request_id is not None and (bytes(envelope.result) or bytes(envelope.error)):
        return ClientMessage(
            method="",
            id=request_id,
            params={},
            meta={},
            is_response=True,
            result=bytes(envelope.result),
            error=bytes(envelope.error),
        )
    if envelope.method is None:
        raise Rejected(
            ErrorCase.ENVELOPE,
            why="The body must be a single JSON-RPC request or notification object: it has no method",
            id=request_id or b"null",
        )
    try:
        params = _decode_fields(envelope.params) if bytes(envelope.params) else {}
        meta = _decode_meta(params.pop("_meta")) if "_meta" in params else {}
    except msgspec.ValidationError as error:
        raise Rejected(ErrorCase.PARAMS, why=error, id=request_id or b"null") from error
    return ClientMessage(method=envelope.method, id=request_id, params=params, meta=meta)


MAX_BATCH = 100
"""Messages in one body."""


async def batched(body: bytes) -> list[bytes] | None:
    """The messages of a batch, which protocol 2025-03-26 has; None for a single message. Raises `Rejected`.

    All together may have as many values as one message."""
    if body.lstrip()[:1] != b"[":
        return None
    if len(body) > SMALL_BODY:
        await count_values(body)
    try:
        found = msgspec.json.decode(body, type=list[Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Rejected(ErrorCase.MALFORMED, why=error) from error
    if not 0 < len(found) <= MAX_BATCH:
        raise Rejected(ErrorCase.ENVELOPE, why=f"A batch must have 1 to {MAX_BATCH} messages")
    return [bytes(one) for one in found]


class ReadLimiter:
    """One large read per agent at a time, with a pause after each, so that no agent monopolizes the interpreter."""

    def __init__(self) -> None:
        self._turns: dict[str, _AgentLimit] = {}

    @asynccontextmanager
    async def of(self, agent: str) -> AsyncIterator[_AgentLimit]:
        turn = self._turns.get(agent)
        if turn is None:
            self._turns = {name: other for name, other in self._turns.items() if other.in_use}
            turn = self._turns[agent] = _AgentLimit()
        async with turn.lock:
            await asyncio.sleep(max(0.0, turn.rests_until - time.monotonic()))
            yield turn


class _AgentLimit:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.rests_until = 0.0

    @property
    def in_use(self) -> bool:
        return self.lock.locked() or self.rests_until > time.monotonic()

    async def read(self, body: bytes) -> ClientMessage:
        with self.pause_after():
            values = await count_values(body)
            if values <= _MAX_VALUES_ON_LOOP and len(body) <= _STEP:
                return read_message(body)
            return await asyncio.to_thread(read_message, body)

    @contextmanager
    def pause_after(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self.rests_until = now + min(_MAX_PAUSE_SECONDS, _PAUSE_FACTOR * (now - began))


async def read_limited(body: bytes, agent: str, turns: ReadLimiter) -> ClientMessage:
    """`read_message`, but a large body waits for the agent's turn without blocking others."""
    if len(body) <= SMALL_BODY:
        return read_message(body)
    async with turns.of(agent) as turn:
        return await turn.read(body)


async def count_values(text: bytes) -> int:
    """Raises `Rejected` for too many values or levels."""
    counter = ValueCounter()
    for start in range(0, len(text), _STEP):
        if start:
            await asyncio.sleep(0)
        counter.add(text[start : start + _STEP])
        if counter.deepest > MAX_DEPTH:
            raise _too_deep()
        if counter.values > MAX_VALUES:
            raise Rejected(ErrorCase.TOO_LARGE, most=f"{MAX_VALUES} values")
    return counter.values


def _too_deep() -> Rejected:
    return Rejected(ErrorCase.MALFORMED, why=f"nested deeper than {MAX_DEPTH} levels")


def _refuse_ambiguous(body: bytes) -> None:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Rejected(ErrorCase.MALFORMED, why=f"byte {error.start} is not UTF-8") from error
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and deeper_than(MAX_DEPTH, body):
        raise _too_deep()
    try:
        _strict.decode(text)
    except Rejected:
        raise
    except (ValueError, RecursionError) as error:
        raise Rejected(ErrorCase.MALFORMED, why=error) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Rejected(ErrorCase.MALFORMED, why=f"the key {_duplicate(pairs)[:80]!r} appears twice in one object")
    return found


def _duplicate(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no key appears twice")


def _no_long_integer(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits")


_strict = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_no_long_integer)


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message)
