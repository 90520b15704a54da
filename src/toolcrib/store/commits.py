"""Group commit: many small writes, few transactions.

In: items, each with the work that writes such items. Out: rows that are durable once `flush` returns, in the order
their items came. While a transaction is being written, what comes collects for the next one; what nobody waits for
lingers a moment, so that a thousand reads cost a few transactions. `audit` and `identity.sessions` write
through it.

What cannot be written now is kept and tried again, up to a bound; whoever waits is told at once. An item that the
database will never take is dropped, so that it does not hold up the rest. Nobody is told that what was dropped is
durable.
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
"""Seconds that items nobody waits for collect."""
MOST_ITEMS = 50_000
MOST_BYTES = 64 * 1024 * 1024
"""What is kept in memory while nothing can be written."""

_ITEM = 256
"""Bytes that an item is taken for unless its giver knows better."""
_BATCH = 500
"""Items in one transaction: after a long failure those who wait need not wait for all that was kept."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_SOONEST = 0.2
"""Seconds between attempts, however often somebody asks while nothing can be written."""

_FULL = "Too much waits to be written already, and this was not kept."
_FULL_REMEDY = "Try again in a moment; `toolcrib status` counts what was lost."
_WATCHER_FAILED = "a watcher of what was written failed"
_CLOSED = "The database is closed."
_CLOSED_REMEDY = "Toolcrib is stopping; start it again."


@dataclass(kw_only=True)
class LostItems:
    """Items of one work that were dropped."""

    since: float
    until: float
    count: int = 0


class CommitWatcher(Protocol):
    """What a work wants to know of its items' way."""

    def committed(self) -> None:
        """On the store's thread, right after a transaction with such items, before anybody is told."""

    def reported(self) -> None:
        """On the loop, after that."""

    def lost(self, lost: LostItems) -> None:
        """On the loop, once something can be written again."""


class GroupCommit:
    """Belongs to the loop it was made on; close it before its store."""

    def __init__(
        self, store: Store, *, linger: float = LINGER, most_items: int = MOST_ITEMS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._linger = linger
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._queue: deque[tuple[CommitWork[Any], Any, int]] = deque()
        """An item leaves it only when it is written, so that a failure needs nothing put back."""
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
        """Whether an item found no room since the last transaction: who waits now may wait for it."""
        self._pause = _FIRST_PAUSE
        self._tried_at = 0.0
        self.failure: StoreError | None = None
        """Why nothing can be written now."""
        self.dropped = 0
        """Items that were lost since the start."""

    def watch(self, work: CommitWork[Any], watcher: CommitWatcher) -> None:
        self._watchers[work] = watcher

    def add(self, work: CommitWork[T], item: T, size: int = _ITEM) -> None:
        """Returns at once; `size` is about what the item holds in memory."""
        queue = self._queue
        # A single one is never too large: what was lost could not be told before something is written.
        if len(queue) >= self._most_items or (queue and self._bytes + size > self._most_bytes):
            self._overflowed = True
            self._lose(work)
            return
        queue.append((work, item, size))
        self._bytes += size
        if self._timer is None and self._task is None:
            self._timer = self._loop.call_later(self._linger, self._begin)

    async def flush(self) -> None:
        """Returns when all that was added before is durable; `StoreError` at once if it cannot be written now.

        Who adds and then waits without giving way in between is also told if there was no room for it.
        """
        if self.failure is not None:
            if self._loop.time() - self._tried_at >= _SOONEST:
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
        """Writes what there is; tries only once more if it could not be written before."""
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
            log.error("%d items could not be written before the end", len(self._queue))
        self._most_items = 0
        self.failure = StoreError(_CLOSED, remedy=_CLOSED_REMEDY)

    def _begin(self) -> None:
        """Starts writing, unless that is under way."""
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
                # Only after something was written: a watcher may add an item, which would be lost without end.
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
        if self._queue and self._most_items:
            self._timer = self._loop.call_later(wait, self._begin)

    async def _write_in_order(self, batch: list[tuple[CommitWork[Any], Any, int]]) -> bool:
        """Halves a batch that holds an item which the database will never take, until that one stands alone.

        Returns whether any of them was written.
        """
        try:
            await self._store.run(_carry_out, batch, self._watchers)
        except Exception as error:
            if not _lies_in_the_data(error):
                raise
            if len(batch) == 1:
                self._drop(batch[0][0], error)
                return False
            half = len(batch) // 2
            first = await self._write_in_order(batch[:half])
            return await self._write_in_order(batch[half:]) or first
        self._leave(len(batch))
        for work in {work for work, _, _ in batch}:
            if work in self._watchers:
                try:
                    self._watchers[work].reported()
                except Exception:
                    log.exception(_WATCHER_FAILED)
        return True

    def _leave(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= self._queue.popleft()[2]
        self._written += count
        while self._waiters and self._waiters[0][0] <= self._written:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _report_lost(self) -> None:
        lost, self._lost = self._lost, {}
        for work, what in lost.items():
            log.error("%d items of %s were lost", what.count, _name(work))
            if work in self._watchers:
                try:
                    self._watchers[work].lost(what)
                except Exception:
                    log.exception(_WATCHER_FAILED)

    def _failed(self, error: Exception) -> float:
        """What stands now, and how long to wait."""
        if not isinstance(error, StoreError):
            error = StoreError(f"Something failed while writing: {error}.", remedy="See the log.")
        if self.failure is None:
            log.error("nothing can be written now: %s It is kept and tried again.", error.text())
        self.failure = error
        self._fail_waiters(error)
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return pause

    def _drop(self, work: CommitWork[Any], error: Exception) -> None:
        log.error("an item of %s is dropped, since the database does not take it: %s", _name(work), error)
        self._lose(work)
        # Before it leaves the queue, as if it were written: among those who wait are those who wait for it.
        self._fail_waiters(
            StoreError("Something before it could not be written, and was dropped.", remedy="See the log.")
        )
        self._leave(1)

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


def _carry_out(
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
            # A mistake must not look as if nothing had been written: it would be written twice.
            try:
                watchers[work].committed()
            except Exception:
                log.exception(_WATCHER_FAILED)


def _write_groups(connection: sa.Connection, groups: dict[CommitWork[Any], list[Any]]) -> None:
    for work, items in groups.items():
        work(connection, items)


def _lies_in_the_data(error: Exception) -> bool:
    """Whether trying the same again can only fail again; a full disk, a lock or a lost connection may pass."""
    if not isinstance(error, StoreError):
        return True
    cause = error.__cause__
    if isinstance(cause, ProgrammingError):
        # With a code it is the server's word on a table; without, the driver's on a value that it cannot pass on.
        return getattr(cause.orig, "sqlstate", None) is None
    if isinstance(cause, DataError | IntegrityError | UnicodeEncodeError):
        return True
    return isinstance(cause, StatementError) and not isinstance(cause, DBAPIError)


def _name(work: CommitWork[Any]) -> str:
    return getattr(work, "__qualname__", type(work).__qualname__)


def _again(error: StoreError) -> StoreError:
    """A new one for each who is told: an error that is raised twice carries both their stories."""
    return StoreError(error.message, remedy=error.remedy, data=dict(error.data))
