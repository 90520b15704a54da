"""Every way the daemon can end: soon, whatever clients do, and with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.raw_client import INITIALIZE, Endpoint, RawConnection, SocketClient, legacy_request, request
from parts.server_process import stdio_command
from parts.sizes import FULL
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

LIMIT = 30.0


def stdio(name: str, *flags: str) -> dict[str, Any]:
    words = stdio_command(name, *flags)
    return {"command": words[0], "args": words[1:]}


CONFIG = {"servers": {"raw": stdio("raw_server", "--era", "legacy"), "say": stdio("scripted_server")}}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ended(daemon: Daemon) -> float:
    """How long it took from now to the process's end."""
    began = time.monotonic()
    daemon.process.wait(LIMIT + 10)
    return time.monotonic() - began


def left_in(home: Home) -> list[str]:
    """What a daemon that has ended must not leave: sockets, half-written and temporary files."""
    run = [path.name for path in (home.toolcrib / "run").iterdir() if path.name != "daemon.lock"]
    temporary = [path.name for path in home.toolcrib.rglob("*") if path.suffix in (".new", ".tmp")]
    return [*run, *temporary, *(path.name for path in home.tmp.iterdir())]


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
def legacy_stream(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    headers = [door.host, door.auth, ("Accept", "text/event-stream"), ("Mcp-Session-Id", door.begin())]
    with door.connect() as connection:
        connection.send(door.raw(headers, verb="GET"))
        assert connection.head()[0] == 200
        yield connection


@contextlib.contextmanager
def listening(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with door.connect() as connection:
        connection.send(door.modern_bytes("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        assert connection.head()[0] == 200
        assert connection.event()["method"] == "notifications/subscriptions/acknowledged"
        yield connection


@contextlib.contextmanager
def half_a_body(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with door.connect() as connection:
        connection.send(door.modern_bytes("tools/list")[:-10])
        assert door.modern("tools/list").status == 200
        yield connection


@contextlib.contextmanager
def idle(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with door.connect() as connection:
        connection.send(door.modern_bytes("tools/list"))
        assert connection.answer().status == 200
        yield connection


@contextlib.contextmanager
def call_in_flight(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with door.connect() as connection:
        connection.send(door.modern_bytes("tools/call", {"name": "raw_never", "arguments": {}}))
        _wait_for_flight(door)
        yield connection


@contextlib.contextmanager
def huge_answer_unread(daemon: Daemon) -> Iterator[RawConnection]:
    door = Endpoint(daemon)
    with door.connect() as connection:
        connection.send(door.modern_bytes("tools/call", {"name": "raw_huge", "arguments": {"bytes": 50_000_000}}))
        assert connection.head()[0] == 200
        yield connection


@contextlib.contextmanager
def bridge(daemon: Daemon) -> Iterator[SocketClient]:
    with SocketClient(daemon) as pipe:
        pipe.ask(INITIALIZE)
        yield pipe


@contextlib.contextmanager
def bridge_with_a_call(daemon: Daemon) -> Iterator[SocketClient]:
    with SocketClient(daemon) as pipe:
        pipe.ask(INITIALIZE)
        pipe.send(legacy_request("tools/call", {"name": "raw_never", "arguments": {}}, id=9))
        _wait_for_flight(Endpoint(daemon))
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


def _wait_for_flight(door: Endpoint) -> None:
    def flying() -> bool:
        stats = door.call("crib_system_stats").result["structuredContent"]
        return bool(stats["calls"]["in_flight"] >= 2)

    wait_for(flying, "the call to be under way")


CLIENTS: dict[str, Callable[[Daemon], Any]] = {
    "a legacy stream": legacy_stream,
    "a modern stream": listening,
    "half a body": half_a_body,
    "an idle connection": idle,
    "a call in flight": call_in_flight,
    "a huge answer that nobody reads": huge_answer_unread,
    "a bridge": bridge,
    "a bridge with a call in flight": bridge_with_a_call,
    "a bridge that does not read": bridge_that_does_not_read,
    "a log that is followed": followed_log,
}


HARD = ("half a body", "a call in flight", "a bridge that does not read")
"""One by one in a usual run; the others then only all at once, below."""


@pytest.mark.parametrize("client", CLIENTS if FULL else HARD)
def test_it_ends_in_time_whatever_a_client_does(daemon: StartDaemon, toolcrib_home: Home, client: str) -> None:
    started = daemon(CONFIG)
    started.wait_until_ready()
    children = children_of(started)
    assert len(children) >= 2
    with CLIENTS[client](started):
        started.process.send_signal(signal.SIGTERM)
        assert ended(started) < LIMIT
    assert started.process.returncode == 0
    assert left_in(toolcrib_home) == []
    assert not [pid for pid in children if alive(pid)]


def test_it_ends_in_time_with_every_kind_of_client_at_once(daemon: StartDaemon, cli: Cli, toolcrib_home: Home) -> None:
    config = {"servers": {**CONFIG["servers"], "stubborn": stdio("raw_server")}}
    started = daemon(config)
    started.wait_until_ready()
    assert Endpoint(started).call("stubborn_stubborn").status == 200
    children = children_of(started)
    with contextlib.ExitStack() as stack:
        for client in CLIENTS.values():
            stack.enter_context(client(started))
        done = cli("down").ok()
    assert "stopped" in done.out
    assert started.process.wait(60) == 0
    assert left_in(toolcrib_home) == []
    assert not [pid for pid in children if alive(pid)]


def test_a_stream_is_told_of_the_end(daemon: StartDaemon) -> None:
    started = daemon({})
    with listening(started) as modern, legacy_stream(started) as legacy:
        started.process.send_signal(signal.SIGTERM)
        assert modern.event()["result"]["resultType"] == "complete"
        assert modern.chunk() == b""
        assert modern.is_closed()
        with pytest.raises(ConnectionError):
            legacy.event()
        assert ended(started) < LIMIT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_break_the_end(
    daemon: StartDaemon, toolcrib_home: Home, number: signal.Signals
) -> None:
    started = daemon(CONFIG)
    started.wait_until_ready()
    for _ in range(3):
        started.process.send_signal(number)
    assert ended(started) < LIMIT
    assert started.process.returncode == 0
    assert left_in(toolcrib_home) == []


def test_a_signal_while_servers_still_connect_ends_it(daemon: StartDaemon, toolcrib_home: Home) -> None:
    slow = {f"s{number}": stdio("raw_server", "--slow-start", "30") for number in range(5)}
    started = daemon({"servers": {**slow, "deaf": stdio("raw_server", "--deaf")}})
    children = children_of(started)
    started.process.send_signal(signal.SIGTERM)
    assert ended(started) < LIMIT
    assert left_in(toolcrib_home) == []
    assert not [pid for pid in children if alive(pid)]


def test_what_a_server_started_ends_with_the_daemon(daemon: StartDaemon) -> None:
    started = daemon(CONFIG)
    started.wait_until_ready()
    crowd = Endpoint(started).call("say_crowd").result["structuredContent"]["told"]
    assert len(crowd) == 2
    assert all(alive(pid) for pid in crowd)
    started.process.send_signal(signal.SIGTERM)
    assert ended(started) < LIMIT
    assert not [pid for pid in crowd if alive(pid)]


def test_after_a_kill_nothing_runs_and_the_next_one_starts_at_once(daemon: StartDaemon, toolcrib_home: Home) -> None:
    started = daemon({"servers": {**CONFIG["servers"], "stubborn": stdio("raw_server")}})
    started.wait_until_ready()
    door = Endpoint(started)
    crowd = door.call("say_crowd").result["structuredContent"]["told"]
    assert door.call("stubborn_stubborn").status == 200
    children = {*children_of(started), *crowd}
    assert len(children) >= 5
    started.kill()
    wait_for(lambda: not [pid for pid in children if alive(pid)], "every child to be gone", LIMIT)
    wait_for(lambda: left_in(toolcrib_home) == [], "the socket and the information to be gone", LIMIT)
    again = daemon()
    again.wait_until_ready()
    assert Endpoint(again).call("raw_ok").result["structuredContent"]["ok"] is True
    assert again.stop() == 0
    assert left_in(toolcrib_home) == []


def test_a_killed_bridge_ends_its_call_and_nothing_else(daemon: StartDaemon) -> None:
    started = daemon(CONFIG)
    started.wait_until_ready()
    door = Endpoint(started)
    with bridge_with_a_call(started):
        pass

    def landed() -> bool:
        stats = door.call("crib_system_stats").result["structuredContent"]
        return bool(stats["calls"]["in_flight"] == 1)

    wait_for(landed, "the call to be taken back")
    assert door.call("raw_ok").status == 200


def test_starting_and_stopping_again_and_again_leaks_nothing(daemon: StartDaemon, toolcrib_home: Home) -> None:
    rounds = 30 if FULL else 5
    toolcrib_home.write_config(CONFIG)
    files: list[set[str]] = []
    for _ in range(rounds):
        process = subprocess.Popen(
            [str(PROGRAM), "up", "--port", "0"],
            env=toolcrib_home.environ(),
            cwd=toolcrib_home.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            socket = toolcrib_home.toolcrib / "run" / "daemon.sock"
            wait_for(socket.exists, "the socket")
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert left_in(toolcrib_home) == []
        files.append({str(path.relative_to(toolcrib_home.toolcrib)) for path in toolcrib_home.toolcrib.rglob("*")})
    assert files[-1] == files[1]


def test_open_files_do_not_grow_with_clients_that_come_and_go(daemon: StartDaemon) -> None:
    started = daemon(CONFIG)
    started.wait_until_ready()
    door = Endpoint(started)

    def round_of_clients() -> None:
        for client in (legacy_stream, listening, half_a_body, idle, bridge, huge_answer_unread):
            with client(started):
                pass
        door.call("raw_ok")

    def open_files() -> int:
        return len(list(Path(f"/proc/{started.pid}/fd").iterdir()))

    round_of_clients()
    before = wait_for(open_files, "a count")
    for _ in range(4):
        round_of_clients()
    wait_for(lambda: open_files() <= before + 2, "closed connections to be let go")


@pytest.mark.parametrize("folder", ["state", "run"])
@pytest.mark.req("BNS-10")
def test_a_folder_that_cannot_be_used_is_named(cli: Cli, toolcrib_home: Home, folder: str) -> None:
    (toolcrib_home.toolcrib / folder).write_text("a file where a folder belongs")
    done = cli("up", "--port", "0")
    assert done.exit_code not in (0, 124)
    assert folder in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("folder", ["state", "run"])
def test_a_folder_that_may_not_be_written_is_named(cli: Cli, toolcrib_home: Home, folder: str) -> None:
    place = toolcrib_home.toolcrib / folder
    place.mkdir(mode=0o500)
    done = cli("up", "--port", "0")
    place.chmod(0o700)
    assert done.exit_code not in (0, 124)
    assert folder in done.err
    assert "Traceback" not in done.err


def test_a_full_disk_is_told_in_words(toolcrib_home: Home) -> None:
    """No file may grow beyond nothing, which is what a full disk looks like to whoever writes."""
    words = f"ulimit -f 0; trap '' XFSZ; exec {PROGRAM} up --port 0"
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        env=toolcrib_home.environ(),
        cwd=toolcrib_home.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode not in (0, 124)
    assert "Traceback" not in done.stderr
    assert str(toolcrib_home.toolcrib) in done.stderr
    assert left_in(toolcrib_home) == []
