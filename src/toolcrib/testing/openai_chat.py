"""OpenAI's Chat Completions API, and OpenRouter's dialect of it.

In: `tools`, and `messages`; those with the role `tool` are results. Out: one completion, whole or in chunks.
OpenRouter adds the name of the upstream provider, thinking as `reasoning` and `reasoning_details`, the usage with its
cost, and comments that keep the connection open. Its errors have numeric codes, and may come in the body of an answer
with status 200.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolcrib.testing.conversation import (
    AnswerEnding,
    Invocation,
    ModelTool,
    ModelTurn,
    RequestConversation,
    ToolOutput,
)
from toolcrib.testing.wire import Message, pieces, text_of

DONE = "data: [DONE]"
CREATED = 1_700_000_000
"""Constant, so that a repeated request gets the same answer."""
ENDINGS = {AnswerEnding.LENGTH: "length", AnswerEnding.FILTER: "content_filter"}
ERRORS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "forbidden"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


class OpenAIChat:
    base = "/v1"

    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == f"{self.base}/chat/completions"

    def read(self, body: dict[str, Any]) -> RequestConversation:
        messages: list[dict[str, Any]] = body["messages"]
        texts = [(message["role"], text_of(message["content"])) for message in messages if message.get("content")]
        return RequestConversation(
            # The others are built into the service, such as web search.
            tools=tuple(
                ModelTool(name=tool[tool["type"]]["name"], definition=tool)
                for tool in body.get("tools") or []
                if tool["type"] in tool
            ),
            outputs=tuple(_results(messages)),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "assistant"),
        )

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
        head = self._head(turn, body, "chat.completion.chunk")
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        # If the usage is requested, every chunk has the field.
        empty = {"usage": None} if wants_usage else {}
        chunks = [{**head, "choices": [self._choice(turn, delta=delta)], **empty} for delta in self._deltas(turn)]
        chunks.append({**head, "choices": [self._choice(turn, delta={}, over=True)], **empty})
        counted = [{**head, "choices": [], "usage": self._usage(turn)}] if wants_usage else []
        return [*chunks, *counted, DONE]

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if body.get("stream"):
            return None
        message = {"role": "assistant", "content": turn.text or None, "refusal": None}
        calls = [_call(call, call.written) for call in turn.invocations]
        thoughts = self._thoughts(turn.thinking) if turn.thinking else {}
        whole = {**message, **thoughts, **({"tool_calls": calls} if calls else {})}
        choice = self._choice(turn, message=whole, over=True)
        return {**self._head(turn, body, "chat.completion"), "choices": [choice], "usage": self._usage(turn)}

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        return error(status, message)

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        return self.refusal(status, "The server had an error while processing your request, as scripted")

    def _head(self, turn: ModelTurn, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{turn.id}",
            "object": kind,
            "created": CREATED,
            "model": body.get("model", "scripted"),
            "service_tier": "default",
            "system_fingerprint": "fp_scripted",
        }

    def _choice(self, turn: ModelTurn, *, over: bool = False, **said: Any) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": _reason(turn) if over else None}

    def _deltas(self, turn: ModelTurn) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": "" if turn.text or not turn.invocations else None, "refusal": None}
        yield from (self._thoughts(piece) for piece in pieces(turn.thinking))
        yield from ({"content": piece} for piece in pieces(turn.text))
        for index, call in enumerate(turn.invocations):
            yield {"tool_calls": [{"index": index, **_call(call, "")}]}
            for piece in pieces(call.written):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _thoughts(self, text: str) -> dict[str, Any]:
        return {"reasoning_content": text}

    def _usage(self, turn: ModelTurn) -> dict[str, Any]:
        return {
            "prompt_tokens": turn.usage.read,
            "completion_tokens": turn.usage.output,
            "total_tokens": turn.usage.read + turn.usage.output,
            "prompt_tokens_details": {"cached_tokens": turn.usage.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": turn.usage.thought,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def error(status: int, message: str) -> dict[str, Any]:
    kind, code = ERRORS.get(status, ("server_error", None))
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _results(messages: list[dict[str, Any]]) -> Iterator[ToolOutput]:
    """In the order of the calls. Like the service, it requires a result for each call, right after it."""
    due: dict[str, str | None] = {}
    for message in messages:
        if message["role"] != "tool":
            yield from _settled(due)
            due = {call["id"]: None for call in message.get("tool_calls") or []}
        elif message["tool_call_id"] in due:
            due[message["tool_call_id"]] = text_of(message["content"])
        else:
            raise ValueError(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                f"'tool_calls': {message['tool_call_id']}"
            )
    yield from _settled(due)


def _settled(due: Mapping[str, str | None]) -> Iterator[ToolOutput]:
    if missing := [call for call, text in due.items() if text is None]:
        raise ValueError(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
        )
    yield from (ToolOutput(call=call, text=text or "") for call, text in due.items())


def _call(invocation: Invocation, arguments: str) -> Mapping[str, Any]:
    return {
        "id": invocation.id,
        "type": "function",
        "function": {"name": invocation.name, "arguments": arguments},
    }


def _reason(turn: ModelTurn) -> str:
    return turn.stop_reason or ENDINGS.get(turn.ending) or ("tool_calls" if turn.invocations else "stop")


COMMENT = ": OPENROUTER PROCESSING"
PROVIDER = "Scripted"
CREDITS_PER_TOKEN = 0.000001


class OpenRouter(OpenAIChat):
    base = "/api/v1"

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
        # It always sends the usage.
        return [COMMENT, *super().write(turn, path, {**body, "stream_options": {"include_usage": True}})]

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        answer = super().whole(turn, path, body)
        if answer is None or turn.cut is None or not turn.cut.status:
            return answer
        return {**self._head(turn, body, "chat.completion"), "choices": None, "error": _late(turn.cut.status)}

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        return {"error": {"message": message, "code": status, "metadata": {"provider_name": PROVIDER}}}

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        over = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "native_finish_reason": "error"}
        return {**self._head(turn, body, "chat.completion.chunk"), "error": _late(status), "choices": [over]}

    def _head(self, turn: ModelTurn, body: dict[str, Any], kind: str) -> dict[str, Any]:
        head = super()._head(turn, body, kind)
        return {**head, "id": f"gen-{turn.id}", "provider": PROVIDER}

    def _choice(self, turn: ModelTurn, *, over: bool = False, **said: Any) -> dict[str, Any]:
        choice = super()._choice(turn, over=over, **said)
        return {**choice, "native_finish_reason": choice["finish_reason"]}

    def _thoughts(self, text: str) -> dict[str, Any]:
        detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
        return {"reasoning": text, "reasoning_details": [detail]}

    def _usage(self, turn: ModelTurn) -> dict[str, Any]:
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
