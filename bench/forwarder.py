"""The floor to compare with: a bare ASGI forwarder on uvicorn (uvloop, httptools) and msgspec.

In: POSTs of either era. Out: the upstream's answer, raw. It decides nothing, checks nothing and writes
nothing down; whatever Toolcrib takes beyond it is the price of what Toolcrib does. With an HTTP upstream
the body is passed without a look at it; with a stdio upstream only the id is exchanged. It ends when its
stdin does.

    python bench/forwarder.py PORT ERA_OF_UPSTREAM url URL
    python bench/forwarder.py PORT ERA_OF_UPSTREAM stdio COPIES COMMAND [ARGUMENT…]
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn

from connection import HttpConnection, Pipe
from messages import (
    INITIALIZED,
    LEGACY,
    LEGACY_VERSION,
    MODERN,
    body,
    compact,
    http_head,
    http_headers,
    http_request,
    initialize_params,
    params,
)

Answer = tuple[int, bytes]
HELLO = {
    "protocolVersion": LEGACY_VERSION,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bare", "version": "1"},
}


class Envelope(msgspec.Struct):
    method: str
    id: msgspec.Raw = msgspec.Raw(b"")
    params: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(Envelope).decode


class StdioUpstream:
    def __init__(self, era: str, copies: int, argv: list[str]) -> None:
        self._era, self._copies, self._argv = era, copies, argv
        self._pipes: list[Pipe] = []

    async def open(self) -> None:
        self._pipes = list(await asyncio.gather(*(Pipe.open(self._argv) for _ in range(self._copies))))
        for pipe in self._pipes:
            if self._era == LEGACY:
                await pipe.request("initialize", initialize_params())
                pipe.notify(INITIALIZED)
            else:
                await pipe.request("server/discover", params(MODERN))

    async def forward(self, content: bytes, _: list[tuple[bytes, bytes]]) -> Answer:
        message = _decode(content)
        reply = await self._pipes[0].request(message.method, bytes(message.params))
        word, value = (b"error", reply.error) if reply.error else (b"result", reply.result)
        return 200, b"".join((b'{"jsonrpc":"2.0","id":', message.id, b',"', word, b'":', value, b"}"))

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


class HttpUpstream:
    def __init__(self, era: str, url: str) -> None:
        self._era, self._url = era, url
        self._idle: list[HttpConnection] = []
        self._head = b""

    async def open(self) -> None:
        connection = await HttpConnection.open(self._url)
        session = ""
        if self._era == LEGACY:
            head = http_head(self._url, http_headers(LEGACY, "initialize"))
            session = (await connection.post(http_request(head, body("initialize", initialize_params())))).session
        headers = http_headers(self._era, "", session=session)
        headers.pop("Mcp-Method", None)
        self._head = http_head(self._url, headers)
        if self._era == LEGACY:
            await connection.post(http_request(self._head, INITIALIZED))
        self._idle.append(connection)

    async def forward(self, content: bytes, headers: list[tuple[bytes, bytes]]) -> Answer:
        head = self._head
        if self._era == MODERN:
            for name, value in headers:
                if name in (b"mcp-method", b"mcp-name"):
                    head += name + b": " + value + b"\r\n"
        connection = self._idle.pop() if self._idle else await HttpConnection.open(self._url)
        response = await connection.post(http_request(head, content))
        self._idle.append(connection)
        return response.status, response.content

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


class Forwarder:
    def __init__(self, upstream: StdioUpstream | HttpUpstream) -> None:
        self._upstream = upstream

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        event = await receive()
        content: bytes = event["body"]
        if event.get("more_body"):
            parts = [content]
            while event.get("more_body"):
                event = await receive()
                parts.append(event["body"])
            content = b"".join(parts)
        headers = [(b"content-type", b"application/json")]
        if b'"initialize"' in content and b'"protocolVersion"' in content:
            status, answer = 200, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_decode(content).id, compact(HELLO))
            headers.append((b"mcp-session-id", b"bare"))
        elif b'"notifications/initialized"' in content:
            status, answer = 202, b""
        else:
            status, answer = await self._upstream.forward(content, scope["headers"])
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _lifespan(
        self,
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        await receive()
        await self._upstream.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})


def main() -> None:
    port, era, kind, *rest = sys.argv[1:]
    upstream = HttpUpstream(era, rest[0]) if kind == "url" else StdioUpstream(era, int(rest[0]), rest[1:])
    config = uvicorn.Config(
        Forwarder(upstream),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
