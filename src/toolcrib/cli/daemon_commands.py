"""`down`, `status`, `logs`, `clock`, `stdio`: the daemon that runs, and the bridge to it.

In: words of the command line. Out: an exit code. `up_command` starts the daemon; `main` starts the usual
bridge without this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Annotated, Any

import typer

from toolcrib.cli.bridge import run_bridge
from toolcrib.cli.options import AsJson
from toolcrib.cli.output import duration, hint, printed, say, say_line, working
from toolcrib.cli.perform import daemon_pid, daemon_runs, from_daemon, paths, perform, root
from toolcrib.cli.server_commands import hint_problems, server_table
from toolcrib.coding_agents.process_alive import process_exists
from toolcrib.daemon_client.command_client import listener
from toolcrib.errors import CallTimeout, DaemonNotRunning

ANSWER_WITHIN = 3.5
"""Seconds that the daemon has to answer `down`; one that is stuck is killed."""
STOP_WITHIN = 10.0
"""Seconds that it has to end. It needs less than five, whatever its servers do; a busy machine may need more."""


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def down(*, as_json: AsJson = False) -> int:
    """Stop the daemon and every server it started."""
    if not daemon_runs():
        printed({"stopped": False, "pid": None, "killed": False}, as_json=as_json)
        say("No daemon runs.")
        return 0
    # What it wrote down may be older than it; the kernel knows.
    known = listener(paths().socket)
    pid = known or daemon_pid()
    deadline = time.monotonic() + STOP_WITHIN
    try:
        from_daemon("system:stop", timeout=ANSWER_WITHIN)
    except CallTimeout:
        # It does nothing any more, so it will not end by itself either.
        deadline = time.monotonic()
    except DaemonNotRunning:
        # Gone before its answer was out: that is what was asked for.
        pass
    killed = False
    with working("stopping the daemon …"):
        while daemon_runs() or (pid is not None and process_exists(pid)):
            if time.monotonic() > deadline:
                if known is None or killed:
                    raise CallTimeout(
                        f"The daemon (pid {pid}) did not end within {STOP_WITHIN:.0f} s.",
                        remedy=f"`kill -9 {pid}` ends it; its servers end with it.",
                    )
                killed = True
                deadline = time.monotonic() + STOP_WITHIN
                with contextlib.suppress(ProcessLookupError):
                    os.kill(known, signal.SIGKILL)
            time.sleep(0.02)
    printed({"stopped": True, "pid": pid, "killed": killed}, as_json=as_json)
    if killed:
        say("The daemon did not end in time and was killed. Its servers end with it.")
    else:
        say("The daemon has stopped.")
    return 0


@commands.command()
def status(*, as_json: AsJson = False) -> int:
    """Show the daemon: endpoint, process, servers, and what is wrong."""
    found = printed(from_daemon("system:status"), as_json=as_json)
    rows = (
        ("endpoint", found.get("endpoint")),
        ("token file", found.get("token_file")),
        ("pid", found.get("pid")),
        ("version", found.get("version")),
        ("uptime", duration(found.get("uptime"))),
        ("started in", found.get("root")),
        ("socket", found.get("socket")),
        ("log", found.get("log")),
        ("store", found.get("store", {}).get("place")),
        ("agents", f"{found.get('agents')} ({found.get('sessions')} sessions)"),
    )
    for name, value in rows:
        say(f"{name + ':':<12}{value}")
    if found.get("for_runs"):
        hint("It was started for runs of coding agents, and ends with the last of them.")
    hint_sandbox(found)
    _hint_audit(found)
    _hint_clock(found)
    if found.get("servers"):
        # A project that nobody works in yet is not opened for a look: the table is then the home's.
        project = found.get("project", found.get("root"))
        say("" if str(root()) == found.get("root") else f"\nservers for the project {project}:")
        server_table(found["servers"])
    hint_problems(found)
    return 0


clock = typer.Typer(help="Confirm the system's clock after it was set.")
commands.add_typer(clock, name="clock")


@clock.command("confirm")
def confirm_clock(*, as_json: AsJson = False) -> int:
    """Say that the system's clock is right: what is too old by it is deleted from now on."""
    found = printed(perform("clock:confirm"), as_json=as_json)
    say(f"Confirmed. {_clock_line(found['seconds'])}" if found["seconds"] else "Confirmed. It had not jumped.")
    return 0


def _clock_line(seconds: float) -> str:
    side = "ahead of" if seconds > 0 else "behind"
    return f"The system's clock is {duration(abs(seconds))} {side} the time that has passed since Toolcrib saw it last."


def _hint_clock(found: dict[str, Any]) -> None:
    if ahead := found.get("clock", {}).get("ahead"):
        hint(
            f"{_clock_line(ahead)} Nothing is deleted faster than time passes. "
            "If it is right, `toolcrib clock confirm`."
        )


def hint_sandbox(found: dict[str, Any]) -> None:
    if found.get("unsafe_no_sandbox"):
        hint("WARNING: the workspace's commands run WITHOUT A SANDBOX: what an agent runs, it runs as you.")


def _hint_audit(found: dict[str, Any]) -> None:
    audit = found.get("audit", {})
    if not audit.get("writable", True):
        hint(f"The audit log cannot be written, so only tools that read are run: {audit.get('failure')}")
    if waiting := found.get("approvals"):
        hint(f"{waiting} call{'s wait' if waiting > 1 else ' waits'} for your word: `toolcrib approvals`.")


@commands.command()
def logs(
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="A server, for what it wrote to its standard error.")
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many lines from the end.", min=0, max=10_000)] = 50,
    as_json: AsJson = False,
) -> int:
    """Show the daemon's log, or a server's."""
    params: dict[str, Any] = {"lines": lines, "follow": follow}
    if server is not None:
        params["server"] = server

    def show(event: dict[str, Any]) -> None:
        if as_json:
            say_line(event)
        else:
            say(str(event.get("line", "")))
        sys.stdout.flush()

    if follow and not daemon_runs():
        raise DaemonNotRunning(
            "No daemon runs, so nothing more will come.", remedy="Leave -f out to see what there is."
        )
    found = perform("log:tail", params, timeout=None if follow else 30.0, on_event=show)
    if follow:
        return 0
    printed(found, as_json=as_json)
    for line in found.get("lines", []):
        say(line)
    if not found.get("lines") and lines:
        hint("Nothing was written yet.")
    return 0


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
