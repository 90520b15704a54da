"""Opens paths beneath a folder, safe against links and concurrent renames, and explains OS errors to a model.

In: the folder's descriptor and the names below it. Out: a descriptor (O_PATH), the real path beneath the folder, or a
`WorkspaceError` with a remedy. It uses the kernel's openat2. Where that is missing, or a link has an absolute target,
it walks down one descriptor at a time. `folder` decides which access is allowed.
"""

from __future__ import annotations

import ctypes
import difflib
import enum
import errno
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from toolcrib.errors import WorkspaceError

if TYPE_CHECKING:
    from toolcrib.workspace.folder import Folder, FolderPath


_NUMBER = 437
"""The system call's number, the same on every supported architecture."""
_NO_MAGICLINKS = 0x02
_BENEATH = 0x08


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _syscall() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)
    call.restype = ctypes.c_long
    return call


def openat2(folder: int, path: bytes, flags: int) -> int:
    """Opens a path that stays beneath the folder despite links, `..` and concurrent renames."""
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS)
    opened = _syscall()(_NUMBER, folder, path, ctypes.byref(how), ctypes.sizeof(how))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return opened


_MAX_TRIES = 32
"""The kernel returns EAGAIN if a rename happens while it resolves `..`."""
_MAX_LINKS = 40
_MAX_STEPS = 4096
# Old container runtimes return EPERM for unknown system calls. EXDEV: an absolute link may still lead inside, which
# only the walk can find out.
_WALK_INSTEAD = frozenset({errno.ENOSYS, errno.EPERM, errno.EXDEV})
_DELETED = " (deleted)"


class FinalLink(enum.Enum):
    """How to resolve a link at the end of a path."""

    TARGET = 0
    LINK = os.O_NOFOLLOW


def open_beneath(root: int, names: Sequence[str], last: FinalLink = FinalLink.TARGET) -> int:
    """Opens the path; raises OSError (EXDEV) if it is not beneath the root."""
    path = os.fsencode("/".join(names) or ".")
    for _ in range(_MAX_TRIES):
        try:
            return openat2(root, path, os.O_PATH | last.value)
        except OSError as error:
            if error.errno in _WALK_INSTEAD:
                break
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
    return _walk(root, names, last)


def open_child(folder: int, name: str, flags: int) -> int:
    """Opens one name; never follows a link and never blocks on a FIFO."""
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"not one name: {name!r}")
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def path_beneath(root: int, descriptor: int) -> tuple[str, ...]:
    """Its current real path beneath the root; raises OSError (EXDEV) if it is outside."""
    top, place = _path_of(root), _path_of(descriptor)
    if place == top:
        return ()
    if not place.startswith(top if top.endswith("/") else f"{top}/"):
        raise _leads_out()
    return tuple(place[len(top) :].strip("/").split("/"))


def _path_of(descriptor: int) -> str:
    path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would tidy it
    if path.endswith(_DELETED) and os.fstat(descriptor).st_nlink == 0:
        return path.removesuffix(_DELETED)
    return path


def _walk(root: int, names: Sequence[str], last: FinalLink) -> int:
    walk = _Walk(root, names)
    try:
        for _ in range(_MAX_STEPS):
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
        """The path from the root."""
        self.rest = list(reversed(names))
        self.links = 0

    def go(self, last: FinalLink) -> None:
        name = self.rest.pop()
        if name == "..":
            # Start again at the root: the parent folder may have been moved outside by now.
            if not self.way:
                raise _leads_out()
            self._from_root(self.way[:-1])
        elif name not in ("", "."):
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.here)
            if stat.S_ISLNK(os.fstat(found).st_mode) and (self.rest or last is FinalLink.TARGET):
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
        if self.links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            top = _path_of(self.root)
            if target != top and not target.startswith(f"{top}/"):
                raise _leads_out()
            self._from_root(target[len(top) :].split("/"))
        else:
            self.rest += reversed(target.split("/"))

    def _from_root(self, names: Sequence[str]) -> None:
        self.rest += reversed(names)
        self.way = []
        os.close(self.here)
        self.here = os.dup(self.root)


