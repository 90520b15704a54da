"""Limits for a command's whole process tree: memory, processes, file size.

In: the settings' limits and the pid of the sandbox's first process, before it runs anything. Out: whether a limit was
exceeded. If a cgroup (version 1 or 2) can be created, the kernel counts memory and processes of the whole tree.
Otherwise each process gets its own limits (rlimits, set by `inner`), and a watcher adds up the usage.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.workspace.sandbox.command import CommandEnding
from toolcrib.workspace.settings.model import Limits

PREFIX = "toolcrib-"
_CONTROLLERS = ("memory", "pids")
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class CgroupParent:
    """Parent folders for new groups: one with both controllers (version 2), or one for each (version 1)."""

    version: int
    places: tuple[Path, ...]
    left: list[Path] = field(default_factory=list)
    """Groups that could not be removed yet: the kernel keeps them until the last process is reaped."""

    def make(self, limits: Limits) -> Cgroup:
        """Raises OSError if it cannot be created."""
        self.tidy()
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        folders: list[Path] = []
        try:
            for place in self.places:
                (place / name).mkdir()
                folders.append(place / name)
            group = Cgroup(self, tuple(folders), limits)
            group.set_limits()
        except OSError:
            for folder in folders:
                folder.rmdir()
            raise
        return group

    def tidy(self) -> bool:
        """Removes leftover groups; returns whether all are gone."""
        for folder in list(self.left):
            with contextlib.suppress(OSError):
                folder.rmdir()
            if not folder.exists():
                self.left.remove(folder)
        return not self.left

    def sweep(self) -> None:
        """Removes empty groups of killed servers."""
        for place in self.places:
            for folder in place.glob(f"{PREFIX}*-*"):
                with contextlib.suppress(OSError, ValueError):
                    if not Path(f"/proc/{int(folder.name.split('-')[1])}").exists():
                        folder.rmdir()


class Cgroup:
    def __init__(self, parent: CgroupParent, folders: tuple[Path, ...], limits: Limits) -> None:
        self._parent = parent
        self._version = parent.version
        self._folders = folders
        self._limits = limits
        self._memory, self._pids = folders[0], folders[-1]

    def set_limits(self) -> None:
        if self._version == 2:
            _write(self._memory / "memory.max", self._limits.memory)
            with contextlib.suppress(OSError):
                _write(self._memory / "memory.swap.max", 0)
            with contextlib.suppress(OSError):
                _write(self._memory / "memory.oom.group", 1)
        else:
            _write(self._memory / "memory.limit_in_bytes", self._limits.memory)
            # Exists only if the kernel counts swap.
            with contextlib.suppress(OSError):
                _write(self._memory / "memory.memsw.limit_in_bytes", self._limits.memory)
        _write(self._pids / "pids.max", self._limits.processes)

    def take(self, pid: int) -> None:
        for folder in self._folders:
            _write(folder / "cgroup.procs", pid)

    def ran_out_of_memory(self) -> bool:
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return _counter(self._memory / name, "oom_kill") > 0

    def is_full(self) -> bool:
        return int((self._pids / "pids.current").read_text()) >= self._limits.processes

    def remove(self) -> None:
        self._parent.left.extend(self._folders)
        self._parent.tidy()


def find_cgroup_parent(limits: Limits) -> CgroupParent | None:
    """The first parent in which a group with all limits can be created."""
    for parent in cgroup_candidates():
        parent.sweep()
        with contextlib.suppress(OSError):
            parent.make(limits).remove()
            return parent
    return None


def cgroup_candidates(table: str = "/proc/self/cgroup", mounts: str = "/proc/self/mountinfo") -> list[CgroupParent]:
    """Version 2: next to our group (if it allows that) or below it; version 1: below it."""
    where = _mounted(Path(mounts).read_text())
    mine: dict[str, str] = {}
    for line in Path(table).read_text().splitlines():
        number, names, path = line.split(":", 2)
        for name in names.split(",") if number != "0" else ["2"]:
            mine[name] = path
    parents: list[CgroupParent] = []
    here = {name: place for name, path in mine.items() if (place := _place(where.get(name), path))}
    if "2" in here:
        parents += [
            CgroupParent(version=2, places=(place,)) for place in (here["2"].parent, here["2"]) if _governs(place)
        ]
    if all(name in here for name in _CONTROLLERS):
        parents.append(CgroupParent(version=1, places=tuple(here[name] for name in _CONTROLLERS)))
    return parents


def _place(mounted: tuple[str, str] | None, path: str) -> Path | None:
    """In a container the mount may show only part of the hierarchy."""
    if mounted is None:
        return None
    root, point = mounted
    return Path(point, os.path.relpath(path, root)) if Path(path).is_relative_to(root) else None


def _governs(place: Path) -> bool:
    try:
        return set(_CONTROLLERS) <= set((place / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False


def _mounted(table: str) -> dict[str, tuple[str, str]]:
    """Which part of each controller's hierarchy is mounted, and where; "2" is the one hierarchy of version 2."""
    where: dict[str, tuple[str, str]] = {}
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            where["2"] = (root, point)
        elif kind == "cgroup":
            where |= {option: (root, point) for option in options.split(",") if option in _CONTROLLERS}
    return where


