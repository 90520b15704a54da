"""A tool's result as the model gets it.

In: an `Outcome`, and the provider's format. Out: texts, and files of the kinds that the provider takes, as pydantic-ai
has them. What a provider does not take is said in words, by `crib.messages`; so is what is too long, as one result
could use up all that a model can read. `loop` puts it into the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic_ai.messages import BinaryContent

from toolcrib.agent.calling import Outcome
from toolcrib.agent.models.place import Format
from toolcrib.agent.words import whole
from toolcrib.agent_events import ToolStatus
from toolcrib.crib.messages import ANTHROPIC, GOOGLE, GOOGLE_AFTER, NOTHING, OPENAI, Piece, pieces

TAKEN: Mapping[Format, frozenset[str]] = {
    Format.ANTHROPIC: ANTHROPIC,
    Format.OPENAI_CHAT: OPENAI,
    Format.OPENAI_RESPONSES: OPENAI,
    Format.GOOGLE: GOOGLE | GOOGLE_AFTER,
}
"""Media types that go to the model as they are."""

MOST_TEXT = 400_000
"""Characters of one result that a model is told: what many can read in all."""
LARGEST_FILE = 5 * 1024 * 1024 * 3 // 4
MOST_FILES = 5 * LARGEST_FILE
"""Bytes of one picture or file, and of all in one result. Providers refuse a whole conversation for one that is larger
than 5 MB as it is sent, in base64, or for more than some 30 MB in all."""
LESS = "Ask for less: a part, a page, or with a filter."

Told = str | list[str | BinaryContent]


def content(outcome: Outcome, form: Format) -> Told:
    found = [outcome.words] if outcome.result is None else pieces(outcome.result, TAKEN[form])
    told = _within(found)
    return told if any(isinstance(piece, BinaryContent) for piece in told) else text(told) or NOTHING


def _within(found: Sequence[Piece]) -> list[str | BinaryContent]:
    """As much of it as a model is told; where something is left out, it says so."""
    told: list[str | BinaryContent] = []
    characters, size, left_out = MOST_TEXT, MOST_FILES, 0
    for piece in found:
        if isinstance(piece, str):
            words = whole(piece)
        elif len(piece.data) > min(LARGEST_FILE, size):
            words = f"({piece.media_type}, {len(piece.data)} bytes: too large to be shown.)"
        else:
            told.append(BinaryContent(data=piece.data, media_type=piece.media_type))
            size -= len(piece.data)
            continue
        if kept := words[:characters]:
            told.append(kept)
        characters -= len(kept)
        left_out += len(words) - len(kept)
    if left_out:
        told.append(f"({left_out} more characters are left out. {LESS})")
    return told


def text(told: Told) -> str:
    """What of it is text."""
    return told if isinstance(told, str) else "\n".join(piece for piece in told if isinstance(piece, str))


def how(outcome: Outcome) -> Literal["success", "denied", "failed"]:
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
