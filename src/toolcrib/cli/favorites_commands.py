"""`favorites`: the tools that search mode lists directly; choose or remove them.

In: command-line arguments. Out: an exit code. Without a daemon, this process does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import counted, hint, moment, printed, say, table
from toolcrib.cli.perform import perform

commands = typer.Typer(rich_markup_mode=None)
favorites = typer.Typer()
commands.add_typer(favorites, name="favorites")

Tools = Annotated[list[str], typer.Argument(metavar="TOOL...", help="Names of tools: server:tool.")]


@favorites.callback(invoke_without_command=True)
def list_favorites(context: typer.Context, *, as_json: AsJson = False) -> int:
    """Show the favorite tools, which search mode lists directly.

    An agent in search mode gets the first eight that it may use: those that you chose, then the tools that were called
    most in the last 30 days. The daemon counts the calls once a day.
    """
    return 0 if context.invoked_subcommand is not None else _show(perform("favorites:list"), as_json=as_json)


@favorites.command()
def add(tools: Tools, *, as_json: AsJson = False) -> int:
    """Choose favorite tools. They come first, in this order."""
    return _show(perform("favorites:add", {"tools": tools}), as_json=as_json)


@favorites.command()
def remove(tools: Tools, *, as_json: AsJson = False) -> int:
    """Remove favorite tools. They stay removed until you add them, however often they are called."""
    return _show(perform("favorites:remove", {"tools": tools}), as_json=as_json)


@favorites.command()
def refresh(*, as_json: AsJson = False) -> int:
    """Count the calls of the last 30 days now. Clients whose lists change are notified."""
    return _show(perform("favorites:refresh"), as_json=as_json)


def _show(result: dict[str, Any], *, as_json: bool) -> int:
    found = printed(result, as_json=as_json)
    rows = [(row["tool"], _reason(row, found["days"])) for row in found["favorites"]]
    if rows:
        table(("tool", "why"), rows)
        if len(rows) > found["listed"]:
            hint(f"An agent gets the first {found['listed']} that it may use.")
    else:
        say("No favorite tools yet: `toolcrib favorites add TOOL` chooses one.")
    if found["levels"]:
        names = ", ".join(sorted(found["levels"]))
        hint(f"Often called with invalid arguments, so lists show more of their schemas: {names}.")
    counted_at = found["counted_at"]
    hint("Calls have not been counted yet." if counted_at is None else f"Calls were counted {moment(counted_at)}.")
    return 0


def _reason(row: Mapping[str, Any], days: int) -> str:
    calls = f"{counted(row['calls'], 'call')} in {days} days"
    return f"chosen, {calls}" if row["origin"] == "chosen" else calls
