"""The workspace as an MCP server, by the SDK: one server object behind stdio, HTTP and the unix socket.

In: a `Workspace`; pipes or listening sockets. Out: the SDK's `Server`, served until the client closes stdin or the
task is cancelled; whatever runs then is ended. Imported late: the SDK takes most of a second to load. `transports`
makes the pipes and sockets and looks at every HTTP request first, `workspace` does the work.
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
from toolcrib.workspace.serving.transports import LARGEST_BODY, AccessCheck, ClientPipes, MessageReader, MessageWriter
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.tools import BY_NAME
from toolcrib.workspace.workspace import UNSAFE, OnProgress, Workspace

NAME = "toolcrib-workspace"
MOST_SESSIONS = 1024
"""Legacy sessions whose use is counted; beyond it the oldest begins anew."""
_WAITING = 256
"""Words of progress that wait for a slow client; older ones are dropped, for the result has them too."""
_LAST_PROGRESS = 2.0
"""Seconds that the last progress may take to leave before the result follows."""

_COMPLETE = {"resultType": "complete"}
"""Of protocol version 2026-07-28; the SDK keeps it from clients of older ones."""

Context = ServerRequestContext[Any, Any]


def build_server(workspace: Workspace) -> Server[Any]:
    sessions = WorkspaceSessions(workspace)
    tools = [msgspec.json.decode(tool) for tool in workspace.tools]

    async def list_tools(_context: Context, _params: Any) -> Any:
        # What a client keeps would outlive a server that is started again with other settings.
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
        # Our schemas name no headers; without this the SDK would list the tools again for every call.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def instructions(workspace: Workspace) -> str:
    missing = sorted(name for name in BY_NAME if workspace.why_not(name) is not None)
    lines = [
        f"Files, tests, linters and commands of {workspace.root}; nothing outside of it. Paths are relative to it.",
        f"Off here: {', '.join(missing)}." if missing else "All tools are on.",
    ]
    return "\n".join([*lines, UNSAFE] if workspace.unsafe else lines)


class WorkspaceSessions:
    """Whose use of the workspace is counted together: a legacy session, else a connection, else the process."""

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
                if len(self._legacy) > MOST_SESSIONS:
                    self._legacy.popitem(last=False)
            return self._legacy[name]
        return self._connections.setdefault(request.scope["state"]["connection"], WorkspaceSession(self._limits))


async def _to_its_end(call: asyncio.Future[bytes]) -> bytes:
    """Waits for a call; when the client takes it back, until all that it ran has ended."""
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
    """Sends the progress of a tool while it runs, in order, and all of it before the result."""
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
"""Seconds that requests under way have at the end; then they are cut."""
MOST_HTTP_SESSIONS = 256


async def serve_http(workspace: Workspace, access: AccessCheck, listeners: Sequence[socket.socket]) -> None:
    """Until it is cancelled; then what is under way has a moment, and is cut."""
    # The access check has looked at Host and Origin already, and has the whole body.
    app = build_server(workspace).streamable_http_app(
        max_request_body_size=LARGEST_BODY, max_sessions=MOST_HTTP_SESSIONS, host=""
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
        # The SDK's inner streams may be gone before the last message is through; the client is gone as well then.
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
