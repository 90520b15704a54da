"""Where a project's run logs lie: `.toolcrib/runs/`, reached without following a link on the way.

In: a project's root, which may be somebody else's work. Out: a descriptor of the folder, and the names of logs in it.
`log` writes there, `shelf` reads.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from toolcrib.config.paths import PROJECT_FOLDER, RUNS
from toolcrib.workspace.confined.beneath import step
from toolcrib.workspace.confined.refusal import kind_of

ENDING = ".jsonl"

_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_IGNORE = ".gitignore"
_MAKE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Missing(enum.Enum):
    """What happens where the folder is not there."""

    MADE = enum.auto()
    TOLD = enum.auto()
    """As FileNotFoundError."""


def folder_of(root: Path) -> Path:
    return root / PROJECT_FOLDER / RUNS


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


@contextlib.contextmanager
def entered(root: Path, missing: Missing) -> Iterator[int]:
    """Raises OSError; one that is about a name says which in words."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode in ((PROJECT_FOLDER, 0o777), (RUNS, 0o700)):
            if missing is Missing.MADE:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=here)
            below = _below(here, name)
            os.close(here)
            here = below
        if missing is Missing.MADE:
            _keep_to_us(here)
        yield here
    finally:
        os.close(here)


def make(folder: int, name: str) -> int:
    """A new file for us alone."""
    return os.open(name, _MAKE, 0o600, dir_fd=folder)


def names(folder: int) -> list[str]:
    """The ids of the runs that have a log here, the newest first."""
    with os.scandir(folder) as found:
        ids = [entry.name.removesuffix(ENDING) for entry in found if entry.name.endswith(ENDING)]
    return sorted(filter(is_run_id, ids), reverse=True)


def _below(here: int, name: str) -> int:
    try:
        return step(here, name, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            kind = kind_of(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
            raise OSError(error.errno, f"{name} is a {kind}, not a folder", name) from error
        raise


def _keep_to_us(folder: int) -> None:
    there = os.fstat(folder)
    if there.st_uid == os.geteuid() and there.st_mode & 0o077:
        os.fchmod(folder, stat.S_IRWXU)
    # What a run was told and did is nobody's business who looks at the project's history.
    with contextlib.suppress(FileExistsError):
        descriptor = make(folder, _IGNORE)
        try:
            os.write(descriptor, b"*\n")
        finally:
            os.close(descriptor)
