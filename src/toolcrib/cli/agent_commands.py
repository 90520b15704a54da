"""`agent add|list|show|rotate|remove` and `sessions`: which agents there are, and their conversations.

In: words of the command line. Out: an exit code. A token is printed once, to the person who created it; it is never
a word of a command line. Without a daemon the work is done in this process.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.connected_agents import connected_files
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import ColumnPriorities, TableCut, duration, hint, printed, say, size_of, table
from toolcrib.cli.perform import perform
from toolcrib.config.paths import working_folder

AGENT_COLUMNS = ("name", "profile", "workdir", "parent", "expires", "last used")

commands = typer.Typer(rich_markup_mode=None)
agent = typer.Typer(help="Agents: who may use Toolcrib, each with a token of its own.")
commands.add_typer(agent, name="agent")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")]


@agent.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the agent shall be called.")],
    *,
    profile: Annotated[
        str, typer.Option(metavar="PROFILE", help="What it may do; `toolcrib profile list` shows all.")
    ] = "developer",
    workdir: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder it works in; rules on paths start there.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it lives: 30m, 8h, 2d. Otherwise until removed.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="It may never do more than this agent, and ends with it.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Add an agent and print its token, this once."""
    given = {"profile": profile, "workdir": _absolute(workdir), "expires": expires, "parent": parent}
    params = {key: value for key, value in given.items() if value is not None}
    found = printed(perform("agent:add", {"name": name, **params}), as_json=as_json)
    _say_token(found)
    hint(f"Next: `toolcrib connect claude --agent {name}` shows how a client becomes this agent (codex, gemini too).")
    _hint_limits(found)
    for server in found["not_trusted"]:
        hint(
            f"{server} is not trusted, so none of its tools counts as read-only: "
            f"`toolcrib trust --server {shlex.quote(server)}` changes that."
        )
    return 0


def _hint_limits(found: Mapping[str, Any]) -> None:
    for above in found["limited_by"]:
        hint(f"{above['agent']} ({above['profile']}) limits it: what {above['agent']} may not use, it may not use.")
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
        details.append(f"for {duration(left)}" if left > 0 else "its time is over already")
    say(f"Agent {found['agent']}: {', '.join(details)}.")
    say(f"Token, shown this once: {found['token']}")
    hint(f"It is also in {found['token_file']}, which only you can read.")


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
    """Show an agent with its own rules."""
    found = printed(perform("agent:show", {"name": name}), as_json=as_json)
    lines = {
        "name": found["name"],
        "profile": found["profile"],
        "workdir": found["workdir"],
        "parent": found["parent"],
        "children": ", ".join(found["children"]),
        "added": f"{duration(time.time() - found['created_at'])} ago",
        "expires": _ahead(found),
        "last used": _ago(found),
        "token": found["token_file"],
    }
    for word, value in lines.items():
        say(f"{word + ':':<11}{value or '-'}")
    for rule in found["rules"]:
        _, _, text = rule["text"].partition(": ")
        say(f"{'rule:':<11}{text}" + (" (you approved it for always)" if rule["origin"] == "approval" else ""))
    if found["fault"]:
        hint(f"It may do nothing: {found['fault']}.")
    _hint_limits(found)
    hint(f"`toolcrib profile show {found['profile']}` shows the rules of its profile.")
    return 0


@agent.command()
def rotate(name: Name, *, as_json: AsJson = False) -> int:
    """Give an agent a new token and print it, this once. The old one is void at once."""
    found = printed(perform("agent:rotate", {"name": name}), as_json=as_json)
    _say_token(found)
    hint("The old token is void. Clients that read the file have the new one when they start again.")
    return 0


@agent.command()
def remove(name: Name, *, as_json: AsJson = False) -> int:
    """End an agent and its children; their tokens are void at once."""
    # What is known of them goes with the agent.
    noted = connected_files()
    found = perform("agent:remove", {"name": name})
    named = {one: files for one in (found["agent"], *found["children"]) if (files := noted.get(one))}
    printed({**found, "named_in": {one: sorted(files) for one, files in named.items()}}, as_json=as_json)
    say(f"Removed {found['agent']}.")
    if found["children"]:
        say(f"Its children ended with it: {', '.join(found['children'])}.")
    for one, files in named.items():
        for file in sorted(files):
            hint(f"{file} still has an entry for {one}: `toolcrib connect CLIENT --remove` takes it out.")
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

sessions = typer.Typer(help="List the sessions, or end some.")
commands.add_typer(sessions, name="sessions")

_Agent = Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Only this agent's.")]


@sessions.callback(invoke_without_command=True)
def list_sessions(context: typer.Context, *, agent: _Agent = None, as_json: AsJson = False) -> int:
    """List the sessions, the one used last first; `sessions end` ends some."""
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
    found = printed(perform("session:end", {"id": id, "agent": agent}), as_json=as_json)
    for row in found["ended"]:
        say(f"Ended {row['id']}: {row['agent']} in {row['conversation']}.")
    return 0
