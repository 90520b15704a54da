"""One command from its start to the end of the last process that it began.

In: a `Start`. Out: `Finished`, when nothing of it runs any more, whatever happened: the end of the command, a limit,
the time, or the task's cancellation. `launch` starts it, `limits` watches, `output` takes what is printed.

A command that prints more than is kept is ended: what is kept is always everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox.launch import GO, READY, Launched, Start, Watch, launch
from toolcrib.workspace.sandbox.means import remedy_for
from toolcrib.workspace.sandbox.model import Ending, Finished
from toolcrib.workspace.sandbox.output import Kept, Stream
from toolcrib.workspace.sandbox.patience import to_the_end

OnOutput = Callable[[str, bytes], None]

MOST_REPORT = 8 * 1024 * 1024
AFTER_SECONDS = 2.0
"""For pipes to close after the last process; outside a sandbox somebody may have run away with one."""
_PIECE = 256 * 1024


class Tree:
    """A command and all that it starts."""

    def __init__(self, start: Start, kept: Kept | None, on_output: OnOutput | None) -> None:
        self._start = start
        self._kept = kept
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._printed = {"stdout": Stream(), "stderr": Stream()}
        self._report = bytearray()
        self._complaint = bytearray()
        """Of `inner`, which then has run nothing."""
        self._launched: Launched
        self._reading: set[int] = set()
        self._waiting: dict[int, int] = {}
        """pidfds of processes that have not ended, by pid."""
        self._first: int | None = None
        """The first process of the tree; its end is the end of all."""
        self._watch: Watch | None = None
        self._ending: Ending | None = None
        self._gone = asyncio.Event()
        self._drained = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._began = time.monotonic()

    async def run(self) -> Finished:
        self._launch()
        try:
            await self._gone.wait()
        except asyncio.CancelledError:
            self.end(Ending.CANCELLED)
            await to_the_end(self._gone.wait())
            raise
        finally:
            await to_the_end(self._close())
        return self._finished()

    def end(self, why: Ending) -> None:
        """Ends all of it now, or as soon as it stands. The first reason stays."""
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
        self._timers["time"] = self._loop.call_later(self._start.seconds, self.end, Ending.TIMEOUT)

    def _control(self) -> None:
        """`inner` says that it waits, then perhaps what is wrong; it closes when it becomes the command."""
        try:
            said, pid = self._launched.hear()
        except BlockingIOError:
            return
        if not said:
            self._loop.remove_reader(self._launched.control)
        elif self._watch is None and not self._complaint and said == READY:
            self._stands(pid)
        else:
            self._complaint += said

    def _stands(self, inner: int) -> None:
        """`inner` waits: the tree gets its limits before it may go on."""
        starter = self._launched.process.pid
        try:
            first = inner if self._start.wrapping is None else _parent_of(inner)
            if self._start.wrapping is not None and _parent_of(first) != starter:
                # No bubblewrap that we know, and what we would end with it might be ourselves.
                raise OSError("what was started is no sandbox")
            self._first = self._waiting.get(first) or self._wait_for(first)
            self._watch = self._start.watch(first)
            self._watch.begin(inner)
        except OSError as error:
            self._complaint += f"limits cannot be set: {error}".encode()
            self._launched.process.kill()
            self.end(Ending.EXITED)
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
            # It may have come to stand, and ended, since we last listened.
            self._control()
        if self._start.wrapping is None:
            self._kill(descriptor)
        elif descriptor == self._first:
            # Where we are the system's first process, what bubblewrap leaves is ours to bury.
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
            # No namespace ends with its first process here.
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
            chunk = chunk[: max(0, MOST_REPORT - len(self._report))]
            self._report += chunk
            if chunk and self._on_output is not None:
                self._on_output(name, chunk)

    def _print(self, name: str, chunk: bytes) -> None:
        room = self._start.most_output - sum(stream.total for stream in self._printed.values())
        if len(chunk) > room:
            self.end(Ending.OUTPUT)
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
            # The kernel ends a process for want of memory at once, and we look only now and then.
            with contextlib.suppress(OSError):
                self._ending = self._ending or self._watch.passed()
            self._watch.end()
        if self._kept is not None:
            self._kept.close()

    def _finished(self) -> Finished:
        code = self._launched.process.wait()
        ending = self._ending or Ending.EXITED
        if self._complaint:
            raise not_run(self._complaint.decode(errors="replace"))
        if ending is Ending.EXITED and self._watch is None:
            raise not_run(self._printed["stderr"].captured(None).text(2000).strip())
        by_itself = ending is Ending.EXITED
        # bubblewrap says 128 + the signal, as shells do.
        number = -code if code < 0 else code - 128 if 128 < code <= 128 + 64 else None
        kept = self._kept.path if self._kept else None
        return Finished(
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


def not_run(why: str) -> WorkspaceError:
    return WorkspaceError(
        f"The sandbox could not be made, and nothing was run: {why}", remedy=remedy_for(why), data={"reason": why}
    )
