"""Our test server on the current SDK (`mcp` 2.3): serves both eras, or one of them.

In: MCP over stdio, Streamable HTTP (`/mcp`) or legacy SSE (`/sse`). Out: the tools of `sdk_tools.py`.
A middleware answers, because the SDK's types would drop unknown fields. An HTTP server prints `listening on PORT`
when it is ready.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.session import ServerSession
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from sdk_tools import RpcError, Toolbox
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

MODERN = "2026-07-28"


class OwnServer(Server[Any]):
    """Announces in the legacy handshake too that its list may change."""

    def create_initialization_options(self, *_args: Any, **_more: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


class SdkCaller:
    def __init__(self, ctx: ServerRequestContext[Any, Any], bus: InMemorySubscriptionBus, known: set[Any]) -> None:
        self.ctx = ctx
        self.bus = bus
        self.known = known

    async def progress(self, done: float, total: float, message: str) -> None:
        await self.ctx.session.report_progress(done, total, message)

    async def list_changed(self) -> None:
        await self.bus.publish(ToolsListChanged())
        for session in list(self.known):
            await session.send_tool_list_changed()


def build(only: str) -> Server[Any]:
    toolbox = Toolbox()
    bus = InMemorySubscriptionBus()
    legacy_sessions: set[ServerSession] = set()

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        raise NotImplementedError("the middleware answers")

    async def call_tool(_ctx: Any, _params: Any) -> types.CallToolResult:
        raise NotImplementedError("the middleware answers")

    async def initialized(ctx: ServerRequestContext[Any, Any], _params: Any) -> None:
        legacy_sessions.add(ctx.session)

    async def answer(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        modern = ctx.protocol_version == MODERN
        if only == "modern" and ctx.method == "initialize":
            raise MCPError(code=-32601, message="Method not found")
        if only == "legacy" and ctx.method == "server/discover":
            raise MCPError(code=-32601, message="Method not found")
        complete = {"resultType": "complete"} if modern else {}
        if ctx.method == "tools/list":
            hints = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
            return {"tools": toolbox.tools, **hints, **complete}
        if ctx.method == "tools/call":
            params = ctx.params or {}
            caller = SdkCaller(ctx, bus, legacy_sessions)
            try:
                result = await toolbox.call(params["name"], params.get("arguments") or {}, params.get("_meta"), caller)
            except RpcError as error:
                raise MCPError(code=error.code, message=error.message, data=error.data) from None
            return {**result, **complete}
        return await call_next(ctx)

    server = OwnServer(
        "own-v2",
        version="1.0",
        instructions="A server for tests.",
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )
    server.add_notification_handler("notifications/initialized", types.NotificationParams, initialized)
    server.middleware.append(answer)
    return server


class OneEra:
    """Refuses the other era, as a server that does not know it would."""

    def __init__(self, app: ASGIApp, only: str) -> None:
        self.app = app
        self.only = only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            modern = headers.get(b"mcp-protocol-version") == MODERN.encode()
            if self.only == "legacy" and modern:
                message = f"Bad Request: Unsupported protocol version: {MODERN}"
                error = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": message}}
                await JSONResponse(error, status_code=400)(scope, receive, send)
                return
            if self.only == "modern" and not modern:
                error_data = {"code": -32022, "message": "Unsupported version", "data": {"supported": [MODERN]}}
                refusal = {"jsonrpc": "2.0", "id": None, "error": error_data}
                await JSONResponse(refusal, status_code=400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def over_streams(server: Server[Any], only: str, reader: Any, writer: Any) -> None:
    words = server.create_initialization_options()
    if only == "legacy":
        await serve_loop(server, reader, writer, lifespan_state={}, init_options=words)
    else:
        await server.run(reader, writer, words)


def sse_app(server: Server[Any], only: str) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await over_streams(server, only, streams[0], streams[1])
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", app=transport.handle_post_message)])


async def over_stdio(server: Server[Any], only: str) -> None:
    async with stdio_server() as (reader, writer):
        await over_streams(server, only, reader, writer)


def serve(app: ASGIApp, port: int) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http", "sse"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seen", help="the file that gets a line for each call")
    era = parser.add_mutually_exclusive_group()
    era.add_argument("--legacy-only", dest="only", action="store_const", const="legacy", default="both")
    era.add_argument("--modern-only", dest="only", action="store_const", const="modern")
    options = parser.parse_args()
    if options.seen:
        os.environ["TOOLCRIB_TEST_SEEN"] = options.seen
    server = build(options.only)
    if options.transport == "stdio":
        anyio.run(over_stdio, server, options.only)
    elif options.transport == "sse":
        serve(sse_app(server, options.only), options.port)
    else:
        serve(OneEra(server.streamable_http_app(), options.only), options.port)


if __name__ == "__main__":
    main()
