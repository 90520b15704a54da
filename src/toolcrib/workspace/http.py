"""The workspace over Streamable HTTP, on loopback or a unix socket.

In: the SDK's server and listening sockets. Out: its end when told to stop, in bounded time. `gate` looks at every
request before anything is read of it, `listeners` makes the sockets. uvicorn has no limit on how long a request may
take to arrive; its connections get one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolcrib.workspace.gate import LARGEST_BODY, Gate

ARRIVAL_LIMIT = 10.0
"""Seconds in which a request must have come in whole."""
ENDING = 2
"""Seconds that requests under way have at the end; then they are cut."""
MOST_SESSIONS = 256
_LARGEST_HEAD = 64 * 1024
"""Bytes of a request line and its headers; nobody has shown a token yet while they come in."""


async def serve_http(server: Server[Any], gate: Gate, listeners: Sequence[socket.socket]) -> None:
    """Until it is cancelled; then what is under way has a moment, and is cut."""
    # The gate has looked at Host and Origin already, and has the whole body.
    gate.app = server.streamable_http_app(max_request_body_size=LARGEST_BODY, max_sessions=MOST_SESSIONS, host="")
    config = uvicorn.Config(
        gate,
        http=_Connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=ENDING,
    )
    running = _Server(config)
    serving = asyncio.ensure_future(running.serve(sockets=list(listeners)))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        running.should_exit = True
        await serving
        raise


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process has handlers of its own."""
        yield


class _Mark:
    """Stands for one connection."""


class _Connection(HttpToolsProtocol):
    _arriving = True
    _head: int | None = 0
    """Bytes of the head that came so far; None while there is none coming."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "connection": _Mark()}
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > _LARGEST_HEAD:
            self.transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arriving = False
        self._watch()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._arriving = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()
        if not self.url.startswith(b"/"):
            # uvicorn drops the host of `POST http://host/path`: the gate would judge a target that nobody sent.
            self.scope["raw_path"] = self.url

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    def _watch(self) -> None:
        if self._arriving and self._deadline is None:
            self._deadline = self.loop.call_later(ARRIVAL_LIMIT, self.transport.abort)
        elif not self._arriving and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
