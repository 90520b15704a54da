"""A program's lines arrive completely, in order and within limits, and no process is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop

from parts import leftovers
from parts.waiting import wait_for
from toolcrib.coding_agents import program_process
from toolcrib.coding_agents.program_process import OutputLine, ProgramStream, RunningProgram
from toolcrib.errors import ToolcribError
from toolcrib.servers import reaper_child

pytestmark = pytest.mark.req("FRG-10")

LIMIT = 60.0
SLEEPER = "import time; print('ready'); time.sleep(600)"
needs_proc = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="/proc has the number of written bytes")
ENVIRON = {"PATH": os.environ["PATH"], leftovers.RUN_NAME: os.environ[leftovers.RUN_NAME]}


@pytest.fixture(autouse=True)
def no_thread_and_no_open_file_left() -> Iterator[None]:
    # The first loop opens a pipe that all later ones share.
    uvloop.new_event_loop().close()
    files = open_files()
    yield
    wait_for(lambda: not runners() and open_files() <= files, "the ends of threads and pipes")


def runners() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("toolcrib-run")]


def open_files() -> int:
    """The number of pipes; 0 without /proc."""
    folder = leftovers.PROC / "self" / "fd"
    return sum("pipe:" in str(entry.readlink()) for entry in folder.glob("*") if entry.is_symlink())


async def python(code: str, *args: str, stdin: str = "", cwd: Path = Path("/")) -> RunningProgram:
    argv = [sys.executable, "-I", "-S", "-u", "-c", textwrap.dedent(code), *args]
    return await RunningProgram.start(argv, environ=ENVIRON, cwd=cwd, stdin=stdin)


async def read(running: RunningProgram) -> list[OutputLine]:
    async with asyncio.timeout(LIMIT):
        return [line async for line in running.lines()]


async def texts(running: RunningProgram) -> list[str]:
    return [line.text for line in await read(running)]


async def first(running: RunningProgram) -> str:
    """The next line; the others can still be read."""
    async with asyncio.timeout(LIMIT), contextlib.aclosing(running.lines()) as lines:
        return (await anext(lines)).text


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, what, LIMIT)


class Written:
    """True once a program has written something, and nothing more for a while."""

    def __init__(self, running: RunningProgram) -> None:
        self._guard = running.pid
        self._same = 0
        self.bytes = 0

    def __call__(self) -> bool:
        program = next(iter(reaper_child.descendants_of(self._guard)), self._guard)
        now = int((leftovers.PROC / str(program) / "io").read_text().split("wchar:")[1].split()[0])
        self._same = self._same + 1 if now == self.bytes else 0
        self.bytes = now
        return now > 100_000 and self._same > 10


def exists(pid: int) -> bool:
    """Whether there is a process, even a zombie."""
    return (leftovers.PROC / str(pid)).exists()


def is_alive(pid: int) -> bool:
    return leftovers.read(pid) is not None


def own_children() -> set[int]:
    """Including those of other tests, such as a shared database."""
    return {one.pid for one in leftovers.living() if one.parent == os.getpid()}


async def test_a_program_reads_its_input_and_prints_lines_on_both_streams():
    running = await python(
        """
        import sys
        print(sys.stdin.read()); print("äöü ✓"); print("", file=sys.stderr); print("no end", end="", file=sys.stderr)
        sys.exit(7)
        """,
        stdin="-p is no option\nbut a prompt ✓",
    )
    lines = await read(running)
    found = {stream: [line.text for line in lines if line.stream is stream] for stream in ProgramStream}
    assert found == {
        ProgramStream.OUT: ["-p is no option", "but a prompt ✓", "äöü ✓"],
        ProgramStream.ERR: ["", "no end"],
    }
    assert running.exit_code == 7
    assert not exists(running.pid)


async def test_lines_of_each_stream_are_in_order():
    running = await python(
        """
        import sys
        for n in range(200):
            print(n, file=(sys.stdout, sys.stderr)[n % 2])
            sys.stdin.read(1)
        """,
        stdin="x" * 200,
    )
    lines = await read(running)
    for number, stream in enumerate((ProgramStream.OUT, ProgramStream.ERR)):
        assert [int(line.text) for line in lines if line.stream is stream] == list(range(number, 200, 2))


@pytest.mark.parametrize(
    ("code", "stdin", "lines"),
    [
        ("print(open('/dev/stdin').read())", "hello", ["hello"]),
        ("print('never read')", "x" * 5_000_000, ["never read"]),
        ("import os; os.close(0); print('closed')", "x" * 5_000_000, ["closed"]),
        ("import sys; print(len(sys.stdin.buffer.read()))", "ä" * 3_000_000, ["6000000"]),
        ("import os; os.write(1, b'a\\xff\\xfeb\\n' + os.read(0, 99))", "\ud800!", ["a\ufffd\ufffdb", "?!"]),
    ],
    ids=["by name", "never read", "closed", "long", "not UTF-8"],
)
async def test_input_and_output_of_any_kind_do_not_block(code: str, stdin: str, lines: list[str]):
    running = await python(code, stdin=stdin)
    assert await texts(running) == lines
    assert running.exit_code == 0


async def test_a_line_that_is_too_long_is_split(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_process, "MAX_PIECE_SIZE", 1000)
    running = await python("print('kurz'); print('ä€😀' * 1000); print('b' * 1000); print('c' * 1001, end='')")
    lines = await read(running)
    assert not lines[0].partial
    assert all(len(line.text.encode()) <= 1000 + 3 for line in lines)
    whole = "".join(line.text if line.partial else f"{line.text}\n" for line in lines)
    assert whole.splitlines() == ["kurz", "ä€😀" * 1000, "b" * 1000, "c" * 1001]
    assert [line.partial for line in lines].count(True) == 9


async def test_a_line_of_forty_megabytes_comes_in_two_pieces():
    most = program_process.MAX_PIECE_SIZE
    running = await python("import sys; sys.stdout.write('x' * 40_000_000 + '\\n' + 'y')")
    found = [(len(line.text), line.partial) for line in await read(running)]
    assert found == [(most, True), (40_000_000 - most, False), (1, False)]


@needs_proc
async def test_an_unread_program_waits_and_uses_little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    running = await python(
        """
        import sys
        for n in range(100):
            sys.stdout.write(("x" * 9_999 + "\\n") * 100)
        """
    )
    try:
        written = Written(running)
        await until(written, "the program to wait")
        assert written.bytes < 3_000_000
        assert running.exit_code is None
        count = 0
        async with asyncio.timeout(LIMIT):
            async for line in running.lines():
                assert len(line.text) == 9_999
                count += 1
        assert count == 10_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000
    finally:
        await running.stop()
    assert running.exit_code == 0


@needs_proc
async def test_an_unread_program_can_be_stopped():
    running = await python("while True: print('x' * 1000)")
    await until(Written(running), "the program to wait")
    await running.stop()
    assert running.exit_code == -signal.SIGINT
    assert not exists(running.pid)
    assert len(await read(running)) > 1000


async def test_unread_output_can_be_read_after_the_end():
    others = own_children()
    running = await python("print('a'); print('b' * 1_100_000); import sys; print('c', file=sys.stderr)")
    await until(lambda: running.exit_code is not None and not runners() and own_children() <= others, "its end")
    assert running.exit_code == 0
    assert sorted(await texts(running)) == ["a", "b" * 1_100_000, "c"]


async def test_reading_can_be_cancelled_and_resumed_without_loss():
    running = await python("for n in range(3000): print(n)")
    found: list[str] = []

    async def take() -> None:
        async for line in running.lines():
            found.append(line.text)
            await asyncio.sleep(0)

    async with asyncio.timeout(LIMIT):
        while len(found) < 2500:
            task = asyncio.create_task(take())
            for _ in range(7):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    assert found + await texts(running) == list(map(str, range(3000)))


@pytest.mark.parametrize(("handled", "ignored"), [("SIGINT", "SIGTERM"), ("SIGTERM", "SIGINT")])
async def test_stop_signals_first_and_keeps_the_last_output(handled: str, ignored: str):
    running = await python(
        f"""
        import signal, sys
        def leave(*_):
            print("session written"); sys.exit(5)
        signal.signal(signal.{ignored}, signal.SIG_IGN)
        signal.signal(signal.{handled}, leave)
        print("ready")
        while True: signal.pause()
        """
    )
    assert await first(running) == "ready"
    await running.stop(grace=1)
    assert running.exit_code == 5
    assert await texts(running) == ["session written"]
    await running.stop()


async def test_stop_kills_a_program_that_ignores_signals_and_its_descendants():
    running = await python(
        """
        import os, signal, sys, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.write(1, b'%d\\n' % os.getpid())
            time.sleep(600)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(1, b'%d\\n' % os.getpid())
                time.sleep(600)
            os._exit(0)
        time.sleep(600)
        """
    )
    pids = [int(await first(running)) for _ in range(2)]
    assert all(map(is_alive, pids))
    await running.stop(grace=0.2)
    assert running.exit_code == -signal.SIGKILL
    assert not any(map(is_alive, pids))
    assert not exists(running.pid)


@pytest.mark.parametrize("leaves", ["", "os.setsid()"])
async def test_reading_ends_soon_after_the_program_even_if_a_descendant_keeps_its_pipes(leaves: str):
    running = await python(
        f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            {leaves}
            os.write(1, b'%d\\n' % os.getpid())
            time.sleep(600)
            os._exit(0)
        os.write(1, b'done\\n')
        os._exit(3)
        """
    )
    (pid,) = [int(text) for text in await texts(running) if text != "done"]
    assert not is_alive(pid)
    assert running.exit_code == 3


