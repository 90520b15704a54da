"""Anthropic's Messages API, as Claude Code uses it: `POST /v1/messages`, streamed.

In: `tools`, and `messages` whose content blocks may be `tool_result`. Out: one message of `thinking`, `text` and
`tool_use` blocks. Deferred tools stand by name in a reminder, and are had by a call of the client's own `ToolSearch`:
its result refers to what it found, and from then on `tools` holds these.
"""

from __future__ import annotations

import json
from typing import Any

from parts.models.conversation import Conversation, Invocation, Offered, Offering, Result, Turn
from parts.models.server import pieces

PREFIX = "toolu_"
SEARCH_TOOL = "ToolSearch"
ERRORS = {429: "rate_limit_error", 529: "overloaded_error"}


class Anthropic:
    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == "/v1/messages"

    def read(self, body: dict[str, Any]) -> Conversation:
        blocks = [(message["role"], block) for message in body.get("messages", []) for block in _blocks(message)]
        texts = [(role, block["text"]) for role, block in blocks if block["type"] == "text"]
        results = {block["tool_use_id"]: block for _, block in blocks if block["type"] == "tool_result"}
        # In the order of the calls: results of one turn come as they are had.
        called = [block["id"] for _, block in blocks if block["type"] == "tool_use" and block["id"] in results]
        outputs = [Result(call=one.removeprefix(PREFIX), text=_text(results[one].get("content"))) for one in called]
        tools = tuple(Offered(name=tool["name"], definition=tool) for tool in body.get("tools", []))
        deferred = any(tool.name == SEARCH_TOOL for tool in tools)
        return Conversation(
            tools=tools,
            offering=Offering.DEFERRED if deferred else Offering.PLAIN,
            outputs=tuple(outputs),
            found=tuple(tool for tool in tools if tool.definition.get("defer_loading")),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "assistant"),
        )

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        head = {**_head(turn, body), "content": [], "stop_reason": None, "stop_sequence": None}
        stream: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**head, "usage": {**_usage(turn), "output_tokens": 1}}},
            {"type": "ping"},
        ]
        for index, block in enumerate(_content(turn)):
            opening, deltas = _pieces_of(block)
            stream.append({"type": "content_block_start", "index": index, "content_block": opening})
            stream += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            stream.append({"type": "content_block_stop", "index": index})
        ended = {"stop_reason": _reason(turn), "stop_sequence": None}
        return [
            *stream,
            {"type": "message_delta", "delta": ended, "usage": _usage(turn)},
            {"type": "message_stop"},
        ]

    def whole(self, turn: Turn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if body.get("stream"):
            return None
        ended = {"stop_reason": _reason(turn), "stop_sequence": None, "usage": _usage(turn)}
        return {**_head(turn, body), "content": _content(turn), **ended}

    def refusal(self, status: int) -> dict[str, Any]:
        kind = ERRORS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": f"{kind}, as scripted"}}


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", f"({part['type']})") for part in content or [])


def _head(turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"msg_{turn.id}", "type": "message", "role": "assistant", "model": body.get("model", "scripted")}


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "input_tokens": turn.usage.fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.usage.cached,
        "output_tokens": turn.usage.output,
    }


def _reason(turn: Turn) -> str:
    return "tool_use" if turn.invocations else "end_turn"


def _content(turn: Turn) -> list[dict[str, Any]]:
    return [
        *([{"type": "thinking", "thinking": turn.thinking, "signature": "c2lnbmVk"}] if turn.thinking else []),
        *([{"type": "text", "text": turn.text}] if turn.text else []),
        *({"type": "tool_use", **_call(invocation)} for invocation in turn.invocations),
    ]


def _call(invocation: Invocation) -> dict[str, Any]:
    if invocation.searches:
        return {
            "id": PREFIX + invocation.id,
            "name": SEARCH_TOOL,
            "input": {"query": invocation.name.replace("_", " "), "max_results": 8},
        }
    return {"id": PREFIX + invocation.id, "name": invocation.name, "input": invocation.arguments}


def _pieces_of(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins in a stream, and what is added to it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "thinking":
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]
    written = ["", *pieces(json.dumps(block["input"]))]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in written]
