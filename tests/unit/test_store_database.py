"""The database: its schema, its lock, transactions, and several processes at once, on every engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pytest import MonkeyPatch

from parts.postgres import Postgres
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.errors import AlreadyRunning, StoreError
from toolcrib.store import lock, schema, servers
from toolcrib.store.database import Database, Store
from toolcrib.store.engine import database_url
from toolcrib.store.lock import StoreHolder
from toolcrib.store.schema import metadata


def trusted(database: Database) -> dict[str, str]:
    return {row.path: row.sha256 for row in database.read(servers.all_trusted_files)}


def tables_of(url: str) -> dict[str, Any]:
    engine = sa.create_engine(database_url(url))
    look = sa.inspect(engine)
    found = {
        table: {
            "columns": {
                column["name"]: (column["nullable"], column["type"].compile(engine.dialect))
                for column in look.get_columns(table)
            },
            "key": look.get_pk_constraint(table)["constrained_columns"],
            "unique": [constraint["column_names"] for constraint in look.get_unique_constraints(table)],
            "indexes": sorted((index["name"], index["column_names"]) for index in look.get_indexes(table)),
            "foreign": [
                (key["constrained_columns"], key["referred_table"], key["referred_columns"], key["options"])
                for key in look.get_foreign_keys(table)
            ],
        }
        for table in look.get_table_names()
    }
    engine.dispose()
    return found


def test_a_new_database_has_all_tables_and_their_version(store_url: str) -> None:
    Database.open(store_url).close()
    made = tables_of(store_url)
    assert made.keys() == metadata.tables.keys()
    with Database.open(store_url) as database:
        version = database.read(sa.Connection.scalar, sa.text("SELECT version FROM schema_version"))
    assert version == schema.SCHEMA_VERSION
    assert tables_of(store_url) == made


def test_either_all_tables_are_created_or_none(store_url: str, monkeypatch: MonkeyPatch) -> None:
    twin = sa.MetaData()
    for table in metadata.tables.values():
        table.to_metadata(twin)
    sa.Table("odd", twin, sa.Column("x", sa.Integer, sa.CheckConstraint("nowhere(")))
    monkeypatch.setattr(schema, "metadata", twin)
    with pytest.raises(StoreError):
        Database.open(store_url)
    assert tables_of(store_url) == {}
    monkeypatch.undo()
    Database.open(store_url).close()


def test_a_database_of_another_version_is_refused_with_a_remedy_and_not_changed(store_url: str) -> None:
    for version, whose, remedy in ((5, "an older", "start again"), (99, "a newer", "Update")):
        with Database.open(store_url) as database:
            database.write(servers.trust_file, "/p", "aa")
            database.write(sa.Connection.execute, schema.schema_version.update().values(version=version))
            before = tables_of(store_url)
            with pytest.raises(StoreError, match=f"from {whose} Toolcrib") as raised:
                Database.open(store_url)
            assert remedy in raised.value.remedy
            assert raised.value.data == {"version": version, "known": schema.SCHEMA_VERSION}
            assert tables_of(store_url) == before
            database.write(sa.Connection.execute, schema.schema_version.update().values(version=schema.SCHEMA_VERSION))


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


def test_reads_cannot_write_and_failed_writes_are_undone(store_url: str, engine: str) -> None:
    def fails(connection: sa.Connection) -> None:
        servers.trust_file(connection, "/p", "aa")
        raise RuntimeError("half way")

    with Database.open(store_url) as database:
        with pytest.raises(StoreError, match="for writing"):
            database.read(servers.trust_file, "/p", "aa")
        with pytest.raises(RuntimeError, match="half way"):
            database.write(fails)
        database.write(servers.trust_file, "/q", "aa")
        assert trusted(database) == {"/q": "aa"}
        assert database.engine == engine
        assert database.place.rpartition("@")[2] == store_url.rpartition("@")[2]
        assert not [part for part in ("hush", "*") if part in database.place], "it is shown without the password"


async def test_a_long_read_delays_no_write(store_url: str) -> None:
    store = await Store.open(store_url)
    released = threading.Event()
    reading = asyncio.create_task(store.read(lambda _: released.wait(60)))
    await store.write(servers.trust_file, "/p", "aa")
    assert not reading.done()
    released.set()
    assert await reading
    assert [row.path for row in await store.read(servers.all_trusted_files)] == ["/p"]
    await store.close()


async def test_simultaneous_writes_all_succeed_and_a_closed_store_is_an_error_without_threads(store_url: str) -> None:
    store = await Store.open(store_url)
    await asyncio.gather(*(store.write(servers.trust_file, f"/p{number}", "aa") for number in range(50)))
    assert len(await store.read(servers.all_trusted_files)) == 50
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


def start(code: str, *args: str) -> subprocess.Popen[str]:
    """A Python process with these modules, whose standard streams are pipes."""
    imports = "import sys\nfrom toolcrib.store import servers\nfrom toolcrib.store.database import Database\n"
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", imports + code, *args]
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


WRITES = """
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Database.open(url, busy_timeout=30) as database:
    for number in range(count):
        database.write(servers.trust_file, f"/{name}/{number}", "aa")
        database.write(servers.remember_tools, "id", f"/{name}", [b"x" * 5000, str(number).encode()])
        print(number, flush=True)
