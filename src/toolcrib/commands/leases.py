"""Who has need of this daemon: runs that hold an agent, bridges that serve a client.

In: their coming and going. Out: who is there, and a word when a daemon that lives only for them is needed no longer.
`run:lease` and the socket tell, the daemon listens.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator

from toolcrib.errors import DaemonNotRunning, UsageError


class Lasts(enum.StrEnum):
    """How long a daemon lives."""

    UNTIL_STOPPED = "until stopped"
    FOR_RUNS = "for runs"
    """As long as runs and bridges need it. None is started in its place when it ends."""


class Leases:
    def __init__(self, lasts: Lasts = Lasts.UNTIL_STOPPED, *, on_idle: Callable[[], None] | None = None) -> None:
        """`on_idle` is called when the last one has left a daemon for runs, before that one's connection closes."""
        self.lasts = lasts
        self.agents: set[str] = set()
        """Those that a run holds now."""
        self._users = 0
        self._closed = False
        self._on_idle = on_idle

    @property
    def idle(self) -> bool:
        return not self._users

    def close(self) -> None:
        """The daemon stops: nobody is let in any more."""
        self._closed = True

    @property
    def agents_stay(self) -> bool:
        """Whether a run's agent outlasts its connection: the daemon stops, and the next one may go on with it."""
        return self._closed and self.lasts is Lasts.UNTIL_STOPPED

    @contextlib.contextmanager
    def held(self, agent: str) -> Iterator[None]:
        """For a run, as long as it holds the agent."""
        if agent in self.agents:
            raise UsageError(f"The agent {agent} is held by a run already.", remedy="Wait until that run is over.")
        with self.needed():
            self.agents.add(agent)
            try:
                yield
            finally:
                self.agents.discard(agent)

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        if self._closed:
            raise DaemonNotRunning("Toolcrib is stopping.", remedy="Try again: a new daemon is started then.")
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.idle and self.lasts is Lasts.FOR_RUNS and self._on_idle is not None:
                self._on_idle()
