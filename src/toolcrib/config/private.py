"""Folders of the user's that nobody else may enter."""

from __future__ import annotations

from pathlib import Path

from toolcrib.errors import StoreError


def private_folder(folder: Path) -> None:
    """Makes it, or takes others' rights away from one that is there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise unusable(error, folder) from error


def unusable(error: OSError, place: Path) -> StoreError:
    """What to say of a file or folder of the user's that cannot be made, read or written."""
    return StoreError(
        f"{error.filename or place} cannot be used: {error.strerror or error}.",
        remedy="Make room, or make it writable for you; TOOLCRIB_HOME names another folder.",
    )
