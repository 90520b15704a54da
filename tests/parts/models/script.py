"""What a scripted model does: one tool call a turn, then some last words.

In: a conversation as its provider's wire format tells it. Out: the next `Turn`. Which step comes next is read from the
conversation itself (as many results as were given, so many steps are done), so a request that a client repeats gets
the same answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A tool that the request offers to the model."""

    name: str
    definition: Mapping[str, Any]
    namespace: str = ""
    """Some providers group tools; a call then names the group, too."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What the model is given in one request."""

    tools: tuple[Offered, ...]
    results: tuple[str, ...]
    """The text of each tool result so far, in order."""


@dataclass(frozen=True)
class Call:
    """A step: the model calls the offered tool whose name ends so."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    first: Callable[[], object] | None = field(default=None, kw_only=True)
    """Done once before the model answers: where a test changes the world in mid-conversation, or waits."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the model says: words, or a call."""

    text: str = ""
    tool: Offered | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""


class Script:
    def __init__(self, steps: Sequence[Call], last_words: str) -> None:
        self._steps = tuple(steps)
        self._last_words = last_words
        self._begun: set[int] = set()
        self._lock = threading.Lock()
        self._tools: dict[str, Offered] = {}
        """All that were ever offered: a model may call what it has seen before."""

    def next(self, conversation: Conversation) -> Turn:
        with self._lock:
            self._tools.update({tool.name: tool for tool in conversation.tools})
            number = len(conversation.results)
            # A request without our tools is about something else: a title, a summary, a check of the key.
            if number >= len(self._steps) or not conversation.tools:
                return Turn(text=self._last_words)
            step = self._steps[number]
            if step.first is not None and number not in self._begun:
                self._begun.add(number)
                step.first()
            return Turn(tool=self._named(step.tool), arguments=step.arguments, call_id=f"call_{number}")

    def _named(self, ending: str) -> Offered:
        found = [tool for tool in self._tools.values() if tool.name.endswith(ending)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} tools end in {ending!r}; offered were {sorted(self._tools)}")
        return found[0]
