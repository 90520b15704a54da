"""Whatever is done to the rows of the audit log, `verify` finds it; whatever Toolcrib itself does, it accepts."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hmac
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolcrib.audit.chain import ChainHead, ChainKeys, HeadAnchor
from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.audit.verify import PAGE_ROWS, VerifyReport
from toolcrib.config.masking import Masker
from toolcrib.errors import StoreError, UsageError
from toolcrib.store import audit
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store
from toolcrib.store.schema import audit as rows_table
from toolcrib.store.schema import audit_base as base_table

pytestmark = pytest.mark.req("KSI-5")

OLD = 1_000_000.0


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path, **options: Any) -> AsyncIterator[tuple[AuditLog, Store]]:
    folder.mkdir(exist_ok=True)
    store = await Store.open(url)
    commits = GroupCommit(store)
    audit_log = await AuditLog.open(store, commits, folder=folder, mask=Masker(), **options)
    try:
        yield audit_log, store
    finally:
        await audit_log.close()
        await commits.close()
        await store.close()


def note(audit_log: AuditLog, number: int, **fields: Any) -> None:
    entry = {"call": f"c{number}", "agent": "reviewer", "tool": "files:read", "rule": "a rule", **fields}
    audit_log.note(AuditEntry(kind=EntryKind.INTENT, arguments=b'{"path":"x"}', **entry))


Rows = list[dict[str, Any]]


def everything(connection: sa.Connection) -> tuple[Rows, Rows]:
    rows, base = (
        [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(table.c[0]))]
        for table in (rows_table, base_table)
    )
    return rows, base


def replaced(connection: sa.Connection, rows: Rows, base: Rows) -> None:
    for table, content in ((rows_table, rows), (base_table, base)):
        connection.execute(table.delete())
        if content:
            connection.execute(table.insert(), content)


class Kept:
    """An audit log that is closed, its rows in hand, to be changed behind Toolcrib's back and verified."""

    def __init__(self, url: str, folder: Path, *, pruned: bool) -> None:
        self.url, self.folder = url, folder
        self._runner = asyncio.Runner()
        self._runner.run(self._fill(pruned=pruned))
        self.rows, self.base = self._runner.run(self._read())

    async def _fill(self, *, pruned: bool) -> None:
        async with opened(self.url, self.folder) as (audit_log, _):
            for number in range(8):
                note(audit_log, number, at=OLD if pruned and number < 3 else 2e9)
            await audit_log.flush()
            if pruned:
                assert await audit_log.prune() == 3
            audit_log.note(
                AuditEntry(
                    kind=EntryKind.CHANGE, agent="reviewer", outcome="agent added", detail={"profile": "nothing"}
                )
            )
            await audit_log.flush()

    async def _read(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        store = await Store.open(self.url)
        rows, base = await store.read(everything)
        await store.close()
        return rows, base

    def put(self, rows: list[dict[str, Any]], base: list[dict[str, Any]] | None = None) -> None:
        """Makes the database hold exactly these."""

        async def work() -> None:
            store = await Store.open(self.url)
            await store.write(replaced, rows, self.base if base is None else base)
            await store.close()

        self._runner.run(work())

    def verify(self, expect: str | None = None) -> VerifyReport:
        async def work() -> VerifyReport:
            async with opened(self.url, self.folder) as (audit_log, _):
                return await audit_log.verify(expect)

        return self._runner.run(work())

    def add(self, count: int) -> None:
        async def work() -> None:
            async with opened(self.url, self.folder) as (audit_log, _):
                for number in range(count):
                    note(audit_log, 99 + number)
                await audit_log.flush()

        self._runner.run(work())

    def close(self) -> None:
        self._runner.close()


@pytest.fixture
def plain(store_url: str, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(store_url, tmp_path / "state", pruned=False)
    yield kept
    kept.close()


@pytest.fixture
def pruned(store_url: str, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(store_url, tmp_path / "state", pruned=True)
    yield kept
    kept.close()


@pytest.fixture(params=["whole", "pruned"])
def kept(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(store_url, tmp_path / "state", pruned=request.param == "pruned")
    yield made
    made.close()


def another(value: Any) -> Any:
    if value is None:
        return 1
    return value + "x" if isinstance(value, str) else value + 1


def changed(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    row = draw.draw(st.sampled_from(rows))
    column = draw.draw(st.sampled_from([name for name in audit.COLUMNS if name != "seq"]))
    is_number = isinstance(rows_table.c[column].type, sa.BigInteger | sa.Double)
    row[column] = another(row[column]) if row[column] is not None or is_number else "x"


def emptied(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    row = draw.draw(st.sampled_from([row for row in rows if row["shape"] is not None]))
    row[draw.draw(st.sampled_from(["shape", "arguments_hash"]))] = None


def removed(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    rows.pop(draw.draw(st.integers(0, len(rows) - 1)))


def removed_and_closed_up(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(rows) - 1))
    rows.pop(place)
    for row in rows[place:]:
        row["seq"] -= 1


def swapped(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    one, other = draw.draw(st.lists(st.sampled_from(range(len(rows))), min_size=2, max_size=2, unique=True))
    rows[one]["seq"], rows[other]["seq"] = rows[other]["seq"], rows[one]["seq"]


def cut_at_the_end(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    del rows[draw.draw(st.integers(0, len(rows) - 1)) :]


def cut_at_the_beginning(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    del rows[: draw.draw(st.integers(1, len(rows)))]


def appended(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    row = dict(draw.draw(st.sampled_from(rows)))
    row["seq"] = rows[-1]["seq"] + 1
    rows.append(row)


def put_in(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(rows) - 1))
    new = dict(rows[place])
    for row in rows[place:]:
        row["seq"] += 1
    rows.insert(place, new)


def chained_with_another_key(rows: list[dict[str, Any]], draw: st.DataObject) -> None:
    place = draw.draw(st.integers(1, len(rows) - 1))
    rows[place]["agent"] = "somebody"
    keys = ChainKeys(b"x" * 32)
    for before, row in zip(rows[place - 1 :], rows[place:], strict=False):
        row["hash"] = keys.link(before["hash"], list(row.values())[:-1])


TRICKS = [
    changed,
    emptied,
    removed,
    removed_and_closed_up,
    swapped,
    cut_at_the_end,
    cut_at_the_beginning,
    appended,
    put_in,
    chained_with_another_key,
]


def _is_found(kept: Kept, trick: Any, draw: st.DataObject) -> None:
    rows = copy.deepcopy(kept.rows)
    trick(rows, draw)
    assume(rows != kept.rows)
    kept.put(sorted(rows, key=lambda row: row["seq"]))
    report = kept.verify()
    assert not report.ok, report
    assert report.wrong
    assert report.seq is not None
    # Named is the first number whose row is not what it was.
    now = {row["seq"]: row for row in rows}
    before = {row["seq"]: row for row in kept.rows}
    first = min(seq for seq in now.keys() | before.keys() if now.get(seq) != before.get(seq))
    assert report.seq == first


ROUNDS = settings(max_examples=100, deadline=None)


@ROUNDS
@given(trick=st.sampled_from(TRICKS), draw=st.data())
def test_any_change_of_the_rows_is_found_and_named(plain: Kept, trick: Any, draw: st.DataObject) -> None:
    _is_found(plain, trick, draw)


@ROUNDS
@given(trick=st.sampled_from(TRICKS), draw=st.data())
def test_any_change_is_found_also_where_the_oldest_were_let_go(pruned: Kept, trick: Any, draw: st.DataObject) -> None:
    _is_found(pruned, trick, draw)


@settings(ROUNDS, max_examples=40)
@given(trick=st.sampled_from(TRICKS), draw=st.data())
def test_any_change_under_an_open_audit_log_is_found_for_ever_however_much_it_writes(
    plain: Kept, trick: Any, draw: st.DataObject
) -> None:
    rows = copy.deepcopy(plain.rows)
    trick(rows, draw)
    assume(rows != plain.rows)
    plain.put(plain.rows)
    # What the last round left there knows of another end.
    (plain.folder / "audit.head").unlink()

    async def work() -> None:
        async with opened(plain.url, plain.folder) as (audit_log, store):
            note(audit_log, 1)
            await audit_log.flush()
            (_, own) = await audit_log.query(limit=2)
            await store.write(replaced, sorted(rows, key=lambda row: row["seq"]), plain.base)
            for number in range(4):
                note(audit_log, number)
                await audit_log.flush()
            report = await audit_log.verify()
            assert not report.ok, own
            assert report.seq is not None
            assert report.seq <= own["seq"]

    plain._runner.run(work())
    plain.add(3)
    assert not plain.verify().ok


async def test_an_older_copy_put_under_an_open_audit_log_is_found_for_ever(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        for number in range(5):
            note(audit_log, number)
        await audit_log.flush()
        older = await store.read(everything)
        for number in range(3):
            note(audit_log, number, agent="gone")
        await audit_log.flush()
        await store.write(replaced, *older)
        for number in range(20):
            note(audit_log, number)
            await audit_log.flush()
        report = await audit_log.verify()
        assert (report.ok, report.seq) == (False, 6)
        assert "entries 6 to 8 are missing" in report.wrong
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        note(audit_log, 1)
        await audit_log.flush()
        assert await audit_log.verify() == report


async def test_a_cut_is_found_also_if_another_who_does_not_know_has_written_past_it(
    store_url: str, tmp_path: Path
) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        for number in range(5):
            note(audit_log, number)
        await audit_log.flush()
        await store.write(lambda connection: connection.execute(rows_table.delete().where(rows_table.c.seq > 2)))
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(tmp_path / "state" / "audit.key", tmp_path / "elsewhere")
        async with opened(store_url, tmp_path / "elsewhere") as (other, _):
            for number in range(9):
                note(other, number)
            await other.flush()
        note(audit_log, 6)
        await audit_log.flush()
        told, _ = await audit_log.query(limit=2)
        assert told["kind"] == "unanchored"
        assert told["detail"]["known"] == 5
        assert not (await audit_log.verify()).ok


async def test_others_who_write_and_prune_leave_no_word_of_a_cut(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with opened(store_url, folder) as (one, _), opened(store_url, folder) as (other, _):
        for number in range(5):
            note(one, number, at=OLD)
        await one.flush()
        note(other, 6)
        await other.flush()
        assert await other.prune() == 5
        for audit_log in (one, other, one):
            note(audit_log, 7)
            await audit_log.flush()
        assert {row["kind"] for row in await one.query()} == {"intent", "pruned"}
        assert (await one.verify()).notes == ()


@pytest.mark.parametrize("below", [0, 5], ids=["right before the beginning", "far before it"])
def test_a_row_put_in_before_the_beginning_is_found_and_never_shown(kept: Kept, below: int) -> None:
    begin = kept.base[-1]["seq"]
    forged = {**kept.rows[0], "seq": begin - below, "agent": "victim", "at": OLD}
    kept.put([forged, *kept.rows])

    async def work() -> None:
        async with opened(kept.url, kept.folder, keep_bytes=1) as (audit_log, _):
            for wanted in ({}, {"since": 0.0}, {"after": -100}, {"since": 0.0, "after": -100}):
                assert await audit_log.query(agent="victim", **wanted) == []
            assert await audit_log.prune() >= len(kept.rows) - 1

    before = kept.verify()
    kept._runner.run(work())
    after = kept.verify()
    assert (before.ok, before.seq) == (after.ok, after.seq) == (False, begin - below)


def test_a_cut_beginning_is_found_also_if_it_looks_as_if_it_was_let_go(kept: Kept) -> None:
    for place in range(1, len(kept.rows) - 1):
        last = kept.rows[place - 1]
        kept.put(kept.rows[place:], [kept.base[0], {"id": 1, "seq": last["seq"], "hash": last["hash"]}])
        report = kept.verify()
        assert (report.ok, report.seq) == (False, last["seq"] + 1)


def test_a_base_that_was_changed_or_removed_is_found(pruned: Kept) -> None:
    for base in ([], pruned.base[:1], pruned.base[1:]):
        pruned.put(pruned.rows, base)
        assert not pruned.verify().ok
    for place, column in ((0, "hash"), (1, "seq"), (1, "hash")):
        base = copy.deepcopy(pruned.base)
        base[place][column] = another(base[place][column])
        pruned.put(pruned.rows, base)
        assert not pruned.verify().ok, (place, column)


def test_an_older_copy_of_the_database_is_found(pruned: Kept) -> None:
    """Row by row it is all true; only the anchor knows that there was more."""
    whole = pruned.rows
    pruned.put(whole[:-1])
    report = pruned.verify()
    assert (report.ok, report.seq) == (False, whole[-1]["seq"])
    assert "the anchor" in report.wrong
    pruned.put([])
    assert not pruned.verify().ok


def test_a_audit_log_that_was_wiped_and_begun_anew_is_found(plain: Kept) -> None:
    plain.put([], [])
    assert "An earlier audit log" in plain.verify().wrong
    anew = Kept(plain.url, plain.folder, pruned=False)
    report = anew.verify()
    assert not report.ok
    assert "An earlier audit log with 9 entries" in report.wrong
    anchor = plain.folder / "audit.head"
    *_, newest = anchor.read_text().splitlines()
    anchor.write_text(newest.rstrip() + "\n")
    assert anew.verify().ok
    anew.close()


def test_another_audit_log_in_another_database_is_no_concern(plain: Kept, tmp_path: Path) -> None:
    other = Kept(str(tmp_path / "other.db"), plain.folder, pruned=False)
    assert plain.verify().ok
    assert other.verify().ok
    other.close()


def test_the_untouched_audit_log_is_whole(kept: Kept) -> None:
    last = kept.rows[-1]
    whole = VerifyReport(ok=True, entries=len(kept.rows), head=f"{last['seq']}:{last['hash']}", notes=())
    assert kept.verify() == whole
    kept.put(kept.rows)
    assert kept.verify() == whole


def test_any_program_can_compute_the_hashes_as_the_documentation_says(kept: Kept) -> None:
    secret = bytes.fromhex((kept.folder / "audit.key").read_text())
    key = hmac.digest(secret, b"toolcrib audit chain", "sha256")
    before = kept.base[-1]["hash"]
    for row in kept.rows:
        columns = [value for name, value in row.items() if name != "hash"]
        assert row["hash"] == hmac.digest(key, before.encode() + msgspec.msgpack.encode(columns), "sha256").hex()
        before = row["hash"]


def test_a_missing_key_is_said_and_none_is_made(plain: Kept) -> None:
    key = plain.folder / "audit.key"
    secret = key.read_text()
    key.unlink()
    report = plain.verify()
    assert not report.ok
    assert str(key) in report.wrong
    assert not key.exists()
    key.write_text("00" * 32)
    assert "audit.key was lost or replaced" in plain.verify().wrong
    key.write_text(secret)
    assert plain.verify().ok


@pytest.mark.parametrize("content", [None, "", "\0" * 512, '{"chain": 1}'])
def test_a_missing_or_unreadable_anchor_is_said_and_the_next_entry_makes_it_anew(
    plain: Kept, content: str | None
) -> None:
    anchor = plain.folder / "audit.head"
    anchor.unlink()
    if content is not None:
        anchor.write_text(content)
    report = plain.verify()
    assert not report.ok
    assert str(anchor) in report.wrong

    plain.add(2)
    report = plain.verify()
    assert report.ok
    (said,) = report.notes
    assert "anchor was missing when entry 10 was written" in said
    assert "after entry 9" in said


def test_a_cut_end_is_not_forgotten_when_the_anchor_is_taken_away_too(plain: Kept) -> None:
    last = plain.rows[-1]["seq"]
    plain.put(plain.rows[:-3])
    (plain.folder / "audit.head").unlink()
    for _ in range(3):
        plain.add(5)
        report = plain.verify()
        assert report.ok
        assert [f"after entry {last - 3} " in one for one in report.notes] == [True], "said for ever, and once"


def test_all_entries_gone_with_the_anchor_is_not_a_new_audit_log(plain: Kept) -> None:
    plain.put([])
    (plain.folder / "audit.head").unlink()
    plain.add(1)
    assert "after entry 0 " in plain.verify().notes[0]


def test_a_cut_end_is_still_found_when_the_audit_log_has_grown_past_it(kept: Kept) -> None:
    last = kept.rows[-1]["seq"]
    kept.put(kept.rows[:-3])
    assert not kept.verify().ok
    kept.add(20)
    report = kept.verify()
    assert (report.ok, report.seq) == (False, last - 2)
    assert f"entries {last - 2} to {last} are missing" in report.wrong
    kept.add(20)
    assert kept.verify() == report


async def test_a_cut_end_is_found_by_the_very_process_that_goes_on_writing(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, store):
        for number in range(5):
            note(audit_log, number)
        await audit_log.flush()
        await store.write(lambda connection: connection.execute(rows_table.delete().where(rows_table.c.seq > 2)))
        (tmp_path / "state" / "audit.head").unlink()
        for number in range(5):
            note(audit_log, number)
            await audit_log.flush()
        report = await audit_log.verify()
        assert (report.ok, report.seq) == (False, 3)
        assert "entries 3 to 5 are missing" in report.wrong


async def test_an_anchor_that_vanishes_under_a_running_process_is_made_anew_without_a_word(
    store_url: str, tmp_path: Path
) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        note(audit_log, 1)
        await audit_log.flush()
        (tmp_path / "state" / "audit.head").unlink()
        note(audit_log, 2)
        await audit_log.flush()
        assert (await audit_log.verify()).notes == ()


async def test_a_first_commit_that_fails_leaves_no_audit_log_behind(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StoreError("not now")

    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        with monkeypatch.context() as broken:
            broken.setattr(audit, "append", fails)
            for _ in range(2):
                note(audit_log, 1)
                with pytest.raises(StoreError):
                    await audit_log.flush()
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        note(audit_log, 2)
        await audit_log.flush()
        report = await audit_log.verify()
        assert report.ok, report
        assert report.notes == ()
    assert len(HeadAnchor(tmp_path / "state" / "audit.head").heads()) == 1


async def test_the_status_names_the_head_before_anything_is_written(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        assert (await audit_log.describe())["head"] is None
        note(audit_log, 1)
        await audit_log.flush()
        head = (await audit_log.describe())["head"]
        assert head == (await audit_log.verify()).head
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        assert (await audit_log.describe())["head"] == head


def test_a_head_that_was_written_down_is_compared(plain: Kept) -> None:
    middle, last = plain.rows[3], plain.rows[-1]
    for row in (middle, last):
        assert plain.verify(f"{row['seq']}:{row['hash']}").ok
        assert plain.verify(f"{row['seq']}:{row['hash'][:8].upper()}").ok
    report = plain.verify(f"{middle['seq']}:{'0' * 64}")
    assert (report.ok, report.seq) == (False, middle["seq"])
    report = plain.verify(f"{last['seq'] + 5}:{last['hash']}")
    assert (report.ok, report.seq) == (False, last["seq"] + 1)
    for wrong in ("5", "5:", "x:y", f"-1:{last['hash']}", "5:zz"):
        with pytest.raises(UsageError):
            plain.verify(wrong)


def test_a_written_down_head_that_was_let_go_cannot_be_compared_but_its_neighbour_can(pruned: Kept) -> None:
    assert "has been deleted" in pruned.verify(f"1:{'0' * 64}").notes[0]
    assert pruned.verify(f"3:{pruned.base[1]['hash']}").ok
    assert not pruned.verify(f"3:{'0' * 64}").ok


async def test_an_empty_audit_log_is_whole(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        report = await audit_log.verify()
        assert (report.ok, report.entries, report.notes) == (True, 0, ("The audit log is empty.",))
        assert not (await audit_log.verify(f"5:{'0' * 64}")).ok


async def test_verifying_goes_on_while_others_write_and_prune(store_url: str, tmp_path: Path) -> None:
    async with opened(store_url, tmp_path / "state") as (audit_log, _):
        for number in range(PAGE_ROWS * 2 + 50):
            note(audit_log, number, at=OLD if number < PAGE_ROWS + 100 else 2e9)
        await audit_log.flush()
        seen: list[tuple[int, int]] = []

        async def progress(checked: int, total: int) -> None:
            seen.append((checked, total))
            if len(seen) == 1:
                assert await audit_log.prune() == PAGE_ROWS + 100
            note(audit_log, 5000 + len(seen))
            await audit_log.flush()

        report = await audit_log.verify(progress=progress)
        assert report.ok, report
        assert seen[0] == (PAGE_ROWS, PAGE_ROWS * 2 + 50)
        assert len(seen) >= 2
        assert (await audit_log.verify()).ok


async def test_two_processes_write_one_chain(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with opened(store_url, folder) as (one, _), opened(store_url, folder) as (other, _):

        async def write(audit_log: AuditLog, first: int) -> None:
            for number in range(first, first + 30):
                note(audit_log, number)
                await audit_log.flush()

        await asyncio.wait_for(asyncio.gather(write(one, 0), write(other, 100)), 60)
        report = await other.verify()
        assert (report.ok, report.entries) == (True, 60)


def test_the_anchor_only_goes_forwards(tmp_path: Path) -> None:
    anchor = HeadAnchor(tmp_path / "audit.head")

    def head(chain: str, seq: int) -> ChainHead:
        return ChainHead(chain=chain * 64, place="p" * 16, seq=seq, hash=f"{seq:064x}")

    anchor.advance(head("a", 5))
    anchor.advance(head("b", 2**62))
    anchor.advance(head("a", 4))
    assert anchor.heads() == (head("a", 5), head("b", 2**62))
    anchor.advance(head("a", 10**15))
    anchor.advance(head("b", 7))
    assert anchor.heads() == (head("a", 10**15), head("b", 2**62))
    assert (tmp_path / "audit.head").stat().st_mode & 0o777 == 0o600
    # An editor may take the spaces at the ends of lines away.
    lines = [line.rstrip() for line in (tmp_path / "audit.head").read_text().splitlines()]
    (tmp_path / "audit.head").write_text("\n".join(lines) + "\n")
    anchor.advance(head("b", 2**62 + 1))
    assert anchor.heads() == (head("a", 10**15), head("b", 2**62 + 1))
