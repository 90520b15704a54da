"""Every way the daemon can end: soon, whatever clients do, and with nothing left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from parts.agent_clients import AgentClient
from parts.daemon import PROGRAM, Daemon, Home, StartDaemon
from parts.preloaded import Preloaded
from parts.raw_client import INITIALIZE, Endpoint, RawConnection, SocketClient, legacy_request, request
from parts.server_process import stdio_entry
from parts.sizes import FULL
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

LIMIT = 30.0


CONFIG = {"servers": {"raw": stdio_entry("raw_server", "--era", "legacy"), "say": stdio_entry("scripted_server")}}
WITH_STUBBORN = {"servers": {**CONFIG["servers"], "stubborn": stdio_entry("raw_server")}}


def ready(start: StartDaemon, config: dict[str, Any] = CONFIG) -> Daemon:
    started = start(config)
    started.wait_until_ready()
    return started


def alive(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if leftovers.read(pid) is not None]


def left_in(home: Home) -> list[str]:
    """What a daemon that has ended must not leave: sockets, half-written and temporary files."""
    run = [path.name for path in (home.toolcrib / "run").iterdir() if path.name != "daemon.lock"]
    temporary = [path.name for path in home.toolcrib.rglob("*") if path.suffix in (".new", ".tmp")]
    return [*run, *temporary, *(path.name for path in home.tmp.iterdir())]


def assert_ends(daemon: Daemon) -> None:
    """It ends in time and leaves nothing."""
    began = time.monotonic()
    daemon.process.wait(LIMIT + 10)
    assert time.monotonic() - began < LIMIT
    assert daemon.process.returncode == 0
    assert left_in(daemon.home) == []


def children_of(daemon: Daemon) -> set[int]:
    """Every process below the daemon now."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {daemon.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {daemon.pid}


@contextlib.contextmanager
def sent(daemon: Daemon, message: bytes) -> Iterator[RawConnection]:
    with Endpoint(daemon).connect() as connection:
        connection.send(message)
        yield connection


def legacy_stream(daemon: Daemon) -> AbstractContextManager[RawConnection]:
    return AgentClient(daemon, "owner", daemon.token, "legacy").listening()


def modern_stream(daemon: Daemon) -> AbstractContextManager[RawConnection]:
    return AgentClient(daemon, "owner", daemon.token, "modern").listening()


