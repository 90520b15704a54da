"""The script of a model: one step per turn, then its last words.

In: a conversation, read by its wire format. Out: the next `ModelTurn`. The conversation itself determines the next
step: a call is done when its id has a result, and a text is said when the conversation contains it. So a repeated
request gets the same answer, and a script can continue in a later run of the conversation. If a tool must be searched
for, the search comes first and is not a step.
"""

from __future__ import annotations

import enum
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.testing.conversation import (
    CALL,
    SEARCH,
    AnswerEnding,
    Hold,
    Interruption,
    Invocation,
    ModelTool,
    ModelTurn,
    Refusal,
    RequestConversation,
    ToolOffering,
    TurnUsage,
)


@dataclass(frozen=True)
class Step:
    first: Callable[[], object] | None = field(default=None, kw_only=True)
    """Called once before the model answers, to change something in the middle of a conversation, or to wait."""
    thinking: str = field(default="", kw_only=True)
    says: str = field(default="", kw_only=True)
    """Text before a call."""
    ending: AnswerEnding = field(default=AnswerEnding.NATURAL, kw_only=True)
    stop_reason: str = field(default="", kw_only=True)
    """The provider's own stop reason, instead of the one for `ending`."""
    cut_after: int | None = field(default=None, kw_only=True)
    """The number of messages that are sent before the stream ends cleanly; a negative number omits the last ones."""
    hold: Hold | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Call(Step):
    """The model calls the tool whose name is or ends with `tool`, however the client offers it."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    query: str = field(default="", kw_only=True)
    """What the model looks for if the client has a search by words; by default the words of the name."""


@dataclass(frozen=True)
class CallByName(Step):
    """The model calls the tool with exactly this name, offered or not."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    namespace: str = ""


@dataclass(frozen=True)
class Garble(Step):
    """The model calls the tool whose name is or ends with `tool`, with arguments that are not JSON.

    Google's service blocks such calls: its answer is empty, with a finish reason."""

    tool: str
    text: str = '{"broken": '


@dataclass(frozen=True)
class Together(Step):
    """Several calls in one turn."""

    calls: Sequence[Call | CallByName | Garble]


@dataclass(frozen=True)
class Say(Step):
    """The model answers with a text, and the client's run ends. No other text of the script may contain this one.

    An empty text is an empty answer to one request."""

    text: str


@dataclass(frozen=True)
class Refuse(Step):
    """One request gets an HTTP error: 429, 500, 529."""

    status: int
    retry_after: float | None = None
    """Seconds for the `Retry-After` header, or None for no header."""


@dataclass(frozen=True)
class Break(Step):
    """One answer ends in the middle, with a broken connection or an error."""

    text: str = "I was about to say"
    status: int = 0
    """The HTTP status of the error, or 0 to break the connection."""


class Toolless(enum.StrEnum):
    """How to treat a request without tools."""

    TURN = "turn"
    """Like any other request."""
    ASIDE = "aside"
    """As a request for a title, a summary or a key check: it gets the last words and is not a step."""


