"""How a run began and what it came to, for people.

In: metadata and summaries, as they are known or out of a log (which may be anybody's work), and what its events add.
Out: lines, most of them a label and a text. `run_lines` has what happened in between.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.agent_events import AgentEvent, Kind, ToolStatus
from toolcrib.cli.columns import shortened
from toolcrib.cli.results import size_of
from toolcrib.cli.run_lines import Detail, Line, Piece, called, moment, one_line, span
from toolcrib.coding_agents.headless import Usage
from toolcrib.runs.alive import lives
from toolcrib.runs.result import Listing, Metadata, Status, Summary

STATUS_STYLES: Mapping[Status, str] = {
    Status.FINISHED: "green",
    Status.RUNNING: "yellow",
    Status.INTERRUPTED: "yellow",
}
"""Every other is red."""
NO_WIDER = ("nothing", "read-only", "developer")
"""Profiles that a log may name for the next run: a file of the project must not give more than is usual."""

_LABEL = 14
_PROMPT_LINES = 40
_PROMPT = 4000
"""Characters."""


class Row(tuple[Piece, ...]):
    """A label and a text; what does not fit on a terminal's line stands beneath the text."""

    __slots__ = ()


@dataclass(kw_only=True)
class Seen:
    """What the events of a run tell that its summary does not."""

    answered: bool = False
    """Whether a model said or did anything: before that, a program's session is none to go on in."""
    denied: Counter[str] = field(default_factory=Counter)
    """How many calls of each tool."""

    def note(self, event: AgentEvent) -> None:
        said = event.kind is Kind.MESSAGE and event.role == "assistant"
        self.answered = self.answered or said or event.kind in (Kind.TOOL, Kind.REASONING)
        if event.tool_status is ToolStatus.DENIED:
            self.denied[called(event)] += 1


def opening(about: Metadata, detail: Detail = Detail.ALL) -> Iterator[Line]:
    """Who does what, where, and what is governed of it."""
    program = f"{about.provider} {about.version}".strip()
    yield (
        (one_line(program), "bold"),
        (f" as {one_line(about.profile)} in {one_line(about.workdir)}", ""),
    )
    goes_on = " (goes on)" if about.session_before else ""
    yield _row("conversation", one_line(about.conversation) + goes_on)
    for label, told, style in (("governed", about.governed, ""), ("not governed", about.ungoverned, "yellow")):
        if told and detail is Detail.USUAL:
            yield _row(label, f"{_count(len(told), 'line')}, shown by --events", style)
            continue
        for place, text in enumerate(told):
            yield _row("" if place else label, one_line(text), style)


def heading(about: Metadata, status: Status, detail: Detail) -> Iterator[Line]:
    """For a run out of a log: also when it was, and what it was asked."""
    yield (
        ("run ", ""),
        (about.run_id, "bold"),
        (" ", ""),
        (status.replace("_", " "), STATUS_STYLES.get(status, "red")),
    )
    yield from opening(about, detail)
    yield _row("began", moment(about.started_at, "%Y-%m-%d %H:%M:%S"))
    yield _row("agent", f"{one_line(about.agent) or 'none'}, own tools: {one_line(about.own_tools)}")
    yield from _prompt(about.prompt.strip() or "(empty)")


def closing(summary: Summary, about: Metadata, log: Path, seen: Seen) -> Iterator[Line]:
    style = STATUS_STYLES.get(summary.status, "red")
    mark = "✓ " if summary.status is Status.FINISHED else "✗ "
    # Whoever interrupted it knows why.
    why = f": {one_line(summary.error)}" if summary.error and summary.status is not Status.INTERRUPTED else ""
    yield ((mark, style), (summary.status.replace("_", " "), style), (f" after {span(summary.seconds)}{why}", ""))
    if summary.remedy:
        yield _row("remedy", one_line(summary.remedy), "yellow")
    for server, why in summary.away.items():
        yield _row("not there", f"{one_line(server)}: {one_line(why)}", "yellow")
    if summary.model:
        yield _row("model", one_line(summary.model))
    failed = f" ({summary.failures} failed)" if summary.failures else ""
    yield _row("tools", _tools(summary, seen.denied) + failed)
    yield _row("tokens", _tokens(summary.usage))
    if listing := _listed(summary.listing):
        yield _row("tool list", listing)
    yield _row("log", str(log))
    if summary.session and (seen.answered or summary.status is not Status.FAILED):
        yield _row("go on", _goes_on(about))


def no_end(about: Metadata, log: Path, session: str) -> Iterator[Line]:
    """For a log without a summary; `session` is the program's own, as far as it told one."""
    living = lives(about.pid, about.pid_began)
    if living:
        yield (("It still goes on", "yellow"), (f": `toolcrib runs tail {about.run_id}` follows it.", ""))
    else:
        yield (("✗ killed", "red"), (": the process that ran it is gone, and left no summary.", ""))
    yield _row("log", str(log))
    if session and not living:
        yield _row("go on", _goes_on(about))


def _row(label: str, text: str, style: str = "") -> Row:
    return Row(((f"  {label:<{_LABEL}}", "dim"), (text, style)))


def _prompt(prompt: str) -> Iterator[Line]:
    lines = prompt.splitlines()
    shown = shortened("\n".join(lines[:_PROMPT_LINES]), _PROMPT)
    for place, line in enumerate(shown.splitlines()):
        yield _row("" if place else "prompt", line)
    if left := len("\n".join(lines)) - len(shown):
        yield _row("", f"({_count(left, 'character')} more; --json has them)", "dim")


def _goes_on(about: Metadata) -> str:
    """The whole command, safe to be copied whatever a log says."""
    words = ["--conversation", about.conversation]
    words += [] if about.profile in NO_WIDER else ["--profile", about.profile]
    words += [] if _is_here(about.workdir) else ["--workdir", about.workdir]
    return one_line(f'toolcrib run {shlex.quote(about.provider)} "…" {shlex.join(words)}')


def _is_here(folder: str) -> bool:
    try:
        return Path(folder) == Path.cwd()
    except OSError:
        return False


def _tools(summary: Summary, denied: Mapping[str, int]) -> str:
    """What was used, then what was only asked for."""
    names = {one_line(name): times for name, times in summary.tools.items()}
    used = {name: times - denied.get(name, 0) for name, times in names.items() if times > denied.get(name, 0)}
    refused = {name: times for name, times in denied.items() if name in names}
    told = [f"{name} {times}" for name, times in _most_first(used)]
    told += [f"{name} {times} (denied)" for name, times in _most_first(refused)]
    return ", ".join(told) or "none called"


def _most_first(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda one: (-one[1], one[0]))


def _tokens(usage: Usage) -> str:
    if usage.input is None and usage.output is None:
        return "not told"
    # Whether what came from the cache is also counted as input is each provider's own affair.
    told = (("in", usage.input), ("out", usage.output), ("cached", usage.cached))
    return ", ".join(f"{number:,} {word}" for word, number in told if number is not None)


def _listed(listing: Listing) -> str:
    if not listing.tools:
        return ""
    return f"{_count(listing.tools, 'tool')}, {size_of(listing.bytes)}, about {_count(listing.tokens, 'token')}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
