"""uvicorn's HTTP protocol with time limits on receiving a request and on shutdown.

In: the ASGI app and listening sockets. Out: a running server. uvicorn has neither limit: a half-sent request would keep
its connection open, and block shutdown, for as long as the sender likes. The gateway and the workspace server use this
module. They check the content of requests, and close the connection of an unauthenticated client (`connection: close`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from toolcrib.signals import open_file_limit

REQUEST_TIMEOUT = 10.0
KEEP_ALIVE = 120
LARGEST_HEAD = 64 * 1024
"""Bytes of a request line and its headers, which arrive before any token is checked."""
MAX_NEW_CONNECTIONS = 512
"""Connections that have not sent a complete request head. Beyond this, the oldest is closed."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]


_SMALL = 64 * 1024


class _Corked:
    """A transport that sends a response's head and body together if both are written in one loop iteration.

    uvicorn writes them separately: two system calls and two packets for every response.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) < _SMALL:
                self._transport.write(head + data)
            else:
                self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._uncork)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._uncork()
        self._transport.close()

    def _uncork(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _ConnectionLimit:
    """Closes surplus connections. They may use half of all descriptors; the rest is for servers and the CLI."""

    def __init__(self) -> None:
        self.new: dict[_Connection, None] = {}
        """Connections without a complete request head, oldest first."""
        self.idle: dict[_Connection, None] = {}
        """Connections whose last request was answered, longest idle first."""

    def enter(self, connection: _Connection) -> None:
        self.new[connection] = None
        limit = open_file_limit()
        if len(self.new) > min(limit // 4, MAX_NEW_CONNECTIONS):
            self._end(next(iter(self.new)))
        elif len(connection.connections) > limit // 2:
            self._end(next(iter(self.idle), connection))

    def leave(self, connection: _Connection) -> None:
        self.new.pop(connection, None)
        self.idle.pop(connection, None)

    def _end(self, connection: _Connection) -> None:
        self.leave(connection)
        connection.transport.close()


class _Connection(HttpToolsProtocol):
    limit: _ConnectionLimit
    _arriving = False
    _head: int | None = None
    """Bytes of the current head received so far, without its first chunk; None between heads."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Corked(transport, self.loop)  # type: ignore[assignment]
        self._set_deadline()
        self.limit.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > LARGEST_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        if not self._arriving:
            self._clear_deadline()
        elif self._deadline is None:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self.limit.leave(self)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._arriving = True
        self._head = 0
        self.limit.idle.pop(self, None)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        self.limit.new.pop(self, None)
        super().on_headers_complete()
        if not self.url.startswith(b"/"):
            # uvicorn drops the host of `POST http://host/path`, but `gateway.auth` must check the target as sent.
            self.scope["raw_path"] = self.url

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self.limit.idle[self] = None

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_TIMEOUT, self._too_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        self.transport.close()


class _ConnectionKey:
    """Identifies one connection."""


class AsgiServer:
    def __init__(self, app: ASGIApp) -> None:
        self._config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._limit = _ConnectionLimit()

    async def start(self, *sockets: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_server(self._connection, sock=sock, backlog=2048) for sock in sockets]

    def _connection(self) -> _Connection:
        # Apps can key per-connection state by this object, which lives as long as the connection.
        state = {"connection": _ConnectionKey()}
        connection = _Connection(config=self._config, server_state=self._state, app_state=state)
        connection.limit = self._limit
        return connection

    async def stop(self, limit: float) -> None:
        """Stops accepting requests, waits up to `limit` seconds for running ones, then aborts the rest."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=limit)
        left = list(self._state.tasks)
        for task in left:
            task.cancel()
        for connection in list(self._state.connections):
            with contextlib.suppress(AttributeError):
                # uvicorn's types allow a protocol without a transport; ours always has one once connected.
                connection.transport.abort()
        await asyncio.gather(*left, return_exceptions=True)
