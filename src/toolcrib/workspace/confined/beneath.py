"""The way to a place beneath a folder that nobody can bend, however names change meanwhile.

In: the folder's descriptor and the names that lead down from it. Out: a descriptor (O_PATH) of what is there, and the
names by which it really lies there. `folder` decides what may be done with it. The kernel's openat2 does the work; a
walk, one descriptor a step, does it where there is none, and where a link names its target from the top.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
from collections.abc import Sequence

from toolcrib.workspace.confined.openat2 import openat2

_MOST_TRIES = 32
"""The kernel asks to try again when something was renamed while it went up from a folder."""
_MOST_LINKS = 40
_MOST_STEPS = 4096
# An old container runtime forbids system calls that it does not know, and says EPERM. A link that names its target
# from the top may yet lead inside; only the walk can tell.
_WALK = frozenset({errno.ENOSYS, errno.EPERM, errno.EXDEV})
_GONE = " (deleted)"


class Last(enum.Enum):
    """What a link at the end of a path stands for."""

    TARGET = 0
    LINK = os.O_NOFOLLOW


def reach(root: int, names: Sequence[str], last: Last = Last.TARGET) -> int:
    """Leads to what the names stand for; OSError (EXDEV) where that is not beneath the root."""
    path = os.fsencode("/".join(names) or ".")
    for _ in range(_MOST_TRIES):
        try:
            return openat2(root, path, os.O_PATH | last.value)
        except OSError as error:
            if error.errno in _WALK:
                break
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
    return _walk(root, names, last)


def step(folder: int, name: str, flags: int) -> int:
    """One name down; never through a link, never waiting for a FIFO's other end."""
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"not one name: {name!r}")
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def lies_at(root: int, descriptor: int) -> tuple[str, ...]:
    """The names by which it lies beneath the root now, links resolved; OSError (EXDEV) if it does not."""
    top, place = _path_of(root), _path_of(descriptor)
    if place == top:
        return ()
    if not place.startswith(top if top.endswith("/") else f"{top}/"):
        raise _left()
    return tuple(place[len(top) :].strip("/").split("/"))


def _path_of(descriptor: int) -> str:
    path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would tidy it
    if path.endswith(_GONE) and os.fstat(descriptor).st_nlink == 0:
        return path.removesuffix(_GONE)
    return path


def _walk(root: int, names: Sequence[str], last: Last) -> int:
    walk = _Walk(root, names)
    try:
        for _ in range(_MOST_STEPS):
            if not walk.rest:
                return walk.here
            walk.go(last)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except BaseException:
        os.close(walk.here)
        raise


class _Walk:
    def __init__(self, root: int, names: Sequence[str]) -> None:
        self.root = root
        self.here = os.dup(root)
        self.way: list[str] = []
        """The names that led here from the root."""
        self.rest = list(reversed(names))
        self.links = 0

    def go(self, last: Last) -> None:
        name = self.rest.pop()
        if name == "..":
            # Down again from the root: the folder above may have been moved out by now.
            if not self.way:
                raise _left()
            self._from_root(self.way[:-1])
        elif name not in ("", "."):
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.here)
            if stat.S_ISLNK(os.fstat(found).st_mode) and (self.rest or last is Last.TARGET):
                self._follow(found)
            else:
                os.close(self.here)
                self.here = found
                self.way.append(name)

    def _follow(self, link: int) -> None:
        try:
            target = os.readlink("", dir_fd=link)
        finally:
            os.close(link)
        self.links += 1
        if self.links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            top = _path_of(self.root)
            if target != top and not target.startswith(f"{top}/"):
                raise _left()
            self._from_root(target[len(top) :].split("/"))
        else:
            self.rest += reversed(target.split("/"))

    def _from_root(self, names: Sequence[str]) -> None:
        self.rest += reversed(names)
        self.way = []
        os.close(self.here)
        self.here = os.dup(self.root)


def _left() -> OSError:
    return OSError(errno.EXDEV, "leads out of the folder")