@contextlib.contextmanager
def half_a_body(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with sent(daemon, door.modern_bytes("tools/list")[:-10]) as connection:
        assert door.modern("tools/list").status == 200
        yield connection


@contextlib.contextmanager
def idle(daemon: Daemon) -> Iterator[RawConnection]:
    with sent(daemon, Endpoint(daemon).modern_bytes("tools/list")) as connection:
        assert connection.answer().status == 200
        yield connection


@contextlib.contextmanager
def call_in_flight(daemon: Daemon) -> Iterator[RawConnection]:
    call = {"name": "raw_never", "arguments": {}}
    with sent(daemon, Endpoint(daemon).modern_bytes("tools/call", call)) as connection:
        wait_for(lambda: in_flight(daemon) >= 2, "the call to be in flight")
        yield connection


@contextlib.contextmanager
def unread_answer(daemon: Daemon) -> Iterator[RawConnection]:
    call = {"name": "raw_huge", "arguments": {"bytes": 50_000_000}}
    with sent(daemon, Endpoint(daemon).modern_bytes("tools/call", call)) as connection:
        assert connection.head()[0] == 200
        yield connection


@contextlib.contextmanager
def bridge(daemon: Daemon) -> Iterator[SocketClient]:
    with SocketClient(daemon) as pipe:
        pipe.ask(INITIALIZE)
        yield pipe


@contextlib.contextmanager
def bridge_with_a_call(daemon: Daemon) -> Iterator[SocketClient]:
    with bridge(daemon) as pipe:
        pipe.send(legacy_request("tools/call", {"name": "raw_never", "arguments": {}}, id=9))
        wait_for(lambda: in_flight(daemon) >= 2, "the call to be in flight")
        yield pipe


@contextlib.contextmanager
def bridge_that_does_not_read(daemon: Daemon) -> Iterator[SocketClient]:
    with SocketClient(daemon) as pipe:
        pipe.ask(request("tools/list", id=1))
        pipe.send(request("tools/call", {"name": "raw_huge", "arguments": {"bytes": 20_000_000}}, id=9))
        assert pipe._file.peek(1)
        yield pipe


@contextlib.contextmanager
def followed_log(daemon: Daemon) -> Iterator[SocketClient]:
    with SocketClient(daemon, bridge=False) as pipe:
        pipe.send(b'{"jsonrpc":"2.0","id":1,"method":"log:tail","params":{"follow":true}}')
        pipe.message()
        yield pipe


def in_flight(daemon: Daemon) -> int:
    """The number of calls in flight, including the one that asks."""
    stats: dict[str, Any] = Endpoint(daemon).call("crib_system_stats").result["structuredContent"]
    return int(stats["calls"]["in_flight"])


HARD: tuple[Callable[[Daemon], Any], ...] = (half_a_body, call_in_flight, bridge_that_does_not_read)
"""Tested one by one in a usual run; the others only all at once, below."""
CLIENTS = (*HARD, legacy_stream, modern_stream, idle, unread_answer, bridge, bridge_with_a_call, followed_log)


SIGNALS = itertools.cycle((signal.SIGTERM, signal.SIGINT))


@pytest.mark.parametrize(("client", "number"), list(zip(CLIENTS if FULL else HARD, SIGNALS, strict=False)))
def test_the_daemon_ends_in_time_whatever_a_client_does_and_repeated_signals_do_not_disturb_it(daemon, client, number):
    started = ready(daemon)
    crowd = Endpoint(started).call("say_crowd").result["structuredContent"]["told"]
    assert len(crowd) == len(alive(crowd)) == 2, "processes that a server started"
    children = {*children_of(started), *crowd}
    assert len(children) >= 4
    with client(started):
        for _ in range(3):
            started.process.send_signal(number)
        assert_ends(started)
    assert not alive(children)


def test_the_daemon_ends_in_time_with_every_kind_of_client_at_once(daemon, cli, toolcrib_home):
    started = ready(daemon, WITH_STUBBORN)
    assert Endpoint(started).call("stubborn_stubborn").status == 200
    children = children_of(started)
    with contextlib.ExitStack() as stack:
        for client in CLIENTS:
            stack.enter_context(client(started))
        done = cli("down").ok()
    assert "stopped" in done.out
    assert started.process.wait(60) == 0
    assert left_in(toolcrib_home) == []
    assert not alive(children)


def test_streams_are_informed_of_the_end(daemon):
    started = daemon({})
    with modern_stream(started) as modern, legacy_stream(started) as legacy:
        started.process.send_signal(signal.SIGTERM)
        assert modern.event()["result"]["resultType"] == "complete"
        assert modern.chunk() == b""
        assert modern.is_closed()
        with pytest.raises(ConnectionError):
            legacy.event()
        assert_ends(started)


def test_a_signal_ends_the_daemon_while_servers_are_still_connecting(daemon):
    slow = {f"s{number}": stdio_entry("raw_server", "--slow-start", "30") for number in range(5)}
    started = daemon({"servers": {**slow, "deaf": stdio_entry("raw_server", "--deaf")}})
    children = children_of(started)
    started.process.send_signal(signal.SIGTERM)
    assert_ends(started)
    assert not alive(children)


def test_after_a_kill_nothing_runs_and_the_next_daemon_starts_at_once(daemon, toolcrib_home):
    started = ready(daemon, WITH_STUBBORN)
    door = Endpoint(started)
    crowd = door.call("say_crowd").result["structuredContent"]["told"]
    assert door.call("stubborn_stubborn").status == 200
    children = {*children_of(started), *crowd}
    assert len(children) >= 5
    started.kill()
    wait_for(lambda: not alive(children), "every child to end", LIMIT)
    wait_for(lambda: left_in(toolcrib_home) == [], "the socket and the information to be deleted", LIMIT)
    again = daemon()
    again.wait_until_ready()
    assert Endpoint(again).call("raw_ok").result["structuredContent"]["ok"] is True
    assert again.stop() == 0
    assert left_in(toolcrib_home) == []


def test_closed_clients_leave_neither_calls_nor_open_files(daemon):
    started = ready(daemon)
    with bridge_with_a_call(started):
        pass
    wait_for(lambda: in_flight(started) == 1, "the call of the closed bridge to be cancelled")

    def connect_and_close() -> None:
        for client in (legacy_stream, modern_stream, half_a_body, idle, bridge, unread_answer):
            with client(started):
                pass
        assert Endpoint(started).call("raw_ok").status == 200

    def open_files() -> int:
        return len(list(Path(f"/proc/{started.pid}/fd").iterdir()))

    connect_and_close()
    before = open_files()
    for _ in range(4):
        connect_and_close()
    wait_for(lambda: open_files() <= before + 2, "the daemon to close the connections")


UP = [str(PROGRAM), "up", "--port", "0"]


def test_repeated_starts_and_stops_leave_no_new_files(toolcrib_home):
    toolcrib_home.write_config(CONFIG)
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    files: list[set[str]] = []
    for _ in range(30 if FULL else 3):
        with Preloaded(UP, env=toolcrib_home.environ(), cwd=toolcrib_home.project, **pipes) as process:
            try:
                assert process.stdout.readline()
                wait_for(toolcrib_home.socket.exists, "the socket")
                process.send_signal(signal.SIGTERM)
                assert process.wait(LIMIT) == 0
            finally:
                process.kill()
        assert left_in(toolcrib_home) == []
        files.append({str(path.relative_to(toolcrib_home.toolcrib)) for path in toolcrib_home.toolcrib.rglob("*")})
    assert files[-1] == files[1]


def assert_failed_with(done: Any, words: str) -> None:
    assert done.exit_code not in (0, 124)
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("folder", ["state", "run"])
def test_an_unusable_folder_is_named(cli, toolcrib_home, folder):
    place = toolcrib_home.toolcrib / folder
    place.write_text("a file in place of a folder")
    assert_failed_with(cli(*UP[1:]), folder)
    if os.geteuid():  # Root may write everywhere.
        place.unlink()
        place.mkdir(mode=0o500)
        assert_failed_with(cli(*UP[1:]), folder)
        place.chmod(0o700)


def test_a_full_disk_is_reported_in_words(toolcrib_home):
    """No file may grow, which looks like a full disk."""
    command = ["/bin/sh", "-c", f"ulimit -f 0; trap '' XFSZ; exec {' '.join(UP)}"]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, check=False, env=toolcrib_home.environ(), cwd=toolcrib_home.project, **pipes)
    assert done.returncode not in (0, 124)
    assert "Traceback" not in done.stderr
    assert str(toolcrib_home.toolcrib) in done.stderr
    assert left_in(toolcrib_home) == []
