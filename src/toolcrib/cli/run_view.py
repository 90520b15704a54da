"""A run as it goes on: for a person beside the answer, or for a program as JSON.

In: its events, and how it ended. Out: stdout and stderr. `run_command` is above, `run_lines` has the words.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any, Protocol, TypeAlias

from toolcrib.agent_events import AgentEvent, Kind, ToolStatus
from toolcrib.cli.output import hint, say, say_line
from toolcrib.cli.run_account import Seen, closing, opening
from toolcrib.cli.run_lines import Detail, Everything, Telling, Times, called, one_line
from toolcrib.cli.run_screen import Screen
from toolcrib.runs.result import ExecutionResult, Listing, Metadata, Status, Summary

_LAST_WORDS = 5
"""Lines of a program that failed."""


Mask: TypeAlias = Callable[[Any], Any]
"""Takes a run's secrets out of a text, or of what is made of texts."""


class View(Protocol):
    def starting(self, title: str) -> None: ...

    def event(self, event: AgentEvent, about: Metadata | None) -> None: ...

    def ending(self) -> None:
        """It was interrupted, and comes to its end."""

    def still(self) -> None:
        """Leaves the terminal as it was."""

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        """None: it was interrupted before it began. `exit_code` is the one that Toolcrib's process will have."""


class ForPeople:
    def __init__(self, detail: Detail) -> None:
        self._screen = Screen(sys.stderr)
        self._telling = Everything() if detail is Detail.ALL else Telling(Times.LEFT_OUT)
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
        for line in self._telling.of(event):
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

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        if result is None:
            self._screen.write((("Interrupted before it began.", "yellow"),))
            return
        about = _about(result)
        # A program that ended before it said a word is told of all the same.
        self._open(about)
        summary = _summary(result, mask)
        answer = self._answer(summary)
        for line in self._telling.rest(but=answer):
            self._screen.write(line)
        # Unless they are the very reason that is given below.
        if summary.status is Status.FAILED and not any(summary.error in text for text in self._said):
            for text in self._said:
                self._screen.write(((f"  {one_line(text)}", "dim"),))
        if answer:
            if sys.stdout.isatty():
                self._screen.write()
            say(answer)
            sys.stdout.flush()
        self._screen.write()
        for line in closing(summary, about, result.log, _seen(result, mask)):
            self._screen.write(line)

    def _answer(self, summary: Summary) -> str:
        """The last words of a run that was cut off are those of somebody in the midst of work; so are a failed one's
        where something followed them."""
        failed_with_these = summary.status is Status.FAILED and summary.text.strip() == self._telling.held.strip()
        return summary.text if summary.status is Status.FINISHED or failed_with_these else ""

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

    def over(self, result: ExecutionResult | None, mask: Mask, exit_code: int) -> None:
        if result is None:
            why = "It was interrupted before it began."
            say_line({"run_id": None, "status": Status.INTERRUPTED, "exit_code": exit_code, "error": why, "remedy": ""})
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
                "away": summary.away,
                "model": summary.model,
                **{name: result.metadata[name] for name in _TOLD},
            }
        )


_TOLD = (
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


def _about(result: ExecutionResult) -> Metadata:
    return Metadata(**{one.name: result.metadata[one.name] for one in fields(Metadata)})


def _seen(result: ExecutionResult, mask: Mask) -> Seen:
    seen = Seen()
    for event in result.raw_events:
        seen.note(event)
    return Seen(answered=seen.answered, denied=Counter({mask(name): times for name, times in seen.denied.items()}))


def _summary(result: ExecutionResult, mask: Mask) -> Summary:
    told: dict[str, Any] = {name: result.metadata[name] for name in ("seconds", "session", "denials", "failures")}
    return Summary(
        **told,
        status=result.status,
        program_exit_code=result.program_exit_code,
        text=mask(result.text),
        error=mask(result.error),
        remedy=mask(result.metadata["remedy"]),
        model=mask(result.metadata["model"]),
        tools={mask(name): times for name, times in result.metadata["tools"].items()},
        usage=result.usage,
        listing=Listing(**result.metadata["listing"]),
        away=mask(result.metadata["away"]),
    )
