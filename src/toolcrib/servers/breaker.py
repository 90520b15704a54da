"""When a lost server is tried again, and whether calls wait for it or fail at once.

In: what the supervisor saw: connected, lost. Out: the pause before the next attempt, and whether a call may trigger an
attempt now. One per server; used only by `server`.
"""

from __future__ import annotations

import random
import time

from toolcrib.config.model import Retry

MAX_PAUSE = 60.0
_LIVED = 30.0
"""A connection that lasted this many seconds does not count as a failed attempt: a server that connects and dies in a
loop is tried ever more rarely."""
_PATIENCE = 3
"""Failed attempts in a row after which calls don't wait for the next one."""
_KICK = 1.0
"""A call to an unavailable server triggers an immediate attempt, at most once in this many seconds, or once in the
current pause if that is longer."""


class Breaker:
    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.failures = 0
        """Failed attempts in a row."""
        self._ready_at: float | None = None
        self._hung = False
        self._last_kick = 0.0
        self._next = 0.0
        self._earliest = 0.0

    def reset(self) -> None:
        self.failures = 0
        self._hung = False

    def begin(self) -> None:
        """An attempt to connect begins."""
        self._ready_at = None
        self._earliest = 0.0

    def connected(self) -> None:
        self._ready_at = time.monotonic()
        self._hung = False

    def hang(self) -> None:
        """The server does not answer, though it may still exist: calls don't wait for the next attempts either."""
        self._hung = True

    def postpone(self, seconds: float) -> None:
        """The server wants to be left alone for so long: neither a retry nor a call triggers an attempt before."""
        self._earliest = time.monotonic() + seconds

    def lost(self, *, misbehaved: bool = False) -> None:
        """An attempt or a connection has ended."""
        now = time.monotonic()
        lived = self._ready_at is not None and now - self._ready_at >= _LIVED and not misbehaved
        self.failures = 0 if lived else self.failures + 1

    @property
    def exhausted(self) -> bool:
        most = self._retry.max_attempts
        return most is not None and self.failures >= most

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once while the server is not connected."""
        return self._hung or self.failures >= _PATIENCE

    def pause(self) -> float:
        """Seconds until the next attempt. Random, so that many servers behind one network don't reconnect at once."""
        now = time.monotonic()
        pause = self._window() * random.uniform(0.8, 1.2)  # noqa: S311 - spreads attempts, guards nothing
        self._next = max(now + pause, self._earliest)
        return self._next - now

    @property
    def next_attempt(self) -> float:
        """Seconds until the next attempt; 0 if it has begun."""
        return max(0.0, self._next - time.monotonic())

    def kick(self) -> bool:
        """Whether a call may trigger an attempt now."""
        now = time.monotonic()
        rarely = max(_KICK, self._window() if self.is_open else 0.0)
        if self._hung or now < self._earliest or now - self._last_kick < rarely:
            return False
        self._last_kick = now
        return True

    def _window(self) -> float:
        return min(self._retry.backoff * 2.0 ** min(max(self.failures - 1, 0), 16), MAX_PAUSE)
