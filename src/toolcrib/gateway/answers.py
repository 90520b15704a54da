"""How each case of `errors.ANSWERS` becomes an answer: the one place where refusals turn into bytes and a status.

In: a case, or an error of ours. Out: a `Reply`, or the text that a model is told. Every other module of the gateway
raises `Rejected` and leaves the rest to this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toolcrib.errors import ANSWERS, Case, InvalidArguments, ToolcribError
from toolcrib.servers.model import Era


class Reply(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    accepted: bool = True
    """Whether it carries a result; an error otherwise."""
    extra: Sequence[tuple[bytes, bytes]] = ()


class Rejected(Exception):
    """A request that does not get what it asked for, and is told why."""

    def __init__(
        self,
        case: Case,
        *,
        id: bytes = b"null",
        data: Any = None,
        extra: Sequence[tuple[bytes, bytes]] = (),
        **fields: object,
    ) -> None:
        told = ANSWERS[case]
        if told.code is None:
            raise ValueError(f"{case} is told to the model, not as an error")
        super().__init__(case)
        self.case = case
        self.code = told.code
        self.message = told.text.format(**fields)
        self.id = id
        self.data = data
        self.extra = extra

    def status(self, era: Era | None) -> int:
        """Where the era is not known yet, the case has one status, or belongs to one era alone."""
        told = ANSWERS[self.case]
        first, second = (told.legacy, told.modern) if era is Era.LEGACY else (told.modern, told.legacy)
        status = second if first is None else first
        return 400 if status is None else status

    def reply(self, era: Era | None = None, request_id: bytes | None = None) -> Reply:
        body = error_message(request_id or self.id, self.code, self.message, self.data)
        return Reply(body, self.status(era), accepted=False, extra=self.extra)


def failure(error: ToolcribError, era: Era | None = None, request_id: bytes = b"null") -> Reply:
    """An error of ours as an error of JSON-RPC. Within a legacy session only the connection has a status."""
    body = error_message(request_id, error.code, error.text(), error.data or None)
    return Reply(body, 200 if era is Era.LEGACY else error.http_status, accepted=False)


def told_to_the_model(error: ToolcribError) -> bytes:
    """A failure that the model can do something about is a result, not a protocol error."""
    text = error.text()
    if isinstance(error, InvalidArguments) and "schema" in error.data:
        text += f"\nThe tool's schema: {msgspec.json.encode(error.data['schema']).decode()}"
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


def told_to_a_program(error: ToolcribError, request_id: bytes) -> Reply:
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
