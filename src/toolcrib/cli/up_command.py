"""`up`: starts the daemon, in the foreground or detached.

In: command-line arguments. Out: an exit code. `daemon.process` is the daemon; `daemon_client.detach` starts one that
outlives this process.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from toolcrib.cli.daemon_commands import hint_sandbox
from toolcrib.cli.flags import well_formed_servers, without_password
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import hint, say, say_json, working
from toolcrib.cli.perform import root
from toolcrib.cli.server_commands import hint_problems
from toolcrib.config.model import Flags
from toolcrib.daemon_client.detach import start_detached

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def up(
    *,
    port: Annotated[
        int | None, typer.Option(help="Listen on this port of 127.0.0.1; 0 chooses a free one.", min=0, max=65535)
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background; return when the endpoint is ready.")
    ] = False,
    mcp_server: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp-server",
            metavar="NAME=URL|COMMAND",
            help="Add this server to those of the configuration; repeatable.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="The database: a SQLite file, or postgresql://user@host/name without a password.",
        ),
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sandbox",
            help="Dangerous: run workspace commands with all of your permissions. Each is recorded in the audit log.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Start the daemon, in the foreground or detached."""

    def say_ready(daemon: dict[str, Any]) -> None:
        if as_json:
            say_json(daemon)
        else:
            say(f"Toolcrib is running: {daemon['endpoint']} (pid {daemon['pid']})")
            hint(f"Its token is in {daemon['token_file']}.")
            hint_sandbox(daemon)
            hint_problems(daemon)
            if daemon.get("workspace"):
                hint("Workspace tools for this folder are available: `toolcrib tools workspace`.")
            hint('Next: `toolcrib add NAME -- COMMAND`, `toolcrib connect claude`, `toolcrib run claude "…"`.')
        sys.stdout.flush()

    flags = Flags(
        mcp_servers=well_formed_servers(mcp_server or ()),
        port=port,
        store=without_password(store),
        unsafe_no_sandbox=unsafe_no_sandbox,
    )
    if not detach:
        # Heavy: a detached daemon imports this in its own process.
        from toolcrib.daemon.process import run_foreground  # noqa: PLC0415

        code = run_foreground(root(), flags, ready=say_ready)
        if sys.stderr.isatty():
            hint("Stopped.")
        return code
    with working("starting the daemon …"):
        started = start_detached(root(), flags)
    say_ready(started)
    return 0
