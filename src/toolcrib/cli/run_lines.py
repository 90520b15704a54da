"""How what happens in a run reads for people.

In: events, as they happen or out of a log (which may be anybody's work). Out: lines, each of pieces of text with a
style. `run_account` has how a run began and what it came to. `run_screen` puts lines on a terminal or into a pipe.
"""

from __future__ import annotations

import enum
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from toolcrib.agent_events import AgentEvent, Kind, ToolStatus
from toolcrib.cli.columns import shortened
from toolcrib.cli.output import duration

Piece: TypeAlias = tuple[str, str]
"""A text and its style; the style is empty, a colour, `bold` or `dim`."""
Line: TypeAlias = tuple[Piece, ...]

_VALUE = 60
_ARGUMENTS = 160
_NOTE = 200
_NOT_WELL = {
    ToolStatus.ERROR: "failed",
    ToolStatus.DENIED: "denied",
    ToolStatus.INVALID: "its arguments do not fit",
    ToolStatus.UNKNOWN: "there is no such tool",
    ToolStatus.TIMEOUT: "no answer in time",
    ToolStatus.CANCELLED: "not over",
    ToolStatus.AWAY: "its server is away",
}


class Detail(enum.Enum):
    USUAL = enum.auto()
    ALL = enum.auto()
    """Every event."""


class Times(enum.Enum):
    SHOWN = enum.auto()
    LEFT_OUT = enum.auto()
    """Where the lines come as things happen."""


class Telling:
    """What happens in a run, told with what a person wants to know: messages, tools, warnings.

    The last message is held back until something follows, for it may be the answer, which has a place of its own.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._held: AgentEvent | None = None
        self.untold = 0
        """Events that only the whole list shows."""

    @property
    def held(self) -> str:
        return "" if self._held is None else self._held.text

    def of(self, event: AgentEvent) -> Iterator[Line]:
        if _is_said(event):
            yield from self.rest()
            self._held = event
            return
        told = tuple(self._told(event))
        if told or event.kind is Kind.TOOL:
            yield from self.rest()
        else:
            self.untold += 1
        yield from told

    def rest(self, *, but: str = "") -> Iterator[Line]:
        """What is held back, unless it is this text."""
        held, self._held = self._held, None
        if held is not None and not _is(held, but):
            yield from self._placed(held, [((line, ""),) for line in held.text.strip().splitlines()])

    def _told(self, event: AgentEvent) -> Iterator[Line]:
        if event.kind is Kind.TOOL and event.tool_status is not ToolStatus.STARTED:
            yield from self._placed(event, [tool_line(event)])
        elif event.kind is Kind.LOG and event.role == "toolcrib":
            yield from self._placed(event, [(("! ", "yellow"), (one_line(event.text), "yellow"))])
        elif event.kind is Kind.REASONING and event.text.strip():
            yield from self._placed(event, [(("· " + shortened(one_line(event.text), _NOTE), "dim"),)])

    def _placed(self, event: AgentEvent, lines: Iterable[Line]) -> Iterator[Line]:
        if self._times is Times.LEFT_OUT:
            yield from lines
            return
        before = (f"{moment(event.time, '%H:%M:%S')}  ", "dim")
        for line in lines:
            yield (before, *line)
            before = (" " * len(before[0]), "")


class Everything:
    """Every event, whole. Only a message waits, with the program's own notes after it, until it is known whether it is
    the answer, which has a place of its own."""

    def __init__(self) -> None:
        self._waiting: list[AgentEvent] = []

    @property
    def held(self) -> str:
        return self._waiting[0].text if self._waiting else ""

    def of(self, event: AgentEvent) -> Iterator[Line]:
        own_note = event.kind is Kind.RAW or (event.kind is Kind.LOG and event.role != "toolcrib")
        if self._waiting and own_note:
            self._waiting.append(event)
            return
        yield from self.rest()
        if _is_said(event):
            self._waiting.append(event)
        else:
            yield event_line(event)

    def rest(self, *, but: str = "") -> Iterator[Line]:
        """What is held back, unless it is this text."""
        waiting, self._waiting = self._waiting, []
        return (event_line(one) for place, one in enumerate(waiting) if place or not _is(one, but))


def tool_line(event: AgentEvent) -> Line:
    """A call that is over."""
    fine = event.tool_status is ToolStatus.OK
    pieces: list[Piece] = [("✓ ", "green") if fine else ("✗ ", "red"), (called(event), "bold")]
    if event.tool_args:
        pieces.append((f"  {arguments(event.tool_args)}", ""))
    if event.tool_duration_ms is not None:
        pieces.append((f"  {span(event.tool_duration_ms / 1000)}", "dim"))
    if not fine:
        pieces.append((f"  {_why(event)}", "red"))
    return tuple(pieces)


def event_line(event: AgentEvent) -> Line:
    """Any event, whole, on one line."""
    told: list[str] = []
    if event.kind is Kind.TOOL:
        told += [called(event), str(event.tool_status or "")]
        told.append("" if event.tool_args is None else _json(event.tool_args))
        told.append("" if event.tool_duration_ms is None else span(event.tool_duration_ms / 1000))
        told.append(" ".join(filter(None, (event.decision, f"({event.rule})" if event.rule else ""))))
    told.append(event.text)
    if event.kind is Kind.RAW and not event.text:
        told.append(event.raw if isinstance(event.raw, str) else _json(event.raw))
    text = "  ".join(filter(None, told)).replace("\n", "\\n")
    return (
        (f"{moment(event.time, '%H:%M:%S')}  ", "dim"),
        (f"{event.kind.value:<9}  {one_line(event.role):<9}  ", "dim"),
        (text, ""),
    )


def called(event: AgentEvent) -> str:
    return one_line(f"{event.server}:{event.tool_name}" if event.server else event.tool_name)


def arguments(given: Mapping[str, Any]) -> str:
    """As a person would type them; what is long is shortened, which shows."""
    return shortened(" ".join(f"{one_line(str(name))}={_value(value)}" for name, value in given.items()), _ARGUMENTS)


def span(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def moment(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def one_line(text: str) -> str:
    return " ".join(text.split())


def _is_said(event: AgentEvent) -> bool:
    """Whether it may be the answer."""
    return event.kind is Kind.MESSAGE and event.role == "assistant" and bool(event.text)


def _is(said: AgentEvent, text: str) -> bool:
    return said.text.strip() == text.strip()


def _why(event: AgentEvent) -> str:
    words = _NOT_WELL.get(event.tool_status or ToolStatus.ERROR, "failed")
    said = event.rule if event.tool_status is ToolStatus.DENIED and event.rule else event.text
    said = shortened(one_line(said), _NOTE)
    return f"{words}: {said}" if said else words


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return shortened(value, _VALUE)
    return shortened(_json(value), _VALUE)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply to be shown)"
