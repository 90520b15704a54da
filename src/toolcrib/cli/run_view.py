"""A run as it goes on: for a person beside the answer, or for a program as JSON.

In: its events, and how it ended. Out: stdout and stderr. `run_command` is above, `run_lines` has the words.
"""

from __future__ import annotations

import contextlib
import enum
import sys
from collections import deque
from dataclasses import asdict, fields
from typing import Any, Protocol

from toolcrib.cli.output import hint, say, say_line
from toolcrib.cli.run_lines import Telling, Times, called, closing, event_line, one_line, opening
from toolcrib.cli.run_screen import Screen
from toolcrib.coding_agents.events import AgentEvent, Kind, ToolStatus
from toolcrib.runs.result import ExecutionResult, Listing, Metadata, Status, Summary

_LAST_WORDS = 5
"""Lines of a program that failed."""


class Detail(enum.Enum):
    USUAL = enum.auto()
    ALL = enum.auto()
    """Every event."""


class View(Protocol):
    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: Metadata | None) -> None: ...

    def ending(self) -> None:
        """It was interrupted, and comes to its end."""

    def still(self) -> None:
        """Leaves the terminal as it was."""

    def over(self, result: ExecutionResult | None) -> None:
        """None: it was interrupted before it began."""


class ForPeople:
    def __init__(self, detail: Detail) -> None:
        self._detail = detail
        self._screen = Screen(sys.stderr)
        self._telling = Telling(Times.LEFT_OUT)
        self._title = ""
        self._opened = False
        self._under_way: dict[str, str] = {}
        self._said: deque[str] = deque(maxlen=_LAST_WORDS)

    def starting(self, title: str) -> None:
        self._title = title
        self._screen.wait(f"starting {title} …")

    def event(self, event: AgentEvent, about: Metadata | None) -> None:
        self._open(about)
        if event.kind is Kind.LOG and event.role != "toolcrib":
            self._said.append(event.text)
        for line in [event_line(event)] if self._detail is Detail.ALL else self._telling.of(event):
            self._screen.write(line)
        if event.kind is Kind.TOOL:
            self._follow_call(event)
        self._screen.wait(" · ".join(self._under_way.values()) or f"{self._title} is working …")

    def ending(self) -> None:
        self._under_way.clear()
        self._screen.write((("Ending the run; once more ends it at once.", "yellow"),))
        self._screen.wait("stopping …")

    def still(self) -> None:
        self._screen.still()

    def over(self, result: ExecutionResult | None) -> None:
        if result is None:
            self._screen.write((("Interrupted before it began.", "yellow"),))
            return
        about = _about(result)
        # A program that ended before it said a word is told of all the same.
        self._open(about)
        for line in self._telling.rest(but=result.text):
            self._screen.write(line)
        # Unless they are the very reason that is given below.
        if result.status is Status.FAILED and not any(result.error in text for text in self._said):
            for text in self._said:
                self._screen.write(((f"  {one_line(text)}", "dim"),))
        if result.text:
            if sys.stdout.isatty():
                self._screen.write()
            # Whoever was to read it may be gone with the terminal.
            with contextlib.suppress(OSError) if result.status is Status.INTERRUPTED else contextlib.nullcontext():
                say(result.text)
                sys.stdout.flush()
        self._screen.write()
        for line in closing(_summary(result), about, result.log):
            self._screen.write(line)

    def _open(self, about: Metadata | None) -> None:
        if about is not None and not self._opened:
            self._opened = True
            for line in opening(about):
                self._screen.write(line)
            self._screen.write()

    def _follow_call(self, event: AgentEvent) -> None:
        if event.tool_status is ToolStatus.STARTED:
            self._under_way[event.call] = f"{called(event)} …"
        else:
            self._under_way.pop(event.call, None)


class ForPrograms:
    def __init__(self, detail: Detail) -> None:
        self._detail = detail

    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: Metadata | None) -> None:
        if self._detail is Detail.ALL:
            say_line({"event": event.to_json()})
        elif event.kind is Kind.LOG and event.role == "toolcrib":
            hint(event.text)

    def ending(self) -> None: ...

    def still(self) -> None: ...

    def over(self, result: ExecutionResult | None) -> None:
        if result is None:
            say_line({"run_id": None, "status": Status.INTERRUPTED, "error": "It was interrupted before it began."})
            return
        say_line(
            {
                "run_id": result.run_id,
                "log": str(result.log),
                "text": result.text,
                "status": result.status,
                "exit_code": result.exit_code,
                "error": result.error,
                "usage": asdict(result.usage),
                **{name: result.metadata.get(name) for name in _TOLD},
            }
        )


_TOLD = (
    "tools",
    "denials",
    "seconds",
    "conversation",
    "session",
    "provider",
    "model",
    "profile",
    "agent",
    "workdir",
    "listing",
)


def _about(result: ExecutionResult) -> Metadata:
    return Metadata(**{one.name: result.metadata[one.name] for one in fields(Metadata)})


def _summary(result: ExecutionResult) -> Summary:
    told: dict[str, Any] = {name: result.metadata[name] for name in ("seconds", "session", "model", "tools", "denials")}
    return Summary(
        **told,
        status=result.status,
        exit_code=result.exit_code,
        text=result.text,
        error=result.error,
        usage=result.usage,
        listing=Listing(**result.metadata["listing"]),
    )
