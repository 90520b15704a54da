"""Coordinates the commands in a folder: what a new sandbox may mount over, and repairs after the last command.

In: a survey of the folder. Out: the paths that can be mounted over. bubblewrap mounts by path, and a running command
could replace a path with a link that leads outside; bubblewrap would then create something there. So paths below the
top level are mounted over only if they were seen while nothing ran. Later commands cannot move them, because a mount
point cannot be renamed. Paths that commands create while they run have to wait until all have ended.

A running command holds a shared lock on the folder; a survey takes an exclusive one. Both work across processes. If
commands may commit, the exclusive lock is kept: the repository is compared with its state before, and repaired when
the last command has ended. Surveys of large folders take time, so they run in a thread.

New git repositories and guarded files, which other programs would run or obey, are quarantined when the last command
has ended: they are renamed so that no program recognises them. Nothing is deleted. Until then, or if the server is
killed first, they take effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined_open import FileKind
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.git_protection import Placeholders, RepositoryState, quarantine
from toolcrib.workspace.sandbox.process import finish_in_thread
from toolcrib.workspace.sandbox.survey import Parts, Survey, SurveyedPath, look_at

_SLACK = 1.0
"""Seconds that a file system's clock may be behind ours."""


def quarantine_new(folder: Folder, before: Survey, now: Survey) -> list[str]:
    done: list[str] = []
    repositories = [] if folder.repositories else _repositories(folder, before, now)
    guarded = _new(before, before.guarded, _held(before.guarded), now.guarded)
    # Deepest first: a parent may be renamed as well.
    for found in sorted({*repositories, *guarded}, key=lambda found: -len(found.parts)):
        path = "/".join(found.parts)
        why = (
            "a new git repository's configuration can start programs (repositories: true in workspace.yml keeps them)"
            if found in repositories
            else "it configures other programs (guarded: in workspace.yml)"
        )
        try:
            done.append(f"{path} was renamed {quarantine(folder, found.parts)}: {why}.")
        except OSError as error:
            done.append(f"{path} could not be renamed ({error.strerror}). Check it first: {why}.")
    return done


def _repositories(folder: Folder, before: Survey, now: Survey) -> list[SurveyedPath]:
    # An empty folder is not a repository; it may be another server's placeholder.
    holders = Placeholders(folder)
    made = [
        found
        for found in _new(before, before.repositories, _held(before.repositories), now.repositories)
        if not holders.may_be_one("/".join(found.parts), None)
    ]
    # A new file may have completed a repository in a folder that already had a HEAD.
    completed = [found for found in now.bare if found not in before.bare and found in before.heads]
    return [*made, *_new(before, before.heads, _held(before.bare), now.heads), *completed]


def _held(known: list[SurveyedPath]) -> set[Parts]:
    """Commands could not change these paths, so any change was made by the user."""
    return {found.parts for found in known if found.kind is not FileKind.LINK}


def _new(before: Survey, known: list[SurveyedPath], held: set[Parts], there: list[SurveyedPath]) -> list[SurveyedPath]:
    """If the earlier survey was incomplete, only paths changed since then count as new."""
    return [
        found
        for found in there
        if found not in known
        and found.parts not in held
        and (before.is_whole or found.changed >= before.began - _SLACK)
    ]


_PAUSE, _MAX_PAUSE = 0.02, 1.0
_DOWNGRADE_SECONDS = 5.0
_ROUNDS = 3
_MAX_NOTES = 20


