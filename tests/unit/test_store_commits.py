"""Group commit: few transactions, nothing lost, no caller kept waiting, on every engine."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from parts.waiting import LIMIT
from parts.waiting import until as eventually
from toolcrib.errors import StoreError
from toolcrib.store.commits import GroupCommit, LostItems
from toolcrib.store.database import Store

TABLE = sa.table("items", sa.column("id"), sa.column("text"))


def make_table(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE items (id INTEGER PRIMARY KEY, text VARCHAR(20) NOT NULL)")


def put(connection: sa.Connection, items: list[tuple[int, str]]) -> None:
    connection.execute(TABLE.insert(), [{"id": number, "text": text} for number, text in items])


def add(commits: GroupCommit, *numbers: int) -> None:
    for number in numbers:
        commits.add(put, (number, "x" * 20))


def stored(connection: sa.Connection) -> list[int]:
    return list(connection.execute(sa.select(TABLE.c.id).order_by(TABLE.c.id)).scalars())


def mistaken(connection: sa.Connection, items: list[int]) -> None:
    raise TypeError("a mistake")


class Counter:
    """Counts the transactions, and can hold one up."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.started = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def __call__(self, connection: sa.Connection, items: list[Any]) -> None:
        self.started.set()
        assert self.released.wait(LIMIT)
        self.batches.append(list(items))


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def committed(self) -> None:
        self.seen.append("committed")

    def reported(self) -> None:
        self.seen.append("reported")

    def lost(self, lost: LostItems) -> None:
        self.seen.append(lost.count)


@contextlib.asynccontextmanager
async def opened(url: str | Path) -> AsyncIterator[Store]:
    store = await Store.open(url, busy_timeout=0.1)
    await store.write(make_table)
    yield store
    await store.close()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with opened(store_url) as store:
        yield store


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path / "crib.db") as store:
        yield store


