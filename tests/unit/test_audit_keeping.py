"""The audit log at work: notes what happens, shows it, bears a database that cannot be written, lets the oldest go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from toolcrib.audit import writer
from toolcrib.audit.entry import MAX_PARSED_BYTES, AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.audit.row import MAX_COUNTED_BYTES, TokenCount
from toolcrib.config.masking import Masker
from toolcrib.errors import StoreError
from toolcrib.store import audit
from toolcrib.store.commits import MAX_BYTES, MAX_ITEMS, GroupCommit
from toolcrib.store.database import Database, Store

pytestmark = pytest.mark.req("KSI-5")

LIMIT = 60.0
NOW = 2_000_000_000.0


@contextlib.asynccontextmanager
async def opened(
    url: str | Path, folder: Path, *, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES, **options: Any
) -> AsyncIterator[tuple[AuditLog, Store]]:
    folder.mkdir(exist_ok=True)
    store = await Store.open(url, busy_timeout=0.1)
    commits = GroupCommit(store, max_items=max_items, max_bytes=max_bytes)
    audit_log = await AuditLog.open(store, commits, folder=folder, mask=Masker(), **options)
    try:
        yield audit_log, store
    finally:
        await audit_log.close()
        await commits.close()
        await store.close()


@pytest.fixture
async def audit_log(store_url: str, tmp_path: Path) -> AsyncIterator[AuditLog]:
    async with opened(store_url, tmp_path / "state") as (made, _):
        yield made


def call(audit_log: AuditLog, number: int, **fields: Any) -> None:
    entry: dict[str, Any] = {"call": f"c{number}", "agent": "reviewer", "at": NOW + number, **fields}
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, **entry))
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, **{"outcome": "ok", "duration": 0.5, "size": 9, **entry}))


async def eventually(is_so: Any) -> None:
    async with asyncio.timeout(LIMIT):
        while not is_so():  # noqa: ASYNC110 - the thread that writes rings no bell here
            await asyncio.sleep(0.005)


async def test_a_call_is_two_entries_with_all_that_is_known_of_it(audit_log: AuditLog) -> None:
    entry: dict[str, Any] = {
        "at": NOW + 1,
        "call": "c1",
        "agent": "reviewer",
        "session": "s_1",
        "conversation": "default",
        "tool": "files:read",
        "server": "files",
        "decision": "allow",
        "rule": "profile developer: allow *",
        "mode": "full",
    }
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, arguments=b'{"path": "abc"}', **entry))
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, outcome="ok", duration=0.5, size=9, **entry))
    await audit_log.flush()
    intent, outcome = await audit_log.query()
    hashes = {name: row.pop("hash") for name, row in (("intent", intent), ("outcome", outcome))}
    assert hashes["intent"] != hashes["outcome"]
    assert len(intent.pop("arguments_hash")) == 64
    same = {**entry, "arguments": None, "tokens": None, "tokens_estimated": False, "detail": None}
    assert intent == {
        **same,
        "seq": 1,
        "kind": "intent",
        "shape": {"path": "string(3)"},
        "outcome": "",
        "duration": 0.0,
        "size": 0,
    }
    assert outcome == {
        **same,
        "seq": 2,
        "kind": "outcome",
        "shape": None,
        "arguments_hash": None,
        "outcome": "ok",
        "duration": 0.5,
        "size": 9,
    }


async def test_a_call_that_was_stopped_at_the_door_has_its_arguments_with_the_outcome(audit_log: AuditLog) -> None:
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, call="c1", outcome="denied", arguments=b'{"a": 1}'))
    await audit_log.flush()
    (row,) = await audit_log.query()
    assert row["shape"] == {"a": "integer"}


async def test_tokens_are_told_to_who_counts_them_once_the_row_is_there(audit_log: AuditLog) -> None:
    told: list[TokenCount] = []
    call(audit_log, 1, result=b"hello world", counted=told.append)
    call(audit_log, 2, result=b"x" * (MAX_COUNTED_BYTES + 1), counted=told.append)
    assert told == []
    await audit_log.flush()
    assert [row["tokens"] for row in await audit_log.query()] == [2, 2, None, None]
    assert told == [TokenCount(2, estimated=False)] * 2


async def test_queries_find_what_fits_and_nothing_else(audit_log: AuditLog) -> None:
    call(audit_log, 0, tool="files:read_file", server="files", session="s_1")
    call(audit_log, 1, tool="files:write_file", server="files", outcome="denied")
    call(audit_log, 2, tool="git:read_file", server="git", agent="builder")
    call(audit_log, 3, tool="Files:READ_FILE", server="Files")
    call(audit_log, 4, tool="we_ird:100%_[a]", server="we_ird", session="s_2")
    call(audit_log, 5, tool="weXird:1009_a", server="weXird")
    audit_log.note(
        AuditEntry(kind=EntryKind.CHANGE, at=NOW + 6, agent="builder", outcome="agent added", detail={"by": "owner"})
    )
    await audit_log.flush()

    async def numbers(**wanted: Any) -> list[int]:
        rows = await audit_log.query(**wanted)
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        return sorted({round(row["at"] - NOW) for row in rows})

    assert await numbers() == [0, 1, 2, 3, 4, 5, 6]
    assert await numbers(agent="builder") == [2, 6]
    assert await numbers(server="files") == [0, 1]
    assert await numbers(session="s_1") == [0]
    assert await numbers(outcome="denied") == [1]
    assert await numbers(outcome="agent added") == [6]
    assert await numbers(tool="files:read_file") == [0]
    assert await numbers(tool="read_file") == [0, 2]
    assert await numbers(tool="files:*") == [0, 1]
    assert await numbers(tool="*:read_fil?") == [0, 2]
    assert await numbers(tool="*") == [0, 1, 2, 3, 4, 5, 6]
    assert await numbers(tool="we_ird:*") == [4]
    assert await numbers(tool="100%_[a]") == [4]
    assert await numbers(tool="100%*") == [4]
    assert await numbers(since=NOW + 4) == [4, 5, 6]
    assert await numbers(until=NOW + 1) == [0, 1]
    assert await numbers(since=NOW + 1, until=NOW + 4, server="files") == [1]
    assert await numbers(since=NOW + 100) == []
    assert await numbers(agent="nobody") == []
    assert [row["seq"] for row in await audit_log.query(limit=3)] == [11, 12, 13]
    assert [row["seq"] for row in await audit_log.query(limit=3, after=4)] == [5, 6, 7]
    assert [row["seq"] for row in await audit_log.query(after=12)] == [13]
    assert (await audit_log.query(limit=1))[0]["detail"] == {"by": "owner"}


async def test_what_is_rare_is_found_in_a_long_audit_log(audit_log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.audit.log._WINDOW", 7)
    for number in range(30):
        call(audit_log, number, agent="rare" if number % 10 == 0 else "often")
    await audit_log.flush()
    assert [row["seq"] for row in await audit_log.query(agent="rare", limit=5)] == [2, 21, 22, 41, 42]
    assert len(await audit_log.query(limit=100)) == 60


async def test_a_database_that_cannot_be_written_is_told_at_once_and_the_audit_log_recovers(tmp_path: Path) -> None:
    def room(connection: sa.Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    async with opened(tmp_path / "crib.db", tmp_path / "state", max_items=100) as (audit_log, store):
        call(audit_log, 0)
        await audit_log.flush()
        await store.write(room, 1)
        rule = "r" * 500
        for number in range(1, 50):
            call(audit_log, number, rule=rule)
        with pytest.raises(StoreError, match="disk is full"):
            await audit_log.flush()
        for number in range(50, 200):
            call(audit_log, number, rule=rule)
        assert audit_log.failure is not None
        assert (await audit_log.describe())["writable"] is False
        with pytest.raises(StoreError, match="disk is full"):
            await audit_log.flush()
        assert len(await audit_log.query()) == 2, "reading goes on"
        await store.write(room, 1_000_000)
        await eventually(lambda: audit_log.failure is None)
        await audit_log.flush()
        rows = await audit_log.query(limit=1000)
        assert [row["kind"] for row in rows[102:]] == ["gap"]
        assert rows[-1]["detail"]["entries"] == 398 - 100
        assert rows[-1]["detail"]["from"] <= rows[-1]["detail"]["to"] <= time.time()
        assert (await audit_log.describe())["lost"] == 298
        assert (await audit_log.verify()).ok


@pytest.mark.parametrize("was_made", [True, False])
async def test_a_commit_whose_end_nobody_knows_is_neither_lost_nor_repeated(
    audit_log: AuditLog, monkeypatch: pytest.MonkeyPatch, was_made: bool
) -> None:
    call(audit_log, 0)
    await audit_log.flush()
    write = Database.write
    ends = iter([True])

    def cut_off(database: Database, work: Any, *args: Any) -> Any:
        """The connection is lost while the commit is under way."""
        if next(ends, False):
            if was_made:
                write(database, work, *args)
            raise StoreError("The connection is lost.")
        return write(database, work, *args)

    monkeypatch.setattr(Database, "write", cut_off)
    told: list[TokenCount] = []
    call(audit_log, 1, result=b"hello world", counted=told.append)
    with pytest.raises(StoreError, match="lost"):
        await audit_log.flush()
    call(audit_log, 2, result=b"hello world", counted=told.append)
    await eventually(lambda: audit_log.failure is None)
    await audit_log.flush()
    assert [row["call"] for row in await audit_log.query()] == ["c0", "c0", "c1", "c1", "c2", "c2"]
    assert told == [TokenCount(2, estimated=False)] * 4
    assert (await audit_log.verify()).ok


@pytest.mark.parametrize("between", ["a bad neighbour", "a pruning"])
async def test_what_a_lost_commit_has_written_is_not_repeated_whatever_comes_between(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    def never(connection: sa.Connection, items: list[int]) -> None:
        raise ValueError("a mistake")

    async with opened(store_url, tmp_path / "state", keep_days=3650) as (audit_log, _):
        for number in range(4):
            call(audit_log, number, at=1.0)
        await audit_log.flush()
        write = Database.write
        ends = iter([True])

        def cut_off(database: Database, work: Any, *args: Any) -> Any:
            made = write(database, work, *args)
            if next(ends, False):
                raise StoreError("The connection is lost.")
            return made

        monkeypatch.setattr(Database, "write", cut_off)
        told: list[TokenCount] = []
        for number in range(4, 14):
            call(audit_log, number, result=b"hello world", counted=told.append)
        with pytest.raises(StoreError, match="lost"):
            await audit_log.flush()
        if between == "a pruning":
            assert await audit_log.prune() == 8
        else:
            audit_log._commits.add(never, 1)
        call(audit_log, 14)
        await eventually(lambda: audit_log.failure is None)
        await audit_log.flush()
        rows = await audit_log.query(agent="reviewer", limit=1000)
        newest = [row["call"] for row in rows if row["at"] > NOW]
        assert newest == [f"c{number}" for number in range(4, 15) for _ in range(2)]
        assert told == [TokenCount(2, estimated=False)] * 20
        assert not audit_log._writer._present
        assert (await audit_log.verify()).ok


async def test_large_arguments_are_not_held_while_they_wait_to_be_written(tmp_path: Path) -> None:
    raw = b'"' + b"x" * MAX_PARSED_BYTES + b'"'
    async with opened(tmp_path / "crib.db", tmp_path / "state", max_bytes=4096) as (audit_log, _):
        for number in range(2):
            call(audit_log, number, arguments=raw)
        await audit_log.flush()
        rows = await audit_log.query()
        assert [row["shape"] for row in rows] == [f"{len(raw)} bytes"] * 4
        assert len({row["arguments_hash"] for row in rows}) == 1
        assert (await audit_log.describe())["lost"] == 0


async def test_a_head_that_cannot_be_anchored_keeps_nobody_from_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        (tmp_path / "state" / "audit.head").mkdir()
        for number in range(3):
            call(audit_log, number)
            await audit_log.flush()
        assert [record.levelno for record in caplog.records] == [logging.WARNING], "told once"
        assert "audit.head" in caplog.text
        assert not (await audit_log.verify()).ok
        (tmp_path / "state" / "audit.head").rmdir()
        call(audit_log, 3)
        await audit_log.flush()
        assert (await audit_log.verify()).ok


@pytest.mark.parametrize("content", ["", "no key", "00" * 31])
async def test_a_spoilt_key_is_a_reason_not_to_write(tmp_path: Path, content: str) -> None:
    (tmp_path / "state").mkdir()
    key = tmp_path / "state" / "audit.key"
    key.write_text(content)
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        call(audit_log, 0)
        with pytest.raises(StoreError, match="is not a key"):
            await audit_log.flush()
        key.unlink()
        await eventually(lambda: audit_log.failure is None)
        assert (await audit_log.verify()).ok


async def test_the_key_is_the_owners_alone_and_stays_the_same(store_url: str, tmp_path: Path) -> None:
    keys = set()
    for number in range(2):
        async with opened(store_url, tmp_path / "state") as (audit_log, _):
            call(audit_log, number)
            await audit_log.flush()
            keys.add((tmp_path / "state" / "audit.key").read_text())
            (tmp_path / "state" / "audit.key").chmod(0o644)
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        assert (await audit_log.verify()).ok
    assert len(keys) == 1
    assert (tmp_path / "state" / "audit.key").stat().st_mode & 0o777 == 0o600
    assert {file.name for file in (tmp_path / "state").iterdir()} >= {"audit.head", "audit.key"}
    assert not [file for file in (tmp_path / "state").iterdir() if file.name.startswith(".")]


async def test_what_is_too_old_goes_and_the_rest_verifies(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "STEP_ROWS", 30)
    day = 86_400
    async with opened(store_url, tmp_path / "state", keep_days=10) as (audit_log, store):
        for number in range(50):
            call(audit_log, number, at=time.time() - 11 * day)
        call(audit_log, 50, at=time.time() - 9 * day)
        call(audit_log, 51, at=time.time() - 11 * day)
        await audit_log.flush()
        assert await audit_log.prune() == 100
        assert await audit_log.prune() == 0
        rows = await audit_log.query(limit=1000)
        assert [row["call"] for row in rows[:4]] == ["c50", "c50", "c51", "c51"], "only a beginning may go"
        told = [row["detail"] for row in rows[4:]]
        assert [detail["entries"] for detail in told] == [30, 30, 30, 10]
        assert told[-1]["through"] == 100
        assert (await audit_log.verify()).ok
        call(audit_log, 52)
        await audit_log.flush()
        assert (await audit_log.verify()).entries == 10
        assert await store.read(audit.first_since, 0.0, 0) == 101


async def test_what_is_too_much_goes_and_the_rest_verifies(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state", keep_bytes=100_000) as (audit_log, _):
        for number in range(300):
            call(audit_log, number, rule="r" * 400)
        await audit_log.flush()
        gone = await audit_log.prune()
        rows = await audit_log.query(limit=1000)
        size = sum(len(str(list(row.values()))) for row in rows)
        assert gone + len(rows) - 1 == 600
        assert 70_000 < size < 130_000
        assert rows[-1]["kind"] == "pruned"
        assert await audit_log.prune() == 0
        assert (await audit_log.verify()).ok


async def test_pruning_ends_however_little_may_be_kept(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state", keep_bytes=1, keep_days=0.001) as (audit_log, _):
        for number in range(20):
            call(audit_log, number, at=1.0)
        await audit_log.flush()
        await asyncio.wait_for(audit_log.prune(), LIMIT)
        assert (await audit_log.verify()).ok
        assert len(await audit_log.query()) <= 2


async def test_the_audit_log_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.audit.log._FIRST_PRUNE", 0.01)
    monkeypatch.setattr("toolcrib.audit.log._PRUNE_INTERVAL", 0.01)
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        for number in range(5):
            call(audit_log, number, at=1.0)
        await audit_log.flush()
        async with asyncio.timeout(LIMIT):
            while [row["kind"] for row in await audit_log.query()][:1] != ["pruned"]:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.005)


async def test_a_mistake_while_pruning_does_not_end_it_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolcrib.audit.log._FIRST_PRUNE", 0.01)
    monkeypatch.setattr("toolcrib.audit.log._PRUNE_INTERVAL", 0.01)
    tries = itertools.count(1)

    async def prune(audit_log: AuditLog) -> int:
        if next(tries) == 1:
            raise ValueError("a mistake")
        again.set()
        return 0

    again = asyncio.Event()
    monkeypatch.setattr(AuditLog, "prune", prune)
    async with opened(tmp_path / "crib.db", tmp_path / "state"):
        await asyncio.wait_for(again.wait(), LIMIT)
    assert "a mistake" in caplog.text
