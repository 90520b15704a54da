"""Entries → linked rows, inside the transaction that makes them durable; and the deletion of the oldest rows.

In: a connection and the entries of one group commit. Out: rows at the end of the chain, then the new anchor, and the
token counts for the session. Everything but `reported` and `lost` runs in the store's writing thread. Retention is by
age and by size: one transaction deletes rows, records the deletion and stores the new beginning.

Size means the rows' own bytes. It is estimated: the mean of up to a thousand rows spread evenly over the log, times
their number. Indexes and the database's free space are not included.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sa

from toolcrib.audit.chain import ChainHead, ChainKeys, HeadAnchor
from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.row import RowMaker, TokenCount, count_tokens
from toolcrib.config.masking import Masker
from toolcrib.credentials.key_file import make_key, read_key
from toolcrib.store import audit
from toolcrib.store.clock import ExpiryClock
from toolcrib.store.commits import GroupCommit, LostItems
from toolcrib.store.database import Database

log = logging.getLogger(__name__)

KEY_FILE = "audit.key"
ANCHOR_FILE = "audit.head"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A transaction whose result is not known yet."""

    entries: list[AuditEntry]
    head: ChainHead
    """The head once it is committed."""
    counted: list[tuple[Callable[[tuple[int, bool]], None], TokenCount]]


