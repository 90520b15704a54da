"""Entries → linked rows, inside the transaction that makes them durable.

In: a connection and the entries of one group commit. Out: rows at the end of the chain, the anchor after them, and the
tokens told to whoever counts. Everything but `told` and `lost` runs where the store writes.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from toolcrib.book.anchor import Anchor, Head
from toolcrib.book.chain import Keys
from toolcrib.book.entry import Entry, Kind
from toolcrib.book.key import make_key, read_key
from toolcrib.book.row import RowMaker
from toolcrib.store import audit
from toolcrib.store.commits import Commits, Lost

log = logging.getLogger(__name__)

KEY_FILE = "audit.key"
ANCHOR_FILE = "audit.head"

_MOST_OPEN = 10_000


class Writer:
    """The work of the book's group commits, and their watcher."""

    def __init__(
        self, commits: Commits, *, folder: Path, place: str, redact: Callable[[str], str], values: bool
    ) -> None:
        self.key_file = folder / KEY_FILE
        self.anchor = Anchor(folder / ANCHOR_FILE)
        self.place = hashlib.sha256(place.encode()).hexdigest()[:16]
        self.head: Head | None = None
        """The newest row that this process has written."""
        self._redact = redact
        self._values = values
        self._commits = commits
        self._keys: Keys | None = None
        self._maker: RowMaker | None = None
        self._written: Head | None = None
        """What the transaction under way will have made the head; stays if nobody knows how that ended."""
        self._tried: list[Entry] = []
        """The entries of that transaction."""
        self._open: dict[str, None] = {}
        """Calls whose intent holds their arguments, so that the outcome need not hold them once more."""
        self._chain = ""
        """The id of the book that this process has written in."""
        self._counted: list[tuple[Callable[[int], None], int]] = []
        self._to_tell: deque[tuple[Callable[[int], None], int]] = deque()
        """Counted and durable; filled here, emptied on the loop."""
        self._anchored = True
        commits.watch(self, self)

    def __call__(self, connection: sa.Connection, entries: list[Entry]) -> None:
        audit.lock(connection)
        keys, maker = self._prepared()
        entries = self._not_yet_written(connection, entries)
        chain, seq, last = self._head(connection, keys)
        rows = []
        for entry in entries:
            seq += 1
            row = maker.row(seq, self._without_repetition(entry))
            last = row["hash"] = keys.link(last, row.values())
            rows.append(row)
            if entry.counted is not None and row["tokens"]:
                self._counted.append((entry.counted, row["tokens"]))
        if rows:
            audit.append(connection, rows)
        self._tried, self._written = entries, Head(chain=chain, place=self.place, seq=seq, hash=last)

    def committed(self) -> None:
        if self._written is None:
            return
        self._to_tell.extend(self._counted)
        self.head, self._written, self._counted, self._tried = self._written, None, [], []
        self._chain = self.head.chain
        try:
            self.anchor.advance(self.head)
            self._anchored = True
        except OSError as error:
            # The rows are safe; only a cut at the end would not be seen until it can be written again.
            if self._anchored:
                log.warning("the head of the book could not be written to %s: %s", self.anchor.file, error)
            self._anchored = False

    def told(self) -> None:
        while self._to_tell:
            tell, tokens = self._to_tell.popleft()
            tell(tokens)

    def lost(self, lost: Lost) -> None:
        detail = {"entries": lost.count, "from": lost.since, "to": lost.until}
        self._commits.add(self, Entry(kind=Kind.GAP, detail=detail))

    def _head(self, connection: sa.Connection, keys: Keys) -> tuple[str, int, str]:
        """The book's id, and its newest row, whoever wrote it, or where it begins."""
        head = audit.head(connection)
        if head is not None and self._chain:
            return self._chain, *head
        base = audit.base(connection) or audit.begin(connection, keys.new_chain())
        if not keys.began(base.chain):
            log.error("%s is not the key that the book was begun with; it cannot be verified", self.key_file)
        return base.chain, *(head or (base.seq, base.hash))

    def _not_yet_written(self, connection: sa.Connection, entries: list[Entry]) -> list[Entry]:
        """A database that is lost in the middle of a commit may have made it all the same: then nothing is repeated."""
        head, tried = self._written, self._tried
        if head is not None and all(one is other for one, other in zip(tried, entries, strict=False)):
            found = audit.numbered(connection, [head.seq])
            if found and found[0].hash == head.hash:
                return entries[len(tried) :]
        self._written, self._counted = None, []
        return entries

    def _prepared(self) -> tuple[Keys, RowMaker]:
        if self._keys is None or self._maker is None:
            self._keys = Keys(read_key(self.key_file) or make_key(self.key_file))
            self._maker = RowMaker(key=self._keys.arguments, redact=self._redact, values=self._values)
        return self._keys, self._maker

    def _without_repetition(self, entry: Entry) -> Entry:
        if entry.kind is Kind.INTENT:
            if len(self._open) >= _MOST_OPEN:
                self._open.clear()
            self._open[entry.call] = None
        elif entry.kind is Kind.OUTCOME and entry.call in self._open:
            del self._open[entry.call]
            entry.arguments = None
        return entry
