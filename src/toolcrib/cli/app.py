"""The command line as a whole: which module has which command, and how an error ends.

In: the words after `toolcrib`. Out: an exit code: 0, the error's own (`errors.py`), or 10 for a tool that failed.
A command's module is imported when the command is used; `toolcrib --help` needs none of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from toolcrib import __version__
from toolcrib.cli.output import report, say
from toolcrib.errors import ToolcribError, UsageError

PROGRAM = "toolcrib"

_COMMANDS = (
    ("up", "up_command", "Start the daemon, in the foreground or detached."),
    ("down", "daemon_commands", "Stop the daemon and every server it started."),
    ("status", "daemon_commands", "Show the daemon: endpoint, process, servers, and what is wrong."),
    ("logs", "daemon_commands", "Show the daemon's log, or a server's."),
    ("servers", "server_commands", "List the servers with their state, protocol, transport, tools and last error."),
    ("add", "add_command", "Add a server and connect to it."),
    ("remove", "server_commands", "Remove a server from the configuration; its tools go with it."),
    ("restart", "server_commands", "Disconnect from a server and connect again, in the running daemon."),
    ("tools", "tool_commands", "List the tools of all servers, or of one."),
    ("call", "tool_commands", "Call a tool and print what it answers."),
    ("connect", "connect_command", "Show the entry that points a client at Toolcrib; write it, or take it out again."),
    (
        "trust",
        "trust_commands",
        "Show what a project's file would do, and allow it after your yes; or trust what a server says of its tools.",
    ),
    (
        "untrust",
        "trust_commands",
        "Take the trust in a project's file back, and what it started ends; or no longer trust a server.",
    ),
    ("allow", "permission_commands", "Allow an agent tools that its profile does not."),
    ("deny", "permission_commands", "Deny an agent tools, whatever else allows them."),
    ("why", "permission_commands", "Say whether an agent may use a tool, by which rule, and what would change that."),
    ("approvals", "approval_commands", "Show the calls that wait for your word."),
    ("approve", "approval_commands", "Let a waiting call pass."),
    ("refuse", "approval_commands", "Refuse a waiting call."),
    (
        "stdio",
        "daemon_commands",
        "Be the MCP server that a client starts in its project: a bridge to the daemon, which is started if none runs.",
    ),
    ("run", "run_command", "Run a coding agent with Toolcrib's tools, under a profile and on the record."),
    ("runs", "runs_commands", "List the runs of this project, show one, or follow one."),
    ("job", "job_commands", "Run models and coding agents in the background: submit, list, show, result, cancel."),
    ("config", "config_commands", "Check, show and find the configuration."),
    ("clock", "daemon_commands", "Confirm the system's clock after it was set."),
    ("agent", "agent_commands", "Agents: who may use Toolcrib, each with a token of its own."),
    ("profile", "profile_commands", "Profiles: sets of rules that agents share."),
    ("audit", "audit_commands", "Show the audit log of calls and changes, or verify it."),
    ("sessions", "agent_commands", "List the sessions, or end some."),
    ("workspace", "workspace_commands", "Check and set up the tools that work in a folder."),
)
"""Name, module and summary. The summary is the first sentence of the command's own help, which a test compares."""


class LazyCommand(TyperCommand):
    """A command's name and summary; the command itself is in a module that has a `typer.Typer` named `commands`."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = module

    def load(self) -> Any:
        module = import_module(f"toolcrib.cli.{self._module}")
        return get_group(module.commands).commands[str(self.name)]


class LazyGroup(TyperGroup):
    """Knows all commands by name and summary, and loads the one that is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: LazyCommand(name, module, summary) for name, module, summary in _COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


app = typer.Typer(
    name=PROGRAM,
    cls=LazyGroup,
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
