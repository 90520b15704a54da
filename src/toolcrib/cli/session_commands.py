"""`sessions`, `sessions end`: who is in which conversation.

In: words of the command line. Out: an exit code. Both are commands of the registry with a face.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toolcrib.cli.columns import Cut, Yielding
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import duration, hint, say, say_json, table
from toolcrib.cli.reach import perform
from toolcrib.cli.results import size_of

COLUMNS = ("session", "agent", "conversation", "idle", "under way", "listings", "calls", "denied", "failed", "results")

_YIELDING = Yielding(
    text="conversation", cut={"agent": 12}, optional=("listings", "results", "failed", "under way", "denied")
)

sessions = typer.Typer(rich_markup_mode=None, help="List the sessions, or end some.")

_Agent = Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Only this agent's.")]


@sessions.callback(invoke_without_command=True)
def list_sessions(context: typer.Context, *, agent: _Agent = None, as_json: AsJson = False) -> int:
    """List the sessions, the one used last first; `sessions end` ends some."""
    if context.invoked_subcommand is not None:
        return 0
    found = perform("session:list", {"agent": agent})
    if as_json:
        say_json(found)
    elif found["sessions"]:
        cut = table(
            COLUMNS,
            [
                (
                    row["id"],
                    row["agent"],
                    row["conversation"],
                    duration(row["idle"]),
                    row["under_way"],
                    row["listings"],
                    row["calls"],
                    row["denied"],
                    row["failed"],
                    size_of(row["result_bytes"]),
                )
                for row in found["sessions"]
            ],
            yielding=_YIELDING,
        )
        if cut is Cut.SOME:
            hint("`toolcrib sessions --json` shows all of it.")
    else:
        say("No sessions." if agent is None else f"{agent} has no sessions.")
    return 0


@sessions.command()
def end(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The session.")] = None,
    *,
    agent: Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="All sessions of this agent.")] = None,
    as_json: AsJson = False,
) -> int:
    """End a session, or all of an agent: what is under way stops. Its client begins a new one when it comes again."""
    found = perform("session:end", {"id": id, "agent": agent})
    if as_json:
        say_json(found)
    else:
        for row in found["ended"]:
            say(f"Ended {row['id']}: {row['agent']} in {row['conversation']}.")
    return 0
