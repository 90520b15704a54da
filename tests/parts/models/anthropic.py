"""Anthropic's Messages API, as Claude Code uses it: `POST /v1/messages`, streamed.

In: `tools`, and `messages` whose content blocks may be `tool_result`. Out: one message of text or `tool_use`.
"""

from __future__ import annotations

import json
from typing import Any

from parts.models.script import Conversation, Offered, Turn
from parts.models.server import events


class Anthropic:
    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == "/v1/messages"

    def read(self, body: dict[str, Any]) -> Conversation:
        blocks = [
            block
            for message in body.get("messages", [])
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        return Conversation(
            tools=tuple(Offered(name=tool["name"], definition=tool) for tool in body.get("tools", [])),
            results=tuple(_text(block.get("content")) for block in blocks if block["type"] == "tool_result"),
        )

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
        if turn.tool is None:
            block, reason = {"type": "text", "text": turn.text}, "end_turn"
        else:
            block = {"type": "tool_use", "id": f"toolu_{turn.call_id}", "name": turn.tool.name, "input": turn.arguments}
            reason = "tool_use"
        usage = {"input_tokens": 10, "output_tokens": 5}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "scripted")}
        if not body.get("stream"):
            whole = {**head, "content": [block], "stop_reason": reason, "stop_sequence": None, "usage": usage}
            return "application/json", json.dumps(whole).encode()
        opening = {**block, "text": ""} if turn.tool is None else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": turn.text}
            if turn.tool is None
            else {"type": "input_json_delta", "partial_json": json.dumps(turn.arguments)}
        )
        started = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return "text/event-stream", events(
            {"type": "message_start", "message": started},
            {"type": "content_block_start", "index": 0, "content_block": opening},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
            named=True,
        )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", f"({part['type']})") for part in content or [])
