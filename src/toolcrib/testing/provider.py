"""What a provider's wire format does.

In: nothing. Out: the `Provider` that `anthropic`, `google`, `openai_chat`, `openrouter` and `openai_responses` each
are, and that `server` and `answer` use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from toolcrib.testing.conversation import Conversation, Turn
from toolcrib.testing.wire import Message


class Provider(Protocol):
    """One provider's wire format."""

    @property
    def base(self) -> str:
        """The path of the URL that its clients are given."""
        ...

    def is_turn(self, path: str) -> bool:
        """Whether a request to this path asks the model to go on."""
        ...

    def read(self, body: dict[str, Any]) -> Conversation:
        """`ValueError` with the service's own words for what it would refuse."""
        ...

    def write(self, turn: Turn, path: str, body: dict[str, Any]) -> Sequence[Message]:
        """The answer as the messages of a stream."""
        ...

    def whole(self, turn: Turn, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer in one piece, where the request wants it so."""
        ...

    def refusal(self, status: int, message: str, retry_after: float | None) -> dict[str, Any]:
        """What comes with an HTTP error."""
        ...

    def interruption(self, status: int, turn: Turn, body: dict[str, Any]) -> Message:
        """How it is told in a stream that there will be no more of it."""
        ...
