"""A tool's result as the model gets it.

In: an `Outcome`, and the provider's format. Out: texts, and files of the kinds that the provider takes, as pydantic-ai
has them. What a provider does not take is said in words, by `crib.messages`. `loop` puts it into the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic_ai.messages import BinaryContent

from toolcrib.agent.calling import Outcome
from toolcrib.agent.models.place import Format
from toolcrib.agent_events import ToolStatus
from toolcrib.crib.messages import ANTHROPIC, GOOGLE, GOOGLE_AFTER, NOTHING, OPENAI, pieces

TAKEN: Mapping[Format, frozenset[str]] = {
    Format.ANTHROPIC: ANTHROPIC,
    Format.OPENAI_CHAT: OPENAI,
    Format.OPENAI_RESPONSES: OPENAI,
    Format.GOOGLE: GOOGLE | GOOGLE_AFTER,
}
"""Media types that go to the model as they are."""

Told = str | list[str | BinaryContent]


def content(outcome: Outcome, form: Format) -> Told:
    if outcome.result is None:
        return outcome.words or NOTHING
    found: list[str | BinaryContent] = [
        piece if isinstance(piece, str) else BinaryContent(data=piece.data, media_type=piece.media_type)
        for piece in pieces(outcome.result, TAKEN[form])
    ]
    if len(found) == 1 and isinstance(found[0], str):
        return found[0]
    return found or NOTHING


def text(told: Told) -> str:
    """What of it is text."""
    return told if isinstance(told, str) else "\n".join(piece for piece in told if isinstance(piece, str))


def how(outcome: Outcome) -> Literal["success", "denied", "failed"]:
    match outcome.status:
        case ToolStatus.OK:
            return "success"
        case ToolStatus.DENIED:
            return "denied"
        case _:
            return "failed"