def _counter(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _write(path: Path, value: int) -> None:
    path.write_text(str(value))


OPEN_FILES = 4096
TICK = 0.1
"""Seconds between two checks."""
TICK_WATCHING = 0.02
"""Without a cgroup, where only the watcher stops a fork bomb."""
_FULL_FOR = 1.0
"""Seconds that a tree may stay at its process limit before it counts as a fork bomb."""
_SOCKET = 256 * 1024
"""Bytes that the kernel buffers for an unread socket. They belong to no process."""
_SIZE = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_OWN = (b"RssAnon", b"VmSwap", b"VmPTE")
_SHARED = b"RssShmem"


class LimitGuard:
    """Watches one process tree with the root `pid`."""

    def __init__(self, limits: Limits, pid: int, group: Cgroup | None) -> None:
        self._limits = limits
        self._pid = pid
        self._group = group
        self._full = 0
        self.tick = TICK if group else TICK_WATCHING

    def begin(self, inner: int) -> None:
        """bubblewrap's own process stays outside the group, because moving a process takes milliseconds."""
        if self._group:
            self._group.take(inner)

    def passed(self) -> CommandEnding | None:
        if self._group:
            if self._group.ran_out_of_memory():
                return CommandEnding.MEMORY
            return CommandEnding.PROCESSES if self._is_full_for_long(is_full=self._group.is_full()) else None
        used = tree_usage(self._pid, most=self._limits.processes)
        is_full = used.threads >= self._limits.processes
        if used.threads > self._limits.processes or self._is_full_for_long(is_full=is_full):
            return CommandEnding.PROCESSES
        room = self._limits.memory - used.memory - _sockets(self._pid) * _SOCKET
        # The kernel computes shares slowly, so read them only when they matter.
        if room < sum(used.shared.values()):
            room -= sum(map(_share, used.shared))
            return CommandEnding.MEMORY if room < 0 else None
        return None

    def _is_full_for_long(self, *, is_full: bool) -> bool:
        self._full = self._full + 1 if is_full else 0
        return self._full * self.tick >= _FULL_FOR

    def end(self) -> None:
        if self._group:
            self._group.remove()


def rlimits(limits: Limits, *, counted: bool) -> dict[str, int]:
    """Limits per process; `counted` means that a cgroup limits the sum."""
    each = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file_size, "RLIMIT_NOFILE": OPEN_FILES}
    if counted:
        return each
    # Processes are counted in the sandbox's own user namespace; root is exempt.
    return each | {"RLIMIT_DATA": limits.memory, "RLIMIT_NPROC": limits.processes}


def limits_for_inner(limits: Limits, *, counted: bool) -> list[tuple[int, int]]:
    """The limits for `inner`, by kernel number; never above our own."""
    each = [(getattr(resource, name), limit) for name, limit in rlimits(limits, counted=counted).items()]
    own = [resource.getrlimit(kind)[1] for kind, _ in each]
    return [
        (kind, limit if hard == resource.RLIM_INFINITY else min(limit, hard))
        for (kind, limit), hard in zip(each, own, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class TreeUsage:
    threads: int
    memory: int
    """Private bytes of all processes: their pages, swapped or not, and page tables."""
    shared: dict[int, int]
    """Bytes of anonymous memory that processes may share, by pid."""


def tree_usage(pid: int, *, most: int) -> TreeUsage:
    """Usage of a process and its descendants; orphans are reparented to the first process.

    Stops counting beyond `most` threads, since the tree is then killed anyway.
    """
    threads = memory = 0
    shared: dict[int, int] = {}
    waiting = [pid]
    while waiting and threads <= most:
        current = waiting.pop()
        with contextlib.suppress(OSError, ValueError):
            place = f"/proc/{current}"
            tasks = os.listdir(f"{place}/task")  # noqa: PTH208 - reads hundreds of processes every 20 ms
            threads += len(tasks)
            sizes = _sizes(f"{place}/status")
            memory += sum(sizes.get(name, 0) for name in _OWN)
            if sizes.get(_SHARED):
                shared[current] = sizes[_SHARED]
            for task in tasks:
                waiting += [int(child) for child in _read(f"{place}/task/{task}/children").split()]
    return TreeUsage(threads, memory, shared)


def _sizes(path: str) -> dict[bytes, int]:
    """Bytes by name, from a file with sizes in kB."""
    return {name: int(size) * 1024 for name, size in _SIZE.findall(_read(path))}


def _share(pid: int) -> int:
    """A process's share of its shared memory; all shares add up to the total."""
    with contextlib.suppress(OSError):
        return _sizes(f"/proc/{pid}/smaps_rollup").get(b"Pss_Shmem", 0)
    return 0


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
        return file.read()


def _sockets(pid: int) -> int:
    """Sockets in a process's network namespace; 0 if it is the machine's, which other programs share."""
    with contextlib.suppress(OSError, ValueError):
        if Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            first = Path(f"/proc/{pid}/net/sockstat").read_text().partition("\n")[0]
            return int(first.rpartition(" ")[2])
    return 0
