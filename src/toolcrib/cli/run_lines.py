"""How a run reads for people: its beginning, what happens in it, and what it came to.

In: metadata, events and summaries, as they happen or out of a log (which may be anybody's work). Out: lines, each of
pieces of text with a style. `run_screen` puts them on a terminal or into a pipe; `run` and `runs` say when.
"""

from __future__ import annotations

import enum
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from toolcrib.cli.columns import shortened
from toolcrib.cli.output import duration
from toolcrib.cli.results import size_of
from toolcrib.coding_agents.events import AgentEvent, Kind, ToolStatus
from toolcrib.coding_agents.headless import Usage
from toolcrib.runs.alive import lives
from toolcrib.runs.result import Listing, Metadata, Status, Summary

Piece: TypeAlias = tuple[str, str]
"""A text and its style; the style is empty, a colour, `bold` or `dim`."""
Line: TypeAlias = tuple[Piece, ...]

STATUS_STYLES: Mapping[Status, str] = {
    Status.FINISHED: "green",
    Status.RUNNING: "yellow",
    Status.INTERRUPTED: "yellow",
}
"""Every other is red."""

_VALUE = 60
_ARGUMENTS = 160
_NOTE = 200
_LABEL = 14
_NOT_WELL = {
    ToolStatus.ERROR: "failed",
    ToolStatus.DENIED: "denied",
    ToolStatus.INVALID: "its arguments do not fit",
    ToolStatus.UNKNOWN: "there is no such tool",
    ToolStatus.TIMEOUT: "no answer in time",
    ToolStatus.CANCELLED: "not over",
    ToolStatus.AWAY: "its server is away",
}


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

    def of(self, event: AgentEvent) -> Iterator[Line]:
        if event.kind is Kind.MESSAGE and event.role == "assistant" and event.text:
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
        if held is not None and held.text.strip() != but.strip():
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


def opening(about: Metadata) -> Iterator[Line]:
    """Who does what, where, and what is governed of it."""
    program = f"{about.provider} {about.version}".strip()
    yield (
        (one_line(program), "bold"),
        (f" as {one_line(about.profile)} in {one_line(about.workdir)}", ""),
    )
    goes_on = " (goes on)" if about.session_before else ""
    yield _row("conversation", one_line(about.conversation) + goes_on)
    for label, told in (("governed", about.governed), ("not governed", about.ungoverned)):
        for place, text in enumerate(told):
            yield _row("" if place else label, one_line(text), "yellow" if label.startswith("not") else "")


def heading(about: Metadata, status: Status) -> Iterator[Line]:
    """For a run out of a log: also when it was, and what it was asked."""
    yield (
        ("run ", ""),
        (about.run_id, "bold"),
        (" ", ""),
        (status.replace("_", " "), STATUS_STYLES.get(status, "red")),
    )
    yield from opening(about)
    yield _row("began", moment(about.started_at, "%Y-%m-%d %H:%M:%S"))
    yield _row("agent", f"{one_line(about.agent) or 'none'}, own tools: {one_line(about.own_tools)}")
    for place, line in enumerate(about.prompt.strip().splitlines() or ["(empty)"]):
        yield _row("" if place else "prompt", line)


def closing(summary: Summary, about: Metadata, log: Path) -> Iterator[Line]:
    style = STATUS_STYLES.get(summary.status, "red")
    mark = "✓ " if summary.status is Status.FINISHED else "✗ "
    why = f": {one_line(summary.error)}" if summary.error else ""
    yield ((mark, style), (summary.status.replace("_", " "), style), (f" after {span(summary.seconds)}{why}", ""))
    if summary.model:
        yield _row("model", one_line(summary.model))
    yield _row("tools", _called(summary))
    yield _row("tokens", tokens(summary.usage))
    if listing := listed(summary.listing):
        yield _row("tool list", listing)
    yield _row("log", str(log))
    if summary.session:
        yield _row("go on", one_line(f'toolcrib run {about.provider} "…" --conversation {about.conversation}'))


def no_end(about: Metadata, log: Path) -> Iterator[Line]:
    """For a log without a summary."""
    if lives(about.pid, about.pid_began):
        yield (("It still goes on", "yellow"), (f": `toolcrib runs tail {about.run_id}` follows it.", ""))
    else:
        yield (("✗ killed", "red"), (": the process that ran it is gone, and left no summary.", ""))
    yield _row("log", str(log))


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


def tokens(usage: Usage) -> str:
    if usage.input is None and usage.output is None:
        return "not told"
    # Whether what came from the cache is also counted as input is each provider's own affair.
    told = (("in", usage.input), ("out", usage.output), ("cached", usage.cached))
    return ", ".join(f"{number:,} {word}" for word, number in told if number is not None)


def listed(listing: Listing) -> str:
    if not listing.tools:
        return ""
    return f"{_count(listing.tools, 'tool')}, {size_of(listing.bytes)}, about {_count(listing.tokens, 'token')}"


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


def _row(label: str, text: str, style: str = "") -> Line:
    return ((f"  {label:<{_LABEL}}", "dim"), (text, style))


def _called(summary: Summary) -> str:
    if not summary.tools:
        return "none called"
    most_first = sorted(summary.tools.items(), key=lambda one: (-one[1], one[0]))
    told = ", ".join(one_line(name) + (f" ({times} times)" if times > 1 else "") for name, times in most_first)
    return told + (f"; {summary.denials} denied" if summary.denials else "")


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


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
