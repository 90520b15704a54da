"""Google's Gemini API, as Gemini CLI uses it: `:streamGenerateContent?alt=sse` and `:generateContent`.

In: `tools[].functionDeclarations`, and `contents` whose parts may be `functionResponse`. Out: candidates whose parts
are thoughts, text and `functionCall`s, which the real service streams whole.
"""

from __future__ import annotations

from typing import Any

from parts.models.conversation import Conversation, Offered, Result, Turn
from parts.models.server import pieces

ERRORS = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


class Google:
    def is_turn(self, path: str) -> bool:
        return ":streamGenerateContent" in path or ":generateContent" in path

    def read(self, body: dict[str, Any]) -> Conversation:
        contents = [(content.get("role"), content.get("parts", [])) for content in body.get("contents", [])]
        parts = [(role, part) for role, several in contents for part in several]
        texts = [(role, part["text"]) for role, part in parts if "text" in part and not part.get("thought")]
        declared = [tool for group in body.get("tools", []) for tool in group.get("functionDeclarations", [])]
        answers = [part["functionResponse"] for _, part in parts if "functionResponse" in part]
        return Conversation(
            tools=tuple(Offered(name=tool["name"], definition=tool) for tool in declared),
            outputs=tuple(Result(call=answer["id"], text=_text(answer["response"])) for answer in answers),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "model"),
        )

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        *before, last = _parts(turn)
        # The count so far comes with every part; the whole only with the last.
        early = {"promptTokenCount": turn.usage.read, "totalTokenCount": turn.usage.read}
        return [
            *(_message([part], early) for part in before),
            _message([last], _usage(turn), finishReason="STOP"),
        ]

    def whole(self, turn: Turn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if ":streamGenerateContent" in path:
            return None
        return _message(_parts(turn), _usage(turn), finishReason="STOP")

    def refusal(self, status: int) -> dict[str, Any]:
        told = {"code": status, "message": "refused, as scripted", "status": ERRORS.get(status, "UNAVAILABLE")}
        return {"error": told}


def _parts(turn: Turn) -> list[dict[str, Any]]:
    return [
        *({"text": piece, "thought": True} for piece in pieces(turn.thinking)),
        *({"text": piece} for piece in pieces(turn.text)),
        *(
            {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}, "thoughtSignature": "c2lnbmVk"}
            for call in turn.invocations
        ),
    ]


def _message(parts: list[dict[str, Any]], usage: dict[str, Any], **more: str) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **more}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "promptTokenCount": turn.usage.read,
        "cachedContentTokenCount": turn.usage.cached,
        "candidatesTokenCount": turn.usage.output - turn.usage.thought,
        "thoughtsTokenCount": turn.usage.thought,
        "totalTokenCount": turn.usage.read + turn.usage.output,
    }


def _text(response: dict[str, Any]) -> str:
    """`output` or `error`, each a text."""
    return "\n".join(map(str, response.values()))
