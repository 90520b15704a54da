"""JSON-RPC messages at the gateway: a client's bytes in, a `ClientMessage`; an error or a result in, the reply's bytes.

Each case of `errors.ANSWERS` becomes an answer here: every other module of the gateway raises `Rejected`. Of a
message the envelope is decoded, its params one level deep, everything below left raw. `dispatcher` is above;
nothing is below but the JSON decoder.

Two parsers that disagree about one text are a hole: what we check must be what the server reads. So a text with
duplicate keys, with bytes that are not UTF-8, or nested deeper than anything honest is refused here.

Parsers hold the interpreter, in a thread too. What they cost is the number of values far more than the number of
bytes, so a large text is counted first, in small steps between which others go on, and each agent has one read at a
time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

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
    """A request that does not get what it asked for, and the reason."""

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
        """Where the protocol version is not known yet, the case has one status, or occurs with one generation alone."""
        answer = ANSWERS[self.case]
        first, second = (answer.legacy, answer.modern) if era is Era.LEGACY else (answer.modern, answer.legacy)
        status = second if first is None else first
        return 400 if status is None else status

    def reply(self, era: Era | None = None, request_id: bytes | None = None) -> Reply:
        body = error_message(request_id or self.id, self.code, self.message, self.data)
        return Reply(body, self.status(era), accepted=False, extra=self.extra)


def error_reply(error: ToolcribError, era: Era | None = None, request_id: bytes = b"null") -> Reply:
    """An error of ours as an error of JSON-RPC. Within a legacy session only the connection has a status."""
    body = error_message(request_id, error.code, error.text(), error.data or None)
    return Reply(body, 200 if era is Era.LEGACY else error.http_status, accepted=False)


def error_as_tool_result(error: ToolcribError) -> bytes:
    """A failure that the model can do something about is a result, not a protocol error."""
    text = error.text()
    if isinstance(error, InvalidArguments) and "schema" in error.data:
        text += f"\nThe tool's schema: {msgspec.json.encode(error.data['schema']).decode()}"
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


def error_for_program(error: ToolcribError, request_id: bytes) -> Reply:
    """With all that it takes to raise it again at the other end. The status is of HTTP, where nothing went wrong."""
    data = {**error.data, "remedy": error.remedy, "kind": type(error).__name__}
    return Reply(error_message(request_id, error.code, error.message, data), accepted=False)


def result_message(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


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
"""Objects, lists and what they hold: about a tenth of a second for any parser of ours."""
MAX_DIGITS = 512
"""Of an integer: making a number of digits costs the square of their count."""
SMALL = 8 * 1024
"""Bytes that are read at once, without being counted first."""
_STEP = 64 * 1024
_QUICK = 8192
"""Values that are read on the event loop: some milliseconds."""
_PAUSE, _LONGEST_PAUSE = 3.0, 1.0
"""An agent's next large text waits so many times as long as reading the last one took; in seconds at most."""


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    id: bytes | None
    """The id as it stood there, to be sent back byte for byte; None for a notification."""
    params: Mapping[str, Raw]
    meta: Mapping[str, Any]

    @property
    def key(self) -> str | int:
        """A request's id as a value: a cancellation names it so."""
        if self.id is None:
            raise ValueError("a notification has no id")
        key: str | int = _decode_id(self.id)
        return key


class _Envelope(msgspec.Struct):
    jsonrpc: str = ""
    id: Raw = Raw()
    method: str | None = None
    params: Raw = Raw()


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(str | int).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_meta = msgspec.json.Decoder(dict[str, Any]).decode


def read_message(body: bytes) -> ClientMessage:
    """Raises `Rejected` for what is not one JSON-RPC request or notification."""
    _refuse_ambiguous(body)
    try:
        envelope = _decode_envelope(body)
    except msgspec.ValidationError as error:
        raise Rejected(
            ErrorCase.ENVELOPE, why=f"The body must be a single JSON-RPC request or notification object: {error}"
        ) from error
    except msgspec.DecodeError as error:
        # The first reading lets half a surrogate pair pass; no UTF-8 text can hold what it stands for.
        raise Rejected(ErrorCase.MALFORMED, why="a \\u escape is half of a surrogate pair") from error
    request_id = bytes(envelope.id) or None
    if request_id is not None and request_id[:1] != b'"' and not request_id.lstrip(b"-").isdigit():
        raise Rejected(ErrorCase.ENVELOPE, why="The id must be a string or an integer")
    if envelope.jsonrpc != "2.0":
        raise Rejected(ErrorCase.ENVELOPE, why='The member "jsonrpc" must be "2.0"', id=request_id or b"null")
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


class ReadLimiter:
    """One large text per agent at a time, with a pause after each: nobody takes all of the interpreter's time."""

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
        began = time.monotonic()
        try:
            values = await count_values(body)
            if values <= _QUICK and len(body) <= _STEP:
                return read_message(body)
            return await asyncio.to_thread(read_message, body)
        finally:
            now = time.monotonic()
            self.rests_until = now + min(_LONGEST_PAUSE, _PAUSE * (now - began))


async def read_limited(body: bytes, agent: str, turns: ReadLimiter) -> ClientMessage:
    """The same; a text that is not small takes the agent's turn, and others need not wait for it."""
    if len(body) <= SMALL:
        return read_message(body)
    async with turns.of(agent) as turn:
        return await turn.read(body)


async def count_values(text: bytes) -> int:
    """Raises `Rejected` for a text of more values, or levels, than are read."""
    weight = ValueCounter()
    for start in range(0, len(text), _STEP):
        if start:
            await asyncio.sleep(0)
        weight.add(text[start : start + _STEP])
        if weight.deepest > MAX_DEPTH:
            raise _too_deep()
        if weight.values > MAX_VALUES:
            raise Rejected(ErrorCase.TOO_LARGE, most=f"{MAX_VALUES} values")
    return weight.values


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
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Rejected(ErrorCase.MALFORMED, why=f"the key {_twice(pairs)[:80]!r} stands twice in one object")
    return found


def _twice(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no key stands twice")


def _no_long_integer(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits")


_strict = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_no_long_integer)


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message)
