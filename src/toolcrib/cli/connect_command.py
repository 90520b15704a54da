"""`connect`: the entry that points a client at Toolcrib, shown, written or taken out.

In: a client's name and what to do. Out: an exit code. What the clients look like is `coding_agents`' knowledge; this
only finds the command or endpoint that the entry has to name.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json
from toolcrib.cli.reach import daemon_runs, from_daemon, paths, root
from toolcrib.errors import UsageError

DEFAULT_ENDPOINT = "http://127.0.0.1:8665/mcp"


def connect(
    client: Annotated[str, typer.Argument(metavar="claude|codex|gemini|generic", help="The client.")],
    *,
    write: Annotated[bool, typer.Option("--write", help="Write the entry into the client's file.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the entry out of it again.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="An entry with the endpoint's URL; the token stays in TOOLCRIB_TOKEN.")
    ] = False,
    scope: Annotated[str, typer.Option(metavar="user|project", help="Whose file.")] = "user",
    as_json: AsJson = False,
) -> int:
    """Show the entry that points a client at Toolcrib; write it, or take it out again."""
    from toolcrib.coding_agents.clients import Scope, client_named  # noqa: PLC0415
    from toolcrib.coding_agents.connect import Connection, Outcome  # noqa: PLC0415

    if write and remove:
        raise UsageError("--write and --remove are opposites.", remedy="Choose one.")
    try:
        where = Scope(scope)
    except ValueError as error:
        raise UsageError(f"--scope is user or project, not {scope!r}.") from error
    described = client_named(client)
    entry = described.http(url=_endpoint()) if http else described.stdio(**_bridge(where is Scope.PROJECT))
    connection = Connection(client=described, scope=where, entry=entry, environ=os.environ, root=root())
    outcome = connection.write() if write else connection.remove() if remove else Outcome.SHOWN
    notes = (*described.http_notes, _token_note()) if http else described.stdio_notes
    if where is Scope.PROJECT:
        notes = (*notes, *described.project_notes)
    backup = connection.backup if outcome is Outcome.WRITTEN else None
    if as_json:
        file = connection.file
        say_json(
            {
                "client": described.name,
                "scope": where.value,
                "file": None if file is None else str(file),
                "entry": entry,
                "text": connection.text,
                "outcome": outcome.value,
                "backup": None if backup is None else str(backup),
                "notes": list(notes),
            }
        )
        return 0
    _tell(connection.file, connection.text, outcome.value)
    if backup is not None:
        hint(f"The file as it was: {backup}.")
    if outcome in (Outcome.SHOWN, Outcome.WRITTEN):
        for note in notes:
            hint(note)
    return 0


def _tell(file: Path | None, text: str, outcome: str) -> None:
    if outcome == "shown":
        hint(
            f"This goes into {file} (--write puts it there):"
            if file
            else "This goes into the client's file of servers:"
        )
        say(text)
    else:
        said = {
            "written": f"Written to {file}.",
            "unchanged": f"{file} holds it already.",
            "removed": f"Taken out of {file}.",
            "absent": f"{file} has no such entry.",
        }
        say(said[outcome])


def _token_note() -> str:
    return (
        f"The client needs TOOLCRIB_TOKEN in its environment: export TOOLCRIB_TOKEN=\"$(cat '{paths().owner_token}')\""
    )


def _endpoint() -> str:
    if daemon_runs():
        return str(from_daemon("system:status")["endpoint"])
    hint("No daemon runs; this is its default endpoint.")
    return DEFAULT_ENDPOINT


def _bridge(shared: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller, beside it
    """The command that starts the bridge, and what it must be told about where our files are.

    A project's file is shared with other machines, so it names the command alone. A user's file gets the absolute path:
    clients start with another PATH than a shell does.
    """
    if shared:
        if shutil.which("toolcrib") is None:
            hint("`toolcrib` is not on your PATH, and a project's file names it so: add it there.")
        return {"command": "toolcrib", "args": ["stdio"], "env": {}}
    env = {"TOOLCRIB_HOME": str(paths().config_dir)} if os.environ.get("TOOLCRIB_HOME") else {}
    script = Path(sys.executable).with_name("toolcrib")
    if script.is_file() and os.access(script, os.X_OK):
        return {"command": str(script), "args": ["stdio"], "env": env}
    # -P: without it a file in the client's project could stand in for one of ours.
    return {"command": sys.executable, "args": ["-P", "-m", "toolcrib", "stdio"], "env": env}
