"""A provider's wire format, as a scripted model speaks it, and what all of them have in common.

In: the body of a request, a turn. Out: the conversation that it holds, the messages of an answer, their pieces and
bytes. `anthropic`, `google`, `openai_chat` and `openai_responses` implement `WireFormat`; `server` sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from toolcrib.testing.conversation import ModelTurn, RequestConversation

Message = Mapping[str, Any] | str
"""What a stream is made of: data, or a line as it is, such as a comment."""


def pieces(text: str, most: int = 4) -> list[str]:
    """A text as a stream brings it: in up to so many parts, none of them empty."""
    size = max(1, -(-len(text) // most))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event(message: Message) -> bytes:
    """A server-sent event; where a message has a type, the event is named so."""
    if isinstance(message, str):
        return f"{message}\n\n".encode()
    name = f"event: {message['type']}\n" if "type" in message else ""
    return f"{name}data: {json.dumps(message)}\n\n".encode()


def text_of(content: Any) -> str:
    """Content that is a text, or a list of parts, of which each may be one."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", f"({part['type']})") for part in content or [])


class WireFormat(Protocol):
    """One provider's wire format."""

    @property
    def base(self) -> str:
        """The path of the URL that its clients are given."""
        ...

    def is_turn(self, path: str) -> bool:
        """Whether a request to this path asks the model to go on."""
        ...

    def read(self, body: dict[str, Any]) -> RequestConversation:
        """`ValueError` with the service's own words for what it would refuse."""
        ...

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> Sequence[Message]:
        """The answer as the messages of a stream."""
        ...

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer in one piece, where the request wants it so."""
        ...

    def refusal(self, status: int, message: str, retry_after: float | None) -> dict[str, Any]:
        """What comes with an HTTP error."""
        ...

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        """How a stream says that there will be no more of it."""
        ...
