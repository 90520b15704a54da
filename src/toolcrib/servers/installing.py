"""Starts through a launcher, which may fetch the server first: one at a time for each package.

In: a server's command line. Out: an `Installation`, which `server` enters for each attempt to connect and ends when
the server has answered. Two cold starts of one package at the same time can break npm's cache, so the second waits
until the first has answered or ended; in a crib also if that one belongs to another process (`locks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from toolcrib.config.launchers import INSTALL_LIMIT, launch_of
from toolcrib.config.model import ServerConfig, Transport
from toolcrib.errors import ServerUnavailable
from toolcrib.servers.last_words import fetch_failed

log = logging.getLogger(__name__)

PATIENCE = 8.0
"""Seconds that a launcher gets after SIGTERM, to undo a half installation and remove its locks. Killed, it may leave a
broken cache."""
STOP_PATIENCE = 4.5
"""The same when the server is stopped: the daemon's stop must not wait longer for it. npm needs up to four."""
_LOOK_AGAIN = 0.1
_LONGEST_TURN = INSTALL_LIMIT + 20.0
"""Seconds to wait for another cold start, which has a limit itself unless its process is stopped."""

_fetched: set[object] = set()
"""What launchers have fetched and started in this process."""
_under_way: set[object] = set()


class Installation:
    def __init__(self, config: ServerConfig, locks: Path | None = None) -> None:
        """`locks` is a folder for lock files."""
        self._name = config.name
        self._launch = launch_of(config.command, config.args) if config.transport is Transport.STDIO else None
        self._locks = locks
        self._lock: int | None = None
        self._holds = False
        self._began = 0.0
        self.waits = False
        """Whether another cold start of the package is waited for."""

    @property
    def is_due(self) -> bool:
        """Whether the launcher may still have to fetch the server."""
        return self._launch is not None and self._launch not in _fetched

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for other cold starts of the package, and keeps them waiting until `answered` or the end."""
        if not self.is_due:
            yield
            return
        await self._turn_comes()
        self._began = time.monotonic()
        if self._holds:
            log.info("%s: installing, if its launcher has not done so before", self._name)
        try:
            yield
        finally:
            if self._holds:
                log.info("%s: installing ended without an answer after %.0f s", self._name, self._seconds())
                self._leave()

    async def _turn_comes(self) -> None:
        began = time.monotonic()
        try:
            while self.is_due and not self._taken():
                self.waits = True
                # Another process or thread may have the turn, so there is no event to wait for.
                await asyncio.sleep(_LOOK_AGAIN)
                if time.monotonic() - began > _LONGEST_TURN:
                    raise ServerUnavailable(
                        f"Another program has been starting the same package for {_LONGEST_TURN:.0f} s.",
                        remedy="End that program if it hangs.",
                    )
        finally:
            self.waits = False

    def answered(self) -> None:
        if self._holds and self._launch is not None:
            log.info("%s: installed after %.0f s", self._name, self._seconds())
            _fetched.add(self._launch)
            self._leave()

    def fetch_failed(self, lines: Sequence[str]) -> bool:
        """Whether the last lines on stderr are of the launcher, not of the server."""
        return self._launch is not None and fetch_failed(lines)

    def failed(self) -> None:
        """The next start counts as a cold one: the package may have been deleted from the launcher's cache."""
        _fetched.discard(self._launch)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _taken(self) -> bool:
        if self._launch in _under_way or not self._locked():
            return False
        _under_way.add(self._launch)
        self._holds = True
        return True

    def _locked(self) -> bool:
        """Whether no other process has the turn. Without a usable folder, other processes are ignored."""
        if self._locks is None or self._launch is None:
            return True
        name = hashlib.sha256(f"{self._launch.launcher} {self._launch.package}".encode()).hexdigest()[:16]
        try:
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("%s: other processes may install it too: %s", self._name, error)
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def _leave(self) -> None:
        self._holds = False
        _under_way.discard(self._launch)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
