"""A daemon's socket whose answers a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from toolcrib.config.paths import Paths

LIMIT = 60.0


class FakePeer:
    """The daemon's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, **message: Any) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self._writer.drain()

    async def event(self, **event: Any) -> None:
        await self.send(method="event", params={"id": 1, "event": event})

    async def refuse(self, kind: str, message: str = "No.") -> None:
        data = {"kind": kind, "remedy": "Do.", "exit_code": 1, "more": 1}
        await self.send(id=1, error={"code": 1, "message": message, "data": data})

    async def until_disconnected(self) -> None:
        await self._reader.read()


Answer = Callable[[dict[str, Any], FakePeer], Awaitable[bool | None]]
"""Returns True to close the connection."""


@contextlib.asynccontextmanager
async def fake_daemon(answer: Answer) -> AsyncIterator[Paths]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = FakePeer(reader, writer)
        try:
            while line := await reader.readline():
                if await answer(json.loads(line), peer):
                    break
        finally:
            writer.close()

    # Short, because the path of a unix socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tc-", dir="/tmp") as folder:
        paths = Paths.of_user({"TOOLCRIB_HOME": folder, "HOME": folder})
        paths.run_dir.mkdir()
        server = await asyncio.start_unix_server(connected, paths.socket)
        async with asyncio.timeout(LIMIT), server:
            yield paths
            server.close()
