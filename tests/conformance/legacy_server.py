"""A server that speaks only the legacy era, on the last SDK of the first generation (`mcp` 1.30).

In: Streamable HTTP at `/mcp`. Out: the tools, prompts, resources, completions and log messages of the official suite's
scenarios. What a modern server asks in a result, it asks in requests of its own. Runs in the `mcp-v1` part's own
environment. Prints `listening on PORT` when it is ready; `--seen` names the file that gets a line for each subscription
and log level.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from asked import CAPITAL, CHOICES, CONFIRM, CONTEXT, DEFAULTS, NAME, ROOTS, STEPS, Json, form
from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from starlette.applications import Starlette
from starlette.routing import Route

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
STEP = 0.05
RESOURCES: dict[str, Json] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PIXEL},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watch me."},
}
PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}
SCHEMA: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}, "phone": {"type": "string"}},
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["name"]}]}],
    "if": {"required": ["name"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["phone"]},
    "additionalProperties": False,
}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def embedded(uri: str, mime_type: str, value: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


PLAIN: dict[str, list[Json]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [embedded("test://embedded-resource", "text/plain", "This is an embedded resource.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
}
"""The results of the tools that only answer."""
OTHERS = ("test_error_handling", "test_tool_with_logging", "test_logging_tool", "test_tool_with_progress")
ASKING: dict[str, list[list[Json]]] = {
    "test_sampling": [[CAPITAL]],
    "test_elicitation": [[NAME]],
    "test_elicitation_sep1034_defaults": [[form("Who are you?", DEFAULTS)]],
    "test_elicitation_sep1330_enums": [[form("What do you choose?", CHOICES)]],
    "test_missing_capability": [[CAPITAL]],
    "test_streaming_elicitation": [[NAME]],
    "test_input_required_result_elicitation": [[NAME]],
    "test_input_required_result_sampling": [[CAPITAL]],
    "test_input_required_result_list_roots": [[ROOTS]],
    "test_input_required_result_request_state": [[CONFIRM]],
    "test_input_required_result_tampered_state": [[CONFIRM]],
    "test_input_required_result_multiple_inputs": [[NAME, CAPITAL, ROOTS]],
    "test_input_required_result_multi_round": [[step] for step in STEPS],
    "test_input_required_result_capabilities": [[CAPITAL, NAME]],
}
"""What these tools ask: the questions of each round at once, one round after the other."""
MISSING_CAPABILITY = -32021


class AnyResult(types.Result):
    """A client's answer with all its fields; `types.Result` keeps those it does not know."""


async def answers(context: Any, questions: list[Json]) -> list[Json]:
    related = ServerMessageMetadata(related_request_id=context.request_id)

    async def answer(question: Json) -> Json:
        asked = types.ServerRequest.model_validate(question)
        got = await context.session.send_request(asked, AnyResult, metadata=related)
        answered: Json = got.model_dump(exclude_none=True)
        return answered

    return await asyncio.gather(*map(answer, questions))


