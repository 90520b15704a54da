"""A run as text: its heading, its events and its result.

In: events, metadata and summaries, live or from a log (which isn't trusted). Out: lines, each a sequence of styled
texts. `run_view` prints them on a terminal or into a pipe.
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

from toolcrib.cli.output import counted, duration, shortened, size_of
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.process_alive import is_same_process
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary, ToolListSize
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

StyledText: TypeAlias = tuple[str, str]
"""A text and its style: empty, a colour, `bold` or `dim`."""
StyledLine: TypeAlias = tuple[StyledText, ...]

_MAX_VALUE_LENGTH = 60
_MAX_ARGUMENTS_LENGTH = 160
_MAX_NOTE_LENGTH = 200
_FAILURES = {
    ToolStatus.ERROR: "failed",
    ToolStatus.DENIED: "denied",
    ToolStatus.INVALID: "invalid arguments",
    ToolStatus.UNKNOWN: "unknown tool",
    ToolStatus.TIMEOUT: "timed out",
    ToolStatus.CANCELLED: "cancelled",
    ToolStatus.UNAVAILABLE: "server unavailable",
}


class EventDetail(enum.Enum):
    USUAL = enum.auto()
    ALL = enum.auto()


class EventTimes(enum.Enum):
    SHOWN = enum.auto()
    LEFT_OUT = enum.auto()
    """For events that are shown as they happen."""


class EventLines:
    """The messages, tool calls and warnings of a run.

    The last message is held back until another event follows, because it may be the answer, which is shown separately.
    """

    def __init__(self, times: EventTimes) -> None:
        self._times = times
        self._held: AgentEvent | None = None
        self.hidden = 0
        """The number of events that aren't shown."""

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
        """The lines held back, unless their text is `but`."""
        held, self._held = self._held, None
        if held is not None and not _has_text(held, but):
            yield from self._placed(held, [((line, ""),) for line in held.text.strip().splitlines()])

    def _shown(self, event: AgentEvent) -> Iterator[StyledLine]:
        if event.kind is AgentEventKind.TOOL and event.tool_status is not ToolStatus.STARTED:
            yield from self._placed(event, [tool_line(event)])
        elif event.kind is AgentEventKind.LOG and event.role == "toolcrib":
            yield from self._placed(event, [(("! ", "yellow"), (one_line(event.text), "yellow"))])
        elif event.kind is AgentEventKind.REASONING and event.text.strip():
            yield from self._placed(event, [(("· " + shortened(one_line(event.text), _MAX_NOTE_LENGTH), "dim"),)])

    def _placed(self, event: AgentEvent, lines: Iterable[StyledLine]) -> Iterator[StyledLine]:
        if self._times is EventTimes.LEFT_OUT:
            yield from lines
            return
        before = (f"{time_text(event.time, '%H:%M:%S')}  ", "dim")
        for line in lines:
            yield (before, *line)
            before = (" " * len(before[0]), "")


class AllEventLines:
    """Every event, in full. A message, and any of the program's own notes after it, waits until it is clear whether it
    is the answer, which is shown separately."""

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
        """The lines held back, without a first message whose text is `but`."""
        waiting, self._waiting = self._waiting, []
        return (event_line(event) for index, event in enumerate(waiting) if index or not _has_text(event, but))


def tool_line(event: AgentEvent) -> StyledLine:
    """A finished call."""
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
    """Any event, in full, on one line."""
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
    """As you would type them; long ones are shortened with an ellipsis."""
    text = " ".join(f"{one_line(str(name))}={_value(value)}" for name, value in given.items())
    return shortened(text, _MAX_ARGUMENTS_LENGTH)


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
    return event.kind is AgentEventKind.MESSAGE and event.role == "assistant" and bool(event.text)


def _has_text(event: AgentEvent, text: str) -> bool:
    return event.text.strip() == text.strip()


def _failure_text(event: AgentEvent) -> str:
    failure = _FAILURES.get(event.tool_status or ToolStatus.ERROR, "failed")
    reason = event.rule if event.tool_status is ToolStatus.DENIED and event.rule else event.text
    reason = shortened(one_line(reason), _MAX_NOTE_LENGTH)
    return f"{failure}: {reason}" if reason else failure


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return shortened(value, _MAX_VALUE_LENGTH)
    return shortened(_json(value), _MAX_VALUE_LENGTH)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(too deeply nested to show)"


STATUS_STYLES: Mapping[RunStatus, str] = {
    RunStatus.FINISHED: "green",
    RunStatus.RUNNING: "yellow",
    RunStatus.INTERRUPTED: "yellow",
}
"""Every other status is red."""
USUAL_PROFILES = ("nothing", "read-only", "developer")
"""Profiles that a log may set for the next run. A file in the project must not grant more than these."""

_LABEL_WIDTH = 14
_MAX_PROMPT_LINES = 40
_MAX_PROMPT_LENGTH = 4000


class LabelledLine(tuple[StyledText, ...]):
    """A label and a text. On a terminal, the text wraps in its own column."""

    __slots__ = ()


