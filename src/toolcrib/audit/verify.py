"""Verifies the audit log: every link, every number, both ends.

In: the rows in order, the key, the anchor, and a head that you noted earlier. Out: a `VerifyReport` with the first
wrong entry and the reason. `ChainWalk` reads page by page, so that it never blocks others for long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from toolcrib.audit.chain import ChainHead, ChainKeys
from toolcrib.audit.entry import EntryKind
from toolcrib.errors import UsageError
from toolcrib.store import audit

PAGE_ROWS = 500

_EXPECTED = re.compile(r"(?P<seq>[0-9]{1,18}):(?P<hash>[0-9a-f]{8,64})")


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    ok: bool
    entries: int = 0
    """Entries checked."""
    head: str = ""
    """`SEQ:HASH` of the newest good entry: store it elsewhere, for `--expect`."""
    seq: int | None = None
    """The first wrong entry."""
    wrong: str = ""
    notes: tuple[str, ...] = ()


class ChainBroken(Exception):
    def __init__(self, wrong: str, seq: int | None = None) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.seq = seq


@dataclass(frozen=True, kw_only=True)
class ExpectedHead:
    """A head from another source that the chain must contain."""

    seq: int
    hash: str
    whose: str


def expected(text: str) -> ExpectedHead:
    """Parses `SEQ:HASH` as `verify` shows it; a prefix of the hash is enough."""
    found = _EXPECTED.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"{text!r} is not a head of an audit log.",
            remedy="Use the form that `toolcrib audit verify` shows: SEQ:HASH.",
        )
    return ExpectedHead(seq=int(found["seq"]), hash=found["hash"], whose="the expected head")


def anchored(heads: Iterable[ChainHead], chain: str, place: str) -> tuple[ExpectedHead | None, list[ChainHead]]:
    """The anchor's head of this audit log, and its heads of other audit logs at the same location."""
    mark = None
    others = []
    for head in heads:
        if head.chain == chain:
            mark = ExpectedHead(seq=head.seq, hash=head.hash, whose="the anchor")
        elif head.place == place and head.seq:
            others.append(head)
    return mark, others


@dataclass(kw_only=True)
class ChainWalk:
    """Each step reads one page; raises `ChainBroken` at the first problem."""

    keys: ChainKeys | None = None
    """May be None for an audit log that was never started."""
    marks: list[ExpectedHead] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    entries: int = 0
    total: int = 0
    """The approximate number of entries."""
    over: bool = False
    _seq: int = -1
    _hash: str = ""
    _pruned: Mapping[str, Any] | None = None
    """The detail of the newest `PRUNED` entry."""

    @property
    def head(self) -> str:
        return f"{self._seq}:{self._hash}" if self._seq > 0 else ""

    def step(self, connection: sa.Connection) -> None:
        audit.read_snapshot(connection)
        base = audit.base(connection)
        if base is None or self.keys is None:
            self._without_audit_log(connection)
            return
        if self._seq < base.seq:
            # The beginning, or the oldest rows were deleted during the walk.
            self._seq, self._hash = base.seq, base.hash
            self._look_before(base)
            lowest = audit.lowest(connection)
            if lowest is not None and lowest <= base.seq:
                raise ChainBroken(f"Entry {lowest} was inserted before the beginning of the audit log.", lowest)
        if not self.total:
            newest = audit.head(connection)
            self.total = 0 if newest is None else newest[0] - base.seq
        rows = audit.page(connection, self._seq, PAGE_ROWS)
        for row in rows:
            self._check(row, self.keys, base.chain)
        if len(rows) < PAGE_ROWS:
            # The end first: a truncated end may have held the entry that records the beginning.
            self._check_end()
            self._check_base(base)
            self.over = True

    def _without_audit_log(self, connection: sa.Connection) -> None:
        lowest = audit.lowest(connection)
        if lowest is not None:
            raise ChainBroken("The beginning of the audit log is missing (table audit_base).", lowest)
        self._seq = 0
        self._check_end()
        self.notes.append("The audit log is empty.")
        self.over = True

    def _look_before(self, base: audit.ChainBase) -> None:
        for mark in self.marks:
            if mark.seq < base.seq:
                self.notes.append(f"Entry {mark.seq} has been deleted since, so {mark.whose} cannot be checked.")
            elif mark.seq == base.seq and not base.hash.startswith(mark.hash):
                raise ChainBroken(f"Entry {mark.seq} was deleted, and did not match {mark.whose}.", mark.seq)

    def _check(self, row: sa.Row[*tuple[Any, ...]], keys: ChainKeys, chain: str) -> None:
        columns: tuple[Any, ...] = tuple(row)
        seq, found = columns[0], columns[-1]
        if seq != self._seq + 1:
            raise ChainBroken(f"The audit log has a gap: {_missing(self._seq + 1, seq - 1)}.", self._seq + 1)
        if found != keys.link(self._hash, columns[:-1]):
            raise ChainBroken(_why(seq, keys, chain), seq)
        self._seq, self._hash = seq, found
        self.entries += 1
        if row.kind == EntryKind.PRUNED:
            self._pruned = msgspec.json.decode(row.detail)
        if row.kind == EntryKind.UNANCHORED:
            self._look_at_end(seq, row.at, msgspec.json.decode(row.detail))
        for mark in self.marks:
            if mark.seq == seq and not found.startswith(mark.hash):
                raise ChainBroken(f"Entry {seq} does not match {mark.whose}.", seq)

    def _look_at_end(self, seq: int, at: float, detail: Mapping[str, Any]) -> None:
        """The writer of this entry knew that earlier ones were missing, or could not check it."""
        after, known = detail["after"], detail.get("known")
        if known is None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
            self.notes.append(
                f"The anchor was missing when entry {seq} was written ({when}): "
                f"if entries after entry {after} were removed before that, it cannot be detected."
            )
            return
        gone = _missing(after + 1, known) if known > after else f"entry {known} was replaced"
        raise ChainBroken(f"The end of the audit log was removed or replaced: according to entry {seq}, {gone}.", seq)

    def _check_base(self, base: audit.ChainBase) -> None:
        """A removed beginning differs from a pruned one only by the entry that records the pruning."""
        noted = self._pruned or {"through": 0, "hash": base.chain, "chain": base.chain}
        if (noted.get("through"), noted.get("hash"), noted.get("chain")) != (base.seq, base.hash, base.chain):
            raise ChainBroken("The audit log does not begin where its entries say.", base.seq + 1)

    def _check_end(self) -> None:
        for mark in self.marks:
            if mark.seq > self._seq:
                missing = _missing(self._seq + 1, mark.seq)
                raise ChainBroken(f"The audit log ends too early: according to {mark.whose}, {missing}.", self._seq + 1)


def _missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"


def _why(seq: int, keys: ChainKeys, chain: str) -> str:
    if not keys.began(chain):
        return "This audit log was started with another key: audit.key was lost or replaced."
    return f"Entry {seq} is not what was written: it was changed, moved or inserted."
