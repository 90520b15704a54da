"""`servers`, `add`, `remove`, `restart`: the servers behind Toolcrib.

In: words of the command line. Out: an exit code. Every one of them is a command of the registry with a face.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import duration, hint, say, say_json, table
from toolcrib.cli.reach import from_daemon, perform
from toolcrib.errors import UsageError

COLUMNS = ("name", "state", "era", "transport", "tools", "pid", "uptime", "last error")


def server_table(servers: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            row.get("name"),
            row.get("state"),
            row.get("era"),
            row.get("transport"),
            row.get("tools"),
            row.get("pid"),
            duration(row.get("uptime")),
            row.get("last_error"),
        )
        for row in servers
    ]
    table(COLUMNS, rows)


def servers(*, mcp_server: McpServers = None, as_json: AsJson = False) -> int:
    """List the servers with their state, era, transport, tools and last error."""
    found = perform("server:list", servers=mcp_server or ())
    if as_json:
        say_json(found)
    elif found["servers"]:
        server_table(found["servers"])
    else:
        say("No servers yet.")
        hint("Next: `toolcrib add NAME -- COMMAND ARGS...` or `toolcrib add NAME --url URL`.")
    return 0


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server shall be called.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The program that is the server.")
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="Where the server is: http(s):// or ws(s)://.")] = None,
    transport: Annotated[
        str | None, typer.Option(help="http, sse, websocket or stdio, where the rest does not say it.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'K: V'", help="A header; ${VAR} stays in the file as it is.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable for the program.")] = None,
    cwd: Annotated[str | None, typer.Option(help="The folder to start the program in.")] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Write .toolcrib/config.yml of this project, not the user's file.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server of the same name.")] = False,
    as_json: AsJson = False,
) -> int:
    """Add a server and connect to it."""
    entry = entry_from(
        command=command or [], url=url, transport=transport, headers=header or [], env=env or [], cwd=cwd
    )
    params: dict[str, Any] = {"name": name, "entry": entry, "scope": "project" if project else "user"}
    if replace:
        params["replace"] = True
    found = perform("server:add", params)
    if as_json:
        say_json(found)
        return 0
    say(f"Added {name} to {found['file']}.")
    if found.get("state") == "ready":
        count = found.get("tools", 0)
        say(f"It is ready: {count} {'tool' if count == 1 else 'tools'}. `toolcrib tools {name}` lists them.")
    elif found.get("last_error"):
        hint(f"It does not answer yet: {found['last_error']} `toolcrib logs {name}` shows what it wrote.")
    return 0


def entry_from(
    *,
    command: Sequence[str],
    url: str | None,
    transport: str | None,
    headers: Sequence[str],
    env: Sequence[str],
    cwd: str | None,
) -> dict[str, Any]:
    """The entry as the configuration will hold it."""
    if bool(command) == bool(url):
        raise UsageError(
            "A server needs either a command or --url.",
            remedy="`toolcrib add NAME -- COMMAND ARGS...` or `toolcrib add NAME --url URL`.",
        )
    if command and headers:
        raise UsageError("--header goes with --url.", remedy="For a program, use --env K=V.")
    if url and (env or cwd):
        raise UsageError("--env and --cwd go with a command.", remedy="For a URL, use --header 'K: V'.")
    entry: dict[str, Any] = {}
    if command:
        entry |= {"command": command[0], "args": list(command[1:])}
    if url:
        entry["url"] = url
    if transport:
        entry["transport"] = transport
    if headers:
        entry["headers"] = dict(_pair(header, ":", "--header 'K: V'") for header in headers)
    if env:
        entry["env"] = dict(_pair(variable, "=", "--env K=V") for variable in env)
    if cwd:
        entry["cwd"] = cwd
    return entry


def _pair(text: str, sign: str, form: str) -> tuple[str, str]:
    key, found, value = text.partition(sign)
    if not found or not key.strip():
        # The value may be a secret: only the part before the sign is ever repeated.
        raise UsageError(f"An option does not have the form {form}.", remedy=f"Write {form}.")
    return key.strip(), value.strip() if sign == ":" else value


def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="The server.")], *, as_json: AsJson = False) -> int:
    """Remove a server from the configuration; its tools go with it."""
    found = perform("server:remove", {"name": name})
    if as_json:
        say_json(found)
    else:
        say(f"Removed {name} from {found['file']}.")
    return 0


def restart(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server.")], *, as_json: AsJson = False
) -> int:
    """Disconnect from a server and connect again, in the running daemon."""
    found = from_daemon("server:restart", {"name": name})
    if as_json:
        say_json(found)
    else:
        server_table([found])
    return 0
