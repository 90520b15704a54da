"""A run as it happens, printed for a person beside the answer, or for a program as JSON.

In: its events and its result, as lines of `run_text`. Out: stdout and stderr, with colours and a spinner on a
terminal. Control characters are made visible.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields, replace
from typing import Any, Protocol, TextIO, TypeAlias

from toolcrib.cli.output import hint, say, say_line, terminal, visible
from toolcrib.cli.run_text import (
    AllEventLines,
    EventDetail,
    EventLines,
    EventTimes,
    LabelledLine,
    RunFacts,
    StyledLine,
    closing_lines,
    one_line,
    opening_lines,
    tool_of,
)
from toolcrib.coding_agents.run_result import ExecutionResult, RunMetadata, RunStatus, RunSummary, ToolListSize
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus


class RunScreen:
    """What is said beside the output does not end a run when it cannot be said any more: a terminal was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = terminal(stream) if stream.isatty() else None
        self._broken = False

    def write(self, line: StyledLine = ()) -> None:
        if self._broken:
            return
        try:
            if self._terminal is None:
                self._stream.write("".join(visible(text) for text, _ in line).rstrip() + "\n")
                self._stream.flush()
            else:
                for pieces in _wrapped(line, self._terminal.width):
                    self._terminal.write(pieces)
        except OSError:
            if self._stream is not sys.stderr:
                raise
            self._broken = True

    def write_all(self, lines: Iterable[StyledLine]) -> None:
        for line in lines:
            self.write(line)

    def wait(self, text: str) -> None:
        """Shows on a terminal that something goes on, and what."""
        if self._terminal is not None and not self._broken:
            self._terminal.spin(visible(one_line(text)))

    def still(self) -> None:
        """Ends the spinner; the terminal is as it was."""
        if self._terminal is not None:
            try:
                self._terminal.stop()
            except OSError:
                self._broken = True


def _wrapped(line: StyledLine, width: int) -> Iterator[StyledLine]:
    """As many lines as it takes; only labelled ones are wrapped, between words."""
    pieces = tuple((visible(text), style) for text, style in line)
    if not isinstance(line, LabelledLine):
        yield pieces
        return
    label, (text, style) = pieces
    room = max(1, width - len(label[0]))
    for part in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]:
        yield (label, (part, style))
        label = (" " * len(label[0]), "")


_LAST_WORDS = 5
"""Lines of a program that failed."""


Mask: TypeAlias = Callable[[Any], Any]
"""Takes a run's secrets out of a text, or of what is made of texts."""


class RunView(Protocol):
    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: RunMetadata | None) -> None: ...

    def ending(self) -> None:
        """It was interrupted, and comes to its end."""

    def still(self) -> None:
        """Leaves the terminal as it was."""

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        """None: it was interrupted before it began. `exit_code` is the one that Toolcrib's process will have."""


class RunTextView:
    def __init__(self, detail: EventDetail) -> None:
        self._screen = RunScreen(sys.stderr)
        self._event_lines = AllEventLines() if detail is EventDetail.ALL else EventLines(EventTimes.LEFT_OUT)
        self._title = ""
        self._opened = False
        self._under_way: dict[str, str] = {}
        self._said: deque[str] = deque(maxlen=_LAST_WORDS)

    def starting(self, title: str) -> None:
        self._title = title
        self._screen.wait(f"starting {title} …")

    def event(self, event: AgentEvent, about: RunMetadata | None) -> None:
        self._open(about)
        if event.kind is AgentEventKind.LOG and event.role != "toolcrib":
            self._said.append(event.text)
        self._screen.write_all(self._event_lines.of(event))
        if event.kind is AgentEventKind.TOOL:
            self._follow_call(event)
        self._screen.wait(" · ".join(self._under_way.values()) or f"{self._title} is working …")

    def ending(self) -> None:
        self._under_way.clear()
        self._screen.write((("Ending the run; once more ends it at once.", "yellow"),))
        self._screen.wait("stopping …")

    def still(self) -> None:
        self._screen.still()

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        if result is None:
            self._screen.write((("Interrupted before it began.", "yellow"),))
            return
        about = _metadata(result)
        # A program that ended before it said a word is shown all the same.
        self._open(about)
        summary = _summary(result, mask)
        answer = self._answer(summary)
        self._screen.write_all(self._event_lines.rest(but=answer))
        # Unless they are the very reason that is given below.
        if summary.status is RunStatus.FAILED and not any(summary.error in text for text in self._said):
            self._screen.write_all(((f"  {one_line(text)}", "dim"),) for text in self._said)
        if answer:
            if sys.stdout.isatty():
                self._screen.write()
            say(answer)
            sys.stdout.flush()
        self._screen.write()
        self._screen.write_all(closing_lines(summary, about, result.log, _facts(result, mask)))

    def _answer(self, summary: RunSummary) -> str:
        """The last words of a run that was cut off are those of somebody in the midst of work; so are a failed one's
        where something followed them."""
        failed_with_these = (
            summary.status is RunStatus.FAILED and summary.text.strip() == self._event_lines.held.strip()
        )
        return summary.text if summary.status is RunStatus.FINISHED or failed_with_these else ""

    def _open(self, about: RunMetadata | None) -> None:
        if about is not None and not self._opened:
            self._opened = True
            self._screen.write_all((*opening_lines(about), ()))

    def _follow_call(self, event: AgentEvent) -> None:
        if event.tool_status is ToolStatus.STARTED:
            self._under_way[event.call] = f"{tool_of(event)} …"
        else:
            self._under_way.pop(event.call, None)


