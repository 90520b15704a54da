"""Group commit: few transactions, nothing lost, nobody kept waiting, on every engine."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.store.commits import GroupCommit, LostItems
from toolcrib.store.database import Store

LIMIT = 60.0

TABLE = sa.table("items", sa.column("id"), sa.column("text"))


def make_table(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE items (id INTEGER PRIMARY KEY, text VARCHAR(20) NOT NULL)")


def put(connection: sa.Connection, items: list[tuple[int, str]]) -> None:
    connection.execute(TABLE.insert(), [{"id": number, "text": text} for number, text in items])


def kept(connection: sa.Connection) -> list[int]:
    return list(connection.execute(sa.select(TABLE.c.id).order_by(TABLE.c.id)).scalars())


class Counting:
    """Counts the transactions, and can hold one up."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, connection: sa.Connection, items: list[Any]) -> None:
        self.began.set()
        assert self.go_on.wait(LIMIT)
        self.batches.append(list(items))


class Watching:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def committed(self) -> None:
        self.seen.append("committed")

    def reported(self) -> None:
        self.seen.append("told")

    def lost(self, lost: LostItems) -> None:
        self.seen.append(lost.count)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not is_so():  # noqa: ASYNC110 - the thread that writes rings no bell here
            await asyncio.sleep(0.005)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await Store.open(store_url, busy_timeout=0.1)
    await opened.write(make_table)
    yield opened
    await opened.close()


@pytest.fixture
async def commits(store: Store) -> AsyncIterator[GroupCommit]:
    made = GroupCommit(store)
    yield made
    await made.close()


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "crib.db", busy_timeout=0.2)
    await opened.write(make_table)
    yield opened
    await opened.close()


