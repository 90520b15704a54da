"""`audit`, `audit verify`: who did what, and whether the book still says what was written.

In: words of the command line. Out: an exit code. For people a call's intent and outcome are one line; `--json` gives
the entries as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.audit_lines import COLUMNS, Lines, Rules, Times, entries_of
from toolcrib.cli.columns import Cut, Yielding, fitted, shortened
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json, say_line, screen_width, table
from toolcrib.cli.reach import daemon_runs, perform
from toolcrib.errors import DaemonNotRunning, StoreError

_YIELDING = Yielding(
    text="note",
    cut={"tool": 18, "agent": 12, "conversation": 12},
    optional=("tokens", "size", "decision", "took", "conversation"),
)
_ALWAYS_THERE = ("owner", "client")
_WIDE = 140
"""Columns of a terminal that has room for the rules of allowed calls too."""

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
        str | None,
        typer.Option(metavar="OUTCOME", help="ok, failed, denied, tool_error, error, timeout, cancelled, away …"),
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
        return _follow(params, _lines(verbose=verbose), as_json=as_json)
    found = perform("audit:query", params)
    if as_json:
        say_json(found)
        return 0
    shown = _lines(verbose=verbose, cut_off=found["cut_off"]).joined(found["entries"])[-lines:]
    if not shown:
        hint("Nothing in the book fits." if len(params) > 1 else "Nothing is in the book yet.")
        if agent is not None and not _is_known(agent):
            hint(f"There is no agent {agent} now; `toolcrib agent list` shows all.")
    elif table(COLUMNS, shown, yielding=_YIELDING, state_column="") is Cut.SOME:
        hint("A wider terminal shows more, `toolcrib audit --json` all of it.")
    return 0


def _lines(*, verbose: bool, cut_off: Collection[str] = ()) -> Lines:
    width = screen_width()
    wide = width is not None and width >= _WIDE
    return Lines(
        cut_off=frozenset(cut_off),
        rules=Rules.ALL if verbose or wide else Rules.OF_DENIALS,
        times=Times.WHOLE if verbose or wide or width is None else Times.SHORT,
    )


def _is_known(agent: str) -> bool:
    found = perform("agent:list")
    return agent in {*_ALWAYS_THERE, *(row["name"] for row in found["agents"])}


def _follow(params: Mapping[str, Any], lines: Lines, *, as_json: bool) -> int:
    if not daemon_runs():
        raise DaemonNotRunning(
            "No daemon runs, so nothing more will come.", remedy="Leave -f out to see what there is."
        )

    room = screen_width()
    widths = fitted(lines.widths, room, _YIELDING) if room is not None else lines.widths

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
        say(f"The book is whole: {entries_of(found['entries'])}. Head: {found['head'] or 'none'}")
        for note in found["notes"]:
            hint(note)
        if found["head"]:
            hint("Keep the head elsewhere; `toolcrib audit verify --expect HEAD` then proves what is here against it.")
    else:
        hint(f"The book is not what was written. {found['wrong']}")
        if found["head"]:
            hint(f"Good: {entries_of(found['entries'])}, up to {found['head']}.")
    return 0 if found["ok"] else StoreError.exit_code
