"""Google's Gemini API, as Gemini CLI and others use it: `:streamGenerateContent?alt=sse` and `:generateContent`.

In: `tools[].functionDeclarations`, and `contents` whose parts may be `functionResponse`. Out: candidates whose parts
are thinking, text and `functionCall`s. The real service streams each call whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from toolcrib.testing.conversation import AnswerEnding, ModelTool, ModelTurn, RequestConversation, ToolOutput
from toolcrib.testing.wire import Message, pieces

ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
ENDINGS = {AnswerEnding.NATURAL: "STOP", AnswerEnding.LENGTH: "MAX_TOKENS", AnswerEnding.FILTER: "SAFETY"}
SIGNATURE = "c2lnbmVk"


class Google:
    base = ""

    def is_turn(self, path: str) -> bool:
        return ":streamGenerateContent" in path or ":generateContent" in path

    def read(self, body: dict[str, Any]) -> RequestConversation:
        contents = [(content.get("role"), content.get("parts", [])) for content in body.get("contents", [])]
        parts = [(role, part) for role, several in contents for part in several]
        texts = [(role, part["text"]) for role, part in parts if "text" in part and not part.get("thought")]
        declared = [tool for group in body.get("tools", []) for tool in group.get("functionDeclarations", [])]
        return RequestConversation(
            tools=tuple(ModelTool(name=tool["name"], definition=tool) for tool in declared),
            outputs=tuple(_results(contents)),
            asked=tuple(text for role, text in texts if role == "user"),
            said=tuple(text for role, text in texts if role == "model"),
        )

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> list[Message]:
        # Every part has the count so far; only the last has the complete one.
        early = {"promptTokenCount": turn.usage.read, "totalTokenCount": turn.usage.read}
        parts = _parts(turn, pieces)
        return [*(_message(turn, [part], early) for part in parts[:-1]), _last(turn, parts[-1:])]

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return None if ":streamGenerateContent" in path else _last(turn, _parts(turn, _whole))

    def refusal(self, status: int, message: str, retry_after: float | None = None) -> dict[str, Any]:
        error = {"code": status, "message": message, "status": ERRORS.get(status, "UNKNOWN")}
        if retry_after is None:
            return {"error": error}
        wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after:g}s"}
        return {"error": {**error, "details": [wait]}}

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        return self.refusal(status, "interrupted, as scripted")


def _results(contents: list[tuple[str | None, list[dict[str, Any]]]]) -> Iterator[ToolOutput]:
    """In the order of the calls. Like the service, it requires as many results as calls. A result without an id
    belongs to the first unanswered call with its name."""
    due: list[dict[str, Any]] = []
    given: list[dict[str, Any]] = []
    for role, parts in [*contents, ("model", [])]:
        if role != "model":
            came = [part["functionResponse"] for part in parts if "functionResponse" in part]
            # Gemini CLI sends a result twice when it resumes a session.
            given += [one for n, one in enumerate(came) if one not in came[:n] or not one.get("id")]
            continue
        if len(due) != len(given):
            raise ValueError(
                "Please ensure that the number of function response parts is equal to the number of function call "
                f"parts of the function call turn: there are {len(given)} and {len(due)}"
            )
        for call in due:
            mine = next((one for one in given if _answers(one, call)), None)
            if mine is None:
                raise ValueError(f"There is no function response for the function call {call['name']}")
            given.remove(mine)
            yield ToolOutput(call=call.get("id") or "", text=_text(mine["response"]))
        due = [part["functionCall"] for part in parts if "functionCall" in part]


def _answers(response: dict[str, Any], call: dict[str, Any]) -> bool:
    if response.get("id") and call.get("id"):
        return bool(response["id"] == call["id"])
    return bool(response["name"] == call["name"])


def _whole(text: str) -> list[str]:
    return [text] if text else []


def _parts(turn: ModelTurn, split: Callable[[str], list[str]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in split(turn.thinking)]
    parts += [{"text": piece} for piece in split(turn.text)]
    if any(call.garbled for call in turn.invocations):
        return parts
    calls = [{"id": call.id, "name": call.name, "args": call.arguments} for call in turn.invocations]
    return [*parts, *({"functionCall": call, "thoughtSignature": SIGNATURE} for call in calls)]


def _message(turn: ModelTurn, parts: list[dict[str, Any]], usage: dict[str, Any], **more: str) -> dict[str, Any]:
    content = {"content": {"role": "model", **({"parts": parts} if parts else {})}}
    candidate = {**content, **more, "index": 0}
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": "scripted",
        "responseId": f"resp-{turn.id}",
    }


def _last(turn: ModelTurn, parts: list[dict[str, Any]]) -> dict[str, Any]:
    garbled = [call for call in turn.invocations if call.garbled]
    if garbled and not turn.stop_reason:
        why = f"Malformed function call: print(default_api.{garbled[0].name}({garbled[0].garbled}"
        return _message(turn, parts, _usage(turn), finishReason="MALFORMED_FUNCTION_CALL", finishMessage=why)
    return _message(turn, parts, _usage(turn), finishReason=turn.stop_reason or ENDINGS[turn.ending])


def _usage(turn: ModelTurn) -> dict[str, Any]:
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
