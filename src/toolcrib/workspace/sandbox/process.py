"""One command from its start to the end of its last process.

In: a `LaunchPlan`. Out: a `SandboxResult` when all its processes have ended, because the command finished, exceeded a
limit or its time, or the task was cancelled. `command` starts it, `limits` watches it.

The beginning and end of its output are kept in memory. Long output is also stored in full in a file in
`.toolcrib/output`, which commands can read but not write; in read-only mode there is no file. The oldest files are
deleted when there are too many. A command that prints more than fits into the file is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.atomic_write import open_own_folder
from toolcrib.workspace.folder import Folder, FolderPath
from toolcrib.workspace.sandbox.command import (
    GO,
    READY,
    CapturedOutput,
    CommandEnding,
    LaunchedProcess,
    LaunchPlan,
    LimitWatch,
    SandboxResult,
    launch,
)
from toolcrib.workspace.sandbox.survey import TOOLCRIB
from toolcrib.workspace.sandbox.system import sandbox_remedy

Result = TypeVar("Result")


async def finish_even_if_cancelled(work: Coroutine[Any, Any, Result]) -> Result:
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: S112 - the task keeps it; `result` raises it
            continue
    if cancelled is not None:
        raise cancelled
    return task.result()


async def finish_in_thread(act: Callable[[], Result]) -> Result:
    return await finish_even_if_cancelled(asyncio.to_thread(act))


OUTPUT_FOLDER = f"{TOOLCRIB}/output"
MAX_OUTPUT_FILES = 40
HEAD_BYTES, TAIL_BYTES = 768 * 1024, 256 * 1024
"""Bytes of each stream kept in memory."""
LAST_NUMBER = 999_999
"""Highest number of a file. Only a crafted repository reaches it; then lower free numbers are used."""
_LOG = re.compile(r".+-([0-9]{1,6})\.log", re.DOTALL)


class OutputStream:
    """One stream: its first and last bytes, and its length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def take(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)
            while self._tail_size - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_size -= len(self._tail.popleft())

    def captured(self, kept: str | None) -> CapturedOutput:
        tail = b"".join(self._tail)
        if len(self._head) + len(tail) < self.total:
            tail = tail[-TAIL_BYTES:]
        return CapturedOutput(head=bytes(self._head), tail=tail, total=self.total, kept=kept)


class OutputFile:
    """The file with the full output. It is created once there is more than a model gets."""

    def __init__(self, folder: Folder, name: str, *, after: int) -> None:
        self._folder = folder
        self._name = re.sub(r"[^A-Za-z0-9_]+", "-", name)[:60] or "command"
        self._after = after
        self._waiting: list[bytes] = []
        self._total = 0
        self._file = -1
        self.path: str | None = None

    def take(self, chunk: bytes) -> None:
        self._total += len(chunk)
        if self._file < 0:
            self._waiting.append(chunk)
            if self._total <= self._after:
                return
            self._open()
            chunk = b"".join(self._waiting)
            self._waiting.clear()
        with contextlib.suppress(OSError):
            os.write(self._file, chunk)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        """If the file cannot be created, output is only truncated; the command continues."""
        try:
            place = _open_place(self._folder)
            try:
                self._file = self._make_in(place)
            finally:
                os.close(place)
        except (OSError, WorkspaceError):
            self._file = os.open(os.devnull, os.O_WRONLY)

    def _make_in(self, place: int) -> int:
        logs = sorted(_logs(place))
        for _, old in logs[: max(0, len(logs) - MAX_OUTPUT_FILES + 1)]:
            with contextlib.suppress(OSError):
                os.unlink(old, dir_fd=place)
        name = f"{self._name}-{_next_number([number for number, _ in logs])}.log"
        made = _make(name, place, self._folder)
        self.path = f"{OUTPUT_FOLDER}/{name}"
        return made