def _leads_out() -> OSError:
    return OSError(errno.EXDEV, "leads out of the folder")


_MAX_NAMES = 2000
_MAX_SUGGESTIONS = 3

_FULL = "Free some space, or write less. The file is as it was."
_REASONS: dict[int, tuple[str, str]] = {
    errno.EXDEV: ("leads out of the workspace", "Use paths inside it; nothing outside can be reached."),
    errno.ELOOP: ("leads through too many links", "Name the file itself instead of a link to it."),
    errno.ENOTDIR: ("goes through something that is not a folder", "List the folders."),
    errno.EISDIR: ("is a folder", "Name a file in it."),
    errno.EACCES: ("cannot be opened: permission denied", "Its owner must allow it."),
    errno.EPERM: ("cannot be changed: the system does not permit it", "Its owner must allow it."),
    errno.ENAMETOOLONG: ("is too long", "Shorten it."),
    errno.ENOSPC: ("could not be written: the disk is full", _FULL),
    errno.EDQUOT: ("could not be written: the disk quota is used up", _FULL),
    errno.EFBIG: ("could not be written: it would be too large", "Write several smaller files."),
    errno.EROFS: ("could not be written: the file system is read-only", "Only reading works here."),
    errno.ENXIO: ("is a device or an unconnected pipe", "Only regular files can be read."),
    errno.EEXIST: ("already exists", "Choose another name, or overwrite it."),
}
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
}


class FileKind(enum.StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"

    @classmethod
    def of(cls, mode: int) -> FileKind:
        return next((kind for kind in cls if kind == file_kind(mode)), cls.OTHER)


def file_kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "file of unknown kind")


def explain_os_error(error: OSError, folder: Folder, place: FolderPath) -> WorkspaceError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _nothing_there(folder, place, error.errno)
    what, remedy = _REASONS.get(error.errno or 0, (f"failed: {error.strerror}", "Try again, or another path."))
    return WorkspaceError(f"{place} {what}.", remedy=remedy, data={"path": str(place)})


def _nothing_there(folder: Folder, place: FolderPath, number: int) -> WorkspaceError:
    """Names the part of the path that is missing, and similar names that exist."""
    for length in range(len(place.parts)):
        above, name = type(place)(place.parts[:length]), place.parts[length]
        try:
            parent = folder.open_dir(above)
        except WorkspaceError:
            break
        try:
            if not _exists(parent, name):
                return _missing(folder, place, type(place)(place.parts[: length + 1]), parent)
        finally:
            os.close(parent)
    what, remedy = _REASONS.get(number, ("leads to something that doesn't exist", "List the folders."))
    return WorkspaceError(f"{place} {what}.", remedy=remedy, data={"path": str(place)})


def _missing(folder: Folder, asked: FolderPath, wrong: FolderPath, parent: int) -> WorkspaceError:
    near = [str(wrong.parent / name) for name in _near(folder, wrong, parent)]
    where = "in the workspace" if not wrong.parts[1:] else f"in {wrong.parent}"
    message = f"{asked} does not exist: there is no {wrong.name} {where}."
    remedy = f"Did you mean {', '.join(near)}?" if near else f"List the files {where}."
    return WorkspaceError(message, remedy=remedy, data={"path": str(asked), "near": near})


def _near(folder: Folder, wrong: FolderPath, parent: int) -> list[str]:
    shown = itertools.islice(_shown(folder, wrong, parent), _MAX_NAMES)
    by_case: dict[str, str] = {}
    for name in shown:
        by_case.setdefault(name.casefold(), name)
    found = difflib.get_close_matches(wrong.name.casefold(), by_case, _MAX_SUGGESTIONS, 0.6)
    return [by_case[name] for name in found]


def _shown(folder: Folder, wrong: FolderPath, parent: int) -> Iterator[str]:
    real = folder.real_path(parent)
    with os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.isprintable() and folder.readable(real / entry.name):
                yield entry.name


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    return True
