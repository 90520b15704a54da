"""The interface of a scripted model's wire format, and functions that all formats share.

In: the body of a request, a turn. Out: the conversation in the body; the messages of an answer, as chunks and bytes.
`anthropic`, `google`, `openai_chat` and `openai_responses` implement `WireFormat`; `server` sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from toolcrib.testing.conversation import ModelTurn, RequestConversation

Message = Mapping[str, Any] | str
"""A message of a stream: data, or a raw line such as a comment."""


def pieces(text: str, most: int = 4) -> list[str]:
    """Splits a text for a stream, into at most `most` parts, none of them empty."""
    size = max(1, -(-len(text) // most))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event(message: Message) -> bytes:
    """A server-sent event, named by the message's type if it has one."""
    if isinstance(message, str):
        return f"{message}\n\n".encode()
    name = f"event: {message['type']}\n" if "type" in message else ""
    return f"{name}data: {json.dumps(message)}\n\n".encode()


def text_of(content: Any) -> str:
    """The text of content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", f"({part['type']})") for part in content or [])


class WireFormat(Protocol):
    """One provider's wire format."""

    @property
    def base(self) -> str:
        """The path of the clients' base URL."""
        ...

    def is_turn(self, path: str) -> bool:
        """Whether a request to this path asks the model for a turn."""
        ...

    def read(self, body: dict[str, Any]) -> RequestConversation:
        """Raises `ValueError`, with the service's own message, for requests that it would refuse."""
        ...

    def write(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> Sequence[Message]:
        """The answer as the messages of a stream."""
        ...

    def whole(self, turn: ModelTurn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer as one object, or None if the request wants a stream."""
        ...

    def refusal(self, status: int, message: str, retry_after: float | None) -> dict[str, Any]:
        """The body of an HTTP error."""
        ...

    def interruption(self, status: int, turn: ModelTurn, body: dict[str, Any]) -> Message:
        """The error message in a stream that ends early."""
        ...
