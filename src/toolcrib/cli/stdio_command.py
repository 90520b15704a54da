"""`stdio`: the bridge as a command, for `--help` and for options in another form than clients write them.

In: words of the command line. Out: an exit code. `main` starts the usual bridge without this module.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toolcrib.cli.bridge import run_bridge

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def stdio(
    *,
    agent: Annotated[str, typer.Option(metavar="NAME", help="Serve as this agent, with what it may do.")] = "",
) -> int:
    """Be the MCP server that a client starts in its project: a bridge to the daemon, which is started if none runs.

    The project is CLAUDE_PROJECT_DIR where the client sets it, else the nearest folder upwards with .toolcrib or .git,
    else the working folder. TOOLCRIB_CONVERSATION names the conversation; without it every bridge is one of its own.
    """
    return run_bridge(agent)