"""


def test_processes_that_open_a_new_database_at_the_same_time_can_all_write(store_url: str) -> None:
    writers = [start(WRITES, store_url, f"w{number}", "20") for number in range(4)]
    for writer in writers:
        _, error = writer.communicate(timeout=60)
        assert (writer.returncode, error) == (0, "")
    with Database.open(store_url) as database:
        assert len(database.read(servers.all_trusted_files)) == 80


@pytest.mark.req("ENG-10")
def test_acknowledged_writes_exist_after_a_kill(store_url: str) -> None:
    for after in (1, 7, 23):
        with start(WRITES, store_url, f"w{after}", "1000000") as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(after + 1)]
            writer.send_signal(signal.SIGKILL)
            # Not `communicate`, which does not see what `readline` has read ahead.
            lines += writer.stdout.read().splitlines(keepends=True)
        acknowledged = max(int(line) for line in lines if line.endswith("\n"))
        with Database.open(store_url) as database:
            kept = {path for path in trusted(database) if path.startswith(f"/w{after}/")}
            definitions = database.read(servers.load_tools, "id", f"/w{after}")
        assert {f"/w{after}/{number}" for number in range(acknowledged + 1)} <= kept
        assert len(kept) <= acknowledged + 2
        assert definitions is not None
        assert json.loads(definitions[1]) >= acknowledged


HOLDS = """
from toolcrib.store.lock import StoreHolder
with Database.open(sys.argv[1], holder=StoreHolder(home="/first", daemon=sys.argv[2] == "daemon")):
    print("held", flush=True)
    sys.stdin.read()
"""
SECOND = StoreHolder(home="/second", daemon=True)


@pytest.mark.req("KSI-3")
@pytest.mark.parametrize("kind", ["daemon", "program"])
def test_a_second_daemon_is_refused_until_the_first_ends(store_url: str, kind: str, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)
    with start(HOLDS, store_url, kind) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning) as caught:
            Database.open(store_url, holder=SECOND)
        assert kind in caught.value.message
        if kind == "daemon" or "postgresql" in store_url:
            for word in (f"pid {first.pid} on {os.uname().nodename}", "home /first", "since 20"):
                assert word in caught.value.message
        assert ("toolcrib down" if kind == "daemon" else "Try again") in caught.value.remedy
        if kind == "daemon":
            first.send_signal(signal.SIGKILL)
            first.wait()
            with Database.open(store_url, holder=SECOND) as database:
                assert database.write(sa.Connection.scalar, sa.text("select 1")) == 1
        else:
            waiting = start(HOLDS, store_url, "daemon")
            first.communicate(timeout=60)
            assert waiting.communicate(timeout=60)[0] == "held\n", "a daemon waits for a program to end"


@pytest.mark.req("KSI-3")
def test_another_path_to_the_same_file_is_the_same_store(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    file = tmp_path / "one" / "crib.db"
    monkeypatch.chdir(tmp_path)
    with Database.open(file, holder=SECOND):
        (tmp_path / "link.db").symlink_to(file)
        (tmp_path / "two").symlink_to(tmp_path / "one")
        for other in (str(tmp_path / "link.db"), str(tmp_path / "two" / "crib.db"), "one/../one/crib.db"):
            with pytest.raises(AlreadyRunning):
                Database.open(other, holder=SECOND)


@pytest.mark.req("KSI-3")
async def test_programs_do_not_share_a_store_with_a_daemon(
    store_url: str, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)

    def crib(home: str, *, is_daemon: bool = False) -> Crib:
        environ = {"TOOLCRIB_HOME": str(tmp_path / home), "HOME": str(tmp_path), "TOOLCRIB_STORE": store_url}
        return Crib(paths=Paths.of_user(environ), root=tmp_path, environ=environ, is_daemon=is_daemon)

    async with crib("one"), crib("one") as second:
        assert (await second.services.audit.verify()).ok
        with pytest.raises(AlreadyRunning, match="A program"):
            await crib("two", is_daemon=True).__aenter__()
    async with crib("one", is_daemon=True):
        for home in ("one", "two"):
            with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()} on .*home ") as caught:
                await crib(home).__aenter__()
            assert "Crib.connect()" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.req("KSI-3")
def test_after_a_lost_session_the_lock_is_taken_again_before_anything_is_written(postgres: Postgres) -> None:
    lose = sa.text("select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%/second'")
    third = StoreHolder(home="/third", daemon=True)
    with postgres.database() as url, Database.open(url) as other, Database.open(url, holder=SECOND) as database:
        other.write(sa.Connection.execute, lose)
        database.write(servers.trust_file, "/x", "00")
        assert trusted(other) == {"/x": "00"}
        with pytest.raises(AlreadyRunning, match="home /second"):
            Database.open(url, holder=third)

        other.write(sa.Connection.execute, lose)
        with Database.open(url, holder=third), pytest.raises(StoreError, match="home /third"):
            database.write(servers.trust_file, "/y", "00")
        with pytest.raises(StoreError, match="home /third"):
            database.write(servers.trust_file, "/y", "00")
        assert trusted(other) == {"/x": "00"}
