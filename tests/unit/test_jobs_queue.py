"""The job queue on a real crib, with workers that a test controls: order, limits, results, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from parts.job_harness import LIMIT, SECRET, JobHarness
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime
from toolcrib.errors import DaemonNotRunning, NotFound, StoreError, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, Principal
from toolcrib.jobs import queue as queue_module
from toolcrib.jobs import worker as worker_module
from toolcrib.jobs.queue import FairOrder
from toolcrib.jobs.worker import LONGEST_RESULT, ActiveJob, start_worker
from toolcrib.policy import Rule, RuleOrigin, Verdict
from toolcrib.store import jobs
from toolcrib.store.jobs import JobRow, JobStatus
from toolcrib.store.schema import jobs as table

pytestmark = pytest.mark.req("KAI-9")

NO_JOBS = {"running": 0, "waiting": 0}


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    return JobHarness(tmp_path)


async def finished_job(harness: JobHarness, prompt: str = "do it", *, days: int = 0, **end: Any) -> JobRow:
    """A job that ended so many days ago."""
    job = await harness.submit(prompt)
    (await harness.started(prompt)).done(**{"text": prompt, **end})
    row = await harness.finished(job)
    if days:
        values = table.update().values(ended_at=time.time() - days * 86_400)
        await harness.crib.services.store.write(lambda connection: connection.execute(values))
    return row


async def audited(harness: JobHarness) -> list[tuple[str, str, str]]:
    entries = await harness.crib.services.audit.query(limit=50)
    found = [one for one in entries if one["outcome"].startswith("job ")]
    return sorted((one["outcome"], one["agent"], one["detail"]["job"]) for one in found)


async def test_a_job_runs_for_its_submitter_and_its_result_is_stored(harness: JobHarness) -> None:
    async with harness.open() as queue:
        caller = await harness.agent("heartbeat", workdir=harness.root)
        job = await queue.submit(caller, Path("/elsewhere"), queue_module.SubmitJob(prompt="do it", workdir="src"))
        worker = await harness.started()
        assert worker.order == {
            "job": job.id,
            "runs": "model",
            "prompt": "do it",
            "model": "openai:usual",
            "base_url": "",
            "api_key": "",
            "profile": "trusted",
            "parent": "heartbeat",
            "workdir": str(harness.root / "src"),
            "timeout": 60,
            "max_steps": job.max_steps,
        }
        for line in ({"agent": "job-x"}, {"event": "run_started"}, {"event": "step_finished"}):
            worker.send(**line)
        worker.done("it is 42")
        row = await queue.result(caller, job.id, wait=LIMIT)
        assert (row.status, row.text, row.agent) == (JobStatus.DONE, "it is 42", "job-x")
        assert (row.steps, row.events, json.loads(row.usage)) == (1, 2, {"input_tokens": 7})
        assert queue.counts == NO_JOBS
        assert await audited(harness) == [
            ("job done", "heartbeat", job.id),
            ("job submitted", "heartbeat", job.id),
        ]


async def test_a_limited_number_of_jobs_runs_and_waits_in_the_order_of_submission(harness: JobHarness) -> None:
    async with harness.open() as queue:
        submitted = [await harness.submit(f"p{number}") for number in range(4)]
        await harness.started("p0")
        await harness.started("p1")
        assert queue.counts == {"running": 2, "waiting": 2}
        with pytest.raises(UsageError, match="2 jobs are already waiting"):
            await harness.submit("p4")
        assert set(harness.workers) == {"p0", "p1"}
        harness.workers["p1"].done()
        await harness.started("p2")
        assert set(harness.workers) == {"p0", "p1", "p2"}
        assert (await harness.finished(submitted[1])).status is JobStatus.DONE


async def test_one_agent_cannot_use_all_places_and_submitters_take_turns(harness: JobHarness) -> None:
    async with harness.open(max_running=1, max_waiting=9):
        greedy, other = await harness.agent("greedy"), await harness.agent("other")
        for number in range(3):
            await harness.submit(f"g{number}", greedy)
        with pytest.raises(UsageError, match="greedy already has 3 "):
            await harness.submit("g3", greedy)
        await harness.submit("o", other)
        await harness.submit("mine")
        for prompt in ("g0", "mine", "o", "g1"):
            worker = await harness.started(prompt)
            assert "g2" not in harness.workers
            worker.done()


@pytest.mark.parametrize(
    ("waiting", "room", "started"),
    [
        ("a a a b", 1, "a b a a"),
        ("a a b c b owner", 1, "owner a b c a b"),
        ("a a a b b", 2, "a b a b a"),
        ("a a", 2, "a a"),
    ],
)
def test_the_owner_comes_first_and_the_others_take_turns(waiting: str, room: int, started: str) -> None:
    fixed = {"daemon": "d", "submitter_since": 1.0, "runs": "model", "model": "m", "profile": "p", "workdir": "/"}
    fixed |= {"root": "/", "prompt": "", "masked": False, "timeout": 1, "max_steps": 1, "submitted_at": 1.0}
    rows = [
        JobRow(id=f"{number}", submitter=name, status=JobStatus.QUEUED, **fixed)
        for number, name in enumerate(waiting.split())
    ]
    left = [ActiveJob(row=row, prompt="", held=contextlib.ExitStack()) for row in rows]
    running, chosen, order = list[ActiveJob](), list[str](), FairOrder()
    while left:
        job = order.next(left, running)
        left.remove(job)
        running = [*running, job][-room:] if room > 1 else []
        chosen.append(job.row.submitter)
    assert chosen == started.split()


async def test_submitters_see_their_own_and_their_childrens_jobs_and_the_owner_sees_all(harness: JobHarness) -> None:
    async with harness.open(max_waiting=50) as queue:
        lead, other = await harness.agent("lead"), await harness.agent("other")
        child = await harness.agent("helper", parent="lead")
        submitted = {who.name: await harness.submit(who.name, who) for who in (lead, child, other, CLIENT, OWNER)}

        async def seen(caller: Principal) -> set[str]:
            rows, total = await queue.latest(caller, status=None, most=50)
            assert total == len(rows)
            return {row.submitter for row in rows}

        for caller, expected in ((child, "helper"), (other, "other"), (CLIENT, "client"), (lead, "lead helper")):
            assert await seen(caller) == set(expected.split())
        assert await seen(OWNER) == set(submitted)
        for attempt in (queue.result(child, submitted["lead"].id, wait=0), queue.cancel(other, submitted["lead"].id)):
            with pytest.raises(NotFound, match="There is no job"):
                await attempt
        assert (await queue.cancel(lead, submitted["helper"].id)).status is JobStatus.CANCELLED


async def test_a_later_agent_of_the_same_name_does_not_see_the_earlier_ones_jobs(harness: JobHarness) -> None:
    async with harness.open() as queue:
        job = await harness.submit(by=await harness.agent())
        (await harness.started()).done("private")
        await harness.finished(job)
        await harness.crib.services.agents.remove("a")
        later = await harness.agent()
        assert (await queue.latest(later, status=None, most=9))[1] == 0
        with pytest.raises(NotFound):
            await queue.result(later, job.id, wait=0)


async def test_running_and_queued_jobs_can_be_cancelled(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as queue:
        first, second = await harness.submit("first"), await harness.submit("second")
        worker = await harness.started("first")
        assert (await queue.cancel(OWNER, second.id)).status is JobStatus.CANCELLED
        ended = await queue.cancel(OWNER, first.id)
        assert worker.stopped
        assert (ended.status, ended.error) == (JobStatus.CANCELLED, "It was cancelled by owner.")
        assert "second" not in harness.workers
        assert await queue.cancel(OWNER, first.id) == ended, "a finished job does not change"


async def test_the_jobs_of_an_agent_end_with_it(harness: JobHarness) -> None:
    async with harness.open(max_running=1):
        caller = await harness.agent()
        submitted = [await harness.submit(prompt, caller) for prompt in ("running", "waiting")]
        worker = await harness.started("running")
        await harness.crib.services.agents.remove("a")
        for job in submitted:
            row = await harness.finished(job)
            assert (row.status, row.error) == (JobStatus.CANCELLED, "Its submitter a no longer exists.")
        assert worker.stopped
        assert set(harness.workers) == {"running"}


@pytest.mark.parametrize("lasts", list(DaemonLifetime))
async def test_a_daemon_that_stops_interrupts_running_jobs_and_the_next_one_starts_only_queued_ones(
    harness: JobHarness, lasts: DaemonLifetime
) -> None:
    harness.leases = ActiveLeases(lasts)
    async with harness.open(max_running=1):
        ran, waited = await harness.submit("ran"), await harness.submit("waited")
        await harness.started("ran")
        assert not harness.leases.idle, "a daemon for runs stays for its jobs"
    assert harness.leases.idle
    assert harness.workers.pop("ran").stopped
    async with harness.open(max_running=1):
        row = await harness.now(ran)
        assert (row.status, row.error) == (JobStatus.INTERRUPTED, "The daemon was stopped while the job was running.")
        (await harness.started("waited")).done()
        assert (await harness.finished(waited)).status is JobStatus.DONE
        assert "ran" not in harness.workers


async def test_a_killed_daemons_running_job_is_interrupted_and_audited(harness: JobHarness) -> None:
    async with harness.open():
        job = await finished_job(harness)
        running = "update jobs set status = 'running'"
        await harness.crib.services.store.write(lambda connection: connection.exec_driver_sql(running))
    async with harness.open():
        assert (await harness.now(job)).status is JobStatus.INTERRUPTED
        assert ("job interrupted", "owner", job.id) in await audited(harness)


async def test_a_prompt_with_a_secret_is_stored_masked_and_cannot_start_after_a_restart(harness: JobHarness) -> None:
    async with harness.open(max_running=1):
        first, second = await harness.submit(f"log in with {SECRET}"), await harness.submit(f"again {SECRET}")
        (await harness.started(f"log in with {SECRET}")).done(f"I used {SECRET}")
        row = await harness.finished(first)
        assert (row.prompt, row.text) == ("log in with ****", "I used ****")
        await harness.started(f"again {SECRET}")
        third = await harness.submit(f"third {SECRET}")
        assert second.masked
    async with harness.open():
        row = await harness.now(third)
        assert row.status is JobStatus.INTERRUPTED
        assert "secret" in row.error
    stored = b"".join(path.read_bytes() for path in (harness.home / "t").rglob("*") if path.is_file())
    assert SECRET.encode() not in stored


async def test_a_failed_job_has_its_error_and_a_long_result_is_cut(harness: JobHarness) -> None:
    async with harness.open():
        job = await harness.submit("exits")
        (await harness.started("exits")).exit()
        row = await harness.finished(job)
        assert (row.status, row.error) == (JobStatus.FAILED, "Its process exited with code 3.")
        row = await finished_job(harness, text="x" * (LONGEST_RESULT + 5), status="failed", error="It timed out.")
        assert (row.status, row.error) == (JobStatus.FAILED, "It timed out.")
        assert row.text.endswith("x\n[5 more characters were not stored]")


async def test_keys_are_sent_only_where_the_configuration_says_and_are_masked(harness: JobHarness) -> None:
    urls = {"openai": "http://127.0.0.1:9/v1"}
    async with harness.open(base_urls=urls, api_keys={"openai": "${SMALL_SECRET}"}):
        assert (await finished_job(harness, text=f"the key is {SECRET}")).text == "the key is ****"
        order = harness.workers["do it"].order
        assert (order["base_url"], order["api_key"]) == (urls["openai"], SECRET)


async def test_token_counts_are_not_masked(harness: JobHarness) -> None:
    async with harness.open(api_keys={"openai": "100000"}):
        row = await finished_job(harness, "the key is 100000", tokens=1_000_001)
        assert (json.loads(row.usage), row.text) == ({"input_tokens": 1_000_001}, "the key is ****")


async def test_a_job_that_cannot_be_stored_is_not_accepted(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("The disk is full.", remedy="Make room.")

    async with harness.open() as queue:
        with monkeypatch.context() as patched:
            patched.setattr(harness.crib.services.store, "write", refuse)
            with pytest.raises(StoreError, match="full"):
                await harness.submit()
        assert queue.counts == NO_JOBS
        assert harness.leases.idle
        harness.leases.close()
        with pytest.raises(DaemonNotRunning):
            await harness.submit()
        assert not harness.workers


async def test_while_the_settings_are_invalid_no_job_starts_and_no_result_is_deleted(harness: JobHarness) -> None:
    async with harness.open(max_running=1, keep_days=3650):
        old = await finished_job(harness, "precious", days=40)
        first, second = await harness.submit("first"), await harness.submit("second")
        worker = await harness.started("first")
        await harness.change_settings(max_running="one")
        worker.done()
        await harness.finished(first)
        assert (await harness.now(second)).status is JobStatus.QUEUED
        assert (await harness.now(old)).text == "precious"
        assert "second" not in harness.workers
        await harness.change_settings(max_running=1)
        await harness.started("second")
        assert (await harness.now(old)).text == "precious"


async def test_daemons_that_share_a_store_run_only_their_own_jobs(tmp_path: Path) -> None:
    one, other = [JobHarness(tmp_path / name, config={"store": str(tmp_path / "shared.db")}) for name in "ab"]
    async with one.open(max_running=1):
        submitted = [await one.submit("runs"), await one.submit("waits")]
        await one.started("runs")
        async with other.open(max_running=1) as queue:
            assert queue.counts == NO_JOBS
            assert (await other.now(submitted[0])).status is JobStatus.RUNNING
            with pytest.raises(UsageError, match="another daemon"):
                await queue.cancel(OWNER, submitted[1].id)
        assert not other.workers
        for prompt in ("runs", "waits"):
            (await one.started(prompt)).done()
        assert {(await one.finished(job)).status for job in submitted} == {JobStatus.DONE}


async def test_a_job_that_was_ended_elsewhere_does_not_start(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as queue:
        _, second, third = [await harness.submit(prompt) for prompt in ("first", "second", "third")]
        worker = await harness.started("first")
        write = harness.crib.services.store.write
        await write(jobs.end, second.id, JobStatus.CANCELLED, time.time(), {"error": "elsewhere"})
        worker.done()
        (await harness.started("third")).done()
        await harness.finished(third)
        assert (await harness.now(second)).error == "elsewhere"
        assert "second" not in harness.workers
        assert queue.counts == NO_JOBS


@pytest.mark.parametrize("status", [JobStatus.CANCELLED, JobStatus.FAILED])
async def test_a_process_that_never_reads_its_order_is_ended(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch, status: JobStatus
) -> None:
    monkeypatch.setattr(worker_module, "WORKER_COMMAND", ("/bin/sleep", "60"))
    monkeypatch.setattr(worker_module, "_TAKEN_WITHIN", 0.2 if status is JobStatus.FAILED else LIMIT)
    harness.start = start_worker
    async with asyncio.timeout(LIMIT), harness.open() as queue:
        job = await harness.submit("x" * 200_000)
        if status is JobStatus.CANCELLED:
            await queue.cancel(OWNER, job.id)
        row = await harness.finished(job)
        assert row.status is status
        assert ("did not read its order" in row.error) == (status is JobStatus.FAILED)


async def test_old_results_are_deleted_at_the_start_and_later(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.open(keep_days=1):
        old = await finished_job(harness, days=2)
    monkeypatch.setattr(queue_module, "_UPKEEP", 0.05)
    async with harness.open(keep_days=1) as queue:
        with pytest.raises(NotFound):
            await harness.now(old)
        await finished_job(harness, "again", days=2)
        async with asyncio.timeout(LIMIT):
            while (await queue.latest(OWNER, status=None, most=1))[1]:
                pass


@pytest.mark.parametrize(
    ("change", "error"), [("rule", "may no longer submit jobs"), ("model", "may not use the model")]
)
async def test_a_job_that_its_submitter_may_no_longer_submit_does_not_start(
    harness: JobHarness, change: str, error: str
) -> None:
    async with harness.open(max_running=1):
        await harness.submit("first")
        job = await harness.submit("second", await harness.agent())
        client = await harness.submit("third", CLIENT)
        worker = await harness.started("first")
        if change == "rule":
            deny = Rule(effect=Verdict.DENY, tools="crib:job_submit", origin=RuleOrigin.AGENT)
            await harness.crib.services.agents.add_rule("a", deny)
        else:
            await harness.change_settings(model="openai:other")
        worker.done()
        row = await harness.finished(job)
        assert (row.status, "second" in harness.workers) == (JobStatus.FAILED, False)
        assert error in row.error
        if change == "rule":
            (await harness.started("third")).done()
        else:
            assert error in (await harness.finished(client)).error