@dataclass(kw_only=True)
class RunFacts:
    """Facts from a run's events that its summary doesn't have."""

    answered: bool = False
    """Whether the model produced anything. Before that, a program's session cannot be continued."""
    denied: Counter[str] = field(default_factory=Counter)
    """The number of denied calls of each tool."""

    def note(self, event: AgentEvent) -> None:
        is_message = event.kind is AgentEventKind.MESSAGE and event.role == "assistant"
        self.answered = self.answered or is_message or event.kind in (AgentEventKind.TOOL, AgentEventKind.REASONING)
        if event.tool_status is ToolStatus.DENIED:
            self.denied[tool_of(event)] += 1


def opening_lines(about: RunMetadata, detail: EventDetail = EventDetail.ALL) -> Iterator[StyledLine]:
    """The program, profile, folder and conversation, and which of the program's actions are governed."""
    program = f"{about.provider} {about.version}".strip()
    yield (
        (one_line(program), "bold"),
        (f" as {one_line(about.profile)} in {one_line(about.workdir)}", ""),
    )
    continued = " (continued)" if about.session_before else ""
    yield _row("conversation", one_line(about.conversation) + continued)
    for label, texts, style in (("governed", about.governed, ""), ("not governed", about.ungoverned, "yellow")):
        if texts and detail is EventDetail.USUAL:
            yield _row(label, f"{counted(len(texts), 'line')}, shown by --events", style)
            continue
        for place, text in enumerate(texts):
            yield _row("" if place else label, one_line(text), style)


def heading_lines(about: RunMetadata, status: RunStatus, detail: EventDetail) -> Iterator[StyledLine]:
    """The heading of a run from a log, with its start time and prompt."""
    yield (
        ("run ", ""),
        (about.run_id, "bold"),
        (" ", ""),
        (status.replace("_", " "), STATUS_STYLES.get(status, "red")),
    )
    yield from opening_lines(about, detail)
    yield _row("started", time_text(about.started_at, "%Y-%m-%d %H:%M:%S"))
    yield _row("agent", f"{one_line(about.agent) or 'none'}, own tools: {one_line(about.own_tools)}")
    yield from _prompt(about.prompt.strip() or "(empty)")


def closing_lines(summary: RunSummary, about: RunMetadata, log: Path, seen: RunFacts) -> Iterator[StyledLine]:
    style = STATUS_STYLES.get(summary.status, "red")
    mark = "✓ " if summary.status is RunStatus.FINISHED else "✗ "
    # You know why you interrupted it.
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
        yield _row("continue", _continue_command(about))


def unfinished_lines(about: RunMetadata, log: Path, session: str) -> Iterator[StyledLine]:
    """The end of a log without a summary; `session` is the program's own, if known."""
    alive = is_same_process(about.pid, about.pid_began)
    if alive:
        yield (("Still running", "yellow"), (f": `toolcrib runs tail {about.run_id}` follows it.", ""))
    else:
        yield (("✗ killed", "red"), (": its process ended without writing a summary.", ""))
    yield _row("log", str(log))
    if session and not alive:
        yield _row("continue", _continue_command(about))


def _row(label: str, text: str, style: str = "") -> LabelledLine:
    return LabelledLine(((f"  {label:<{_LABEL_WIDTH}}", "dim"), (text, style)))


def _prompt(prompt: str) -> Iterator[StyledLine]:
    lines = prompt.splitlines()
    shown = shortened("\n".join(lines[:_MAX_PROMPT_LINES]), _MAX_PROMPT_LENGTH)
    for index, line in enumerate(shown.splitlines()):
        yield _row("" if index else "prompt", line)
    if hidden := len("\n".join(lines)) - len(shown):
        yield _row("", f"({counted(hidden, 'character')} more; --json shows everything)", "dim")


def _continue_command(about: RunMetadata) -> str:
    """The whole command, quoted so that it is safe to copy even if the log is malicious."""
    options = ["--conversation", about.conversation]
    options += [] if about.profile in USUAL_PROFILES else ["--profile", about.profile]
    options += [] if _is_here(about.workdir) else ["--workdir", about.workdir]
    return one_line(f'toolcrib run {shlex.quote(about.provider)} "…" {shlex.join(options)}')


def _is_here(folder: str) -> bool:
    try:
        return Path(folder) == Path.cwd()
    except OSError:
        return False


def _tools(summary: RunSummary, denied: Mapping[str, int]) -> str:
    """The tools that were used, then those that were denied."""
    names = {one_line(name): times for name, times in summary.tools.items()}
    used = {name: times - denied.get(name, 0) for name, times in names.items() if times > denied.get(name, 0)}
    refused = {name: times for name, times in denied.items() if name in names}
    parts = [f"{name} {times}" for name, times in _most_first(used)]
    parts += [f"{name} {times} (denied)" for name, times in _most_first(refused)]
    return ", ".join(parts) or "none called"


def _most_first(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def _tokens(usage: TokenUsage) -> str:
    if usage.input is None and usage.output is None:
        return "not reported"
    # Some providers include cached tokens in the input, others don't.
    counts = (("in", usage.input), ("out", usage.output), ("cached", usage.cached))
    return ", ".join(f"{number:,} {label}" for label, number in counts if number is not None)


def _listing_text(listing: ToolListSize) -> str:
    if not listing.tools:
        return ""
    about = "~" if listing.tokens_estimated else ""
    return f"{counted(listing.tools, 'tool')}, {size_of(listing.bytes)}, {about}{counted(listing.tokens, 'token')}"
