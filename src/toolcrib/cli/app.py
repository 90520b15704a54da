"""The command line as a whole: which word leads to which function, and how an error ends.

In: the words after `toolcrib`. Out: an exit code: 0, the error's own (`errors.py`), or 10 for a tool that failed.
Everything a command needs is imported when it runs; `toolcrib --help` shows the price of each import here.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from toolcrib import __version__
from toolcrib.cli import (
    agent_commands,
    audit_commands,
    config_commands,
    connect_command,
    daemon_commands,
    job_commands,
    permission_commands,
    run_command,
    runs_commands,
    server_commands,
    tool_commands,
    workspace_commands,
)
from toolcrib.cli import agent_commands as session_commands
from toolcrib.cli import permission_commands as approval_commands
from toolcrib.cli.output import report, say
from toolcrib.errors import ToolcribError, UsageError

PROGRAM = "toolcrib"

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One room for the tools of all your agents.",
    epilog="Exit codes: 0 fine, 1 other error, 2 wrong words or arguments, 3 configuration, 4 unknown name, 5 denied, "
    "6 a server failed, 7 no daemon, 8 already running or port taken, 9 database, 10 the tool or program failed, "
    "11 running code is refused here, 12 a run was ended by Toolcrib, 130 Ctrl-C.",
)


def _version(*, wanted: bool) -> None:
    if wanted:
        say(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", is_eager=True, callback=lambda value: _version(wanted=value)
        ),
    ] = False,
) -> None: ...


def stdio(
    *,
    agent: Annotated[str, typer.Option(metavar="NAME", help="Serve as this agent, with what it may do.")] = "",
) -> int:
    """Be the MCP server that a client starts in its project: a bridge to the daemon, which is started if none runs.

    The project is CLAUDE_PROJECT_DIR where the client sets it, else the nearest folder upwards with .toolcrib or .git,
    else the working folder. TOOLCRIB_CONVERSATION names the conversation; without it every bridge is one of its own.
    """
    from toolcrib.cli.bridge import run_bridge  # noqa: PLC0415

    return run_bridge(agent)


for function in (
    daemon_commands.up,
    daemon_commands.down,
    daemon_commands.status,
    daemon_commands.logs,
    server_commands.servers,
    server_commands.add,
    server_commands.remove,
    server_commands.restart,
    tool_commands.tools,
    tool_commands.call,
    connect_command.connect,
    config_commands.trust,
    config_commands.untrust,
    permission_commands.allow,
    permission_commands.deny,
    permission_commands.why,
    approval_commands.approvals,
    approval_commands.approve,
    approval_commands.refuse,
    stdio,
):
    app.command()(function)
app.command(cls=run_command.ProgramWordsCommand)(run_command.run)
app.add_typer(runs_commands.runs, name="runs")
app.add_typer(job_commands.job, name="job")
app.add_typer(config_commands.config, name="config")
app.add_typer(daemon_commands.clock, name="clock")
app.add_typer(agent_commands.agent, name="agent")
app.add_typer(permission_commands.profile, name="profile")
app.add_typer(audit_commands.audit, name="audit")
app.add_typer(session_commands.sessions, name="sessions")
app.add_typer(workspace_commands.workspace, name="workspace")


def run(words: Sequence[str]) -> int:
    """Runs one command line; every error ends here."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # It was closed before we began; nobody wants to read it, and no other file shall take its number.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _hush()
        return 141
    except OSError as error:
        _hush()
        with contextlib.suppress(OSError):
            unwritable = f"stdout cannot be written: {error.strerror or error}."
            report(ToolcribError(unwritable, remedy="Send it elsewhere, or make room."), as_json=False)
        return ToolcribError.exit_code
    return code


def _hush() -> None:
    """What is still to be written goes nowhere: Python must not complain about it at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: Sequence[str]) -> int:
    """Raises OSError if the output cannot be written, and nothing else."""
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    if list(words) in ([], ["config"], ["agent"], ["profile"], ["workspace"], ["job"], ["clock"]):
        words = [*words, "--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Half a pair of surrogates, as a server or a program may say it, has no bytes: it is spelled out.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=list(words), prog_name=PROGRAM, standalone_mode=False)
    except ToolcribError as error:
        return report(error, as_json=as_json)
    except typer.TyperException as error:
        return _usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            # If it was our output that could not be written, it still cannot.
            sys.stdout.write("\n")
            sys.stdout.flush()
        traceback.print_exc()
        unforeseen = ToolcribError(
            f"Something failed in a way nobody foresaw ({type(error).__name__}).",
            remedy="It is a mistake in Toolcrib: please report it with the lines above.",
        )
        return report(unforeseen, as_json=as_json)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException, *, as_json: bool) -> int:
    message = error.format_message().strip()
    if not message.endswith((".", "?", "!")):
        message += "."
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else PROGRAM
    remedy = f"`{where} --help` shows what it takes."
    if where == f"{PROGRAM} add" and "option" in message:
        remedy += " Put `--` before the server's command."
    elif where == f"{PROGRAM} run" and "option" in message:
        remedy += " Words for the program come after `--`; a prompt that begins with a dash comes by a pipe."
    elif where == f"{PROGRAM} run" and "unexpected extra argument" in message:
        remedy += " A prompt of several words stands in quotes."
    return report(UsageError(message, remedy=remedy), as_json=as_json)
