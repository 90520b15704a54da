"""The workspace as an MCP server, by the SDK: one server object behind stdio, HTTP and the unix socket, both eras.

In: a `Workspace`. Out: the SDK's `Server`. Imported late: the SDK takes most of a second to load. `stdio` and `http`
carry it, `workspace` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from toolcrib import __version__
from toolcrib.errors import INVALID_PARAMS
from toolcrib.workspace.session import Session
from toolcrib.workspace.tools import BY_NAME
from toolcrib.workspace.workspace import UNSAFE, OnProgress, Workspace

NAME = "toolcrib-workspace"
MOST_SESSIONS = 1024
"""Legacy sessions whose use is counted; beyond it the oldest begins anew."""
_WAITING = 256
"""Words of progress that wait for a slow client; older ones are dropped, for the result has them too."""
_LAST_WORDS = 2.0
"""Seconds that the last progress may take to leave before the result follows."""

_COMPLETE = {"resultType": "complete"}
"""Of the modern era; the SDK keeps it from legacy clients."""

Context = ServerRequestContext[Any, Any]


def build(workspace: Workspace) -> Server[Any]:
    sessions = Sessions(workspace)
    tools = [msgspec.json.decode(tool) for tool in workspace.tools]

    async def list_tools(_context: Context, _params: Any) -> Any:
        # What a client keeps would outlive a server that is started again with other settings.
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private", **_COMPLETE}

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
        if params.name not in BY_NAME:
            raise MCPError(code=INVALID_PARAMS, message=f"There is no tool {params.name!r}.")
        async with _progress(context) as tell:
            call = workspace.call(params.name, params.arguments or {}, session=sessions.of(context), on_progress=tell)
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


class Sessions:
    """Whose use of the workspace is counted together: a legacy session, else a connection, else the process."""

    def __init__(self, workspace: Workspace) -> None:
        self._limits = workspace.settings.limits
        self._own = Session(self._limits)
        self._legacy: OrderedDict[str, Session] = OrderedDict()
        self._connections: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()

    def of(self, context: Context) -> Session:
        request = context.request
        if request is None:
            return self._own
        if (name := request.headers.get("mcp-session-id")) is not None:
            if name not in self._legacy:
                self._legacy[name] = Session(self._limits)
                if len(self._legacy) > MOST_SESSIONS:
                    self._legacy.popitem(last=False)
            return self._legacy[name]
        return self._connections.setdefault(request.scope["state"]["connection"], Session(self._limits))


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
    """Sends what a tool tells while it runs, in order, and all of it before the result."""
    if context.meta is None or context.meta.get("progress_token") is None:
        yield None
        return
    waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def tell(told: dict[str, Any]) -> None:
        if waiting.qsize() >= _WAITING:
            waiting.get_nowait()
        waiting.put_nowait(told)

    async def send() -> None:
        while (told := await waiting.get()) is not None:
            await context.session.report_progress(told["progress"], message=told["message"])

    sender = asyncio.ensure_future(send())
    try:
        yield tell
        waiting.put_nowait(None)
        await asyncio.wait({sender}, timeout=_LAST_WORDS)
    finally:
        sender.cancel()
