"""A store has one process at a time: the next is refused with the name of the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from parts.postgres import Postgres
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.errors import AlreadyRunning, StoreError
from toolcrib.store import lock
from toolcrib.store.database import Database
from toolcrib.store.lock import StoreHolder

pytestmark = pytest.mark.req("KSI-3")

HOLDS = """
import sys
from toolcrib.store.database import Database
from toolcrib.store.lock import StoreHolder
with Database.open(sys.argv[1], holder=StoreHolder(home="/first", daemon=sys.argv[2] == "daemon")):
    print("held", flush=True)
    sys.stdin.read()
"""


def holding(url: str, kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, url, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ours(*, daemon: bool = True) -> StoreHolder:
    return StoreHolder(home="/second", daemon=daemon)


@pytest.mark.parametrize("kind", ["daemon", "program"])
def test_the_second_is_refused_with_the_name_of_the_first_until_that_is_killed(
    store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)
    first = holding(store_url, kind)
    with first:
        with pytest.raises(AlreadyRunning) as caught:
            Database.open(store_url, holder=ours())
        assert kind in caught.value.message
        if kind == "daemon" or "postgresql" in store_url:
            for word in (f"pid {first.pid} on {os.uname().nodename}", "home /first", "since 20"):
                assert word in caught.value.message
        assert ("toolcrib down" if kind == "daemon" else "Try again") in caught.value.remedy
        first.send_signal(signal.SIGKILL)
        first.wait()
    with Database.open(store_url, holder=ours()) as database:
        assert database.write(lambda connection: connection.scalar(sa.text("select 1"))) == 1


def test_a_program_that_is_soon_over_is_waited_for(store_url: str) -> None:
    first = holding(store_url, "program")
    with first:
        assert first.stdin is not None
        waiting = subprocess.Popen(
            [sys.executable, "-c", HOLDS, store_url, "daemon"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first.stdin.close()
        said, _ = waiting.communicate(timeout=60)
        assert said == "held\n"


@pytest.mark.parametrize("way", ["link to the file", "link to the folder", "relative"])
def test_another_path_to_the_same_file_is_the_same_store(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one" / "crib.db"
    with Database.open(file, holder=ours()):
        (tmp_path / "link.db").symlink_to(file)
        (tmp_path / "two").symlink_to(tmp_path / "one")
        monkeypatch.chdir(tmp_path)
        other = {
            "link to the file": str(tmp_path / "link.db"),
            "link to the folder": str(tmp_path / "two" / "crib.db"),
            "relative": "one/../one/crib.db",
        }[way]
        with pytest.raises(AlreadyRunning):
            Database.open(other, holder=ours())


async def test_programs_share_a_store_with_each_other_and_with_no_daemon(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
def test_a_lost_session_is_locked_again_before_anything_is_written(postgres: Postgres) -> None:
    def row(connection: sa.Connection) -> None:
        connection.execute(sa.text("insert into trusted_files (path, sha256, trusted_at) values ('/x', '00', 0)"))

    def rows(connection: sa.Connection) -> int:
        return int(connection.scalar(sa.text("select count(*) from trusted_files")) or 0)

    def lose(connection: sa.Connection) -> None:
        connection.execute(
            sa.text("select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%/second'")
        )

    third = StoreHolder(home="/third", daemon=True)
    with postgres.database() as url, Database.open(url) as onlooker, Database.open(url, holder=ours()) as database:
        onlooker.write(lose)
        database.write(row)
        assert onlooker.read(rows) == 1
        with pytest.raises(AlreadyRunning, match="home /second"):
            Database.open(url, holder=third)

        onlooker.write(lose)
        with Database.open(url, holder=third), pytest.raises(StoreError, match="home /third"):
            database.write(row)
        with pytest.raises(StoreError, match="home /third"):
            database.write(row)
        assert onlooker.read(rows) == 1
