"""One shared server for a folder, which independent programs find, start and end."""

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
from typing import Any

import pytest

from parts.daemon import Home
from parts.sandboxes import is_running, pids_with
from parts.sizes import some
from parts.waiting import wait_for
from toolcrib.errors import ServerUnavailable, ToolcribError, WorkspaceError
from toolcrib.workspace import RunningWorkspace, ensure_workspace

pytestmark = [pytest.mark.slow, pytest.mark.req("FRG-2")]

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


def start(home: Home, source: str, *args: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-P", "-c", source, str(home.project), *map(str, args)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, env=home.environ(), text=True, **pipes)


@pytest.fixture
def use(home_folder: Home) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a program that uses the project's server and prints its pid."""
    started: list[subprocess.Popen[str]] = []

    def start_user() -> subprocess.Popen[str]:
        started.append(start(home_folder, USER))
        return started[-1]

    yield start_user
    for process in started:
        process.kill()
        process.communicate()


def ensured(home: Home, folder: Path | str | None = None, **env: str) -> RunningWorkspace:
    return ensure_workspace(folder or home.project, environ=home.environ(env))


def wait_until_ended(pid: int) -> None:
    wait_for(lambda: not is_running(pid), f"process {pid} to end", LIMIT)


async def test_a_program_gets_a_running_server_and_a_client(home_folder: Home) -> None:
    (home_folder.project / "a.txt").write_text("hello")
    with ensured(home_folder) as workspace:
        assert workspace.root == home_folder.project.resolve()
        assert workspace.socket.is_socket()
        for mode in ("auto", "legacy"):
            async with asyncio.timeout(LIMIT), workspace.client(mode=mode) as client:
                result = await client.call_tool("read_file", {"path": "a.txt"})
                assert result.structured_content is not None
                assert result.structured_content["text"] == "hello"
    wait_until_ended(workspace.pid)
    assert not workspace.socket.exists()
    wait_for(lambda: not list(run_dir(home_folder).iterdir()), "its files to be removed")


def test_all_paths_to_a_folder_give_one_server_that_ends_with_its_last_user(
    home_folder: Home, use: Callable[[], subprocess.Popen[str]]
) -> None:
    """Child processes of a user, forked or started, are no users."""
    link = home_folder.path / "link"
    link.symlink_to(home_folder.project)
    first = ensured(home_folder)
    second = ensured(home_folder, f"{link}/../link/.")
    other = use()
    assert other.stdout is not None
    assert {first.pid, second.pid, int(other.stdout.readline())} == {first.pid}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        first.close()
        second.close()
        assert is_running(first.pid)
        other.kill()
        wait_until_ended(first.pid)
        assert program.poll() is None
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
        program.kill()
        program.wait()


def test_two_folders_have_two_servers(home_folder: Home) -> None:
    one, two = home_folder.path / "one", home_folder.path / "two"
    for folder in (one, two):
        folder.mkdir()
    with ensured(home_folder, one) as first, ensured(home_folder, two) as second:
        assert first.pid != second.pid
        assert first.socket != second.socket
    wait_until_ended(first.pid)
    wait_until_ended(second.pid)


def test_a_program_killed_while_its_server_starts_leaves_nothing(
    home_folder: Home, use: Callable[[], subprocess.Popen[str]]
) -> None:
    for _ in range(3):
        user = use()
        wait_for(lambda: pids_with(str(run_dir(home_folder))), "the server to be started", LIMIT)
        user.kill()
        user.wait()
        # The next user gets a working server, also while the first still starts or ends.
        with ensured(home_folder) as workspace:
            assert workspace.is_alive
            assert pids_with(str(run_dir(home_folder))).count(workspace.pid) == 1
        wait_for(lambda: not pids_with(str(run_dir(home_folder))), "all servers to end", LIMIT)


async def test_a_server_that_ends_is_reported_to_its_user_and_replaced(home_folder: Home) -> None:
    with ensured(home_folder) as first:
        os.kill(first.pid, signal.SIGKILL)
        wait_until_ended(first.pid)
        wait_for(lambda: not first.is_alive, "the user to notice")
        with pytest.raises(ServerUnavailable, match="has exited"):
            async with first.client():
                pass
        with ensured(home_folder) as second:
            assert second.pid != first.pid
            async with asyncio.timeout(LIMIT), second.client() as client:
                assert len((await client.list_tools()).tools) == 12
            os.kill(second.pid, signal.SIGTERM)
            with ensured(home_folder) as third:
                wait_for(lambda: not second.is_alive, "the second server to end")
                assert third.pid != second.pid or not third.is_alive
    wait_until_ended(second.pid)
    wait_until_ended(third.pid)


def test_a_server_killed_while_it_starts_is_reported_and_the_next_works(home_folder: Home) -> None:
    errors: list[ToolcribError] = []

    def start_one() -> None:
        try:
            ensured(home_folder).close()
        except ToolcribError as error:
            errors.append(error)

    starter = threading.Thread(target=start_one)
    starter.start()
    for pid in wait_for(lambda: pids_with(str(run_dir(home_folder))), "the server to be started", LIMIT):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    starter.join(LIMIT)
    assert "did not start" in str(errors[0])
    with ensured(home_folder) as workspace:
        assert workspace.is_alive
    wait_until_ended(workspace.pid)


def test_a_server_that_cannot_start_gives_the_reason(home_folder: Home) -> None:
    with pytest.raises(WorkspaceError, match="cannot be a workspace: it is a system folder"):
        ensured(home_folder, "/etc")
    with pytest.raises(WorkspaceError, match="No such file"):
        ensured(home_folder, home_folder.path / "absent")
    assert not list(run_dir(home_folder).iterdir())
    broken = home_folder.path / "broken" / "mcp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('the SDK is broken here')")
    with pytest.raises(ToolcribError, match="the SDK is broken here"):
        ensured(home_folder, PYTHONPATH=str(broken.parent))
    long = home_folder.path / ("x" * 90)
    long.mkdir()
    with pytest.raises(ToolcribError, match="too long"):
        ensured(home_folder, TOOLCRIB_HOME=str(long))


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("at_once", "pause", "servers_are_killed"),
    some(
        [pytest.param(4, 0.1, True, id="servers killed")],
        [pytest.param(8, 0.0, False, id="a crowd"), pytest.param(2, 0.2, False, id="now and then")],
    ),
)
def test_programs_always_find_exactly_one_server(
    home_folder: Home, sized: Callable[[int, int], int], at_once: int, pause: float, servers_are_killed: bool
) -> None:
    """A crowd keeps one server busy; with pauses, servers start and end all the time."""
    counts: list[int] = []
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        killed = time.monotonic()
        while not over.wait(0.01):
            counts.append(len(listening(home_folder)))
            if servers_are_killed and time.monotonic() - killed > 0.1 and is_lock_free(home_folder):
                killed = time.monotonic()
                for pid in pids_with(str(run_dir(home_folder))):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    arguments = (sized(6, 60), pause, servers_are_killed)
    users = [start(home_folder, MANY, *arguments) for _ in range(sized(at_once, 5 * at_once))]
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
    assert max(counts) == 1
    assert len(seen) > bool(pause)
    # A server killed during its self-test leaves files, which the next one removes.
    with start(home_folder, USER) as last:
        wait_for(lambda: not home_folder.stray_files(), "the files of killed servers to be removed", LIMIT)
        last.communicate(timeout=LIMIT)
    assert last.returncode == 0
    wait_for(lambda: not pids_with(str(run_dir(home_folder))), "all servers to end", LIMIT)


def is_lock_free(home: Home) -> bool:
    """Whether no server is starting."""
    for lock in run_dir(home).glob("*/start.lock"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def listening(home: Home) -> set[str]:
    """The inodes of the sockets that servers listen on."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines():
            if line.endswith("/mcp.sock") and str(run_dir(home)) in line:
                fields = line.split()
                if fields[3] == "00010000":
                    found.add(fields[6])
    return found
