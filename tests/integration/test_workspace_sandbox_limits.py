"""All commands end: time, memory, processes, output and file sizes are limited for everything that they start."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from parts.sandboxes import (
    SandboxPool,
    give_to,
    make_folder,
    minimal_environ,
    open_sandbox,
    output_of,
    pids_with,
    python,
    shell,
    with_limits,
)
from parts.waiting import wait_for
from toolcrib.workspace.sandbox import CommandEnding, Sandbox, SandboxCommand
from toolcrib.workspace.sandbox import sandbox as module
from toolcrib.workspace.sandbox.limits import cgroup_candidates, find_cgroup_parent
from toolcrib.workspace.settings.model import DEFAULTS, GitMode, Limits

pytestmark = [
    *(pytest.mark.req("FRG-9", "FRG-10"), pytest.mark.usefixtures("bwrap")),
    pytest.mark.asyncio(loop_scope="module"),
]

MB = 1024 * 1024


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.use() as sandbox:
        yield sandbox


@pytest.fixture(params=["cgroup", "watcher"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel limits the whole tree, or each process has limits and Toolcrib watches the tree."""
    if request.param == "watcher":
        monkeypatch.setattr(module, "find_cgroup_parent", lambda _limits: None)
    elif find_cgroup_parent(Limits()) is None:
        pytest.skip("no cgroup can be made here")
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def limited(pool: SandboxPool, means: str) -> AsyncIterator[Sandbox]:
    """60 processes, 200 MB."""
    async with pool.use(with_limits(processes=60, memory=200 * MB), name=means) as sandbox:
        yield sandbox


@pytest.fixture
def root(tmp_path: Path, owner: str) -> Path:
    return make_folder(tmp_path, owner)


@pytest.fixture
def token() -> str:
    """Marks command lines, so that their processes can be found from outside."""
    return f"token-{secrets.token_hex(8)}"


def groups() -> list[str]:
    parent = next(iter(cgroup_candidates()), None)
    return [path.name for place in parent.places for path in place.glob("toolcrib-*")] if parent else []


# ---- ending everything


RUN_AWAY = """
import os, sys, time
token = sys.argv[1]
def sleep():
    source = "import time, signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; time.sleep(300)"
    os.execv(sys.executable, [sys.executable, "-I", "-c", source, token])
for style in range(3):
    if os.fork() == 0:
        if style:
            os.setsid()
        if style == 2 and os.fork():
            os._exit(0)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
            os.open("/dev/null", os.O_RDWR)
        sleep()
time.sleep(float(sys.argv[2]))
"""


async def until_all_run(token: str) -> None:
    await asyncio.to_thread(wait_for, lambda: len(pids_with(token)) >= 4, "all to run", 20)


async def test_a_timeout_ends_every_process(sandbox: Sandbox, token: str) -> None:
    began = time.monotonic()
    running = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300", seconds=1.5))
    await until_all_run(token)
    result = await running
    assert pids_with(token) == []
    assert (result.ending, result.code) == (CommandEnding.TIMEOUT, None)
    assert time.monotonic() - began > 1.4
    assert not list(sandbox.folder.root.iterdir())


async def test_background_processes_end_with_the_command(sandbox: Sandbox, token: str) -> None:
    result = await python(sandbox, RUN_AWAY, token, "0.3")
    assert pids_with(token) == []
    assert (result.ending, result.code) == (CommandEnding.EXITED, 0)


async def test_cancelling_or_closing_ends_every_process(root: Path, token: str) -> None:
    async with open_sandbox(root) as sandbox:
        running = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300"))
        await until_all_run(token)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert pids_with(token) == []
        assert not list(root.iterdir())
        running = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300"))
        await until_all_run(token)
        await sandbox.close()
        assert pids_with(token) == []
        assert (await running).ending is CommandEnding.CANCELLED


async def test_cancelling_at_any_moment_leaves_nothing(root: Path, token: str) -> None:
    before = groups()
    async with open_sandbox(root) as sandbox:
        for step in range(30):
            running = asyncio.create_task(shell(sandbox, f"sleep 300 # {token}"))
            await asyncio.sleep(step * 0.0015)
            running.cancel()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert pids_with(token) == [], step
            assert not list(root.iterdir()), step
    assert not [name for name in groups() if name.startswith(f"toolcrib-{os.getpid()}-") and name not in before]


