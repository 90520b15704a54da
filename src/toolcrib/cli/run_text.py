"""How a run reads for people: its heading, each event, and its result.

In: events, metadata and summaries, live or from a log (which may be anybody's work). Out: lines, each made of pieces
of text with a style. `run_view` prints them on a terminal or into a pipe.
"""

from __future__ import annotations

import enum
import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from toolcrib.cli.output import duration, shortened, size_of
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.process_alive import is_same_process
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary, ToolListSize
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

StyledText: TypeAlias = tuple[str, str]
"""A text and its style; the style is empty, a colour, `bold` or `dim`."""
StyledLine: TypeAlias = tuple[StyledText, ...]

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
    ToolStatus.UNAVAILABLE: "its server is unavailable",
}


class EventDetail(enum.Enum):
    USUAL = enum.auto()
    ALL = enum.auto()
    """Every event."""


class EventTimes(enum.Enum):
    SHOWN = enum.auto()
    LEFT_OUT = enum.auto()
    """Where the lines come as things happen."""


class EventLines:
    """What happens in a run, with what a person wants to know: messages, tools, warnings.

    The last message is held back until something follows, for it may be the answer, which has a place of its own.
    """

    def __init__(self, times: EventTimes) -> None:
        self._times = times
        self._held: AgentEvent | None = None
        self.hidden = 0
        """Events that only the whole list shows."""

    @property
    def held(self) -> str:
        return "" if self._held is None else self._held.text

    def of(self, event: AgentEvent) -> Iterator[StyledLine]:
        if _may_be_answer(event):
            yield from self.rest()
            self._held = event
            return
        lines = tuple(self._shown(event))
        if lines or event.kind is AgentEventKind.TOOL:
            yield from self.rest()
        else:
            self.hidden += 1
        yield from lines

    def rest(self, *, but: str = "") -> Iterator[StyledLine]:
        """What is held back, unless it is this text."""
        held, self._held = self._held, None
        if held is not None and not _has_text(held, but):
            yield from self._placed(held, [((line, ""),) for line in held.text.strip().splitlines()])

    def _shown(self, event: AgentEvent) -> Iterator[StyledLine]:
        if event.kind is AgentEventKind.TOOL and event.tool_status is not ToolStatus.STARTED:
            yield from self._placed(event, [tool_line(event)])
        elif event.kind is AgentEventKind.LOG and event.role == "toolcrib":
            yield from self._placed(event, [(("! ", "yellow"), (one_line(event.text), "yellow"))])
        elif event.kind is AgentEventKind.REASONING and event.text.strip():
            yield from self._placed(event, [(("· " + shortened(one_line(event.text), _NOTE), "dim"),)])

    def _placed(self, event: AgentEvent, lines: Iterable[StyledLine]) -> Iterator[StyledLine]:
        if self._times is EventTimes.LEFT_OUT:
            yield from lines
            return
        before = (f"{time_text(event.time, '%H:%M:%S')}  ", "dim")
        for line in lines:
            yield (before, *line)
            before = (" " * len(before[0]), "")


class AllEventLines:
    """Every event, whole. Only a message waits, with the program's own notes after it, until it is known whether it is
    the answer, which has a place of its own."""

    def __init__(self) -> None:
        self._waiting: list[AgentEvent] = []

    @property
    def held(self) -> str:
        return self._waiting[0].text if self._waiting else ""

    def of(self, event: AgentEvent) -> Iterator[StyledLine]:
        own_note = event.kind is AgentEventKind.RAW or (event.kind is AgentEventKind.LOG and event.role != "toolcrib")
        if self._waiting and own_note:
            self._waiting.append(event)
            return
        yield from self.rest()
        if _may_be_answer(event):
            self._waiting.append(event)
        else:
            yield event_line(event)

    def rest(self, *, but: str = "") -> Iterator[StyledLine]:
        """What is held back, unless it is this text."""
        waiting, self._waiting = self._waiting, []
        return (event_line(one) for place, one in enumerate(waiting) if place or not _has_text(one, but))


def tool_line(event: AgentEvent) -> StyledLine:
    """A call that is over."""
    fine = event.tool_status is ToolStatus.OK
    pieces: list[StyledText] = [("✓ ", "green") if fine else ("✗ ", "red"), (tool_of(event), "bold")]
    if event.tool_args:
        pieces.append((f"  {arguments_text(event.tool_args)}", ""))
    if event.tool_duration_ms is not None:
        pieces.append((f"  {seconds_text(event.tool_duration_ms / 1000)}", "dim"))
    if not fine:
        pieces.append((f"  {_failure_text(event)}", "red"))
    return tuple(pieces)


