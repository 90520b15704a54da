"""The WebSocket transport, against a hand-written server that may misbehave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
from collections.abc import AsyncIterator
from email import message_from_bytes
from email.message import Message

import pytest

from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import websocket
from toolcrib.servers.websocket import open_websocket

pytestmark = pytest.mark.req("BNS-10")


class HandshakeServer:
    """Answers the handshake, sends its frames and reads nothing."""

    def __init__(self, answer: bytes = b"", frames: bytes = b"") -> None:
        self.answer = answer
        self.frames = frames
        self.requests: list[Message] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request = message_from_bytes(head.split(b"\r\n", 1)[1])
        self.requests.append(request)
        key = request["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest())
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(
            self.answer or upgrade + b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: mcp\r\n\r\n" % accept
        )
        writer.write(self.frames)
        try:
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ServerConfig]:
        serving: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.add(asyncio.create_task(self.serve(reader, writer)))

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        try:
            yield ServerConfig(
                name="s",
                transport=Transport.WEBSOCKET,
                source=ConfigSource(layer=Layer.FLAGS),
                url=f"ws://127.0.0.1:{port}/ws?key=k",
                headers={"Authorization": "Bearer secret-token"},
                max_message_mb=0.1,
            )
        finally:
            listener.close()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def test_the_handshake_has_the_configured_headers_and_no_compression() -> None:
    server = HandshakeServer()
    async with server.running() as config:
        named = dataclasses.replace(config, headers={**config.headers, "host": "inside.example"})
        for one in (config, named):
            async with open_websocket(one, lambda: None):
                pass
    for request in server.requests:
        assert request["Sec-WebSocket-Protocol"] == "mcp"
        assert request["Authorization"] == "Bearer secret-token"
        assert request["Sec-WebSocket-Extensions"] is None
        assert request["Upgrade"] == "websocket"
    assert server.requests[1].get_all("Host") == ["inside.example"]


async def test_closing_does_not_wait_for_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_TIMEOUT", 0.01)
    server = HandshakeServer()
    async with server.running() as config:
        async with open_websocket(config, lambda: None) as link:
            sending = asyncio.create_task(link.send(b"x" * 50_000_000))
            await asyncio.sleep(0)
            assert not sending.done()
        await asyncio.wait({sending})
        assert link.lost.result() == "It was stopped."


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (b"\x81\x7f" + (200_000).to_bytes(8, "big"), "more than 0.1 MB"),
        (b"\x88\x02\x03\xe9", "closed the connection (code 1001)"),
        (b"\x83\x00", "failed (invalid opcode"),
        (b"\xc1\x02ok", "failed (reserved bits must be 0)"),
    ],
)
async def test_a_lost_connection_has_a_reason(frames: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_TIMEOUT", 0.01)
    async with HandshakeServer(frames=frames).running() as config, open_websocket(config, lambda: None) as link:
        assert reason in await link.lost


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b"HTTP/1.1 302 Found\r\nLocation: ws://localhost:1/\r\nContent-Length: 0\r\n\r\n",
            "redirects to ws://localhost:1/",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "not valid HTTP"),
        (b"nonsense\r\n\r\n", "not valid HTTP"),
    ],
)
async def test_an_invalid_handshake_is_an_error_without_secrets(answer: bytes, reason: str) -> None:
    async with HandshakeServer(answer=answer).running() as config:
        with pytest.raises(ServerUnavailable, match=reason) as refused:
            async with open_websocket(config, lambda: None):
                pass
    assert "secret" not in refused.value.text()
    assert "key=k" not in refused.value.text()
