"""Entries → linked rows, inside the transaction that makes them durable.

In: a connection and the entries of one group commit. Out: rows at the end of the chain, the anchor after them, and the
tokens told to whoever counts. Everything but `told` and `lost` runs where the store writes.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from toolcrib.book.anchor import Anchor, Head
from toolcrib.book.chain import Keys
from toolcrib.book.entry import Entry, Kind
from toolcrib.book.key import make_key, read_key
from toolcrib.book.row import RowMaker
from toolcrib.config.masking import Masker
from toolcrib.store import audit
from toolcrib.store.commits import Commits, Lost

log = logging.getLogger(__name__)

KEY_FILE = "audit.key"
ANCHOR_FILE = "audit.head"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A transaction that nobody knows the end of yet."""

    entries: list[Entry]
    head: Head
    """What it will have made the head."""
    counted: list[tuple[Callable[[int], None], int]]


class Writer:
    """The work of the book's group commits, and their watcher."""

    def __init__(self, commits: Commits, *, folder: Path, place: str, mask: Masker, values: bool) -> None:
        self.key_file = folder / KEY_FILE
        self.anchor = Anchor(folder / ANCHOR_FILE)
        self.place = hashlib.sha256(place.encode()).hexdigest()[:16]
        self.head: Head | None = None
        """The newest row that this process has written, and which the book must hold for ever."""
        self._mask = mask
        self._values = values
        self._commits = commits
        self._keys: Keys | None = None
        self._maker: RowMaker | None = None
        self._attempt: _Attempt | None = None
        self._there: dict[int, Entry] = {}
        """Entries that are in the book, by identity, but will come again: their commit was reported as failed."""
        self._to_tell: deque[tuple[Callable[[int], None], int]] = deque()
        """Counted and durable; filled here, emptied on the loop."""
        self._anchored = True
        commits.watch(self, self)

    def __call__(self, connection: sa.Connection, entries: list[Entry]) -> None:
        audit.lock(connection)
        keys, maker = self._prepared()
        self._look_back(connection)
        chain, seq, last, told = self._end(connection, keys)
        rows = []
        counted = []
        for entry in (*told, *(entry for entry in entries if id(entry) not in self._there)):
            seq += 1
            row = maker.row(seq, entry)
            last = row["hash"] = keys.link(last, row.values())
            rows.append(row)
            if entry.counted is not None and row["tokens"]:
                counted.append((entry.counted, row["tokens"]))
        if rows:
            audit.append(connection, rows)
        head = Head(chain=chain, place=self.place, seq=seq, hash=last)
        self._attempt = _Attempt(entries=entries, head=head, counted=counted)

    def committed(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        for entry in attempt.entries:
            self._there.pop(id(entry), None)
        self._to_tell.extend(attempt.counted)
        self.head = attempt.head
        self._drop_anchor(attempt.head)

    def _drop_anchor(self, head: Head) -> None:
        try:
            self.anchor.advance(head)
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

    def _end(self, connection: sa.Connection, keys: Keys) -> tuple[str, int, str, list[Entry]]:
        """The book's id; its newest row, whoever wrote it, or where it begins; and what must be told of this end."""
        head = audit.head(connection)
        if self.head is not None and head == (self.head.seq, self.head.hash):
            return self.head.chain, *head, []
        base = audit.base(connection)
        if base is None:
            base = audit.begin(connection, keys.new_chain())
            # Before the first row, so that a book without an anchor is one whose anchor was taken away.
            self._drop_anchor(Head(chain=base.chain, place=self.place, seq=0, hash=base.hash))
            return base.chain, base.seq, base.hash, []
        if not keys.began(base.chain):
            log.error("%s is not the key that the book was begun with; it cannot be verified", self.key_file)
        seq, last = head or (base.seq, base.hash)
        return base.chain, seq, last, self._told_of_the_known(connection, base, seq)

    def _told_of_the_known(self, connection: sa.Connection, base: audit.Base, seq: int) -> list[Entry]:
        """An entry that stays in the chain if the row that was known to be there is gone or another."""
        known = self._known(base.chain)
        if known is None:
            log.error("%s does not know this book: a cut at its end would not have been seen", self.anchor.file)
            return [Entry(kind=Kind.UNANCHORED, detail={"after": seq})]
        if known.seq < base.seq:
            # What was let go can no longer be compared.
            return []
        found = [base] if known.seq == base.seq else audit.numbered(connection, [known.seq])
        if found and found[0].hash == known.hash:
            return []
        log.error("the end of the book was cut off or exchanged: entry %s is gone or another", known)
        return [Entry(kind=Kind.UNANCHORED, detail={"after": seq, "known": known.seq, "hash": known.hash})]

    def _known(self, chain: str) -> Head | None:
        """A row that the book had, by what we wrote ourselves or by the anchor."""
        if self.head is not None and self.head.chain == chain:
            return self.head
        try:
            heads = self.anchor.heads()
        except (OSError, ValueError):
            return None
        return next((head for head in heads if head.chain == chain), None)

    def _look_back(self, connection: sa.Connection) -> None:
        """A database that is lost in the middle of a commit may have made it all the same: then nothing is repeated."""
        attempt = self._attempt
        if attempt is None:
            return
        found = audit.numbered(connection, [attempt.head.seq])
        self._attempt = None
        if found and found[0].hash == attempt.head.hash:
            self._there.update((id(entry), entry) for entry in attempt.entries)
            self._to_tell.extend(attempt.counted)
            self.head = attempt.head

    def _prepared(self) -> tuple[Keys, RowMaker]:
        if self._keys is None or self._maker is None:
            self._keys = Keys(read_key(self.key_file) or make_key(self.key_file))
            self._maker = RowMaker(key=self._keys.arguments, mask=self._mask, values=self._values)
        return self._keys, self._maker
