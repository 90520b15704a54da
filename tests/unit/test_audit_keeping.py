"""The audit log records calls, answers queries, survives failures of its database, and deletes its oldest entries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pytest import MonkeyPatch

from parts.audit_logs import opened
from parts.waiting import LIMIT
from parts.waiting import until as eventually
from toolcrib.audit import writer
from toolcrib.audit.chain import HeadAnchor
from toolcrib.audit.entry import MAX_PARSED_BYTES, AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.audit.row import MAX_COUNTED_BYTES, TokenCount
from toolcrib.errors import StoreError
from toolcrib.store import audit
from toolcrib.store.database import Database

pytestmark = pytest.mark.req("KSI-5")

NOW = 2_000_000_000.0
HELLO = TokenCount(2, estimated=False)


@pytest.fixture
async def audit_log(store_url: str, tmp_path: Path) -> AsyncIterator[AuditLog]:
    async with opened(store_url, tmp_path / "state") as (made, _):
        yield made


def call(audit_log: AuditLog, number: int, **fields: Any) -> None:
    entry: dict[str, Any] = {"call": f"c{number}", "agent": "reviewer", "at": NOW + number, **fields}
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, **entry))
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, **{"outcome": "ok", "duration": 0.5, "size": 9, **entry}))


async def calls(audit_log: AuditLog, *numbers: int, **fields: Any) -> None:
    for number in numbers:
        call(audit_log, number, **fields)
    await audit_log.flush()


async def test_a_call_is_two_entries_with_all_its_fields(audit_log: AuditLog) -> None:
    entry: dict[str, Any] = {"at": NOW + 1, "call": "c1", "agent": "reviewer", "session": "s_1", "mode": "full"}
    entry |= {"tool": "files:read", "server": "files", "conversation": "default"}
    entry |= {"decision": "allow", "rule": "profile developer: allow *"}
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, arguments=b'{"path": "abc"}', **entry))
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, outcome="ok", duration=0.5, size=9, **entry))
    audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, call="c2", outcome="denied", arguments=b'{"a": 1}'))
    await audit_log.flush()
    intent, outcome, denied = await audit_log.query()
    assert intent.pop("hash") != outcome.pop("hash")
    assert len(intent.pop("arguments_hash")) == 64
    same = {**entry, "arguments": None, "tokens": None, "tokens_estimated": False, "detail": None}
    shape = {"shape": {"path": "string(3)"}}
    assert intent == {**same, **shape, "seq": 1, "kind": "intent", "outcome": "", "duration": 0.0, "size": 0}
    done = {"shape": None, "arguments_hash": None, "outcome": "ok", "duration": 0.5, "size": 9}
    assert outcome == {**same, **done, "seq": 2, "kind": "outcome"}
    assert denied["shape"] == {"a": "integer"}, "a denied call has no intent, so its outcome has the arguments"


async def test_token_counts_are_reported_after_the_commit(audit_log: AuditLog) -> None:
    counts: list[TokenCount] = []
    call(audit_log, 1, result=b"hello world", counted=counts.append)
    call(audit_log, 2, result=b"x" * (MAX_COUNTED_BYTES + 1), counted=counts.append)
    assert counts == []
    await audit_log.flush()
    assert [row["tokens"] for row in await audit_log.query()] == [2, 2, None, None]
    assert counts == [HELLO] * 2
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, arguments=b"hello world", arguments_counted=counts.append))
    await audit_log.flush()
    assert counts == [HELLO] * 3


async def test_queries_return_only_matching_entries(audit_log: AuditLog) -> None:
    call(audit_log, 0, tool="files:read_file", server="files", session="s_1")
    call(audit_log, 1, tool="files:write_file", server="files", outcome="denied")
    call(audit_log, 2, tool="git:read_file", server="git", agent="builder")
    call(audit_log, 3, tool="Files:READ_FILE", server="Files")
    call(audit_log, 4, tool="we_ird:100%_[a]", server="we_ird", session="s_2")
    call(audit_log, 5, tool="weXird:1009_a", server="weXird")
    change = {"agent": "builder", "outcome": "agent added", "detail": {"by": "owner"}}
    audit_log.note(AuditEntry(kind=EntryKind.CHANGE, at=NOW + 6, **change))
    await audit_log.flush()
    for wanted, numbers in (
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"agent": "builder"}, [2, 6]),
        ({"server": "files"}, [0, 1]),
        ({"session": "s_1"}, [0]),
        ({"outcome": "denied"}, [1]),
        ({"outcome": "agent added"}, [6]),
        ({"tool": "files:read_file"}, [0]),
        ({"tool": "read_file"}, [0, 2]),
        ({"tool": "files:*"}, [0, 1]),
        ({"tool": "*:read_fil?"}, [0, 2]),
        ({"tool": "*"}, [0, 1, 2, 3, 4, 5, 6]),
        ({"tool": "we_ird:*"}, [4]),
        ({"tool": "100%_[a]"}, [4]),
        ({"tool": "100%*"}, [4]),
        ({"since": NOW + 4}, [4, 5, 6]),
        ({"until": NOW + 1}, [0, 1]),
        ({"since": NOW + 1, "until": NOW + 4, "server": "files"}, [1]),
        ({"since": NOW + 100}, []),
        ({"agent": "nobody"}, []),
    ):
        rows = await audit_log.query(**wanted)
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        assert sorted({round(row["at"] - NOW) for row in rows}) == numbers, wanted
    assert [row["seq"] for row in await audit_log.query(limit=3)] == [11, 12, 13]
    assert [row["seq"] for row in await audit_log.query(limit=3, after=4)] == [5, 6, 7]
    (last,) = await audit_log.query(after=12)
    assert (last["seq"], last["detail"]) == (13, {"by": "owner"})


async def test_rare_entries_are_found_in_a_long_audit_log(audit_log: AuditLog, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.audit.log._WINDOW", 7)
    for number in range(30):
        call(audit_log, number, agent="rare" if number % 10 == 0 else "often")
    await audit_log.flush()
    assert [row["seq"] for row in await audit_log.query(agent="rare", limit=5)] == [2, 21, 22, 41, 42]
    assert len(await audit_log.query(limit=100)) == 60


async def test_a_full_disk_is_an_immediate_error_and_the_audit_log_recovers_with_a_gap(tmp_path: Path) -> None:
    def room(connection: sa.Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    async with opened(tmp_path / "crib.db", tmp_path / "state", max_items=100) as (audit_log, store):
        await calls(audit_log, 0)
        await store.write(room, 1)
        with pytest.raises(StoreError, match="disk is full"):
            await calls(audit_log, *range(1, 50), rule="r" * 500)
        assert audit_log.failure is not None
        assert (await audit_log.describe())["writable"] is False
        with pytest.raises(StoreError, match="disk is full"):
            await calls(audit_log, *range(50, 200), rule="r" * 500)
        assert len(await audit_log.query()) == 2, "reading continues"
        await store.write(room, 1_000_000)
        await eventually(lambda: audit_log.failure is None)
        await audit_log.flush()
        *_, gap = rows = await audit_log.query(limit=1000)
        assert (len(rows), gap["kind"], gap["detail"]["entries"]) == (103, "gap", 398 - 100)
        assert gap["detail"]["from"] <= gap["detail"]["to"] <= time.time()
        assert (await audit_log.describe())["lost"] == 298
        assert (await audit_log.verify()).ok


def lose_the_connection_once(monkeypatch: MonkeyPatch, *, after_the_commit: bool = True) -> None:
    write, losses = Database.write, iter([True])

    def lossy(database: Database, work: Any, *args: Any) -> Any:
        lost = next(losses, False)
        done = write(database, work, *args) if after_the_commit or not lost else None
        if lost:
            raise StoreError("The connection is lost.")
        return done

    monkeypatch.setattr(Database, "write", lossy)


@pytest.mark.parametrize("after_the_commit", [True, False])
async def test_a_commit_with_an_unknown_result_is_neither_lost_nor_repeated(
    audit_log: AuditLog, monkeypatch: MonkeyPatch, after_the_commit: bool
) -> None:
    await calls(audit_log, 0)
    lose_the_connection_once(monkeypatch, after_the_commit=after_the_commit)
    counts: list[TokenCount] = []
    with pytest.raises(StoreError, match="lost"):
        await calls(audit_log, 1, result=b"hello world", counted=counts.append)
    call(audit_log, 2, result=b"hello world", counted=counts.append)
    await eventually(lambda: audit_log.failure is None)
    await audit_log.flush()
    assert [row["call"] for row in await audit_log.query()] == ["c0", "c0", "c1", "c1", "c2", "c2"]
    assert counts == [HELLO] * 4
    assert (await audit_log.verify()).ok


@pytest.mark.parametrize("between", ["failing work", "pruning"])
async def test_entries_of_a_lost_commit_are_not_repeated_whatever_happens_next(
    store_url: str, tmp_path: Path, monkeypatch: MonkeyPatch, between: str
) -> None:
    def never(connection: sa.Connection, items: list[int]) -> None:
        raise ValueError("a mistake")

    async with opened(store_url, tmp_path / "state", keep_days=3650) as (audit_log, _):
        await calls(audit_log, *range(4), at=1.0)
        lose_the_connection_once(monkeypatch)
        counts: list[TokenCount] = []
        with pytest.raises(StoreError, match="lost"):
            await calls(audit_log, *range(4, 14), result=b"hello world", counted=counts.append)
        if between == "pruning":
            assert await audit_log.prune() == 8
        else:
            audit_log._commits.add(never, 1)
        call(audit_log, 14)
        await eventually(lambda: audit_log.failure is None)
        await audit_log.flush()
        rows = await audit_log.query(agent="reviewer", limit=1000)
        newest = [row["call"] for row in rows if row["at"] > NOW]
        assert newest == [f"c{number}" for number in range(4, 15) for _ in range(2)]
        assert counts == [HELLO] * 20
        assert not audit_log._writer._present
        assert (await audit_log.verify()).ok


async def test_large_arguments_are_not_held_while_they_wait_to_be_written(tmp_path: Path) -> None:
    raw = b'"' + b"x" * MAX_PARSED_BYTES + b'"'
    async with opened(tmp_path / "crib.db", tmp_path / "state", max_bytes=4096) as (audit_log, _):
        await calls(audit_log, 0, 1, arguments=raw)
        rows = await audit_log.query()
        assert [row["shape"] for row in rows] == [f"{len(raw)} bytes"] * 4
        assert len({row["arguments_hash"] for row in rows}) == 1
        assert (await audit_log.describe())["lost"] == 0


async def test_an_anchor_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    anchor = tmp_path / "state" / "audit.head"
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        anchor.mkdir()
        for number in range(3):
            await calls(audit_log, number)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "audit.head" in caplog.text
        assert not (await audit_log.verify()).ok
        anchor.rmdir()
        await calls(audit_log, 3)
        assert (await audit_log.verify()).ok


@pytest.mark.parametrize("content", ["", "no key", "00" * 31])
async def test_nothing_is_written_with_an_invalid_key(tmp_path: Path, content: str) -> None:
    (tmp_path / "state").mkdir()
    key = tmp_path / "state" / "audit.key"
    key.write_text(content)
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        with pytest.raises(StoreError, match="is not a key"):
            await calls(audit_log, 0)
        key.unlink()
        await eventually(lambda: audit_log.failure is None)
        assert (await audit_log.verify()).ok


async def test_the_key_is_private_and_stays_the_same(store_url: str, tmp_path: Path) -> None:
    keys, key = set(), tmp_path / "state" / "audit.key"
    for number in range(2):
        async with opened(store_url, tmp_path / "state") as (audit_log, _):
            await calls(audit_log, number)
            keys.add(key.read_text())
            key.chmod(0o644)
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        assert (await audit_log.verify()).ok
    assert len(keys) == 1
    assert key.stat().st_mode & 0o777 == 0o600
    names = {file.name for file in (tmp_path / "state").iterdir()}
    assert names >= {"audit.head", "audit.key"}
    assert not [name for name in names if name.startswith(".")]


async def test_entries_older_than_keep_days_are_deleted(
    store_url: str, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "STEP_ROWS", 30)
    day = 86_400
    async with opened(store_url, tmp_path / "state", keep_days=10) as (audit_log, store):
        for number in range(52):
            call(audit_log, number, at=time.time() - (9 if number == 50 else 11) * day)
        await audit_log.flush()
        assert await audit_log.prune() == 100
        assert await audit_log.prune() == 0
        rows = await audit_log.query(limit=1000)
        assert [row["call"] for row in rows[:4]] == ["c50", "c50", "c51", "c51"], "only the oldest may be deleted"
        assert [row["detail"]["entries"] for row in rows[4:]] == [30, 30, 30, 10]
        assert rows[-1]["detail"]["through"] == 100
        assert (await audit_log.verify()).ok
        await calls(audit_log, 52)
        assert (await audit_log.verify()).entries == 10
        assert await store.read(audit.first_since, 0.0, 0) == 101


async def test_entries_beyond_keep_bytes_are_deleted(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state", keep_bytes=100_000) as (audit_log, _):
        await calls(audit_log, *range(300), rule="r" * 400)
        deleted = await audit_log.prune()
        rows = await audit_log.query(limit=1000)
        assert deleted + len(rows) - 1 == 600
        assert 70_000 < sum(len(str(list(row.values()))) for row in rows) < 130_000
        assert rows[-1]["kind"] == "pruned"
        assert await audit_log.prune() == 0
        assert (await audit_log.verify()).ok


async def test_pruning_ends_even_if_almost_nothing_may_be_kept(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state", keep_bytes=1, keep_days=0.001) as (audit_log, _):
        await calls(audit_log, *range(20), at=1.0)
        await asyncio.wait_for(audit_log.prune(), LIMIT)
        assert (await audit_log.verify()).ok
        assert len(await audit_log.query()) <= 2


@pytest.fixture
def prune_often(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.audit.log._FIRST_PRUNE", 0.01)
    monkeypatch.setattr("toolcrib.audit.log._PRUNE_INTERVAL", 0.01)


@pytest.mark.usefixtures("prune_often")
async def test_the_audit_log_prunes_in_the_background(tmp_path: Path) -> None:
    async with opened(tmp_path / "crib.db", tmp_path / "state") as (audit_log, _):
        await calls(audit_log, *range(5), at=1.0)
        async with asyncio.timeout(LIMIT):
            while [row["kind"] for row in await audit_log.query()][:1] != ["pruned"]:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)


@pytest.mark.usefixtures("prune_often")
async def test_pruning_survives_errors(
    tmp_path: Path, monkeypatch: MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, again = itertools.count(1), asyncio.Event()

    async def prune(audit_log: AuditLog) -> int:
        if next(tries) == 1:
            raise ValueError("a mistake")
        again.set()
        return 0

    monkeypatch.setattr(AuditLog, "prune", prune)
    async with opened(tmp_path / "crib.db", tmp_path / "state"):
        await asyncio.wait_for(again.wait(), LIMIT)
    assert "a mistake" in caplog.text


WRITER = """
import asyncio, sys
from pathlib import Path
from parts.audit_logs import opened
from toolcrib.audit.entry import AuditEntry, EntryKind

