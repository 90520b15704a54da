"""The tools that the official conformance scenarios call by name.

In: a `ServerCall` (arguments, the client's input responses, the request's state and context). Out: a result as JSON.
`everything_server.py` puts them on the wire; names, texts and schemas are what the scenarios look for.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from asked import CAPITAL, CHOICES, CONFIRM, DEFAULTS, NAME, ROOTS, STEPS, Json, form, sample
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged
from mcp_types import SamplingMessage, TextContent

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
MISSING_CAPABILITY = -32021
STEP = 0.05
"""Seconds between two notices of one call: the scenarios ask for about 50 ms."""


@dataclass(frozen=True, kw_only=True)
class ServerCall:
    ctx: ServerRequestContext[Any, Any]
    bus: InMemorySubscriptionBus
    arguments: Json
    responses: Json
    state: str | None

    def declared(self, capability: str) -> bool:
        declared = self.ctx.session.client_capabilities
        return declared is not None and getattr(declared, capability) is not None

    async def log(self, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await self.ctx.session.send_log_message("info", text, related_request_id=self.ctx.request_id)

    def answer_to(self, key: str, field: str) -> Any:
        """One field of an accepted elicitation; None when the answer is missing or is not one."""
        response = self.responses.get(key)
        if not isinstance(response, dict) or response.get("action") != "accept":
            return None
        content = response.get("content")
        return content.get(field) if isinstance(content, dict) else None


@dataclass(frozen=True, kw_only=True)
class ServerTool:
    name: str
    description: str
    run: Callable[[ServerCall], Awaitable[Json]]
    schema: Json

    def definition(self) -> Json:
        return {"name": self.name, "description": self.description, "inputSchema": self.schema}


TOOLS: dict[str, ServerTool] = {}


def tool(
    description: str, schema: Json | None = None, name: str = ""
) -> Callable[[Callable[[ServerCall], Awaitable[Json]]], Callable[[ServerCall], Awaitable[Json]]]:
    def register(run: Callable[[ServerCall], Awaitable[Json]]) -> Callable[[ServerCall], Awaitable[Json]]:
        made = ServerTool(
            name=name or f"test_{run.__name__}",
            description=description,
            run=run,
            schema=schema or {"type": "object", "properties": {}},
        )
        TOOLS[made.name] = made
        return run

    return register


def text(value: str) -> Json:
    return {"content": [{"type": "text", "text": value}]}


def image() -> Json:
    return {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def embedded(uri: str, mime_type: str, value: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


def needs(state: str | None = None, **requests: Json) -> Json:
    asked: Json = {"resultType": "input_required", "inputRequests": requests}
    return asked if state is None else {**asked, "requestState": state}


# Plain results.


@tool("Answers with one text.")
async def simple_text(_call: ServerCall) -> Json:
    return text("This is a simple text response for testing.")


@tool("Answers with an image.")
async def image_content(_call: ServerCall) -> Json:
    return {"content": [image()]}


@tool("Answers with a sound.")
async def audio_content(_call: ServerCall) -> Json:
    return {"content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]}


@tool("Answers with a resource inside.")
async def embedded_resource(_call: ServerCall) -> Json:
    return {"content": [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]}


@tool("Answers with a text, an image and a resource.")
async def multiple_content_types(_call: ServerCall) -> Json:
    resource = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return {"content": [{"type": "text", "text": "Multiple content types test:"}, image(), resource]}


@tool("Answers with isError.")
async def error_handling(_call: ServerCall) -> Json:
    return {**text("This tool intentionally returns an error for testing"), "isError": True}


@tool("Logs three times while it runs.")
async def tool_with_logging(call: ServerCall) -> Json:
    for notice in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.log(notice)
        await asyncio.sleep(STEP)
    return text("Logged three times.")


@tool("Logs once, to those who asked for a level.")
async def logging_tool(call: ServerCall) -> Json:
    await call.log("One entry")
    return text("Logged once.")


@tool("Reports progress at 0, 50 and 100.")
async def tool_with_progress(call: ServerCall) -> Json:
    for done in (0, 50, 100):
        await call.ctx.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(STEP)
    return text("Progress was reported.")


@tool(
    "Has an argument that clients repeat in a header.",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def x_mcp_header(call: ServerCall) -> Json:
    return text(f"region={call.arguments.get('region', '')}")


@tool(
    "Has a schema with the less common words of JSON Schema 2020-12.",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    name="json_schema_2020_12_tool",
)
async def json_schema(call: ServerCall) -> Json:
    return text(json.dumps(call.arguments))


@tool("Works only for clients that can sample.")
async def missing_capability(call: ServerCall) -> Json:
    if not call.declared("sampling"):
        wanted = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_CAPABILITY, message="The client must be able to sample.", data=wanted)
    return text("The client can sample.")


@tool("Closes its event stream while it runs.")
async def reconnection(call: ServerCall) -> Json:
    await call.log("Before disconnect")
    if call.ctx.close_sse_stream is not None:
        await call.ctx.close_sse_stream()
    await asyncio.sleep(4 * STEP)
    await call.log("After reconnect")
    return text("The stream was closed and the call went on.")


@tool("Tells subscribers that the tools changed.")
async def trigger_tool_change(call: ServerCall) -> Json:
    await call.bus.publish(ToolsListChanged())
    return text("The tools changed.")


@tool("Tells subscribers that the prompts changed.")
async def trigger_prompt_change(call: ServerCall) -> Json:
    await call.bus.publish(PromptsListChanged())
    return text("The prompts changed.")


# Questions in the middle of a call: requests to a legacy client, results to a modern one.


async def _elicit(call: ServerCall, message: str, schema: Json) -> Json:
    if call.ctx.session.can_send_request:
        asked = await call.ctx.session.elicit_form(message, schema, related_request_id=call.ctx.request_id)
        got = {"action": asked.action, "content": asked.content}
    elif "answer" in call.responses:
        got = call.responses["answer"]
    else:
        return needs(answer=form(message, schema))
    return text(f"Elicitation completed: action={got['action']}, content={json.dumps(got.get('content'))}")


@tool("Asks the client's model.", {"type": "object", "properties": {"prompt": {"type": "string"}}})
async def sampling(call: ServerCall) -> Json:
    if call.ctx.session.can_send_request:
        prompt = SamplingMessage(role="user", content=TextContent(type="text", text=call.arguments["prompt"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            asked = await call.ctx.session.create_message(
                [prompt], max_tokens=100, related_request_id=call.ctx.request_id
            )
        return text(f"LLM response: {asked.content.text if isinstance(asked.content, TextContent) else asked.content}")
    if "answer" not in call.responses:
        return needs(answer=sample(call.arguments["prompt"]))
    return text(f"LLM response: {call.responses['answer']['content']['text']}")


@tool("Asks the person.", {"type": "object", "properties": {"message": {"type": "string"}}})
async def elicitation(call: ServerCall) -> Json:
    answer = {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]}
    return await _elicit(call, call.arguments["message"], answer)


@tool("Asks the person, with a default for each kind of value.")
async def elicitation_sep1034_defaults(call: ServerCall) -> Json:
    return await _elicit(call, "Who are you?", DEFAULTS)


@tool("Asks the person, with each kind of choice.")
async def elicitation_sep1330_enums(call: ServerCall) -> Json:
    return await _elicit(call, "What do you choose?", CHOICES)


# Questions of the modern era only.


@tool("Asks for a name.")
async def input_required_result_elicitation(call: ServerCall) -> Json:
    name = call.answer_to("user_name", "name")
    return text(f"Hello, {name}!") if name else needs(user_name=NAME)


@tool("Asks for a name while its stream is open.")
async def streaming_elicitation(call: ServerCall) -> Json:
    await call.ctx.session.report_progress(1, 2, "about to ask")
    return await input_required_result_elicitation(call)


@tool("Asks the client's model.")
async def input_required_result_sampling(call: ServerCall) -> Json:
    response = call.responses.get("capital_question")
    if isinstance(response, dict):
        return text(f"Model said: {response.get('content', {}).get('text')}")
    return needs(capital_question=CAPITAL)


@tool("Asks for the client's roots.")
async def input_required_result_list_roots(call: ServerCall) -> Json:
    response = call.responses.get("client_roots")
    if isinstance(response, dict):
        return text(f"Roots: {', '.join(root['uri'] for root in response.get('roots', []))}")
    return needs(client_roots=ROOTS)


@tool("Asks, and wants its state back.")
async def input_required_result_request_state(call: ServerCall) -> Json:
    if call.state == "asked-once" and "confirm" in call.responses:
        return text("state-ok: confirmed")
    return needs("asked-once", confirm=CONFIRM)


@tool("Refuses a state that was touched.")
async def input_required_result_tampered_state(call: ServerCall) -> Json:
    return await input_required_result_request_state(call)


@tool("Asks three things at once.")
async def input_required_result_multiple_inputs(call: ServerCall) -> Json:
    if {"user_name", "greeting", "client_roots"} <= call.responses.keys():
        return text("All three were answered.")
    questions = {"user_name": NAME, "greeting": sample("Greet me")}
    return needs("three", **questions, client_roots=ROOTS)


@tool("Asks one thing after another.")
async def input_required_result_multi_round(call: ServerCall) -> Json:
    came = json.loads(call.state) if call.state else {}
    name = call.answer_to("step1", "name") or came.get("name")
    colour = call.answer_to("step2", "color")
    if name and colour:
        return text(f"{name} likes {colour}.")
    if name:
        return needs(json.dumps({"name": name}), step2=STEPS[1])
    return needs(json.dumps({"asked": 1}), step1=STEPS[0])


@tool("Asks only what the client said it can answer.")
async def input_required_result_capabilities(call: ServerCall) -> Json:
    possible = {"sampling": sample("Say hello"), "elicitation": NAME}
    return needs("asked", **{name: question for name, question in possible.items() if call.declared(name)})
