"""A loopback proxy that adds a bearer token, for a client that cannot send its own headers.

In: HTTP requests from the conformance suite. Out: the same bytes to the gateway, with `Authorization` added.
The proxy's address in `Host` and `Origin` becomes the gateway's; other values pass unchanged, so that the gateway
refuses them. Each connection carries one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

HEAD_LIMIT = 65536


class Forwarder:
    def __init__(self, target: str, token: str) -> None:
        parts = urlsplit(target)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.path = parts.path
        self.token = token
        self.own = ""
        self._open: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Yields the proxy's URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_LIMIT)
        self.own = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield f"http://{self.own}{self.path}"
        finally:
            server.close()
            await self.drop()

    async def drop(self) -> None:
        """Breaks all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def refusal(self, _head: bytes) -> bytes:
        """An answer that is sent in place of the gateway's; empty to forward the request."""
        return b""

    def _rewrite(self, head: bytes) -> bytes:
        request, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        own, target = self.own.encode(), f"{self.host}:{self.port}".encode()
        kept = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"connection":
                continue
            exact = {b"host": (own, target), b"origin": (b"http://" + own, b"http://" + target)}.get(name.lower())
            kept.append(name + b": " + exact[1] if exact and value.strip() == exact[0] else line)
        return b"\r\n".join([request, *kept, *self.added(lines)]) + b"\r\n\r\n"

    def added(self, _lines: list[bytes]) -> list[bytes]:
        return [b"Authorization: Bearer " + self.token.encode(), b"Connection: close"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with _closing(writer):
                head = await reader.readuntil(b"\r\n\r\n")
                if refusal := self.refusal(head):
                    # The rest of the request is read, because its loss could cost the client the answer.
                    writer.write(refusal)
                    writer.write_eof()
                    await reader.read()
                    return
                server_reader, server_writer = await asyncio.open_connection(self.host, self.port)
                async with _closing(server_writer):
                    server_writer.write(self._rewrite(head))
                    ways = [_pump(reader, server_writer), _pump(server_reader, writer)]
                    # The end of one side ends the other, so that the gateway notices a client that disconnects.
                    tasks = [asyncio.ensure_future(way) for way in ways]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for way in tasks:
                        way.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._open.discard(task)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