async def calls(audit_log, name):
    for number in range(10**9):
        call = f"{name}-{number}"
        audit_log.note(AuditEntry(kind=EntryKind.INTENT, call=call, agent="a", arguments=b'{"x":1}'))
        await audit_log.flush()
        audit_log.note(AuditEntry(kind=EntryKind.OUTCOME, call=call, agent="a", outcome="ok", result=b"hello"))
        await audit_log.flush()
        print(call, flush=True)

async def main(tests, url, folder, name):
    async with opened(url, Path(folder)) as (audit_log, _):
        await asyncio.gather(*(calls(audit_log, f"{name}-{task}") for task in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


def written_until_killed(url: str, folder: Path, name: str, lines: int) -> list[str]:
    """The calls that were acknowledged before `kill -9`."""
    code = f"import sys; sys.path.insert(0, sys.argv[1])\n{WRITER}"
    args = [str(Path(__file__).parents[1]), url, str(folder), name]
    with subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            seen = [child.stdout.readline() for _ in range(lines)]
        finally:
            child.kill()
        seen += child.stdout.readlines()
    # An incomplete last line was not acknowledged.
    return [line.strip() for line in seen if line.endswith("\n")]


async def test_acknowledged_entries_survive_a_kill(
    store_url: str, tmp_path: Path, sized: Callable[[int, int], int]
) -> None:
    folder = tmp_path / "state"
    chance = random.Random(7)  # noqa: S311 - chooses moments, protects nothing
    acknowledged = [
        call
        for number in range(sized(3, 30))
        for call in written_until_killed(store_url, folder, f"r{number}", chance.randint(1, 120))
    ]
    async with opened(store_url, folder) as (audit_log, _):
        report = await audit_log.verify()
        assert report.ok, report
        rows = await audit_log.query(limit=1_000_000)
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row["call"], []).append(row["kind"])
    assert len(acknowledged) == len(set(acknowledged)) > 0
    assert [call for call in acknowledged if kinds.get(call) != ["intent", "outcome"]] == []
    (head,) = HeadAnchor(folder / "audit.head").heads()
    assert head.seq <= rows[-1]["seq"]
    assert rows[head.seq - 1]["hash"] == head.hash
