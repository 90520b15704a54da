"""One shared server for a folder: found, started and ended by programs that know nothing of each other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts.daemon import Home
from parts.sizes import some
from parts.waiting import wait_for
from parts.workspace import is_running, running_with
from toolcrib.errors import ServerUnavailable, ToolcribError, WorkspaceError
from toolcrib.workspace import RunningWorkspace, ensure_workspace

pytestmark = pytest.mark.slow

LIMIT = 60.0
USER = """
import os, sys
from toolcrib.workspace import ensure_workspace
with ensure_workspace(sys.argv[1]) as workspace:
    print(workspace.pid, flush=True)
    sys.stdin.read()
"""
"""A program that uses a folder's server until its stdin ends."""


def run_dir(home: Home) -> Path:
    return home.toolcrib / "run" / "workspaces"


@pytest.fixture
def use(home_folder: Home) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts such a program; tell it what to do by its stdin, learn the server's pid from its stdout."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", USER, str(home_folder.project)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=home_folder.environ(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def server_of(user: subprocess.Popen[bytes]) -> int:
    assert user.stdout is not None
    return int(user.stdout.readline())


def ensured(home: Home) -> RunningWorkspace:
    return ensure_workspace(home.project, environ=home.environ())


def gone(pid: int) -> None:
    wait_for(lambda: not is_running(pid), f"process {pid} to end", LIMIT)


@pytest.mark.req("FRG-2")
async def test_a_program_gets_a_running_server_and_a_client_in_one_line_each(home_folder: Home) -> None:
    (home_folder.project / "a.txt").write_text("hello")
    with ensured(home_folder) as workspace:
        assert workspace.root == home_folder.project.resolve()
        assert workspace.socket.is_socket()
        for mode in ("auto", "legacy"):
            async with asyncio.timeout(LIMIT), workspace.client(mode=mode) as client:
                result = await client.call_tool("read_file", {"path": "a.txt"})
                assert result.structured_content is not None
                assert result.structured_content["text"] == "hello"
    gone(workspace.pid)
    assert not workspace.socket.exists()
    wait_for(lambda: not list(run_dir(home_folder).iterdir()), "its files to go")


@pytest.mark.req("FRG-2")
def test_every_way_to_a_folder_leads_to_one_server_and_the_last_user_ends_it(
    home_folder: Home, use: Callable[[], subprocess.Popen[bytes]]
) -> None:
    link = home_folder.path / "link"
    link.symlink_to(home_folder.project)
    first = ensured(home_folder)
    second = ensure_workspace(f"{link}/../link/.", environ=home_folder.environ())
    other = use()
    assert {first.pid, second.pid, server_of(other)} == {first.pid}
    first.close()
    second.close()
    assert is_running(first.pid)
    other.communicate(b"")
    gone(first.pid)


@pytest.mark.req("FRG-2")
def test_two_folders_have_two_servers(home_folder: Home) -> None:
    one, two = home_folder.path / "one", home_folder.path / "two"
    for folder in (one, two):
        folder.mkdir()
    with (
        ensure_workspace(one, environ=home_folder.environ()) as first,
        ensure_workspace(two, environ=home_folder.environ()) as second,
    ):
        assert first.pid != second.pid
        assert first.socket != second.socket
    gone(first.pid)
    gone(second.pid)


@pytest.mark.req("FRG-2")
def test_a_user_that_is_killed_counts_as_gone(home_folder: Home, use: Callable[[], subprocess.Popen[bytes]]) -> None:
    user = use()
    server = server_of(user)
    user.kill()
    user.wait()
    gone(server)


@pytest.mark.req("FRG-2")
def test_a_starter_that_is_killed_in_mid_start_leaves_nothing(
    home_folder: Home, use: Callable[[], subprocess.Popen[bytes]]
) -> None:
    for _ in range(3):
        user = use()
        wait_for(lambda: running_with(str(run_dir(home_folder))), "the server to be started", LIMIT)
        user.kill()
        user.wait()
        # Whoever comes next gets a server that works, also while that one is still starting or ending.
        with ensured(home_folder) as workspace:
            assert workspace.is_alive
            assert running_with(str(run_dir(home_folder))).count(workspace.pid) == 1
        wait_for(lambda: not running_with(str(run_dir(home_folder))), "all servers to end", LIMIT)


@pytest.mark.req("FRG-2")
async def test_a_server_that_is_killed_is_told_to_its_user_and_replaced(home_folder: Home) -> None:
    with ensured(home_folder) as before:
        os.kill(before.pid, signal.SIGKILL)
        gone(before.pid)
        wait_for(lambda: not before.is_alive, "the user to see it")
        with pytest.raises(ServerUnavailable, match="has ended"):
            async with before.client():
                pass
        with ensured(home_folder) as after:
            assert after.pid != before.pid
            async with asyncio.timeout(LIMIT), after.client() as client:
                assert len((await client.list_tools()).tools) == 12
    gone(after.pid)


@pytest.mark.req("FRG-2")
def test_a_server_that_is_killed_in_mid_start_is_told_and_the_next_one_works(home_folder: Home) -> None:
    told: list[ToolcribError] = []

    def start() -> None:
        try:
            ensured(home_folder).close()
        except ToolcribError as error:
            told.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    for pid in wait_for(lambda: running_with(str(run_dir(home_folder))), "the server to be started", LIMIT):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    starter.join(LIMIT)
    assert "did not start" in str(told[0])
    with ensured(home_folder) as workspace:
        assert workspace.is_alive
    gone(workspace.pid)


