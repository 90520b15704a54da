"""The WebSocket transport at a far side written by hand: what it is asked, and what it cannot do to us."""

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


class FarSide:
    """Answers the handshake, and then says what it is told to and reads nothing."""

    def __init__(self, answer: bytes = b"", frames: bytes = b"") -> None:
        self.answer = answer
        self.frames = frames
        self.asked: list[Message] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked = message_from_bytes(head.split(b"\r\n", 1)[1])
        self.asked.append(asked)
        key = asked["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
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

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield ServerConfig(
                name="far",
                transport=Transport.WEBSOCKET,
                source=ConfigSource(layer=Layer.FLAGS),
                url=f"ws://127.0.0.1:{port}/ws?key=k",
                headers={"Authorization": "Bearer secret-token"},
                max_message_mb=0.1,
            )
        finally:
            server.close()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def test_the_handshake_has_our_headers_and_asks_for_no_compression() -> None:
    far = FarSide()
    async with far.running() as config, open_websocket(config, lambda: None):
        (asked,) = far.asked
    assert asked["Sec-WebSocket-Protocol"] == "mcp"
    assert asked["Authorization"] == "Bearer secret-token"
    assert asked["Sec-WebSocket-Extensions"] is None


async def test_a_configured_header_replaces_the_one_of_the_library() -> None:
    far = FarSide()
    async with far.running() as config:
        named = dataclasses.replace(config, headers={**config.headers, "host": "inside.example"})
        async with open_websocket(named, lambda: None):
            (asked,) = far.asked
    assert asked.get_all("Host") == ["inside.example"]
    assert asked["Upgrade"] == "websocket"


async def test_a_far_side_that_does_not_read_cannot_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_TIMEOUT", 0.01)
    far = FarSide()
    async with far.running() as config:
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
async def test_why_a_connection_ended_is_said(frames: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_TIMEOUT", 0.01)
    async with FarSide(frames=frames).running() as config, open_websocket(config, lambda: None) as link:
        assert reason in await link.lost


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: ws://localhost:1/\r\nContent-Length: 0\r\n\r\n", "redirects; configure"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "failed"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "failed"),
        (b"nonsense\r\n\r\n", "failed"),
    ],
)
async def test_an_answer_that_is_no_handshake_is_refused_without_a_secret(answer: bytes, reason: str) -> None:
    async with FarSide(answer=answer).running() as config:
        with pytest.raises(ServerUnavailable, match=reason) as refused:
            async with open_websocket(config, lambda: None):
                pass
    assert "secret" not in refused.value.text()
    assert "key=k" not in refused.value.text()
