"""A program that runs for us: what it prints, line by line, and the end of its whole tree.

In: words, an environment, a folder, what it reads. Out: `RunningProgram`: lines in the order of their arrival, an exit
code, and, once it is over or stopped, no process, thread or open file. `servers.reaper` ends trees, also after
`kill -9` of us. `run_lifecycle` is above.

Neither asyncio's nor uvloop's own subprocesses: some give the program a socket to read from instead of a pipe, or want
a watcher of the main thread's; a run may be in any loop of any thread.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import enum
import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolcrib.errors import ToolcribError
from toolcrib.servers import reaper_child
from toolcrib.servers.environment import MARKER
from toolcrib.servers.reaper import Reaper, guarded

log = logging.getLogger(__name__)

LONGEST_PIECE = 32 * 1024 * 1024
"""Bytes; a longer line comes in pieces."""
_UNREAD = 1024 * 1024
"""Bytes that are taken in before somebody wants them; after that the program waits."""
_AT_ONCE = 64 * 1024
_PIPE = 1024 * 1024
"""Bytes that the program's stdout holds: the most that Linux gives everybody. Gemini CLI ends without waiting until
what it printed last is taken, so what does not fit then is lost."""
_FULLEST_PIPE = 2 * 1024 * 1024
"""Bytes that a pipe without a writer can still hold, generously."""
_GRACE = 3.0
_LAST_WORDS = 0.4
"""Seconds that others of the tree may still print, or hold its pipes, after the program's own end."""
_AFTER_KILL = 5.0
"""Seconds after which what cannot even be killed (it hangs in the kernel) is not waited for any more."""


class ProgramStream(enum.StrEnum):
    OUT = "out"
    ERR = "err"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputLine:
    stream: ProgramStream
    text: str
    partial: bool = False
    """The line is too long for one piece: the next one of this stream goes on where this ends."""


