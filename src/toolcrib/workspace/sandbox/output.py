"""What a command prints: its beginning and end in memory, and everything as a file if it is much.

In: pieces of its streams. Out: `Captured`, and a file below `.toolcrib/output` of the folder, which commands can read
but not write. In read-only mode nothing is kept. The oldest files go when there are too many.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque

from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox.model import Captured
from toolcrib.workspace.sandbox.survey import TOOLCRIB

PLACE = f"{TOOLCRIB}/output"
MOST_FILES = 40
HEAD, TAIL = 768 * 1024, 256 * 1024
"""Bytes of each stream that are held in memory."""
_LOG = re.compile(r"(?P<name>.+)-(?P<number>\d{1,9})\.log")


class Stream:
    """One stream: the first bytes, the last bytes, and how many there were."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def take(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)
            while self._tail_size - len(self._tail[0]) >= TAIL:
                self._tail_size -= len(self._tail.popleft())

    def captured(self, kept: str | None) -> Captured:
        tail = b"".join(self._tail)
        if len(self._head) + len(tail) < self.total:
            tail = tail[-TAIL:]
        return Captured(head=bytes(self._head), tail=tail, total=self.total, kept=kept)


class Kept:
    """The file with everything. It is made when there is more than a model gets."""

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
        """Where it cannot be made, output is only cut: no reason to end a command."""
        try:
            place = _open_place(self._folder)
        except OSError:
            self._file = os.open(os.devnull, os.O_WRONLY)
            return
        try:
            numbers = sorted(_logs(place))
            for _, old in numbers[: max(0, len(numbers) - MOST_FILES + 1)]:
                with contextlib.suppress(OSError):
                    os.unlink(old, dir_fd=place)
            name = f"{self._name}-{numbers[-1][0] + 1 if numbers else 1}.log"
            self._file = _make(name, place, self._folder)
            self.path = f"{PLACE}/{name}"
        finally:
            os.close(place)


def _logs(place: int) -> list[tuple[int, str]]:
    found = [(_LOG.fullmatch(name), name) for name in os.listdir(place)]
    return [(int(match["number"]), name) for match, name in found if match]


def _open_place(folder: Folder) -> int:
    """Step by step and through no link: a repository could have put one there."""
    there = os.dup(folder.fd)
    for name in PLACE.split("/"):
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=there)
                _give(name, there, folder)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=there)
        finally:
            os.close(there)
        there = below
    with contextlib.suppress(FileExistsError):
        ignore = _make(".gitignore", there, folder)
        os.write(ignore, b"*\n")
        os.close(ignore)
    return there


def _make(name: str, place: int, folder: Folder) -> int:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=place)
    _give(name, place, folder)
    return descriptor


def _give(name: str, place: int, folder: Folder) -> None:
    if os.geteuid() == 0:
        os.chown(name, *folder.owner, dir_fd=place, follow_symlinks=False)
