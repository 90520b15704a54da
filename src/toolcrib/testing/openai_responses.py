"""OpenAI's Responses API, as Codex and others use it: `POST /v1/responses`.

In: `tools` (functions, some grouped in namespaces; sometimes among the `input` items instead) and `input`. Out: a
response with reasoning, a message and calls. A `tool_search_call` finds deferred tools; its output has their
definitions. In code mode, the only tool is `exec`, which takes JavaScript.
"""

from __future__ import annotations

import json
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
from toolcrib.testing.openai_chat import CREATED, error
from toolcrib.testing.wire import Message, pieces

CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
OUTPUTS = ("function_call_output", "custom_tool_call_output", "mcp_tool_call_output")
CODE_TOOL = "exec"
ENDINGS = {AnswerEnding.LENGTH: "max_output_tokens", AnswerEnding.FILTER: "content_filter"}
STATUSES = ("completed", "failed", "incomplete")
"""Stop reasons that are the status of a response; all others are the reason of an incomplete one."""
LAST = 999
"""The sequence number of an interruption."""
JOINT = "__"
"""Between the namespace and the name of a tool in a program."""


class OpenAIResponses:
    base = "/v1"

    def is_turn(self, path: str) -> bool:
        return path.partition("?")[0] == "/v1/responses"

    def read(self, body: dict[str, Any]) -> RequestConversation:
        items = _input(body)
        _check(items)
        # The type of a message is optional.
        messages = [item for item in items if item.get("type", "message") == "message"]
        texts = [(message["role"], text) for message in messages for text in _texts(message["content"])]
        return RequestConversation(
            tools=tuple(_offered(_tools(body))),
            offering=_offering(body),
            outputs=tuple(result for item in items for result in _results(item)),
            found=tuple(tool for item in items for tool in _found(item)),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "assistant"),
        )

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
        items = _items(turn, _offering(body))
        begun = _response(turn, body, status="in_progress")
        stream: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(items):
            stream += _stream(index, item)
        ended = _ended(turn, body)
        stream.append({"type": f"response.{ended['status']}", "response": ended})
        return [{**message, "sequence_number": number} for number, message in enumerate(stream)]

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return None if body.get("stream") else _ended(turn, body)

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        return error(status, message)

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        failed = _response(turn, body, status="failed", error={"code": code, "message": "interrupted, as scripted"})
        return {"type": "response.failed", "response": failed, "sequence_number": LAST}


def _response(turn: ModelTurn, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{turn.id}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "model": body.get("model", "scripted"),
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": [],
        "usage": None,
        **fields,
    }


def _ended(turn: ModelTurn, body: dict[str, Any]) -> dict[str, Any]:
    fields = {"output": _items(turn, _offering(body)), "usage": _usage(turn)}
    if turn.stop_reason in STATUSES:
        return _response(turn, body, status=turn.stop_reason, **fields)
    if reason := turn.stop_reason or ENDINGS.get(turn.ending):
        return _response(turn, body, status="incomplete", incomplete_details={"reason": reason}, **fields)
    return _response(turn, body, **fields)


def _input(body: dict[str, Any]) -> list[dict[str, Any]]:
    items = body["input"]
    return items if isinstance(items, list) else [{"role": "user", "content": items}]


def _check(items: list[dict[str, Any]]) -> None:
    """Like the service, it requires an output for each call, and a call for each output."""
    called = {item["call_id"] for item in items if item.get("type") in CALLS}
    answered = {item["call_id"] for item in items if item.get("type") in CALLS.values()}
    if missing := sorted(called - answered):
        raise ValueError(f"No tool output found for function call {missing[0]}.")
    if stray := sorted(answered - called):
        raise ValueError(f"No tool call found for function call output with call_id {stray[0]}.")


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    among = [item for item in _input(body) if item.get("type") == "additional_tools"]
    return [*body.get("tools", []), *(tool for item in among for tool in item["tools"])]


def _offering(body: dict[str, Any]) -> ToolOffering:
    tools = _tools(body)
    if any(inner["name"] == CODE_TOOL for tool in tools for inner in tool.get("tools", [])):
        return ToolOffering.CODE
    return ToolOffering.DEFERRED if any(tool["type"] == "tool_search" for tool in tools) else ToolOffering.PLAIN


def _offered(tools: list[dict[str, Any]]) -> list[ModelTool]:
    plain = [tool for tool in tools if tool["type"] in ("function", "custom")]
    groups = [tool for tool in tools if tool["type"] == "namespace"]
    return [
        *(ModelTool(name=tool["name"], definition=tool) for tool in plain),
        *(
            ModelTool(name=tool["name"], definition=tool, namespace=group["name"])
            for group in groups
            for tool in group["tools"]
        ),
    ]


