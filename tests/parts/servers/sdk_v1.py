"""Our test server on the last SDK of the first generation (`mcp` 1.30): the legacy era only.

In: MCP over stdio, Streamable HTTP (`/mcp`), SSE (`/sse`) or WebSocket (`/ws`). Out: the tools of `sdk_tools.py`.
Runs in the `mcp-v1` part's own environment. A network server prints `listening on PORT` when it is ready.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import warnings
from collections.abc import AsyncIterator
from typing import Any

import anyio
import uvicorn
from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from sdk_tools import RpcError, Toolbox
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket


class SdkCaller:
    def __init__(self, server: Server[Any, Any], sessions: set[Any]) -> None:
        self.context = server.request_context
        self.sessions = sessions

    async def progress(self, done: float, total: float, message: str) -> None:
        token = self.context.meta.progressToken if self.context.meta else None
        if token is not None:
            request = str(self.context.request_id)
            session = self.context.session
            await session.send_progress_notification(token, done, total, message, related_request_id=request)

    async def list_changed(self) -> None:
        for session in list(self.sessions):
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await session.send_tool_list_changed()


def build() -> Server[Any, Any]:
    server: Server[Any, Any] = Server("own-v1", version="1.0", instructions="A server for tests.")
    toolbox = Toolbox()
    sessions: set[Any] = set()

    async def list_tools(_request: types.ListToolsRequest) -> types.ServerResult:
        sessions.add(server.request_context.session)
        return types.ServerResult(types.ListToolsResult.model_validate({"tools": toolbox.tools}))

    async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
        meta = request.params.meta.model_dump(by_alias=True, exclude_none=True) if request.params.meta else None
        caller = SdkCaller(server, sessions)
        try:
            result = await toolbox.call(request.params.name, request.params.arguments or {}, meta, caller)
        except RpcError as error:
            raise McpError(types.ErrorData(code=error.code, message=error.message, data=error.data)) from None
        return types.ServerResult(types.CallToolResult.model_validate(json.loads(json.dumps(result))))

    server.request_handlers[types.ListToolsRequest] = list_tools
    server.request_handlers[types.CallToolRequest] = call_tool
    return server


def start_words(server: Server[Any, Any]) -> Any:
    return server.create_initialization_options(NotificationOptions(tools_changed=True))


async def over_stdio(server: Server[Any, Any]) -> None:
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, start_words(server))


def http_app(server: Server[Any, Any]) -> Starlette:
    server.create_initialization_options = lambda *_a, **_k: Server.create_initialization_options(  # type: ignore[method-assign]
        server, NotificationOptions(tools_changed=True)
    )
    manager = StreamableHTTPSessionManager(app=server)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    return Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)


def sse_app(server: Server[Any, Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(streams[0], streams[1], start_words(server))
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", app=transport.handle_post_message)])


def websocket_app(server: Server[Any, Any]) -> Starlette:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from mcp.server.websocket import websocket_server

    async def connect(socket: WebSocket) -> None:
        async with websocket_server(socket.scope, socket.receive, socket._send) as streams:
            await server.run(streams[0], streams[1], start_words(server))

    return Starlette(routes=[WebSocketRoute("/ws", connect)])


def serve(app: Starlette, port: int) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, ws_max_size=1 << 28)
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http", "sse", "ws"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seen", help="the file that gets a line for each call")
    options = parser.parse_args()
    if options.seen:
        os.environ["TOOLCRIB_TEST_SEEN"] = options.seen
    server = build()
    if options.transport == "stdio":
        anyio.run(over_stdio, server)
        return
    app = {"http": http_app, "sse": sse_app, "ws": websocket_app}[options.transport](server)
    serve(app, options.port)


if __name__ == "__main__":
    sys.exit(main())
