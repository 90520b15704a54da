"""`runs`, `runs show`, `runs tail`: the runs of this project.

In: command-line arguments. Out: an exit code. `toolcrib.coding_agents.run_history` reads the logs; no daemon is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import ColumnPriorities, TableCut, hint, printed, say, say_line, shortened, table
from toolcrib.cli.run_text import (
    EventDetail,
    EventLines,
    EventTimes,
    RunFacts,
    closing_lines,
    event_line,
    heading_lines,
    one_line,
    seconds_text,
    time_text,
    unfinished_lines,
)
from toolcrib.cli.run_view import RunScreen
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_history import (
    LAST,
    LogEntry,
    RecordedRun,
    count_runs,
    find_run,
    follow_log,
    log_entries,
    session_of,
)
from toolcrib.coding_agents.run_history import recorded_runs as all_runs
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary
from toolcrib.config.paths import project_of, working_folder
from toolcrib.run_events import AgentEvent

COLUMNS = ("run", "when", "client", "conversation", "profile", "status", "time", "tools", "tokens", "prompt")

_PRIORITIES = ColumnPriorities(
    text="prompt",
    cut={"profile": 9, "conversation": 12},
    optional=("tokens", "when", "tools", "profile", "time", "conversation"),
)
_MAX_PROMPT_LENGTH = 200

commands = typer.Typer(rich_markup_mode=None)
runs = typer.Typer(help="List, show or follow this project's runs.")
commands.add_typer(runs, name="runs")

_Workdir = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help="A folder of the project. Default: the current folder."),
]
_Events = Annotated[bool, typer.Option("--events", help="Show every event in full.")]


@runs.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Show at most this many runs.", min=1, max=1000)] = 20,
    workdir: _Workdir = None,
    as_json: AsJson = False,
) -> int:
    """List the runs of this project, newest first; `runs show` shows one, `runs tail` follows it."""
    context.obj = workdir
    if context.invoked_subcommand is not None:
        return 0
    root = _root(context, None)
    found = list(islice(all_runs(root, _seals(), lambda problem: hint(problem.text())), lines))
    printed({"runs": [_described(run) for run in found]}, as_json=as_json)
    if not found:
        say(f"No runs in {root} yet.")
        return 0
    cut = table(COLUMNS, [_cells(run) for run in found], yielding=_PRIORITIES, state_column="status")
    if (more := count_runs(root) - len(found)) > 0:
        hint(f"{more} more: `toolcrib runs -n {min(1000, len(found) + more)}` shows them.")
    if cut is TableCut.SOME:
        hint("A wider terminal shows more; `toolcrib runs show ID` shows one run in full.")
    return 0


@runs.command()
def show(
    context: typer.Context,
    which: Annotated[str, typer.Argument(metavar="last|ID", help="The run's ID, or the beginning of it.")],
    *,
    events: _Events = False,
    workdir: _Workdir = None,
    as_json: AsJson = False,
) -> int:
    """Show a run: its prompt, messages, calls, denials and result."""
    run = find_run(_root(context, workdir), which, _seals())
    data = _described(run)
    if as_json and events:
        data["events"] = [entry.to_json() for entry in log_entries(run) if isinstance(entry, AgentEvent)]
    printed(data, as_json=as_json)
    _say_run(run, log_entries(run), events=events)
    return 0


@runs.command()
def tail(
    context: typer.Context,
    which: Annotated[
        str | None,
        typer.Argument(metavar="last|ID", help="The run's ID. Default: the newest active run, or else the last one."),
    ] = None,
    *,
    events: _Events = False,
    workdir: _Workdir = None,
    as_json: AsJson = False,
) -> int:
    """Follow a run until it ends; --json prints the lines of its log."""
    root = _root(context, workdir)
    run = _running(root) if which is None else find_run(root, which, _seals())
    run = run or find_run(root, LAST, _seals())
    if not as_json:
        _say_run(run, follow_log(run), events=events)
        return 0
    kinds = {RunMetadata: "metadata", RunSummary: "summary", AgentEvent: "event"}
    for entry in follow_log(run):
        say_line({kinds[type(entry)]: entry.to_json()})
    return 0


def _root(context: typer.Context, workdir: Path | None) -> Path:
    """--workdir may come before or after `show`."""
    given = workdir or context.obj
    return project_of(given.expanduser() if given else working_folder())


def _seals() -> LogSeals:
    return LogSeals.of_user(os.environ)


def _running(root: Path) -> RecordedRun | None:
    return next((run for run in all_runs(root, _seals()) if run.status is RunStatus.RUNNING), None)


def _say_run(run: RecordedRun, entries: Iterable[LogEntry], *, events: bool) -> None:
    screen = RunScreen(sys.stdout)
    event_lines, seen = EventLines(EventTimes.SHOWN), RunFacts()
    screen.write_all(heading_lines(run.metadata, run.status, EventDetail.ALL if events else EventDetail.USUAL))
    screen.write()
    summary: RunSummary | None = None
    for entry in entries:
        if isinstance(entry, AgentEvent):
            seen.note(entry)
            screen.write_all([event_line(entry)] if events else event_lines.of(entry))
        elif isinstance(entry, RunSummary):
            summary = entry
    screen.write_all(event_lines.rest())
    screen.write()
    session = session_of(run, _seals()) if run.sealed else ""
    if summary is None:
        screen.write_all(unfinished_lines(run.metadata, run.path, session))
    else:
        screen.write_all(closing_lines(replace(summary, session=session), run.metadata, run.path, seen))
    if not run.sealed:
        hint("This log was changed, moved or copied from elsewhere, so its conversation cannot be continued.")
    if event_lines.hidden and not events:
        more = "1 event" if event_lines.hidden == 1 else f"{event_lines.hidden} events"
        hint(f"Not shown: {more} of the program itself; `toolcrib runs show {run.run_id} --events` shows everything.")


def _cells(run: RecordedRun) -> tuple[Any, ...]:
    about, summary = run.metadata, run.summary
    called = None if summary is None else sum(summary.tools.values())
    denied = f" ({summary.denials} denied)" if summary is not None and summary.denials else ""
    return (
        run.run_id,
        time_text(about.started_at, "%m-%d %H:%M"),
        about.provider,
        one_line(about.conversation),
        about.profile,
        run.status.replace("_", " "),
        None if summary is None else seconds_text(summary.seconds),
        None if called is None else f"{called}{denied}",
        None if summary is None or summary.usage.input is None else _tokens(summary.usage.input, summary.usage.output),
        shortened(one_line(about.prompt), _MAX_PROMPT_LENGTH),
    )


def _tokens(into: int, out: int | None) -> str:
    return f"{into:,} / {out or 0:,}"


def _described(run: RecordedRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "log": str(run.path),
        "status": run.status,
        "sealed": run.sealed,
        "metadata": run.metadata.to_json(),
        "summary": None if run.summary is None else run.summary.to_json(),
    }
