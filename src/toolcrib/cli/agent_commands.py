"""`agent add|list|show|listing|rotate|remove` and `sessions`: agents and their conversations.

In: command-line arguments. Out: an exit code. A token is printed once, when it is created, and is never passed as an
argument. Without a daemon, this process does the work.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.connected_agents import connected_files
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import ColumnPriorities, TableCut, counted, duration, hint, printed, say, size_of, table
from toolcrib.cli.perform import perform
from toolcrib.config.model import ListingMode
from toolcrib.config.paths import working_folder
from toolcrib.errors import UsageError

AGENT_COLUMNS = ("name", "profile", "workdir", "parent", "expires", "last used")

commands = typer.Typer(rich_markup_mode=None)
agent = typer.Typer(help="Manage agents: identities with their own token and permissions.")
commands.add_typer(agent, name="agent")

MODES = ", ".join(ListingMode)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")]


@agent.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the agent.")],
    *,
    profile: Annotated[
        str, typer.Option(metavar="PROFILE", help="The agent's profile; `toolcrib profile list` shows them.")
    ] = "developer",
    workdir: Annotated[
        str | None, typer.Option(metavar="DIR", help="The agent's folder; path rules are relative to it.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove the agent after this time: 30m, 8h, 2d. Default: never.")
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT",
            help="The parent agent. The new agent never has more permissions than it, and is removed with it.",
        ),
    ] = None,
    errors: Annotated[
        str | None,
        typer.Option(
            metavar="result|http",
            help="How it gets errors of calls: as results, or as JSON-RPC errors with an HTTP status. Default: result.",
        ),
    ] = None,
    listing: Annotated[
        ListingMode | None, typer.Option(metavar="MODE", help=f"How its tools are listed: {MODES}.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Add an agent and print its token. The token is shown only once."""
    given = {"profile": profile, "workdir": _absolute(workdir), "expires": expires, "parent": parent, "errors": errors}
    given["listing"] = listing
    params = {key: value for key, value in given.items() if value is not None}
    found = printed(perform("agent:add", {"name": name, **params}), as_json=as_json)
    _say_token(found)
    hint(f"Next: `toolcrib connect claude --agent {name}` connects Claude Code as this agent (also: codex, gemini).")
    _hint_limits(found)
    for server in found["not_trusted"]:
        hint(
            f"{server} is not trusted, so none of its tools count as read-only. "
            f"To trust it, run `toolcrib trust --server {shlex.quote(server)}`."
        )
    return 0


def _hint_limits(found: Mapping[str, Any]) -> None:
    for above in found["limited_by"]:
        parent = above["agent"]
        hint(f"It is limited by {parent} ({above['profile']}): it can use only the tools that {parent} can use.")
    for line in found["unjudged"]:
        hint(line)


def _absolute(workdir: str | None) -> str | None:
    return None if workdir is None else str(working_folder() / Path(workdir).expanduser())


def _say_token(found: Mapping[str, Any]) -> None:
    details = [f"profile {found['profile']}"]
    if found["workdir"]:
        details.append(f"in {found['workdir']}")
    if found["parent"]:
        details.append(f"child of {found['parent']}")
    if found["expires_at"]:
        left = round(found["expires_at"] - time.time())
        details.append(f"for {duration(left)}" if left > 0 else "already expired")
    say(f"Agent {found['agent']}: {', '.join(details)}.")
    say(f"Token (shown only once): {found['token']}")
    hint(f"It is also in {found['token_file']}, which only you can read.")


@agent.command()
def listing(
    name: Name,
    mode: Annotated[str, typer.Argument(metavar="MODE", help=f"{MODES}; or `default`, as the configuration says.")],
    *,
    as_json: AsJson = False,
) -> int:
    """Set how an agent's tools are listed; its clients are told at once."""
    if mode not in (*ListingMode, "default"):
        raise UsageError(f"There is no listing mode {mode!r}.", remedy=f"Choose one of {MODES}, default.")
    found = printed(
        perform("agent:listing", {"name": name, "mode": None if mode == "default" else mode}), as_json=as_json
    )
    say(f"{name}: listing {found['listing'] or 'as its profile or the configuration says'}.")
    hint(f"`toolcrib cost --agent {name}` shows what its list costs.")
    return 0


@agent.command("list")
def list_agents(*, as_json: AsJson = False) -> int:
    """List the agents."""
    found = printed(perform("agent:list"), as_json=as_json)
    if found["agents"]:
        table(
            AGENT_COLUMNS,
            [
                (row["name"], row["profile"], row["workdir"], row["parent"], _ahead(row), _ago(row))
                for row in found["agents"]
            ],
        )
    else:
        say("No agents yet.")
        hint("Next: `toolcrib agent add NAME --profile read-only`, or `toolcrib connect claude --write`.")
    return 0


def _ahead(row: Mapping[str, Any]) -> str | None:
    end = row["expires_at"]
    return None if end is None else f"in {duration(max(0.0, end - time.time()))}"


def _ago(row: Mapping[str, Any]) -> str | None:
    used = row["used_at"]
    return None if used is None else f"{duration(max(0.0, time.time() - used))} ago"


