"""How much of the book is kept: by age and by size.

In: a database, on the thread that writes it. Out: the oldest rows are gone, and an entry in the chain says so. A step
is one transaction: what is deleted, the entry that tells of it and the new beginning come together or not at all.

Size is the rows' own bytes. It is estimated: the mean of up to a thousand rows spread evenly over the book, times their
number. Indexes and the room that the database keeps for later come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from toolcrib.book.entry import Entry, Kind
from toolcrib.book.writer import Writer
from toolcrib.store import audit
from toolcrib.store.clock import Clock
from toolcrib.store.database import Database

STEP = 2000
"""Rows in one transaction: those who wait for a commit wait no longer than it takes to delete them."""

_SAMPLE = 1000
_FEWEST = 2
"""Each step adds an entry, so one that takes fewer away would go on for ever."""


@dataclass(frozen=True, kw_only=True)
class _Last:
    """The newest row that is let go."""

    seq: int
    at: float
    hash: str
    entries: int


class Retention:
    def __init__(self, writer: Writer, *, keep_days: float, keep_bytes: int, clock: Clock) -> None:
        self._writer = writer
        self._keep_seconds = keep_days * 86_400
        self._keep_bytes = keep_bytes
        self._clock = clock

    def step(self, database: Database) -> int:
        """How many rows went; 0: there are none left to go."""
        # Looking takes no lock away from those who write.
        if database.read(self._last_to_go) is None:
            return 0
        gone = database.write(self._let_go)
        if gone:
            self._writer.committed()
        return gone

    def _let_go(self, connection: sa.Connection) -> int:
        audit.lock(connection)
        base = audit.base(connection)
        last = self._last_to_go(connection)
        if last is None or base is None:
            return 0
        detail = {
            "entries": last.entries,
            "through": last.seq,
            "hash": last.hash,
            "chain": base.chain,
            "newest": last.at,
        }
        # The rows go after it: the writer looks at the end of the book, which may be among them. Rows before the
        # beginning are nothing of ours; they stay for `verify` to find.
        self._writer(connection, [Entry(kind=Kind.PRUNED, detail=detail)])
        audit.let_go(connection, base.seq, last.seq, last.hash)
        return last.entries

    def _last_to_go(self, connection: sa.Connection) -> _Last | None:
        base = audit.base(connection)
        rows = [] if base is None else audit.oldest(connection, base.seq, STEP)
        too_old = self._clock.patient() - self._keep_seconds
        # Only a prefix may go: one row that is new enough keeps all that come after it.
        aged = next((place for place, row in enumerate(rows) if row.at >= too_old), len(rows))
        count = min(max(aged, self._too_many(connection)), len(rows))
        if count < _FEWEST:
            return None
        row = rows[count - 1]
        return _Last(seq=row.seq, at=row.at, hash=row.hash, entries=count)

    def _too_many(self, connection: sa.Connection) -> int:
        """How many rows are more than may be kept."""
        base = audit.base(connection)
        newest = audit.head(connection)
        if base is None or newest is None:
            return 0
        number = newest[0] - base.seq
        spread = range(base.seq + 1, newest[0] + 1, max(1, number // _SAMPLE))
        sizes = [len(msgspec.msgpack.encode(tuple(row))) for row in audit.numbered(connection, spread)]
        if not sizes:
            return 0
        mean = sum(sizes) / len(sizes)
        return max(0, number - int(self._keep_bytes / mean))
