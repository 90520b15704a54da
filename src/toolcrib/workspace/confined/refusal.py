"""What a model is told when the system says no.

In: the system's error and where it came about. Out: a `WorkspaceError` with what would work; of a path that leads
nowhere, with names that are near. `folder` and the tools raise it.
"""

from __future__ import annotations

import difflib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolcrib.errors import WorkspaceError

if TYPE_CHECKING:
    from toolcrib.workspace.confined.folder import Folder, Spot

_MOST_NAMES = 2000
_MOST_NEAR = 3

_FULL = "Free some space, or write less. The file is as it was."
_REASONS: dict[int, tuple[str, str]] = {
    errno.EXDEV: ("leads out of the workspace", "Use paths inside it; what lies outside is out of reach."),
    errno.ELOOP: ("leads through too many links", "Name the file itself instead of a link to it."),
    errno.ENOTDIR: ("goes through something that is not a folder", "List the folders."),
    errno.EISDIR: ("is a folder", "Name a file in it."),
    errno.EACCES: ("may not be opened: permission denied", "Its owner must allow it."),
    errno.EPERM: ("may not be changed: the system does not permit it", "Its owner must allow it."),
    errno.ENAMETOOLONG: ("is too long a name", "Shorten it."),
    errno.ENOSPC: ("could not be written: the disk is full", _FULL),
    errno.EDQUOT: ("could not be written: the disk quota is used up", _FULL),
    errno.EFBIG: ("could not be written: it would be too large", "Write several smaller files."),
    errno.EROFS: ("could not be written: the file system is read-only", "Only reading works here."),
    errno.ENXIO: ("is a device or a pipe without its other end", "Only regular files can be read."),
    errno.EEXIST: ("exists already", "Choose another name, or overwrite it."),
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


def kind_of(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "thing of unknown kind")


def refusal(error: OSError, folder: Folder, spot: Spot) -> WorkspaceError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _nothing_there(folder, spot, error.errno)
    what, remedy = _REASONS.get(error.errno or 0, (f"failed: {error.strerror}", "Try again, or another path."))
    return WorkspaceError(f"{spot} {what}.", remedy=remedy, data={"path": str(spot)})


def _nothing_there(folder: Folder, spot: Spot, number: int) -> WorkspaceError:
    """Says which name on the way is the wrong one, and what there is instead."""
    for length in range(len(spot.parts)):
        above, name = type(spot)(spot.parts[:length]), spot.parts[length]
        try:
            there = folder.open_dir(above)
        except WorkspaceError:
            break
        try:
            if not _exists(there, name):
                return _missing(folder, spot, type(spot)(spot.parts[: length + 1]), there)
        finally:
            os.close(there)
    what, remedy = _REASONS.get(number, ("leads to something that is not there", "List the folders."))
    return WorkspaceError(f"{spot} {what}.", remedy=remedy, data={"path": str(spot)})


def _missing(folder: Folder, asked: Spot, wrong: Spot, there: int) -> WorkspaceError:
    near = [str(wrong.parent / name) for name in _near(folder, wrong, there)]
    where = "in the workspace" if not wrong.parts[1:] else f"in {wrong.parent}"
    message = f"{asked} is not there: there is no {wrong.name} {where}."
    remedy = f"Did you mean {', '.join(near)}?" if near else f"List what there is {where}."
    return WorkspaceError(message, remedy=remedy, data={"path": str(asked), "near": near})


def _near(folder: Folder, wrong: Spot, there: int) -> list[str]:
    shown = itertools.islice(_shown(folder, wrong, there), _MOST_NAMES)
    by_case: dict[str, str] = {}
    for name in shown:
        by_case.setdefault(name.casefold(), name)
    found = difflib.get_close_matches(wrong.name.casefold(), by_case, _MOST_NEAR, 0.6)
    return [by_case[name] for name in found]


def _shown(folder: Folder, wrong: Spot, there: int) -> Iterator[str]:
    real = folder.lies_at(there)
    with os.scandir(there) as entries:
        for entry in entries:
            if entry.name.isprintable() and folder.readable(real / entry.name):
                yield entry.name


def _exists(there: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=there, follow_symlinks=False)
    except OSError:
        return False
    return True