def event_line(event: AgentEvent) -> StyledLine:
    """Any event, whole, on one line."""
    parts: list[str] = []
    if event.kind is AgentEventKind.TOOL:
        parts += [tool_of(event), str(event.tool_status or "")]
        parts.append("" if event.tool_args is None else _json(event.tool_args))
        parts.append("" if event.tool_duration_ms is None else seconds_text(event.tool_duration_ms / 1000))
        parts.append(" ".join(filter(None, (event.decision, f"({event.rule})" if event.rule else ""))))
    parts.append(event.text)
    if event.kind is AgentEventKind.RAW and not event.text:
        parts.append(event.raw if isinstance(event.raw, str) else _json(event.raw))
    text = "  ".join(filter(None, parts)).replace("\n", "\\n")
    return (
        (f"{time_text(event.time, '%H:%M:%S')}  ", "dim"),
        (f"{event.kind.value:<9}  {one_line(event.role):<9}  ", "dim"),
        (text, ""),
    )


def tool_of(event: AgentEvent) -> str:
    return one_line(f"{event.server}:{event.tool_name}" if event.server else event.tool_name)


def arguments_text(given: Mapping[str, Any]) -> str:
    """As a person would type them; what is long is shortened, which shows."""
    return shortened(" ".join(f"{one_line(str(name))}={_value(value)}" for name, value in given.items()), _ARGUMENTS)


