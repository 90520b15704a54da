"""Down into the folder one name at a time, never through a link.

In: the folder, and the names that lead down from it. Out: descriptors of folders, and whether commands may enter one. A
command that still runs can exchange a folder for a link at any moment; a path of several names would be followed to
wherever that leads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from toolcrib.workspace.confined.folder import Folder

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_AND_ENTER = 0o5


@contextlib.contextmanager
def inside(folder: Folder, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor (O_PATH) of the folder at a place; OSError where one of the names is none, or a link to one."""
    descriptor = os.dup(folder.fd)
    try:
        for name in parts:
            below = os.open(name, _STEP, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def may_enter(folder: Folder, descriptor: int) -> bool:
    """Whether commands could list that folder and go into it."""
    if os.geteuid() != 0:
        return os.access(f"/proc/self/fd/{descriptor}", os.R_OK | os.X_OK)
    # Commands run as the owner and without capabilities, root or not.
    there = os.fstat(descriptor)
    uid, gid = folder.owner
    shift = 6 if there.st_uid == uid else 3 if there.st_gid == gid else 0
    return (there.st_mode >> shift) & _LIST_AND_ENTER == _LIST_AND_ENTER
