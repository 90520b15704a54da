"""Shows a run as it happens: as text for people, or as JSON for programs.

In: its events and its result, as lines of `run_text`. Out: stdout and stderr, with colours and a spinner on a
terminal. Control characters are escaped.
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
    """Styled lines on a stream. If stderr can no longer be written (a closed terminal), the run continues silently."""

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
        """Shows a spinner with this text on a terminal."""
        if self._terminal is not None and not self._broken:
            self._terminal.spin(visible(one_line(text)))

    def still(self) -> None:
        """Stops the spinner and restores the terminal."""
        if self._terminal is not None:
            try:
                self._terminal.stop()
            except OSError:
                self._broken = True


def _wrapped(line: StyledLine, width: int) -> Iterator[StyledLine]:
    """Wraps labelled lines between words. Other lines stay as they are."""
    pieces = tuple((visible(text), style) for text, style in line)
    if not isinstance(line, LabelledLine):
        yield pieces
        return
    label, (text, style) = pieces
    room = max(1, width - len(label[0]))
    for part in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]:
        yield (label, (part, style))
        label = (" " * len(label[0]), "")


_LAST_LINES = 5
"""Lines of a failed program's output that are shown."""


Mask: TypeAlias = Callable[[Any], Any]
"""Removes a run's secrets from a text or a structure of texts."""


class RunView(Protocol):
    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: RunMetadata | None) -> None: ...

    def ending(self) -> None:
        """The run was interrupted and is shutting down."""

    def still(self) -> None:
        """Restores the terminal."""

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        """The result is None if the run was interrupted before it began. `exit_code` is that of this process."""


class RunTextView:
    def __init__(self, detail: EventDetail) -> None:
        self._screen = RunScreen(sys.stderr)
        self._event_lines = AllEventLines() if detail is EventDetail.ALL else EventLines(EventTimes.LEFT_OUT)
        self._title = ""
        self._opened = False
        self._running: dict[str, str] = {}
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def starting(self, title: str) -> None:
        self._title = title
        self._screen.wait(f"starting {title} …")

    def event(self, event: AgentEvent, about: RunMetadata | None) -> None:
        self._open(about)
        if event.kind is AgentEventKind.LOG and event.role != "toolcrib":
            self._last_lines.append(event.text)
        self._screen.write_all(self._event_lines.of(event))
        if event.kind is AgentEventKind.TOOL:
            self._follow_call(event)
        self._screen.wait(" · ".join(self._running.values()) or f"{self._title} is working …")

    def ending(self) -> None:
        self._running.clear()
        self._screen.write((("Stopping the run. Press Ctrl-C again to stop it immediately.", "yellow"),))
        self._screen.wait("stopping …")

    def still(self) -> None:
        self._screen.still()

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        if result is None:
            self._screen.write((("Interrupted before it began.", "yellow"),))
            return
        about = _metadata(result)
        # Shows the heading even if the program ended without output.
        self._open(about)
        summary = _summary(result, mask)
        answer = self._answer(summary)
        self._screen.write_all(self._event_lines.rest(but=answer))
        # Skipped if the error shown below already quotes them.
        if summary.status is RunStatus.FAILED and not any(summary.error in text for text in self._last_lines):
            self._screen.write_all(((f"  {one_line(text)}", "dim"),) for text in self._last_lines)
        if answer:
            if sys.stdout.isatty():
                self._screen.write()
            say(answer)
            sys.stdout.flush()
        self._screen.write()
        self._screen.write_all(closing_lines(summary, about, result.log, _facts(result, mask)))

    def _answer(self, summary: RunSummary) -> str:
        """The last message isn't an answer if the run was cut off, or if it failed and another event followed."""
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
            self._running[event.call] = f"{tool_of(event)} …"
        else:
            self._running.pop(event.call, None)


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
            why = "Interrupted before it began."
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
    """Removes secrets. This happens before texts are shortened, so that no part of a secret remains."""
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
    return RunMetadata(**{field.name: result.metadata[field.name] for field in fields(RunMetadata)})


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
