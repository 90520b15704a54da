"""Anthropic's Messages API, as Claude Code and others use it: `POST /v1/messages`.

In: `tools`, and `messages` whose content blocks may be `tool_result`. Out: one message of `thinking`, `text` and
`tool_use` blocks. Deferred tools are listed by name in a reminder. The model finds them with the client's own
`ToolSearch`: its result refers to the found tools, and later requests have them in `tools`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from toolcrib.testing.conversation import (
    AnswerEnding,
    Invocation,
    ModelTool,
    ModelTurn,
    RequestConversation,
    ToolOffering,
    ToolOutput,
)
from toolcrib.testing.wire import Message, pieces, text_of

PREFIX = "toolu_"
SEARCH_TOOL = "ToolSearch"
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
SIGNATURE = "c2lnbmVk"
ENDINGS = {AnswerEnding.LENGTH: "max_tokens", AnswerEnding.FILTER: "refusal"}


class Anthropic:
    base = ""

    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == "/v1/messages"

    def read(self, body: dict[str, Any]) -> RequestConversation:
        messages = body["messages"]
        blocks = [(message["role"], block) for message in messages for block in _blocks(message)]
        texts = [(role, block["text"]) for role, block in blocks if block["type"] == "text"]
        if not all(text for _, text in texts):
            raise ValueError("messages: text content blocks must be non-empty")
        tools = tuple(ModelTool(name=tool["name"], definition=tool) for tool in body.get("tools", []))
        deferred = any(tool.name == SEARCH_TOOL for tool in tools)
        return RequestConversation(
            tools=tools,
            offering=ToolOffering.DEFERRED if deferred else ToolOffering.PLAIN,
            outputs=tuple(_results(messages)),
            found=tuple(tool for tool in tools if tool.definition.get("defer_loading")),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "assistant"),
        )

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
        head = {**_head(turn, body), "content": [], "stop_reason": None, "stop_sequence": None}
        stream: list[Message] = [
            {"type": "message_start", "message": {**head, "usage": {**_usage(turn), "output_tokens": 1}}},
            {"type": "ping"},
        ]
        for index, (opening, deltas) in enumerate(_growing(turn)):
            stream.append({"type": "content_block_start", "index": index, "content_block": opening})
            stream += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            stream.append({"type": "content_block_stop", "index": index})
        ended = {"stop_reason": _reason(turn), "stop_sequence": None}
        return [
            *stream,
            {"type": "message_delta", "delta": ended, "usage": _usage(turn)},
            {"type": "message_stop"},
        ]

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if body.get("stream"):
            return None
        ended = {"stop_reason": _reason(turn), "stop_sequence": None, "usage": _usage(turn)}
        return {**_head(turn, body), "content": _content(turn), **ended}

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ERRORS.get(status, "api_error"), "message": message}}

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        return self.refusal(status, "interrupted, as scripted")


def _results(messages: list[dict[str, Any]]) -> Iterator[ToolOutput]:
    """In the order of the calls. Like the service, it requires a result for each call, in the next message."""
    for place, (message, following) in enumerate(itertools.pairwise([{"content": []}, *messages, {"content": []}])):
        called = [block["id"] for block in _blocks(message) if block["type"] == "tool_use"]
        given = {block["tool_use_id"]: block for block in _blocks(following) if block["type"] == "tool_result"}
        if missing := [call for call in called if call not in given]:
            raise ValueError(
                f"messages.{place - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        if stray := sorted(given.keys() - set(called)):
            raise ValueError(
                f"messages.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(stray)}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        yield from (
            ToolOutput(call=call.removeprefix(PREFIX), text=text_of(given[call].get("content"))) for call in called
        )


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _head(turn: ModelTurn, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"msg_{turn.id}", "type": "message", "role": "assistant", "model": body.get("model", "scripted")}


def _usage(turn: ModelTurn) -> dict[str, Any]:
    return {
        "input_tokens": turn.usage.fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.usage.cached,
        "output_tokens": turn.usage.output,
    }


def _reason(turn: ModelTurn) -> str:
    return turn.stop_reason or ENDINGS.get(turn.ending) or ("tool_use" if turn.invocations else "end_turn")


def _content(turn: ModelTurn) -> list[dict[str, Any]]:
    if any(call.garbled for call in turn.invocations):
        raise ValueError("With Anthropic, arguments that are not JSON are only possible in a stream.")
    return [
        *([{"type": "thinking", "thinking": turn.thinking, "signature": SIGNATURE}] if turn.thinking else []),
        *([{"type": "text", "text": turn.text}] if turn.text else []),
        *({**_call(call), "input": _input(call)} for call in turn.invocations),
    ]


def _call(invocation: Invocation) -> dict[str, Any]:
    name = SEARCH_TOOL if invocation.searches else invocation.name
    return {"type": "tool_use", "id": PREFIX + invocation.id, "name": name, "input": {}}


def _input(invocation: Invocation) -> Any:
    if invocation.searches:
        return {"query": invocation.name.replace("_", " "), "max_results": 8}
    return invocation.arguments


def _growing(turn: ModelTurn) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The start of each block in a stream, and its deltas."""
    if turn.thinking:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(turn.thinking)]
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if turn.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(turn.text)]
    for call in turn.invocations:
        written = call.garbled or json.dumps(_input(call))
        yield _call(call), [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(written))]
