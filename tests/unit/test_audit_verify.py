"""`verify` finds every change of the audit log's rows, and accepts everything that Toolcrib writes."""

from __future__ import annotations

import asyncio
import copy
import hmac
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parts.audit_logs import opened, opened_on
from parts.sizes import sized
from toolcrib.audit.chain import ChainHead, ChainKeys, HeadAnchor
from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.audit.verify import PAGE_ROWS, VerifyReport
from toolcrib.errors import StoreError, UsageError
from toolcrib.store import audit
from toolcrib.store.database import Store
from toolcrib.store.schema import audit as rows_table
from toolcrib.store.schema import audit_base as base_table

pytestmark = pytest.mark.req("KSI-5")

OLD = 1_000_000.0
ZEROS = "0" * 64
Rows = list[dict[str, Any]]
T = TypeVar("T")


async def note(audit_log: AuditLog, count: int = 1, **fields: Any) -> None:
    for number in range(count):
        entry = {"call": f"c{number}", "agent": "reviewer", "tool": "files:read", "rule": "a rule", **fields}
        audit_log.note(AuditEntry(kind=EntryKind.INTENT, arguments=b'{"path":"x"}', **entry))
    await audit_log.flush()


def everything(connection: sa.Connection) -> tuple[Rows, Rows]:
    rows, base = (
        [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(table.c[0]))]
        for table in (rows_table, base_table)
    )
    return rows, base


def replace_all(connection: sa.Connection, rows: Rows, base: Rows) -> None:
    for table, content in ((rows_table, rows), (base_table, base)):
        connection.execute(table.delete())
        if content:
            connection.execute(table.insert(), content)


def delete_after(connection: sa.Connection, seq: int) -> None:
    connection.execute(rows_table.delete().where(rows_table.c.seq > seq))


class StoredLog:
    """A closed audit log whose rows a test changes behind Toolcrib's back."""

    def __init__(self, url: str, folder: Path, *, pruned: bool) -> None:
        self.folder = folder
        self.anchor = folder / "audit.head"
        self._runner = asyncio.Runner()
        self.store = self.run(Store.open(url))
        self.run(self._fill(pruned=pruned))
        self.rows, self.base = self.run(self.store.read(everything))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _fill(self, *, pruned: bool) -> None:
        async with opened_on(self.store, self.folder) as audit_log:
            await note(audit_log, 3, at=OLD if pruned else 2e9)
            await note(audit_log, 5, at=2e9)
            if pruned:
                assert await audit_log.prune() == 3
            change = {"agent": "reviewer", "outcome": "agent added", "detail": {"profile": "nothing"}}
            audit_log.note(AuditEntry(kind=EntryKind.CHANGE, **change))
            await audit_log.flush()

    def put(self, rows: Rows, base: Rows | None = None) -> None:
        """Makes the database contain exactly these rows."""
        self.run(self.store.write(replace_all, rows, self.base if base is None else base))

    def verify(self, expect: str | None = None) -> VerifyReport:
        async def work() -> VerifyReport:
            async with opened_on(self.store, self.folder) as audit_log:
                return await audit_log.verify(expect)

        return self.run(work())

    def add(self, count: int) -> None:
        async def work() -> None:
            async with opened_on(self.store, self.folder) as audit_log:
                await note(audit_log, count)

        self.run(work())

    def close(self) -> None:
        self.run(self.store.close())
        self._runner.close()