def _logs(place: int) -> list[tuple[int, str]]:
    found = [(_LOG.fullmatch(name), name) for name in os.listdir(place)]
    return [(int(match[1]), name) for match, name in found if match]


def _next_number(taken: list[int]) -> int:
    highest = max(taken, default=0)
    if highest < LAST_NUMBER:
        return highest + 1
    return next(number for number in itertools.count(1) if number not in taken)


def _open_place(folder: Folder) -> int:
    place = open_own_folder(folder, FolderPath(tuple(OUTPUT_FOLDER.split("/"))))
    with contextlib.suppress(FileExistsError):
        ignore = _make(".gitignore", place, folder)
        os.write(ignore, b"*\n")
        os.close(ignore)
    return place


def _make(name: str, place: int, folder: Folder) -> int:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=place)
    if os.geteuid() == 0:
        os.fchown(descriptor, *folder.owner)
    return descriptor


OnOutput = Callable[[str, bytes], None]

MAX_REPORT = 8 * 1024 * 1024
AFTER_SECONDS = 2.0
"""Seconds for pipes to close after the last process; without a sandbox an escaped process may hold one."""
_PIECE = 256 * 1024


class ProcessTree:
    """A command and its descendants."""

    def __init__(self, start: LaunchPlan, kept: OutputFile | None, on_output: OnOutput | None) -> None:
        self._start = start
        self._kept = kept
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._printed = {"stdout": OutputStream(), "stderr": OutputStream()}
        self._report = bytearray()
        self._complaint = bytearray()
        """An error from `inner`, which then ran nothing."""
        self._launched: LaunchedProcess
        self._reading: set[int] = set()
        self._waiting: dict[int, int] = {}
        """pidfds of running processes, by pid."""
        self._first: int | None = None
        """pidfd of the first process; when it ends, all end."""
        self._watch: LimitWatch | None = None
        self._ending: CommandEnding | None = None
        self._gone = asyncio.Event()
        self._drained = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._began = time.monotonic()

    async def run(self) -> SandboxResult:
        self._launch()
        try:
            await self._gone.wait()
        except asyncio.CancelledError:
            self.end(CommandEnding.CANCELLED)
            await finish_even_if_cancelled(self._gone.wait())
            raise
        finally:
            await finish_even_if_cancelled(self._close())
        return self._finished()

    def end(self, why: CommandEnding) -> None:
        """Kills all processes now, or once they have started. The first reason is kept."""
        self._ending = self._ending or why
        if self._first is not None:
            self._kill(self._first)

    async def gone(self) -> None:
        await self._gone.wait()

    def _launch(self) -> None:
        self._launched = launch(self._start)
        for name, end in self._launched.pipes.items():
            self._loop.add_reader(end, self._readable, end, name)
            self._reading.add(end)
        self._loop.add_reader(self._launched.control, self._control)
        self._wait_for(self._launched.process.pid)
        self._timers["time"] = self._loop.call_later(self._start.seconds, self.end, CommandEnding.TIMEOUT)

    def _control(self) -> None:
        """Reads from `inner`: that it is ready, or an error. The socket closes when the command starts."""
        try:
            message, pid = self._launched.receive()
        except BlockingIOError:
            return
        if not message:
            self._loop.remove_reader(self._launched.control)
        elif self._watch is None and not self._complaint and message == READY:
            self._made(pid)
        else:
            self._complaint += message

    def _made(self, inner: int) -> None:
        """`inner` is ready: sets the limits of the tree, then lets it continue."""
        starter = self._launched.process.pid
        try:
            first = inner if self._start.wrapping is None else _parent_of(inner)
            if self._start.wrapping is not None and _parent_of(first) != starter:
                # Not a bubblewrap that we know; killing its parent might kill us.
                raise OSError("the started program is not a sandbox")
            self._first = self._waiting.get(first) or self._wait_for(first)
            self._watch = self._start.watch(first)
            self._watch.begin(inner)
        except OSError as error:
            self._complaint += f"limits cannot be set: {error}".encode()
            self._launched.process.kill()
            self.end(CommandEnding.EXITED)
        if self._ending is not None:
            self.end(self._ending)
        else:
            with contextlib.suppress(OSError):
                self._launched.control.send(GO)
            self._look()

    def _look(self) -> None:
        if self._watch is None or self._gone.is_set():
            return
        with contextlib.suppress(OSError):
            if why := self._watch.passed():
                self.end(why)
        self._timers["look"] = self._loop.call_later(self._watch.tick, self._look)

    def _wait_for(self, pid: int) -> int | None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        self._waiting[pid] = descriptor
        self._loop.add_reader(descriptor, self._ended, pid, descriptor)
        return descriptor

    def _ended(self, pid: int, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        if self._watch is None:
            # It may have started and ended since we last read.
            self._control()
        if self._start.wrapping is None:
            self._kill(descriptor)
        elif descriptor == self._first:
            # If we are pid 1, we have to reap the processes that bubblewrap leaves.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
        del self._waiting[pid]
        os.close(descriptor)
        if descriptor == self._first:
            self._first = None
        if not self._waiting:
            self._gone.set()

    def _kill(self, descriptor: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if self._start.wrapping is None:
            # There is no pid namespace that ends with its first process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._launched.process.pid, signal.SIGKILL)

    def _readable(self, descriptor: int, name: str) -> None:
        try:
            chunk = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(descriptor)
            self._reading.discard(descriptor)
            if not self._reading:
                self._drained.set()
        elif name in self._printed:
            self._print(name, chunk)
        else:
            chunk = chunk[: max(0, MAX_REPORT - len(self._report))]
            self._report += chunk
            if chunk and self._on_output is not None:
                self._on_output(name, chunk)

    def _print(self, name: str, chunk: bytes) -> None:
        room = self._start.max_output - sum(stream.total for stream in self._printed.values())
        if len(chunk) > room:
            self.end(CommandEnding.OUTPUT)
            chunk = chunk[: max(0, room)]
        if not chunk:
            return
        self._printed[name].take(chunk)
        if self._kept is not None:
            self._kept.take(chunk)
        if self._on_output is not None:
            self._on_output(name, chunk)

    async def _close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER_SECONDS):
                await self._drained.wait()
        for descriptor in self._launched.pipes.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._loop.remove_reader(self._launched.control)
        self._launched.control.close()
        self._launched.process.wait()
        if self._watch is not None:
            # The kernel kills a process out of memory at once, but we only check periodically.
            with contextlib.suppress(OSError):
                self._ending = self._ending or self._watch.passed()
            self._watch.end()
        if self._kept is not None:
            self._kept.close()

    def _finished(self) -> SandboxResult:
        code = self._launched.process.wait()
        ending = self._ending or CommandEnding.EXITED
        if self._complaint:
            raise not_run_error(self._complaint.decode(errors="replace"))
        if ending is CommandEnding.EXITED and self._watch is None:
            raise not_run_error(self._printed["stderr"].captured(None).text(2000).strip())
        by_itself = ending is CommandEnding.EXITED
        # bubblewrap returns 128 + the signal, like shells.
        number = -code if code < 0 else code - 128 if 128 < code <= 128 + 64 else None
        kept = self._kept.path if self._kept else None
        return SandboxResult(
            ending=ending,
            code=code if by_itself and code >= 0 else None,
            signal=number if by_itself else None,
            stdout=self._printed["stdout"].captured(kept),
            stderr=self._printed["stderr"].captured(kept),
            report=bytes(self._report),
            seconds=time.monotonic() - self._began,
        )


def _parent_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def not_run_error(why: str) -> WorkspaceError:
    return WorkspaceError(
        f"The sandbox could not be created, and nothing was run: {why}",
        remedy=sandbox_remedy(why),
        data={"reason": why},
    )