# A server is a fork of this script, which sees every process that it leaves: orphans become children of the script.
KILLER = """
import asyncio, ctypes, os, signal, sys, time
from pathlib import Path
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import Sandbox, SandboxCommand
from toolcrib.workspace.settings.model import DEFAULTS
root, source, token, *pauses = sys.argv[1:]
async def serve(ready, go):
    sandbox = await Sandbox.open(Folder(Path(root)), DEFAULTS, environ=dict(os.environ))
    os.write(ready, b"x")
    os.read(go, 1)
    await sandbox.run(SandboxCommand(argv=(sys.executable, "-I", "-c", source, token, "300"), seconds=300))
def has_token(n):
    try:
        return n.isdigit() and token.encode() in open(f"/proc/{n}/cmdline", "rb").read()
    except OSError:
        return False
def kill_server(pause):
    (is_ready, ready), (go, start) = os.pipe(), os.pipe()
    server = os.fork()
    if server == 0:
        asyncio.run(serve(ready, go))
        os._exit(0)
    os.close(ready)
    assert os.read(is_ready, 1) == b"x"
    os.write(start, b"x")
    end = time.monotonic() + 60
    # This script and the server have the token too.
    while pause < 0 and sum(map(has_token, os.listdir("/proc"))) < 6:
        assert time.monotonic() < end, "the command does not run"
        time.sleep(0.05)
    time.sleep(max(0, pause))
    os.kill(server, signal.SIGKILL)
    end = time.monotonic() + 30
    seen = 0
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return f"gone {seen}"
        seen += pid != 0
        time.sleep(0 if pid else 0.005)
    return "left " + open("/proc/self/task/%d/children" % os.getpid()).read()
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for pause in pauses:
    print(kill_server(float(pause)), flush=True)
"""


async def kill_servers(root: Path, token: str, *pauses: float) -> list[str]:
    """Kills a server that runs a command, after each pause, or once everything runs (-1). Returns what was left."""
    words = [sys.executable, "-c", KILLER, str(root), RUN_AWAY, token, *map(str, pauses)]
    options: Any = {"env": minimal_environ() | {"PYTHONPATH": os.pathsep.join(sys.path)}, "timeout": 250, "text": True}
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).splitlines()


@pytest.mark.timeout(300)
async def test_a_killed_server_leaves_no_process_and_the_next_removes_its_files(root: Path, token: str) -> None:
    [left] = await kill_servers(root, token, -1)
    assert (left.split()[0], int(left.split()[1]) >= 3) == ("gone", True)
    assert pids_with(token) == []
    names = {path.name for path in root.iterdir()}
    assert names == {".git", ".toolcrib"}
    assert not any(list((root / name).iterdir()) for name in names)
    async with open_sandbox(root) as sandbox:
        assert not [name for name in groups() if not Path(f"/proc/{name.split('-')[1]}").exists()]
        result = await shell(sandbox, "mkdir .git/hooks; touch .toolcrib/workspace.yml; ls -A .git .toolcrib")
    assert result.stdout.text().split() == [".git:", ".toolcrib:"]
    assert not list(root.iterdir())


@pytest.mark.timeout(300)
async def test_a_server_killed_while_it_builds_a_sandbox_leaves_no_process(
    root: Path, token: str, sized: Callable[[int, int], int]
) -> None:
    steps = sized(12, 100)
    left = await kill_servers(root, token, *(step * 0.04 / steps for step in range(steps)))
    assert [line.split()[0] for line in left] == ["gone"] * steps
    assert pids_with(token) == []


# ---- processes and memory


async def keep_measuring(measure: Callable[[], int], seen: list[int]) -> None:
    while True:
        seen.append(measure())
        await asyncio.sleep(0.02)


def free_memory() -> int:
    table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(table["MemAvailable"].split()[0]) * 1024


async def test_a_fork_bomb_is_ended_and_threads_count_as_processes(pool: SandboxPool, means: str) -> None:
    bomb = """
        import os
        while True:
            try:
                if os.fork() == 0:
                    os.write(1, b".")
            except OSError:
                pass
        """
    threads = """
        import threading, time
        started = 0
        try:
            for _ in range(200):
                threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
                started += 1
        except RuntimeError:
            pass
        if started == 200:
            time.sleep(15)  # so that a watcher sees them all
        print(started, flush=True)
        """
    async with pool.use(with_limits(processes=60), name=means) as sandbox:
        result = await python(sandbox, bomb, seconds=30)
        assert result.ending is CommandEnding.PROCESSES
        # A watcher notices it a moment later, and the kernel does not count root's processes.
        assert 0 < result.stdout.total < (80 if means == "cgroup" else 5000)
        assert (await shell(sandbox, "echo fine")).stdout.text() == "fine\n"
        result = await python(sandbox, threads, seconds=20)
        assert result.ending is CommandEnding.PROCESSES or int(result.stdout.text()) <= 60


