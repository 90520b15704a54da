"""`audit`, `audit verify`: who did what, and whether the book still says what was written.

In: words of the command line. Out: an exit code. For people a call's intent and outcome are one line; `--json` gives
the entries as they are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json, table
from toolcrib.cli.reach import daemon_runs, perform
from toolcrib.cli.results import size_of
from toolcrib.errors import DaemonNotRunning, StoreError

COLUMNS = ("time", "agent", "conversation", "tool", "decision", "outcome", "took", "size", "tokens", "note")

_WIDTHS = (19, 12, 12, 28, 6, 10, 8, 8, 6, 0)
"""Of the columns in lines that come one by one."""

audit = typer.Typer(rich_markup_mode=None, help="Show the book of calls and changes, or verify it.")

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
        str | None, typer.Option(metavar="OUTCOME", help="ok, denied, tool_error, error, timeout, cancelled, away …")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session's.")] = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=_When)] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="As --since.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many, the newest.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
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
        return _follow(params, as_json=as_json)
    found = perform("audit:query", params)
    if as_json:
        say_json(found)
        return 0
    shown = joined(found["entries"])[-lines:]
    if shown:
        table(COLUMNS, shown, one_line="note", state_column="")
    else:
        hint("Nothing in the book fits." if len(params) > 1 else "Nothing is in the book yet.")
    return 0


def _follow(params: Mapping[str, Any], *, as_json: bool) -> int:
    if not daemon_runs():
        raise DaemonNotRunning(
            "No daemon runs, so nothing more will come.", remedy="Leave -f out to see what there is."
        )

    def show(event: dict[str, Any]) -> None:
        entry = event["entry"]
        if as_json:
            sys.stdout.write(json.dumps(entry, ensure_ascii=False) + "\n")
        elif entry["kind"] != "intent":
            # An outcome has all that its intent has: the call's line is written when it is over.
            cells = [str(cell or "-") for cell in _cells(entry)]
            say("  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip())
        sys.stdout.flush()

    perform("audit:follow", dict(params), timeout=None, on_event=show)
    return 0


def joined(entries: Iterable[Mapping[str, Any]]) -> list[Sequence[Any]]:
    """A line for each call, where its newest entry stands, and one for everything else."""
    newest: dict[Any, Mapping[str, Any]] = {}
    for entry in entries:
        key = entry["call"] or entry["seq"]
        newest.pop(key, None)
        newest[key] = entry
    return [_cells(entry) for entry in newest.values()]


def _cells(entry: Mapping[str, Any]) -> Sequence[Any]:
    is_call = entry["kind"] in ("intent", "outcome")
    over = entry["kind"] == "outcome"
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"])),
        entry["agent"],
        entry["conversation"],
        entry["tool"],
        entry["decision"],
        entry["outcome"] if over else "not over" if is_call else entry["kind"],
        _took(entry["duration"]) if over else None,
        size_of(entry["size"]) if over and entry["size"] else None,
        entry["tokens"],
        _note(entry),
    )


def _note(entry: Mapping[str, Any]) -> str:
    detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
    match entry["kind"]:
        case "outcome" if entry["outcome"] == "denied":
            return str(entry["rule"])
        case "change":
            said = ", ".join(f"{name} {_plain(value)}" for name, value in detail.items())
            return f"{entry['outcome']}: {said}" if said else str(entry["outcome"])
        case "gap":
            begin, end = (time.strftime("%H:%M:%S", time.localtime(detail[name])) for name in ("from", "to"))
            return f"{_entries(detail['entries'])} could not be written between {begin} and {end}"
        case "pruned":
            return f"{_entries(detail['entries'])} up to number {detail['through']} were let go"
        case _:
            return ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


@audit.command()
def verify(
    *,
    expect: Annotated[
        str | None,
        typer.Option(metavar="SEQ:HASH", help="A head that you wrote down before: it must be in the book."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check that no entry was changed, removed or put in since it was written. Exit code 9: one was."""

    def show(event: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            hint(f"{event['checked']:,} of {event['of']:,} entries checked")

    params = {} if expect is None else {"expect": expect}
    found = perform("audit:verify", params, timeout=None, on_event=show)
    if as_json:
        say_json(found)
    elif found["ok"]:
        say(f"The book is whole: {_entries(found['entries'])}. Head: {found['head'] or 'none'}")
        for note in found["notes"]:
            hint(note)
        if found["head"]:
            hint("Keep the head elsewhere; `toolcrib audit verify --expect HEAD` then proves what is here against it.")
    else:
        hint(f"The book is not what was written. {found['wrong']}")
        if found["head"]:
            hint(f"Good: {_entries(found['entries'])}, up to {found['head']}.")
    return 0 if found["ok"] else StoreError.exit_code
