"""The conversation of a run: texts in whole characters, tool results, and the history as JSON.

In: what a model said and a tool returned, and the `messages` of an earlier run's last event. Out: the same as
pydantic-ai's messages have it, and back to plain JSON. A character that came in two halves is put together, what a
provider does not take is described in words (`core` writes them), and so is what is too long. `loop` keeps the
conversation, `setup` reads a history.
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

_FIRST_HALVES = range(0xD800, 0xDC00)


def whole_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_arguments(given: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A call's arguments, as a text or as what was read of one."""
    if given is None or isinstance(given, str):
        return given and whole_text(given)
    plain: dict[str, Any] = json.loads(whole_text(json.dumps(dict(given), ensure_ascii=False)))
    return plain


class TextPieces:
    """The pieces of one text, one after the other."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be shown of it now: the first half of a character waits for the other."""
        text = self._half + piece
        self._half = text[-1] if text and ord(text[-1]) in _FIRST_HALVES else ""
        return whole_text(text.removesuffix(self._half))

    def rest(self) -> str:
        half, self._half = self._half, ""
        return whole_text(half)


HISTORY_REMEDY = "Give the `messages` of an earlier run's last event as they were, or none."


def read_history(history: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """What a run goes on from: calls that were never answered get an answer that says so."""
    if not history:
        return []
    try:
        # As text: what is binary in it is base64 there, and only there.
        messages = ModelMessagesTypeAdapter.validate_json(json.dumps(list(history)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(f"The history cannot be read: {place}: {first['msg']}.", remedy=HISTORY_REMEDY) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The history is no plain JSON: {error}.", remedy=HISTORY_REMEDY) from None
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
"""Media types that go to the model as they are."""

MOST_TEXT = 400_000
"""Characters of one result that a model is shown: what many can read in all."""
LARGEST_FILE = 5 * 1024 * 1024 * 3 // 4
MOST_FILES = 5 * LARGEST_FILE
"""Bytes of one picture or file, and of all in one result. Providers refuse a whole conversation for one that is larger
than 5 MB as it is sent, in base64, or for more than some 30 MB in all."""
ASK_FOR_LESS = "Ask for less: a part, a page, or with a filter."

ResultContent = str | list[str | BinaryContent]


def result_content(outcome: ToolOutcome, form: ToolFormat) -> ResultContent:
    found = [outcome.words] if outcome.result is None else pieces(outcome.result, MEDIA_TYPES[form])
    shown = _within(found)
    return shown if any(isinstance(piece, BinaryContent) for piece in shown) else content_text(shown) or NO_OUTPUT


def _within(found: Sequence[Piece]) -> list[str | BinaryContent]:
    """As much of it as a model is shown; where something is left out, it says so."""
    shown: list[str | BinaryContent] = []
    characters, size, left_out = MOST_TEXT, MOST_FILES, 0
    for piece in found:
        if isinstance(piece, str):
            words = whole_text(piece)
        elif len(piece.data) > min(LARGEST_FILE, size):
            words = f"({piece.media_type}, {len(piece.data)} bytes: too large to be shown.)"
        else:
            shown.append(BinaryContent(data=piece.data, media_type=piece.media_type))
            size -= len(piece.data)
            continue
        if kept := words[:characters]:
            shown.append(kept)
        characters -= len(kept)
        left_out += len(words) - len(kept)
    if left_out:
        shown.append(f"({left_out} more characters are left out. {ASK_FOR_LESS})")
    return shown


def content_text(shown: ResultContent) -> str:
    """What of it is text."""
    return shown if isinstance(shown, str) else "\n".join(piece for piece in shown if isinstance(piece, str))


def outcome_word(outcome: ToolOutcome) -> Literal["success", "denied", "failed"]:
    match outcome.status:
        case ToolStatus.OK:
            return "success"
        case ToolStatus.ERROR if outcome.result is not None and not outcome.result.is_error:
            # What the tool ran failed; the call went well.
            return "success"
        case ToolStatus.DENIED:
            return "denied"
        case _:
            return "failed"
