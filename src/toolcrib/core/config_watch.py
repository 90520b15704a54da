"""Notices when a person edits a configuration file, or a program replaces it.

In: the files of all open projects. Out: `Projects.reload_edited`, within two seconds of the change. The folders are
watched, not the files, because editors replace a file. Once per second the files themselves are checked as well: that
covers folders that appear, and file systems that report no changes. Only the daemon runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.errors import ToolcribError

if TYPE_CHECKING:
    from watchfiles import Change

    from toolcrib.core.projects import Projects

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, ...] | None, ...]

LOOK_AGAIN = 1000
"""Milliseconds between checks of the files, if no change is reported."""
_MOST_BATCHED = 400
"""Milliseconds that reported changes may be collected while more arrive."""
_CALM = 0.1
"""Seconds without a change before the files are read: a program may write a file in several steps."""
_MOST_STIRRED = 8
"""How often a file may change again before it is read anyway."""

_REST = 10
"""How many times longer than the loading itself no further edit is loaded: a file may be large, and change often."""


def stamp_of(files: Iterable[Path]) -> Stamp:
    """Differs after a change of any of the files, also if a link leads elsewhere."""
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        link = file.lstat()
    except OSError:
        return None
    try:
        found = file.stat()
    except OSError:
        return (link.st_ino,)
    return link.st_ino, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


class WatchedPlaces:
    """The folders to watch, and the names in them that matter."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.names: set[str] = set()
        found: set[tuple[Path, int, int]] = set()
        for file in files:
            # `Path.is_symlink` and `Path.is_dir` raise for a folder that may not be entered.
            for path in {file, Path(os.path.realpath(file))} if os.path.islink(file) else {file}:  # noqa: PTH114
                self.names.add(path.name)
                folder = path.parent
                while not os.path.isdir(folder):  # noqa: PTH112
                    # Its creation is the first sign of the file.
                    self.names.add(folder.name)
                    folder = folder.parent
                with contextlib.suppress(OSError):
                    there = folder.stat()
                    found.add((folder, there.st_dev, there.st_ino))
        self.identity = frozenset(found)
        self.folders = sorted({folder for folder, _, _ in found})

    def matters(self, _: Change, path: str) -> bool:
        return os.path.basename(path) in self.names  # noqa: PTH119 - called for each change in a project's folder


async def watch(projects: Projects) -> None:
    """Runs until it is cancelled."""
    # Imported here because only a daemon watches files.
    from watchfiles import awatch  # noqa: PLC0415

    polling, failure, resting_until = False, "", 0.0
    while True:
        try:
            places = await asyncio.to_thread(WatchedPlaces, projects.files)
            changes = awatch(
                *places.folders,
                watch_filter=places.matters,
                debounce=_MOST_BATCHED,
                rust_timeout=LOOK_AGAIN,
                yield_on_timeout=True,
                recursive=False,
                force_polling=polling,
                ignore_permission_denied=True,
            )
            async with contextlib.aclosing(changes):
                async for _ in changes:
                    edited, now = await asyncio.to_thread(_survey, projects)
                    if edited and time.monotonic() >= resting_until:
                        before = projects.seconds_loading
                        failure = await _apply(projects, failure)
                        resting_until = time.monotonic() + _REST * (projects.seconds_loading - before)
                    if now.identity != places.identity:
                        break
        except OSError as error:
            # A folder vanished before it was watched, or the system's limit of watches is reached.
            log.log(logging.DEBUG if polling else logging.WARNING, "watching files by polling: %s", error)
            polling = True
            await asyncio.sleep(LOOK_AGAIN / 1000)
        except Exception as error:
            # One project must not end the watching of the others.
            if failure != repr(error):
                log.exception("could not watch the configuration's files; trying again")
            failure = repr(error)
            await asyncio.sleep(LOOK_AGAIN / 1000)


def _survey(projects: Projects) -> tuple[bool, WatchedPlaces]:
    """Whether a file has changed since it was read, and the places to watch. Reads the disk."""
    return projects.is_edited() or bool(projects.outdated()), WatchedPlaces(projects.files)


async def _apply(projects: Projects, failure: str) -> str:
    """Reloads when the files are calm. Returns why that failed, which is logged once; it is tried again."""
    files = projects.files
    before = await asyncio.to_thread(stamp_of, files)
    for _ in range(_MOST_STIRRED):
        await asyncio.sleep(_CALM)
        now = await asyncio.to_thread(stamp_of, files)
        if now == before:
            break
        before = now
    try:
        await projects.reload_edited()
    except ToolcribError as error:
        if error.text() != failure:
            log.warning("could not reload the configuration: %s", error.text())
        return error.text()
    return ""


@contextlib.asynccontextmanager
async def watching(projects: Projects) -> AsyncIterator[None]:
    task = asyncio.create_task(watch(projects))
    try:
        yield
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            log.error("the configuration's files were not watched to the end", exc_info=ended)