def _results(item: dict[str, Any]) -> list[ToolOutput]:
    if item.get("type") == "tool_search_output":
        return [ToolOutput(call=item["call_id"], text=json.dumps(item["tools"]))]
    if item.get("type") not in OUTPUTS:
        return []
    texts = _texts(item["output"])
    if item["type"] == "custom_tool_call_output" and len(texts) > 1 and texts[0].startswith("Script completed"):
        # The head, then one text for each call of the program.
        return [ToolOutput(call=item["call_id"], text=text) for text in texts[1:]]
    return [ToolOutput(call=item["call_id"], text="\n".join(texts))]


def _texts(output: Any) -> list[str]:
    if isinstance(output, str):
        return [output]
    return [part.get("text", f"({part['type']})") for part in output or []]


def _found(item: dict[str, Any]) -> list[ModelTool]:
    if item.get("type") == "tool_search_output":
        return _offered(item["tools"])
    if item.get("type") != "custom_tool_call_output":
        return []
    # The output of our own search program: each tool's full name and description.
    lists = [json.loads(text) for text in _texts(item["output"]) if text.startswith(_LISTED)]
    return [ModelTool(name=tool["name"], definition=tool) for listed in lists for tool in listed["tools_found"]]


_LISTED = '{"tools_found":'


def _items(turn: ModelTurn, offering: ToolOffering) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.thinking:
        summary = [{"type": "summary_text", "text": turn.thinking}]
        items.append({"type": "reasoning", "id": f"rs_{turn.id}", "summary": summary, "encrypted_content": "c2VjcmV0"})
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append(
            {"type": "message", "id": f"msg_{turn.id}", "role": "assistant", "status": "completed", "content": content}
        )
    if turn.invocations and offering is ToolOffering.CODE:
        program = "\n".join(map(_line, turn.invocations))
        return [*items, _custom(turn.invocations[0].id, CODE_TOOL, program)]
    return [*items, *map(_call, turn.invocations)]


def _call(invocation: Invocation) -> dict[str, Any]:
    if invocation.searches:
        return {
            "type": "tool_search_call",
            "id": f"ts_{invocation.id}",
            "call_id": invocation.id,
            "status": "completed",
            "execution": "client",
            "arguments": {"query": invocation.query or invocation.name.replace("_", " "), "limit": 8},
        }
    if isinstance(invocation.arguments, str):
        return _custom(invocation.id, invocation.name, invocation.arguments)
    return {
        "type": "function_call",
        "id": f"fc_{invocation.id}",
        "call_id": invocation.id,
        "name": invocation.name,
        "arguments": invocation.written,
        "status": "completed",
        **({"namespace": invocation.namespace} if invocation.namespace else {}),
    }


def _custom(call_id: str, name: str, text: str) -> dict[str, Any]:
    return {
        "type": "custom_tool_call",
        "id": f"ctc_{call_id}",
        "call_id": call_id,
        "name": name,
        "input": text,
        "status": "completed",
    }


def _line(invocation: Invocation) -> str:
    """A call or a search, as a line of a program."""
    if invocation.searches:
        ending = json.dumps(invocation.name)
        return f"text({{tools_found: ALL_TOOLS.filter(tool => tool.name.endsWith({ending}))}});"
    name = f"{invocation.namespace}{JOINT}{invocation.name}" if invocation.namespace else invocation.name
    return f"text(await tools.{name}({json.dumps(invocation.arguments)}));"


def _stream(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that build up an item."""
    about = {"item_id": item["id"], "output_index": index}
    done = {"type": "response.output_item.done", "output_index": index, "item": item}

    def added(**empty: Any) -> dict[str, Any]:
        begun = {**item, **empty, **({"status": "in_progress"} if "status" in item else {})}
        return {"type": "response.output_item.added", "output_index": index, "item": begun}

    if item["type"] == "message":
        [part] = item["content"]
        place = {**about, "content_index": 0}
        return [
            added(content=[]),
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            *(
                {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
                for piece in pieces(part["text"])
            ),
            {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **place, "part": part},
            done,
        ]
    if item["type"] == "reasoning":
        [part] = item["summary"]
        place = {**about, "summary_index": 0}
        return [
            added(summary=[]),
            {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}},
            *(
                {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
                for piece in pieces(part["text"])
            ),
            {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]},
            {"type": "response.reasoning_summary_part.done", **place, "part": part},
            done,
        ]
    if item["type"] == "tool_search_call":
        return [added(), done]
    name, key = (
        ("function_call_arguments", "arguments")
        if item["type"] == "function_call"
        else ("custom_tool_call_input", "input")
    )
    return [
        added(**{key: ""}),
        *({"type": f"response.{name}.delta", **about, "delta": piece} for piece in pieces(item[key])),
        {"type": f"response.{name}.done", **about, key: item[key]},
        done,
    ]


def _usage(turn: ModelTurn) -> dict[str, Any]:
    return {
        "input_tokens": turn.usage.read,
        "input_tokens_details": {"cached_tokens": turn.usage.cached, "cache_write_tokens": 0},
        "output_tokens": turn.usage.output,
        "output_tokens_details": {"reasoning_tokens": turn.usage.thought},
        "total_tokens": turn.usage.read + turn.usage.output,
    }