class Locked:
    """Another process that holds the database."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


@pytest.mark.req("KSI-5")
async def test_what_settled_waited_for_is_there_in_its_order(store: Store, commits: GroupCommit) -> None:
    for number in range(20):
        commits.add(put, (number, "x"))
    await commits.flush()
    assert await store.read(kept) == list(range(20))
    await commits.flush()


@pytest.mark.req("KSI-5")
async def test_what_nobody_waits_for_is_written_soon_and_together(store: Store) -> None:
    work = Counting()
    commits = GroupCommit(store, linger=0.05)
    for number in range(5):
        commits.add(work, number)
        await asyncio.sleep(0)
    assert work.batches == []
    await eventually(lambda: bool(work.batches))
    assert work.batches == [[0, 1, 2, 3, 4]]
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_what_comes_while_a_transaction_is_written_shares_the_next(store: Store, commits: GroupCommit) -> None:
    work = Counting()
    work.go_on.clear()
    commits.add(work, 0)
    waiters = [asyncio.create_task(commits.flush())]
    await eventually(work.began.is_set)
    for number in range(1, 50):
        commits.add(work, number)
        waiters.append(asyncio.create_task(commits.flush()))
        await asyncio.sleep(0)
    work.go_on.set()
    await asyncio.wait_for(asyncio.gather(*waiters), LIMIT)
    assert work.batches == [[0], list(range(1, 50))]


async def test_items_of_several_works_share_a_transaction(store: Store, commits: GroupCommit) -> None:
    first, second = Counting(), Counting()
    for number in range(3):
        commits.add(first, number)
        commits.add(second, -number)
    await commits.flush()
    assert (first.batches, second.batches) == ([[0, 1, 2]], [[0, -1, -2]])


async def test_a_watcher_hears_of_the_commit_before_anybody_who_waits(store: Store, commits: GroupCommit) -> None:
    watching = Watching()
    commits.watch(put, watching)
    commits.add(put, (1, "x"))
    await commits.flush()
    assert watching.seen == ["committed", "told"]


async def test_a_watcher_that_fails_has_nothing_written_twice(store: Store, commits: GroupCommit) -> None:
    class Failing(Watching):
        def committed(self) -> None:
            raise ValueError("a mistake")

    commits.watch(put, Failing())
    commits.add(put, (1, "x"))
    await commits.flush()
    assert await store.read(kept) == [1]
    assert commits.dropped == 0


async def test_who_no_longer_waits_does_not_disturb_the_others(store: Store, commits: GroupCommit) -> None:
    commits.add(put, (1, "x"))
    gone, stays = asyncio.create_task(commits.flush()), asyncio.create_task(commits.flush())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(stays, LIMIT)
    assert await store.read(kept) == [1]


@pytest.mark.req("KSI-5")
async def test_a_locked_database_is_told_at_once_and_nothing_is_lost(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = GroupCommit(sqlite_store)
    with Locked(tmp_path / "crib.db"):
        commits.add(put, (1, "x"))
        with pytest.raises(StoreError, match="locked"):
            await commits.flush()
        assert commits.failure is not None
        tried = 0
        run = sqlite_store.run

        async def counted(*work: Any) -> Any:
            nonlocal tried
            tried += 1
            return await run(*work)

        monkeypatch.setattr(sqlite_store, "run", counted)
        for number in range(2, 102):
            commits.add(put, (number, "x"))
            with pytest.raises(StoreError, match="locked"):
                await commits.flush()
        assert tried < 50, "a caller is refused at once, and does not wait for the lock itself"
    await eventually(lambda: commits.failure is None)
    await commits.flush()
    assert await sqlite_store.read(kept) == list(range(1, 102))
    assert commits.dropped == 0
    await commits.close()


async def test_however_often_somebody_asks_it_is_tried_seldom_while_it_fails(store: Store) -> None:
    tries = 0

    def fails(connection: sa.Connection, items: list[int]) -> None:
        nonlocal tries
        tries += 1
        raise StoreError("No room.")

    commits = GroupCommit(store)
    commits.add(fails, 1)
    asked = 0
    while tries < 3:
        with pytest.raises(StoreError):
            await commits.flush()
        asked += 1
        await asyncio.sleep(0)
    assert asked > 10 * tries
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_a_full_disk_passes_by_itself(sqlite_store: Store) -> None:
    def room(connection: sa.Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    commits = GroupCommit(sqlite_store)
    await sqlite_store.write(room, 1)
    for number in range(2000):
        commits.add(put, (number, "x" * 20))
    with pytest.raises(StoreError, match="disk is full"):
        await commits.flush()
    await sqlite_store.write(room, 1_000_000)
    await eventually(lambda: commits.failure is None)
    await commits.flush()
    assert await sqlite_store.read(kept) == list(range(2000))
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_beyond_the_bound_the_newest_are_lost_and_counted(sqlite_store: Store, tmp_path: Path) -> None:
    commits = GroupCommit(sqlite_store, max_items=10)
    watching = Watching()
    commits.watch(put, watching)
    with Locked(tmp_path / "crib.db"):
        for number in range(25):
            commits.add(put, (number, "x"))
        with pytest.raises(StoreError):
            await commits.flush()
    await eventually(lambda: 15 in watching.seen)
    assert await sqlite_store.read(kept) == list(range(10))
    assert commits.dropped == 15
    commits.add(put, (99, "x"))
    await commits.flush()
    assert await sqlite_store.read(kept) == [*range(10), 99]
    await commits.close()


async def test_large_items_count_by_their_size(store: Store) -> None:
    commits = GroupCommit(store, max_bytes=1000)
    work, watching = Counting(), Watching()
    commits.watch(work, watching)
    for number in range(5):
        commits.add(work, number, 400)
    await eventually(lambda: 3 in watching.seen)
    assert (work.batches, commits.dropped) == ([[0, 1]], 3)
    commits.add(work, 5, 400)
    await commits.flush()
    assert work.batches[-1] == [5]
    await commits.close()


async def test_one_item_alone_is_never_too_large(store: Store) -> None:
    commits = GroupCommit(store, max_bytes=1000)
    work = Counting()
    commits.add(work, 0, 4000)
    await commits.flush()
    assert (work.batches, commits.dropped) == ([[0]], 0)
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_nobody_is_told_that_what_found_no_room_is_durable(store: Store) -> None:
    commits = GroupCommit(store, max_items=3)
    work, watching = Counting(), Watching()
    commits.watch(work, watching)
    work.go_on.clear()
    for number in range(3):
        commits.add(work, number)
    before = asyncio.create_task(commits.flush())
    await eventually(work.began.is_set)
    commits.add(work, 3)
    with pytest.raises(StoreError, match="was dropped"):
        await asyncio.wait_for(commits.flush(), LIMIT)
    work.go_on.set()
    await asyncio.wait_for(before, LIMIT)
    await eventually(lambda: 1 in watching.seen)
    commits.add(work, 4)
    await asyncio.wait_for(commits.flush(), LIMIT)
    assert work.batches == [[0, 1, 2], [4]]
    await commits.close()


@pytest.mark.req("KSI-5")
async def test_who_waits_for_an_item_that_is_dropped_is_told_so_and_who_waits_for_one_before_it_is_not(
    store: Store, commits: GroupCommit
) -> None:
    def never(connection: sa.Connection, items: list[int]) -> None:
        raise ValueError("a mistake")

    commits.add(put, (1, "x"))
    before = asyncio.create_task(commits.flush())
    await asyncio.sleep(0)
    commits.add(never, 2)
    with pytest.raises(StoreError, match="dropped"):
        await asyncio.wait_for(commits.flush(), LIMIT)
    await asyncio.wait_for(before, LIMIT)
    assert await store.read(kept) == [1]


@pytest.mark.req("KSI-5")
@pytest.mark.parametrize(
    "poison", [(7, "x"), (1000, "x\ud800"), (1000, None)], ids=["number taken", "no Unicode", "no text"]
)
async def test_an_item_that_the_database_never_takes_holds_nobody_up(
    store: Store, commits: GroupCommit, poison: Any
) -> None:
    for number in range(30):
        commits.add(put, (number, "x"))
    await commits.flush()
    for number in range(30, 60):
        commits.add(put, (number, "x"))
    commits.add(put, poison)
    for number in range(60, 90):
        commits.add(put, (number, "x"))
    with pytest.raises(StoreError, match="dropped"):
        await commits.flush()
    await commits.flush()
    assert await store.read(kept) == list(range(90))
    assert commits.dropped == 1
    assert commits.failure is None


async def test_a_mistake_of_one_work_does_not_take_the_others_along(store: Store, commits: GroupCommit) -> None:
    def mistaken(connection: sa.Connection, items: list[int]) -> None:
        raise TypeError("a mistake")

    commits.add(put, (1, "x"))
    commits.add(mistaken, 2)
    commits.add(put, (3, "x"))
    with pytest.raises(StoreError):
        await commits.flush()
    await commits.flush()
    assert await store.read(kept) == [1, 3]


async def test_a_work_that_never_succeeds_is_not_told_of_its_losses_without_end(store: Store) -> None:
    def mistaken(connection: sa.Connection, items: list[int]) -> None:
        raise TypeError("a mistake")

    commits = GroupCommit(store)
    add = commits.add

    class Telling(Watching):
        def lost(self, lost: LostItems) -> None:
            super().lost(lost)
            add(mistaken, 0)

    watching = Telling()
    commits.watch(mistaken, watching)
    commits.add(mistaken, 1)
    with pytest.raises(StoreError, match="dropped"):
        await commits.flush()
    await asyncio.wait_for(commits.close(), LIMIT)
    assert (watching.seen, commits.dropped) == ([], 1)


async def test_the_end_writes_what_there_is(store: Store) -> None:
    commits = GroupCommit(store, linger=60)
    for number in range(1200):
        commits.add(put, (number, "x"))
    await commits.close()
    assert await store.read(kept) == list(range(1200))
    commits.add(put, (5000, "x"))
    with pytest.raises(StoreError, match="closed"):
        await commits.flush()


async def test_the_end_comes_also_while_nothing_can_be_written(sqlite_store: Store, tmp_path: Path) -> None:
    commits = GroupCommit(sqlite_store)
    with Locked(tmp_path / "crib.db"):
        commits.add(put, (1, "x"))
        with pytest.raises(StoreError):
            await commits.flush()
        await asyncio.wait_for(commits.close(), LIMIT)
