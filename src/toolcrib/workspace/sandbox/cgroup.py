"""A cgroup of its own for each command: the kernel counts memory and processes of the whole tree.

In: where this process is in the system's cgroups. Out: `Group`s below it (version 1 and 2), or None where none can be
made: that is a matter of the system, for a plain user most often of systemd.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.workspace.settings.model import Limits

PREFIX = "toolcrib-"
_CONTROLLERS = ("memory", "pids")
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Nest:
    """Folders in which groups are made: one with both controllers (version 2), or one for each (version 1)."""

    version: int
    places: tuple[Path, ...]
    left: list[Path] = field(default_factory=list)
    """Groups that could not be removed yet: the kernel holds on to them until the last process is buried."""

    def make(self, limits: Limits) -> Group:
        """OSError where it cannot be made."""
        self.tidy()
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        folders: list[Path] = []
        try:
            for place in self.places:
                (place / name).mkdir()
                folders.append(place / name)
            group = Group(self, tuple(folders), limits)
            group.set_limits()
        except OSError:
            for folder in folders:
                folder.rmdir()
            raise
        return group

    def tidy(self) -> bool:
        """Removes what was left; says whether nothing is left now."""
        for folder in list(self.left):
            with contextlib.suppress(OSError):
                folder.rmdir()
            if not folder.exists():
                self.left.remove(folder)
        return not self.left

    def sweep(self) -> None:
        """Removes empty groups of servers that were killed."""
        for place in self.places:
            for folder in place.glob(f"{PREFIX}*-*"):
                with contextlib.suppress(OSError, ValueError):
                    if not Path(f"/proc/{int(folder.name.split('-')[1])}").exists():
                        folder.rmdir()


class Group:
    def __init__(self, nest: Nest, folders: tuple[Path, ...], limits: Limits) -> None:
        self._nest = nest
        self._version = nest.version
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
            # There only where the kernel counts swap.
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
        self._nest.left.extend(self._folders)
        self._nest.tidy()


def find_nest(limits: Limits) -> Nest | None:
    """The first place where a group with all its limits can really be made."""
    for nest in candidates():
        nest.sweep()
        with contextlib.suppress(OSError):
            nest.make(limits).remove()
            return nest
    return None


def candidates(table: str = "/proc/self/cgroup", mounts: str = "/proc/self/mountinfo") -> list[Nest]:
    """Version 2: beside us (where no processes are that forbid it) or below us; version 1: below us."""
    where = _mounted(Path(mounts).read_text())
    mine: dict[str, str] = {}
    for line in Path(table).read_text().splitlines():
        number, names, path = line.split(":", 2)
        for name in names.split(",") if number != "0" else ["2"]:
            mine[name] = path
    nests: list[Nest] = []
    here = {name: place for name, path in mine.items() if (place := _place(where.get(name), path))}
    if "2" in here:
        nests += [Nest(version=2, places=(place,)) for place in (here["2"].parent, here["2"]) if _governs(place)]
    if all(name in here for name in _CONTROLLERS):
        nests.append(Nest(version=1, places=tuple(here[name] for name in _CONTROLLERS)))
    return nests


def _place(mounted: tuple[str, str] | None, path: str) -> Path | None:
    """In a container the mount may show only a part of the hierarchy."""
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
