"""Google's Gemini API, as Gemini CLI uses it: `:streamGenerateContent?alt=sse` and `:generateContent`.

In: `tools[].functionDeclarations`, and `contents` whose parts may be `functionResponse`. Out: one candidate of text or
a `functionCall`.
"""

from __future__ import annotations

import json
from typing import Any

from parts.models.script import Conversation, Offered, Turn
from parts.models.server import events


class Google:
    def is_turn(self, path: str) -> bool:
        return ":streamGenerateContent" in path or ":generateContent" in path

    def read(self, body: dict[str, Any]) -> Conversation:
        parts = [part for content in body.get("contents", []) for part in content.get("parts", [])]
        declared = [tool for group in body.get("tools", []) for tool in group.get("functionDeclarations", [])]
        return Conversation(
            tools=tuple(Offered(name=tool["name"], definition=tool) for tool in declared),
            results=tuple(_text(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part),
        )

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
        part: dict[str, Any] = {"text": turn.text}
        if turn.tool is not None:
            part = {"functionCall": {"id": turn.call_id, "name": turn.tool.name, "args": turn.arguments}}
        whole = {
            "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
            "modelVersion": "scripted",
        }
        if ":streamGenerateContent" in path:
            return "text/event-stream", events(whole, named=False)
        return "application/json", json.dumps(whole).encode()


def _text(response: dict[str, Any]) -> str:
    """`output` or `error`, each a text."""
    return "\n".join(map(str, response.values()))