async def test_a_descendant_without_session_and_environment_ends_with_the_program():
    files = open_files()
    running = await python(
        """
        import os, sys
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.dup2(writing, 9)
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-u", "-c", '''if True:
                import os, time
                os.write(1, b"%d\\\\n" % os.getpid())
                os.close(9)
                time.sleep(600)'''], {})
        os.close(writing)
        os.read(reading, 1)
        """,
        stdin="x" * 1_000_000,
    )
    hidden = int(await first(running))
    assert await read(running) == []
    assert running.exit_code == 0
    assert not is_alive(hidden)
    assert open_files() <= files


async def test_a_remaining_descendant_is_ended_even_without_a_reader():
    running = await python(
        """
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            print(os.getpid())
            for stream in (0, 1, 2):
                os.close(stream)
            time.sleep(600)
        sys.stdin.read()
        """
    )
    pid = int(await first(running))
    await until(lambda: not is_alive(pid) and not runners(), "the descendant's end")


async def test_a_program_that_ends_at_once_can_be_read_and_stopped():
    for _ in range(8):
        running = await RunningProgram.start(["/bin/true"], environ=ENVIRON, cwd=Path("/"), stdin="x" * 1000)
        assert await read(running) == []
        await running.stop()
        assert running.exit_code == 0


async def test_programs_run_in_parallel_and_stopping_one_does_not_affect_the_others():
    echo = "import sys; print(sys.argv[1]); sys.stdin.read(); print(sys.argv[1])"
    sleeper = await python(SLEEPER)
    assert await first(sleeper) == "ready"
    others = [await python(echo, str(n), stdin="go") for n in range(8)]
    await sleeper.stop()
    assert await asyncio.gather(*map(texts, others)) == [[str(n)] * 2 for n in range(8)]
    assert [other.exit_code for other in others] == [0] * 8


