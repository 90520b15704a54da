"""Rows of jobs: their status only advances, their number is limited, on every database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import StoreError
from toolcrib.store import jobs
from toolcrib.store.database import Database, Store
from toolcrib.store.jobs import JobRow, JobStatus

pytestmark = pytest.mark.req("KAI-9")


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    with Database.open(store_url) as database:
        yield database


def row(id: str, **changed: Any) -> JobRow:
    values: dict[str, Any] = {"daemon": "mine", "submitter": "heartbeat", "submitter_since": 5.0, "runs": "model"}
    values |= {"model": "openai:x", "profile": "developer", "workdir": "/w", "root": "/", "prompt": "é\n"}
    values |= {"masked": False, "timeout": 60.0, "max_steps": 30, "status": JobStatus.QUEUED, "submitted_at": 1.0}
    return JobRow(id=id, **{**values, **changed})


def test_a_stored_job_is_read_unchanged_and_starts_and_ends_once(database: Database) -> None:
    database.write(jobs.add, row("a"))
    assert database.read(jobs.find, "a") == row("a")
    assert database.read(jobs.find, "b") is None
    assert database.write(jobs.begin, "a", 2.0)
    assert not database.write(jobs.begin, "a", 3.0), "it starts once"
    kept = {"text": "42", "usage": '{"input_tokens":1}', "steps": 2, "events": 9, "agent": "job-a"}
    assert database.write(jobs.end, "a", JobStatus.DONE, 4.0, kept)
    assert not database.write(jobs.end, "a", JobStatus.CANCELLED, 5.0, {"text": "other"})
    assert database.read(jobs.find, "a") == row("a", status=JobStatus.DONE, started_at=2.0, ended_at=4.0, **kept)


def test_running_jobs_are_interrupted_and_queued_ones_are_found_in_order(database: Database) -> None:
    for name, at in (("late", 3.0), ("early", 1.0), ("ran", 2.0), ("over", 0.5)):
        database.write(jobs.add, row(name, submitted_at=at))
    database.write(jobs.begin, "ran", 4.0)
    database.write(jobs.end, "over", JobStatus.FAILED, 4.0, {"error": "e"})
    database.write(jobs.add, row("runs elsewhere", daemon="other", status=JobStatus.RUNNING))
    database.write(jobs.add, row("waits elsewhere", daemon="other"))
    assert [one.id for one in database.write(jobs.interrupt_running, "mine", 9.0, "gone")] == ["ran"]
    found = database.read(jobs.find, "ran")
    assert found is not None
    assert (found.status, found.error, found.ended_at) == (JobStatus.INTERRUPTED, "gone", 9.0)
    assert [one.id for one in database.read(jobs.queued, "mine")] == ["early", "late"]
    assert database.write(jobs.interrupt_running, "mine", 9.0, "gone") == ()
    assert [one.id for one in database.write(jobs.interrupt_running, "other", 9.0, "gone")] == ["runs elsewhere"]


def test_jobs_are_listed_by_submitter_and_status_newest_first(database: Database) -> None:
    for number in range(5):
        database.write(jobs.add, row(f"j{number}", submitted_at=float(number)))
    database.write(jobs.add, row("theirs", submitter="other", submitter_since=5.0))
    database.write(jobs.add, row("before", submitter_since=1.0))
    mine = {("heartbeat", 5.0)}
    rows, total = database.read(jobs.latest, owners=mine, status=None, most=2)
    assert ([one.id for one in rows], total) == (["j4", "j3"], 5)
    assert database.read(jobs.latest, owners=None, status=None, most=50)[1] == 7
    assert database.read(jobs.latest, owners=(), status=None, most=50) == ((), 0)
    database.write(jobs.begin, "j1", 9.0)
    rows, total = database.read(jobs.latest, owners=mine, status="running", most=50)
    assert ([one.id for one in rows], total) == (["j1"], 1)


def test_old_and_excess_finished_jobs_are_deleted(database: Database) -> None:
    for number in range(6):
        database.write(jobs.add, row(f"j{number}"))
        if number:
            database.write(jobs.end, f"j{number}", JobStatus.DONE, float(number), {})
    assert database.write(jobs.forget, before=2.0, most=100) == 1
    assert database.write(jobs.forget, before=0.0, most=2) == 2
    rows, _ = database.read(jobs.latest, owners=None, status=None, most=50)
    assert {one.id for one in rows} == {"j0", "j4", "j5"}


def test_only_queued_and_running_jobs_are_not_over() -> None:
    assert {status for status in JobStatus if not status.over} == {JobStatus.QUEUED, JobStatus.RUNNING}


async def test_a_store_that_closes_waits_for_a_lock_only_once(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    store = await Store.open(file, busy_timeout=1)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        store.hurry()
        await store.write(jobs.add, row("written"))
        other.execute("begin immediate")
        with pytest.raises(StoreError, match="locked") as waited:
            await store.write(jobs.add, row("lost"))
        with pytest.raises(StoreError, match="locked") as refused:
            await store.write(jobs.add, row("lost"))
        assert ["is stopping" in error.value.remedy for error in (waited, refused)] == [False, True]
    assert await store.read(jobs.find, "written") == row("written")
    await store.close()