class _LineCutter:
    """Bytes of one stream → its lines. A character that falls into two chunks or pieces stays whole."""

    def __init__(self, stream: ProgramStream) -> None:
        self._stream = stream
        self._parts: list[bytes] = []
        self._size = 0
        self._within = False
        """Pieces of the line that is being read have gone out already."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, chunk: bytes) -> Iterator[OutputLine]:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield from self._kept(part)
            yield self._line(partial=False)
        yield from self._kept(rest)

    def rest(self) -> Iterator[OutputLine]:
        """What came after the last line end."""
        if self._parts or self._within:
            yield self._line(partial=False)

    def _kept(self, part: bytes) -> Iterator[OutputLine]:
        while self._size + len(part) > LONGEST_PIECE:
            room = LONGEST_PIECE - self._size
            self._parts.append(part[:room])
            part = part[room:]
            yield self._line(partial=True)
        if part:
            self._parts.append(part)
            self._size += len(part)

    def _line(self, *, partial: bool) -> OutputLine:
        text = self._decoder.decode(b"".join(self._parts), final=not partial)
        self._parts, self._size, self._within = [], 0, partial
        return OutputLine(stream=self._stream, text=text, partial=partial)


class RunningProgram:
    """One program. All of it belongs to the loop that it was started in; one task at a time reads its lines."""

    def __init__(self, process: subprocess.Popen[bytes], reaper: Reaper, marker: str, stdin: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._reaper = reaper
        self._marker = marker
        self._unwritten = memoryview(stdin)
        self._pipes: dict[ProgramStream, int] = {}
        """Those that are open."""
        self._chunks: deque[tuple[ProgramStream, bytes]] = deque()
        self._unread = 0
        self._cuts = {stream: _LineCutter(stream) for stream in ProgramStream}
        self._lines: deque[OutputLine] = deque()
        self._news = asyncio.Event()
        self._silent = asyncio.Event()
        """Set when both output pipes have ended."""
        self._exited = asyncio.Event()
        self._over = asyncio.Event()
        """Set when the whole tree is gone and all that it printed is here."""
        self._watch = threading.Thread(target=self._wait, name=f"toolcrib-run-{process.pid}", daemon=True)

    @classmethod
    async def start(cls, argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdin: str) -> RunningProgram:
        """Raises ToolcribError if it cannot be started."""
        reaper = Reaper()
        marker = reaper.new_marker()
        try:
            # Before the program: whatever happens to us from here on, the helper finds the marker.
            reaper.start()
            process = _popen(argv, {**environ, MARKER: marker}, cwd)
            _enlarge(process.stdout)
            reaper.watch(process.pid)
            running = cls(process, reaper, marker, stdin.encode(errors="replace"))
            running._begin()
        except OSError as error:
            await asyncio.to_thread(reaper.close)
            raise ToolcribError(
                f"{argv[0]} cannot be started in {cwd}: {error.strerror or error}.",
                remedy="Look whether both are there and may be used.",
            ) from None
        except ValueError as error:
            await asyncio.to_thread(reaper.close)
            raise ToolcribError(
                f"{argv[0]} cannot be started: {error}.", remedy="Look at the words and variables given to it."
            ) from None
        return running

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number where one ended it."""
        return self._process.returncode

    async def lines(self) -> AsyncIterator[OutputLine]:
        """What it prints. Ends when the program has ended and nothing of it is left, about a second later at most.

        Whoever stops reading may begin again: the next call goes on with the next line.
        """
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._chunks:
                stream, chunk = self._chunks.popleft()
                self._lines.extend(self._cuts[stream].feed(chunk) if chunk else self._cuts[stream].rest())
                was_full = self._is_full
                self._unread -= len(chunk)
                if was_full and not self._is_full:
                    self._listen()
            elif self._over.is_set():
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def stop(self, *, grace: float = _GRACE) -> None:
        """Asks the tree to end, then ends it; returns when it is gone. What was printed can still be read.

        It is asked by SIGINT first: coding agents then note in their session that they were interrupted, and tell what
        was used up until then; SIGTERM just ends them. That comes next, for a program may ignore the other one.
        """
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                if not self._exited.is_set():
                    reaper_child.signal_group(self.pid, number)
                    await _within(self._exited, grace / 2)
        finally:
            # Also when this task is cancelled: nobody may come a second time.
            if not self._exited.is_set():
                reaper_child.signal_group(self.pid, signal.SIGKILL)
        if not await _within(self._over, _AFTER_KILL):
            log.warning("process %s was killed, but does not end", self.pid)

    def _begin(self) -> None:
        process = self._process
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("a program without pipes")
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._pipes = {ProgramStream.OUT: process.stdout.fileno(), ProgramStream.ERR: process.stderr.fileno()}
        self._loop.add_writer(process.stdin.fileno(), self._write, process.stdin.fileno())
        self._listen()
        self._watch.start()
        self._ending = self._loop.create_task(self._end())

    def _wait(self) -> None:
        self._process.wait()
        # A loop that was closed without waiting for us does not want to know.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited.set)

    def _write(self, descriptor: int) -> None:
        try:
            self._unwritten = self._unwritten[os.write(descriptor, self._unwritten[:_AT_ONCE]) :]
        except BlockingIOError:
            return
        except OSError:
            # It does not want to read; what it thinks of that, it prints.
            self._unwritten = self._unwritten[:0]
        if not self._unwritten:
            self._close_stdin()

    def _close_stdin(self) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            self._loop.remove_writer(stdin.fileno())
            stdin.close()

    @property
    def _is_full(self) -> bool:
        return self._unread >= _UNREAD

    def _listen(self) -> None:
        for stream, descriptor in self._pipes.items():
            self._loop.add_reader(descriptor, self._take, stream)

    def _take(self, stream: ProgramStream) -> int:
        """Takes in what there is; returns how much."""
        try:
            chunk = os.read(self._pipes[stream], _AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError as error:
            log.warning("the output of process %s cannot be read: %s", self.pid, error)
            chunk = b""
        self._chunks.append((stream, chunk))
        self._unread += len(chunk)
        self._news.set()
        if not chunk:
            self._loop.remove_reader(self._pipes.pop(stream))
            if not self._pipes:
                self._silent.set()
        elif self._is_full:
            for descriptor in self._pipes.values():
                self._loop.remove_reader(descriptor)
        return len(chunk)

    async def _end(self) -> None:
        try:
            await self._exited.wait()
            await _within(self._silent, _LAST_WORDS)
        finally:
            # Also when the loop is being closed while the program runs.
            try:
                await asyncio.shield(asyncio.to_thread(self._end_tree))
            finally:
                self._close()

    def _end_tree(self) -> None:
        self._reaper.end(self.pid, self._marker)
        self._reaper.close()
        self._watch.join(_AFTER_KILL)

    def _close(self) -> None:
        """Takes in what still is in the pipes, whether or not anybody reads, and closes them."""
        self._close_stdin()
        for stream in tuple(self._pipes):
            taken = 0
            while taken < _FULLEST_PIPE and (more := self._take(stream)):
                taken += more
            if stream in self._pipes:
                # Somebody who hid from us holds it; what comes after the program's end is not the program's.
                self._loop.remove_reader(self._pipes.pop(stream))
                self._chunks.append((stream, b""))
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._over.set()
        self._news.set()


def _popen(argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    if shutil.which(argv[0], path=environ.get("PATH")) is None:
        why = errno.EACCES if Path(argv[0]).exists() else errno.ENOENT
        raise OSError(why, os.strerror(why))
    return subprocess.Popen(
        guarded(argv),
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _enlarge(pipe: IO[bytes] | None) -> None:
    # A user who has many pipes is refused, and only Linux can: the program has one of the usual size then.
    with contextlib.suppress(OSError, AttributeError):
        if pipe is not None:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)


async def _within(event: asyncio.Event, limit: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), limit)
    return event.is_set()
