"""Notices that a connected server has had no call for some time.

In: when its last call ended, set by `server`. Out: `on_idle`, once no call has been in flight for the limit. Pings and
lists are not calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class IdleTimer:
    __slots__ = ("_is_busy", "_limit", "_on_idle", "_since", "_timer", "used_at")

    def __init__(self, limit: float, is_busy: Callable[[], bool], on_idle: Callable[[], None]) -> None:
        """`limit` in seconds; 0 means that the server is never idle."""
        self.used_at = 0.0
        """When the last call ended, by the monotonic clock; 0 before the first."""
        self._limit = limit
        self._is_busy = is_busy
        self._on_idle = on_idle
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """When the server is connected."""
        self.stop()
        self._since = time.monotonic()
        if self._limit:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        left = max(self._since, self.used_at) + self._limit - time.monotonic()
        busy = self._is_busy()
        if busy or left > 0:
            # A call in flight may end any time, so look again sooner than after the whole limit.
            again = self._limit / 10 if busy else left
            self._timer = asyncio.get_running_loop().call_later(again, self._check)
        else:
            self._timer = None
            self._on_idle()
