"""The conversation of a run: texts in whole characters, tool results, and the history as JSON.

In: a model's answers, tool results, and the `messages` of an earlier run's last event. Out: pydantic-ai messages, and
back to plain JSON. Split surrogate pairs are joined; content that a provider does not accept or that is too long is
replaced by a description (from `core`). `loop` keeps the conversation, `setup` reads a history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter, ModelResponse, repair_messages

from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.tool_calls import ToolOutcome
from toolcrib.core.results import ANTHROPIC, GOOGLE, GOOGLE_AFTER, NO_OUTPUT, OPENAI, Piece, pieces
from toolcrib.errors import UsageError
from toolcrib.run_events import ToolStatus

_HIGH_SURROGATES = range(0xD800, 0xDC00)


def whole_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_arguments(given: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A call's arguments, as JSON text or parsed."""
    if given is None or isinstance(given, str):
        return given and whole_text(given)
    plain: dict[str, Any] = json.loads(whole_text(json.dumps(dict(given), ensure_ascii=False)))
    return plain


class TextPieces:
    """Joins characters that are split between the pieces of a text."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """The complete characters so far: the first half of a character waits for the second."""
        text = self._half + piece
        self._half = text[-1] if text and ord(text[-1]) in _HIGH_SURROGATES else ""
        return whole_text(text.removesuffix(self._half))

    def rest(self) -> str:
        half, self._half = self._half, ""
        return whole_text(half)


HISTORY_REMEDY = "Pass the `messages` of an earlier run's last event unchanged, or nothing."


def read_history(history: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """The messages that a run continues from. Calls without a result get one that says so."""
    if not history:
        return []
    try:
        # As JSON text, since only there binary content is base64.
        messages = ModelMessagesTypeAdapter.validate_json(json.dumps(list(history)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(f"The history cannot be read: {place}: {first['msg']}.", remedy=HISTORY_REMEDY) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The history is not plain JSON: {error}.", remedy=HISTORY_REMEDY) from None
    if isinstance(messages[-1], ModelResponse) and messages[-1].state == "suspended":
        raise UsageError("The history ends in an answer that its provider is still working on.", remedy=HISTORY_REMEDY)
    return repair_messages(messages)


def write_history(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return plain


MEDIA_TYPES: Mapping[ToolFormat, frozenset[str]] = {
    ToolFormat.ANTHROPIC: ANTHROPIC,
    ToolFormat.OPENAI_CHAT: OPENAI,
    ToolFormat.OPENAI_RESPONSES: OPENAI,
    ToolFormat.GOOGLE: GOOGLE | GOOGLE_AFTER,
}
"""Media types that are sent to the model unchanged."""

MAX_TEXT_LENGTH = 400_000
"""Maximum characters of one result: the whole context of many models."""
MAX_FILE_BYTES = 5 * 1024 * 1024 * 3 // 4
MAX_TOTAL_FILE_BYTES = 5 * MAX_FILE_BYTES
"""Limits for one image or file, and for all in one result. Providers refuse a conversation with one larger than 5 MB in
base64, or with more than about 30 MB in total."""
ASK_FOR_LESS = "Ask for less: one part or page, or use a filter."

ResultContent = str | list[str | BinaryContent]


def result_content(outcome: ToolOutcome, form: ToolFormat) -> ResultContent:
    found = [outcome.words] if outcome.result is None else pieces(outcome.result, MEDIA_TYPES[form])
    shown = _within(found)
    return shown if any(isinstance(piece, BinaryContent) for piece in shown) else content_text(shown) or NO_OUTPUT


def _within(found: Sequence[Piece]) -> list[str | BinaryContent]:
    """The content up to the limits, with a note on everything left out."""
    shown: list[str | BinaryContent] = []
    characters, size, left_out = MAX_TEXT_LENGTH, MAX_TOTAL_FILE_BYTES, 0
    for piece in found:
        if isinstance(piece, str):
            words = whole_text(piece)
        elif len(piece.data) > min(MAX_FILE_BYTES, size):
            words = f"({piece.media_type}, {len(piece.data)} bytes: too large to show.)"
        else:
            shown.append(BinaryContent(data=piece.data, media_type=piece.media_type))
            size -= len(piece.data)
            continue
        if kept := words[:characters]:
            shown.append(kept)
        characters -= len(kept)
        left_out += len(words) - len(kept)
    if left_out:
        shown.append(f"({left_out} more characters omitted. {ASK_FOR_LESS})")
    return shown


def content_text(shown: ResultContent) -> str:
    return shown if isinstance(shown, str) else "\n".join(piece for piece in shown if isinstance(piece, str))


def outcome_word(outcome: ToolOutcome) -> Literal["success", "denied", "failed"]:
    match outcome.status:
        case ToolStatus.OK:
            return "success"
        case ToolStatus.ERROR if outcome.result is not None and not outcome.result.is_error:
            # The command that the tool ran failed, but the call itself succeeded.
            return "success"
        case ToolStatus.DENIED:
            return "denied"
        case _:
            return "failed"