async def test_cancelling_stop_kills_at_once():
    running = await python(
        """
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ready")
        while True: signal.pause()
        """
    )
    assert await first(running) == "ready"
    stopping = asyncio.create_task(running.stop(grace=600))
    await asyncio.sleep(0)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping
    await until(lambda: not exists(running.pid), "its end")
    assert running.exit_code == -signal.SIGKILL


async def test_a_program_that_cannot_be_started_is_an_error_and_leaves_nothing(tmp_path: Path):
    others = own_children()
    (tmp_path / "text").write_text("no program")
    for args, cwd, why in (
        (["/no/such/program"], tmp_path, "No such file"),
        ([str(tmp_path / "text")], tmp_path, "Permission denied"),
        (["/bin/true"], tmp_path / "gone", "No such file"),
        (["/bin/true", "a\0b"], tmp_path, "null byte"),
        (["/bin/true", "x" * 5_000_000], tmp_path, "too long"),
    ):
        with pytest.raises(ToolcribError, match=why):
            await RunningProgram.start(args, environ=ENVIRON, cwd=cwd, stdin="")
    assert own_children() <= others


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_runs_in_any_loop_of_any_thread(loops: Callable[[], asyncio.AbstractEventLoop]):
    async def whole() -> list[str]:
        running = await python("import sys; print(sys.stdin.read()); print('e', file=sys.stderr)", stdin="hello")
        sleeper = await python(SLEEPER)
        assert await first(sleeper) == "ready"
        await sleeper.stop()
        assert sleeper.exit_code == -signal.SIGINT
        assert not exists(sleeper.pid)
        return await texts(running)

    with ThreadPoolExecutor(1) as pool, asyncio.Runner(loop_factory=loops) as runner:
        assert sorted(pool.submit(runner.run, whole()).result(LIMIT)) == ["e", "hello"]


def test_closing_the_loop_ends_the_program():
    async def leave_running() -> list[int]:
        running = await python(
            """
            import os, time
            if os.fork() == 0:
                os.setsid()
            os.write(1, b'%d\\n' % os.getpid())
            time.sleep(600)
            """
        )
        return [int(await first(running)), int(await first(running))]

    pids = asyncio.run(leave_running())
    assert len(set(pids)) == 2
    assert not any(map(is_alive, pids))


HOLDER = """
import asyncio, sys
from pathlib import Path
from toolcrib.coding_agents.program_process import RunningProgram

TREE = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
print(os.getpid(), flush=True)
time.sleep(600)
'''

async def main():
    running = await RunningProgram.start([sys.executable, "-I", "-c", TREE], environ=ENVIRON, cwd=Path("/"), stdin="")
    async for line in running.lines():
        print(line.text, flush=True)

asyncio.run(main())
"""


def test_killing_the_parent_with_sigkill_ends_all_descendants():
    code = HOLDER.replace("ENVIRON", repr(ENVIRON))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pids = [int(holder.stdout.readline()) for _ in range(3)]
        helpers = [one.pid for one in leftovers.living() if one.parent == holder.pid and one.pid not in pids]
        assert all(map(is_alive, pids))
        assert helpers
        holder.kill()
        holder.wait(LIMIT)
    wait_for(lambda: not any(map(is_alive, [*pids, *helpers])), "the whole tree to end")
