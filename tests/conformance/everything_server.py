"""The server that the official conformance suite expects, on the `mcp` 2.3 SDK.

In: Streamable HTTP at `/mcp`, both eras. Out: the tools of `everything_tools.py`, and the prompts, resources and
completions of the scenarios. Prints `listening on PORT` when it is ready.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import warnings
from typing import Any

import mcp_types as types
import uvicorn
from asked import CONTEXT
from everything_tools import PIXEL, TOOLS, ServerCall, embedded, image, needs
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]

RESOURCES: dict[str, Json] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PIXEL},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watch me."},
}
TEMPLATE = "test://template/{id}/data"
PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


class EventLog(EventStore):
    """Keeps the events of broken streams so that a client can resume them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdigit() or int(last_event_id) >= len(self.events):
            return None
        position = int(last_event_id)
        stream = self.events[position][0]
        for number, (belongs_to, message) in enumerate(self.events[position + 1 :], position + 1):
            if belongs_to == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class EverythingServer(Server[Any]):
    """Announces in the legacy handshake too that its lists may change."""

    def create_initialization_options(self, *_args: Any, **_more: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True, prompts_changed=True))


def complete(**result: Any) -> Json:
    """The modern era requires `resultType`; the SDK removes it for legacy clients."""
    return {"resultType": "complete", **result}


def cached(**result: Any) -> Json:
    return complete(**result, ttlMs=0, cacheScope="public")


def message(content: Json) -> Json:
    return {"role": "user", "content": content}


def prompt(name: str, arguments: Json, responses: Json) -> Json:
    if name not in PROMPTS:
        raise MCPError(code=-32602, message=f"Unknown prompt: {name}")
    if name == "test_input_required_result_prompt":
        answer = responses.get("user_context")
        if not isinstance(answer, dict):
            return needs(user_context=CONTEXT)
        answered = {"type": "text", "text": f"Use this context: {answer.get('content', {}).get('context')}"}
        return complete(messages=[message(answered)])
    if name == "test_prompt_with_arguments":
        text = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
        return complete(messages=[message({"type": "text", "text": text})])
    if name == "test_prompt_with_embedded_resource":
        content = embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
        return complete(messages=[message(content), message({"type": "text", "text": "Please process it."})])
    if name == "test_prompt_with_image":
        return complete(messages=[message(image()), message({"type": "text", "text": "Please look at it."})])
    return complete(messages=[message({"type": "text", "text": "This is a simple prompt for testing."})])


def resource(uri: str) -> Json:
    if uri in RESOURCES:
        return cached(contents=[{"uri": uri, **RESOURCES[uri]}])
    templated = re.fullmatch(r"test://template/([^/]+)/data", uri)
    if templated:
        data = {"id": templated[1], "templateTest": True, "data": f"Data for ID: {templated[1]}"}
        return cached(contents=[{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}])
    raise MCPError(code=-32602, message="Resource not found", data={"uri": uri})


def build() -> Server[Any]:
    bus = InMemorySubscriptionBus()

    async def list_tools(_ctx: Context, _params: Any) -> Any:
        return cached(tools=[tool.definition() for tool in TOOLS.values()])

    async def call_tool(ctx: Context, _params: Any) -> Any:
        params = ctx.params or {}
        found = TOOLS.get(params["name"])
        if found is None:
            raise MCPError(code=-32602, message=f"Unknown tool: {params['name']}")
        call = ServerCall(
            ctx=ctx,
            bus=bus,
            arguments=params.get("arguments") or {},
            responses=params.get("inputResponses") or {},
            state=params.get("requestState"),
        )
        return complete() | await found.run(call)

    async def list_prompts(_ctx: Context, _params: Any) -> Any:
        described = [
            {"name": name, "description": name, "arguments": [{"name": word, "required": True} for word in words]}
            for name, words in PROMPTS.items()
        ]
        return cached(prompts=described)

    async def get_prompt(ctx: Context, _params: Any) -> Any:
        params = ctx.params or {}
        return prompt(params["name"], params.get("arguments") or {}, params.get("inputResponses") or {})

    async def list_resources(_ctx: Context, _params: Any) -> Any:
        described = [{"uri": uri, "name": uri, "mimeType": has["mimeType"]} for uri, has in RESOURCES.items()]
        return cached(resources=described)

    async def list_templates(_ctx: Context, _params: Any) -> Any:
        described = [{"uriTemplate": TEMPLATE, "name": "template", "mimeType": "application/json"}]
        return cached(resourceTemplates=described)

    async def read_resource(_ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        return resource(str(params.uri))

    async def nothing(_ctx: Context, _params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def suggest(_ctx: Context, _params: Any) -> Any:
        return complete(completion={"values": [], "total": 0, "hasMore": False})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        server = EverythingServer(
            "everything",
            version="1.0",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
            on_subscribe_resource=nothing,
            on_unsubscribe_resource=nothing,
            on_completion=suggest,
            on_set_logging_level=nothing,
            on_subscriptions_listen=ListenHandler(bus),
        )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=server.name))
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(128)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    app = build().streamable_http_app(event_store=EventLog(), retry_interval=100)
    # httptools leaves the spaces around a header value that the suite expects to be trimmed; h11 does not.
    config = uvicorn.Config(app, http="h11", log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
