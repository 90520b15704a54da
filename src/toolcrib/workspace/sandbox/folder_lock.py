"""Who runs in the folder: what the next command's sandbox may mount over, and what is put right after the last one.

In: a survey of the folder. Out: what of it can be mounted over. bubblewrap goes to a place by its path, and a
command that runs meanwhile could put a link there that leads out; then something empty would be made outside. So
what lies deeper than the folder's own top is mounted over only if it was seen when nothing ran: whatever began
later holds it in its place, for nothing that is mounted on can be renamed. What commands make for themselves while
they run waits until all have ended.

Who runs says so by a shared lock on the folder, who looks takes an exclusive one; they hold between processes too.
Where commands may commit the exclusive one is kept: how the repository was before is what it was when nothing ran,
and it is put right when the last one has ended. Looking takes time in large folders, so it is done in a thread.

What a command has made and other programs would run or obey (git repositories, guarded files) is quarantined when
the last command has ended: it gets another name, by which no program knows it; nothing is removed. Until then, and
where a server is killed before, it is in force.
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
    # The deepest first: what it lies in may get another name as well.
    for found in sorted({*repositories, *guarded}, key=lambda found: -len(found.parts)):
        path = "/".join(found.parts)
        why = (
            "a new git repository's configuration can start programs (repositories: true in workspace.yml keeps them)"
            if found in repositories
            else "other programs obey it (guarded: in workspace.yml decides)"
        )
        try:
            done.append(f"{path} is now {quarantine(folder, found.parts)}: {why}.")
        except OSError as error:
            done.append(f"{path} could not be renamed ({error.strerror}). Look at it first: {why}.")
    return done


def _repositories(folder: Folder, before: Survey, now: Survey) -> list[SurveyedPath]:
    # An empty folder is none; it may hold the place for the command of another server.
    holders = Placeholders(folder)
    made = [
        found
        for found in _new(before, before.repositories, _held(before.repositories), now.repositories)
        if not holders.may_be_one("/".join(found.parts), None)
    ]
    # Another file may have made one of a folder that had a HEAD already.
    completed = [found for found in now.bare if found not in before.bare and found in before.heads]
    return [*made, *_new(before, before.heads, _held(before.bare), now.heads), *completed]


def _held(known: list[SurveyedPath]) -> set[Parts]:
    """Commands could not change these, so whatever is there now is a person's."""
    return {found.parts for found in known if found.kind is not FileKind.LINK}


def _new(before: Survey, known: list[SurveyedPath], held: set[Parts], there: list[SurveyedPath]) -> list[SurveyedPath]:
    """If not all of the folder was looked at before, what has not changed since is not new."""
    return [
        found
        for found in there
        if found not in known
        and found.parts not in held
        and (before.is_whole or found.changed >= before.began - _SLACK)
    ]


_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_DOWNGRADE_SECONDS = 5.0
_ROUNDS = 3
_MOST_NOTES = 20


class FolderLock:
    """Of one sandbox. Several may stand on the same folder, here or in other processes."""

    def __init__(self, folder: Folder, survey: Callable[[], Survey], *, hides: bool, commits: bool) -> None:
        """`survey` looks through the folder, before the first command and after the last."""
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
        """When all who are on it have left."""
        self._is_closing = True
        async with self._entering:
            await self._empty.wait()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    async def enter(self, *, writes: bool, seconds: float) -> Survey:
        """What to mount over; `leave` must follow. WorkspaceError if others do not end in time."""
        end = time.monotonic() + seconds
        pause = _PAUSE
        async with self._entering:
            while (found := await self._try()) is None:
                if time.monotonic() > end or self._is_closing:
                    raise WorkspaceError(
                        "Another command still runs in this folder, and what is to be protected can only be protected "
                        "when it has ended.",
                        remedy="Wait for it, or end it.",
                    )
                await self._rest(min(pause, max(0.0, end - time.monotonic())))
                pause = min(pause * 2, _LONGEST_PAUSE)
            self._running += 1
            self._empty.clear()
            self._wrote = self._wrote or writes
            return found

    def sandbox_made(self) -> None:
        """A sandbox is made; from now on something runs. OSError if that cannot be said."""
        end = time.monotonic() + _DOWNGRADE_SECONDS
        while self._alone and not self._commits:
            # Between the two locks another may look for a moment; nothing runs yet, so it may.
            if self._take(fcntl.LOCK_SH):
                self._alone = False
            elif time.monotonic() > end:
                raise TimeoutError("the folder is locked by another process")
            else:
                time.sleep(0.001)

    async def leave(self) -> list[str]:
        """What was put right, by the last one who leaves."""
        if self._running > 1:
            self._running -= 1
            return []
        self._is_repairing = True
        try:
            return await finish_in_thread(self._repair) if self._wrote else []
        except (OSError, WorkspaceError) as error:
            return [f"What the command left could not be put right: {error}. Look at it before you use git."]
        finally:
            self._is_repairing = False
            self._running = 0
            self._wrote = False
            self._let_go()
            self._empty.set()

    def _repair(self) -> list[str]:
        done = self._before.repair(self._folder) if self._before else []
        # Again, as what was a repository is one by its own name, too, until its HEAD has another one.
        for _ in range(_ROUNDS):
            new = quarantine_new(self._folder, self._settled, self._survey())
            done += new
            if not new:
                break
        left = len(done) - _MOST_NOTES
        return [*done[:_MOST_NOTES], f"And {left} more like these."] if left > 0 else done

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
        """What was settled and is still the same. What must be hidden and was not settled cannot be hidden now."""
        if self._hides:
            seen = await finish_in_thread(self._survey)
            known = {(found.parts, found.inode) for found in [*self._settled.hidden, *self._settled.closed]}
            if any((found.parts, found.inode) not in known for found in [*seen.hidden, *seen.closed]):
                return None
            if self._is_repairing or not self._running:
                # The last one left meanwhile.
                return None
        try:
            same = self._settled.where(lambda found: look_at(self._folder, found.parts) == found)
            # At the top another file may be mounted over as well: a person's editor replaces what it saves.
            tops = [look_at(self._folder, found.parts) for found in self._settled.guarded if len(found.parts) == 1]
            same.guarded = list({*same.guarded, *filter(None, tops)})
            return same
        except PermissionError:
            # A folder was closed by one that still runs, who could open it again.
            return None

    async def _rest(self, seconds: float) -> None:
        """Until the last of ours has left, or for so long."""
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
