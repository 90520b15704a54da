"""Whether anything still runs in the folder while the next sandbox is made.

In: a look through the folder. Out: what of it can be mounted over. bubblewrap goes to a place by its path, and a
command that runs meanwhile could put a link there that leads out; then something empty would be made outside. So what
lies deeper than the folder's own top is mounted over only if it was seen when nothing ran: whatever began later holds
it in its place, for nothing that is mounted on can be renamed. What commands make for themselves while they run waits
until all have ended.

Who runs says so by a shared lock on the folder, who looks takes an exclusive one; they hold between processes too.
Where commands may commit the exclusive one is kept: how the repository was before is what it was when nothing ran, and
it is put right when the last one has ended. Looking takes time in large folders, so it is done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox.disarm import disarm
from toolcrib.workspace.sandbox.git import Before
from toolcrib.workspace.sandbox.patience import in_a_thread
from toolcrib.workspace.sandbox.survey import Survey, look

_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_DOWNGRADE_SECONDS = 5.0
_ROUNDS = 3
_MOST_NOTES = 20


class Floor:
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
        self._is_mending = False
        self._running = 0
        self._wrote = False
        self._alone = False
        self._settled = Survey()
        self._before: Before | None = None

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

    def stands(self) -> None:
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
        self._is_mending = True
        try:
            return await in_a_thread(self._mend) if self._wrote else []
        except (OSError, WorkspaceError) as error:
            return [f"What the command left could not be put right: {error}. Look at it before you use git."]
        finally:
            self._is_mending = False
            self._running = 0
            self._wrote = False
            self._let_go()
            self._empty.set()

    def _mend(self) -> list[str]:
        done = self._before.mend(self._folder) if self._before else []
        # Again, as what was a repository is one by its own name, too, until its HEAD has another one.
        for _ in range(_ROUNDS):
            new = disarm(self._folder, self._settled, self._survey())
            done += new
            if not new:
                break
        left = len(done) - _MOST_NOTES
        return [*done[:_MOST_NOTES], f"And {left} more like these."] if left > 0 else done

    async def _try(self) -> Survey | None:
        if self._is_mending or self._is_closing:
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
            self._settled = await in_a_thread(self._survey)
            self._before = await in_a_thread(lambda: Before.look(self._folder)) if self._commits else None
        except BaseException:
            self._let_go()
            raise

    async def _beside_others(self) -> Survey | None:
        """What was settled and is still the same. What must be hidden and was not settled cannot be hidden now."""
        if self._hides:
            seen = await in_a_thread(self._survey)
            known = {(found.parts, found.inode) for found in [*self._settled.hidden, *self._settled.closed]}
            if any((found.parts, found.inode) not in known for found in [*seen.hidden, *seen.closed]):
                return None
            if self._is_mending or not self._running:
                # The last one left meanwhile.
                return None
        try:
            same = self._settled.where(lambda found: look(self._folder, found.parts) == found)
            # At the top another file may be mounted over as well: a person's editor replaces what it saves.
            tops = [look(self._folder, found.parts) for found in self._settled.guarded if len(found.parts) == 1]
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
