"""What stands on the wire for each tool, seen by the far side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from parts.adapters import MODELS, ask, offer, options
from toolcrib.agent_loop.models.opening import open_model
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Definition
from toolcrib.testing import Call, Say, scripted

each_provider = pytest.mark.parametrize("provider", MODELS)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Kept",
    "properties": {
        "mode": {"enum": ["a", "b"], "default": "a"},
        "who": {"$ref": "#/$defs/who"},
        "count": {"type": ["integer", "null"], "minimum": 1},
        "nested": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}, "required": ["x"]},
    },
    "required": ["who"],
    "$defs": {"who": {"type": "string", "pattern": "^[a-z]+$"}},
}
BY_PROVIDER: dict[str, dict[str, Any]] = {
    "openai": {"strict": True},
    "anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    "google": {"behavior": "BLOCKING"},
}


def definition(provider: str, one: OfferedTool) -> Definition:
    if provider == "anthropic":
        return anthropic.definition(one)
    if provider == "google":
        return google.definition(one)
    return openai.definition(one, "responses" if provider == "openai-responses" else "chat")


def sent(provider: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = body["tools"]
    return [function for tool in tools for function in tool["functionDeclarations"]] if provider == "google" else tools


@pytest.mark.req("ENG-7")
@each_provider
async def test_a_tool_stands_on_the_wire_as_the_format_writes_it_provider_options_included(provider: str) -> None:
    offers = {"plain": offer("plain", SCHEMA), "with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, [Say("seen")]) as model:
        assert await ask(provider, model, offers) == "seen"
    plain, opted = sent(provider, model.bodies[0])
    # As JSON: `True` is not 1 there.
    assert json.dumps([plain, opted]) == json.dumps([definition(provider, one).wire for one in offers.values()])
    match provider:
        case "anthropic":
            assert opted["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
        case "google":
            assert opted["behavior"] == "BLOCKING"
        case "openai-responses":
            assert (plain["strict"], opted["strict"]) == (False, True)
        case _:
            assert opted["function"]["strict"] is True
            assert plain["function"].get("strict", False) is False


async def test_a_schema_that_pydantic_ai_would_write_out_or_refuse_goes_out_as_it_is() -> None:
    # For some makers' models it puts each reference's target in its place: here two to the power of forty.
    levels = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/d0"}},
        "$defs": {**levels, "d40": {"type": "string"}},
    }
    with scripted("openrouter", [Say("seen")]) as model:
        grown = {"grow": offer("grow", schema)}
        assert await ask("openrouter", model, grown, model="openrouter:qwen/qwen3-coder") == "seen"
    assert sent("openrouter", model.bodies[0])[0]["function"]["parameters"] == schema


async def test_a_name_that_google_does_not_take_is_another_on_the_wire_only() -> None:
    offers = {"3d_draw": offer("3d_draw", SCHEMA)}
    given = ModelRequestParameters(
        function_tools=[ToolDefinition(name="3d_draw", parameters_json_schema={"type": "object"})]
    )
    begun = ModelRequest.user_text_prompt("go")
    with scripted("google", [Call("3d_draw", {"who": "ann"}), Say("drawn")]) as model:
        async with open_model(options("google", model), offers, lambda *_: None) as asked:
            answer = await asked.request([begun], None, given)
            (call,) = answer.tool_calls
            result = ModelRequest(parts=[ToolReturnPart(call.tool_name, "a picture", call.tool_call_id)])
            async with asked.request_stream([begun, answer, result], None, given) as stream:
                assert [event async for event in stream]
                assert stream.get().text == "drawn"
    assert call.tool_name == "3d_draw"
    parts = [part for content in model.bodies[1]["contents"] for part in content["parts"]]
    names = [
        said["name"] for part in parts for said in (part.get("functionCall"), part.get("functionResponse")) if said
    ]
    assert [tool.name for tool in model.offered] == ["_3d_draw"]
    assert names == ["_3d_draw", "_3d_draw"]


@each_provider
async def test_what_had_to_be_adapted_can_be_told(provider: str) -> None:
    offers = {"with_options": offer("with_options", SCHEMA, **BY_PROVIDER)}
    with scripted(provider, []) as model:
        async with open_model(options(provider, model), offers, lambda *_: None) as asked:
            adapted = asked.definitions.adaptations
    assert adapted == definition(provider, offers["with_options"]).adaptations
    assert (adapted != ()) == provider.startswith(("open", "google"))
