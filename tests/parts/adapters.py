"""The adapters of all providers, each used in the same way with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from toolcrib.agent_loop.models.opening import open_model
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.catalog.names import Names
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.tool import Tool, decode_definition
from toolcrib.testing import ScriptedModel

MODELS = {
    "openai": "openai:gpt-5",
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5-5",
    "google": "google:gemini-3-pro",
    "openrouter": "openrouter:anthropic/claude-sonnet-4.5",
}
LIMIT = 60.0


def options(provider: str, model: ScriptedModel, /, **more: Any) -> AgentOptions:
    return AgentOptions(**{"model": MODELS[provider], "base_url": model.url, "environ": {}, **more})


def offer(name: str, schema: dict[str, Any], **by_provider: dict[str, Any]) -> OfferedTool:
    definition = json.dumps({"name": name, "description": f"Does {name}.", "inputSchema": schema}).encode()
    own, fields = decode_definition(definition)
    names = Names(plain=own, mcp=f"mcp_s_{own}", server=f"s_{own}", display=f"s:{own}")
    tool = Tool(server="s", name=own, fields=fields, names=names)
    return OfferedTool(tool=tool, name=own, description=f"Does {own}.", schema=schema, options=by_provider)


async def ask(provider: str, model: ScriptedModel, offers: Mapping[str, OfferedTool], /, **more: Any) -> str:
    """One request, through the adapter alone."""
    schemas = {name: dict(one.schema) for name, one in offers.items()}
    tools = [ToolDefinition(name=name, parameters_json_schema=schemas[name], strict=False) for name in schemas]
    given = ModelRequestParameters(function_tools=tools)
    chosen = options(provider, model, **more)
    async with (
        asyncio.timeout(LIMIT),
        open_model(chosen, offers, lambda *_: None) as asked,
        asked.request_stream([ModelRequest.user_text_prompt("go")], None, given) as stream,
    ):
        async for _ in stream:
            pass
        return stream.get().text or ""


def connections(model: ScriptedModel) -> list[str]:
    """The open connections to the model."""
    port = urlsplit(model.url).port
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [one[2] for one in fields if one[2].endswith(f":{port:04X}") and one[3] == "01"]
