"""`down`, `status`, `logs`, `clock`, `stdio`: the running daemon, and the bridge to it.

In: command-line arguments. Out: an exit code. `up_command` starts the daemon; `main` usually starts the bridge without
importing this module.
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
from toolcrib.cli.options import AsJson, Listing
from toolcrib.cli.output import duration, hint, printed, say, say_line, working
from toolcrib.cli.perform import daemon_pid, daemon_runs, from_daemon, paths, perform, root
from toolcrib.cli.secret_commands import KEY_PLACES
from toolcrib.cli.server_commands import hint_problems, server_table
from toolcrib.coding_agents.process_alive import process_exists
from toolcrib.daemon_client.command_client import listener
from toolcrib.errors import CallTimeout, DaemonNotRunning

ANSWER_WITHIN = 3.5
"""Seconds that the daemon has to answer `down`. A daemon that hangs is killed."""
STOP_WITHIN = 10.0
"""Seconds that it has to exit. It needs less than five whatever its servers do, but a busy machine may need more."""


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def down(*, as_json: AsJson = False) -> int:
    """Stop the daemon and every server it started.

    Connected clients don't start it again: `toolcrib up` does, and so does a client that starts afterwards.
    """
    mark = paths().stopped
    with contextlib.suppress(FileNotFoundError):
        # Without the folder, no daemon has ever run here.
        mark.touch(mode=0o600)
    try:
        return _down(as_json=as_json)
    except BaseException:
        mark.unlink(missing_ok=True)
        raise


def _down(*, as_json: bool) -> int:
    if not daemon_runs():
        printed({"stopped": False, "pid": None, "killed": False}, as_json=as_json)
        say("No daemon is running.")
        return 0
    # The pid in its file may be stale; the kernel's answer isn't.
    known = listener(paths().socket)
    pid = known or daemon_pid()
    deadline = time.monotonic() + STOP_WITHIN
    try:
        from_daemon("system:stop", timeout=ANSWER_WITHIN)
    except CallTimeout:
        # It hangs, so it won't exit either.
        deadline = time.monotonic()
    except DaemonNotRunning:
        # It exited before it could answer.
        pass
    killed = False
    with working("stopping the daemon …"):
        while daemon_runs() or (pid is not None and process_exists(pid)):
            if time.monotonic() > deadline:
                if known is None or killed:
                    raise CallTimeout(
                        f"The daemon (pid {pid}) did not stop within {STOP_WITHIN:.0f} s.",
                        remedy=f"`kill -9 {pid}` ends it and its servers.",
                    )
                killed = True
                deadline = time.monotonic() + STOP_WITHIN
                with contextlib.suppress(ProcessLookupError):
                    os.kill(known, signal.SIGKILL)
            time.sleep(0.02)
    printed({"stopped": True, "pid": pid, "killed": killed}, as_json=as_json)
    if killed:
        say("The daemon did not stop in time and was killed, with its servers.")
    else:
        say("The daemon has stopped.")
    return 0


@commands.command()
def status(*, as_json: AsJson = False) -> int:
    """Show the daemon's endpoint, process, servers and problems."""
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
        ("secrets", f"key in {KEY_PLACES.get(found.get('secrets', {}).get('key_store'), 'an unreadable file')}"),
        ("agents", f"{found.get('agents')} ({found.get('sessions')} sessions)"),
    )
    for name, value in rows:
        say(f"{name + ':':<12}{value}")
    if found.get("for_runs"):
        hint("It was started for runs of coding agents and stops when the last one ends.")
    hint_sandbox(found)
    _hint_audit(found)
    _hint_clock(found)
    if found.get("servers"):
        # `status` doesn't open a project that isn't in use yet; the table then shows the daemon's own project.
        project = found.get("project", found.get("root"))
        say("" if str(root()) == found.get("root") else f"\nservers for the project {project}:")
        server_table(found["servers"])
    hint_problems(found)
    return 0


clock = typer.Typer(help="Confirm the system clock after a change.")
commands.add_typer(clock, name="clock")


@clock.command("confirm")
def confirm_clock(*, as_json: AsJson = False) -> int:
    """Confirm that the system clock is correct, so that expired data is deleted again."""
    found = printed(perform("clock:confirm"), as_json=as_json)
    say(f"Confirmed. {_clock_line(found['seconds'])}" if found["seconds"] else "Confirmed. The clock had not jumped.")
    return 0


def _clock_line(seconds: float) -> str:
    side = "ahead of" if seconds > 0 else "behind"
    return f"The system clock is {duration(abs(seconds))} {side} the time Toolcrib expected from its last check."


def _hint_clock(found: dict[str, Any]) -> None:
    if ahead := found.get("clock", {}).get("ahead"):
        hint(
            f"{_clock_line(ahead)} Until you confirm it, old data is not deleted early. "
            "If the clock is right, run `toolcrib clock confirm`."
        )


def hint_sandbox(found: dict[str, Any]) -> None:
    if found.get("unsafe_no_sandbox"):
        hint("WARNING: workspace commands run WITHOUT A SANDBOX, with all of your own permissions.")


def _hint_audit(found: dict[str, Any]) -> None:
    audit = found.get("audit", {})
    if not audit.get("writable", True):
        hint(f"The audit log cannot be written, so only read-only tools can be called: {audit.get('failure')}")
    if waiting := found.get("approvals"):
        hint(f"{waiting} call{'s are' if waiting > 1 else ' is'} waiting for your approval: `toolcrib approvals`.")


@commands.command()
def logs(
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="Show this server's stderr instead.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Start with this many lines.", min=0, max=10_000)] = 50,
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
            "No daemon is running, so there will be no new lines.", remedy="Run it without -f to see existing ones."
        )
    found = perform("log:tail", params, timeout=None if follow else 30.0, on_event=show)
    if follow:
        return 0
    printed(found, as_json=as_json)
    for line in found.get("lines", []):
        say(line)
    if not found.get("lines") and lines:
        hint("The log is empty.")
    return 0


@commands.command()
def stdio(
    *,
    agent: Annotated[str, typer.Option(metavar="NAME", help="Connect as this agent, with its permissions.")] = "",
    client: Annotated[
        str,
        typer.Option(
            metavar="claude|codex|gemini",
            help="The client: workspace tools that its own tools replace are not listed. By default, all are.",
        ),
    ] = "",
    listing: Listing = None,
) -> int:
    """Serve MCP on stdin and stdout, as a bridge to the daemon.

    Clients run this command in their project. It starts a daemon if none is running. The project is CLAUDE_PROJECT_DIR
    if set, else the nearest parent folder with .toolcrib or .git, else the current folder. TOOLCRIB_CONVERSATION names
    the conversation; by default, each bridge has its own.
    """
    return run_bridge(agent, client=client, listing=listing or "")