HOG = """
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
held = []
try:
    while True:
        held.append(bytearray(os.urandom(1 << 20)))
except MemoryError:
    held.clear()
    print("MemoryError", flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("processes", [1, 8])
async def test_memory_is_limited(limited: Sandbox, processes: int) -> None:
    free = [free_memory()]
    watching = asyncio.create_task(keep_measuring(free_memory, free))
    result = await python(limited, HOG, str(processes), seconds=30)
    watching.cancel()
    assert result.ending is CommandEnding.MEMORY or "MemoryError" in result.stdout.text(), result
    # Other programs use this machine too.
    assert free[0] - min(free) < 1500 * MB
    assert (await shell(limited, "echo fine")).stdout.text() == "fine\n"


async def test_memory_outside_of_processes_is_limited(limited: Sandbox, means: str) -> None:
    """Files in memory and shared segments belong to no process, so a watcher of processes would not see them."""
    source = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        held = 0
        piece = bytes(1 << 20)
        try:
            descriptor = os.memfd_create("x")
            for _ in range(1000):
                os.write(descriptor, piece); held += 1
        except OSError as error:
            print(error)
        segment = libc.shmget(0, 100 << 20, 0o1600)
        print(held, segment, ctypes.get_errno(), flush=True)
        """
    result = await python(limited, source, seconds=30)
    if means == "cgroup":
        assert result.ending is CommandEnding.MEMORY or result.signal == signal.SIGKILL
    else:
        assert result.stdout.text().split("\n")[1] == "0 -1 38"


MAPS = """
import mmap, os, sys
place = -1 if sys.argv[1] == "nothing" else os.open(sys.argv[1], os.O_RDWR)
held = []
for _ in range(1000):
    held.append(mmap.mmap(place, 1 << 20, mmap.MAP_SHARED | (mmap.MAP_ANONYMOUS if place < 0 else 0)))
    held[-1].write(bytes(1 << 20))
    held[-1].madvise(mmap.MADV_DONTNEED)
print("held", flush=True)
"""


@pytest.mark.parametrize("place", ["nothing", "/dev/zero"])
async def test_shared_memory_maps_are_limited(limited: Sandbox, means: str, place: str) -> None:
    """After MADV_DONTNEED they still use memory, but no process shows it."""
    result = await python(limited, MAPS, place, seconds=30)
    assert "held" not in result.stdout.text()
    if means == "watcher" or place == "/dev/zero":
        assert (result.code, "Error" in result.stderr.text()) == (1, True)
    else:
        assert result.ending is CommandEnding.MEMORY or result.signal == signal.SIGKILL


SOCKETS = """
import os, socket
os.fork(); os.fork()
held = []
while True:
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
    try:
        while True:
            held[-1][0].send(bytes(1 << 16))
    except BlockingIOError:
        pass
"""


async def test_data_in_socket_buffers_is_limited(limited: Sandbox) -> None:
    result = await python(limited, SOCKETS, seconds=30)
    assert result.ending is CommandEnding.MEMORY, result
    assert (await shell(limited, "echo fine")).stdout.text() == "fine\n"


async def test_limits_cannot_be_raised(limited: Sandbox, means: str) -> None:
    source = """
        import json, resource
        raised = []
        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        limits = {}
        for name in names:
            kind = getattr(resource, name)
            soft, hard = resource.getrlimit(kind)
            limits[name] = hard
            if hard == resource.RLIM_INFINITY:
                continue
            for wanted in (hard + 1, hard * 2 + 1, resource.RLIM_INFINITY):
                try:
                    resource.setrlimit(kind, (hard, wanted)); raised.append(name)
                except (OSError, ValueError):
                    pass
        print(json.dumps([raised, limits]))
        """
    raised, limits = json.loads(await output_of(limited, source))
    assert raised == []
    assert (limits["RLIMIT_FSIZE"], limits["RLIMIT_CORE"]) == (DEFAULTS.limits.file_size, 0)
    if means == "watcher":
        assert (limits["RLIMIT_NPROC"], limits["RLIMIT_DATA"]) == (60, 200 * MB)


# ---- files


async def test_private_folders_are_limited_and_no_other_folder_is_writable(limited: Sandbox) -> None:
    for place in ("/tmp", "/dev/shm"):
        result = await shell(limited, f"head -c 1000000000 /dev/zero > {place}/fill; stat -c %s {place}/fill")
        assert "No space left" in result.stderr.text()
        assert int(result.stdout.text()) <= 50 * MB
    for place in ("/", "/dev", "/etc", "/root", "/home", "/run", "/var"):
        assert (await shell(limited, f"mkdir -p {place}/fill || touch {place}/fill")).code != 0, place


