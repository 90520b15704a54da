"""Options that several commands share, so that each is worded once."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
McpServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp-server",
        metavar="NAME=URL|COMMAND",
        help="A server for this command alone; may be repeated. The command then works without the daemon.",
    ),
]
