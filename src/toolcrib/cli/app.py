"""The command-line application: which module implements which command, and how errors are reported.

In: the arguments after `toolcrib`. Out: an exit code: 0, the error's own (`errors.py`), or 10 if a tool failed.
A command's module is imported when the command is used; `toolcrib --help` imports none.
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
    ("status", "daemon_commands", "Show the daemon's endpoint, process, servers and problems."),
    ("logs", "daemon_commands", "Show the daemon's log, or a server's."),
    ("servers", "server_commands", "List the servers, or show one."),
    ("add", "add_command", "Add a server and connect to it."),
    ("remove", "server_commands", "Remove a server and its tools from the configuration."),
    ("enable", "server_commands", "Enable a server, or one of its tools, that was disabled."),
    ("disable", "server_commands", "Disable a server, or one of its tools: it is neither listed nor called."),
    ("restart", "server_commands", "Reconnect a server in the running daemon."),
    (
        "refresh",
        "server_commands",
        "List a server's tools again in the running daemon, if it does not announce changes.",
    ),
    ("reload", "server_commands", "Read the configuration again in the running daemon and show what changed."),
    ("login", "account_commands", "Sign in at a server in the browser."),
    (
        "logout",
        "account_commands",
        "Sign out of a server: delete its account here, and revoke its tokens at the authorization server.",
    ),
    ("accounts", "account_commands", "List where you are signed in, with which scopes, and until when."),
    ("tools", "tool_commands", "List the tools of all servers, or of one."),
    ("call", "tool_commands", "Call a tool and print its result."),
    ("cost", "listing_commands", "Show what the tools of each server cost in each listing mode."),
    ("find", "listing_commands", "Find tools as an agent in search mode would."),
    ("resources", "resource_commands", "List the resources and resource templates of all servers, or of one."),
    ("read", "resource_commands", "Read a resource and print its contents unchanged."),
    ("prompts", "resource_commands", "List the prompts of all servers, or of one."),
    ("prompt", "resource_commands", "Print the messages that a prompt becomes with its arguments."),
    ("connect", "connect_command", "Connect a client to Toolcrib: show, write or remove its configuration entry."),
    ("trust", "trust_commands", "Review and trust a project's configuration files, or a server."),
    ("untrust", "trust_commands", "Stop trusting a project's configuration files, or a server."),
    ("pins", "pins_commands", "Show what servers changed in their tools since you accepted them."),
    ("favorites", "favorites_commands", "Show the favorite tools, which search mode lists directly."),
    ("allow", "permission_commands", "Allow an agent to use tools that its profile doesn't allow."),
    ("deny", "permission_commands", "Deny tools to an agent, overriding anything that allows them."),
    ("why", "permission_commands", "Explain whether an agent may use a tool, by which rule, and how to change that."),
    ("approvals", "approval_commands", "Show the calls and servers' questions that wait for you."),
    ("approve", "approval_commands", "Approve a waiting call, or accept a server's question."),
    ("refuse", "approval_commands", "Refuse a waiting call, or decline a server's question."),
    ("tasks", "task_commands", "Show or cancel the tasks that servers work on."),
    ("stdio", "daemon_commands", "Serve MCP on stdin and stdout, as a bridge to the daemon."),
    ("run", "run_command", "Run a coding agent with Toolcrib's tools, limited by a profile and logged."),
    ("runs", "runs_commands", "List, show or follow this project's runs."),
    ("job", "job_commands", "Run models and coding agents in the background."),
    ("config", "config_commands", "Check, show and locate the configuration."),
    ("secret", "secret_commands", "Store values for ${NAME} in the configuration, encrypted."),
    ("clock", "daemon_commands", "Confirm the system clock after a change."),
    ("agent", "agent_commands", "Manage agents: identities with their own token and permissions."),
    ("profile", "profile_commands", "Manage profiles: sets of rules that agents share."),
    ("audit", "audit_commands", "Show or verify the audit log of calls and changes."),
    ("sessions", "agent_commands", "List, show or end sessions."),
    ("workspace", "workspace_commands", "Check and set up the workspace tools of a folder."),
)
"""Name, module and summary. A test checks that the summary is the first sentence of the command's own help."""


class LazyCommand(TyperCommand):
    """A command's name and summary. Its module has the command itself, in a `typer.Typer` named `commands`."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = module

    def load(self) -> Any:
        module = import_module(f"toolcrib.cli.{self._module}")
        return get_group(module.commands).commands[str(self.name)]


class LazyGroup(TyperGroup):
    """Lists all commands by name and summary, and loads only the one that is used."""

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
    help="One place for the tools of all your agents.",
    epilog="Exit codes: 0 success, 1 other error, 2 invalid usage or arguments, 3 configuration error, 4 not found, "
    "5 denied, 6 server failed, 7 no daemon, 8 already running or port in use, 9 database error, 10 tool or program "
    "failed, 11 code execution refused, 12 run stopped by Toolcrib, 130 interrupted.",
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
            "--version", help="Show the version and exit.", is_eager=True, callback=lambda value: _version(wanted=value)
        ),
    ] = False,
) -> None: ...


def run(argv: Sequence[str]) -> int:
    """Runs one command and reports every error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The stream was closed before we started. Without this, another file could get its descriptor.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output closed the pipe.
        _discard_stdout()
        return 141
    except OSError as error:
        _discard_stdout()
        with contextlib.suppress(OSError):
            unwritable = f"Cannot write to stdout: {error.strerror or error}."
            report(ToolcribError(unwritable, remedy="Redirect it elsewhere, or free some space."), as_json=False)
        return ToolcribError.exit_code
    return code


def _discard_stdout() -> None:
    """Discards pending output, so that Python doesn't report an error at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    """Raises only OSError, if the output cannot be written."""
    as_json = "--json" in (argv[: argv.index("--")] if "--" in argv else argv)
    if list(argv) in ([], ["config"], ["agent"], ["profile"], ["workspace"], ["job"], ["clock"], ["secret"]):
        argv = [*argv, "--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A lone surrogate from a server or program can't be encoded, so it is escaped.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=list(argv), prog_name=PROGRAM, standalone_mode=False)
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
            # If stdout is what failed, this fails too, and `run` reports it.
            sys.stdout.write("\n")
            sys.stdout.flush()
        traceback.print_exc()
        unexpected = ToolcribError(
            f"Unexpected error ({type(error).__name__}).",
            remedy="This is a bug in Toolcrib: please report it with the traceback above.",
        )
        return report(unexpected, as_json=as_json)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException, *, as_json: bool) -> int:
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    if not message.endswith((".", "?", "!")):
        message += "."
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else PROGRAM
    remedy = f"See `{where} --help`."
    if where == f"{PROGRAM} add" and "option" in message:
        remedy += " Put `--` before the server's command."
    elif where == f"{PROGRAM} secret set" and "unexpected extra argument" in message:
        # It is a secret, so the message doesn't repeat it.
        message = "A value can't be an argument, because other users and your shell's history would show it."
        remedy = "Give only the name; then type the value, or pipe it in."
    elif where == f"{PROGRAM} run" and "option" in message:
        remedy += " Put arguments for the program after `--`. Pipe in a prompt that begins with a dash."
    elif where == f"{PROGRAM} run" and "unexpected extra argument" in message:
        remedy += " Quote a prompt of several words."
    return report(UsageError(message, remedy=remedy), as_json=as_json)
