"""The workspace over a client's own pipes: a message a line.

In: the SDK's server, and the pipes. Out: its end, when the client closes stdin; whatever runs then is ended. `pipes`
reads and writes, `serve` makes the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage

from toolcrib.workspace.serving.pipes import Lines, Pipes, Writer

_LAST_WORDS = 1.0
"""Seconds that a client has to take the last of what it was told."""


async def serve_stdio(server: Server[Any], pipes: Pipes) -> None:
    try:
        async with _streams(pipes) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The SDK's inner streams may be gone before the last message is through; the client is gone as well then.
        pass


@contextlib.asynccontextmanager
async def _streams(pipes: Pipes) -> AsyncIterator[tuple[Any, Any]]:
    to_server, reading = create_context_streams[SessionMessage | Exception](0)
    writing, from_server = create_context_streams[SessionMessage](0)
    lines = Lines(pipes.reading)
    writer = Writer(pipes.writing)

    async def read() -> None:
        async with to_server:
            async for line in lines:
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:
                    await to_server.send(error)
                else:
                    await to_server.send(SessionMessage(message))

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await writer.write(text.encode() + b"\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_unless_closed, read)
        tasks.start_soon(_unless_closed, write)
        yield reading, writing
        await writer.drain(_LAST_WORDS)
        tasks.cancel_scope.cancel()


async def _unless_closed(work: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await work()
