"""What a model is given in a request, and what it answers, in one form for all providers.

In: nothing. Out: the classes between a `Script`, which decides, and a provider's wire format, which reads and writes.
"""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolOffering(enum.StrEnum):
    """How a client lets its model have the tools of MCP servers."""

    PLAIN = "plain"
    """All are listed in the request; in a group, where the provider has groups."""
    DEFERRED = "deferred"
    """None is: the model searches for what it needs, and is given it."""
    CODE = "code"
    """The model writes a program that calls them."""


@dataclass(frozen=True, kw_only=True)
class ModelTool:
    """A tool that the model may call."""

    name: str
    definition: Mapping[str, Any]
    namespace: str = ""
    """Some providers group tools; a call then names the group, too."""


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    call: str
    """The id that the model gave its call."""
    text: str


@dataclass(frozen=True, kw_only=True)
class RequestConversation:
    """What the model is given in one request."""

    tools: tuple[ModelTool, ...]
    offering: ToolOffering = ToolOffering.PLAIN
    outputs: tuple[ToolOutput, ...] = ()
    """What came back for its calls and searches so far, in order."""
    found: tuple[ModelTool, ...] = ()
    """The tools that its searches brought."""
    asked: tuple[str, ...] = ()
    """The texts of the person's side: prompts, and what the client adds to them."""
    said: tuple[str, ...] = ()
    """The texts that it said itself, in earlier turns."""

    @property
    def results(self) -> tuple[str, ...]:
        """The text of each tool's result so far, in order."""
        return tuple(result.text for result in self.outputs if not result.call.startswith(SEARCH))


CALL, SEARCH = "call_", "search_"
"""How the ids of calls and of searches begin."""


@dataclass(frozen=True, kw_only=True)
class TurnUsage:
    """Tokens, as a provider counts them."""

    fresh: int
    """Read, and not from the cache."""
    cached: int
    output: int
    """Written, with what was thought."""
    thought: int

    @property
    def read(self) -> int:
        return self.fresh + self.cached


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A call in an answer; or a search, where `name` is what is searched for."""

    id: str
    name: str
    namespace: str = ""
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A text for tools that take one."""
    garbled: str = ""
    """What the model wrote in the place of arguments, and is no JSON."""

    @property
    def searches(self) -> bool:
        return self.id.startswith(SEARCH)

    @property
    def written(self) -> str:
        """The arguments as the model wrote them."""
        return self.garbled or json.dumps(self.arguments)


class Hold:
    """Where an answer stops in the middle until a test lets it go on."""

    LIMIT = 60.0

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """The model waits here."""
        self._reached.set()
        self._released.wait(self.LIMIT)

    def reached(self, limit: float = LIMIT) -> None:
        """Returns when the model has begun its answer, and stopped."""
        if not self._reached.wait(limit):
            raise TimeoutError(f"the model did not come to this step within {limit:g} s")

    def release(self) -> None:
        self._released.set()


class AnswerEnding(enum.StrEnum):
    """Why an answer is over."""

    NATURAL = "natural"
    """All is said, or there are calls to be carried out."""
    LENGTH = "length"
    """It was cut off: as many tokens as an answer may have."""
    FILTER = "filter"
    """The provider's filter, or the model itself, declined to go on."""


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """Where an answer comes to an end in its middle."""

    status: int
    """The error that the provider sends in the stream, by its number; or 0: the connection breaks."""


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """One answer: thoughts, words and calls, as far as there are any."""

    id: str
    thinking: str = ""
    text: str = ""
    invocations: tuple[Invocation, ...] = ()
    usage: TurnUsage
    ending: AnswerEnding = AnswerEnding.NATURAL
    stop_reason: str = ""
    """The provider's own word for why the answer is over; empty: the one that fits `ending`."""
    cut_after: int | None = None
    """How many messages of the stream are sent before it ends cleanly; a negative number counts from the end."""
    hold: Hold | None = None
    cut: Interruption | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """No answer, but an HTTP error as the provider has it."""

    status: int
    message: str
    retry_after: float | None = None
    """Seconds after which one may ask again."""
