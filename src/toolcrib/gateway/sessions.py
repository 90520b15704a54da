"""The sessions of legacy clients: an id from `initialize` to DELETE, bound to who began it.

In: a caller and the project it works in. Out: a `LegacySession` by its id, for its owner only. Modern clients have
none: each of their requests stands for itself.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from toolcrib.crib import Project
from toolcrib.errors import TooManySessions
from toolcrib.gateway.desk import Client
from toolcrib.gateway.streams import EventStream
from toolcrib.policy import Caller

IDLE_LIMIT = 24 * 3600.0
MOST = 10_000


@dataclass(kw_only=True, eq=False)
class LegacySession(Client):
    id: str
    last_used: float
    streams: set[EventStream] = field(default_factory=set)
    """Open GET streams; they end with the session."""


class LegacySessions:
    def __init__(self) -> None:
        self._by_id: OrderedDict[str, LegacySession] = OrderedDict()
        """The one that was not used for the longest time first."""

    def begin(self, caller: Caller, project: Project) -> LegacySession:
        self._make_room()
        session = LegacySession(id=secrets.token_hex(16), caller=caller, project=project, last_used=time.monotonic())
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str, caller: Caller) -> LegacySession | None:
        """Another's session is as unknown as one that never was."""
        session = self._by_id.get(session_id)
        if session is None or session.caller.agent != caller.agent:
            return None
        session.last_used = time.monotonic()
        self._by_id.move_to_end(session_id)
        return session

    def end(self, session: LegacySession) -> None:
        self._by_id.pop(session.id, None)

    def __len__(self) -> int:
        return len(self._by_id)

    def _make_room(self) -> None:
        """Forgets what was idle for too long; where all places are taken, also the one that was idle the longest.

        Most clients never say that they end. One that comes back to a forgotten session is told to begin again.
        """
        limit = time.monotonic() - IDLE_LIMIT
        idle = (session for session in tuple(self._by_id.values()) if not session.under_way)
        for session in idle:
            if session.last_used >= limit and len(self._by_id) < MOST:
                return
            del self._by_id[session.id]
        if len(self._by_id) >= MOST:
            raise TooManySessions(f"{MOST} sessions are at work.", remedy="Wait for some to end, then try again.")
