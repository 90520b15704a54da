"""`add`: puts a server into the configuration and connects to it.

In: words of the command line. Out: an exit code. `server:add` does the work; here the words become an entry that holds
in every project.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, printed, say
from toolcrib.cli.perform import daemon_pid, perform, root
from toolcrib.cli.server_commands import has_stderr, logs_hint
from toolcrib.config.launching import needs_project, portable_words
from toolcrib.config.paths import working_folder
from toolcrib.config.show import visible
from toolcrib.daemon_client.command_client import RemoteError
from toolcrib.errors import ServerUnavailable, UsageError

_UNSET = re.compile(r"\$\{(\w+)\}, which is not set")

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
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
    cwd: Annotated[
        str | None, typer.Option(help="The folder to start the program in; `project`: that of each project.")
    ] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Write .toolcrib/config.yml of this project, not the user's file.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server of the same name.")] = False,
    as_json: AsJson = False,
) -> int:
    """Add a server and connect to it. Exit code 6: it was added, but does not answer."""
    entry = entry_from(
        command=command or [], url=url, transport=transport, headers=header or [], env=env or [], cwd=cwd
    )
    _warn_of_disguises(entry)
    params: dict[str, Any] = {"name": name, "entry": entry, "scope": "project" if project else "user"}
    if replace:
        params["replace"] = True
    if not project and command and cwd in (None, "project"):
        _settle(entry)
    try:
        found = perform("server:add", params)
    except RemoteError as error:
        _say_where_variables_are(error)
        raise
    code = 0 if found.get("state") in ("ready", "disabled") else ServerUnavailable.exit_code
    _say_added(name, printed(found, as_json=as_json, exit_code=code))
    return code


def _warn_of_disguises(entry: Mapping[str, Any]) -> None:
    """A command line that was copied from a page may hold characters that look like others."""
    for word in (entry.get("command", ""), *entry.get("args", ()), entry.get("url", "")):
        if (shown := visible(word)) != word:
            hint(f"Characters that hide or look like others are spelled out here: {shown}")


def _settle(entry: dict[str, Any]) -> None:
    """A server of the user's file holds in every project, and starts in a folder where no file of this one is."""
    words, notes = portable_words([entry["command"], *entry["args"]], working_folder(), root())
    entry |= {"command": words[0], "args": words[1:]}
    if "cwd" not in entry and needs_project(words):
        entry["cwd"] = "project"
        notes.append("This server needs the project's folder: cwd: project is added.")
    if entry.get("cwd") == "project":
        notes.append("It starts in the folder of each project, and may read or obey the files there.")
    for sentence in notes:
        hint(sentence)


def _say_where_variables_are(error: RemoteError) -> None:
    """A variable that is set here, but not where the daemon runs, wants another remedy than one that is nowhere."""
    unset = _UNSET.findall(error.message)
    if unset and all(name in os.environ for name in unset):
        pid = daemon_pid()
        which = "The daemon" if pid is None else f"The daemon (pid {pid})"
        error.remedy = f"{which} was started without it: `toolcrib down`, then `toolcrib up` here."


def _say_added(name: str, found: Mapping[str, Any]) -> None:
    match found.get("state"):
        case "ready":
            count = found.get("tools", 0)
            say(f"Added {name} to {found['file']}.")
            tools = f"{count} {'tool' if count == 1 else 'tools'}"
            say(f"It is ready: {tools}. `toolcrib tools {shlex.quote(name)}` lists them.")
        case "disabled":
            say(f"Added {name} to {found['file']}. It is switched off.")
        case _:
            why = found.get("last_error") or "it is still connecting."
            hint(f"Added {name} to {found['file']}, but it does not answer: {why}")
            if has_stderr(found):
                hint(logs_hint(name))
            if daemon_pid() is not None:
                hint("The daemon keeps trying: `toolcrib servers` shows its state.")


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
