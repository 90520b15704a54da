"""`cost` and `find`: what lists of tools cost, and the search that agents use.

In: command-line arguments. Out: an exit code. With `--catalog`, both work on saved lists, without any server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import ColumnPriorities, counted, hint, printed, say, table
from toolcrib.cli.perform import perform
from toolcrib.config.paths import working_folder
from toolcrib.errors import UsageError

commands = typer.Typer(rich_markup_mode=None)

SavedLists = Annotated[
    str | None,
    typer.Option(
        "--catalog", metavar="FILE|FOLDER", help="Use saved answers to tools/list (JSON) instead of your servers."
    ),
]
AsAgent = Annotated[
    str | None, typer.Option("--agent", metavar="NAME", help="Count only the tools that this agent may use.")
]
ToSearchAs = Annotated[
    str | None, typer.Option("--agent", metavar="NAME", help="Find only the tools that this agent may use.")
]
_BAR = 24
_BAR_TITLE = "full █ thin ▒"


@commands.command()
def cost(*, agent: AsAgent = None, catalog: SavedLists = None, as_json: AsJson = False) -> int:
    """Show what the tools of each server cost in each listing mode."""
    _refuse_both(agent, catalog)
    result = (
        perform("listing:cost", _given(agent=agent))
        if catalog is None
        else _saved_lists().saved_cost(_absolute(catalog))
    )
    found = printed(result, as_json=as_json)
    if not found["servers"]:
        say("No tools.")
        if catalog is None:
            hint("`toolcrib servers` shows the servers and their state.")
        return 0
    about = "~" if found["estimated"] else ""
    most = max(one["full"] for one in found["servers"])
    rows = [
        _row(one["server"], one["tools"], one, about, _bar(one["full"], one["thin"], most)) for one in _sorted(found)
    ]
    rows.append(_row("(Toolcrib)", "", found["gateway_tools"], about, ""))
    rows.append(_row("total", sum(one["tools"] for one in found["servers"]), found["total"], about, ""))
    table(
        ("server", "tools", "full", "thin", "search", _BAR_TITLE),
        rows,
        yielding=ColumnPriorities(text="server", optional=(_BAR_TITLE,)),
    )
    deferring = "" if found["auto"] == "full" else ", but full for clients that defer definitions themselves"
    if found["listing"] == "auto":
        say(f"\n`auto` chooses {found['auto']} for these tools{deferring}.")
    else:
        say(f"\nThe mode is set to {found['listing']}; `auto` would choose {found['auto']} for these tools{deferring}.")
    table(
        ("a conversation costs", "full", "handshake", "thin", "search"),
        [
            (name, *(f"{shares[mode]:.0%}" for mode in ("full", "handshake", "thin", "search")))
            for name, shares in (
                ("with a prompt cache", found["conversation"]["cached"]),
                ("without one", found["conversation"]["uncached"]),
            )
        ],
    )
    _say_used(found, about)
    if found["estimated"]:
        hint('~: estimates. `pip install "toolcrib[tokens]"` counts them exactly.')
    return 0


def _given(**params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _refuse_both(agent: str | None, catalog: str | None) -> None:
    if agent is not None and catalog is not None:
        raise UsageError("Saved lists have no agents.", remedy="Give either --agent or --catalog.")


def _saved_lists() -> Any:
    import toolcrib.cli.saved_lists as saved_lists  # noqa: PLC0415, PLR0402 - catalogs and the search; not needed to ask the daemon

    return saved_lists


def _absolute(path: str) -> Path:
    return working_folder() / Path(path).expanduser()


def _sorted(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(found["servers"], key=lambda one: -int(one["full"]))


def _row(name: str, tools: Any, tokens: Mapping[str, int], about: str, bar: str) -> tuple[Any, ...]:
    return (name, tools, *(f"{about}{tokens[mode]:,}" for mode in ("full", "thin", "search")), bar)


def _bar(full: int, thin: int, most: int) -> str:
    """The full list as a bar, its thin part shaded."""
    whole = max(1, round(_BAR * full / most)) if most else 0
    part = min(whole, max(1, round(_BAR * thin / most))) if most else 0
    return "▒" * part + "█" * (whole - part)


def _say_used(found: Mapping[str, Any], about: str) -> None:
    if not found["used"]:
        return
    say("")
    table(
        ("agent", "mode", "sessions", "calls", "lists", "searches", "repairs", "results", "saved"),
        [
            (
                row["agent"],
                row["mode"],
                row["sessions"],
                row["calls"],
                *(f"{about}{row['tokens'].get(kind, 0):,}" for kind in ("lists", "searches", "repairs", "results")),
                _saved(row, about),
            )
            for row in found["used"]
        ],
    )
    hint("Tokens in the sessions that are kept; `toolcrib sessions show ID` shows one of them.")


def _saved(row: Mapping[str, Any], about: str) -> str | None:
    """Against full lists of the tools that the agent may use today. None if the agent is gone."""
    if row["full"] is None:
        return None
    spent = sum(row["tokens"].get(kind, 0) for kind in ("lists", "searches", "descriptions", "repairs"))
    return f"{about}{max(0, row['listings'] * row['full'] - spent):,}"


@commands.command()
def find(
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="What the tool should do, in your words.")],
    *,
    server: Annotated[str, typer.Option(metavar="NAME", help="Search only this server.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="Show at most this many tools.", min=1, max=20)] = 8,
    agent: ToSearchAs = None,
    catalog: SavedLists = None,
    as_json: AsJson = False,
) -> int:
    """Find tools as an agent in search mode would."""
    _refuse_both(agent, catalog)
    params = _given(agent=agent, server=server, limit=limit, query=" ".join(query))
    result = perform("tool:find", params) if catalog is None else _saved_lists().saved_hits(_absolute(catalog), params)
    found = printed(result, as_json=as_json)
    if not found["hits"]:
        say(f"None of {counted(found['tools'], 'tool')} matches." if found["tools"] else "There are no tools.")
        return 0
    rows = [(number, hit["display"], hit["signature"]) for number, hit in enumerate(found["hits"], start=1)]
    table(("", "tool", "as the agent sees it"), rows, yielding=ColumnPriorities(text="as the agent sees it"))
    return 0
