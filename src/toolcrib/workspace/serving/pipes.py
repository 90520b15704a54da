"""A client's two pipes: lines that come in, texts that go out, each in a thread that nobody has to wait for.

In: stdin and stdout, taken away from everything that prints or reads by habit. Out: `Lines` and `Writer`. The SDK's own
stdio reads in a thread that cannot be called off: a signal would wait for the client's next line. `stdio` is above.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

LARGEST_MESSAGE = 16 * 1024 * 1024
_PIECE = 256 * 1024
_AHEAD = 32
"""Messages taken before their turn; then the other side waits."""


@dataclass(frozen=True, kw_only=True)
class Pipes:
    reading: int
    writing: int


def claim() -> Pipes:
    """From now on what prints goes to stderr, what reads finds nothing, and children get neither pipe.

    They are not given back: a thread may sit on them to the end, and the process ends with its client.
    """
    pipes = Pipes(reading=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), writing=fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return pipes


class Lines:
    """What the client says, a line each; over when it closes its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (line := await self._lines.get()) is not None:
            self._room.release()
            yield line

    def _read(self) -> None:
        for line in split(self._pieces()):
            self._room.acquire()
            self._hand_over(line)
        self._hand_over(None)

    def _hand_over(self, line: bytes | None) -> None:
        # The loop may be gone before the client is.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _pieces(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while piece := os.read(self._descriptor, _PIECE):
                yield piece


def split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines that hold something. One that grows beyond the limit is dropped up to its end."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            if size + len(line) <= LARGEST_MESSAGE and (whole := b"".join((*parts, line)).strip()):
                yield whole
            parts, size = [], 0
        size += len(rest)
        if size <= LARGEST_MESSAGE:
            parts.append(rest)
        else:
            parts = []


class Writer:
    """What the client is told; one that does not read stops nobody but itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._texts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_AHEAD)
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        threading.Thread(target=self._write, name="stdout", daemon=True).start()

    async def write(self, text: bytes) -> None:
        await self._room.acquire()
        self._pending += 1
        self._idle.clear()
        self._texts.put(text)

    async def drain(self, limit: float) -> None:
        """Until everything has left, or the client has been waited for long enough."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit)

    def _write(self) -> None:
        while True:
            left = memoryview(self._texts.get())
            # A client that closed its end hears nothing more; its other pipe ends too.
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._descriptor, left) :]
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._written)

    def _written(self) -> None:
        self._room.release()
        self._pending -= 1
        if not self._pending:
            self._idle.set()
