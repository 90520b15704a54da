"""What must outlive a process does, on every engine, whatever happens to the process or the disk.

PostgreSQL takes part where TOOLCRIB_TEST_POSTGRES names a database that the tests may use.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.errors import StoreError
from toolcrib.store import Database, Store
from toolcrib.store.engine import database_url
from toolcrib.store.schema import MIGRATIONS, metadata

POSTGRES = os.environ.get("TOOLCRIB_TEST_POSTGRES", "")
ENGINES = ["sqlite", *(["postgresql"] if POSTGRES else [])]


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state/crib.db"
        return
    _empty_postgres()
    yield POSTGRES
    _empty_postgres()


def _empty_postgres() -> None:
    engine = sa.create_engine(database_url(POSTGRES))
    with engine.begin() as connection:
        found = sa.MetaData()
        found.reflect(connection)
        found.drop_all(connection)
    engine.dispose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crib.db"


DEFINITIONS = (b'{"name": "a",\n "x": 1.10}', b'{"name":"\xc3\xa9"}', b"\xff\x00 not even JSON")


@pytest.mark.req("ENG-10")
async def test_known_tools_are_there_byte_for_byte_after_a_restart(store_url: str) -> None:
    store = await Store.open(store_url)
    assert await store.known_tools("id1", "/project") is None
    assert await store.remember_tools("id1", "/project", DEFINITIONS)
    assert await store.remember_tools("id1", None, ())
    await store.close()
    store = await Store.open(store_url)
    assert await store.known_tools("id1", "/project") == DEFINITIONS
    assert await store.known_tools("id1", None) == ()
    assert await store.known_tools("id2", "/project") is None
    await store.close()


@pytest.mark.req("ENG-10")
async def test_known_tools_are_written_only_when_they_change(store_url: str) -> None:
    store = await Store.open(store_url)
    assert await store.remember_tools("id", "/p", DEFINITIONS) is True
    assert await store.remember_tools("id", "/p", list(DEFINITIONS)) is False
    assert await store.remember_tools("id", "/p", DEFINITIONS[:1]) is True
    assert await store.known_tools("id", "/p") == DEFINITIONS[:1]
    await store.close()


@pytest.mark.req("ENG-10")
async def test_a_server_that_is_forgotten_is_forgotten_in_every_project(store_url: str) -> None:
    store = await Store.open(store_url)
    for identity, root in (("gone", "/a"), ("gone", None), ("stays", "/a")):
        await store.remember_tools(identity, root, DEFINITIONS)
    await store.forget_tools("gone")
    assert await store.known_tools("gone", "/a") is None
    assert await store.known_tools("gone", None) is None
    assert await store.known_tools("stays", "/a") == DEFINITIONS
    await store.close()


@pytest.mark.req("BNS-10")
async def test_trust_is_bound_to_a_path_and_its_content(store_url: str) -> None:
    store = await Store.open(store_url)
    path = Path("/home/me/projekt ü/.toolcrib/config.yml")
    assert not await store.is_trusted(path, "aa")
    await store.trust(path, "aa")
    assert await store.is_trusted(path, "aa")
    assert await store.is_trusted(str(path), "aa")
    assert not await store.is_trusted(path, "bb")
    assert not await store.is_trusted("/other", "aa")
    await store.trust(path, "bb")
    assert not await store.is_trusted(path, "aa")
    (row,) = await store.trusted_files()
    assert (row.path, row.sha256) == (str(path), "bb")
    assert await store.untrust(path) is True
    assert await store.untrust(path) is False
    assert await store.trusted_files() == ()
    await store.close()


def test_a_command_may_use_the_database_without_a_loop(store_url: str) -> None:
    with Database.open(store_url) as database:
        database.trust("/p/config.yml", "aa")
        assert database.is_trusted("/p/config.yml", "aa")
        with pytest.raises(ValueError, match="absolute"):
            database.trust("config.yml", "aa")


def test_a_text_that_the_database_cannot_hold_is_a_clear_error(store_url: str) -> None:
    with Database.open(store_url) as database, pytest.raises(StoreError):
        database.trust("/p/\udcff", "aa")


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_whatever_was_remembered_comes_back(store_url: str, definitions: list[bytes], root: str) -> None:
    with Database.open(store_url) as database:
        database.remember_tools("id", root, definitions)
        assert database.known_tools("id", root) == tuple(definitions)


# --- the schema's versions -------------------------------------------------------------------------------------------


def _columns(url: str) -> dict[str, Any]:
    engine = sa.create_engine(database_url(url))
    inspector = sa.inspect(engine)
    found = {
        table: {
            column["name"]: (column["nullable"], column["type"].compile(engine.dialect))
            for column in inspector.get_columns(table)
        }
        for table in inspector.get_table_names()
    }
    keys = {table: inspector.get_pk_constraint(table)["constrained_columns"] for table in found}
    engine.dispose()
    return {"columns": found, "keys": keys}


def test_the_migrations_lead_to_the_tables_of_today(store_url: str) -> None:
    Database.open(store_url).close()
    migrated = _columns(store_url)
    engine = sa.create_engine(database_url(store_url))
    metadata.drop_all(engine)
    metadata.create_all(engine)
    engine.dispose()
    assert _columns(store_url) == migrated


def _add_note(connection: sa.Connection) -> None:
    connection.execute(sa.text("ALTER TABLE trusted_files ADD COLUMN note TEXT"))


def _fail_half_way(connection: sa.Connection) -> None:
    _add_note(connection)
    connection.execute(sa.text("INSERT INTO nowhere VALUES (1)"))


def test_a_database_of_the_version_before_is_migrated_with_its_rows(store_url: str) -> None:
    Database.open(store_url, migrations=MIGRATIONS[:-1]).close()
    with Database.open(store_url) as database:
        database.trust("/p", "aa")
    with Database.open(store_url, migrations=(*MIGRATIONS, _add_note)) as database:
        assert database.is_trusted("/p", "aa")
    assert "note" in _columns(store_url)["columns"]["trusted_files"]


def test_a_migration_runs_once(store_url: str) -> None:
    runs: list[int] = []
    migrations = (*MIGRATIONS, lambda _: runs.append(1))
    for _ in range(3):
        Database.open(store_url, migrations=migrations).close()
    assert runs == [1]


def test_a_migration_that_fails_leaves_the_old_database_intact(store_url: str) -> None:
    with Database.open(store_url) as database:
        database.trust("/p", "aa")
    before = _columns(store_url)
    with pytest.raises(StoreError, match="nowhere"):
        Database.open(store_url, migrations=(*MIGRATIONS, _fail_half_way))
    assert _columns(store_url) == before
    with Database.open(store_url) as database:
        assert database.is_trusted("/p", "aa")


def test_a_database_newer_than_the_code_is_refused_and_not_touched(store_url: str) -> None:
    Database.open(store_url, migrations=(*MIGRATIONS, _add_note)).close()
    with pytest.raises(StoreError, match="knows only versions up to") as raised:
        Database.open(store_url)
    assert "Update Toolcrib" in raised.value.remedy
    Database.open(store_url, migrations=(*MIGRATIONS, _add_note)).close()


# --- the loop --------------------------------------------------------------------------------------------------------


def test_importing_the_store_does_not_load_sqlalchemy() -> None:
    code = "import sys, toolcrib.store; print('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


async def test_a_locked_database_does_not_hold_up_the_loop_and_ends_in_an_error(file: Path) -> None:
    store = await Store.open(file, busy_timeout=0.5)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.trust("/p", "aa"))
    turns = 0
    while not waiting.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(StoreError, match="locked by another process"):
        await waiting
    assert turns > 10
    holder.execute("ROLLBACK")
    holder.close()
    await store.trust("/p", "aa")
    assert await store.is_trusted("/p", "aa")
    await store.close()


async def test_reading_goes_on_while_another_process_writes(file: Path) -> None:
    store = await Store.open(file, busy_timeout=0.2)
    await store.trust("/p", "aa")
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert await store.is_trusted("/p", "aa")
    holder.close()
    await store.close()


def test_a_writer_holds_the_lock_from_its_start(file: Path) -> None:
    with Database.open(file) as database, database._writing():
        other = sqlite3.connect(file, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()


async def test_many_tasks_at_once_are_served_one_after_the_other(store_url: str) -> None:
    store = await Store.open(store_url)
    await asyncio.gather(*(store.trust(f"/p{number}", "aa") for number in range(50)))
    assert len(await store.trusted_files()) == 50
    await store.close()


async def test_a_closed_store_says_so_and_leaves_no_thread(store_url: str) -> None:
    store = await Store.open(store_url)
    last = asyncio.create_task(store.trust("/p", "aa"))
    await asyncio.sleep(0)
    await store.close()
    await last
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.is_trusted("/p", "aa")
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib-store"):
            thread.join(5)
            assert not thread.is_alive()


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_the_file_and_its_folder_are_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "crib.db"
    with Database.open(file) as database:
        database.trust("/p", "aa")
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
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


def _not_a_database(file: Path) -> None:
    file.write_bytes(b"this is no database at all, but long enough to have a header " * 40)


def _torn_pages(file: Path) -> None:
    with Database.open(file) as database:
        database.remember_tools("id", None, [os.urandom(200_000)])
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xa5" * (size - 100))


@pytest.mark.parametrize("damage", [_not_a_database, _torn_pages])
@pytest.mark.req("BNS-10")
def test_a_damaged_file_is_named_with_what_to_do_and_left_as_it_is(file: Path, damage: Callable[[Path], None]) -> None:
    damage(file)
    before = file.read_bytes()
    with pytest.raises(StoreError, match="is damaged") as raised:
        Database.open(file)
    assert f"mv {file} {file}.damaged" in raised.value.remedy
    assert file.read_bytes() == before
    file.rename(f"{file}.damaged")
    Database.open(file).close()


def test_tools_that_cannot_be_read_count_as_unknown(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Database.open(file) as database:
        database.remember_tools("id", None, DEFINITIONS)
        with database._writing() as connection:
            connection.execute(sa.text("UPDATE known_tools SET definitions = :junk"), {"junk": b"\xc1"})
        assert database.known_tools("id", None) is None
    assert "cannot be read" in caplog.text


@pytest.mark.req("BNS-10")
def test_a_full_disk_is_an_error_and_what_was_written_stays(file: Path) -> None:
    with Database.open(file) as database:
        database.trust("/p", "aa")
        with database._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="no room") as raised:
            database.remember_tools("id", None, [b"x" * 1_000_000])
        assert "Free some disk space" in raised.value.remedy
        assert database.is_trusted("/p", "aa")
        with database._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        assert database.remember_tools("id", None, [b"x" * 1_000_000])


def test_a_folder_instead_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened") as raised:
        Database.open(tmp_path)
    assert raised.value.remedy


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        Database.open(tmp_path / "state" / "crib.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:hush@h/d", "no support"),
        ("://hush", "cannot be read"),
        ("postgresql://u:hush@h:x/d", "cannot be read"),
    ],
)
def test_a_url_that_is_not_for_us_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as raised:
        Database.open(url)
    assert "hush" not in raised.value.text()


def test_an_unreachable_server_or_missing_driver_is_a_clear_error_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"PostgreSQL needs a driver|failed") as raised:
        Database.open("postgresql://someone:hush@127.0.0.1:1/nothing")
    assert "hush" not in raised.value.text()
    assert raised.value.remedy


async def test_a_store_that_does_not_open_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        await Store.open(tmp_path)
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib-store"):
            thread.join(5)
            assert not thread.is_alive()


# --- several processes -----------------------------------------------------------------------------------------------

_WRITER = textwrap.dedent(
    """
    import sys
    from toolcrib.store import Database
    url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Database.open(url, busy_timeout=30) as database:
        for number in range(count):
            database.trust(f"/{name}/{number}", "aa")
            database.remember_tools("id", f"/{name}", [b"x" * 5000, str(number).encode()])
            print(number, flush=True)
    """
)


def _writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, url, name, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_that_open_a_new_database_at_once_all_write_into_it(store_url: str) -> None:
    writers = [_writer(store_url, f"w{number}", 20) for number in range(4)]
    for writer in writers:
        _, complaint = writer.communicate(timeout=60)
        assert (writer.returncode, complaint) == (0, "")
    with Database.open(store_url) as database:
        assert len(database.trusted_files()) == 80


@pytest.mark.parametrize("after", [1, 7, 23])
@pytest.mark.req("ENG-10")
def test_what_was_acknowledged_is_there_after_a_kill_in_mid_write(store_url: str, after: int) -> None:
    writer = _writer(store_url, "w", 1_000_000)
    assert writer.stdout is not None
    acknowledged = -1
    while acknowledged < after:
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=60)
    acknowledged = max([acknowledged, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
    with Database.open(store_url) as database:
        kept = {row.path for row in database.trusted_files()}
        tools = database.known_tools("id", "/w")
    assert {f"/w/{number}" for number in range(acknowledged + 1)} <= kept
    assert len(kept) <= acknowledged + 2
    assert tools is not None
    assert json.loads(tools[1]) >= acknowledged
