"""A command ends, whatever it does: time, memory, processes, output and files have limits for all that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import limited, opened, own, printed, python, shell, usual
from parts.waiting import wait_for
from toolcrib.workspace.sandbox import CommandEnding
from toolcrib.workspace.sandbox import sandbox as module
from toolcrib.workspace.sandbox.limits import cgroup_candidates, find_cgroup_parent
from toolcrib.workspace.settings.model import DEFAULTS, GitMode, Limits

pytestmark = [pytest.mark.req("FRG-9", "FRG-10"), pytest.mark.usefixtures("bwrap")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
MB = 1024 * 1024


@pytest.fixture(params=["mine", pytest.param("somebody", marks=needs_root)])
def owner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(tmp_path: Path, owner: str) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return own(place, owner)


@pytest.fixture(params=["cgroup", "watcher"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What sees to the limits: the kernel for the whole tree, or limits of each process and our own looking."""
    name: str = request.param
    if name == "watcher":
        monkeypatch.setattr(module, "find_cgroup_parent", lambda _limits: None)
    elif find_cgroup_parent(Limits()) is None:
        pytest.skip("no cgroup can be made here")
    return name


@pytest.fixture
def token() -> Iterator[str]:
    """A word on command lines, by which processes are found from outside."""
    yield f"token-{secrets.token_hex(8)}"


def with_token(token: str) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and token.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return [pid for pid in found if pid != os.getpid()]


def groups() -> list[str]:
    nest = next(iter(cgroup_candidates()), None)
    return [path.name for place in nest.places for path in place.glob("toolcrib-*")] if nest else []


def own_groups() -> list[str]:
    return [name for name in groups() if name.startswith(f"toolcrib-{os.getpid()}-")]


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


async def test_after_the_time_nothing_is_left(root: Path, token: str) -> None:
    async with opened(root) as sandbox:
        began = time.monotonic()
        going = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300", seconds=1.5))
        await asyncio.to_thread(wait_for, lambda: len(with_token(token)) >= 4, "all to run", 20)
        finished = await going
        assert with_token(token) == []
    assert finished.ending is CommandEnding.TIMEOUT
    assert finished.code is None
    assert time.monotonic() - began > 1.4
    assert not list(root.iterdir())


async def test_what_a_command_leaves_in_the_background_ends_with_it(root: Path, token: str) -> None:
    async with opened(root) as sandbox:
        finished = await python(sandbox, RUN_AWAY, token, "0.3")
        assert with_token(token) == []
    assert finished.ending is CommandEnding.EXITED
    assert finished.code == 0


async def test_cancelling_ends_all_before_it_goes_on(root: Path, token: str) -> None:
    async with opened(root) as sandbox:
        going = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300"))
        await asyncio.to_thread(wait_for, lambda: len(with_token(token)) >= 4, "all to run", 20)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert with_token(token) == []
    assert not list(root.iterdir())
    assert own_groups() == []


async def test_cancelling_at_any_moment_leaves_nothing(root: Path, token: str) -> None:
    async with opened(root) as sandbox:
        for step in range(30):
            going = asyncio.create_task(shell(sandbox, f"sleep 300 # {token}"))
            await asyncio.sleep(step * 0.0015)
            going.cancel()
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            assert with_token(token) == [], step
            assert not list(root.iterdir()), step
    assert own_groups() == []


async def test_closing_the_sandbox_ends_what_runs(root: Path, token: str) -> None:
    async with opened(root) as sandbox:
        going = asyncio.create_task(python(sandbox, RUN_AWAY, token, "300"))
        await asyncio.to_thread(wait_for, lambda: len(with_token(token)) >= 4, "all to run", 20)
        await sandbox.close()
        assert with_token(token) == []
        assert (await going).ending is CommandEnding.CANCELLED


SERVER = """
import asyncio, os, sys
from pathlib import Path
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import Sandbox, SandboxCommand
from toolcrib.workspace.settings.model import DEFAULTS
async def main():
    sandbox = await Sandbox.open(Folder(Path(sys.argv[1])), DEFAULTS, environ=dict(os.environ))
    print("ready", flush=True)
    sys.stdin.readline()
    words = (sys.executable, "-I", "-c", sys.argv[2], sys.argv[3], "300")
    await sandbox.run(SandboxCommand(argv=words, seconds=300))
asyncio.run(main())
"""


