"""Whether the audit log is what was written: every link, every number, both ends.

In: the rows in their order, the key, the anchor, and a head that a person wrote down. Out: a `VerifyReport` that names
the first entry that is wrong and what is wrong with it. `ChainWalk` goes page by page, so that nobody waits for all of
it.
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

PAGE = 500

_EXPECTED = re.compile(r"(?P<seq>[0-9]{1,18}):(?P<hash>[0-9a-f]{8,64})")


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    ok: bool
    entries: int = 0
    """That were checked."""
    head: str = ""
    """`SEQ:HASH` of the newest that is good: worth writing down elsewhere, for `--expect`."""
    seq: int | None = None
    """The first entry that is wrong."""
    wrong: str = ""
    notes: tuple[str, ...] = ()


class ChainBroken(Exception):
    def __init__(self, wrong: str, seq: int | None = None) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.seq = seq


@dataclass(frozen=True, kw_only=True)
class ExpectedHead:
    """A head from elsewhere that the chain must contain."""

    seq: int
    hash: str
    whose: str


def expected(text: str) -> ExpectedHead:
    """`SEQ:HASH`, as `verify` shows it; the beginning of the hash is enough."""
    found = _EXPECTED.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"{text!r} is no head of an audit log.", remedy="Write it as `toolcrib audit verify` shows it: SEQ:HASH."
        )
    return ExpectedHead(seq=int(found["seq"]), hash=found["hash"], whose="the head that you gave")


def anchored(heads: Iterable[ChainHead], chain: str, place: str) -> tuple[ExpectedHead | None, list[ChainHead]]:
    """What the anchor says of this audit log, and which other audit logs it saw where this one is now."""
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
    """Every step reads one page; `ChainBroken` ends it."""

    keys: ChainKeys | None = None
    """None: enough for an audit log that was never begun."""
    marks: list[ExpectedHead] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    entries: int = 0
    total: int = 0
    """About how many there are."""
    over: bool = False
    _seq: int = -1
    _hash: str = ""
    _pruned: Mapping[str, Any] | None = None
    """What the newest row of this kind says."""

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
            # The beginning, or rows that were let go while we walked.
            self._seq, self._hash = base.seq, base.hash
            self._look_before(base)
            lowest = audit.lowest(connection)
            if lowest is not None and lowest <= base.seq:
                raise ChainBroken(f"Entry {lowest} was put in before the beginning of the audit log.", lowest)
        if not self.total:
            newest = audit.head(connection)
            self.total = 0 if newest is None else newest[0] - base.seq
        rows = audit.page(connection, self._seq, PAGE)
        for row in rows:
            self._check(row, self.keys, base.chain)
        if len(rows) < PAGE:
            # The end first: the entry that records the beginning may have been cut off with it.
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
                self.notes.append(f"Entry {mark.seq} was let go since; nothing can be said of {mark.whose}.")
            elif mark.seq == base.seq and not base.hash.startswith(mark.hash):
                raise ChainBroken(f"Entry {mark.seq} was let go, and was another than {mark.whose} says.", mark.seq)

    def _check(self, row: sa.Row[*tuple[Any, ...]], keys: ChainKeys, chain: str) -> None:
        columns: tuple[Any, ...] = tuple(row)
        seq, found = columns[0], columns[-1]
        if seq != self._seq + 1:
            raise ChainBroken(f"The audit log has a hole: {_missing(self._seq + 1, seq - 1)}.", self._seq + 1)
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
                raise ChainBroken(f"Entry {seq} is another than {mark.whose} says.", seq)

    def _look_at_end(self, seq: int, at: float, detail: Mapping[str, Any]) -> None:
        """Whoever wrote this entry knew that some before it were gone, or could not know it."""
        after, known = detail["after"], detail.get("known")
        if known is None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
            self.notes.append(
                f"The anchor was missing when entry {seq} was written ({when}): "
                f"if others had stood after entry {after}, nobody could see that they were cut off."
            )
            return
        gone = _missing(after + 1, known) if known > after else f"entry {known} is another"
        raise ChainBroken(f"The end of the audit log was cut off or exchanged: by what entry {seq} knew, {gone}.", seq)

    def _check_base(self, base: audit.ChainBase) -> None:
        """A beginning that was cut off looks like one that was let go, but for the entry that records it."""
        noted = self._pruned or {"through": 0, "hash": base.chain, "chain": base.chain}
        if (noted.get("through"), noted.get("hash"), noted.get("chain")) != (base.seq, base.hash, base.chain):
            raise ChainBroken("The audit log does not begin where its entries say that it does.", base.seq + 1)

    def _check_end(self) -> None:
        for mark in self.marks:
            if mark.seq > self._seq:
                missing = _missing(self._seq + 1, mark.seq)
                raise ChainBroken(f"The audit log ends too early: by {mark.whose}, {missing}.", self._seq + 1)


def _missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"


def _why(seq: int, keys: ChainKeys, chain: str) -> str:
    if not keys.began(chain):
        return "The key is not the one that this audit log was begun with: audit.key was lost or replaced."
    return f"Entry {seq} is not what was written: it was changed, moved or put in."