def prompt(name: str, arguments: dict[str, str]) -> list[Json]:
    match name:
        case "test_simple_prompt":
            return [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            return [text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            return [embedded(arguments["resourceUri"], "text/plain", "Embedded resource content."), text("Process it.")]
        case "test_prompt_with_image":
            return [IMAGE, text("Please look at it.")]
        case _:
            raise McpError(types.ErrorData(code=-32602, message=f"Unknown prompt: {name}"))


def resource(uri: str) -> Json:
    templated = re.fullmatch(r"test://template/([^/]+)/data", uri)
    if templated:
        data = {"id": templated[1], "templateTest": True, "data": f"Data for ID: {templated[1]}"}
        return {"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}
    if uri not in RESOURCES:
        # The legacy era's own code for this.
        raise McpError(types.ErrorData(code=-32002, message="Resource not found", data={"uri": uri}))
    return {"uri": uri, **RESOURCES[uri]}


def build(note: Callable[[str, str], None]) -> Server[Any, Any]:
    server: Server[Any, Any] = Server("legacy", version="1.0")

    def answering(request: type) -> Callable[[Any], Any]:
        def register(run: Callable[[Any], Awaitable[tuple[type, Json]]]) -> Any:
            async def answer(asked: Any) -> types.ServerResult:
                kind, result = await run(asked.params)
                return types.ServerResult(kind.model_validate(result))  # type: ignore[attr-defined]

            server.request_handlers[request] = answer
            return run

        return register

    @answering(types.ListToolsRequest)
    async def list_tools(_params: Any) -> tuple[type, Json]:
        schemas = {
            **{name: {"type": "object"} for name in (*PLAIN, *OTHERS, *ASKING)},
            "json_schema_2020_12_tool": SCHEMA,
        }
        listed = [{"name": name, "description": name, "inputSchema": schema} for name, schema in schemas.items()]
        return types.ListToolsResult, {"tools": listed}

    @answering(types.CallToolRequest)
    async def call_tool(params: Any) -> tuple[type, Json]:
        session, request = server.request_context.session, str(server.request_context.request_id)
        content = PLAIN.get(params.name, [text("Done.")])
        if params.name == "test_error_handling":
            content = [text("This tool intentionally returns an error for testing")]
            return types.CallToolResult, {"content": content, "isError": True}
        if params.name in ("test_tool_with_logging", "test_logging_tool"):
            for notice in ("Tool execution started", "Tool processing data", "Tool execution completed"):
                await session.send_log_message("info", notice, related_request_id=request)
                await asyncio.sleep(STEP)
        meta = server.request_context.meta
        reporting = params.name in ("test_tool_with_progress", "test_streaming_elicitation")
        if reporting and meta is not None and meta.progressToken is not None:
            for done in (0, 50, 100):
                await session.send_progress_notification(meta.progressToken, done, 100, related_request_id=request)
                await asyncio.sleep(STEP)
        for questions in ASKING.get(params.name, []):
            try:
                got = await answers(server.request_context, questions)
            except McpError as refused:
                if params.name != "test_missing_capability":
                    raise
                data = {"requiredCapabilities": {"sampling": {}}}
                error = types.ErrorData(code=MISSING_CAPABILITY, message=refused.error.message, data=data)
                raise McpError(error) from None
            content = [text(f"Answered: {json.dumps(got)}")]
        return types.CallToolResult, {"content": content}

    @answering(types.ListPromptsRequest)
    async def list_prompts(_params: Any) -> tuple[type, Json]:
        described = [
            {"name": name, "description": name, "arguments": [{"name": word, "required": True} for word in words]}
            for name, words in PROMPTS.items()
        ]
        return types.ListPromptsResult, {"prompts": described}

    @answering(types.GetPromptRequest)
    async def get_prompt(params: Any) -> tuple[type, Json]:
        if params.name == "test_input_required_result_prompt":
            contents = [text(json.dumps(await answers(server.request_context, [CONTEXT])))]
        else:
            contents = prompt(params.name, params.arguments or {})
        return types.GetPromptResult, {"messages": [{"role": "user", "content": one} for one in contents]}

    @answering(types.ListResourcesRequest)
    async def list_resources(_params: Any) -> tuple[type, Json]:
        listed = [{"uri": uri, "name": uri, "mimeType": has["mimeType"]} for uri, has in RESOURCES.items()]
        return types.ListResourcesResult, {"resources": listed}

    @answering(types.ListResourceTemplatesRequest)
    async def list_templates(_params: Any) -> tuple[type, Json]:
        described = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
        return types.ListResourceTemplatesResult, {"resourceTemplates": [described]}

    @answering(types.ReadResourceRequest)
    async def read_resource(params: Any) -> tuple[type, Json]:
        return types.ReadResourceResult, {"contents": [resource(str(params.uri))]}

    @answering(types.SubscribeRequest)
    async def subscribe(params: Any) -> tuple[type, Json]:
        note("subscribe", str(params.uri))
        return types.EmptyResult, {}

    @answering(types.UnsubscribeRequest)
    async def unsubscribe(params: Any) -> tuple[type, Json]:
        note("unsubscribe", str(params.uri))
        return types.EmptyResult, {}

    @answering(types.CompleteRequest)
    async def suggest(params: Any) -> tuple[type, Json]:
        note("complete", params.argument.name)
        return types.CompleteResult, {"completion": {"values": [params.argument.value], "total": 1, "hasMore": False}}

    @answering(types.SetLevelRequest)
    async def set_level(params: Any) -> tuple[type, Json]:
        note("level", params.level)
        return types.EmptyResult, {}

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seen", type=Path, required=True)
    seen = parser.parse_args().seen

    def note(what: str, about: str) -> None:
        with seen.open("a") as file:
            file.write(f"{what} {about}\n")

    server = build(note)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    options.capabilities.resources = types.ResourcesCapability(subscribe=True)
    server.create_initialization_options = lambda *_args, **_more: options  # type: ignore[method-assign]
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    place = f"127.0.0.1:{listener.getsockname()[1]}"
    guarded = TransportSecuritySettings(allowed_hosts=[place], allowed_origins=[f"http://{place}"])
    manager = StreamableHTTPSessionManager(app=server, security_settings=guarded)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    with listener:
        print(f"listening on {listener.getsockname()[1]}", flush=True)
        app = Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run(sockets=[listener])


if __name__ == "__main__":
    main()