@agent.command()
def show(name: Name, *, as_json: AsJson = False) -> int:
    """Show an agent and its own rules."""
    found = printed(perform("agent:show", {"name": name}), as_json=as_json)
    lines = {
        "name": found["name"],
        "profile": found["profile"],
        "workdir": found["workdir"],
        "listing": found["listing"] or "",
        "parent": found["parent"],
        "children": ", ".join(found["children"]),
        "added": f"{duration(time.time() - found['created_at'])} ago",
        "expires": _ahead(found),
        "last used": _ago(found),
        "token": found["token_file"],
    }
    for label, value in lines.items():
        say(f"{label + ':':<11}{value or '-'}")
    for rule in found["rules"]:
        _, _, text = rule["text"].partition(": ")
        say(f"{'rule:':<11}{text}" + (" (from an approval with --always)" if rule["origin"] == "approval" else ""))
    if found["fault"]:
        hint(f"It can't use any tool: {found['fault']}.")
    _hint_limits(found)
    hint(f"`toolcrib profile show {found['profile']}` shows the rules of its profile.")
    return 0


@agent.command()
def rotate(name: Name, *, as_json: AsJson = False) -> int:
    """Replace an agent's token and print the new one. The old token stops working immediately."""
    found = printed(perform("agent:rotate", {"name": name}), as_json=as_json)
    _say_token(found)
    hint("The old token no longer works. Clients that read the token file get the new one when they restart.")
    return 0


@agent.command()
def remove(name: Name, *, as_json: AsJson = False) -> int:
    """Remove an agent and its children. Their tokens stop working immediately."""
    # Read first: removing an agent also deletes this note.
    noted = connected_files()
    found = perform("agent:remove", {"name": name})
    named = {removed: files for removed in (found["agent"], *found["children"]) if (files := noted.get(removed))}
    printed({**found, "named_in": {removed: sorted(files) for removed, files in named.items()}}, as_json=as_json)
    say(f"Removed {found['agent']}.")
    if found["children"]:
        say(f"Also removed its children: {', '.join(found['children'])}.")
    for removed, files in named.items():
        for file in sorted(files):
            hint(f"{file} still has an entry for {removed}: `toolcrib connect CLIENT --remove` removes it.")
    return 0


SESSION_COLUMNS = (
    "session",
    "agent",
    "conversation",
    "idle",
    "open",
    "listings",
    "calls",
    "denied",
    "failed",
    "results",
)

_PRIORITIES = ColumnPriorities(
    text="conversation", cut={"agent": 12}, optional=("listings", "results", "failed", "open", "denied")
)

sessions = typer.Typer(help="List, show or end sessions.")
commands.add_typer(sessions, name="sessions")

_Agent = Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Show only this agent's sessions.")]


@sessions.callback(invoke_without_command=True)
def list_sessions(context: typer.Context, *, agent: _Agent = None, as_json: AsJson = False) -> int:
    """List the sessions, most recently used first; `sessions show` shows one, `sessions end` ends them."""
    if context.invoked_subcommand is not None:
        return 0
    found = printed(perform("session:list", {"agent": agent}), as_json=as_json)
    if found["sessions"]:
        cut = table(
            SESSION_COLUMNS,
            [
                (
                    row["id"],
                    row["agent"],
                    row["conversation"],
                    duration(row["idle"]),
                    row["open_requests"],
                    row["listings"],
                    row["calls"],
                    row["denied"],
                    row["failed"],
                    size_of(row["result_bytes"]),
                )
                for row in found["sessions"]
            ],
            yielding=_PRIORITIES,
        )
        if cut is TableCut.SOME:
            hint("`toolcrib sessions --json` shows everything.")
    else:
        say("No sessions." if agent is None else f"{agent} has no sessions.")
    return 0


_BAR_WIDTH = 24


@sessions.command("show")
def show_session(
    id: Annotated[str, typer.Argument(metavar="ID", help="The session.")], *, as_json: AsJson = False
) -> int:
    """Show what a session cost in tokens: lists of tools, searches, descriptions, repairs, arguments and results."""
    found = printed(perform("session:show", {"id": id}), as_json=as_json)
    say(f"{found['id']}: {found['agent']} in {found['conversation']}")
    for label, value in _session_details(found):
        say(f"  {label:<14}{value}")
    tokens: Mapping[str, int] = found["tokens_by_kind"]
    if most := max(tokens.values()):
        rows = [(kind, count, "█" * round(_BAR_WIDTH * count / most)) for kind, count in tokens.items()]
        rows.append(("in all", found["tokens"], ""))
        about = "~" if found["tokens_estimated"] else ""
        table(
            ("tokens of", "count", "share"),
            [(kind, f"{about if count else ''}{count:,}", bar) for kind, count, bar in rows],
        )
    return 0


def _session_details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "listing", f"{found['mode']}, sent {counted(found['listings'], 'time')}"
    yield "calls", f"{found['calls']:,} ({found['denied']:,} denied, {found['failed']:,} failed)"
    for kind in ("searches", "descriptions", "repairs"):
        yield kind, f"{found[kind]:,}"
    if found["ranks"]:
        ranks = ", ".join(f"{times:,} of rank {rank}" for rank, times in found["ranks"].items())
        yield "called hits", f"{ranks}; the mean is {found['mean_rank']:.1f}"


@sessions.command()
def end(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The session to end.")] = None,
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT", help="End all of this agent's sessions.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """End a session, or all sessions of an agent, and stop its calls. The next request starts a new session."""
    found = printed(perform("session:end", {"id": id, "agent": agent}), as_json=as_json)
    for row in found["ended"]:
        say(f"Ended {row['id']}: {row['agent']} in {row['conversation']}.")
    return 0
