"""Whether a test left a process behind.

In: the processes before and after a test. Out: those that are still there and should not be. A process is a test's
if it lies below this one in the tree, or if its environment names the test's home (children of the daemon inherit
`HOME` and `TMPDIR`, which lie in it), or if it carries the marks of this run and of a server's process and nobody owns
it any more.
Read from /proc; where there is none, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from parts.waiting import wait_for

MARK = b"TOOLCRIB_CHILD="
RUN_NAME = "LC_TOOLCRIB_TESTS"
RUN = f"{RUN_NAME}={os.getpid()}\0".encode()
"""Set for this run, so that orphans of another one are not taken for ours. `LC_*` reaches the servers' processes."""
GRACE = 5.0
"""Seconds in which a process that was told to end may still be seen."""
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    pid: int
    parent: int
    words: str
    environ: bytes

    def names(self, home: Path) -> bool:
        return f"={home}".encode() in self.environ


def look() -> dict[int, Process]:
    """Every living process that we may look at."""
    found = (_read(int(folder.name)) for folder in PROC.glob("[0-9]*"))
    return {process.pid: process for process in found if process}


def left_behind(before: dict[int, Process], home: Path | None) -> list[Process]:
    """Waits a moment for what is ending, then gives what stayed, and ends it."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not _of_this_test(before, home), "leftover processes to end", GRACE, pause=0.05)
    stayed = _of_this_test(before, home)
    for process in stayed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return stayed


def _of_this_test(before: dict[int, Process], home: Path | None) -> list[Process]:
    now = look()
    ours = os.getpid()

    def belongs(process: Process) -> bool:
        if process.pid in before or process.pid == ours or "multiprocessing.resource_tracker" in process.words:
            return False
        if home is not None and process.names(home):
            return True
        above = _ancestors(process, now)
        # A worker of something that was there before (a database's) is that one's business.
        if ours in above:
            return not any(pid in before and pid != ours for pid in above[: above.index(ours)])
        return RUN in process.environ and MARK in process.environ and not any(pid in now for pid in above if pid > 1)

    return [process for process in now.values() if belongs(process)]


def _ancestors(process: Process, processes: dict[int, Process]) -> list[int]:
    above: list[int] = []
    while process.parent > 0 and process.parent not in above:
        above.append(process.parent)
        if process.parent not in processes:
            break
        process = processes[process.parent]
    return above


def _read(pid: int) -> Process | None:
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
