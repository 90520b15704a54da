"""`add`: adds a server to the configuration and connects to it.

In: command-line arguments. Out: an exit code. `server:add` does the work; this module turns the arguments into an entry
that works in every project.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import counted, hint, printed, say
from toolcrib.cli.perform import ANSWER_WITHIN, daemon_pid, perform, root
from toolcrib.cli.secret_commands import typed
from toolcrib.cli.server_commands import has_stderr, hint_pins, logs_hint
from toolcrib.config.launchers import INSTALL_LIMIT
from toolcrib.config.launching import needs_project, portable_words
from toolcrib.config.paths import working_folder
from toolcrib.config.show import visible
from toolcrib.daemon_client.command_client import RemoteError
from toolcrib.errors import ServerUnavailable, ToolcribError, UsageError

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the server.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command that starts the server.")
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="The server's URL: http(s):// or ws(s)://.")] = None,
    transport: Annotated[str | None, typer.Option(help="http, sse, websocket or stdio. Detected by default.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'K: V'", help="Send this HTTP header. ${VAR} is stored as written and expanded when used."
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Set an environment variable for the server.")
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(help="The folder to start the server in; `project` means each project's root.")
    ] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Write to this project's .toolcrib/config.yml instead of your own file.")
    ] = False,
    connect_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="The limit for connecting: 10 by default, 180 for npx and similar."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing server of this name.")] = False,
    as_json: AsJson = False,
) -> int:
    """Add a server and connect to it. Exit code 6: the server was added but isn't responding."""
    entry = entry_from(
        command=command or [], url=url, transport=transport, headers=header or [], env=env or [], cwd=cwd
    )
    if connect_timeout is not None:
        entry["connect_timeout"] = connect_timeout
    _warn_of_disguises(entry)
    params: dict[str, Any] = {"name": name, "entry": entry, "scope": "project" if project else "user"}
    if replace:
        params["replace"] = True
    if not project and command and cwd in (None, "project"):
        _make_portable(entry)

    def added() -> dict[str, Any]:
        return perform("server:add", params, timeout=(connect_timeout or INSTALL_LIMIT) + ANSWER_WITHIN)

    try:
        try:
            found = added()
        except ToolcribError as error:
            if as_json or not typed([{"name": missing} for missing in error.data.get("missing", ())]):
                raise
            found = added()
    except KeyboardInterrupt:
        if daemon_pid() is not None:
            hint(f"{name} may still be connecting or installing in the daemon: `toolcrib servers` shows its state.")
        raise
    except RemoteError as error:
        _explain_missing_variables(error)
        raise
    code = 0 if found.get("state") in ("ready", "idle", "disabled") else ServerUnavailable.exit_code
    _say_added(name, printed(found, as_json=as_json, exit_code=code))
    return code


def _warn_of_disguises(entry: Mapping[str, Any]) -> None:
    """A command copied from a web page may contain invisible or look-alike characters."""
    for argument in (entry.get("command", ""), *entry.get("args", ()), entry.get("url", "")):
        if (shown := visible(argument)) != argument:
            hint(f"This contains invisible or look-alike characters, escaped here: {shown}")


def _make_portable(entry: dict[str, Any]) -> None:
    """A server in the user's file applies to every project, and starts in a folder without this project's files."""
    argv, notes = portable_words([entry["command"], *entry["args"]], working_folder(), root())
    entry |= {"command": argv[0], "args": argv[1:]}
    if "cwd" not in entry and needs_project(argv):
        entry["cwd"] = "project"
        notes.append("This server needs the project's folder, so `cwd: project` was added.")
    if entry.get("cwd") == "project":
        notes.append("It starts in each project's folder, so files there can influence it.")
    for note in notes:
        hint(note)


def _explain_missing_variables(error: RemoteError) -> None:
    """A variable set in this shell but not in the daemon's environment needs a different remedy."""
    unset = error.data.get("missing", ())
    if unset and all(name in os.environ for name in unset):
        pid = daemon_pid()
        which = "The daemon" if pid is None else f"The daemon (pid {pid})"
        error.remedy = (
            f"{which} was started without it: run `toolcrib secret set {unset[0]}`, or `toolcrib down` and "
            "`toolcrib up` here."
        )


def _say_added(name: str, found: Mapping[str, Any]) -> None:
    hint_pins({"name": name, "pins": found.get("pins")})
    match found.get("state"):
        case "ready":
            count = found.get("tools", 0)
            say(f"Added {name} to {found['file']}.")
            lists = f" `toolcrib tools {shlex.quote(name)}` lists {'it' if count == 1 else 'them'}." if count else ""
            say(f"It is ready: {counted(count, 'tool')}.{lists}")
        case "disabled":
            say(f"Added {name} to {found['file']}. It is disabled.")
        case _ if found.get("needs_sign_in"):
            say(f"Added {name} to {found['file']}.")
            hint(found["last_error"])
        case _:
            why = found.get("last_error") or "it is still connecting."
            hint(f"Added {name} to {found['file']}, but it isn't responding: {why}")
            if has_stderr(found):
                hint(logs_hint(name))
            if daemon_pid() is not None:
                hint("The daemon keeps retrying; `toolcrib servers` shows the server's state.")


def entry_from(
    *,
    command: Sequence[str],
    url: str | None,
    transport: str | None,
    headers: Sequence[str],
    env: Sequence[str],
    cwd: str | None,
) -> dict[str, Any]:
    """The entry as it will be written to the configuration."""
    if bool(command) == bool(url):
        raise UsageError(
            "A server needs either a command or --url.",
            remedy="`toolcrib add NAME -- COMMAND ARGS...` or `toolcrib add NAME --url URL`.",
        )
    if command and headers:
        raise UsageError("--header requires --url.", remedy="For a command, use --env K=V.")
    if url and (env or cwd):
        raise UsageError("--env and --cwd require a command.", remedy="For a URL, use --header 'K: V'.")
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
        # The text may contain a secret, so the message doesn't repeat it.
        raise UsageError(f"An option does not have the form {form}.", remedy=f"Write {form}.")
    return key.strip(), value.strip() if sign == ":" else value
