"""Group commit: many small writes, few transactions.

In: items, each with the function that writes such items. Out: rows that are durable once `flush` returns, in the order
in which their items were added. Items added during a transaction collect for the next one. Items that no caller waits
for linger a moment, so that a thousand reads cost a few transactions. `audit` and `identity.sessions` write through it.

Items that cannot be written now are kept and retried, up to a limit; waiting callers get the error at once. An item
that the database will never accept is dropped, so that it does not block the rest. A dropped item is never reported
as durable.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError

from toolcrib.errors import StoreError
from toolcrib.store.database import Database, Store

log = logging.getLogger(__name__)

T = TypeVar("T")
CommitWork = Callable[[sa.Connection, list[T]], None]

LINGER = 0.025
"""Seconds for which items collect if no caller waits for them."""
MAX_ITEMS = 50_000
MAX_BYTES = 64 * 1024 * 1024
"""Limits of the queue while nothing can be written."""

_ITEM_SIZE = 256
"""Default size of an item in bytes."""
_BATCH = 500
"""Items in one transaction: after a long failure, a caller doesn't have to wait for the whole backlog."""
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 2.0
_MIN_RETRY_INTERVAL = 0.2
"""Seconds between attempts while nothing can be written, however often `flush` is called."""

_FULL = "The queue of rows to be written is full, and this one was dropped."
_FULL_REMEDY = "Try again in a moment; `toolcrib status` counts the dropped rows."
_WATCHER_FAILED = "a watcher of group commits failed"
_CLOSED = "The database is closed."
_CLOSED_REMEDY = "Toolcrib is stopping; start it again."


@dataclass(kw_only=True)
class LostItems:
    """Dropped items of one kind."""

    since: float
    until: float
    count: int = 0


class CommitWatcher(Protocol):
    """Callbacks about one kind of items."""

    def committed(self) -> None:
        """On the store's thread, right after a transaction with such items, before any caller of `flush` continues."""

    def reported(self) -> None:
        """On the loop, after `committed`."""

    def lost(self, lost: LostItems) -> None:
        """On the loop, once writing works again."""


