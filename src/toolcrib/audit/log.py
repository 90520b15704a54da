"""The audit log itself: notes entries, shows them, checks them, and lets the oldest go.

In: entries from `calls` and `core`. Out: rows of a hash chain in the store, with the head anchored beside it. `note`
only hands an entry to the group commit; whoever must know that it is durable waits for `flush`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from toolcrib.audit.chain import ChainKeys, read_key
from toolcrib.audit.entry import LOOKED_INTO, AuditEntry, LargeArguments
from toolcrib.audit.row import COUNTED_UP_TO
from toolcrib.audit.verify import ChainBroken, ChainWalk, VerifyReport, anchored, expected
from toolcrib.audit.writer import AuditWriter, Retention
from toolcrib.config.masking import Masker
from toolcrib.errors import StoreError
from toolcrib.store import audit
from toolcrib.store.audit import AuditFilter
from toolcrib.store.clock import ExpiryClock
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

log = logging.getLogger(__name__)

KEEP_DAYS = 90
KEEP_BYTES = 1024**3

_ENTRY = 600
"""Bytes that an entry holds in memory besides arguments and result."""
_WINDOW = 20_000
"""Rows that one read looks through for those that are wanted."""
_FIRST_PRUNE = 10.0
"""Seconds after the start: a command that is over in one does not pay for it."""
_PRUNE_EVERY = 3600.0

Progress = Callable[[int, int], Awaitable[None]]
"""(entries checked, entries in all)"""


class AuditLog:
    """Made by `open`; closed before its `GroupCommit`."""

    def __init__(self, store: Store, commits: GroupCommit, writer: AuditWriter, retention: Retention) -> None:
        self._store = store
        self._commits = commits
        self.flush = commits.flush
        """Returns when all that was noted before is durable; `StoreError` at once if it cannot be."""
        self._writer = writer
        self._retention = retention
        self._pruning = asyncio.create_task(self._prune_for_ever())

    @classmethod
    async def open(
        cls,
        store: Store,
        commits: GroupCommit,
        *,
        folder: Path,
        mask: Masker,
        values: bool = False,
        keep_days: float = KEEP_DAYS,
        keep_bytes: int = KEEP_BYTES,
        clock: ExpiryClock | None = None,
    ) -> Self:
        """Writes nothing yet: a full disk must not keep the daemon from starting."""
        writer = AuditWriter(commits, folder=folder, place=store.place, mask=mask, values=values)
        retention = Retention(writer, keep_days=keep_days, keep_bytes=keep_bytes, clock=clock or ExpiryClock())
        return cls(store, commits, writer, retention)

    async def close(self) -> None:
        self._pruning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pruning

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be written now."""
        return self._commits.failure

    def note(self, entry: AuditEntry) -> None:
        size = _ENTRY
        if isinstance(entry.arguments, bytes):
            if len(entry.arguments) > LOOKED_INTO:
                entry.arguments = LargeArguments.of(entry.arguments)
            else:
                size += len(entry.arguments)
        if entry.result is not None:
            if len(entry.result) > COUNTED_UP_TO:
                entry.result = None
            else:
                size += len(entry.result)
        self._commits.add(self._writer, entry, size)

    async def query(
        self,
        *,
        agent: str | None = None,
        tool: str | None = None,
        server: str | None = None,
        outcome: str | None = None,
        session: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> list[dict[str, Any]]:
        """The newest rows that fit, the newest last; with `after` those that follow this number."""
        wanted = AuditFilter(
            agent=agent, tool=tool, server=server, outcome=outcome, session=session, since=since, until=until
        )
        base = await self._store.read(audit.base)
        low = 0 if base is None else base.seq
        if after is not None:
            rows = await self._store.read(audit.find_after, wanted, max(low, after), limit)
        else:
            rows = await self._newest(wanted, low, limit)
        return [_readable(row) for row in rows]

    async def _newest(self, wanted: AuditFilter, low: int, limit: int) -> list[dict[str, Any]]:
        """Goes back window by window, since what is wanted may be rare and the audit log long."""
        high = await self.newest()
        if wanted.since is not None:
            first = await self._store.read(audit.first_since, wanted.since, low)
            low = high if first is None else first - 1
        found: list[dict[str, Any]] = []
        while high > low and len(found) < limit:
            bottom = max(low, high - _WINDOW)
            found += await self._store.read(audit.find, wanted, bottom, high, limit - len(found))
            high = bottom
        return found[::-1]

    async def newest(self) -> int:
        """The number of the newest row; 0: there is none."""
        head = await self._store.read(audit.head)
        return 0 if head is None else head[0]

    async def verify(self, expect: str | None = None, progress: Progress | None = None) -> VerifyReport:
        """Walks the whole chain in small steps, while others go on writing it."""
        walk = ChainWalk(marks=[expected(expect)] if expect else [])
        try:
            base = await self._store.read(audit.base)
            # Before the rows: they may only be ahead of it.
            self._look_at_anchor(walk, base)
            secret = read_key(self._writer.key_file)
            if secret is not None:
                walk.keys = ChainKeys(secret)
            elif base is not None:
                raise ChainBroken(f"There is no key to verify with: {self._writer.key_file} is missing.")
            while not walk.over:
                await self._store.read(walk.step)
                if progress is not None:
                    await progress(walk.entries, walk.total)
        except ChainBroken as broken:
            return VerifyReport(ok=False, entries=walk.entries, head=walk.head, seq=broken.seq, wrong=broken.wrong)
        return VerifyReport(ok=True, entries=walk.entries, head=walk.head, notes=tuple(walk.notes))

    def _look_at_anchor(self, walk: ChainWalk, base: audit.ChainBase | None) -> None:
        """What it says of this audit log becomes a head that the walk expects."""
        file = self._writer.anchor.file
        try:
            heads = self._writer.anchor.heads()
        except FileNotFoundError:
            heads = ()
        except (OSError, ValueError) as error:
            raise ChainBroken(
                f"The anchor {file} cannot be read ({error}): a cut at the end would not be seen."
            ) from error
        mark, others = anchored(heads, "" if base is None else base.chain, self._writer.place)
        if others:
            last = max(head.seq for head in others)
            raise ChainBroken(
                f"An earlier audit log with {last} entries was in this database and is gone. If that was on purpose, "
                f"remove its line from {file}."
            )
        if mark is not None:
            walk.marks.append(mark)
        elif base is not None:
            raise ChainBroken(f"The anchor {file} knows nothing of this audit log: a cut at the end would not be seen.")

    async def prune(self) -> int:
        """Lets go what is too old or too much, in steps; returns how many entries went."""
        gone = 0
        while step := await self._store.run(self._retention.step):
            gone += step
        return gone

    async def _prune_for_ever(self) -> None:
        await asyncio.sleep(_FIRST_PRUNE)
        while True:
            try:
                await self.prune()
            except StoreError as error:
                log.warning("old entries of the audit log could not be let go: %s", error.text())
            except Exception:
                # A mistake in one row is no reason to keep everything for ever.
                log.exception("old entries of the audit log could not be let go")
            await asyncio.sleep(_PRUNE_EVERY)

    async def describe(self) -> dict[str, Any]:
        """For `status`."""
        failure = self.failure
        head = None if self._writer.head is None else str(self._writer.head)
        if head is None:
            # Before the first entry of this process the end is what others left.
            with contextlib.suppress(StoreError):
                found = await self._store.read(audit.head)
                head = None if found is None else f"{found[0]}:{found[1]}"
        return {
            "writable": failure is None,
            "failure": None if failure is None else failure.text(),
            "lost": self._commits.dropped,
            "head": head,
        }


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """The columns that hold JSON as what they say."""
    for name in ("shape", "arguments", "detail"):
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            row[name] = msgspec.json.decode(row[name])
    return row
