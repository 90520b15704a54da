"""Our test server on the current SDK (`mcp` 2.3): serves both eras, or one of them, with the tools of `sdk_tools.py`.

A middleware answers, because the SDK's types would drop unknown fields.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged
from pydantic import BaseModel
from sdk_tools import OFFERED, ModernRounds, NeedsInput, OptionParser, RpcError, Toolbox, offered, serve, sse_app
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MODERN = "2026-07-28"
CACHED = frozenset({"resources/list", "resources/templates/list", "resources/read", "prompts/list"})
OTHERS = (
    "on_list_resources",
    "on_list_resource_templates",
    "on_read_resource",
    "on_subscribe_resource",
    "on_unsubscribe_resource",
    "on_list_prompts",
    "on_get_prompt",
    "on_completion",
    "on_set_logging_level",
)


class OwnServer(Server[Any]):
    """Announces in the legacy handshake too that its list may change."""

    def create_initialization_options(self, *_args: Any, **_more: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


class AnyResult(BaseModel, extra="allow"):
    """A client's answer with all its fields."""


class SdkCaller:
    def __init__(self, ctx: ServerRequestContext[Any, Any], bus: InMemorySubscriptionBus, known: set[Any]) -> None:
        self.ctx = ctx
        self.bus = bus
        self.known = known
        self.rounds = ModernRounds(dict(ctx.params or {}))

    @property
    def capabilities(self) -> dict[str, Any]:
        declared = self.ctx.session.client_capabilities
        return declared.model_dump(by_alias=True, exclude_none=True) if declared else {}

    @property
    def begun(self) -> bool:
        return self.rounds.begun

    async def ask(self, questions: dict[str, Any]) -> dict[str, Any]:
        if self.ctx.protocol_version == MODERN:
            return self.rounds.answers(questions)
        return dict(zip(questions, await asyncio.gather(*map(self._answer, questions.values())), strict=True))

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        asked = types.server_request_adapter.validate_python(question)
        related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
        try:
            answer = await self.ctx.session.send_request(asked, AnyResult, metadata=related)
        except MCPError as refused:
            return {"error": refused.error.model_dump(exclude_none=True)}
        return answer.model_dump(by_alias=True, exclude_none=True)

    async def progress(self, done: float, total: float, message: str) -> None:
        await self.ctx.session.report_progress(done, total, message)

    async def list_changed(self) -> None:
        await self.bus.publish(ToolsListChanged())
        for session in list(self.known):
            await session.send_tool_list_changed()

    async def updated(self, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri=uri))
        for session in list(self.known):
            await session.send_resource_updated(uri)

    async def log(self, level: Any, data: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await self.ctx.session.send_log_message(level, data, related_request_id=self.ctx.request_id)


def build(only: str) -> Server[Any]:
    toolbox = Toolbox()
    bus = InMemorySubscriptionBus()
    legacy_sessions: set[ServerSession] = set()

    async def unused(_ctx: Any, _params: Any) -> Any:
        raise NotImplementedError("the middleware answers")

    async def initialized(ctx: ServerRequestContext[Any, Any], _params: Any) -> None:
        legacy_sessions.add(ctx.session)

    async def answer(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        modern = ctx.protocol_version == MODERN
        if ctx.method == {"modern": "initialize", "legacy": "server/discover"}.get(only):
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
            except NeedsInput as needs:
                return needs.result
            except RpcError as error:
                raise MCPError(code=error.code, message=error.message, data=error.data) from None
            return {**result, **complete}
        if ctx.method in OFFERED:
            hints = {"ttlMs": 0, "cacheScope": "private"} if modern and ctx.method in CACHED else {}
            try:
                caller = SdkCaller(ctx, bus, legacy_sessions)
                return {**await offered(ctx.method, dict(ctx.params or {}), caller), **hints, **complete}
            except NeedsInput as needs:
                return needs.result
            except RpcError as error:
                code = -32602 if modern else error.code
                raise MCPError(code=code, message=error.message, data=error.data) from None
        return await call_next(ctx)

    others: Any = dict.fromkeys(OTHERS, unused)
    server = OwnServer(
        "own-v2",
        version="1.0",
        instructions="A server for tests.",
        get_tool_input_schema=lambda _name: None,
        on_list_tools=unused,
        on_call_tool=unused,
        on_subscriptions_listen=ListenHandler(bus),
        **others,
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
            modern = dict(scope["headers"]).get(b"mcp-protocol-version") == MODERN.encode()
            error: dict[str, Any] | None = None
            if self.only == "legacy" and modern:
                message = f"Bad Request: Unsupported protocol version: {MODERN}"
                error = {"id": "server-error", "error": {"code": -32600, "message": message}}
            elif self.only == "modern" and not modern:
                data = {"code": -32022, "message": "Unsupported version", "data": {"supported": [MODERN]}}
                error = {"id": None, "error": data}
            if error is not None:
                await JSONResponse({"jsonrpc": "2.0", **error}, status_code=400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def over_streams(server: Server[Any], only: str, reader: Any, writer: Any) -> None:
    words = server.create_initialization_options()
    if only == "legacy":
        await serve_loop(server, reader, writer, lifespan_state={}, init_options=words)
    else:
        await server.run(reader, writer, words)


async def over_stdio(server: Server[Any], only: str) -> None:
    async with stdio_server() as (reader, writer):
        await over_streams(server, only, reader, writer)


def main() -> None:
    parser = OptionParser()
    era = parser.add_mutually_exclusive_group()
    era.add_argument("--legacy-only", dest="only", action="store_const", const="legacy", default="both")
    era.add_argument("--modern-only", dest="only", action="store_const", const="modern")
    options = parser.read()
    server = build(options.only)
    if options.transport == "stdio":
        anyio.run(over_stdio, server, options.only)
    elif options.transport == "sse":
        serve(sse_app(functools.partial(over_streams, server, options.only)), options.port)
    else:
        serve(OneEra(server.streamable_http_app(), options.only), options.port)


if __name__ == "__main__":
    main()