class FolderLock:
    """Belongs to one sandbox. Several sandboxes may use the same folder, here or in other processes."""

    def __init__(self, folder: Folder, survey: Callable[[], Survey], *, hides: bool, commits: bool) -> None:
        """`survey` runs before the first command and after the last."""
        self._folder = folder
        self._survey = survey
        self._hides = hides
        self._commits = commits
        self._lock = os.open(f"/proc/self/fd/{folder.fd}", os.O_RDONLY | os.O_DIRECTORY)
        self._entering = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_closing = False
        self._is_repairing = False
        self._running = 0
        self._wrote = False
        self._alone = False
        self._settled = Survey()
        self._before: RepositoryState | None = None

    async def close(self) -> None:
        """Waits until all commands have ended."""
        self._is_closing = True
        async with self._entering:
            await self._empty.wait()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    async def enter(self, *, writes: bool, seconds: float) -> Survey:
        """Returns what to mount over; call `leave` afterwards. Raises WorkspaceError if others don't end in time."""
        end = time.monotonic() + seconds
        pause = _PAUSE
        async with self._entering:
            while (found := await self._try()) is None:
                if time.monotonic() > end or self._is_closing:
                    raise WorkspaceError(
                        "Another command is running in this folder; some files can only be protected once it ends.",
                        remedy="Wait for it, or stop it.",
                    )
                await self._rest(min(pause, max(0.0, end - time.monotonic())))
                pause = min(pause * 2, _MAX_PAUSE)
            self._running += 1
            self._empty.clear()
            self._wrote = self._wrote or writes
            return found

    def sandbox_made(self) -> None:
        """Downgrades to a shared lock: the sandbox exists, and the command starts now. Raises OSError."""
        end = time.monotonic() + _DOWNGRADE_SECONDS
        while self._alone and not self._commits:
            # Another process may survey between the two locks, which is fine: nothing runs yet.
            if self._take(fcntl.LOCK_SH):
                self._alone = False
            elif time.monotonic() > end:
                raise TimeoutError("the folder is locked by another process")
            else:
                time.sleep(0.001)

    async def leave(self) -> list[str]:
        """Returns the repairs, made when the last command leaves."""
        if self._running > 1:
            self._running -= 1
            return []
        self._is_repairing = True
        try:
            return await finish_in_thread(self._repair) if self._wrote else []
        except (OSError, WorkspaceError) as error:
            return [f"The folder could not be repaired after the command: {error}. Check it before you use git."]
        finally:
            self._is_repairing = False
            self._running = 0
            self._wrote = False
            self._let_go()
            self._empty.set()

    def _repair(self) -> list[str]:
        done = self._before.repair(self._folder) if self._before else []
        # Repeated: a renamed repository is still one until its HEAD is renamed, too.
        for _ in range(_ROUNDS):
            new = quarantine_new(self._folder, self._settled, self._survey())
            done += new
            if not new:
                break
        left = len(done) - _MAX_NOTES
        return [*done[:_MAX_NOTES], f"And {left} more like these."] if left > 0 else done

    async def _try(self) -> Survey | None:
        if self._is_repairing or self._is_closing:
            return None
        if self._running:
            return await self._beside_others()
        if self._take(fcntl.LOCK_EX):
            self._alone = True
            await self._settle()
            return self._settled
        if not self._commits and self._take(fcntl.LOCK_SH):
            await self._settle()
            if self._settled.is_empty:
                return self._settled
            self._let_go()
        return None

    async def _settle(self) -> None:
        try:
            self._settled = await finish_in_thread(self._survey)
            self._before = await finish_in_thread(lambda: RepositoryState.look(self._folder)) if self._commits else None
        except BaseException:
            self._let_go()
            raise

    async def _beside_others(self) -> Survey | None:
        """The unchanged part of the settled survey; None if a new path must be hidden, which is impossible now."""
        if self._hides:
            seen = await finish_in_thread(self._survey)
            known = {(found.parts, found.inode) for found in [*self._settled.hidden, *self._settled.closed]}
            if any((found.parts, found.inode) not in known for found in [*seen.hidden, *seen.closed]):
                return None
            if self._is_repairing or not self._running:
                # The last command ended meanwhile.
                return None
        try:
            same = self._settled.where(lambda found: look_at(self._folder, found.parts) == found)
            # At the top level a replaced file may be mounted over too: editors replace the files they save.
            tops = [look_at(self._folder, found.parts) for found in self._settled.guarded if len(found.parts) == 1]
            same.guarded = list({*same.guarded, *filter(None, tops)})
            return same
        except PermissionError:
            # A running command closed a folder, and could open it again.
            return None

    async def _rest(self, seconds: float) -> None:
        """Waits until our last command ends, or for this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._running:
                    await self._empty.wait()
                else:
                    await asyncio.sleep(seconds)

    def _let_go(self) -> None:
        self._alone = False
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take(self, kind: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
            return True
        return False
