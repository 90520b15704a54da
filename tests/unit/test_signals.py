"""Programs start with default signals, whatever Toolcrib inherited; ignored SIGINT and SIGHUP stay ignored."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

import toolcrib
from parts import leftovers
from parts.waiting import wait_for
from toolcrib.coding_agents.program_process import RunningProgram
from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.stdio import StderrLog, open_stdio
from toolcrib.signals import ending_signals, with_default_signals

pytestmark = [
    pytest.mark.req("FRG-10"),
    pytest.mark.usefixtures("ignored_signals"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signals are read from /proc"),
]

STATUS = ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]
# Without 32 and 33, which the C library reserves.
DEFAULTS = {"SigBlk": 0, "SigIgn": 0}
EXEMPT = {
    "servers/reaper.py": "reaper_child ignores some signals",
    "workspace/sandbox/mount_namespace.py": "starts only our own code",
    "workspace/sandbox/command.py": "inner resets them",
}


def signals(status: str) -> dict[str, int]:
    return {name: int(mask, 16) & 0x7FFFFFFF for name, mask in (line.split(":") for line in status.splitlines())}


def test_without_the_launcher_ignored_signals_are_inherited() -> None:
    done = subprocess.run(STATUS, capture_output=True, text=True, check=True)
    assert signals(done.stdout) == {"SigBlk": 1 << signal.SIGUSR1 - 1, "SigIgn": 0b111}


def test_a_coding_agent_starts_with_default_signals() -> None:
    environ = {"PATH": os.environ["PATH"], leftovers.RUN_NAME: os.environ[leftovers.RUN_NAME]}

    async def lines() -> list[str]:
        running = await RunningProgram.start(STATUS, environ=environ, cwd=Path("/"), stdin="")
        return [line.text async for line in running.lines()]

    assert signals("\n".join(asyncio.run(lines()))) == DEFAULTS


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_server_starts_with_default_signals(loop: type[asyncio.AbstractEventLoop]) -> None:
    source = ConfigSource(layer=Layer.USER)
    words = ("-c", f"{shlex.join(STATUS)} >&2")
    config = ServerConfig(name="s", transport=Transport.STDIO, source=source, command="sh", args=words)
    reaper, stderr = Reaper(), StderrLog(None, mask=str)

    async def lines() -> list[str]:
        async with open_stdio(config, root=None, reaper=reaper, stderr=stderr, on_lists_changed=bool):
            return await asyncio.to_thread(wait_for, lambda: len(stderr.tail(2)) == 2 and stderr.tail(2), "its status")

    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            assert signals("\n".join(runner.run(lines()))) == DEFAULTS
    finally:
        reaper.close()


def test_the_error_names_a_program_that_cannot_be_started() -> None:
    done = subprocess.run(with_default_signals(["/no/such"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "/no/such cannot be started: No such file or directory\n")


def test_every_start_of_a_program_uses_default_signals() -> None:
    starts = {"subprocess.Popen": 0, "subprocess.run": 0}
    package = Path(toolcrib.__file__).parent
    for path in package.rglob("*.py"):
        source = path.read_text()
        for call in (ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            if call in starts and str(path.relative_to(package)) not in EXEMPT:
                starts[call] += 1
                assert "with_default_signals(" in source or "guarded(" in source, path
    assert all(starts.values()), "this test searches for these names"


def test_signals_inherited_as_ignored_do_not_end_toolcrib_except_sigterm() -> None:
    assert ending_signals() == [signal.SIGTERM]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert ending_signals() == [signal.SIGHUP, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("entry", ["toolcrib.cli.main", "toolcrib.workspace.serving.main"])
def test_toolcribs_processes_reset_sigchld_and_blocked_signals(entry: str) -> None:
    code = (
        f"import contextlib, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); from {entry} import main\n"
        "sys.argv[1:] = ['--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(signal.getsignal(signal.SIGCHLD).name, signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "SIG_DFL set()"