# Orphans come to this one, so that it sees every process that the server leaves, also those that show no word yet.
KILLER = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert server.stdout.readline() == b"ready\\n"
server.stdin.write(b"go\\n"); server.stdin.flush()
if float(sys.argv[1]) < 0:
    def has_word(n):
        try:
            return n.isdigit() and sys.argv[-1].encode() in open(f"/proc/{n}/cmdline", "rb").read()
        except OSError:
            return False
    end = time.monotonic() + 60
    while sum(map(has_word, os.listdir("/proc"))) < 6:
        assert server.poll() is None and time.monotonic() < end, "the command does not run"
        time.sleep(0.05)
else:
    time.sleep(float(sys.argv[1]))
server.kill()
end = time.monotonic() + 30
seen = 0
while time.monotonic() < end:
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("gone", seen)
        break
    seen += pid != 0
    time.sleep(0 if pid else 0.005)
else:
    print("left", open("/proc/self/task/%d/children" % os.getpid()).read())
"""


def killed_server(root: Path, token: str, *, after: float = -1) -> str:
    """Lets a server run a command and kills it, when all of that runs or after so many seconds. Says what was left."""
    server = [sys.executable, "-c", SERVER, str(root), RUN_AWAY, token]
    words = [sys.executable, "-c", KILLER, str(after), *server]
    environment = usual() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_killing_the_server_leaves_no_process(root: Path, token: str) -> None:
    said, number = killed_server(root, token).split()
    assert said == "gone"
    assert int(number) >= 3
    assert with_token(token) == []


@pytest.mark.timeout(300)
def test_killing_the_server_while_a_sandbox_is_made_leaves_no_process(
    root: Path, token: str, sized: Callable[[int, int], int]
) -> None:
    steps = sized(12, 100)
    for step in range(steps):
        assert killed_server(root, token, after=step * 0.04 / steps).startswith("gone"), step
        assert with_token(token) == []


@pytest.mark.timeout(300)
async def test_what_a_killed_server_leaves_is_taken_away_by_the_next(root: Path, token: str) -> None:
    await asyncio.to_thread(killed_server, root, token)
    left = {path.name for path in root.iterdir()}
    assert left == {".git", ".toolcrib"}
    assert not any(list((root / name).iterdir()) for name in left)
    async with opened(root) as sandbox:
        assert not [name for name in groups() if not Path(f"/proc/{name.split('-')[1]}").exists()]
        finished = await shell(sandbox, "mkdir .git/hooks; touch .toolcrib/workspace.yml; ls -A .git .toolcrib")
    assert finished.stdout.text().split() == [".git:", ".toolcrib:"]
    assert not list(root.iterdir())


async def test_a_fork_bomb_stays_small(root: Path, means: str) -> None:
    settings = limited(processes=60)
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(list(Path("/proc").glob("[0-9]*"))))
            await asyncio.sleep(0.02)

    before = len(list(Path("/proc").glob("[0-9]*")))
    async with opened(root, settings) as sandbox:
        counting = asyncio.create_task(count())
        bomb = await python(
            sandbox,
            """
            import os
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
            """,
            seconds=30,
        )
        counting.cancel()
        again = await shell(sandbox, "echo fine")
    assert bomb.ending is CommandEnding.PROCESSES
    # A watcher sees it a moment later, and where root owns the folder the kernel does not count.
    assert most - before < (80 if means == "cgroup" else 5000)
    assert again.stdout.text() == "fine\n"


async def test_threads_count_as_processes(root: Path, means: str) -> None:
    async with opened(root, limited(processes=40)) as sandbox:
        finished = await python(
            sandbox,
            """
            import threading, time
            started = 0
            try:
                for _ in range(200):
                    threading.Thread(target=time.sleep, args=(3,)).start()
                    started += 1
            except RuntimeError:
                pass
            print(started, flush=True)
            """,
            seconds=20,
        )
    assert finished.ending is CommandEnding.PROCESSES or int(finished.stdout.text()) <= 40


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


@pytest.mark.parametrize("many", [1, 8])
async def test_a_memory_hog_stays_small(root: Path, means: str, many: int) -> None:
    limit = 200 * MB
    before = _free()
    lowest = before

    async def watch() -> None:
        nonlocal lowest
        while True:
            lowest = min(lowest, _free())
            await asyncio.sleep(0.02)

    async with opened(root, limited(memory=limit)) as sandbox:
        watching = asyncio.create_task(watch())
        finished = await python(sandbox, HOG, str(many), seconds=30)
        watching.cancel()
        again = await shell(sandbox, "echo fine")
    assert finished.ending is CommandEnding.MEMORY or "MemoryError" in finished.stdout.text(), finished
    # Others use this machine too.
    assert before - lowest < 1500 * MB
    assert again.stdout.text() == "fine\n"


def _free() -> int:
    table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(table["MemAvailable"].split()[0]) * 1024


async def test_memory_that_belongs_to_no_process_is_limited_too(root: Path, means: str) -> None:
    """Files in memory and shared segments are no process's own; a watcher of processes would not see them."""
    async with opened(root, limited(memory=200 * MB)) as sandbox:
        finished = await python(
            sandbox,
            """
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
            """,
            seconds=30,
        )
    if means == "cgroup":
        assert finished.ending is CommandEnding.MEMORY or finished.signal == signal.SIGKILL
    else:
        assert finished.stdout.text().split("\n")[1] == "0 -1 38"


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
async def test_shared_maps_are_limited_too(root: Path, means: str, place: str) -> None:
    """They can be let go of without being given back, and then are in no process's figures."""
    async with opened(root, limited(memory=200 * MB)) as sandbox:
        finished = await python(sandbox, MAPS, place, seconds=30)
    assert "held" not in finished.stdout.text()
    if means == "watcher" or place == "/dev/zero":
        assert finished.code == 1
        assert "Error" in finished.stderr.text()
    else:
        assert finished.ending is CommandEnding.MEMORY or finished.signal == signal.SIGKILL


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