def seconds_text(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def time_text(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def one_line(text: str) -> str:
    return " ".join(text.split())


def _may_be_answer(event: AgentEvent) -> bool:
    """Whether it may be the answer."""
    return event.kind is AgentEventKind.MESSAGE and event.role == "assistant" and bool(event.text)


def _has_text(said: AgentEvent, text: str) -> bool:
    return said.text.strip() == text.strip()


def _failure_text(event: AgentEvent) -> str:
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


STATUS_STYLES: Mapping[RunStatus, str] = {
    RunStatus.FINISHED: "green",
    RunStatus.RUNNING: "yellow",
    RunStatus.INTERRUPTED: "yellow",
}
"""Every other is red."""
USUAL_PROFILES = ("nothing", "read-only", "developer")
"""Profiles that a log may name for the next run: a file of the project must not give more than is usual."""

_LABEL = 14
_PROMPT_LINES = 40
_PROMPT = 4000
"""Characters."""


class LabelledLine(tuple[StyledText, ...]):
    """A label and a text; what does not fit on a terminal's line stands beneath the text."""

    __slots__ = ()


@dataclass(kw_only=True)
class RunFacts:
    """What the events of a run say that its summary does not."""

    answered: bool = False
    """Whether a model said or did anything: before that, a program's session is none to go on in."""
    denied: Counter[str] = field(default_factory=Counter)
    """How many calls of each tool."""

    def note(self, event: AgentEvent) -> None:
        said = event.kind is AgentEventKind.MESSAGE and event.role == "assistant"
        self.answered = self.answered or said or event.kind in (AgentEventKind.TOOL, AgentEventKind.REASONING)
        if event.tool_status is ToolStatus.DENIED:
            self.denied[tool_of(event)] += 1


def opening_lines(about: RunMetadata, detail: EventDetail = EventDetail.ALL) -> Iterator[StyledLine]:
    """Who does what, where, and what is governed of it."""
    program = f"{about.provider} {about.version}".strip()
    yield (
        (one_line(program), "bold"),
        (f" as {one_line(about.profile)} in {one_line(about.workdir)}", ""),
    )
    goes_on = " (goes on)" if about.session_before else ""
    yield _row("conversation", one_line(about.conversation) + goes_on)
    for label, texts, style in (("governed", about.governed, ""), ("not governed", about.ungoverned, "yellow")):
        if texts and detail is EventDetail.USUAL:
            yield _row(label, f"{_count(len(texts), 'line')}, shown by --events", style)
            continue
        for place, text in enumerate(texts):
            yield _row("" if place else label, one_line(text), style)


def heading_lines(about: RunMetadata, status: RunStatus, detail: EventDetail) -> Iterator[StyledLine]:
    """For a run out of a log: also when it was, and what it was asked."""
    yield (
        ("run ", ""),
        (about.run_id, "bold"),
        (" ", ""),
        (status.replace("_", " "), STATUS_STYLES.get(status, "red")),
    )
    yield from opening_lines(about, detail)
    yield _row("began", time_text(about.started_at, "%Y-%m-%d %H:%M:%S"))
    yield _row("agent", f"{one_line(about.agent) or 'none'}, own tools: {one_line(about.own_tools)}")
    yield from _prompt(about.prompt.strip() or "(empty)")


def closing_lines(summary: RunSummary, about: RunMetadata, log: Path, seen: RunFacts) -> Iterator[StyledLine]:
    style = STATUS_STYLES.get(summary.status, "red")
    mark = "✓ " if summary.status is RunStatus.FINISHED else "✗ "
    # Whoever interrupted it knows why.
    why = f": {one_line(summary.error)}" if summary.error and summary.status is not RunStatus.INTERRUPTED else ""
    yield (
        (mark, style),
        (summary.status.replace("_", " "), style),
        (f" after {seconds_text(summary.seconds)}{why}", ""),
    )
    if summary.remedy:
        yield _row("remedy", one_line(summary.remedy), "yellow")
    for server, why in summary.unavailable.items():
        yield _row("unavailable", f"{one_line(server)}: {one_line(why)}", "yellow")
    if summary.model:
        yield _row("model", one_line(summary.model))
    failed = f" ({summary.failures} failed)" if summary.failures else ""
    yield _row("tools", _tools(summary, seen.denied) + failed)
    yield _row("tokens", _tokens(summary.usage))
    if listing := _listing_text(summary.listing):
        yield _row("tool list", listing)
    yield _row("log", str(log))
    if summary.session and (seen.answered or summary.status is not RunStatus.FAILED):
        yield _row("go on", _continue_command(about))


def unfinished_lines(about: RunMetadata, log: Path, session: str) -> Iterator[StyledLine]:
    """For a log without a summary; `session` is the program's own, as far as it is known."""
    living = is_same_process(about.pid, about.pid_began)
    if living:
        yield (("It still goes on", "yellow"), (f": `toolcrib runs tail {about.run_id}` follows it.", ""))
    else:
        yield (("✗ killed", "red"), (": the process that ran it is gone, and left no summary.", ""))
    yield _row("log", str(log))
    if session and not living:
        yield _row("go on", _continue_command(about))


def _row(label: str, text: str, style: str = "") -> LabelledLine:
    return LabelledLine(((f"  {label:<{_LABEL}}", "dim"), (text, style)))


def _prompt(prompt: str) -> Iterator[StyledLine]:
    lines = prompt.splitlines()
    shown = shortened("\n".join(lines[:_PROMPT_LINES]), _PROMPT)
    for place, line in enumerate(shown.splitlines()):
        yield _row("" if place else "prompt", line)
    if left := len("\n".join(lines)) - len(shown):
        yield _row("", f"({_count(left, 'character')} more; --json has them)", "dim")


def _continue_command(about: RunMetadata) -> str:
    """The whole command, safe to be copied whatever a log says."""
    words = ["--conversation", about.conversation]
    words += [] if about.profile in USUAL_PROFILES else ["--profile", about.profile]
    words += [] if _is_here(about.workdir) else ["--workdir", about.workdir]
    return one_line(f'toolcrib run {shlex.quote(about.provider)} "…" {shlex.join(words)}')


def _is_here(folder: str) -> bool:
    try:
        return Path(folder) == Path.cwd()
    except OSError:
        return False


def _tools(summary: RunSummary, denied: Mapping[str, int]) -> str:
    """What was used, then what was only asked for."""
    names = {one_line(name): times for name, times in summary.tools.items()}
    used = {name: times - denied.get(name, 0) for name, times in names.items() if times > denied.get(name, 0)}
    refused = {name: times for name, times in denied.items() if name in names}
    parts = [f"{name} {times}" for name, times in _most_first(used)]
    parts += [f"{name} {times} (denied)" for name, times in _most_first(refused)]
    return ", ".join(parts) or "none called"


def _most_first(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda one: (-one[1], one[0]))


def _tokens(usage: TokenUsage) -> str:
    if usage.input is None and usage.output is None:
        return "not reported"
    # Whether what came from the cache is also counted as input is each provider's own affair.
    counts = (("in", usage.input), ("out", usage.output), ("cached", usage.cached))
    return ", ".join(f"{number:,} {word}" for word, number in counts if number is not None)


def _listing_text(listing: ToolListSize) -> str:
    if not listing.tools:
        return ""
    about = "~" if listing.tokens_estimated else ""
    return f"{_count(listing.tools, 'tool')}, {size_of(listing.bytes)}, {about}{_count(listing.tokens, 'token')}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