class RunJsonView:
    def __init__(self, detail: EventDetail) -> None:
        self._detail = detail

    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: RunMetadata | None) -> None:
        if self._detail is EventDetail.ALL:
            say_line({"event": event.to_json()})
        elif event.kind is AgentEventKind.LOG and event.role == "toolcrib":
            hint(event.text)

    def ending(self) -> None: ...

    def still(self) -> None: ...

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        if result is None:
            why = "It was interrupted before it began."
            say_line(
                {"run_id": None, "status": RunStatus.INTERRUPTED, "exit_code": exit_code, "error": why, "remedy": ""}
            )
            return
        summary = _summary(result, mask)
        say_line(
            {
                "run_id": result.run_id,
                "log": str(result.log),
                "text": summary.text,
                "status": summary.status,
                "exit_code": exit_code,
                "program_exit_code": summary.program_exit_code,
                "error": summary.error,
                "remedy": summary.remedy,
                "usage": asdict(summary.usage),
                "tools": summary.tools,
                "unavailable": summary.unavailable,
                "model": summary.model,
                **{name: result.metadata[name] for name in _METADATA_KEYS},
            }
        )


_METADATA_KEYS = (
    "denials",
    "failures",
    "seconds",
    "conversation",
    "session",
    "provider",
    "profile",
    "agent",
    "workdir",
    "listing",
)


def masked(event: AgentEvent, mask: Mask) -> AgentEvent:
    """Without secrets, before anything of it is shortened."""
    return replace(
        event,
        text=mask(event.text),
        raw=mask(event.raw),
        tool_name=mask(event.tool_name),
        server=mask(event.server),
        tool_args=None if event.tool_args is None else mask(event.tool_args),
        rule=mask(event.rule),
    )


def _metadata(result: ExecutionResult) -> RunMetadata:
    return RunMetadata(**{one.name: result.metadata[one.name] for one in fields(RunMetadata)})


def _facts(result: ExecutionResult, mask: Mask) -> RunFacts:
    seen = RunFacts()
    for event in result.raw_events:
        seen.note(event)
    return RunFacts(answered=seen.answered, denied=Counter({mask(name): times for name, times in seen.denied.items()}))


def _summary(result: ExecutionResult, mask: Mask) -> RunSummary:
    kept: dict[str, Any] = {name: result.metadata[name] for name in ("seconds", "session", "denials", "failures")}
    return RunSummary(
        **kept,
        status=result.status,
        program_exit_code=result.program_exit_code,
        text=mask(result.text),
        error=mask(result.error),
        remedy=mask(result.metadata["remedy"]),
        model=mask(result.metadata["model"]),
        tools={mask(name): times for name, times in result.metadata["tools"].items()},
        usage=result.usage,
        listing=ToolListSize(**result.metadata["listing"]),
        unavailable=mask(result.metadata["unavailable"]),
    )
