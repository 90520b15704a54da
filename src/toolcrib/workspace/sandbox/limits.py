"""Limits that hold for a command with all that it starts: memory, processes, size of files.

In: the settings' limits and the pid of the sandbox's first process, before it runs anything. Out: whether a limit was
passed. A cgroup does it where one can be made (`cgroup`); elsewhere every process gets limits of its own (rlimits, set
by `inner`) and a watcher adds up what all of them use.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from toolcrib.workspace.sandbox.cgroup import Group
from toolcrib.workspace.sandbox.model import Ending
from toolcrib.workspace.settings.model import Limits

OPEN_FILES = 4096
TICK = 0.1
"""Seconds between two looks."""
TICK_WATCHING = 0.02
"""The same where only the watcher stands between a fork bomb and the machine."""
_FULL_FOR = 1.0
"""Seconds: so long there may be as many processes as are allowed, before it is taken for a bomb."""
_SOCKET = 256 * 1024
"""Bytes that the kernel holds for a socket from which nobody reads. They are no process's own."""
_SIZE = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_OWN = (b"RssAnon", b"VmSwap", b"VmPTE")
_SHARED = b"RssShmem"


class Guard:
    """Watches one tree of processes, whose first one is `pid`."""

    def __init__(self, limits: Limits, pid: int, group: Group | None) -> None:
        self._limits = limits
        self._pid = pid
        self._group = group
        self._full = 0
        self.tick = TICK if group else TICK_WATCHING

    def begin(self, inner: int) -> None:
        """bubblewrap's own process stays outside the group: to move one takes the kernel milliseconds."""
        if self._group:
            self._group.take(inner)

    def passed(self) -> Ending | None:
        if self._group:
            if self._group.ran_out_of_memory():
                return Ending.MEMORY
            return Ending.PROCESSES if self._is_full_for_long(is_full=self._group.is_full()) else None
        used = usage(self._pid, most=self._limits.processes)
        is_full = used.threads >= self._limits.processes
        if used.threads > self._limits.processes or self._is_full_for_long(is_full=is_full):
            return Ending.PROCESSES
        room = self._limits.memory - used.memory - _sockets(self._pid) * _SOCKET
        # To ask the kernel for shares takes it long, so it is asked only where it matters.
        if room < sum(used.shared.values()):
            room -= sum(map(_share, used.shared))
            return Ending.MEMORY if room < 0 else None
        return None

    def _is_full_for_long(self, *, is_full: bool) -> bool:
        self._full = self._full + 1 if is_full else 0
        return self._full * self.tick >= _FULL_FOR

    def end(self) -> None:
        if self._group:
            self._group.remove()


def rlimits(limits: Limits, *, counted: bool) -> dict[str, int]:
    """For each process; `counted`: a cgroup sees to the sum."""
    each = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file_size, "RLIMIT_NOFILE": OPEN_FILES}
    if counted:
        return each
    # Processes are counted in the sandbox's own user namespace; root is never bound by it.
    return each | {"RLIMIT_DATA": limits.memory, "RLIMIT_NPROC": limits.processes}


def for_inner(limits: Limits, *, counted: bool) -> list[tuple[int, int]]:
    """As `inner` sets them: the kernel's number, and the limit; never above what this process has itself."""
    each = [(getattr(resource, name), limit) for name, limit in rlimits(limits, counted=counted).items()]
    own = [resource.getrlimit(kind)[1] for kind, _ in each]
    return [
        (kind, limit if hard == resource.RLIM_INFINITY else min(limit, hard))
        for (kind, limit), hard in zip(each, own, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Usage:
    threads: int
    memory: int
    """Bytes that are each process's own: its pages, wherever they lie, and the tables that the kernel keeps of them."""
    shared: dict[int, int]
    """Bytes of memory without a file that several processes may share, by the pid of each that sees some."""


def usage(pid: int, *, most: int) -> Usage:
    """Of a process and all below it; what runs away from its parents belongs to the first again.

    Looks no further when `most` threads are passed: what is above it is ended whatever it is.
    """
    threads = memory = 0
    shared: dict[int, int] = {}
    waiting = [pid]
    while waiting and threads <= most:
        current = waiting.pop()
        with contextlib.suppress(OSError, ValueError):
            place = f"/proc/{current}"
            tasks = os.listdir(f"{place}/task")  # noqa: PTH208 - hundreds of processes are looked at every 20 ms
            threads += len(tasks)
            sizes = _sizes(f"{place}/status")
            memory += sum(sizes.get(name, 0) for name in _OWN)
            if sizes.get(_SHARED):
                shared[current] = sizes[_SHARED]
            for task in tasks:
                waiting += [int(child) for child in _read(f"{place}/task/{task}/children").split()]
    return Usage(threads, memory, shared)


def _sizes(path: str) -> dict[bytes, int]:
    """Bytes by name, of a file in which the kernel gives them in kB."""
    return {name: int(size) * 1024 for name, size in _SIZE.findall(_read(path))}


def _share(pid: int) -> int:
    """Of the shared memory that a process sees; the shares of all who see it make up the whole."""
    with contextlib.suppress(OSError):
        return _sizes(f"/proc/{pid}/smaps_rollup").get(b"Pss_Shmem", 0)
    return 0


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
        return file.read()


def _sockets(pid: int) -> int:
    """In the network namespace of a process; 0 if that is the machine's own, where they are not the tree's alone."""
    with contextlib.suppress(OSError, ValueError):
        if Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            first = Path(f"/proc/{pid}/net/sockstat").read_text().partition("\n")[0]
            return int(first.rpartition(" ")[2])
    return 0
