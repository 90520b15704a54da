"""Slow answers: a POST whose answer may become a stream, and streams that carry only notifications.

In: an ASGI exchange. Out: `application/json` if there is only the answer, `text/event-stream` if something precedes it
(progress or a keep-alive). Used by `http`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from toolcrib.gateway.messages import Reply
from toolcrib.gateway.pending import PendingRequest
from toolcrib.servers.wire import on_one_line

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

KEEPALIVE_SECONDS = 15.0
"""Seconds of silence before a keep-alive; clients time out later than this."""
_WATCH_AFTER = 0.05
"""Seconds. Most calls finish earlier and need no watcher."""

_EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_MAX_UNREAD_EVENTS = 256
_PING = b": still here\n\n"


def event(message: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % on_one_line(message)


async def send_json(send: Send, reply: Reply) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body)), *reply.extra]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has closed its connection (or the answer was sent)."""
    while (await receive())["type"] != "http.disconnect":
        pass


class SseResponse:
    """Sends events in order, with keep-alives in between, until it is closed."""

    def __init__(self, send: Send, extra: Headers = ()) -> None:
        self._send = send
        self._extra = extra
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, message: bytes) -> None:
        self._waiting.append(event(message))
        self._wake.set()

    def offer(self, message: bytes) -> None:
        """Queues a notification unless it repeats the last one or the client reads too slowly."""
        ready = event(message)
        if len(self._waiting) < _MAX_UNREAD_EVENTS and self._waiting[-1:] != [ready]:
            self._waiting.append(ready)
            self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM, *self._extra]})
        await self._body(b"", more=True)
        while not (self._closed and not self._waiting):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = b"".join(self._waiting) or (b"" if self._closed else _PING), []
            if batch:
                await self._body(batch, more=True)
        await self._body(b"", more=False)

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class PostExchange:
    """One POST being answered. A quick call costs only a timer; tasks start only for slow ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, send: Send, request: PendingRequest) -> None:
        self._receive = receive
        self._send = send
        self._loop = loop
        self._request = request
        self._finished = False
        self._stream: SseResponse | None = None
        self._writer: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_WATCH_AFTER, self._begin_watching)

    def _begin_watching(self) -> None:
        self._watcher = self._loop.create_task(self._watch())
        self._timer = self._loop.call_later(KEEPALIVE_SECONDS, self._begin_stream)

    async def _watch(self) -> None:
        await until_disconnected(self._receive)
        self._request.disconnect()

    def notify(self, message: bytes) -> None:
        if not self._finished:
            self._begin_stream().offer(message)

    def ask(self, message: bytes) -> None:
        """Sends a request to the client, or its cancellation."""
        if not self._finished:
            self._begin_stream().put(message)

    def _begin_stream(self) -> SseResponse:
        if self._stream is None:
            self._stream = SseResponse(self._send)
            self._writer = self._loop.create_task(self._stream.run())
        return self._stream

    async def finish(self, reply: Reply) -> None:
        """Sends the answer if the client is still connected, and stops the exchange's timer and tasks."""
        self._finished = True
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._stream is not None and self._writer is not None:
            self._stream.put(reply.body)
            self._stream.close()
            await self._writer
        elif not self._request.disconnected:
            await send_json(self._send, reply)
