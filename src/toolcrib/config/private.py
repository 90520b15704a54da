"""Folders of the user's that nobody else may enter."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolcrib.errors import StoreError


def private_folder(folder: Path) -> None:
    """Makes it, or takes others' rights away from one that is there. One that others own, or lead to, is not taken."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = folder.lstat()
        # What was looked at is what is changed, whatever is put in its place meanwhile.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            there = os.fstat(descriptor)
            owners = {there.st_uid, link.st_uid} if stat.S_ISLNK(link.st_mode) else {there.st_uid}
            if owners == {os.geteuid()} and there.st_mode & 0o077:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unusable(error, folder) from error
    if owners != {os.geteuid()}:
        raise StoreError(
            f"{folder} belongs to another user, who could read or change what is kept there.",
            remedy="Run it as that user, or name another folder: TOOLCRIB_HOME.",
        )


def empty_folder(folder: Path) -> None:
    """Makes a private folder that nothing can be put into, except by root."""
    private_folder(folder)
    try:
        folder.chmod(0o500)
    except OSError as error:
        raise unusable(error, folder) from error


def unusable(error: OSError, place: Path) -> StoreError:
    """What to say of a file or folder of the user's that cannot be made, read or written."""
    return StoreError(
        f"{error.filename or place} cannot be used: {error.strerror or error}.",
        remedy="Make room, or make it writable for you; TOOLCRIB_HOME names another folder.",
    )
