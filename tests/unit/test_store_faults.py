"""A database that is locked, full, damaged, forbidden or gone: an error that says what to do, never a crash."""

from __future__ import annotations

import asyncio
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


# --- locked ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hold(store_url: str, engine: str) -> Iterator[Callable[[], Callable[[], None]]]:
    """Keeps everybody else from writing, as another process would; what it returns lets go."""
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
async def test_a_locked_database_does_not_hold_up_the_loop_and_ends_in_an_error(
    store_url: str, hold: Callable[[], Callable[[], None]]
) -> None:
    store = await Store.open(store_url, busy_timeout=0.5)
    let_go = hold()
    waiting = asyncio.create_task(store.write(servers.trust_file, "/p", "aa"))
    turns = 0
    while not waiting.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(StoreError, match="locked by another process") as raised:
        await waiting
    assert "End the program" in raised.value.remedy
    assert turns > 10
    let_go()
    await store.write(servers.trust_file, "/p", "aa")
    assert await store.read(servers.all_trusted_files)
    await store.close()


@pytest.mark.req("KSI-9")
async def test_reading_goes_on_while_another_process_writes_and_a_writer_waits_for_it(
    store_url: str, hold: Callable[[], Callable[[], None]]
) -> None:
    store = await Store.open(store_url, busy_timeout=30)
    await store.write(servers.trust_file, "/p", "aa")
    let_go = hold()
    waiting = asyncio.create_task(store.write(servers.trust_file, "/q", "aa"))
    for _ in range(3):
        assert [row.path for row in await store.read(servers.all_trusted_files)] == ["/p"]
    assert not waiting.done()
    let_go()
    await waiting
    assert [row.path for row in await store.read(servers.all_trusted_files)] == ["/p", "/q"]
    await store.close()


def test_a_locked_database_can_still_be_opened(store_url: str, hold: Callable[[], Callable[[], None]]) -> None:
    Database.open(store_url).close()
    hold()
    with Database.open(store_url, busy_timeout=0.1) as database:
        assert trusted(database) == {}


def test_a_new_file_that_is_locked_is_a_clear_error(file: Path) -> None:
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked by another process"):
        Database.open(file, busy_timeout=0.1)
    holder.close()
    Database.open(file).close()


# --- full ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("BNS-10", "KSI-9")
def test_a_full_database_is_an_error_and_what_was_written_stays(file: Path) -> None:
    with Database.open(file) as database:
        database.write(servers.trust_file, "/p", "aa")
        with database._engine.connect() as connection, database._engine.connect() as other:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            for one in (connection, other):
                one.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full") as raised:
            database.write(servers.remember_tools, "id", None, [b"x" * 1_000_000])
        assert "Free some disk space" in raised.value.remedy
        assert trusted(database) == {"/p": "aa"}
        with database._engine.connect() as connection, database._engine.connect() as other:
            for one in (connection, other):
                one.exec_driver_sql("PRAGMA max_page_count = 1000000")
        assert database.write(servers.remember_tools, "id", None, [b"x" * 1_000_000])


@pytest.mark.req("KSI-9")
def test_a_full_disk_is_an_error_reads_go_on_and_room_ends_it(tmp_path: Path) -> None:
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
def test_a_disk_that_is_full_from_the_start_is_a_clear_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=512) as disk:
        filler = disk.fill()
        with pytest.raises(StoreError, match=r"disk is full|No space left"):
            Database.open(disk / "crib.db")
        filler.unlink()
        Database.open(disk / "crib.db").close()


# --- damaged ---------------------------------------------------------------------------------------------------------


def _not_a_database(file: Path) -> None:
    file.write_bytes(b"this is no database at all, but long enough to have a header " * 40)


def _torn_pages(file: Path) -> None:
    with Database.open(file) as database:
        database.write(servers.remember_tools, "id", None, [os.urandom(200_000)])
    _overwrite(file)


def _overwrite(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xa5" * (size - 100))


@pytest.mark.parametrize("damage", [_not_a_database, _torn_pages])
@pytest.mark.req("BNS-10", "KSI-9")
def test_a_damaged_file_is_named_with_what_to_do_and_left_as_it_is(file: Path, damage: Callable[[Path], None]) -> None:
    damage(file)
    before = file.read_bytes()
    with pytest.raises(StoreError, match="is damaged") as raised:
        Database.open(file)
    assert f"mv {file} {file}.damaged" in raised.value.remedy
    assert file.read_bytes() == before
    file.rename(f"{file}.damaged")
    Database.open(file).close()


@pytest.mark.req("KSI-9")
async def test_a_file_that_is_damaged_while_it_is_used_is_an_error_for_reader_and_writer(file: Path) -> None:
    store = await Store.open(file)
    await store.write(servers.remember_tools, "id", None, [os.urandom(200_000)])
    await store.close()
    store = await Store.open(file)
    _overwrite(file)
    for _ in range(2):
        with pytest.raises(StoreError, match="is damaged") as raised:
            await store.read(servers.load_tools, "id", None)
        assert "move the file away" in raised.value.remedy
        with pytest.raises(StoreError, match="is damaged"):
            await store.write(servers.remember_tools, "other", None, [b"x"])
    await store.close()


# --- forbidden, or not there -----------------------------------------------------------------------------------------


def test_the_file_and_its_folder_are_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "crib.db"
    with Database.open(file) as database:
        database.write(servers.trust_file, "/p", "aa")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert modes == {"crib.db": 0o600, "crib.db-wal": 0o600, "crib.db-shm": 0o600}
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(file: Path) -> None:
    file.touch(mode=0o644)
    file.chmod(0o644)
    Database.open(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_journal_and_its_settings_are_durable(file: Path) -> None:
    with Database.open(file) as database, database._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 2000}


def test_a_folder_instead_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened") as raised:
        Database.open(tmp_path)
    assert raised.value.remedy


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        Database.open(tmp_path / "state" / "crib.db")


async def test_a_store_that_does_not_open_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        await Store.open(tmp_path)
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib-store"):
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("url", "message"),
    [("mysql://u:hush@h/d", "not supported"), ("://hush", "is invalid"), ("postgresql://u:hush@h:x/d", "is invalid")],
)
def test_a_url_that_is_not_for_us_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as raised:
        Database.open(url)
    assert "hush" not in raised.value.text()


