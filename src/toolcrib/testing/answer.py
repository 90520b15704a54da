"""A turn as the bytes of an HTTP answer.

In: a `Turn`, its provider and the request. Out: what is sent first, where it is held, what is sent then, and whether
the line is good for more. `server` sends it. All of it is made before the first byte, so an answer that cannot be made
is told as such.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from toolcrib.testing.conversation import Hold, Refusal, Turn
from toolcrib.testing.line import chunk, response, stream_head
from toolcrib.testing.provider import Provider
from toolcrib.testing.wire import Message, event


class Then(enum.StrEnum):
    """What becomes of the connection."""

    GO_ON = "go on"
    CLOSE = "close"


@dataclass(frozen=True, kw_only=True)
class Answer:
    first: bytes
    """Up to where it is held."""
    hold: Hold | None
    rest: bytes
    then: Then


def answer(provider: Provider, turn: Turn, path: str, body: dict[str, Any]) -> Answer | Refusal:
    whole = provider.whole(turn, path, body)
    if whole is None:
        return _streamed(turn, _messages(provider, turn, path, body))
    if turn.cut is not None and turn.cut.status and not whole.get("error"):
        return Refusal(status=turn.cut.status, message="interrupted, as scripted")
    data = response(200, whole, {})
    if turn.cut is not None and not turn.cut.status:
        return Answer(first=b"", hold=turn.hold, rest=data[:-1], then=Then.CLOSE)
    return Answer(first=b"", hold=turn.hold, rest=data, then=Then.GO_ON)


def _messages(provider: Provider, turn: Turn, path: str, body: dict[str, Any]) -> list[Message]:
    messages = list(provider.write(turn, path, body))[: turn.cut_after]
    if turn.cut is None:
        return messages
    begun = messages[: len(messages) // 2]
    return [*begun, provider.interruption(turn.cut.status, turn, body)] if turn.cut.status else begun


def _streamed(turn: Turn, messages: list[Message]) -> Answer:
    chunks = [chunk(event(message)) for message in messages]
    dead = turn.cut is not None and not turn.cut.status
    end = b"" if dead else chunk(b"")
    # In the middle, unless it is all said at once.
    at = min(1, len(chunks) - 1)
    return Answer(
        first=b"".join([stream_head(), *chunks[:at]]),
        hold=turn.hold,
        rest=b"".join([*chunks[at:], end]),
        then=Then.CLOSE if dead else Then.GO_ON,
    )
