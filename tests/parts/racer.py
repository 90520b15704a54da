"""An attacker process that swaps names in a folder for links that lead out, as fast as possible.

In: a folder to attack and a folder outside it. Out: `Race`, which reports changes outside. `CANARY` is only outside,
and nothing outside may change. `door` (a folder) and `note.txt` (a file) are swapped; `door/inner.txt`,
`door/sub/inner.txt` and `hall/way/inner.txt` hold `INSIDE`, and their namesakes outside hold `CANARY`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

INSIDE = "this lies inside\n"
CANARY = "canary: this lies outside\n"
READABLE = ("door/inner.txt", "door/sub/inner.txt", "note.txt", "hall/way/inner.txt", "hall/up.txt")
"""Files to read, one of them through a link that goes up."""
WRITABLE = ("door/written.txt", "door/sub/inner.txt", "note.txt", "hall/way/inner.txt", "door/new/folder/written.txt")
FOLDERS = ("door", "door/sub", "hall", "hall/way")

_LIBC = ctypes.CDLL(None, use_errno=True)
_EXCHANGE = 2
_AT_CWD = -100
_FILES = ("inner.txt", "sub/inner.txt", "way/inner.txt", "note.txt")


class Race:
    def __init__(self, root: Path, outside: Path) -> None:
        self.root = root
        self.outside = outside
        self.swaps = 0
        """How often names were swapped; known after the race."""
        self._before = self._seen()

    def changed(self) -> list[str]:
        """The paths outside that were created, deleted or changed."""
        return sorted({path for path, _ in self._before ^ self._seen()})

    def _seen(self) -> set[tuple[str, bytes]]:
        paths = self.outside.rglob("*")
        return {(str(path), b"folder" if path.is_dir() else path.read_bytes()) for path in paths}


@contextlib.contextmanager
def racing(root: Path, outside: Path) -> Iterator[Race]:
    """Creates the files in both folders, and attacks until the block ends."""
    _lay(root, outside)
    race = Race(root, outside)
    words = [sys.executable, "-I", __file__, str(root), str(outside)]
    attacker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ready\n"
        yield race
    finally:
        attacker.terminate()
        printed, _ = attacker.communicate(timeout=20)
        race.swaps = int(printed or 0)


def _lay(root: Path, outside: Path) -> None:
    for name in _FILES:
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(CANARY)
    for name in ("door/inner.txt", "door/sub/inner.txt", "hall/way/inner.txt", "note.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(INSIDE)
    (root / "hall" / "up.txt").symlink_to("way/../../note.txt")
    (root / "door.swap").symlink_to(outside)
    (root / "note.swap").symlink_to(outside / "note.txt")
    (root / "hall" / "way.swap").symlink_to(outside / "way")


def _exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step; both always exist."""
    if _LIBC.renameat2(_AT_CWD, bytes(one), _AT_CWD, bytes(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _step_by_step(one: Path, other: Path) -> None:
    """Swaps them with three renames; sometimes a name is missing."""
    away = one.with_suffix(".away")
    one.rename(away)
    other.rename(one)
    away.rename(other)


def _mend(name: Path, swap: Path, target: Path) -> None:
    """Restores the link that a writer replaced."""
    if not name.is_symlink() and not swap.is_symlink():
        new = swap.with_suffix(".new")
        new.symlink_to(target)
        new.rename(swap)


def _attack(root: Path, outside: Path) -> None:
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    names = [root / name for name in ("door", "note.txt", "hall/way")]
    swaps = [name.with_suffix(".swap") for name in names]
    print("ready", flush=True)
    for turn in itertools.count():
        if not going or os.getppid() == 1:
            break
        swap = _step_by_step if turn % 8 == 7 else _exchange
        for name, other in zip(names, swaps, strict=True):
            # A writer may have created a file where a name was missing.
            with contextlib.suppress(OSError):
                swap(name, other)
        with contextlib.suppress(OSError):
            _mend(names[1], swaps[1], outside / "note.txt")
    print(turn * len(names), flush=True)


if __name__ == "__main__":
    _attack(Path(sys.argv[1]), Path(sys.argv[2]))
