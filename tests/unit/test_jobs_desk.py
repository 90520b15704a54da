"""The desk of jobs at a real crib, with workers that do what the test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parts.job_harness import LIMIT, SECRET, JobHarness, agent, order, over
from toolcrib.commands.job import SubmitJob
from toolcrib.commands.run import own_tools_of
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime
from toolcrib.errors import DaemonNotRunning, Denied, NotFound, StoreError, ToolcribError, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, Principal
from toolcrib.jobs.worker import LONGEST_RESULT
from toolcrib.policy import OwnTools, Rule, RuleOrigin, Verdict
from toolcrib.store.jobs import JobStatus
from toolcrib.workspace.settings.model import DEFAULTS

pytestmark = pytest.mark.req("KAI-9")


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return JobHarness(tmp_path)


async def test_a_job_runs_for_its_submitter_and_its_result_is_kept(harness: JobHarness) -> None:
    async with harness.open() as desk:
        caller = await agent(desk, "heartbeat", workdir=harness.root)
        row = await desk.submit(caller, Path("/elsewhere"), order(workdir="src"))
        worker = await harness.begun("do it")
        assert worker.order == {
            "job": row.id,
            "runs": "model",
            "prompt": "do it",
            "model": "openai:usual",
            "base_url": "",
            "api_key": "",
            "profile": "trusted",
            "parent": "heartbeat",
            "workdir": str(harness.root / "src"),
            "timeout": 60,
            "max_steps": 5,
        }
        worker.say(agent="job-x")
        worker.say(event="run_started")
        worker.say(event="step_finished")
        worker.done("it is 42")
        found = await desk.result(caller, row.id, wait=LIMIT)
        assert (found.status, found.text, found.agent) == (JobStatus.DONE, "it is 42", "job-x")
        assert (found.steps, found.events, json.loads(found.usage)) == (1, 2, {"input_tokens": 7})
        assert desk.counts == {"running": 0, "waiting": 0}
        assert desk.crib is not None
        entries = await desk.crib.services.audit.query(limit=20)
        assert sorted((one["outcome"], one["agent"]) for one in entries if "job" in one["outcome"]) == [
            ("job done", "heartbeat"),
            ("job submitted", "heartbeat"),
        ]


async def test_only_so_many_run_and_wait_and_the_first_come_first(harness: JobHarness) -> None:
    async with harness.open() as desk:
        rows = [await desk.submit(OWNER, harness.root, order(f"p{n}")) for n in range(4)]
        await harness.begun("p0")
        await harness.begun("p1")
        assert desk.counts == {"running": 2, "waiting": 2}
        with pytest.raises(UsageError, match="2 jobs are already waiting"):
            await desk.submit(OWNER, harness.root, order("p4"))
        assert set(harness.workers) == {"p0", "p1"}
        harness.workers["p1"].done()
        await harness.begun("p2")
        assert set(harness.workers) == {"p0", "p1", "p2"}
        assert (await over(desk, rows[1].id)).status is JobStatus.DONE


async def test_one_agent_cannot_take_all_the_room(harness: JobHarness) -> None:
    async with harness.open(max_waiting=50) as desk:
        greedy, other = await agent(desk, "greedy"), await agent(desk, "other")
        for number in range(3):
            await desk.submit(greedy, harness.root, order(f"g{number}"))
        with pytest.raises(UsageError, match="greedy already has 3 "):
            await desk.submit(greedy, harness.root, order("g3"))
        await desk.submit(other, harness.root, order("o"))


async def test_everybody_sees_their_own_and_their_childrens_jobs_and_the_owner_all(harness: JobHarness) -> None:
    async with harness.open(max_waiting=50) as desk:
        parent, other = await agent(desk, "lead"), await agent(desk, "other")
        child = await agent(desk, "helper", parent="lead")
        jobs = {
            who.name: (await desk.submit(who, harness.root, order(who.name))).id
            for who in (parent, child, other, CLIENT, OWNER)
        }

        async def seen(caller: Principal) -> set[str]:
            rows, total = await desk.latest(caller, status=None, most=50)
            assert total == len(rows)
            return {row.submitter for row in rows}

        assert await seen(parent) == {"lead", "helper"}
        assert await seen(child) == {"helper"}
        assert await seen(other) == {"other"}
        assert await seen(CLIENT) == {"client"}
        assert await seen(OWNER) == {"lead", "helper", "other", "client", "owner"}
        for attempt in (desk.result(child, jobs["lead"], wait=0), desk.cancel(other, jobs["lead"])):
            with pytest.raises(NotFound, match="There is no job"):
                await attempt
        assert (await desk.cancel(parent, jobs["helper"])).status is JobStatus.CANCELLED


async def test_a_later_agent_of_the_same_name_does_not_see_what_an_earlier_one_did(harness: JobHarness) -> None:
    async with harness.open() as desk:
        before = await agent(desk, "heartbeat")
        row = await desk.submit(before, harness.root, order())
        (await harness.begun("do it")).done("private")
        await over(desk, row.id)
        assert desk.crib is not None
        await desk.crib.services.agents.remove("heartbeat")
        after = await agent(desk, "heartbeat")
        assert (await desk.latest(after, status=None, most=9))[1] == 0
        with pytest.raises(NotFound):
            await desk.result(after, row.id, wait=0)


async def test_cancelling_ends_what_runs_and_what_waits(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as desk:
        first = await desk.submit(OWNER, harness.root, order("first"))
        second = await desk.submit(OWNER, harness.root, order("second"))
        worker = await harness.begun("first")
        assert (await desk.cancel(OWNER, second.id)).status is JobStatus.CANCELLED
        ended = await desk.cancel(OWNER, first.id)
        assert worker.stopped
        assert (ended.status, ended.error) == (JobStatus.CANCELLED, "It was cancelled by owner.")
        assert "second" not in harness.workers
        assert (await desk.cancel(OWNER, first.id)) == ended, "what is over stays as it was"


async def test_the_jobs_of_an_agent_end_with_it(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as desk:
        caller = await agent(desk, "heartbeat")
        running = await desk.submit(caller, harness.root, order("running"))
        waiting = await desk.submit(caller, harness.root, order("waiting"))
        worker = await harness.begun("running")
        assert desk.crib is not None
        await desk.crib.services.agents.remove("heartbeat")
        for job in (running.id, waiting.id):
            row = await over(desk, job)
            assert (row.status, row.error) == (JobStatus.CANCELLED, "Its submitter heartbeat has ended.")
        assert worker.stopped
        assert set(harness.workers) == {"running"}


@pytest.mark.parametrize("lasts", list(DaemonLifetime))
async def test_a_daemon_that_ends_interrupts_what_runs_and_the_next_one_begins_only_what_waited(
    harness: JobHarness, lasts: DaemonLifetime
) -> None:
    harness.leases = ActiveLeases(lasts)
    async with harness.open(max_running=1) as desk:
        ran = await desk.submit(OWNER, harness.root, order("ran"))
        waited = await desk.submit(OWNER, harness.root, order("waited"))
        await harness.begun("ran")
        assert not harness.leases.idle, "a daemon for runs stays for its jobs"
    assert harness.leases.idle
    assert harness.workers.pop("ran").stopped
    async with harness.open(max_running=1) as desk:
        row = await desk.result(OWNER, ran.id, wait=0)
        assert (row.status, row.error) == (JobStatus.INTERRUPTED, "The daemon was stopped while the job was running.")
        (await harness.begun("waited")).done()
        assert (await over(desk, waited.id)).status is JobStatus.DONE
        assert "ran" not in harness.workers


async def test_a_prompt_with_a_secret_runs_whole_but_is_kept_masked_and_not_begun_later(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as desk:
        first = await desk.submit(OWNER, harness.root, order(f"log in with {SECRET}"))
        second = await desk.submit(OWNER, harness.root, order(f"again {SECRET}"))
        worker = await harness.begun(f"log in with {SECRET}")
        worker.done(f"I used {SECRET}")
        row = await over(desk, first.id)
        assert row.prompt == "log in with ****"
        assert row.text == "I used ****"
        await harness.begun(f"again {SECRET}")
        third = await desk.submit(OWNER, harness.root, order(f"third {SECRET}"))
        assert second.masked
    async with harness.open() as desk:
        row = await desk.result(OWNER, third.id, wait=0)
        assert row.status is JobStatus.INTERRUPTED
        assert "secret" in row.error
    everything = b"".join(path.read_bytes() for path in (harness.home / "t").rglob("*") if path.is_file())
    assert SECRET.encode() not in everything


async def test_a_worker_that_ends_without_a_word_is_a_failure_that_says_how(harness: JobHarness) -> None:
    async with harness.open() as desk:
        row = await desk.submit(OWNER, harness.root, order())
        (await harness.begun("do it")).said.put_nowait(None)
        ended = await over(desk, row.id)
        assert (ended.status, ended.error) == (JobStatus.FAILED, "Its process ended with code 3, saying: oh.")


async def test_a_failure_keeps_what_was_said_and_a_long_result_is_cut_and_says_so(harness: JobHarness) -> None:
    async with harness.open() as desk:
        row = await desk.submit(OWNER, harness.root, order())
        (await harness.begun("do it")).done(
            "x" * (LONGEST_RESULT + 5), status="failed", error="It reached its time limit."
        )
        ended = await over(desk, row.id)
        assert (ended.status, ended.error) == (JobStatus.FAILED, "It reached its time limit.")
        assert ended.text.endswith("x\n[5 more characters were not stored]")


WRONG: list[tuple[str, dict[str, Any], type[ToolcribError], str]] = [
    ("agent", {"model": "openai:dear"}, Denied, "may not use the model"),
    ("client", {"model": "openai:dear"}, Denied, "may not use the model"),
    ("owner", {"model": "nowhere:x"}, UsageError, "does not begin with a provider"),
    ("owner", {"model": "google:x"}, UsageError, "no key for google"),
    ("owner", {"model": "openai:x", "runs": "claude"}, UsageError, "chooses its model"),
    ("owner", {"runs": "claude"}, NotFound, "not installed"),
    ("agent", {"workdir": "../.."}, Denied, "not inside"),
    ("agent", {"workdir": "/"}, Denied, "not inside"),
    ("client", {"workdir": "/"}, Denied, "not inside"),
    ("owner", {"workdir": "nowhere"}, UsageError, "is not a folder"),
    ("client", {"profile": "trusted"}, Denied, "have the profile developer"),
    ("agent", {"profile": "owner"}, UsageError, "can have the profile owner"),
    ("agent", {"profile": "ghost"}, UsageError, "There is no profile"),
    ("owner", {"profile": "owner"}, UsageError, "can have the profile owner"),
    ("owner", {"timeout": 601}, UsageError, "600 s at most"),
    ("owner", {"prompt": " \n"}, UsageError, "prompt is empty"),
    ("owner", {"prompt": "x" * 300_000}, UsageError, "256 KiB"),
]


@pytest.mark.parametrize(("who", "wanted", "error", "told"), WRONG)
async def test_an_order_that_cannot_be_is_refused_with_a_remedy_before_anything_is_kept(
    harness: JobHarness, who: str, wanted: dict[str, Any], error: type[ToolcribError], told: str
) -> None:
    async with harness.open() as desk:
        callers = {"owner": OWNER, "client": CLIENT, "agent": await agent(desk, "a", workdir=harness.root)}
        with pytest.raises(error, match=told) as raised:
            await desk.submit(callers[who], harness.root, SubmitJob(**{"prompt": "p", "max_steps": 3, **wanted}))
        assert raised.value.remedy
        assert (await desk.latest(OWNER, status=None, most=9))[1] == 0


async def test_a_link_out_of_the_folder_is_outside(harness: JobHarness) -> None:
    (harness.root / "out").symlink_to(harness.home)
    async with harness.open() as desk:
        caller = await agent(desk, "a", workdir=harness.root)
        with pytest.raises(Denied, match="not inside"):
            await desk.submit(caller, harness.root, order(workdir="out"))


async def test_agents_choose_among_the_allowed_models_and_the_owner_among_all(harness: JobHarness) -> None:
    async with harness.open() as desk:
        caller = await agent(desk, "a")
        assert (await desk.submit(caller, harness.root, order(model="anthropic:small-1"))).model == "anthropic:small-1"
        assert (await desk.submit(OWNER, harness.root, order(model="openai:dear"))).model == "openai:dear"


async def test_without_a_model_or_with_settings_that_cannot_be_read_nothing_is_taken(harness: JobHarness) -> None:
    async with harness.open(model="") as desk:
        with pytest.raises(ToolcribError) as raised:
            await desk.submit(OWNER, harness.root, order())
        assert raised.value.remedy
    async with harness.open(max_running="many") as desk:
        with pytest.raises(ToolcribError, match="max_running"):
            await desk.submit(OWNER, harness.root, order())


async def test_where_a_key_goes_is_the_configuration_s_word(harness: JobHarness) -> None:
    places = {"base_urls": {"openai": "http://127.0.0.1:9/v1"}, "api_keys": {"openai": "${SMALL_SECRET}"}}
    async with harness.open(**places) as desk:
        row = await desk.submit(OWNER, harness.root, order())
        worker = await harness.begun("do it")
        assert (worker.order["base_url"], worker.order["api_key"]) == ("http://127.0.0.1:9/v1", SECRET)
        worker.done(f"the key is {SECRET}")
        assert (await over(desk, row.id)).text == "the key is ****"


async def test_nothing_is_acknowledged_that_could_not_be_written(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.open() as desk:
        assert desk.crib is not None
        store = desk.crib.services.store

        async def refuse(*_: Any, **__: Any) -> None:
            raise StoreError("The disk is full.", remedy="Make room.")

        with monkeypatch.context() as patched:
            patched.setattr(store, "write", refuse)
            with pytest.raises(StoreError, match="full"):
                await desk.submit(OWNER, harness.root, order())
        assert desk.counts == {"running": 0, "waiting": 0}
        assert harness.leases.idle
        assert not harness.workers


async def test_a_daemon_that_stops_takes_no_more(harness: JobHarness) -> None:
    async with harness.open() as desk:
        harness.leases.close()
        with pytest.raises(DaemonNotRunning):
            await desk.submit(OWNER, harness.root, order())


@pytest.mark.parametrize(
    ("above", "rules", "expected", "shell"),
    [
        ("trusted", (), OwnTools.EDIT, True),
        ("read-only", (), OwnTools.READ, False),
        ("nothing", (), OwnTools.NONE, False),
        ("developer", ((Verdict.DENY, "workspace:write_file"),), OwnTools.READ, True),
        ("developer", ((Verdict.DENY, "workspace:run_shell_safe"),), OwnTools.READ, False),
        ("developer", ((Verdict.ASK, "workspace:*"),), OwnTools.NONE, False),
        ("developer", ((Verdict.DENY, "other:*"),), OwnTools.EDIT, True),
    ],
)
async def test_what_a_childs_program_may_do_by_its_own_hands_is_no_more_than_its_parent_may(
    harness: JobHarness, above: str, rules: tuple[tuple[Verdict, str], ...], expected: OwnTools, *, shell: bool
) -> None:
    async with harness.open() as desk:
        assert desk.crib is not None
        held = [Rule(effect=effect, tools=tools, origin=RuleOrigin.AGENT) for effect, tools in rules]
        await agent(desk, "lead", profile=above, rules=held)
        await agent(desk, "child", parent="lead", profile="developer")
        crib = desk.crib
        limit = own_tools_of(crib, crib.projects.home, crib.services.agents.find("child"), DEFAULTS)
        assert (limit.tools, limit.shell) == (expected, shell)
