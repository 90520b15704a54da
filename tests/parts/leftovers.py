"""Whether a test left a process behind.

In: the processes before and after a test. Out: those that should have ended. A process belongs to a test if it is a
descendant of this one, or if its environment names the test's home (children of the daemon inherit `HOME` and
`TMPDIR`), or if it is an orphan with the marks of this run and of a server's process.
Without /proc, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from parts.preloaded import preloader
from parts.waiting import wait_for

MARK = b"TOOLCRIB_CHILD="
RUN_NAME = "LC_TOOLCRIB_TESTS"
RUN = f"{RUN_NAME}={os.getpid()}\0".encode()
"""Tells orphans of this run from those of another. `LC_*` variables reach the servers' processes."""
GRACE = 30.0
"""Seconds that a process may take to end."""
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    pid: int
    parent: int
    words: str
    environ: bytes

    def names(self, home: Path) -> bool:
        return f"={home}".encode() in self.environ

    @property
    def is_guard(self) -> bool:
        """Toolcrib's parent process of a program, whose command line ends with that of the program."""
        return "reaper_child.py guard " in self.words


def look() -> frozenset[int]:
    """All current processes."""
    try:
        return frozenset(int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 - after every test
    except OSError:
        return frozenset()


def living() -> list[Process]:
    """Every running process that we may read."""
    return [process for process in map(read, look()) if process is not None]


def left_behind(before: frozenset[int], home: Path | None) -> list[Process]:
    """Waits for processes to end; kills and returns those that stay."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not _of_this_test(before, home), "leftover processes to end", GRACE, pause=0.05)
        return []
    stayed = _of_this_test(before, home)
    for process in stayed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return stayed


def check(before: frozenset[int], home: Path | None = None) -> None:
    """Fails if processes stay."""
    stayed = left_behind(before, home)
    assert not stayed, f"processes left behind: {[(process.pid, process.words) for process in stayed]}"


def _of_this_test(before: frozenset[int], home: Path | None) -> list[Process]:
    ours = os.getpid()
    forking = preloader()[0] if preloader.cache_info().currsize else None

    def belongs(process: Process) -> bool:
        if process.pid == forking or "multiprocessing.resource_tracker" in process.words:
            return False
        if home is not None and process.names(home):
            return True
        above = _ancestors(process)
        # A child of an earlier process, such as a database, belongs to that process.
        if ours in above:
            return not any(pid in before and pid not in (ours, forking) for pid in above[: above.index(ours)])
        orphaned = not any((PROC / str(pid)).exists() for pid in above if pid > 1)
        return orphaned and RUN in process.environ and MARK in process.environ

    fresh = (read(pid) for pid in look() - before)
    return [process for process in fresh if process is not None and belongs(process)]


def _ancestors(process: Process) -> list[int]:
    above: list[int] = []
    parent: Process | None = process
    while parent is not None and parent.parent > 0 and parent.parent not in above:
        above.append(parent.parent)
        parent = read(parent.parent)
    return above


def read(pid: int) -> Process | None:
    """The process, unless it has ended or we may not read it."""
    folder = PROC / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        environ = (folder / "environ").read_bytes()
    except OSError:
        return None
    if not fields or fields[0] in "ZX":
        return None
    return Process(pid=pid, parent=int(fields[1]), words=words, environ=environ)
