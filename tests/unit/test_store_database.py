"""What must outlive a process does, on every engine, whatever happens to the process or the disk."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.store import schema, servers
from toolcrib.store.database import Database, Store
from toolcrib.store.engine import database_url
from toolcrib.store.schema import metadata


def trusted(database: Database) -> dict[str, str]:
    return {row.path: row.sha256 for row in database.read(servers.all_trusted_files)}


# --- the schema's versions -------------------------------------------------------------------------------------------


def _shape(url: str) -> dict[str, Any]:
    engine = sa.create_engine(database_url(url))
    inspector = sa.inspect(engine)
    found = {
        table: {
            "columns": {
                column["name"]: (column["nullable"], column["type"].compile(engine.dialect))
                for column in inspector.get_columns(table)
            },
            "key": inspector.get_pk_constraint(table)["constrained_columns"],
            "unique": [constraint["column_names"] for constraint in inspector.get_unique_constraints(table)],
            "indexes": sorted((index["name"], index["column_names"]) for index in inspector.get_indexes(table)),
            "foreign": [
                (key["constrained_columns"], key["referred_table"], key["referred_columns"], key["options"])
                for key in inspector.get_foreign_keys(table)
            ],
        }
        for table in inspector.get_table_names()
    }
    engine.dispose()
    return found


def test_a_new_database_has_the_tables_and_their_version(store_url: str) -> None:
    Database.open(store_url).close()
    made = _shape(store_url)
    assert made.keys() == metadata.tables.keys()
    Database.open(store_url).close()
    assert _shape(store_url) == made
    with Database.open(store_url) as database:
        assert database.read(lambda connection: connection.scalar(sa.text("SELECT version FROM schema_version"))) == (
            schema.SCHEMA_VERSION
        )


def test_tables_that_cannot_all_be_made_are_not_made_at_all(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = sa.MetaData()
    for table in metadata.tables.values():
        table.to_metadata(twin)
    sa.Table("odd", twin, sa.Column("x", sa.Integer, sa.CheckConstraint("nowhere(")))
    monkeypatch.setattr(schema, "metadata", twin)
    with pytest.raises(StoreError):
        Database.open(store_url)
    assert _shape(store_url) == {}
    monkeypatch.undo()
    Database.open(store_url).close()


@pytest.mark.parametrize(("version", "whose", "remedy"), [(5, "an older", "start again"), (99, "a newer", "Update")])
def test_a_database_of_another_version_is_refused_with_what_to_do_and_not_touched(
    store_url: str, version: int, whose: str, remedy: str
) -> None:
    with Database.open(store_url) as database:
        database.write(servers.trust_file, "/p", "aa")
        database.write(lambda connection: connection.execute(schema.schema_version.update().values(version=version)))
    before = _shape(store_url)
    with pytest.raises(StoreError, match=f"from {whose} Toolcrib") as raised:
        Database.open(store_url)
    assert remedy in raised.value.remedy
    assert raised.value.data == {"version": version, "known": schema.SCHEMA_VERSION}
    assert _shape(store_url) == before


# --- the loop --------------------------------------------------------------------------------------------------------


def test_importing_the_store_does_not_load_sqlalchemy() -> None:
    code = "import sys, toolcrib.store; print('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_writer_holds_the_lock_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "crib.db"

    def tries(_: sa.Connection) -> None:
        other = sqlite3.connect(file, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()

    with Database.open(file) as database:
        database.write(tries)


def test_who_only_reads_cannot_write(store_url: str) -> None:
    with Database.open(store_url) as database:
        with pytest.raises(StoreError, match="for writing"):
            database.read(servers.trust_file, "/p", "aa")
        database.write(servers.trust_file, "/q", "aa")
        assert trusted(database) == {"/q": "aa"}


def test_what_fails_half_way_was_not_done(store_url: str) -> None:
    def half(connection: sa.Connection) -> None:
        servers.trust_file(connection, "/p", "aa")
        raise RuntimeError("half way")

    with Database.open(store_url) as database:
        with pytest.raises(RuntimeError, match="half way"):
            database.write(half)
        assert trusted(database) == {}


async def test_a_long_look_holds_up_no_commit(store_url: str) -> None:
    store = await Store.open(store_url)
    go_on = threading.Event()
    looking = asyncio.create_task(store.read(lambda _: go_on.wait(60)))
    await store.write(servers.trust_file, "/p", "aa")
    assert not looking.done()
    go_on.set()
    assert await looking
    assert [row.path for row in await store.read(servers.all_trusted_files)] == ["/p"]
    await store.close()


def test_an_engine_and_a_place_can_be_told_without_the_password(engine: str, store_url: str) -> None:
    with Database.open(store_url) as database:
        assert database.engine == engine
        assert database.place.rpartition("@")[2] == store_url.rpartition("@")[2]
        assert "hush" not in database.place
        assert "*" not in database.place


async def test_a_closed_store_says_so_and_leaves_no_thread(store_url: str) -> None:
    store = await Store.open(store_url)
    last = asyncio.create_task(store.write(servers.trust_file, "/p", "aa"))
    await asyncio.sleep(0)
    await store.close()
    await last
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.read(servers.all_trusted_files)
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib-store"):
            thread.join(60)
            assert not thread.is_alive()


# --- several processes -----------------------------------------------------------------------------------------------

_WRITER = textwrap.dedent(
    """
    import sys
    from toolcrib.store import servers
    from toolcrib.store.database import Database
    url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Database.open(url, busy_timeout=30) as database:
        for number in range(count):
            database.write(servers.trust_file, f"/{name}/{number}", "aa")
            database.write(servers.remember_tools, "id", f"/{name}", [b"x" * 5000, str(number).encode()])
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
        assert len(database.read(servers.all_trusted_files)) == 80


@pytest.mark.parametrize("after", [1, 7, 23])
@pytest.mark.req("ENG-10")
def test_what_was_acknowledged_is_there_after_a_kill_in_mid_write(store_url: str, after: int) -> None:
    with _writer(store_url, "w", 1_000_000) as writer:
        assert writer.stdout is not None
        acknowledged = -1
        while acknowledged < after:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        # Not `communicate`, which does not see what `readline` has read ahead.
        rest = writer.stdout.read()
    acknowledged = max([acknowledged, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
    with Database.open(store_url) as database:
        kept = {row.path for row in database.read(servers.all_trusted_files)}
        definitions = database.read(servers.load_tools, "id", "/w")
    assert {f"/w/{number}" for number in range(acknowledged + 1)} <= kept
    assert len(kept) <= acknowledged + 2
    assert definitions is not None
    assert json.loads(definitions[1]) >= acknowledged