async def test_what_waits_in_sockets_is_limited_too(root: Path, means: str) -> None:
    async with opened(root, limited(memory=200 * MB)) as sandbox:
        finished = await python(sandbox, SOCKETS, seconds=30)
        again = await shell(sandbox, "echo fine")
    assert finished.ending is CommandEnding.MEMORY, finished
    assert again.stdout.text() == "fine\n"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
async def test_the_private_places_cannot_be_filled(root: Path, place: str, means: str) -> None:
    async with opened(root, limited(memory=200 * MB)) as sandbox:
        finished = await shell(sandbox, f"head -c 1000000000 /dev/zero > {place}/fill; stat -c %s {place}/fill")
    assert "No space left" in finished.stderr.text()
    assert int(finished.stdout.text()) <= 50 * MB


@pytest.mark.parametrize("place", ["/", "/dev", "/etc", "/root", "/home", "/run", "/var"])
async def test_nothing_can_be_put_anywhere_else(root: Path, place: str) -> None:
    async with opened(root) as sandbox:
        finished = await shell(sandbox, f"mkdir -p {place}/fill || touch {place}/fill")
    assert finished.code != 0


async def test_files_do_not_grow_beyond_their_limit(root: Path) -> None:
    async with opened(root, limited(file_size=1 * MB)) as sandbox:
        finished = await shell(
            sandbox, "head -c 5000000 /dev/zero > big; stat -c %s big; head -c 5000000 /dev/zero > /tmp/b"
        )
    assert (root / "big").stat().st_size == 1 * MB
    assert finished.stdout.text().strip() == str(1 * MB)


async def test_limits_cannot_be_raised(root: Path, means: str) -> None:
    async with opened(root, limited(processes=60, memory=300 * MB, file_size=4 * MB)) as sandbox:
        found = json.loads(
            await printed(
                sandbox,
                """
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
                """,
            )
        )
    raised, limits = found
    assert raised == []
    assert limits["RLIMIT_FSIZE"] == 4 * MB
    assert limits["RLIMIT_CORE"] == 0
    if means == "watcher":
        assert limits["RLIMIT_NPROC"] == 60
        assert limits["RLIMIT_DATA"] == 300 * MB