def test_an_unreachable_server_is_a_clear_error_without_the_password() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as raised:
        Database.open("postgresql://someone:hush@127.0.0.1:1/nothing?password=hush")
    assert "hush" not in raised.value.text()
    assert "Start PostgreSQL" in raised.value.remedy


def test_a_driver_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match="driver is not installed") as raised:
        Database.open("postgresql://someone:hush@127.0.0.1:1/nothing")
    assert "toolcrib[postgres]" in raised.value.remedy


# --- PostgreSQL alone ------------------------------------------------------------------------------------------------


@pytest.fixture
def own_postgres() -> Iterator[databases.Postgres]:
    """One that a test may kill."""
    try:
        with databases.running() as server:
            yield server
    except fleet.NotRun as reason:
        not_run("PostgreSQL", str(reason))


@pytest.mark.slow
@pytest.mark.req("KSI-9")
async def test_a_postgresql_that_goes_away_is_an_error_until_it_is_back(own_postgres: databases.Postgres) -> None:
    store = await Store.open(own_postgres.url)
    await store.write(servers.trust_file, "/p", "aa")
    await store.read(servers.all_trusted_files)
    for _ in range(2):
        own_postgres.crash()
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be reached") as raised:
                await store.read(servers.all_trusted_files)
            assert "continues automatically" in raised.value.remedy
            assert HUSH not in raised.value.text()
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.write(servers.trust_file, "/q", "aa")
        own_postgres.start()
        assert [row.path for row in await store.read(servers.all_trusted_files)] == ["/p"]
        await store.write(servers.trust_file, "/p", "bb")
    await store.close()


@pytest.mark.slow
@pytest.mark.req("KSI-9")
def test_what_a_postgresql_was_doing_when_it_died_was_not_done(own_postgres: databases.Postgres) -> None:
    def dies(connection: sa.Connection) -> None:
        servers.trust_file(connection, "/half", "aa")
        own_postgres.crash()
        servers.trust_file(connection, "/whole", "aa")

    with Database.open(own_postgres.url) as database:
        database.write(servers.trust_file, "/before", "aa")
        with pytest.raises(StoreError, match="cannot be reached"):
            database.write(dies)
        own_postgres.start()
        assert trusted(database) == {"/before": "aa"}
        database.write(servers.trust_file, "/after", "aa")
        assert trusted(database) == {"/after": "aa", "/before": "aa"}


@pytest.mark.slow
def test_connections_that_a_postgresql_cut_are_made_anew_unnoticed(postgres: databases.Postgres) -> None:
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'toolcrib'"
    with postgres.database() as url, Database.open(url) as database:
        for number in range(3):
            database.write(servers.trust_file, f"/{number}", "aa")
            assert "True" in postgres.sql(cut)
        assert len(trusted(database)) == 3


@pytest.mark.slow
def test_who_is_not_let_in_is_told_what_to_do_without_the_password(
    postgres: databases.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    for url, said, remedy in (
        (
            postgres.url.replace(HUSH, "hush-wrong"),
            "password authentication failed",
            "Correct the user or the password",
        ),
        (postgres.url.replace(f":{HUSH}", ""), "no password", "PGPASSFILE"),
        (postgres.url_of("nowhere"), "does not exist", "`createdb nowhere`"),
        (postgres.url_of("it's"), "does not exist", "createdb 'it'\"'\"'s'"),
        (f"postgresql://test:{HUSH}@127.0.0.1:1/d", "refused", "Start PostgreSQL, or correct its address."),
    ):
        with pytest.raises(StoreError, match=said) as raised:
            Database.open(url)
        assert "hush" not in raised.value.text()
        assert remedy in raised.value.remedy
        assert ("Start PostgreSQL" in raised.value.remedy) == (said == "refused")


@pytest.mark.slow
@pytest.mark.req("KSI-9")
@pytest.mark.parametrize(
    ("state", "said", "remedy"),
    [
        ("53100", "disk is full", "Free some disk space"),
        ("XX001", "is damaged", "from a backup"),
        ("40001", "locked by another", "then try again"),
        ("42501", "for writing", "permissions"),
        ("57014", "failed", "the disk"),
    ],
)
def test_what_a_postgresql_complains_of_is_said_with_what_to_do(
    postgres: databases.Postgres, state: str, said: str, remedy: str
) -> None:
    complaint = sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'as made up' USING ERRCODE = '{state}'; END $$")
    with postgres.database() as url, Database.open(url) as database:
        with pytest.raises(StoreError, match=said) as raised:
            database.write(lambda connection: connection.execute(complaint))
        assert remedy in raised.value.remedy
        assert trusted(database) == {}


@pytest.mark.slow
def test_a_postgresql_is_asked_to_be_durable_and_not_to_wait_for_ever(postgres: databases.Postgres) -> None:
    with postgres.database() as url, Database.open(url, busy_timeout=7) as database:
        for name, value in (("synchronous_commit", "on"), ("lock_timeout", "7s")):
            shown = sa.text(f"SHOW {name}")
            assert database.read(lambda connection, shown=shown: connection.execute(shown).scalar()) == value