class Script:
    def __init__(self, steps: Sequence[Step], last_words: str, toolless: Toolless = Toolless.ASIDE) -> None:
        self.steps = tuple(steps)
        self._last_words = last_words
        self._toolless = toolless
        self._mark = secrets.token_hex(3)
        self._begun: set[int] = set()
        self._over: set[int] = set()
        """The finished steps that leave no trace in the conversation."""
        self._lock = threading.Lock()
        self._tools: dict[str, ModelTool] = {}
        """All tools that were ever offered: a model may call a tool from an earlier request."""

    def next(self, conversation: RequestConversation) -> ModelTurn | Refusal:
        with self._lock:
            self._tools.update({tool.name: tool for tool in (*conversation.tools, *conversation.found)})
            number = next((n for n in range(len(self.steps)) if not self._done(n, conversation)), None)
            aside = not conversation.tools and self._toolless is Toolless.ASIDE
            if number is None or aside:
                return self._say(len(self.steps), text=self._last_words)
            step = self.steps[number]
            if missing := self._to_search(step, conversation):
                return self._search(number, missing, conversation)
            if number not in self._begun and step.first is not None:
                step.first()
            self._begun.add(number)
            return self._turn(number, step)

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps that were not reached."""
        with self._lock:
            return tuple(step for number, step in enumerate(self.steps) if number not in self._begun)

    def _done(self, number: int, conversation: RequestConversation) -> bool:
        step = self.steps[number]
        if number in self._over:
            return True
        if isinstance(step, Say) and step.text:
            return any(step.text in text for text in conversation.said)
        if any(self._id(CALL, number) in result.call for result in conversation.outputs):
            return True
        # Google's clients may omit the ids; the results then belong to the first steps.
        nameless = sum(not result.call for result in conversation.outputs)
        return bool(_calls(step)) and sum(len(_calls(one)) for one in self.steps[: number + 1]) <= nameless

    def _id(self, kind: str, number: int) -> str:
        return f"{kind}{self._mark}_{number}_"

    def _turn(self, number: int, step: Step) -> ModelTurn | Refusal:
        if _leaves_nothing(step):
            self._over.add(number)
        if isinstance(step, Refuse):
            return Refusal(status=step.status, message="refused, as scripted", retry_after=step.retry_after)
        calls = tuple(
            self._invocation(f"{self._id(CALL, number)}{place}", call) for place, call in enumerate(_calls(step))
        )
        text = step.text if isinstance(step, Say | Break) else step.says
        cut = Interruption(status=step.status) if isinstance(step, Break) else None
        spoken = {"thinking": step.thinking, "text": text, "ending": step.ending, "stop_reason": step.stop_reason}
        return self._say(number, **spoken, invocations=calls, hold=step.hold, cut=cut, cut_after=step.cut_after)

    def _say(self, number: int, **what: Any) -> ModelTurn:
        return ModelTurn(id=f"{self._mark}_{number}", usage=turn_usage(number), **what)

    def _invocation(self, call_id: str, call: Call | CallByName | Garble) -> Invocation:
        if isinstance(call, CallByName):
            return Invocation(id=call_id, name=call.name, namespace=call.namespace, arguments=call.arguments)
        tool = self._named(call.tool)
        if isinstance(call, Garble):
            return Invocation(id=call_id, name=tool.name, namespace=tool.namespace, garbled=call.text)
        return Invocation(id=call_id, name=tool.name, namespace=tool.namespace, arguments=call.arguments)

    def _to_search(self, step: Step, conversation: RequestConversation) -> list[Call | Garble]:
        if conversation.offering is ToolOffering.PLAIN:
            return []
        return [call for call in _calls(step) if not isinstance(call, CallByName) and not self._ending(call.tool)]

    def _search(self, number: int, missing: Sequence[Call | Garble], conversation: RequestConversation) -> ModelTurn:
        if any(self._id(SEARCH, number) in result.call for result in conversation.outputs):
            names = [call.tool for call in missing]
            raise LookupError(f"the search did not find {names}; known tools: {sorted(self._tools)}")
        searches = tuple(
            Invocation(
                id=f"{self._id(SEARCH, number)}{place}",
                name=call.tool,
                query=call.query if isinstance(call, Call) else "",
            )
            for place, call in enumerate(missing)
        )
        return self._say(len(self.steps) + 1 + number, invocations=searches)

    def _ending(self, ending: str) -> list[ModelTool]:
        exactly = self._tools.get(ending)
        return [exactly] if exactly else [tool for tool in self._tools.values() if tool.name.endswith(ending)]

    def _named(self, ending: str) -> ModelTool:
        found = self._ending(ending)
        if len(found) != 1:
            raise LookupError(f"{len(found)} tools end in {ending!r}; offered: {sorted(self._tools)}")
        return found[0]


def _calls(step: Step) -> Sequence[Call | CallByName | Garble]:
    if isinstance(step, Together):
        return step.calls
    return (step,) if isinstance(step, Call | CallByName | Garble) else ()


def _leaves_nothing(step: Step) -> bool:
    """Whether the step may leave no trace in the conversation."""
    if step.stop_reason or step.cut_after is not None:
        return True
    if isinstance(step, Say):
        return not step.text
    return isinstance(step, Refuse | Break) or any(isinstance(call, Garble) for call in _calls(step))


def turn_usage(number: int) -> TurnUsage:
    """The usage reported for a turn. No two are the same, so a sum shows which turns were counted."""
    return TurnUsage(fresh=100 + 7 * number, cached=1000 * number, output=20 + 3 * number, thought=number)