async def test_a_flood_of_output_is_ended_and_takes_no_memory(root: Path) -> None:
    settings = limited(kept=8 * MB, output=4096)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with opened(root, settings) as sandbox:
        finished = await shell(sandbox, "yes flood | head -c 100000 >&2; yes 0123456789", seconds=30)
    assert finished.ending is CommandEnding.OUTPUT
    assert finished.stdout.total + finished.stderr.total == 8 * MB
    assert len(finished.stdout.head) + len(finished.stdout.tail) <= MB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024
    assert finished.stdout.kept
    assert (root / finished.stdout.kept).stat().st_size == 8 * MB


async def test_long_output_is_kept_whole_as_a_file(root: Path, owner: str) -> None:
    settings = limited(output=1000)
    async with opened(root, settings) as sandbox:
        short = await shell(sandbox, "seq 10")
        long = await shell(sandbox, "seq 20000", name="run_shell_safe")
        longer = await shell(sandbox, "seq 30000", name="run_shell_safe")
        read = await shell(
            sandbox, f"tail -1 {long.stdout.kept}; echo x >> {long.stdout.kept}; rm -rf .toolcrib/output"
        )
    assert short.stdout.kept is None
    assert long.stdout.kept == ".toolcrib/output/run_shell_safe-1.log"
    assert longer.stdout.kept == ".toolcrib/output/run_shell_safe-2.log"
    assert read.stdout.text() == "20000\n"
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    assert (root / long.stdout.kept).read_text() == expected
    assert long.stdout.text() == expected
    assert "bytes left out; all of it: .toolcrib/output/run_shell_safe-1.log" in long.stdout.text(1000)
    assert (root / ".toolcrib/output/.gitignore").read_text() == "*\n"
    assert {path.stat().st_uid for path in root.rglob("*")} == {root.stat().st_uid}


async def test_old_output_goes_when_there_is_much(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.workspace.sandbox.process.MAX_OUTPUT_FILES", 3)
    async with opened(root, limited(output=10)) as sandbox:
        for _ in range(5):
            await shell(sandbox, "seq 100")
    assert sorted(path.name for path in (root / ".toolcrib/output").glob("*.log")) == [
        f"command-{number}.log" for number in (3, 4, 5)
    ]


async def test_nothing_is_kept_in_read_only_mode(root: Path) -> None:
    settings = replace(limited(output=10), read_only=True)
    async with opened(root, settings) as sandbox:
        finished = await shell(sandbox, "seq 1000; touch x")
    assert finished.stdout.total == 3893
    assert finished.stdout.kept is None
    assert not list(root.iterdir())


async def test_output_is_told_while_it_comes(root: Path) -> None:
    pieces: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    def take(stream: str, chunk: bytes) -> None:
        pieces.append((stream, chunk))
        first.set()

    async with opened(root) as sandbox:
        going = asyncio.create_task(
            sandbox.run(
                module.SandboxCommand(argv=("/bin/sh", "-c", "echo one; cat fifo; echo two >&2"), seconds=30),
                on_output=take,
            )
        )
        os.mkfifo(root / "fifo")
        (root / "fifo").chmod(0o666)
        async with asyncio.timeout(60):
            await first.wait()
        assert pieces == [("stdout", b"one\n")]
        (root / "fifo").write_text("go\n")
        finished = await going
    assert ("stderr", b"two\n") in pieces
    assert finished.stdout.text() == "one\ngo\n"


async def test_commands_at_once_share_what_stands_in_for_missing_folders(root: Path) -> None:
    """The first that ends must not take away what keeps the second from making a `.git`."""
    async with opened(root) as one, opened(root) as two:
        going = asyncio.create_task(shell(one, "touch ready; while [ ! -e stop ]; do sleep 0.05; done; mkdir .git/x"))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the first", 20)
        await shell(two, "true")
        await shell(one, "true")
        assert (root / ".git").exists()
        await shell(two, "touch stop")
        finished = await going
    assert "Read-only" in finished.stderr.text()
    assert {path.name for path in root.iterdir()} == {"ready", "stop"}


async def test_committing_leaves_no_litter_either(root: Path, owner: str) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", root], check=True, env=usual())
    own(root, owner)
    before = sorted(str(path) for path in root.rglob("*"))
    async with opened(root, replace(DEFAULTS, git=GitMode.COMMIT)) as sandbox:
        for seconds in (30, 0.2):
            await shell(sandbox, "sleep 1", seconds=seconds)
    assert sorted(str(path) for path in root.rglob("*")) == before
