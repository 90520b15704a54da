"""`audit` and `audit verify`: shows the audit log and checks that it is unchanged.

In: command-line arguments. Out: an exit code. The table joins a call's intent and outcome in one line, and has one
for each question of a server; `--json` prints the entries as they are.
"""

from __future__ import annotations

import enum
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import (
    ColumnPriorities,
    TableCut,
    fit_columns,
    hint,
    moment,
    printed,
    say,
    say_line,
    screen_width,
    shortened,
    size_of,
    table,
)
from toolcrib.cli.perform import daemon_runs, perform
from toolcrib.errors import DaemonNotRunning, StoreError

_WIDTHS = {
    "time": 19,
    "agent": 12,
    "conversation": 12,
    "tool": 28,
    "decision": 8,
    "outcome": 10,
    "took": 8,
    "size": 8,
    "tokens": 7,
    "note": 60,
}
"""Fixed widths for `--follow`, where later lines aren't known yet."""
COLUMNS = tuple(_WIDTHS)


class ShownRules(enum.Enum):
    ALL = enum.auto()
    OF_DENIALS = enum.auto()


class TimeFormat(enum.Enum):
    WHOLE = enum.auto()
    SHORT = enum.auto()
    """Leaves out today's date, or the year and the seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditRows:
    cut_off: frozenset[str] = frozenset()
    """Calls that will never get an outcome."""
    rules: ShownRules = ShownRules.OF_DENIALS
    times: TimeFormat = TimeFormat.WHOLE

    @property
    def widths(self) -> dict[str, int]:
        return _WIDTHS | ({"time": 11} if self.times is TimeFormat.SHORT else {})

    def joined(self, entries: Iterable[Mapping[str, Any]]) -> list[Sequence[Any]]:
        """One row for each call, at the position of its newest entry, and one for every other entry."""
        newest: dict[Any, Mapping[str, Any]] = {}
        for entry in entries:
            key = entry["seq"] if entry["kind"] == "question" else entry["call"] or entry["seq"]
            newest.pop(key, None)
            newest[key] = entry
        return [self.cells(entry) for entry in newest.values()]

    def cells(self, entry: Mapping[str, Any]) -> Sequence[Any]:
        over = entry["kind"] == "outcome"
        return (
            self._time(entry["at"]),
            entry["agent"],
            entry["conversation"],
            entry["tool"],
            entry["decision"],
            self._outcome(entry),
            _took(entry["duration"]) if over else None,
            size_of(entry["size"]) if over and entry["size"] else None,
            f"~{entry['tokens']}" if entry["tokens_estimated"] else entry["tokens"],
            self._note(entry),
        )

    def _time(self, at: float) -> str:
        then = time.localtime(at)
        if self.times is TimeFormat.WHOLE:
            return moment(at)
        today = time.localtime()[:3] == then[:3]
        return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M", then)

    def _outcome(self, entry: Mapping[str, Any]) -> str:
        match entry["kind"]:
            case "outcome":
                return str(entry["outcome"])
            case "intent":
                return "cut off" if entry["call"] in self.cut_off else "running"
            case "question":
                return "asked"
            case other:
                return str(other)

    def _note(self, entry: Mapping[str, Any]) -> str:
        detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
        match entry["kind"]:
            case "outcome" if entry["outcome"] == "denied" or self.rules is ShownRules.ALL:
                return f"{entry['rule']}; signed in at {detail['issuer']}" if "issuer" in detail else str(entry["rule"])
            case "outcome" if "task" in detail and "method" in detail:
                return f"{detail['method']} for the task {detail['task']}"
            case "intent" if entry["call"] in self.cut_off:
                return "it may have run"
            case "question":
                what = _ASKED.get(str(detail.get("asks")), "something")
                return f"server {entry['server']} asked for {what}: {entry['outcome']}"
            case "change":
                return _change(str(entry["outcome"]), str(entry["agent"]), detail)
            case "gap":
                begin, end = (time.strftime("%H:%M:%S", time.localtime(detail[name])) for name in ("from", "to"))
                return f"{entries_of(detail['entries'])} could not be written between {begin} and {end}"
            case "pruned":
                return f"{entries_of(detail['entries'])} up to number {detail['through']} were deleted"
            case "unanchored" if "known" in detail:
                return f"number {detail['known']} was written earlier, but is missing or different"
            case "unanchored":
                return f"the anchor was missing: entries after number {detail['after']} may be missing"
            case _:
                return ""


_ASKED = {"form": "a form", "url": "a page", "sampling": "a model's answer", "roots": "roots"}


def entries_of(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _change(what: str, agent: str, detail: Mapping[str, Any]) -> str:
    parts = []
    for name, value in detail.items():
        if name.endswith("_at") and isinstance(value, int | float):
            parts.append(f"{name.removesuffix('_at')} {moment(value)}")
            continue
        # The agent has its own column, and the subject of the change is before the colon.
        text = _plain(value, agent)
        parts.append(text if name == what.partition(" ")[0] else f"{name} {text}")
    return f"{what}: {', '.join(parts)}" if parts else what


def _plain(value: Any, agent: str) -> str:
    if isinstance(value, str):
        return value.removeprefix(f"agent {agent}: ")
    if isinstance(value, list):
        return "; ".join(_plain(item, agent) for item in value)
    return json.dumps(value, ensure_ascii=False)


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


_PRIORITIES = ColumnPriorities(
    text="note",
    cut={"tool": 18, "agent": 12, "conversation": 12},
    optional=("tokens", "size", "decision", "took", "conversation"),
)
_BUILT_IN_AGENTS = ("owner", "client")
_WIDE = 140
"""Width of a terminal that also has room for the rules of allowed calls."""

commands = typer.Typer(rich_markup_mode=None)
audit = typer.Typer(help="Show or verify the audit log of calls and changes.")
commands.add_typer(audit, name="audit")

_TIME_HELP = "{} this time: an age (90s, 1h, 2d) or a date (2026-11-16T10:00)."


@audit.callback(invoke_without_command=True)
def query(
    context: typer.Context,
    *,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Show only this agent's entries.")] = None,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL", help="Show only this tool: `files:read_file`, `read_file`, `files:*`, `resource:*`."
        ),
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="SERVER", help="Show only this server's tools.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="OUTCOME",
            help="Show only this outcome: ok, failed, denied, tool_error, error, timeout, unavailable …",
        ),
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Show only this session's entries.")] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=_TIME_HELP.format("Start at"))] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help=_TIME_HELP.format("Stop at"))] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Show this many lines.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new entries until Ctrl-C.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show the rules of allowed calls, and complete times.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show calls, decisions, outcomes and changes; `audit verify` checks the log's integrity."""
    if context.invoked_subcommand is not None:
        return 0
    given = {"agent": agent, "tool": tool, "server": server, "outcome": outcome, "session": session}
    params: dict[str, Any] = {
        name: value for name, value in {**given, "since": since, "until": until}.items() if value is not None
    }
    # A line of the table may combine two entries.
    params["limit"] = lines if as_json else 2 * lines
    if follow:
        return _follow(params, _rows(verbose=verbose), as_json=as_json)
    found = printed(perform("audit:query", params), as_json=as_json)
    shown = _rows(verbose=verbose, cut_off=found["cut_off"]).joined(found["entries"])[-lines:]
    if not shown:
        hint("No entry of the audit log matches." if len(params) > 1 else "The audit log is empty.")
        if agent is not None and not _is_known(agent):
            hint(f"There is no agent {agent} now; `toolcrib agent list` shows all agents.")
    elif table(COLUMNS, shown, yielding=_PRIORITIES, state_column="") is TableCut.SOME:
        hint("A wider terminal shows more; `toolcrib audit --json` shows everything.")
    return 0


