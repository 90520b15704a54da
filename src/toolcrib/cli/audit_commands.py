"""`audit` and `audit verify`: who did what, and whether the audit log is unchanged.

In: words of the command line. Out: an exit code. For people a call's intent and outcome are one line; `--json` gives
the entries as they are.
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
"""Where lines come one by one, and nobody knows what will come."""
COLUMNS = tuple(_WIDTHS)


class ShownRules(enum.Enum):
    """Which rules are shown."""

    ALL = enum.auto()
    OF_DENIALS = enum.auto()


class TimeFormat(enum.Enum):
    WHOLE = enum.auto()
    SHORT = enum.auto()
    """Without what goes without saying: today's date, or the year and the seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditRows:
    cut_off: frozenset[str] = frozenset()
    """Calls whose outcome can no longer come."""
    rules: ShownRules = ShownRules.OF_DENIALS
    times: TimeFormat = TimeFormat.WHOLE

    @property
    def widths(self) -> dict[str, int]:
        return _WIDTHS | ({"time": 11} if self.times is TimeFormat.SHORT else {})

    def joined(self, entries: Iterable[Mapping[str, Any]]) -> list[Sequence[Any]]:
        """A line for each call, where its newest entry stands, and one for everything else."""
        newest: dict[Any, Mapping[str, Any]] = {}
        for entry in entries:
            key = entry["call"] or entry["seq"]
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
            return _when(at)
        today = time.localtime()[:3] == then[:3]
        return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M", then)

    def _outcome(self, entry: Mapping[str, Any]) -> str:
        match entry["kind"]:
            case "outcome":
                return str(entry["outcome"])
            case "intent":
                return "cut off" if entry["call"] in self.cut_off else "not over"
            case other:
                return str(other)

    def _note(self, entry: Mapping[str, Any]) -> str:
        detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
        match entry["kind"]:
            case "outcome" if entry["outcome"] == "denied" or self.rules is ShownRules.ALL:
                return str(entry["rule"])
            case "intent" if entry["call"] in self.cut_off:
                return "it may have run"
            case "change":
                return _change(str(entry["outcome"]), str(entry["agent"]), detail)
            case "gap":
                begin, end = (time.strftime("%H:%M:%S", time.localtime(detail[name])) for name in ("from", "to"))
                return f"{entries_of(detail['entries'])} could not be written between {begin} and {end}"
            case "pruned":
                return f"{entries_of(detail['entries'])} up to number {detail['through']} were let go"
            case "unanchored" if "known" in detail:
                return f"number {detail['known']} had been written before, and was gone or another"
            case "unanchored":
                return f"the anchor was missing: what stood after number {detail['after']} is not known"
            case _:
                return ""


def entries_of(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _change(what: str, agent: str, detail: Mapping[str, Any]) -> str:
    said = []
    for name, value in detail.items():
        if name.endswith("_at") and isinstance(value, int | float):
            said.append(f"{name.removesuffix('_at')} {_when(value)}")
            continue
        # The agent has a column of its own, and what changed stands before the colon.
        text = _plain(value, agent)
        said.append(text if name == what.partition(" ")[0] else f"{name} {text}")
    return f"{what}: {', '.join(said)}" if said else what


def _plain(value: Any, agent: str) -> str:
    if isinstance(value, str):
        return value.removeprefix(f"agent {agent}: ")
    if isinstance(value, list):
        return "; ".join(_plain(one, agent) for one in value)
    return json.dumps(value, ensure_ascii=False)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


_PRIORITIES = ColumnPriorities(
    text="note",
    cut={"tool": 18, "agent": 12, "conversation": 12},
    optional=("tokens", "size", "decision", "took", "conversation"),
)
_ALWAYS_THERE = ("owner", "client")
_WIDE = 140
"""Columns of a terminal that has room for the rules of allowed calls too."""

commands = typer.Typer(rich_markup_mode=None)
audit = typer.Typer(help="Show the audit log of calls and changes, or verify it.")
commands.add_typer(audit, name="audit")

_When = "Ago (90s, 1h, 2d) or a time (2026-11-16T10:00)."


@audit.callback(invoke_without_command=True)
def query(
    context: typer.Context,
    *,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Only this agent's.")] = None,
    tool: Annotated[
        str | None, typer.Option(metavar="TOOL", help="A tool: `files:read_file`, `read_file`, `files:*`.")
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="SERVER", help="Only this server's tools.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(metavar="OUTCOME", help="ok, failed, denied, tool_error, error, timeout, unavailable …"),
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session's.")] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=_When)] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="As --since.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many, the newest.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the rule of allowed calls too, and whole times.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show who called what, what was decided and what came of it; `audit verify` checks that it is all true."""
    if context.invoked_subcommand is not None:
        return 0
    given = {"agent": agent, "tool": tool, "server": server, "outcome": outcome, "session": session}
    params: dict[str, Any] = {
        name: value for name, value in {**given, "since": since, "until": until}.items() if value is not None
    }
    # A line for people may be made of two entries.
    params["limit"] = lines if as_json else 2 * lines
    if follow:
        return _follow(params, _rows(verbose=verbose), as_json=as_json)
    found = printed(perform("audit:query", params), as_json=as_json)
    shown = _rows(verbose=verbose, cut_off=found["cut_off"]).joined(found["entries"])[-lines:]
    if not shown:
        hint("No entry of the audit log matches." if len(params) > 1 else "The audit log is empty.")
        if agent is not None and not _is_known(agent):
            hint(f"There is no agent {agent} now; `toolcrib agent list` shows all.")
    elif table(COLUMNS, shown, yielding=_PRIORITIES, state_column="") is TableCut.SOME:
        hint("A wider terminal shows more, `toolcrib audit --json` all of it.")
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
    return agent in {*_ALWAYS_THERE, *(row["name"] for row in found["agents"])}


def _follow(params: Mapping[str, Any], lines: AuditRows, *, as_json: bool) -> int:
    if not daemon_runs():
        raise DaemonNotRunning(
            "No daemon runs, so nothing more will come.", remedy="Leave -f out to see what there is."
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
            # An outcome has all that its intent has: the call's line is written when it is over.
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
        typer.Option(metavar="SEQ:HASH", help="A head that you wrote down before: it must be in the audit log."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check that no entry was changed, removed or put in since it was written. Exit code 9: one was."""

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
            hint("Keep the head elsewhere; `toolcrib audit verify --expect HEAD` then proves what is here against it.")
    else:
        hint(f"The audit log was changed. {found['wrong']}")
        if found["head"]:
            hint(f"Good: {entries_of(found['entries'])}, up to {found['head']}.")
    return code
