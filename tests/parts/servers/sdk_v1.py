"""Our test server on the last SDK of the first generation (`mcp` 1.30): the legacy era only, over any transport.

Runs in the `mcp-v1` part's own environment, with the tools of `sdk_tools.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from sdk_tools import OFFERED, OptionParser, RpcError, Toolbox, offered, serve, sse_app
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket


class AnyResult(types.Result):
    """A client's answer with all its fields; `types.Result` keeps those it does not know."""


class SdkCaller:
    begun = False

    def __init__(self, server: Server[Any, Any], sessions: set[Any]) -> None:
        self.context = server.request_context
        self.sessions = sessions

    @property
    def capabilities(self) -> dict[str, Any]:
        about = self.context.session.client_params
        return about.capabilities.model_dump(by_alias=True, exclude_none=True) if about else {}

    async def ask(self, questions: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(questions, await asyncio.gather(*map(self._answer, questions.values())), strict=True))

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        asked = types.ServerRequest.model_validate(question)
        related = ServerMessageMetadata(related_request_id=self.context.request_id)
        try:
            answer = await self.context.session.send_request(asked, AnyResult, metadata=related)
        except McpError as refused:
            return {"error": refused.error.model_dump(exclude_none=True)}
        return answer.model_dump(by_alias=True, exclude_none=True)

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

    async def updated(self, uri: str) -> None:
        for session in list(self.sessions):
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await session.send_resource_updated(uri)

    async def log(self, level: Any, data: str) -> None:
        await self.context.session.send_log_message(level, data, related_request_id=str(self.context.request_id))


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

    async def offer(request: Any) -> types.ServerResult:
        params = {} if request.params is None else request.params.model_dump(mode="json", by_alias=True)
        try:
            result = await offered(request.method, params, SdkCaller(server, sessions))
        except RpcError as error:
            raise McpError(types.ErrorData(code=error.code, message=error.message, data=error.data)) from None
        return types.ServerResult(types.EmptyResult.model_validate(result))

    for request in types.ClientRequest.model_fields["root"].annotation.__args__:
        if request.model_fields["method"].default in OFFERED:
            server.request_handlers[request] = offer
    server.request_handlers[types.ListToolsRequest] = list_tools
    server.request_handlers[types.CallToolRequest] = call_tool
    return server


def start_words(server: Server[Any, Any]) -> Any:
    options = Server.create_initialization_options(server, NotificationOptions(tools_changed=True))
    options.capabilities.resources = types.ResourcesCapability(subscribe=True)
    return options


async def over_stdio(server: Server[Any, Any]) -> None:
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, start_words(server))


def http_app(server: Server[Any, Any]) -> Starlette:
    server.create_initialization_options = lambda *_a, **_k: start_words(server)  # type: ignore[method-assign]
    manager = StreamableHTTPSessionManager(app=server)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    return Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)


def websocket_app(server: Server[Any, Any]) -> Starlette:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from mcp.server.websocket import websocket_server

    async def connect(socket: WebSocket) -> None:
        async with websocket_server(socket.scope, socket.receive, socket._send) as streams:
            await server.run(streams[0], streams[1], start_words(server))

    return Starlette(routes=[WebSocketRoute("/ws", connect)])


def main() -> None:
    options = OptionParser().read()
    server = build()
    if options.transport == "stdio":
        anyio.run(over_stdio, server)
    elif options.transport == "sse":
        serve(sse_app(lambda reader, writer: server.run(reader, writer, start_words(server))), options.port)
    else:
        serve({"http": http_app, "ws": websocket_app}[options.transport](server), options.port)


if __name__ == "__main__":
    main()