class AuditWriter:
    """Writes the audit log's items of a group commit, and watches it."""

    def __init__(self, commits: GroupCommit, *, folder: Path, place: str, mask: Masker, values: bool) -> None:
        self.key_file = folder / KEY_FILE
        self.anchor = HeadAnchor(folder / ANCHOR_FILE)
        self.place = hashlib.sha256(place.encode()).hexdigest()[:16]
        self.head: ChainHead | None = None
        """The newest row that this process has written; the audit log must never lose it."""
        self._mask = mask
        self._values = values
        self._commits = commits
        self._keys: ChainKeys | None = None
        self._maker: RowMaker | None = None
        self._attempt: _Attempt | None = None
        self._present: dict[int, AuditEntry] = {}
        """Entries in the audit log, by identity, that will be passed again: their commit was reported as failed."""
        self._to_report: deque[tuple[Callable[[tuple[int, bool]], None], TokenCount]] = deque()
        """Counted and durable; filled here, drained on the loop."""
        self._anchored = True
        commits.watch(self, self)

    def __call__(self, connection: sa.Connection, entries: list[AuditEntry]) -> None:
        audit.lock(connection)
        if self._keys is None or self._maker is None:
            self._keys = ChainKeys(read_key(self.key_file) or make_key(self.key_file))
            self._maker = RowMaker(key=self._keys.arguments, mask=self._mask, values=self._values)
        keys, maker = self._keys, self._maker
        if self._attempt is not None:
            self._look_back(connection, self._attempt)
        chain, seq, last, findings = self._end(connection, keys)
        rows = []
        counted = []
        for entry in (*findings, *(entry for entry in entries if id(entry) not in self._present)):
            seq += 1
            row = maker.row(seq, entry)
            last = row["hash"] = keys.link(last, row.values())
            rows.append(row)
            if entry.counted is not None and row["tokens"]:
                counted.append((entry.counted, TokenCount(row["tokens"], row["tokens_estimated"])))
            if entry.arguments_counted is not None and isinstance(entry.arguments, bytes):
                found = count_tokens(entry.arguments)
                counted += [] if found is None else [(entry.arguments_counted, found)]
        if rows:
            audit.append(connection, rows)
        head = ChainHead(chain=chain, place=self.place, seq=seq, hash=last)
        self._attempt = _Attempt(entries=entries, head=head, counted=counted)

    def committed(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        for entry in attempt.entries:
            self._present.pop(id(entry), None)
        self._to_report.extend(attempt.counted)
        self.head = attempt.head
        self._write_anchor(attempt.head)

    def _write_anchor(self, head: ChainHead) -> None:
        try:
            self.anchor.advance(head)
            self._anchored = True
        except OSError as error:
            # The rows are safe; only a truncated end would go unnoticed until the anchor can be written again.
            if self._anchored:
                log.warning("the head of the audit log could not be written to %s: %s", self.anchor.file, error)
            self._anchored = False

    def reported(self) -> None:
        while self._to_report:
            report, tokens = self._to_report.popleft()
            report(tokens)

    def lost(self, lost: LostItems) -> None:
        detail = {"entries": lost.count, "from": lost.since, "to": lost.until}
        self._commits.add(self, AuditEntry(kind=EntryKind.GAP, detail=detail))

    def _end(self, connection: sa.Connection, keys: ChainKeys) -> tuple[str, int, str, list[AuditEntry]]:
        """The audit log's id; its newest row from any process, or its beginning; and problems found at this end."""
        head = audit.head(connection)
        if self.head is not None and head == (self.head.seq, self.head.hash):
            return self.head.chain, *head, []
        base = audit.base(connection)
        if base is None:
            base = audit.begin(connection, keys.new_chain())
            # Before the first row, so that a missing anchor always means that it was removed.
            self._write_anchor(ChainHead(chain=base.chain, place=self.place, seq=0, hash=base.hash))
            return base.chain, base.seq, base.hash, []
        if not keys.began(base.chain):
            log.error("%s is not the key that the audit log was started with; it cannot be verified", self.key_file)
        seq, last = head or (base.seq, base.hash)
        return base.chain, seq, last, self._checked_against_known(connection, base, seq)

    def _checked_against_known(self, connection: sa.Connection, base: audit.ChainBase, seq: int) -> list[AuditEntry]:
        """A permanent entry in the chain if the last known row is missing or was replaced."""
        known = self._known(base.chain)
        if known is None:
            log.error("%s has no entry for this audit log: a truncated end would have gone unnoticed", self.anchor.file)
            return [AuditEntry(kind=EntryKind.UNANCHORED, detail={"after": seq})]
        if known.seq < base.seq:
            # Deleted entries can no longer be compared.
            return []
        found = [base] if known.seq == base.seq else audit.by_seq(connection, [known.seq])
        if found and found[0].hash == known.hash:
            return []
        log.error("the end of the audit log was removed or replaced: entry %s is missing or different", known)
        return [AuditEntry(kind=EntryKind.UNANCHORED, detail={"after": seq, "known": known.seq, "hash": known.hash})]

    def _known(self, chain: str) -> ChainHead | None:
        """A row that the audit log must contain: the last one that we wrote, or the anchor's."""
        if self.head is not None and self.head.chain == chain:
            return self.head
        try:
            heads = self.anchor.heads()
        except (OSError, ValueError):
            return None
        return next((head for head in heads if head.chain == chain), None)

    def _look_back(self, connection: sa.Connection, attempt: _Attempt) -> None:
        """If the connection was lost during a commit, it may have succeeded all the same: then write nothing twice."""
        found = audit.by_seq(connection, [attempt.head.seq])
        self._attempt = None
        if found and found[0].hash == attempt.head.hash:
            self._present.update((id(entry), entry) for entry in attempt.entries)
            self._to_report.extend(attempt.counted)
            self.head = attempt.head


STEP_ROWS = 2000
"""Rows deleted in one transaction, which is as long as a commit may have to wait."""

_SAMPLE = 1000
_MIN_STEP = 2
"""Each step adds an entry, so one that deletes fewer rows would never finish."""


@dataclass(frozen=True, kw_only=True)
class _Last:
    """The newest row to be deleted."""

    seq: int
    at: float
    hash: str
    entries: int


class Retention:
    def __init__(self, writer: AuditWriter, *, keep_days: float, keep_bytes: int, clock: ExpiryClock) -> None:
        self._writer = writer
        self._keep_seconds = keep_days * 86_400
        self._keep_bytes = keep_bytes
        self._clock = clock

    def step(self, database: Database) -> int:
        """Deletes one batch and returns its number of rows; 0 if there is nothing more to delete."""
        # A read does not block writers.
        if database.read(self._last_to_delete) is None:
            return 0
        deleted = database.write(self._delete)
        if deleted:
            self._writer.committed()
        return deleted

    def _delete(self, connection: sa.Connection) -> int:
        audit.lock(connection)
        base = audit.base(connection)
        last = self._last_to_delete(connection)
        if last is None or base is None:
            return 0
        detail = {
            "entries": last.entries,
            "through": last.seq,
            "hash": last.hash,
            "chain": base.chain,
            "newest": last.at,
        }
        # Delete the rows after this entry: the writer checks the end of the audit log, which may be among them. Rows
        # before the beginning are not ours; they stay for `verify` to find.
        self._writer(connection, [AuditEntry(kind=EntryKind.PRUNED, detail=detail)])
        audit.delete_through(connection, base.seq, last.seq, last.hash)
        return last.entries

    def _last_to_delete(self, connection: sa.Connection) -> _Last | None:
        base = audit.base(connection)
        rows = [] if base is None else audit.oldest(connection, base.seq, STEP_ROWS)
        too_old = self._clock.patient() - self._keep_seconds
        # Delete only a prefix: one row that is new enough keeps all later ones.
        aged = next((place for place, row in enumerate(rows) if row.at >= too_old), len(rows))
        count = min(max(aged, self._too_many(connection)), len(rows))
        if count < _MIN_STEP:
            return None
        row = rows[count - 1]
        return _Last(seq=row.seq, at=row.at, hash=row.hash, entries=count)

    def _too_many(self, connection: sa.Connection) -> int:
        """The number of rows beyond the size limit."""
        base = audit.base(connection)
        newest = audit.head(connection)
        if base is None or newest is None:
            return 0
        number = newest[0] - base.seq
        spread = range(base.seq + 1, newest[0] + 1, max(1, number // _SAMPLE))
        sizes = [len(msgspec.msgpack.encode(tuple(row))) for row in audit.by_seq(connection, spread)]
        if not sizes:
            return 0
        mean = sum(sizes) / len(sizes)
        return max(0, number - int(self._keep_bytes / mean))
