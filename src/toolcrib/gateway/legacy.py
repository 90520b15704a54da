"""What legacy clients have open now, by their session id: requests they can take back, and streams.

In: a session id that `agents.sessions` has found to be the guest's own. Out: its `LegacyConnection`, for as long as
anything is open in it. The session itself, which outlives connections and restarts, is not here.
"""

from __future__ import annotations

from toolcrib.gateway.desk import UnderWay
from toolcrib.gateway.streams import EventStream


class LegacyConnection:
    __slots__ = ("id", "streams", "under_way")

    def __init__(self, id: str) -> None:
        self.id = id
        self.under_way = UnderWay()
        self.streams: set[EventStream] = set()

    def end(self) -> None:
        self.under_way.cancel_all()
        for stream in tuple(self.streams):
            stream.close()


class LegacyConnections:
    def __init__(self) -> None:
        self._by_id: dict[str, LegacyConnection] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def at(self, id: str) -> LegacyConnection:
        found = self._by_id.get(id)
        if found is None:
            found = self._by_id[id] = LegacyConnection(id)
        return found

    def let_go(self, connection: LegacyConnection) -> None:
        """Forgets it, unless something is still open in it."""
        if not connection.under_way and not connection.streams:
            self._by_id.pop(connection.id, None)

    def end(self, id: str) -> None:
        found = self._by_id.get(id)
        if found is not None:
            found.end()