async def test_files_do_not_grow_beyond_their_limit(root: Path) -> None:
    async with open_sandbox(root, with_limits(file_size=1 * MB)) as sandbox:
        line = "head -c 5000000 /dev/zero > big; stat -c %s big; head -c 5000000 /dev/zero > /tmp/b"
        result = await shell(sandbox, line)
    assert (root / "big").stat().st_size == 1 * MB
    assert result.stdout.text().strip() == str(1 * MB)


# ---- output


async def test_a_flood_of_output_is_ended_and_uses_little_memory(root: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with open_sandbox(root, with_limits(kept=8 * MB, output=4096)) as sandbox:
        result = await shell(sandbox, "yes flood | head -c 100000 >&2; yes 0123456789", seconds=30)
    assert result.ending is CommandEnding.OUTPUT
    assert result.stdout.total + result.stderr.total == 8 * MB
    assert len(result.stdout.head) + len(result.stdout.tail) <= MB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024
    assert result.stdout.kept
    assert (root / result.stdout.kept).stat().st_size == 8 * MB


async def test_long_output_is_kept_in_files_and_the_oldest_are_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_sandbox(root, with_limits(output=1000)) as sandbox:
        short = await shell(sandbox, "seq 10")
        long = await shell(sandbox, "seq 20000", name="run_shell_safe")
        longer = await shell(sandbox, "seq 30000", name="run_shell_safe")
        attack = f"tail -1 {long.stdout.kept}; echo x >> {long.stdout.kept}; rm -rf .toolcrib/output"
        read = await shell(sandbox, attack)
        assert short.stdout.kept is None
        assert long.stdout.kept == ".toolcrib/output/run_shell_safe-1.log"
        assert longer.stdout.kept == ".toolcrib/output/run_shell_safe-2.log"
        assert read.stdout.text() == "20000\n"
        expected = "".join(f"{number}\n" for number in range(1, 20001))
        assert (root / long.stdout.kept).read_text() == long.stdout.text() == expected
        assert "bytes left out; full output: .toolcrib/output/run_shell_safe-1.log" in long.stdout.text(1000)
        assert (root / ".toolcrib/output/.gitignore").read_text() == "*\n"
        assert {path.stat().st_uid for path in root.rglob("*")} == {root.stat().st_uid}
        monkeypatch.setattr("toolcrib.workspace.sandbox.process.MAX_OUTPUT_FILES", 3)
        for _ in range(5):
            await shell(sandbox, "seq 1000")
    kept = sorted(path.name for path in (root / ".toolcrib/output").glob("*.log"))
    assert kept == [f"command-{number}.log" for number in (5, 6, 7)]


async def test_read_only_mode_keeps_no_output(root: Path) -> None:
    async with open_sandbox(root, replace(with_limits(output=10), read_only=True)) as sandbox:
        result = await shell(sandbox, "seq 1000; touch x")
    assert (result.stdout.total, result.stdout.kept) == (3893, None)
    assert not list(root.iterdir())


async def test_output_is_passed_on_while_the_command_runs(sandbox: Sandbox) -> None:
    pieces: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    def take(stream: str, chunk: bytes) -> None:
        pieces.append((stream, chunk))
        first.set()

    fifo = sandbox.folder.root / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    command = SandboxCommand(argv=("/bin/sh", "-c", "echo one; cat fifo; echo two >&2"), seconds=30)
    running = asyncio.create_task(sandbox.run(command, on_output=take))
    async with asyncio.timeout(60):
        await first.wait()
    assert pieces == [("stdout", b"one\n")]
    fifo.write_text("go\n")
    result = await running
    assert ("stderr", b"two\n") in pieces
    assert result.stdout.text() == "one\ngo\n"


# ---- placeholders


async def test_parallel_commands_share_the_placeholders_of_missing_folders(sandbox: Sandbox) -> None:
    """The first to end must not remove the one that keeps the second from making a `.git`."""
    root = sandbox.folder.root
    async with open_sandbox(root) as other:
        line = "touch ready; while [ ! -e stop ]; do sleep 0.05; done; mkdir .git/x"
        running = asyncio.create_task(shell(sandbox, line))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the first", 20)
        await shell(other, "true")
        await shell(sandbox, "true")
        assert (root / ".git").exists()
        await shell(other, "touch stop")
        result = await running
    assert "Read-only" in result.stderr.text()
    assert {path.name for path in root.iterdir()} == {"ready", "stop"}


async def test_commands_that_may_commit_leave_no_placeholders(root: Path, owner: str) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", root], check=True, env=minimal_environ())
    give_to(owner, root)
    before = sorted(str(path) for path in root.rglob("*"))
    async with open_sandbox(root, replace(DEFAULTS, git=GitMode.COMMIT)) as sandbox:
        for seconds in (30, 0.2):
            await shell(sandbox, "sleep 1", seconds=seconds)
    assert sorted(str(path) for path in root.rglob("*")) == before