@pytest.mark.req("FRG-2")
def test_a_server_that_is_told_to_stop_is_replaced(home_folder: Home) -> None:
    with ensured(home_folder) as before:
        os.kill(before.pid, signal.SIGTERM)
        with ensured(home_folder) as after:
            wait_for(lambda: not before.is_alive, "the first server to end")
            assert after.pid != before.pid or not after.is_alive
    gone(before.pid)
    gone(after.pid)


@pytest.mark.req("FRG-2")
def test_children_do_not_keep_the_server(home_folder: Home) -> None:
    """Neither one that was forked nor one that runs another program."""
    workspace = ensured(home_folder)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    other = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        workspace.close()
        gone(workspace.pid)
        assert other.poll() is None
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
        other.kill()
        other.wait()


@pytest.mark.req("FRG-2")
def test_a_folder_that_cannot_be_a_workspace_is_refused_with_the_servers_reason(home_folder: Home) -> None:
    with pytest.raises(WorkspaceError, match="cannot be a workspace: it is a system folder"):
        ensure_workspace("/etc", environ=home_folder.environ())
    with pytest.raises(WorkspaceError, match="No such file"):
        ensure_workspace(home_folder.path / "absent", environ=home_folder.environ())
    assert not list(run_dir(home_folder).iterdir())


@pytest.mark.req("FRG-2")
def test_a_server_that_cannot_start_shows_what_it_said(home_folder: Home) -> None:
    broken = home_folder.path / "broken" / "mcp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('the SDK is broken here')")
    with pytest.raises(ToolcribError) as caught:
        ensure_workspace(home_folder.project, environ={**home_folder.environ(), "PYTHONPATH": str(broken.parent)})
    assert "the SDK is broken here" in str(caught.value)


def test_a_path_that_is_too_long_for_a_socket_is_told(home_folder: Home) -> None:
    home = home_folder.path / ("x" * 90)
    home.mkdir()
    with pytest.raises(ToolcribError, match="too long"):
        ensure_workspace(home_folder.project, environ={**home_folder.environ(), "TOOLCRIB_HOME": str(home)})


MANY = """
import os, random, signal, sys, time
import httpx2
from toolcrib.errors import ServerUnavailable
from toolcrib.workspace import ensure_workspace

root, turns, pause, servers_are_killed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "True"

def reaches(workspace):
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(workspace.socket)), timeout=60) as http:
        return http.get("http://localhost/absent").status_code == 404

for turn in range(turns):
    try:
        with ensure_workspace(root) as workspace:
            print(workspace.pid, flush=True)
            try:
                assert reaches(workspace) and workspace.is_alive
            except (httpx2.TransportError, AssertionError):
                end = time.monotonic() + 10
                while workspace.is_alive and time.monotonic() < end:
                    time.sleep(0.01)
                # Not reached, so it must be one that was killed.
                assert servers_are_killed and not workspace.is_alive
            time.sleep(random.random() * 0.05)
            if turn and random.random() < 0.1:
                os.kill(os.getpid(), signal.SIGKILL)
    except ServerUnavailable:
        assert servers_are_killed
    time.sleep(random.random() * pause)
"""
"""A program that uses the server again and again, and may kill itself."""
HELD = """
import sys
from toolcrib.workspace import ensure_workspace
with ensure_workspace(sys.argv[1]):
    sys.stdin.read()
"""


@pytest.mark.req("FRG-2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("at_once", "pause", "servers_are_killed"),
    some(
        [pytest.param(4, 0.1, True, id="servers killed")],
        [pytest.param(8, 0.0, False, id="a crowd"), pytest.param(2, 0.2, False, id="now and then")],
    ),
)
def test_programs_that_come_and_go_never_meet_two_servers_or_none(
    home_folder: Home, sized: Callable[[int, int], int], at_once: int, pause: float, servers_are_killed: bool
) -> None:
    """A crowd keeps one server busy; with a pause between them servers start and end all the time."""
    most: list[int] = []
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        killed = time.monotonic()
        while not over.wait(0.01):
            most.append(len(serving(home_folder)))
            if servers_are_killed and time.monotonic() - killed > 0.1 and nobody_starts(home_folder):
                killed = time.monotonic()
                for pid in running_with(str(run_dir(home_folder))):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    words = [sys.executable, "-P", "-c", MANY, str(home_folder.project), str(sized(6, 60)), str(pause)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    users = [
        subprocess.Popen(
            [*words, str(servers_are_killed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=home_folder.environ(),
        )
        for _ in range(sized(at_once, 5 * at_once))
    ]
    try:
        for user in users:
            out, err = user.communicate(timeout=500)
            assert user.returncode in (0, -signal.SIGKILL), err
            seen |= set(out.split())
    finally:
        over.set()
        watcher.join()
        for user in users:
            user.kill()
            user.communicate()
    assert max(most) == 1
    assert len(seen) > bool(pause)
    # A server that was killed while it tried its sandbox left what it tried that with: the next one clears it away.
    words = [sys.executable, "-P", "-c", HELD, str(home_folder.project)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=home_folder.environ()) as last:
        wait_for(lambda: not home_folder.stray_files(), "what killed servers left to be cleared away", LIMIT)
        last.communicate(timeout=LIMIT)
    assert last.returncode == 0
    wait_for(lambda: not running_with(str(run_dir(home_folder))), "all servers to end", LIMIT)


def nobody_starts(home: Home) -> bool:
    """Whether the lock is free: there is a server, or none."""
    for lock in run_dir(home).glob("*/start.lock"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def serving(home: Home) -> set[str]:
    """The sockets that somebody listens on, by their inode."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines():
            if line.endswith("/mcp.sock") and str(run_dir(home)) in line:
                fields = line.split()
                if fields[3] == "00010000":
                    found.add(fields[6])
    return found
