"""A database that is locked, full, damaged, forbidden or missing is an error with a remedy, never a crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from parts import fleet
from parts import postgres as databases
from parts.report import not_run
from parts.small_disk import small_disk
from toolcrib.errors import StoreError
from toolcrib.store import servers
from toolcrib.store.database import Database, Store

HUSH = databases.PASSWORD


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crib.db"


def trusted(database: Database) -> dict[str, str]:
    return {row.path: row.sha256 for row in database.read(servers.all_trusted_files)}


async def paths(store: Store) -> list[str]:
    return [row.path for row in await store.read(servers.all_trusted_files)]


Hold = Callable[[], Callable[[], None]]


@pytest.fixture
def hold(store_url: str, engine: str) -> Iterator[Hold]:
    """Locks the database as another process would; the result releases it."""
    held: list[sqlite3.Connection | psycopg.Connection] = []

    def take() -> Callable[[], None]:
        if engine == "sqlite":
            held.append(sqlite3.connect(store_url, isolation_level=None))
            held[-1].execute("BEGIN IMMEDIATE")
        else:
            held.append(psycopg.connect(store_url))
            held[-1].execute("LOCK TABLE trusted_files IN EXCLUSIVE MODE")
        return held[-1].close

    yield take
    for connection in held:
        connection.close()


@pytest.mark.req("KSI-9")
async def test_a_locked_database_is_an_error_and_does_not_block_the_loop(store_url: str, hold: Hold) -> None:
    store = await Store.open(store_url, busy_timeout=0.5)
    release = hold()
    with Database.open(store_url, busy_timeout=0.1) as database:
        assert trusted(database) == {}, "it can be opened and read"
    waiting = asyncio.create_task(store.write(servers.trust_file, "/p", "aa"))
    turns = 0
    while not waiting.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(StoreError, match="locked by another process") as raised:
        await waiting
    assert "End the program" in raised.value.remedy
    assert turns > 10
    release()
    await store.write(servers.trust_file, "/p", "aa")
    assert await paths(store) == ["/p"]
    await store.close()


@pytest.mark.req("KSI-9")
async def test_while_another_process_writes_reads_continue_and_a_write_waits(store_url: str, hold: Hold) -> None:
    store = await Store.open(store_url, busy_timeout=30)
    await store.write(servers.trust_file, "/p", "aa")
    release = hold()
    waiting = asyncio.create_task(store.write(servers.trust_file, "/q", "aa"))
    for _ in range(3):
        assert await paths(store) == ["/p"]
    assert not waiting.done()
    release()
    await waiting
    assert await paths(store) == ["/p", "/q"]
    await store.close()


def test_a_new_file_that_is_locked_is_an_error(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked by another process"):
            Database.open(file, busy_timeout=0.1)
    Database.open(file).close()


@pytest.mark.req("BNS-10", "KSI-9")
def test_a_full_database_is_an_error_and_keeps_its_rows(file: Path) -> None:
    def limit(pages: int) -> None:
        with database._engine.connect() as connection, database._engine.connect() as other:
            for one in (connection, other):
                one.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    with Database.open(file) as database:
        database.write(servers.trust_file, "/p", "aa")
        limit(1)
        with pytest.raises(StoreError, match="disk is full") as raised:
            database.write(servers.remember_tools, "id", None, [b"x" * 1_000_000])
        assert "Free some disk space" in raised.value.remedy
        assert trusted(database) == {"/p": "aa"}
        limit(1_000_000)
        assert database.write(servers.remember_tools, "id", None, [b"x" * 1_000_000])


@pytest.mark.req("KSI-9")
def test_on_a_full_disk_reads_continue_and_writes_succeed_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=1024) as disk, Database.open(disk / "crib.db") as database:
        database.write(servers.trust_file, "/p", "aa")
        database.write(servers.remember_tools, "id", None, [b"kept"])
        filler = disk.fill()
        for _ in range(3):
            with pytest.raises(StoreError, match="disk is full") as raised:
                database.write(servers.remember_tools, "id", None, [os.urandom(100_000)])
            assert "Free some disk space" in raised.value.remedy
            assert trusted(database) == {"/p": "aa"}
            assert database.read(servers.load_tools, "id", None) == (b"kept",)
        filler.unlink()
        assert database.write(servers.remember_tools, "id", None, [b"x" * 100_000])
        assert database.read(servers.load_tools, "id", None) == (b"x" * 100_000,)


@pytest.mark.req("KSI-9")
def test_a_disk_that_is_full_from_the_start_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=512) as disk:
        filler = disk.fill()
        with pytest.raises(StoreError, match=r"disk is full|No space left"):
            Database.open(disk / "crib.db")
        filler.unlink()
        Database.open(disk / "crib.db").close()


def overwrite(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xa5" * (size - 100))


@pytest.mark.parametrize("torn", [False, True], ids=["no database", "torn pages"])
@pytest.mark.req("BNS-10", "KSI-9")
def test_a_damaged_file_is_an_error_with_a_remedy_and_is_not_changed(file: Path, torn: bool) -> None:
    if torn:
        with Database.open(file) as database:
            database.write(servers.remember_tools, "id", None, [os.urandom(200_000)])
        overwrite(file)
    else:
        file.write_bytes(b"this is no database at all, but long enough to have a header " * 40)
    before = file.read_bytes()
    with pytest.raises(StoreError, match="is damaged") as raised:
        Database.open(file)
    assert f"mv {file} {file}.damaged" in raised.value.remedy
    assert file.read_bytes() == before
    file.rename(f"{file}.damaged")
    Database.open(file).close()


@pytest.mark.req("KSI-9")
async def test_a_file_that_is_damaged_while_it_is_open_is_an_error_for_reads_and_writes(file: Path) -> None:
    with Database.open(file) as database:
        database.write(servers.remember_tools, "id", None, [os.urandom(200_000)])
    store = await Store.open(file)
    overwrite(file)
    for _ in range(2):
        with pytest.raises(StoreError, match="is damaged") as raised:
            await store.read(servers.load_tools, "id", None)
        assert "move the file away" in raised.value.remedy
        with pytest.raises(StoreError, match="is damaged"):
            await store.write(servers.remember_tools, "other", None, [b"x"])
    await store.close()


def test_the_file_and_its_folder_are_private(tmp_path: Path, file: Path) -> None:
    new = tmp_path / "state" / "crib.db"
    with Database.open(new) as database:
        database.write(servers.trust_file, "/p", "aa")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (new.parent, *new.parent.iterdir())}
    assert modes == {"state": 0o700, "crib.db": 0o600, "crib.db-wal": 0o600, "crib.db-shm": 0o600}
    file.touch()
    file.chmod(0o644)
    Database.open(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_settings_of_sqlite_are_durable(file: Path) -> None:
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 2000}
    with Database.open(file) as database, database._engine.connect() as connection:
        assert {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in expected} == expected


async def test_a_folder_instead_of_a_file_or_a_file_instead_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    for place in (tmp_path, tmp_path / "state" / "crib.db"):
        with pytest.raises(StoreError, match="cannot be opened") as raised:
            await Store.open(place)
        assert raised.value.remedy
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib-store"):
            thread.join(60)
            assert not thread.is_alive(), "a store that does not open leaves no thread"


UNREACHABLE = "postgresql://someone:hush@127.0.0.1:1/nothing"


@pytest.mark.parametrize(
    ("url", "message", "remedy"),
    [
        ("mysql://u:hush@h/d", "not supported", ""),
        ("://hush", "is invalid", ""),
        ("postgresql://u:hush@h:x/d", "is invalid", ""),
        (f"{UNREACHABLE}?password=hush", "cannot be reached", "Start PostgreSQL"),
        (UNREACHABLE, "driver is not installed", "toolcrib[postgres]"),
    ],
)
def test_an_unusable_url_is_an_error(url: str, message: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "driver" in message:
        monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=message) as raised:
        Database.open(url)
    assert "hush" not in raised.value.text()
    assert remedy in raised.value.remedy


@pytest.fixture
def own_postgres() -> Iterator[databases.Postgres]:
    """A server that tests may crash."""
    try:
        with databases.running() as server:
            yield server
    except fleet.NotRun as reason:
        not_run("PostgreSQL", str(reason))


@pytest.mark.slow
@pytest.mark.req("KSI-9")
async def test_a_crashed_postgresql_is_an_error_until_it_is_back(own_postgres: databases.Postgres) -> None:
    def crash(connection: sa.Connection) -> None:
        servers.trust_file(connection, "/half", "aa")
        own_postgres.crash()
        servers.trust_file(connection, "/whole", "aa")

    with own_postgres.database() as url:
        store = await Store.open(url)
        await store.write(servers.trust_file, "/p", "aa")
        await store.read(servers.all_trusted_files)
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.write(crash)
            for _ in range(2):
                with pytest.raises(StoreError, match="cannot be reached") as raised:
                    await store.read(servers.all_trusted_files)
                assert "continues automatically" in raised.value.remedy
                assert HUSH not in raised.value.text()
                with pytest.raises(StoreError, match="cannot be reached"):
                    await store.write(servers.trust_file, "/q", "aa")
            own_postgres.start()
            assert await paths(store) == ["/p"]
            await store.write(servers.trust_file, "/p", "bb")
        await store.close()


@pytest.mark.slow
def test_lost_connections_to_postgresql_are_replaced_unnoticed(postgres: databases.Postgres) -> None:
    with postgres.database() as url, Database.open(url) as database:
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'toolcrib'"
        for number in range(3):
            database.write(servers.trust_file, f"/{number}", "aa")
            assert "True" in postgres.sql(cut)
        assert len(trusted(database)) == 3


@pytest.mark.slow
def test_a_refused_login_has_a_remedy(postgres: databases.Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    wrong = postgres.url.replace(HUSH, "hush-wrong")
    for url, message, remedy in (
        (wrong, "password authentication failed", "Correct the user or password"),
        (postgres.url.replace(f":{HUSH}", ""), "no password", "PGPASSFILE"),
        (postgres.url_of("nowhere"), "does not exist", "`createdb nowhere`"),
        (postgres.url_of("it's"), "does not exist", "createdb 'it'\"'\"'s'"),
        (f"postgresql://test:{HUSH}@127.0.0.1:1/d", "refused", "Start PostgreSQL, or correct its address."),
    ):
        with pytest.raises(StoreError, match=message) as raised:
            Database.open(url)
        assert "hush" not in raised.value.text()
        assert remedy in raised.value.remedy
        assert ("Start PostgreSQL" in raised.value.remedy) == (message == "refused")


@pytest.mark.slow
@pytest.mark.req("KSI-9")
def test_errors_of_postgresql_have_remedies_and_its_sessions_are_durable(postgres: databases.Postgres) -> None:
    with postgres.database() as url, Database.open(url, busy_timeout=7) as database:
        for state, message, remedy in (
            ("53100", "disk is full", "Free some disk space"),
            ("XX001", "is damaged", "from a backup"),
            ("40001", "locked by another", "then try again"),
            ("42501", "for writing", "permissions"),
            ("57014", "failed", "the disk"),
        ):
            statement = sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{state}'; END $$")
            with pytest.raises(StoreError, match=message) as raised:
                database.write(sa.Connection.execute, statement)
            assert remedy in raised.value.remedy
            assert trusted(database) == {}
        for name, value in (("synchronous_commit", "on"), ("lock_timeout", "7s")):
            assert database.read(sa.Connection.scalar, sa.text(f"SHOW {name}")) == value
