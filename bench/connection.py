"""The two lean ways to a server: a keep-alive HTTP connection and a child's pipes.

In: bytes of a request. Out: its answer. The load client uses them towards what is measured, the bare
forwarder towards its upstream; neither knows more of HTTP than a loopback POST needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from messages import body


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    content: bytes
    session: str


class HttpConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._session = ""
        self._answer: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None
        self.closed = False

    @classmethod
    async def open(cls, url: str) -> HttpConnection:
        parts = urlsplit(url)
        _, connection = await asyncio.get_running_loop().create_connection(
            cls, parts.hostname or "127.0.0.1", parts.port or 80
        )
        return connection

    def post(self, request: bytes) -> asyncio.Future[Response]:
        if self.closed or self._transport is None:
            raise ConnectionError("the server closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(exc or ConnectionError("the server closed the connection before it answered"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as broken:
            self._fail(broken)
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self._session = value.decode()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Response(self._parser.get_status_code(), content, self._session))

    def _fail(self, reason: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)


class Reply(msgspec.Struct):
    """The envelope of an answer on a pipe; what is in it stays raw."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


_decode_reply = msgspec.json.Decoder(Reply).decode


class Pipe(asyncio.SubprocessProtocol):
    """A stdio server as a child; many requests at once, told apart by ids of our own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int | str | None, asyncio.Future[Reply]] = {}
        self._partial: list[bytes] = []
        self._next = 0
        self._process: asyncio.SubprocessTransport
        self._stdin: asyncio.WriteTransport

    @classmethod
    async def open(cls, argv: list[str]) -> Pipe:
        transport, pipe = await asyncio.get_running_loop().subprocess_exec(cls, *argv, stderr=None)
        pipe._process = transport
        pipe._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        return pipe

    def request(self, method: str, raw_params: bytes) -> asyncio.Future[Reply]:
        self._next += 1
        answer = self._waiting[self._next] = self._loop.create_future()
        self._stdin.write(body(method, raw_params, b"%d" % self._next) + b"\n")
        return answer

    def notify(self, line: bytes) -> None:
        self._stdin.write(line + b"\n")

    def close(self) -> None:
        self._stdin.close()
        self._process.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        first, *rest = data.split(b"\n")
        self._partial.append(first)
        for part in rest:
            self._line(b"".join(self._partial))
            self._partial = [part]

    def process_exited(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the stdio server ended"))
        self._waiting.clear()

    def _line(self, line: bytes) -> None:
        reply = _decode_reply(line)
        answer = self._waiting.pop(reply.id, None)
        if answer is not None and not answer.done():
            answer.set_result(reply)
