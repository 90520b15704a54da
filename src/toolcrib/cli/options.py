"""Options that several commands share, so that each is worded once, and wrong ones end before anything begins."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

import typer

from toolcrib.errors import UsageError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def well_formed(given: list[str] | None) -> list[str] | None:
    """Servers of --mcp-server, each NAME=URL or NAME=COMMAND. What was typed is not repeated: it may hold a secret."""
    for one in given or []:
        name, _, target = one.partition("=")
        if not name.strip() or not target.strip():
            raise UsageError(
                "--mcp-server has no name or no server.", remedy="Write --mcp-server NAME=URL or NAME=COMMAND."
            )
        if _URL.match(target):
            continue
        try:
            command, *_ = shlex.split(target)
        except ValueError as error:
            raise UsageError(
                f"The command line of --mcp-server {name} cannot be read ({str(error).lower()}).",
                remedy="Quote it as in a shell.",
            ) from error
        if not command:
            raise UsageError(
                f"The command line of --mcp-server {name} is empty.", remedy="Write --mcp-server NAME=COMMAND."
            )
    return given


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
McpServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp-server",
        metavar="NAME=URL|COMMAND",
        callback=well_formed,
        help="A server for this command alone; may be repeated. The command then works without the daemon.",
    ),
]
