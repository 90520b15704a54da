"""OpenRouter's dialect of OpenAI's Chat Completions API: `POST /api/v1/chat/completions`.

In: as in `openai_chat`. Out: the same with the name of who really answered, thoughts as `reasoning` and
`reasoning_details`, always a count with what it cost, and comments that keep the line open. An error has a number, and
may come in the body of an answer that began well.
"""

from __future__ import annotations

from typing import Any

from toolcrib.testing.conversation import Turn
from toolcrib.testing.openai_chat import OpenAIChat
from toolcrib.testing.wire import Message

COMMENT = ": OPENROUTER PROCESSING"
PROVIDER = "Scripted"
CREDITS_PER_TOKEN = 0.000001


class OpenRouter(OpenAIChat):
    base = "/api/v1"

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> list[Message]:
        # It counts for everyone, asked or not.
        return [COMMENT, *super().write(turn, path, {**body, "stream_options": {"include_usage": True}})]

    def whole(self, turn: Turn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        told = super().whole(turn, path, body)
        if told is None or turn.cut is None or not turn.cut.status:
            return told
        return {**self._head(turn, body, "chat.completion"), "choices": None, "error": _late(turn.cut.status)}

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        return {"error": {"message": message, "code": status, "metadata": {"provider_name": PROVIDER}}}

    def interruption(self, status: int, turn: Turn, body: dict[str, Any]) -> Message:
        over = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "native_finish_reason": "error"}
        return {**self._head(turn, body, "chat.completion.chunk"), "error": _late(status), "choices": [over]}

    def _head(self, turn: Turn, body: dict[str, Any], kind: str) -> dict[str, Any]:
        told = super()._head(turn, body, kind)
        return {**told, "id": f"gen-{turn.id}", "provider": PROVIDER}

    def _choice(self, turn: Turn, *, over: bool = False, **said: Any) -> dict[str, Any]:
        choice = super()._choice(turn, over=over, **said)
        return {**choice, "native_finish_reason": choice["finish_reason"]}

    def _thoughts(self, text: str) -> dict[str, Any]:
        detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
        return {"reasoning": text, "reasoning_details": [detail]}

    def _usage(self, turn: Turn) -> dict[str, Any]:
        counted = super()._usage(turn)
        cost = round(counted["total_tokens"] * CREDITS_PER_TOKEN, 6)
        return {
            **counted,
            "prompt_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
            "cost": cost,
            "is_byok": False,
            "cost_details": {"upstream_inference_cost": cost},
        }


def _late(status: int) -> dict[str, Any]:
    return {"code": status, "message": "Provider disconnected unexpectedly, as scripted"}
