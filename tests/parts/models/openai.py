"""OpenAI's Responses API, as Codex uses it: `POST /v1/responses`, streamed.

In: `tools` (functions, some grouped in namespaces) and `input` items. Out: a response with a message or a function
call.
"""

from __future__ import annotations

import json
from typing import Any

from parts.models.script import Conversation, Offered, Turn
from parts.models.server import events

OUTPUTS = ("function_call_output", "custom_tool_call_output", "mcp_tool_call_output")


class OpenAI:
    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == "/v1/responses"

    def read(self, body: dict[str, Any]) -> Conversation:
        tools = []
        for tool in body.get("tools", []):
            if tool["type"] == "function":
                tools.append(Offered(name=tool["name"], definition=tool))
            elif tool["type"] == "namespace":
                tools += [
                    Offered(name=inner["name"], definition=inner, namespace=tool["name"]) for inner in tool["tools"]
                ]
        outputs = [item for item in body.get("input", []) if item.get("type") in OUTPUTS]
        return Conversation(tools=tuple(tools), results=tuple(_text(item["output"]) for item in outputs))

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
        item: dict[str, Any]
        if turn.tool is None:
            content = [{"type": "output_text", "text": turn.text, "annotations": []}]
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        else:
            item = {
                "type": "function_call",
                "id": f"fc_{turn.call_id}",
                "call_id": turn.call_id,
                "name": turn.tool.name,
                "arguments": json.dumps(turn.arguments),
                "status": "completed",
                **({"namespace": turn.tool.namespace} if turn.tool.namespace else {}),
            }
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}
        return "text/event-stream", events(
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
            named=True,
        )


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(part.get("text", f"({part['type']})") for part in output or [])
