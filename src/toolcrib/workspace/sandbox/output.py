"""What a command prints: its beginning and end in memory, and everything as a file if it is much.

In: pieces of its streams. Out: `Captured`, and a file below `.toolcrib/output` of the folder, which commands can read
but not write. In read-only mode nothing is kept. The oldest files go when there are too many.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import deque

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.atomic import own_dir
from toolcrib.workspace.confined.folder import Folder, Spot
from toolcrib.workspace.sandbox.model import Captured
from toolcrib.workspace.sandbox.survey import TOOLCRIB

PLACE = f"{TOOLCRIB}/output"
MOST_FILES = 40
HEAD, TAIL = 768 * 1024, 256 * 1024
"""Bytes of each stream that are held in memory."""
LAST_NUMBER = 999_999
"""Of a file. No folder gets so far by itself: a repository brought it, and free numbers below are taken instead."""
_LOG = re.compile(r".+-([0-9]{1,6})\.log", re.DOTALL)


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
            try:
                self._file = self._make_in(place)
            finally:
                os.close(place)
        except (OSError, WorkspaceError):
            self._file = os.open(os.devnull, os.O_WRONLY)

    def _make_in(self, place: int) -> int:
        logs = sorted(_logs(place))
        for _, old in logs[: max(0, len(logs) - MOST_FILES + 1)]:
            with contextlib.suppress(OSError):
                os.unlink(old, dir_fd=place)
        name = f"{self._name}-{_next_number([number for number, _ in logs])}.log"
        made = _make(name, place, self._folder)
        self.path = f"{PLACE}/{name}"
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
    place = own_dir(folder, Spot(tuple(PLACE.split("/"))))
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
