"""A lean echo server over HTTP: POST in, plain JSON out, keep-alive, no framework.

Started by `targets`; direct, forwarder and Toolcrib all call the same one. It ends when its stdin does.

    python bench/echo_http.py modern|legacy NUMBER_OF_TOOLS PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import msgspec
import uvloop

from echo import Echo

REASON = {200: b"OK", 202: b"Accepted", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed"}
SESSION = b"Mcp-Session-Id: bench\r\n"


class EchoConnection(asyncio.Protocol):
    def __init__(self, echo: Echo, session: bytes) -> None:
        self._echo = echo
        self._session = session
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            assert self._transport
            self._transport.close()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        content = b"".join(self._body)
        self._body.clear()
        method = self._parser.get_method()
        if method == b"POST":
            status, answer = self._echo.answer(msgspec.json.decode(content)) or (202, b"")
        else:
            status, answer = (200 if method == b"DELETE" else 405), b""
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n" % (status, REASON[status])
        assert self._transport
        self._transport.write(head + self._session + b"Content-Length: %d\r\n\r\n" % len(answer) + answer)


async def serve(era: str, tools: int, port: int) -> None:
    loop = asyncio.get_running_loop()
    echo = Echo(era, tools)
    session = SESSION if era == "legacy" else b""
    server = await loop.create_server(lambda: EchoConnection(echo, session), "127.0.0.1", port)
    parent_gone = asyncio.Event()
    loop.add_reader(0, parent_gone.set)
    await parent_gone.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
