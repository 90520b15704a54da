"""`servers`, `remove`, `restart`: the servers behind Toolcrib.

In: words of the command line. Out: an exit code. Every one of them is a command of the registry with a face.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import ColumnPriorities, TableCut, duration, hint, printed, say, table
from toolcrib.cli.perform import from_daemon, perform

COLUMNS = ("name", "state", "protocol", "transport", "tools", "trusted", "pid", "uptime", "last error")
MOST_PROBLEMS = 10
"""Problems that are shown beside something else; `config check` has them all."""
MOST_TOOLS = 5
"""Names of tools beside a server; `servers --json` has them all."""

_PRIORITIES = ColumnPriorities(text="last error", optional=("uptime", "pid", "protocol"))

commands = typer.Typer(rich_markup_mode=None)

ServerName = Annotated[str, typer.Argument(metavar="NAME", help="The server.")]


def server_table(servers: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            row.get("name"),
            row.get("state"),
            row.get("protocol_version"),
            row.get("transport"),
            row.get("tools"),
            "yes" if row.get("trusted") else "no",
            row.get("pid"),
            duration(row.get("uptime")),
            row.get("last_error"),
        )
        for row in servers
    ]
    cut = table(COLUMNS, rows, yielding=_PRIORITIES)
    if cut is TableCut.SOME:
        hint("`toolcrib servers --json` shows all of it.")
    for row in servers:
        if changed := row.get("new_or_changed"):
            hint(_untrusted(row["name"], changed))
        if tasks := row.get("tasks_only"):
            hint(f"{row['name']}: not listed, since they run only as tasks, which is not supported: {_named(tasks)}.")
        if row.get("last_error") and has_stderr(row):
            hint(logs_hint(row["name"]))


def _untrusted(server: str, tools: Sequence[str]) -> str:
    are = "1 tool is" if len(tools) == 1 else f"{len(tools)} tools are"
    return (
        f"{server}: {are} new or changed since you trusted it, and untrusted until you run "
        f"`toolcrib trust --server {shlex.quote(server)}`: {_named(tools)}"
    )


def _named(tools: Sequence[str]) -> str:
    return ", ".join(tools[:MOST_TOOLS]) + (" …" if len(tools) > MOST_TOOLS else "")


def has_stderr(row: Mapping[str, Any]) -> bool:
    """Whether a server's program was started and left something to read."""
    return row.get("transport") == "stdio" and bool(row.get("stderr"))


def logs_hint(name: str) -> str:
    return f"`toolcrib logs {shlex.quote(name)}` shows what it wrote."


def hint_problems(found: Mapping[str, Any]) -> None:
    """What the configuration has wrong, what waits for trust included, where a result says so."""
    problems = found.get("problems", [])
    for problem in problems[:MOST_PROBLEMS]:
        hint(f"Problem: {problem}")
    if len(problems) > MOST_PROBLEMS:
        hint(f"`toolcrib config check` shows {len(problems) - MOST_PROBLEMS} more.")


@commands.command()
def servers(*, mcp_server: McpServers = None, as_json: AsJson = False) -> int:
    """List the servers with their state, protocol, transport, tools and last error."""
    found = printed(perform("server:list", servers=mcp_server or ()), as_json=as_json)
    if found["servers"]:
        server_table(found["servers"])
    elif problems := found.get("problems"):
        count = f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'}"
        say(f"No server is in use, and the configuration has {count}: `toolcrib config check`.")
    elif found.get("untrusted"):
        say("No server is in use.")
    else:
        say("No servers yet.")
        hint("Next: `toolcrib add NAME -- COMMAND ARGS...` or `toolcrib add NAME --url URL`.")
    hint_problems(found)
    return 0


@commands.command()
def remove(name: ServerName, *, as_json: AsJson = False) -> int:
    """Remove a server from the configuration; its tools go with it."""
    found = printed(perform("server:remove", {"name": name}), as_json=as_json)
    say(f"Removed {name} from {found['file']}.")
    return 0


@commands.command()
def restart(name: ServerName, *, as_json: AsJson = False) -> int:
    """Disconnect from a server and connect again, in the running daemon."""
    found = printed(from_daemon("server:restart", {"name": name}), as_json=as_json)
    server_table([found])
    return 0
