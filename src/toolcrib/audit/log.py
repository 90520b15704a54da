"""The audit log: records, queries and verifies entries, and deletes the oldest.

In: entries from `calls` and `core`. Out: rows of a hash chain in the store, and its head in a file next to it. `note`
only adds an entry to the group commit; await `flush` to be sure that it is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from toolcrib.audit.chain import ChainKeys
from toolcrib.audit.entry import MAX_PARSED_BYTES, AuditEntry, LargeArguments
from toolcrib.audit.row import MAX_COUNTED_BYTES
from toolcrib.audit.verify import ChainBroken, ChainWalk, VerifyReport, anchored, expected
from toolcrib.audit.writer import AuditWriter, Retention
from toolcrib.config.masking import Masker
from toolcrib.credentials.key_file import read_key
from toolcrib.errors import StoreError
from toolcrib.store import audit
from toolcrib.store.audit import AuditFilter
from toolcrib.store.clock import ExpiryClock
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

log = logging.getLogger(__name__)

KEEP_DAYS = 90
KEEP_BYTES = 1024**3

_ENTRY_BYTES = 600
"""An entry's size in memory without its arguments and result."""
_WINDOW = 20_000
"""Rows that one query searches."""
_FIRST_PRUNE = 10.0
"""Seconds after the start, so that a short command does not pay for it."""
_PRUNE_INTERVAL = 3600.0

Progress = Callable[[int, int], Awaitable[None]]
"""(entries checked, total entries)"""


class AuditLog:
    """Create it with `open`; close it before its `GroupCommit`."""

    def __init__(self, store: Store, commits: GroupCommit, writer: AuditWriter, retention: Retention) -> None:
        self._store = store
        self._commits = commits
        self.flush = commits.flush
        """Returns when all entries noted before are durable; raises `StoreError` at once if they cannot be written."""
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
        """Writes nothing yet: the daemon must start even with a full disk."""
        writer = AuditWriter(commits, folder=folder, place=store.place, mask=mask, values=values)
        retention = Retention(writer, keep_days=keep_days, keep_bytes=keep_bytes, clock=clock or ExpiryClock())
        return cls(store, commits, writer, retention)

    async def close(self) -> None:
        self._pruning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pruning

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be written now; None if writing works."""
        return self._commits.failure

    def note(self, entry: AuditEntry) -> None:
        size = _ENTRY_BYTES
        if isinstance(entry.arguments, bytes):
            if len(entry.arguments) > MAX_PARSED_BYTES:
                entry.arguments = LargeArguments.of(entry.arguments)
            else:
                size += len(entry.arguments)
        if entry.result is not None:
            if len(entry.result) > MAX_COUNTED_BYTES:
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
        """The newest matching rows, newest last; with `after`, those that follow this number."""
        filters = AuditFilter(
            agent=agent, tool=tool, server=server, outcome=outcome, session=session, since=since, until=until
        )
        base = await self._store.read(audit.base)
        low = 0 if base is None else base.seq
        if after is not None:
            rows = await self._store.read(audit.find_after, filters, max(low, after), limit)
        else:
            rows = await self._newest(filters, low, limit)
        return [_readable(row) for row in rows]

    async def _newest(self, filters: AuditFilter, low: int, limit: int) -> list[dict[str, Any]]:
        """Searches backwards window by window, since matches may be rare and the audit log long."""
        high = await self.newest()
        if filters.since is not None:
            first = await self._store.read(audit.first_since, filters.since, low)
            low = high if first is None else first - 1
        found: list[dict[str, Any]] = []
        while high > low and len(found) < limit:
            bottom = max(low, high - _WINDOW)
            found += await self._store.read(audit.find, filters, bottom, high, limit - len(found))
            high = bottom
        return found[::-1]

    async def newest(self) -> int:
        """The number of the newest row; 0 if there is none."""
        head = await self._store.read(audit.head)
        return 0 if head is None else head[0]

    async def verify(self, expect: str | None = None, progress: Progress | None = None) -> VerifyReport:
        """Walks the whole chain in small steps, while entries may still be added."""
        walk = ChainWalk(marks=[expected(expect)] if expect else [])
        try:
            base = await self._store.read(audit.base)
            # Read the anchor before the rows: the rows may be ahead of it, never behind.
            self._check_anchor(walk, base)
            secret = read_key(self._writer.key_file)
            if secret is not None:
                walk.keys = ChainKeys(secret)
            elif base is not None:
                raise ChainBroken(f"The key needed to verify the audit log is missing: {self._writer.key_file}.")
            while not walk.over:
                await self._store.read(walk.step)
                if progress is not None:
                    await progress(walk.entries, walk.total)
        except ChainBroken as broken:
            return VerifyReport(ok=False, entries=walk.entries, head=walk.head, seq=broken.seq, wrong=broken.wrong)
        return VerifyReport(ok=True, entries=walk.entries, head=walk.head, notes=tuple(walk.notes))

    def _check_anchor(self, walk: ChainWalk, base: audit.ChainBase | None) -> None:
        """Adds the anchor's head of this audit log to those that the walk expects."""
        file = self._writer.anchor.file
        try:
            heads = self._writer.anchor.heads()
        except FileNotFoundError:
            heads = ()
        except (OSError, ValueError) as error:
            raise ChainBroken(
                f"The anchor {file} cannot be read ({error}): a truncated end would go unnoticed."
            ) from error
        mark, others = anchored(heads, "" if base is None else base.chain, self._writer.place)
        if others:
            last = max(head.seq for head in others)
            raise ChainBroken(
                f"An earlier audit log with {last} entries was in this database and is missing. If you removed it, "
                f"also delete its line from {file}."
            )
        if mark is not None:
            walk.marks.append(mark)
        elif base is not None:
            raise ChainBroken(f"The anchor {file} has no entry for this audit log: a truncated end would go unnoticed.")

    async def prune(self) -> int:
        """Deletes entries beyond the age or size limit, in steps; returns how many."""
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
                log.warning("old entries of the audit log could not be deleted: %s", error.text())
            except Exception:
                # An unexpected error must not end pruning for good.
                log.exception("old entries of the audit log could not be deleted")
            await asyncio.sleep(_PRUNE_INTERVAL)

    async def describe(self) -> dict[str, Any]:
        """For `status`."""
        failure = self.failure
        head = None if self._writer.head is None else str(self._writer.head)
        if head is None:
            # This process has not written an entry yet, so the head is another process's.
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
    """Decodes the columns that contain JSON."""
    for name in ("shape", "arguments", "detail"):
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            row[name] = msgspec.json.decode(row[name])
    return row