class GroupCommit:
    """Belongs to the event loop that created it; close it before its store."""

    def __init__(
        self, store: Store, *, linger: float = LINGER, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._linger = linger
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queue: deque[tuple[CommitWork[Any], Any, int]] = deque()
        """An item stays in the queue until it is written, so that a failure has nothing to put back."""
        self._bytes = 0
        self._written = 0
        """Items that have left the queue so far."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Each with the value of `_written` that it waits for."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._watchers: dict[CommitWork[Any], CommitWatcher] = {}
        self._lost: dict[CommitWork[Any], LostItems] = {}
        self._overflowed = False
        """Whether an item was dropped since the last transaction: a caller of `flush` may be waiting for it."""
        self._pause = _FIRST_PAUSE
        self._tried_at = 0.0
        self.failure: StoreError | None = None
        """Why nothing can be written now; None if writing works."""
        self.dropped = 0
        """Number of items dropped since the start."""

    def watch(self, work: CommitWork[Any], watcher: CommitWatcher) -> None:
        self._watchers[work] = watcher

    def add(self, work: CommitWork[T], item: T, size: int = _ITEM_SIZE) -> None:
        """Returns at once; `size` is the item's approximate size in memory."""
        queue = self._queue
        # A single item is never too large: losses are only reported after something was written.
        if len(queue) >= self._max_items or (queue and self._bytes + size > self._max_bytes):
            self._overflowed = True
            self._lose(work)
            return
        queue.append((work, item, size))
        self._bytes += size
        if self._timer is None and self._task is None:
            self._timer = self._loop.call_later(self._linger, self._begin)

    async def flush(self) -> None:
        """Returns when all items added before are durable; raises `StoreError` at once if they cannot be written now.

        If you call it right after `add`, without awaiting in between, it also raises if that item was dropped.
        """
        if self.failure is not None:
            if self._loop.time() - self._tried_at >= _MIN_RETRY_INTERVAL:
                self._begin()
            raise _again(self.failure)
        if self._overflowed:
            self._begin()
            raise StoreError(_FULL, remedy=_FULL_REMEDY)
        if not self._queue:
            return
        waiter = self._loop.create_future()
        self._waiters.append((self._written + len(self._queue), waiter))
        self._begin()
        await waiter

    async def close(self) -> None:
        """Writes the queued items; makes only one more attempt if writing has been failing."""
        first = True
        while self._queue and (first or self.failure is None):
            first = False
            self._begin()
            if self._task is not None:
                await asyncio.wait({self._task})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue:
            log.error("%d items could not be written before shutdown", len(self._queue))
        self._max_items = 0
        self.failure = StoreError(_CLOSED, remedy=_CLOSED_REMEDY)

    def _begin(self) -> None:
        """Starts writing, unless a task already does."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._queue:
            self._task = self._loop.create_task(self._write())

    async def _write(self) -> None:
        wait = 0.0
        try:
            while self._queue:
                written = await self._write_in_order(list(itertools.islice(self._queue, _BATCH)))
                if self.failure is not None:
                    log.warning("the database can be written again")
                    self.failure = None
                self._pause = _FIRST_PAUSE
                self._overflowed = False
                # Only after something was written: a watcher may add an item, which would be lost again, and so on.
                if written and self._lost:
                    self._report_lost()
                if not self._waiters and len(self._queue) < _BATCH:
                    wait = self._linger
                    break
        except Exception as error:
            wait = self._failed(error)
        finally:
            self._tried_at = self._loop.time()
            self._task = None
        if self._queue and self._max_items:
            self._timer = self._loop.call_later(wait, self._begin)

    async def _write_in_order(self, batch: list[tuple[CommitWork[Any], Any, int]]) -> bool:
        """Bisects a batch until the item that the database will never accept is alone, and drops it.

        Returns whether any item was written.
        """
        try:
            await self._store.run(_commit_batch, batch, self._watchers)
        except Exception as error:
            if not _is_bad_data(error):
                raise
            if len(batch) == 1:
                self._drop(batch[0][0], error)
                return False
            half = len(batch) // 2
            first = await self._write_in_order(batch[:half])
            return await self._write_in_order(batch[half:]) or first
        self._dequeue(len(batch))
        for work in {work for work, _, _ in batch}:
            if work in self._watchers:
                try:
                    self._watchers[work].reported()
                except Exception:
                    log.exception(_WATCHER_FAILED)
        return True

    def _dequeue(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= self._queue.popleft()[2]
        self._written += count
        while self._waiters and self._waiters[0][0] <= self._written:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _report_lost(self) -> None:
        lost, self._lost = self._lost, {}
        for work, items in lost.items():
            log.error("%d items of %s were lost", items.count, _name(work))
            if work in self._watchers:
                try:
                    self._watchers[work].lost(items)
                except Exception:
                    log.exception(_WATCHER_FAILED)

    def _failed(self, error: Exception) -> float:
        """Records the failure; returns how long to wait before the next attempt."""
        if not isinstance(error, StoreError):
            error = StoreError(f"Writing to the database failed: {error}.", remedy="See the log.")
        if self.failure is None:
            log.error("nothing can be written now: %s Rows are kept and retried.", error.text())
        self.failure = error
        self._fail_waiters(error)
        pause, self._pause = self._pause, min(self._pause * 2, _MAX_PAUSE)
        return pause

    def _drop(self, work: CommitWork[Any], error: Exception) -> None:
        log.error("dropped an item of %s that the database does not accept: %s", _name(work), error)
        self._lose(work)
        # Before it leaves the queue as if it were written: some of the waiting callers wait for this item.
        self._fail_waiters(
            StoreError("A row was dropped, since the database does not accept it.", remedy="See the log.")
        )
        self._dequeue(1)

    def _lose(self, work: CommitWork[Any]) -> None:
        now = time.time()
        lost = self._lost.get(work)
        if lost is None:
            lost = self._lost[work] = LostItems(since=now, until=now)
        lost.count += 1
        lost.until = now
        self.dropped += 1

    def _fail_waiters(self, error: StoreError) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(_again(error))


def _commit_batch(
    database: Database, batch: list[tuple[CommitWork[Any], Any, int]], watchers: dict[CommitWork[Any], CommitWatcher]
) -> None:
    groups: dict[CommitWork[Any], list[Any]] = {}
    for work, item, _ in batch:
        groups.setdefault(work, []).append(item)
    if len(groups) == 1:
        ((work, items),) = groups.items()
        database.write(work, items)
    else:
        database.write(_write_groups, groups)
    for work in groups:
        if work in watchers:
            # A failing watcher must not look like a failed write, or the batch would be written twice.
            try:
                watchers[work].committed()
            except Exception:
                log.exception(_WATCHER_FAILED)


def _write_groups(connection: sa.Connection, groups: dict[CommitWork[Any], list[Any]]) -> None:
    for work, items in groups.items():
        work(connection, items)


def _is_bad_data(error: Exception) -> bool:
    """Whether every retry would fail too; a full disk, a lock or a lost connection is temporary."""
    if not isinstance(error, StoreError):
        return True
    cause = error.__cause__
    if isinstance(cause, ProgrammingError):
        # With a code, the server complains about a table; without one, the driver cannot send a value.
        return getattr(cause.orig, "sqlstate", None) is None
    if isinstance(cause, DataError | IntegrityError | UnicodeEncodeError):
        return True
    return isinstance(cause, StatementError) and not isinstance(cause, DBAPIError)


def _name(work: CommitWork[Any]) -> str:
    return getattr(work, "__qualname__", type(work).__qualname__)


def _again(error: StoreError) -> StoreError:
    """A copy for each caller: an error raised twice would carry both tracebacks."""
    return StoreError(error.message, remedy=error.remedy, data=dict(error.data))
