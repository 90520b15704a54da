"""Whether anything still runs in the folder while the next sandbox is made.

In: a look through the folder. Out: what of it can be mounted over. bubblewrap goes to a place by its path, and a
command that runs meanwhile could put a link there that leads out; then something empty would be made outside. So what
lies deeper than the folder's own top is mounted over only if it was seen when nothing ran: whatever began later holds
it in its place, for nothing that is mounted on can be renamed. What commands make for themselves while they run waits
until all have ended.

Who runs says so by a shared lock on the folder, who looks takes an exclusive one; they hold between processes too.
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
from toolcrib.workspace.sandbox.survey import Survey, look

_PAUSE = 0.02
_DOWNGRADE_SECONDS = 5.0


class Floor:
    """Of one sandbox. Several may stand on the same folder, here or in other processes."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = os.open(f"/proc/self/fd/{folder.fd}", os.O_RDONLY | os.O_DIRECTORY)
        self._entering = asyncio.Lock()
        self._running = 0
        self._alone = False
        self._settled = Survey()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def enter(self, survey: Callable[[], Survey], seconds: float) -> Survey:
        """What to mount over; `leave` must follow. WorkspaceError if others do not end in time."""
        end = time.monotonic() + seconds
        async with self._entering:
            while (found := self._try(survey)) is None:
                if time.monotonic() > end:
                    raise WorkspaceError(
                        "Another command still runs in this folder, and what is to be protected can only be protected "
                        "when it has ended.",
                        remedy="Wait for it, or end it.",
                    )
                await asyncio.sleep(_PAUSE)
            self._running += 1
            return found

    def stands(self) -> None:
        """A sandbox is made; from now on something runs. OSError if that cannot be said."""
        end = time.monotonic() + _DOWNGRADE_SECONDS
        while self._alone:
            # Between the two locks another may look for a moment; nothing runs yet, so it may.
            if self._take(fcntl.LOCK_SH):
                self._alone = False
            elif time.monotonic() > end:
                raise TimeoutError("the folder is locked by another process")
            else:
                time.sleep(0.001)

    def leave(self) -> None:
        self._running -= 1
        if not self._running and self._lock >= 0:
            self._alone = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _try(self, survey: Callable[[], Survey]) -> Survey | None:
        if self._running:
            return self._beside_others(survey)
        if self._take(fcntl.LOCK_EX):
            self._alone = True
            self._settled = survey()
            return self._settled
        if self._take(fcntl.LOCK_SH):
            self._settled = survey()
            if self._settled.is_empty:
                return self._settled
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return None

    def _beside_others(self, survey: Callable[[], Survey]) -> Survey | None:
        """What was settled and is still the same. What must be hidden and was not settled cannot be hidden now."""
        known = {(found.parts, found.inode) for found in self._settled.hidden}
        if any((found.parts, found.inode) not in known for found in survey().hidden):
            return None
        return Survey(
            repositories=[found for found in self._settled.repositories if look(self._folder, found.parts) == found],
            hidden=[found for found in self._settled.hidden if look(self._folder, found.parts) == found],
            sockets=[found for found in self._settled.sockets if look(self._folder, found.parts) == found],
            submodules=self._settled.submodules,
            under_way=self._settled.under_way,
        )

    def _take(self, kind: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
            return True
        return False
