"""The workspace as an MCP server, built on the SDK: one server object for stdio, HTTP and the unix socket.

In: a `Workspace`; pipes or listening sockets. Out: the SDK's `Server`, which runs until the client closes stdin or the
task is cancelled; calls that still run are ended. Imported late, because the SDK takes most of a second to load.
`transports` creates the pipes and sockets and checks every HTTP request first; `workspace` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared._context_streams import create_context_streams
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from toolcrib import __version__
from toolcrib.errors import INVALID_PARAMS
from toolcrib.http_server import AsgiServer
from toolcrib.workspace.serving.transports import MAX_BODY_SIZE, AccessCheck, ClientPipes, MessageReader, MessageWriter
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.tools import BY_NAME
from toolcrib.workspace.workspace import UNSAFE, OnProgress, Workspace

NAME = "toolcrib-workspace"
MAX_SESSIONS = 1024
"""Legacy sessions with their own counters; beyond it the oldest loses its counters."""
_WAITING = 256
"""Progress messages queued for a slow client; older ones are dropped, since the result contains them too."""
_LAST_PROGRESS = 2.0
"""Seconds to send the last progress before the result follows."""

_COMPLETE = {"resultType": "complete"}
"""Protocol version 2026-07-28 only; the SDK removes it for older clients."""

Context = ServerRequestContext[Any, Any]


def build_server(workspace: Workspace) -> Server[Any]:
    sessions = WorkspaceSessions(workspace)
    tools = [msgspec.json.decode(tool) for tool in workspace.tools]

    async def list_tools(_context: Context, _params: Any) -> Any:
        # A client's cache would survive a restart of the server with other settings.
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private", **_COMPLETE}

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
        if params.name not in BY_NAME:
            raise MCPError(code=INVALID_PARAMS, message=f"There is no tool {params.name!r}.")
        async with _progress(context) as on_progress:
            call = workspace.call(
                params.name, params.arguments or {}, session=sessions.of(context), on_progress=on_progress
            )
            result = await _to_its_end(asyncio.ensure_future(call))
        return {**msgspec.json.decode(result), **_COMPLETE}

    return Server(
        NAME,
        version=__version__,
        instructions=instructions(workspace),
        # Our schemas define no headers; without this the SDK would list the tools again for every call.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def instructions(workspace: Workspace) -> str:
    missing = sorted(name for name in BY_NAME if workspace.why_not(name) is not None)
    lines = [
        f"Files, tests, linters and commands of {workspace.root}; nothing outside it. Paths are relative to it.",
        f"Off here: {', '.join(missing)}." if missing else "All tools are on.",
    ]
    return "\n".join([*lines, UNSAFE] if workspace.unsafe else lines)


class WorkspaceSessions:
    """Usage is counted per legacy session, else per connection, else per process."""

    def __init__(self, workspace: Workspace) -> None:
        self._limits = workspace.settings.limits
        self._own = WorkspaceSession(self._limits)
        self._legacy: OrderedDict[str, WorkspaceSession] = OrderedDict()
        self._connections: weakref.WeakKeyDictionary[Any, WorkspaceSession] = weakref.WeakKeyDictionary()

    def of(self, context: Context) -> WorkspaceSession:
        request = context.request
        if request is None:
            return self._own
        if (name := request.headers.get("mcp-session-id")) is not None:
            if name not in self._legacy:
                self._legacy[name] = WorkspaceSession(self._limits)
                if len(self._legacy) > MAX_SESSIONS:
                    self._legacy.popitem(last=False)
            return self._legacy[name]
        return self._connections.setdefault(request.scope["state"]["connection"], WorkspaceSession(self._limits))


async def _to_its_end(call: asyncio.Future[bytes]) -> bytes:
    """Wait for a call; if the client cancels it, wait until everything it started has ended."""
    try:
        await asyncio.wait({call})
    except asyncio.CancelledError:
        # anyio cancels again at every await, which would cut the ending short.
        call.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({call})
        raise
    return call.result()


@contextlib.asynccontextmanager
async def _progress(context: Context) -> AsyncIterator[OnProgress | None]:
    """Send a tool's progress while it runs, in order, and all of it before the result."""
    if context.meta is None or context.meta.get("progress_token") is None:
        yield None
        return
    waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def on_progress(update: dict[str, Any]) -> None:
        if waiting.qsize() >= _WAITING:
            waiting.get_nowait()
        waiting.put_nowait(update)

    async def send() -> None:
        while (update := await waiting.get()) is not None:
            await context.session.report_progress(update["progress"], message=update["message"])

    sender = asyncio.ensure_future(send())
    try:
        yield on_progress
        waiting.put_nowait(None)
        await asyncio.wait({sender}, timeout=_LAST_PROGRESS)
    finally:
        sender.cancel()


ENDING_SECONDS = 2.0
"""Seconds that pending requests have to finish at shutdown."""
MAX_HTTP_SESSIONS = 256


async def serve_http(workspace: Workspace, access: AccessCheck, listeners: Sequence[socket.socket]) -> None:
    """Serve until cancelled; pending requests then have `ENDING_SECONDS` to finish."""
    # The access check has already checked Host and Origin, and has read the whole body.
    app = build_server(workspace).streamable_http_app(
        max_request_body_size=MAX_BODY_SIZE, max_sessions=MAX_HTTP_SESSIONS, host=""
    )
    access.app = app
    http = AsgiServer(access)
    async with app.router.lifespan_context(app):
        await http.start(*listeners)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await http.stop(ENDING_SECONDS)


_LAST_MESSAGES = 1.0
"""Seconds that a client has to take the last messages."""


async def serve_stdio(workspace: Workspace, pipes: ClientPipes) -> None:
    server = build_server(workspace)
    try:
        async with _streams(pipes) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The SDK may close its inner streams before the last message passes; by then the client is gone.
        pass


@contextlib.asynccontextmanager
async def _streams(pipes: ClientPipes) -> AsyncIterator[tuple[Any, Any]]:
    to_server, reading = create_context_streams[SessionMessage | Exception](0)
    writing, from_server = create_context_streams[SessionMessage](0)
    lines = MessageReader(pipes.reading)
    writer = MessageWriter(pipes.writing)

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
        await writer.drain(_LAST_MESSAGES)
        tasks.cancel_scope.cancel()


async def _unless_closed(work: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await work()
