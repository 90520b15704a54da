"""A running program: its output, line by line, and the end of its whole process tree.

In: a command, an environment, a folder, standard input. Out: `RunningProgram`: lines in order of arrival and an exit
code. Once it has ended, no process, thread or open file remains. `servers.reaper` ends process trees, even after a
`kill -9` of this process. Used by `run_lifecycle`.

This uses neither asyncio's nor uvloop's subprocesses: some give the program a socket as standard input instead of a
pipe, or need a watcher in the main thread; a run may be in any loop of any thread.
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

MAX_PIECE_SIZE = 32 * 1024 * 1024
"""Bytes; a longer line is split into pieces."""
_MAX_UNREAD = 1024 * 1024
"""Bytes to buffer ahead of the reader; after that the program has to wait."""
_CHUNK_SIZE = 64 * 1024
_PIPE_SIZE = 1024 * 1024
"""Bytes that the stdout pipe holds: the most that Linux allows unprivileged users. Gemini CLI exits without waiting for
its last output to be read, so output that does not fit is lost."""
_MAX_PIPE_SIZE = 2 * 1024 * 1024
"""A generous upper bound for the bytes left in a pipe without a writer."""
_GRACE = 3.0
_OUTPUT_GRACE = 0.4
"""Seconds that child processes may still print, or hold the pipes, after the program has exited."""
_KILL_TIMEOUT = 5.0
"""Seconds to wait for a process that cannot be killed because it hangs in the kernel."""


class ProgramStream(enum.StrEnum):
    OUT = "out"
    ERR = "err"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputLine:
    stream: ProgramStream
    text: str
    partial: bool = False
    """The line is too long for one piece: the next piece of this stream continues it."""


class _LineCutter:
    """Bytes of one stream → its lines. Characters split across chunks or pieces stay intact."""

    def __init__(self, stream: ProgramStream) -> None:
        self._stream = stream
        self._parts: list[bytes] = []
        self._size = 0
        self._within = False
        """Whether pieces of the current line were already emitted."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, chunk: bytes) -> Iterator[OutputLine]:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield from self._kept(part)
            yield self._line(partial=False)
        yield from self._kept(rest)

    def rest(self) -> Iterator[OutputLine]:
        """The text after the last line ending."""
        if self._parts or self._within:
            yield self._line(partial=False)

    def _kept(self, part: bytes) -> Iterator[OutputLine]:
        while self._size + len(part) > MAX_PIECE_SIZE:
            room = MAX_PIECE_SIZE - self._size
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
    """One program. It belongs to the loop that started it; only one task at a time may read its lines."""

    def __init__(self, process: subprocess.Popen[bytes], reaper: Reaper, marker: str, stdin: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._reaper = reaper
        self._marker = marker
        self._unwritten = memoryview(stdin)
        self._pipes: dict[ProgramStream, int] = {}
        """The open ones."""
        self._chunks: deque[tuple[ProgramStream, bytes]] = deque()
        self._unread = 0
        self._cuts = {stream: _LineCutter(stream) for stream in ProgramStream}
        self._lines: deque[OutputLine] = deque()
        self._news = asyncio.Event()
        self._silent = asyncio.Event()
        """Set when both output pipes have ended."""
        self._exited = asyncio.Event()
        self._over = asyncio.Event()
        """Set when the whole tree is gone and all its output has been read."""
        self._watch = threading.Thread(target=self._wait, name=f"toolcrib-run-{process.pid}", daemon=True)

    @classmethod
    async def start(cls, argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdin: str) -> RunningProgram:
        """Raises ToolcribError if it cannot be started."""
        reaper = Reaper()
        marker = reaper.new_marker()
        try:
            # Before the program: whatever happens to this process from here on, the helper finds the marker.
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
                remedy="Check that both exist and that you have permission to use them.",
            ) from None
        except ValueError as error:
            await asyncio.to_thread(reaper.close)
            raise ToolcribError(
                f"{argv[0]} cannot be started: {error}.", remedy="Check its arguments and environment variables."
            ) from None
        return running

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.returncode

    async def lines(self) -> AsyncIterator[OutputLine]:
        """The printed lines. Ends when the whole process tree is gone, at most about a second after the program's exit.

        If you stop reading, a later call continues with the next line.
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
        """Signals the tree to exit, then kills it; returns when it is gone. Its output can still be read.

        SIGINT comes first: coding agents then record the interruption in their session and report their token usage,
        while SIGTERM just ends them. SIGTERM follows, because a program may ignore SIGINT.
        """
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                if not self._exited.is_set():
                    reaper_child.signal_group(self.pid, number)
                    await _within(self._exited, grace / 2)
        finally:
            # Also if this task is cancelled: there may be no second call.
            if not self._exited.is_set():
                reaper_child.signal_group(self.pid, signal.SIGKILL)
        if not await _within(self._over, _KILL_TIMEOUT):
            log.warning("process %s was killed but has not exited", self.pid)

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
        # The loop may have been closed without waiting for this thread.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited.set)

    def _write(self, descriptor: int) -> None:
        try:
            self._unwritten = self._unwritten[os.write(descriptor, self._unwritten[:_CHUNK_SIZE]) :]
        except BlockingIOError:
            return
        except OSError:
            # The program has closed its standard input; its output shows whether that is an error.
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
        return self._unread >= _MAX_UNREAD

    def _listen(self) -> None:
        for stream, descriptor in self._pipes.items():
            self._loop.add_reader(descriptor, self._take, stream)

    def _take(self, stream: ProgramStream) -> int:
        """Reads the available output; returns the number of bytes."""
        try:
            chunk = os.read(self._pipes[stream], _CHUNK_SIZE)
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
            await _within(self._silent, _OUTPUT_GRACE)
        finally:
            # Also if the loop is closed while the program runs.
            try:
                await asyncio.shield(asyncio.to_thread(self._end_tree))
            finally:
                self._close()

    def _end_tree(self) -> None:
        self._reaper.end(self.pid, self._marker)
        self._reaper.close()
        self._watch.join(_KILL_TIMEOUT)

    def _close(self) -> None:
        """Drains the pipes, whether or not there is a reader, and closes them."""
        self._close_stdin()
        for stream in tuple(self._pipes):
            taken = 0
            while taken < _MAX_PIPE_SIZE and (more := self._take(stream)):
                taken += more
            if stream in self._pipes:
                # A hidden process holds it open; output after the program's exit is not the program's.
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
    # This fails for a user with many pipes, and outside Linux; the pipe then keeps its default size.
    with contextlib.suppress(OSError, AttributeError):
        if pipe is not None:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


async def _within(event: asyncio.Event, limit: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), limit)
    return event.is_set()