@pytest.fixture(params=["whole", "pruned"])
def stored(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[StoredLog]:
    made = StoredLog(store_url, tmp_path / "state", pruned=request.param == "pruned")
    yield made
    made.close()


WHOLE = pytest.mark.parametrize("stored", ["whole"], indirect=True)
PRUNED = pytest.mark.parametrize("stored", ["pruned"], indirect=True)


def different(value: Any) -> Any:
    if value is None:
        return 1
    return value + "x" if isinstance(value, str) else value + 1


def change_a_value(rows: Rows, draw: Callable[..., Any]) -> None:
    row = draw(st.sampled_from(rows))
    column = draw(st.sampled_from([name for name in audit.COLUMNS if name != "seq"]))
    is_number = isinstance(rows_table.c[column].type, sa.BigInteger | sa.Double)
    row[column] = different(row[column]) if row[column] is not None or is_number else "x"


def empty_a_value(rows: Rows, draw: Callable[..., Any]) -> None:
    row = draw(st.sampled_from([row for row in rows if row["shape"] is not None]))
    row[draw(st.sampled_from(["shape", "arguments_hash"]))] = None


def remove(rows: Rows, draw: Callable[..., Any]) -> None:
    rows.pop(draw(st.integers(0, len(rows) - 1)))


def remove_and_renumber(rows: Rows, draw: Callable[..., Any]) -> None:
    place = draw(st.integers(0, len(rows) - 1))
    rows.pop(place)
    for row in rows[place:]:
        row["seq"] -= 1


def swap(rows: Rows, draw: Callable[..., Any]) -> None:
    one, other = draw(st.lists(st.sampled_from(range(len(rows))), min_size=2, max_size=2, unique=True))
    rows[one]["seq"], rows[other]["seq"] = rows[other]["seq"], rows[one]["seq"]


def cut_the_end(rows: Rows, draw: Callable[..., Any]) -> None:
    del rows[draw(st.integers(0, len(rows) - 1)) :]


def cut_the_beginning(rows: Rows, draw: Callable[..., Any]) -> None:
    del rows[: draw(st.integers(1, len(rows)))]


def append_a_copy(rows: Rows, draw: Callable[..., Any]) -> None:
    rows.append({**draw(st.sampled_from(rows)), "seq": rows[-1]["seq"] + 1})


def insert_a_copy(rows: Rows, draw: Callable[..., Any]) -> None:
    place = draw(st.integers(0, len(rows) - 1))
    new = dict(rows[place])
    for row in rows[place:]:
        row["seq"] += 1
    rows.insert(place, new)


def chain_with_another_key(rows: Rows, draw: Callable[..., Any]) -> None:
    place = draw(st.integers(1, len(rows) - 1))
    rows[place]["agent"] = "somebody"
    keys = ChainKeys(b"x" * 32)
    for before, row in zip(rows[place - 1 :], rows[place:], strict=False):
        row["hash"] = keys.link(before["hash"], list(row.values())[:-1])


CHANGES = [change_a_value, empty_a_value, remove, remove_and_renumber, swap, cut_the_end, cut_the_beginning]
CHANGES += [append_a_copy, insert_a_copy, chain_with_another_key]


def changed_rows(stored: StoredLog, change: Any, data: st.DataObject) -> Rows:
    rows = copy.deepcopy(stored.rows)
    change(rows, data.draw)
    assume(rows != stored.rows)
    return sorted(rows, key=lambda row: row["seq"])


@settings(max_examples=sized(40, 500), deadline=None)
@given(change=st.sampled_from(CHANGES), data=st.data())
def test_any_change_is_found_at_the_first_changed_row(stored: StoredLog, change: Any, data: st.DataObject) -> None:
    rows = changed_rows(stored, change, data)
    stored.put(rows)
    report = stored.verify()
    now, before = ({row["seq"]: row for row in some} for some in (rows, stored.rows))
    first = min(seq for seq in now.keys() | before.keys() if now.get(seq) != before.get(seq))
    assert (report.ok, report.seq, bool(report.wrong)) == (False, first, True), report


@WHOLE
@settings(max_examples=sized(20, 300), deadline=None)
@given(change=st.sampled_from(CHANGES), data=st.data())
def test_any_change_under_an_open_audit_log_is_found(stored: StoredLog, change: Any, data: st.DataObject) -> None:
    rows = changed_rows(stored, change, data)
    stored.put(stored.rows)
    # The last example's anchor has another end.
    stored.anchor.unlink()

    async def work() -> None:
        async with opened_on(stored.store, stored.folder) as audit_log:
            await note(audit_log)
            (_, own) = await audit_log.query(limit=2)
            await stored.store.write(replace_all, rows, stored.base)
            for _ in range(4):
                await note(audit_log)
            report = await audit_log.verify()
            assert not report.ok, own
            assert report.seq is not None
            assert report.seq <= own["seq"]

    stored.run(work())
    stored.add(3)
    assert not stored.verify().ok


async def test_an_older_copy_put_under_an_open_audit_log_is_always_found(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        await note(audit_log, 5)
        older = await store.read(everything)
        await note(audit_log, 3, agent="gone")
        await store.write(replace_all, *older)
        for _ in range(20):
            await note(audit_log)
        report = await audit_log.verify()
        assert (report.ok, report.seq) == (False, 6)
        assert "entries 6 to 8 are missing" in report.wrong
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        await note(audit_log)
        assert await audit_log.verify() == report


async def test_a_cut_is_found_even_if_another_process_has_written_past_it(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        await note(audit_log, 5)
        await store.write(delete_after, 2)
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(tmp_path / "state" / "audit.key", tmp_path / "elsewhere")
        async with opened(store_url, tmp_path / "elsewhere") as (other, _):
            await note(other, 9)
        await note(audit_log)
        entry, _ = await audit_log.query(limit=2)
        assert (entry["kind"], entry["detail"]["known"]) == ("unanchored", 5)
        assert not (await audit_log.verify()).ok


async def test_processes_that_write_and_prune_together_cause_no_false_alarm(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with opened(store_url, folder) as (one, _), opened(store_url, folder) as (other, _):
        await note(one, 5, at=OLD)
        await note(other)
        assert await other.prune() == 5
        for audit_log in (one, other, one):
            await note(audit_log)
        assert {row["kind"] for row in await one.query()} == {"intent", "pruned"}
        assert (await one.verify()).notes == ()


@pytest.mark.parametrize("below", [0, 5])
def test_a_row_inserted_before_the_beginning_is_found_and_never_shown(stored: StoredLog, below: int) -> None:
    begin = stored.base[-1]["seq"]
    forged = {**stored.rows[0], "seq": begin - below, "agent": "victim", "at": OLD}
    stored.put([forged, *stored.rows])

    async def work() -> None:
        async with opened_on(stored.store, stored.folder, keep_bytes=1) as audit_log:
            for wanted in ({}, {"since": 0.0}, {"after": -100}, {"since": 0.0, "after": -100}):
                assert await audit_log.query(agent="victim", **wanted) == []
            assert await audit_log.prune() >= len(stored.rows) - 1

    before = stored.verify()
    stored.run(work())
    after = stored.verify()
    assert (before.ok, before.seq) == (after.ok, after.seq) == (False, begin - below)


def test_a_cut_beginning_is_found_even_if_it_looks_pruned(stored: StoredLog) -> None:
    for place in range(1, len(stored.rows) - 1):
        last = stored.rows[place - 1]
        stored.put(stored.rows[place:], [stored.base[0], {"id": 1, "seq": last["seq"], "hash": last["hash"]}])
        report = stored.verify()
        assert (report.ok, report.seq) == (False, last["seq"] + 1)


@PRUNED
def test_a_changed_or_removed_base_is_found(stored: StoredLog) -> None:
    bases = [[], stored.base[:1], stored.base[1:]]
    for place, column in ((0, "hash"), (1, "seq"), (1, "hash")):
        bases.append(copy.deepcopy(stored.base))
        bases[-1][place][column] = different(bases[-1][place][column])
    for base in bases:
        stored.put(stored.rows, base)
        assert not stored.verify().ok, base


@PRUNED
def test_an_older_copy_of_the_database_is_found(stored: StoredLog) -> None:
    """Each row is genuine; only the anchor knows that there were more."""
    stored.put(stored.rows[:-1])
    report = stored.verify()
    assert (report.ok, report.seq) == (False, stored.rows[-1]["seq"])
    assert "the anchor" in report.wrong
    stored.put([])
    assert not stored.verify().ok


@WHOLE
def test_an_audit_log_that_was_deleted_and_started_again_is_found(stored: StoredLog, store_url: str) -> None:
    stored.put([], [])
    assert "An earlier audit log" in stored.verify().wrong
    second = StoredLog(store_url, stored.folder, pruned=False)
    report = second.verify()
    assert not report.ok
    assert "An earlier audit log with 9 entries" in report.wrong
    *_, newest = stored.anchor.read_text().splitlines()
    stored.anchor.write_text(newest.rstrip() + "\n")
    assert second.verify().ok
    second.close()


@WHOLE
def test_an_audit_log_in_another_database_does_not_matter(stored: StoredLog, tmp_path: Path) -> None:
    other = StoredLog(str(tmp_path / "other.db"), stored.folder, pruned=False)
    assert stored.verify().ok
    assert other.verify().ok
    other.close()


def test_an_unchanged_audit_log_verifies(stored: StoredLog) -> None:
    last = stored.rows[-1]
    whole = VerifyReport(ok=True, entries=len(stored.rows), head=f"{last['seq']}:{last['hash']}", notes=())
    assert stored.verify() == whole
    stored.put(stored.rows)
    assert stored.verify() == whole


def test_any_program_can_compute_the_hashes_as_documented(stored: StoredLog) -> None:
    secret = bytes.fromhex((stored.folder / "audit.key").read_text())
    key = hmac.digest(secret, b"toolcrib audit chain", "sha256")
    before = stored.base[-1]["hash"]
    for row in stored.rows:
        columns = [value for name, value in row.items() if name != "hash"]
        assert row["hash"] == hmac.digest(key, before.encode() + msgspec.msgpack.encode(columns), "sha256").hex()
        before = row["hash"]


@WHOLE
def test_a_missing_key_is_reported_and_not_replaced(stored: StoredLog) -> None:
    key = stored.folder / "audit.key"
    secret = key.read_text()
    key.unlink()
    report = stored.verify()
    assert not report.ok
    assert str(key) in report.wrong
    assert not key.exists()
    key.write_text("00" * 32)
    assert "audit.key was lost or replaced" in stored.verify().wrong
    key.write_text(secret)
    assert stored.verify().ok


@WHOLE
@pytest.mark.parametrize("content", [None, "", "\0" * 512, '{"chain": 1}'])
def test_a_missing_or_unreadable_anchor_is_reported_until_the_next_entry(
    stored: StoredLog, content: str | None
) -> None:
    stored.anchor.unlink()
    if content is not None:
        stored.anchor.write_text(content)
    report = stored.verify()
    assert not report.ok
    assert str(stored.anchor) in report.wrong

    stored.add(2)
    report = stored.verify()
    assert report.ok
    (line,) = report.notes
    assert "anchor was missing when entry 10 was written" in line
    assert "after entry 9" in line


@WHOLE
@pytest.mark.parametrize("kept", [6, 0])
def test_a_cut_end_is_noted_for_ever_if_the_anchor_was_removed_too(stored: StoredLog, kept: int) -> None:
    stored.put(stored.rows[:kept])
    stored.anchor.unlink()
    for _ in range(3):
        stored.add(5)
        report = stored.verify()
        assert report.ok
        assert [f"after entry {kept} " in line for line in report.notes] == [True]


def test_a_cut_end_is_found_after_the_audit_log_has_grown_past_it(stored: StoredLog) -> None:
    last = stored.rows[-1]["seq"]
    stored.put(stored.rows[:-3])
    assert not stored.verify().ok
    stored.add(20)
    report = stored.verify()
    assert (report.ok, report.seq) == (False, last - 2)
    assert f"entries {last - 2} to {last} are missing" in report.wrong
    stored.add(20)
    assert stored.verify() == report


async def test_a_removed_anchor_is_replaced_silently_and_a_cut_end_is_found(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        await note(audit_log)
        (tmp_path / "state" / "audit.head").unlink()
        await note(audit_log, 4)
        assert (await audit_log.verify()).notes == ()
        await store.write(delete_after, 2)
        (tmp_path / "state" / "audit.head").unlink()
        for _ in range(5):
            await note(audit_log)
        report = await audit_log.verify()
        assert (report.ok, report.seq) == (False, 3)
        assert "entries 3 to 5 are missing" in report.wrong


async def test_a_failed_first_commit_has_no_effect(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StoreError("not now")

    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        with monkeypatch.context() as broken:
            broken.setattr(audit, "append", fails)
            for _ in range(2):
                with pytest.raises(StoreError):
                    await note(audit_log)
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        await note(audit_log)
        report = await audit_log.verify()
        assert (report.ok, report.notes) == (True, ()), report
    assert len(HeadAnchor(tmp_path / "state" / "audit.head").heads()) == 1


async def test_an_empty_audit_log_verifies_and_has_no_head(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        report = await audit_log.verify()
        assert (report.ok, report.entries, report.notes) == (True, 0, ("The audit log is empty.",))
        assert not (await audit_log.verify(f"5:{ZEROS}")).ok
        assert (await audit_log.describe())["head"] is None
        await note(audit_log)
        head = (await audit_log.describe())["head"]
        assert head == (await audit_log.verify()).head
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        assert (await audit_log.describe())["head"] == head


@WHOLE
def test_an_expected_head_is_compared(stored: StoredLog) -> None:
    middle, last = stored.rows[3], stored.rows[-1]
    for row in (middle, last):
        assert stored.verify(f"{row['seq']}:{row['hash']}").ok
        assert stored.verify(f"{row['seq']}:{row['hash'][:8].upper()}").ok
    report = stored.verify(f"{middle['seq']}:{ZEROS}")
    assert (report.ok, report.seq) == (False, middle["seq"])
    report = stored.verify(f"{last['seq'] + 5}:{last['hash']}")
    assert (report.ok, report.seq) == (False, last["seq"] + 1)
    for wrong in ("5", "5:", "x:y", f"-1:{last['hash']}", "5:zz"):
        with pytest.raises(UsageError):
            stored.verify(wrong)


@PRUNED
def test_an_expected_head_that_was_pruned_cannot_be_compared_but_the_last_pruned_one_can(stored: StoredLog) -> None:
    assert "has been deleted" in stored.verify(f"1:{ZEROS}").notes[0]
    assert stored.verify(f"3:{stored.base[1]['hash']}").ok
    assert not stored.verify(f"3:{ZEROS}").ok


async def test_the_audit_log_verifies_while_others_write_and_prune(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        await note(audit_log, PAGE_ROWS + 100, at=OLD)
        await note(audit_log, PAGE_ROWS - 50, at=2e9)
        seen: list[tuple[int, int]] = []

        async def progress(checked: int, total: int) -> None:
            seen.append((checked, total))
            if len(seen) == 1:
                assert await audit_log.prune() == PAGE_ROWS + 100
            await note(audit_log)

        report = await audit_log.verify(progress=progress)
        assert report.ok, report
        assert seen[0] == (PAGE_ROWS, PAGE_ROWS * 2 + 50)
        assert len(seen) >= 2
        assert (await audit_log.verify()).ok


async def test_two_processes_write_one_chain(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with opened(store_url, folder) as (one, _), opened(store_url, folder) as (other, _):

        async def write(audit_log: AuditLog) -> None:
            for _ in range(30):
                await note(audit_log)

        await asyncio.wait_for(asyncio.gather(write(one), write(other)), 60)
        report = await other.verify()
        assert (report.ok, report.entries) == (True, 60)


def test_the_anchor_never_moves_backwards(tmp_path: Path) -> None:
    file = tmp_path / "audit.head"
    anchor = HeadAnchor(file)

    def head(chain: str, seq: int) -> ChainHead:
        return ChainHead(chain=chain * 64, place="p" * 16, seq=seq, hash=f"{seq:064x}")

    for chain, seq, known in (
        ("a", 5, [("a", 5)]),
        ("b", 2**62, [("a", 5), ("b", 2**62)]),
        ("a", 4, [("a", 5), ("b", 2**62)]),
        ("a", 10**15, [("a", 10**15), ("b", 2**62)]),
        ("b", 7, [("a", 10**15), ("b", 2**62)]),
    ):
        anchor.advance(head(chain, seq))
        assert anchor.heads() == tuple(head(*one) for one in known)
    assert file.stat().st_mode & 0o777 == 0o600
    # An editor may strip trailing spaces.
    file.write_text("".join(f"{line.rstrip()}\n" for line in file.read_text().splitlines()))
    anchor.advance(head("b", 2**62 + 1))
    assert anchor.heads() == (head("a", 10**15), head("b", 2**62 + 1))
