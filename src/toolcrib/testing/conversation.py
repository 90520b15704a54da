"""A model's requests and answers, in one form for all providers.

These classes connect a `Script`, which decides, with a provider's wire format, which reads and writes.
"""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolOffering(enum.StrEnum):
    """How a client offers the tools of MCP servers to its model."""

    PLAIN = "plain"
    """All are listed in the request, in groups if the provider has them."""
    DEFERRED = "deferred"
    """None are listed: the model searches for the tools that it needs."""
    CODE = "code"
    """The model writes a program that calls them."""


@dataclass(frozen=True, kw_only=True)
class ModelTool:
    """A tool that the model may call."""

    name: str
    definition: Mapping[str, Any]
    namespace: str = ""
    """The group of the tool, with providers that have groups. A call names it too."""


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    call: str
    """The id that the model gave its call."""
    text: str


@dataclass(frozen=True, kw_only=True)
class RequestConversation:
    """The content of one request to the model."""

    tools: tuple[ModelTool, ...]
    offering: ToolOffering = ToolOffering.PLAIN
    outputs: tuple[ToolOutput, ...] = ()
    """The results of its calls and searches so far, in order."""
    found: tuple[ModelTool, ...] = ()
    """The tools that its searches found."""
    asked: tuple[str, ...] = ()
    """The user's texts: prompts and the client's additions to them."""
    said: tuple[str, ...] = ()
    """The model's own texts, from earlier turns."""

    @property
    def results(self) -> tuple[str, ...]:
        """The text of each tool's result so far, in order."""
        return tuple(result.text for result in self.outputs if not result.call.startswith(SEARCH))


CALL, SEARCH = "call_", "search_"
"""The prefixes of the ids of calls and searches."""


@dataclass(frozen=True, kw_only=True)
class TurnUsage:
    """Token counts, as reported by a provider."""

    fresh: int
    """Input tokens that were not cached."""
    cached: int
    output: int
    """Output tokens, including thinking."""
    thought: int

    @property
    def read(self) -> int:
        return self.fresh + self.cached


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A call in an answer, or a search for `name`."""

    id: str
    name: str
    namespace: str = ""
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A string for tools that take plain text."""
    garbled: str = ""
    """Arguments that are not JSON, used instead of `arguments`."""
    query: str = ""
    """What a search by words looks for, instead of the name."""

    @property
    def searches(self) -> bool:
        return self.id.startswith(SEARCH)

    @property
    def written(self) -> str:
        """The arguments as the model wrote them."""
        return self.garbled or json.dumps(self.arguments)


class Hold:
    """Stops an answer in the middle until a test releases it."""

    LIMIT = 60.0

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """Called by the model."""
        self._reached.set()
        self._released.wait(self.LIMIT)

    def reached(self, limit: float = LIMIT) -> None:
        """Returns when the model has started its answer and waits."""
        if not self._reached.wait(limit):
            raise TimeoutError(f"the model did not reach this step within {limit:g} s")

    def release(self) -> None:
        self._released.set()


class AnswerEnding(enum.StrEnum):
    """Why an answer ended."""

    NATURAL = "natural"
    """It is complete, or has calls to run."""
    LENGTH = "length"
    """It was cut off at the token limit."""
    FILTER = "filter"
    """The provider's filter, or the model itself, declined to continue."""


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """The failure of an answer in the middle."""

    status: int
    """The HTTP status of the error that the provider sends in the stream, or 0 to close the connection."""


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """One answer, with optional thinking, text and calls."""

    id: str
    thinking: str = ""
    text: str = ""
    invocations: tuple[Invocation, ...] = ()
    usage: TurnUsage
    ending: AnswerEnding = AnswerEnding.NATURAL
    stop_reason: str = ""
    """The provider's own stop reason; if empty, the one for `ending`."""
    cut_after: int | None = None
    """The number of messages that are sent before the stream ends cleanly; a negative number counts from the end."""
    hold: Hold | None = None
    cut: Interruption | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An HTTP error in the provider's form, instead of an answer."""

    status: int
    message: str
    retry_after: float | None = None
    """Seconds to wait before a retry."""
