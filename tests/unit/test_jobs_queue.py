"""Which job begins, when, and at which daemon; and what is let go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from parts.job_harness import LIMIT, JobHarness, agent, order, over, resettle
from toolcrib.errors import ConfigError, NotFound, UsageError
from toolcrib.identity.principal import CLIENT, OWNER
from toolcrib.jobs import queue as desks
from toolcrib.jobs import worker as workers
from toolcrib.jobs.queue import FairOrder, JobQueue
from toolcrib.jobs.worker import ActiveJob, start_worker
from toolcrib.policy import Rule, RuleOrigin, Verdict
from toolcrib.policy.rule import rule_from
from toolcrib.store import jobs
from toolcrib.store.jobs import JobRow, JobStatus
from toolcrib.store.schema import jobs as table

pytestmark = pytest.mark.req("KAI-9")


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return JobHarness(tmp_path)


async def kept(desk: JobQueue, prompt: str, harness: JobHarness, **usage: int) -> JobRow:
    """A job that is over."""
    row = await desk.submit(OWNER, harness.root, order(prompt))
    worker = await harness.begun(prompt)
    worker.say(end={"status": "done", "text": prompt, "error": "", "usage": usage})
    worker.said.put_nowait(None)
    return await over(desk, row.id)


async def grow_old(desk: JobQueue, days: int) -> None:
    """What is over has been so for this long."""
    assert desk.crib is not None
    ended_at = time.time() - days * 86_400
    await desk.crib.services.store.write(
        lambda connection: connection.execute(table.update().values(ended_at=ended_at))
    )


async def noted(desk: JobQueue, outcome: str) -> list[dict[str, Any]]:
    assert desk.crib is not None
    return [one for one in await desk.crib.services.audit.query(limit=50) if one["outcome"] == outcome]


async def test_while_the_settings_cannot_be_read_nothing_begins_and_nothing_is_let_go(harness: JobHarness) -> None:
    async with harness.open(max_running=1, keep_days=3650) as desk:
        old = await kept(desk, "precious", harness)
        await grow_old(desk, 40)
        first = await desk.submit(OWNER, harness.root, order("first"))
        second = await desk.submit(OWNER, harness.root, order("second"))
        worker = await harness.begun("first")
        await resettle(desk, max_running="one")
        worker.done()
        await over(desk, first.id)
        assert (await desk.result(OWNER, second.id, wait=0)).status is JobStatus.QUEUED
        assert (await desk.result(OWNER, old.id, wait=0)).text == "precious"
        assert "second" not in harness.workers
        await resettle(desk, max_running=1)
        await harness.begun("second")
        assert (await desk.result(OWNER, old.id, wait=0)).text == "precious"


async def test_counted_tokens_are_not_taken_for_a_secret(harness: JobHarness) -> None:
    async with harness.open(api_keys={"openai": "100000"}) as desk:
        row = await kept(desk, "the key is 100000", harness, input_tokens=1_000_001)
        assert json.loads(row.usage) == {"input_tokens": 1_000_001}
        assert row.text == "the key is ****"


async def test_daemons_that_share_a_store_leave_each_other_s_jobs_alone(tmp_path: Path) -> None:
    harnesses = [JobHarness(tmp_path / name, config={"store": str(tmp_path / "shared.db")}) for name in "ab"]
    for one in harnesses:
        one.root.mkdir(parents=True)
    a, b = harnesses
    async with a.open(max_running=1) as mine:
        runs = await mine.submit(OWNER, a.root, order("runs"))
        waits = await mine.submit(OWNER, a.root, order("waits"))
        await a.begun("runs")
        async with b.open(max_running=1) as theirs:
            assert theirs.counts == {"running": 0, "waiting": 0}
            assert (await theirs.result(OWNER, runs.id, wait=0)).status is JobStatus.RUNNING
            with pytest.raises(UsageError, match="another daemon"):
                await theirs.cancel(OWNER, waits.id)
        assert not b.workers
        a.workers["runs"].done()
        (await a.begun("waits")).done()
        assert (await over(mine, runs.id)).status is (await over(mine, waits.id)).status is JobStatus.DONE


async def test_what_does_not_wait_any_more_is_not_begun(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as desk:
        assert desk.crib is not None
        await desk.submit(OWNER, harness.root, order("first"))
        second = await desk.submit(OWNER, harness.root, order("second"))
        third = await desk.submit(OWNER, harness.root, order("third"))
        worker = await harness.begun("first")
        await desk.crib.services.store.write(
            jobs.end, second.id, JobStatus.CANCELLED, time.time(), {"error": "elsewhere"}
        )
        worker.done()
        (await harness.begun("third")).done()
        await over(desk, third.id)
        assert (await desk.result(OWNER, second.id, wait=0)).error == "elsewhere"
        assert "second" not in harness.workers
        assert desk.counts == {"running": 0, "waiting": 0}


async def test_a_process_that_never_reads_its_order_can_be_cancelled(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKER_COMMAND", ("/bin/sleep", "60"))
    harness.start = start_worker
    async with asyncio.timeout(LIMIT), harness.open() as desk:
        row = await desk.submit(OWNER, harness.root, order("x" * 200_000))
        assert (await desk.cancel(OWNER, row.id)).status is JobStatus.CANCELLED


async def test_a_process_that_never_reads_its_order_fails_after_a_while(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKER_COMMAND", ("/bin/sleep", "60"))
    monkeypatch.setattr(workers, "_TAKEN_WITHIN", 0.2)
    harness.start = start_worker
    async with asyncio.timeout(LIMIT), harness.open() as desk:
        row = await over(desk, (await desk.submit(OWNER, harness.root, order("x" * 200_000))).id)
        assert row.status is JobStatus.FAILED
        assert "did not read its order" in row.error


async def test_old_results_are_let_go_at_the_start(harness: JobHarness) -> None:
    async with harness.open(keep_days=1) as desk:
        old = await kept(desk, "old", harness)
        await grow_old(desk, 2)
    async with harness.open(keep_days=1) as desk:
        with pytest.raises(NotFound):
            await desk.result(OWNER, old.id, wait=0)


async def test_old_results_are_let_go_although_no_job_ends(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "_UPKEEP", 0.05)
    async with harness.open(keep_days=1) as desk:
        await kept(desk, "old", harness)
        await grow_old(desk, 2)
        async with asyncio.timeout(LIMIT):
            while (await desk.latest(OWNER, status=None, most=1))[1]:
                pass


def waiting(*submitters: str) -> list[ActiveJob]:
    return [
        ActiveJob(row=_row(f"{n}", name), prompt="", held=contextlib.ExitStack()) for n, name in enumerate(submitters)
    ]


def _row(id: str, submitter: str) -> JobRow:
    return JobRow(
        id=id,
        daemon="d",
        submitter=submitter,
        submitter_since=1.0,
        runs="model",
        model="m",
        profile="p",
        workdir="/",
        root="/",
        prompt="",
        masked=False,
        timeout=1,
        max_steps=1,
        status=JobStatus.QUEUED,
        submitted_at=1.0,
    )


@pytest.mark.parametrize(
    ("came", "room", "begun"),
    [
        ("a a a b", 1, "a b a a"),
        ("a a b c b owner", 1, "owner a b c a b"),
        ("a a a b b", 2, "a b a b a"),
        ("a a", 2, "a a"),
    ],
)
def test_submitters_take_turns_and_the_owner_comes_first(came: str, room: int, begun: str) -> None:
    left, running, order_of_begin, turns = waiting(*came.split()), list[ActiveJob](), [], FairOrder()
    while left:
        chosen = turns.next(left, running)
        left.remove(chosen)
        running = [*running, chosen][-room:] if room > 1 else []
        order_of_begin.append(chosen.row.submitter)
    assert order_of_begin == begun.split()


async def test_one_submitter_s_many_do_not_keep_others_waiting(harness: JobHarness) -> None:
    async with harness.open(max_running=1, max_waiting=9) as desk:
        greedy, other = await agent(desk, "greedy"), await agent(desk, "other")
        for number in range(3):
            await desk.submit(greedy, harness.root, order(f"g{number}"))
        await desk.submit(other, harness.root, order("o"))
        await desk.submit(OWNER, harness.root, order("mine"))
        for prompt in ("g0", "mine", "o", "g1"):
            worker = await harness.begun(prompt)
            assert "g2" not in harness.workers
            worker.done()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("rule", "may no longer submit jobs"),
        ("model", "may not use the model"),
    ],
)
async def test_what_its_submitter_may_no_longer_ask_for_does_not_begin(
    harness: JobHarness, change: str, told: str
) -> None:
    async with harness.open(max_running=1) as desk:
        assert desk.crib is not None
        who = await agent(desk, "a")
        await desk.submit(OWNER, harness.root, order("first"))
        row = await desk.submit(who, harness.root, order("second"))
        client = await desk.submit(CLIENT, harness.root, order("third"))
        worker = await harness.begun("first")
        if change == "rule":
            deny = Rule(effect=Verdict.DENY, tools="crib:job_submit", origin=RuleOrigin.AGENT)
            await desk.crib.services.agents.add_rule("a", deny)
        else:
            await resettle(desk, model="openai:other")
        worker.done()
        ended = await over(desk, row.id)
        assert (ended.status, "second" in harness.workers) == (JobStatus.FAILED, False)
        assert told in ended.error
        if change == "rule":
            (await harness.begun("third")).done()
        else:
            assert told in (await over(desk, client.id)).error


async def test_what_was_interrupted_stands_in_the_audit_log(harness: JobHarness) -> None:
    async with harness.open() as desk:
        assert desk.crib is not None
        row = await desk.submit(OWNER, harness.root, order())
        (await harness.begun("do it")).done()
        await over(desk, row.id)
        # As a daemon leaves it that was killed.
        await desk.crib.services.store.write(
            lambda connection: connection.exec_driver_sql("update jobs set status = 'running'")
        )
    async with harness.open() as desk:
        assert (await desk.result(OWNER, row.id, wait=0)).status is JobStatus.INTERRUPTED
        [entry] = await noted(desk, "job interrupted")
        assert entry["detail"]["job"] == row.id


async def test_who_names_no_model_is_told_where_to_name_one(harness: JobHarness) -> None:
    harness.config = {"jobs": {}}
    async with harness.open() as desk:
        for who, words in ((OWNER, "--model"), (CLIENT, "The owner can set")):
            with pytest.raises(UsageError, match="has no model") as raised:
                await desk.submit(who, harness.root, order())
            assert words in raised.value.remedy


def test_a_rule_for_a_short_name_is_told_the_long_one() -> None:
    with pytest.raises(ConfigError) as raised:
        rule_from({"deny": "submit_job"}, where="rule for dev")
    assert raised.value.remedy == 'Write "crib:job_submit".'