def _rows(*, verbose: bool, cut_off: Collection[str] = ()) -> AuditRows:
    width = screen_width()
    wide = width is not None and width >= _WIDE
    return AuditRows(
        cut_off=frozenset(cut_off),
        rules=ShownRules.ALL if verbose or wide else ShownRules.OF_DENIALS,
        times=TimeFormat.WHOLE if verbose or wide or width is None else TimeFormat.SHORT,
    )


def _is_known(agent: str) -> bool:
    found = perform("agent:list")
    return agent in {*_BUILT_IN_AGENTS, *(row["name"] for row in found["agents"])}


def _follow(params: Mapping[str, Any], lines: AuditRows, *, as_json: bool) -> int:
    if not daemon_runs():
        raise DaemonNotRunning(
            "No daemon is running, so there will be no new entries.", remedy="Run it without -f to see existing ones."
        )

    room = screen_width()
    widths = fit_columns(lines.widths, room, _PRIORITIES) if room is not None else lines.widths

    def write(cells: Sequence[Any]) -> None:
        texts = {column: str(cell or "-") for column, cell in zip(COLUMNS, cells, strict=True)}
        shown = {
            column: texts[column] if room is None else shortened(texts[column], widths[column]) for column in widths
        }
        say("  ".join(text.ljust(widths[column]) for column, text in shown.items()).rstrip())

    def show(event: dict[str, Any]) -> None:
        entry = event["entry"]
        if as_json:
            say_line(entry)
        elif entry["kind"] != "intent":
            # An outcome repeats everything in its intent, so a call's line is written when it ends.
            write(lines.cells(entry))
        sys.stdout.flush()

    if not as_json:
        write(COLUMNS)
        sys.stdout.flush()
    perform("audit:follow", dict(params), timeout=None, on_event=show)
    return 0


@audit.command()
def verify(
    *,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ:HASH", help="Also check that the audit log contains this head, which you saved earlier."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check that no entry was changed, removed or inserted. Exit code 9: the check failed."""

    def show(event: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            hint(f"{event['checked']:,} of {event['of']:,} entries checked")

    params = {} if expect is None else {"expect": expect}
    found = perform("audit:verify", params, timeout=None, on_event=show)
    code = 0 if found["ok"] else StoreError.exit_code
    printed(found, as_json=as_json, exit_code=code)
    if found["ok"]:
        say(f"The audit log is intact: {entries_of(found['entries'])}. Head: {found['head'] or 'none'}")
        for note in found["notes"]:
            hint(note)
        if found["head"]:
            hint("Store the head elsewhere; later, `toolcrib audit verify --expect HEAD` checks the log against it.")
    else:
        hint(f"The audit log was changed. {found['wrong']}")
        if found["head"]:
            hint(f"Intact: {entries_of(found['entries'])}, up to {found['head']}.")
    return code