@pytest.fixture
async def commits(store: Store) -> AsyncIterator[GroupCommit]:
    made = GroupCommit(store)
    yield made
    await made.close()


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """As if another process wrote."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.req("KSI-5")
async def test_flushed_items_are_stored_in_order(store: Store, commits: GroupCommit) -> None:
    add(commits, *range(20))
    await commits.flush()
    assert await store.read(stored) == list(range(20))
    await commits.flush()


@pytest.mark.req("KSI-5")
async def test_items_that_nobody_flushes_are_soon_written_together(store: Store) -> None:
    work = Counter()
    commits = GroupCommit(store, linger=0.05)
    for number in range(5):
        commits.add(work, number)
        await asyncio.sleep(0)
    assert work.batches == []
    await eventually(lambda: bool(work.batches))
    assert work.batches == [[0, 1, 2, 3, 4]]
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_items_added_during_a_transaction_share_the_next(store: Store, commits: GroupCommit) -> None:
    work = Counter()
    work.released.clear()
    commits.add(work, 0)
    waiters = [asyncio.create_task(commits.flush())]
    await eventually(work.started.is_set)
    for number in range(1, 50):
        commits.add(work, number)
        waiters.append(asyncio.create_task(commits.flush()))
        await asyncio.sleep(0)
    work.released.set()
    await asyncio.wait_for(asyncio.gather(*waiters), LIMIT)
    assert work.batches == [[0], list(range(1, 50))]


async def test_items_of_several_kinds_share_a_transaction(store: Store, commits: GroupCommit) -> None:
    first, second = Counter(), Counter()
    for number in range(3):
        commits.add(first, number)
        commits.add(second, -number)
    await commits.flush()
    assert (first.batches, second.batches) == ([[0, 1, 2]], [[0, -1, -2]])


async def test_a_watcher_is_called_once_per_commit_even_if_it_fails(store: Store, commits: GroupCommit) -> None:
    watcher = Watcher()
    commits.watch(put, watcher)
    add(commits, 1)
    await commits.flush()
    assert watcher.seen == ["committed", "reported"]

    class Failing(Watcher):
        def committed(self) -> None:
            raise ValueError("a mistake")

    commits.watch(put, Failing())
    add(commits, 2)
    await commits.flush()
    assert await store.read(stored) == [1, 2]
    assert commits.dropped == 0


async def test_a_cancelled_flush_does_not_disturb_others(store: Store, commits: GroupCommit) -> None:
    add(commits, 1)
    gone, stays = asyncio.create_task(commits.flush()), asyncio.create_task(commits.flush())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(stays, LIMIT)
    assert await store.read(stored) == [1]


@pytest.mark.req("KSI-5")
async def test_a_locked_database_is_an_immediate_error_and_nothing_is_lost(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = GroupCommit(sqlite_store)
    with locked(tmp_path / "crib.db"):
        add(commits, 1)
        with pytest.raises(StoreError, match="locked"):
            await commits.flush()
        assert commits.failure is not None
        tries, run = 0, sqlite_store.run

        async def counted(*work: Any) -> Any:
            nonlocal tries
            tries += 1
            return await run(*work)

        monkeypatch.setattr(sqlite_store, "run", counted)
        for number in range(2, 102):
            add(commits, number)
            with pytest.raises(StoreError, match="locked"):
                await commits.flush()
        assert tries < 50, "a caller is refused at once and does not wait for the lock"
    await eventually(lambda: commits.failure is None)
    await commits.flush()
    assert await sqlite_store.read(stored) == list(range(1, 102))
    assert commits.dropped == 0
    await commits.close()


async def test_failing_work_is_retried_seldom_no_matter_how_often_flush_is_called(store: Store) -> None:
    tries = 0

    def fails(connection: sa.Connection, items: list[int]) -> None:
        nonlocal tries
        tries += 1
        raise StoreError("No room.")

    commits = GroupCommit(store)
    commits.add(fails, 1)
    flushes = 0
    while tries < 3:
        with pytest.raises(StoreError):
            await commits.flush()
        flushes += 1
        await asyncio.sleep(0)
    assert flushes > 10 * tries
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_beyond_the_limit_the_newest_items_are_dropped_and_counted(sqlite_store: Store, tmp_path: Path) -> None:
    commits = GroupCommit(sqlite_store, max_items=10)
    watcher = Watcher()
    commits.watch(put, watcher)
    with locked(tmp_path / "crib.db"):
        add(commits, *range(25))
        with pytest.raises(StoreError):
            await commits.flush()
    await eventually(lambda: 15 in watcher.seen)
    assert await sqlite_store.read(stored) == list(range(10))
    assert commits.dropped == 15
    add(commits, 99)
    await commits.flush()
    assert await sqlite_store.read(stored) == [*range(10), 99]
    await commits.close()


async def test_large_items_count_by_size_but_a_single_one_always_fits(store: Store) -> None:
    commits = GroupCommit(store, max_bytes=1000)
    work, watcher = Counter(), Watcher()
    commits.watch(work, watcher)
    for number in range(5):
        commits.add(work, number, 400)
    await eventually(lambda: 3 in watcher.seen)
    assert (work.batches, commits.dropped) == ([[0, 1]], 3)
    for number, size in ((5, 400), (6, 4000)):
        commits.add(work, number, size)
        await commits.flush()
        assert (work.batches[-1], commits.dropped) == ([number], 3)
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_flushing_an_item_that_found_no_room_is_an_error(store: Store) -> None:
    commits = GroupCommit(store, max_items=3)
    work, watcher = Counter(), Watcher()
    commits.watch(work, watcher)
    work.released.clear()
    for number in range(3):
        commits.add(work, number)
    before = asyncio.create_task(commits.flush())
    await eventually(work.started.is_set)
    commits.add(work, 3)
    with pytest.raises(StoreError, match="was dropped"):
        await asyncio.wait_for(commits.flush(), LIMIT)
    work.released.set()
    await asyncio.wait_for(before, LIMIT)
    await eventually(lambda: 1 in watcher.seen)
    commits.add(work, 4)
    await asyncio.wait_for(commits.flush(), LIMIT)
    assert work.batches == [[0, 1, 2], [4]]
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_only_a_flush_after_a_dropped_item_fails(store: Store, commits: GroupCommit) -> None:
    add(commits, 1)
    before = asyncio.create_task(commits.flush())
    await asyncio.sleep(0)
    commits.add(mistaken, 2)
    add(commits, 3)
    with pytest.raises(StoreError, match="dropped"):
        await asyncio.wait_for(commits.flush(), LIMIT)
    await asyncio.wait_for(before, LIMIT)
    await commits.flush()
    assert await store.read(stored) == [1, 3]


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize("poison", [(7, "x"), (1000, "x\ud800"), (1000, None)], ids=["duplicate", "surrogate", "null"])
async def test_an_item_that_the_database_refuses_is_dropped(store: Store, commits: GroupCommit, poison: Any) -> None:
    add(commits, *range(30))
    await commits.flush()
    add(commits, *range(30, 60))
    commits.add(put, poison)
    add(commits, *range(60, 90))
    with pytest.raises(StoreError, match="dropped"):
        await commits.flush()
    await commits.flush()
    assert await store.read(stored) == list(range(90))
    assert (commits.dropped, commits.failure) == (1, None)


async def test_a_watcher_whose_work_never_succeeds_causes_no_endless_loop(store: Store) -> None:
    commits = GroupCommit(store)

    class Repeating(Watcher):
        def lost(self, lost: LostItems) -> None:
            super().lost(lost)
            commits.add(mistaken, 0)

    watcher = Repeating()
    commits.watch(mistaken, watcher)
    commits.add(mistaken, 1)
    with pytest.raises(StoreError, match="dropped"):
        await commits.flush()
    await asyncio.wait_for(commits.close(), LIMIT)
    assert (watcher.seen, commits.dropped) == ([], 1)


async def test_closing_writes_the_remaining_items(store: Store) -> None:
    commits = GroupCommit(store, linger=60)
    add(commits, *range(1200))
    await commits.close()
    assert await store.read(stored) == list(range(1200))
    add(commits, 5000)
    with pytest.raises(StoreError, match="closed"):
        await commits.flush()


async def test_closing_ends_even_if_nothing_can_be_written(sqlite_store: Store, tmp_path: Path) -> None:
    commits = GroupCommit(sqlite_store)
    with locked(tmp_path / "crib.db"):
        add(commits, 1)
        with pytest.raises(StoreError):
            await commits.flush()
        await asyncio.wait_for(commits.close(), LIMIT)
