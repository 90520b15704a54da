"""A job may no more than who submitted it: which program, by whose hands, in which folder, with whose secrets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parts.job_harness import LIMIT, SECRET, JobHarness, agent, order
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.run_lifecycle import entered_workdir
from toolcrib.coding_agents.run_preparation import RunRequest
from toolcrib.coding_agents.run_result import OnMcpFailure
from toolcrib.commands.all import registry
from toolcrib.commands.registry import CommandContext, CommandHost, Via
from toolcrib.commands.run import own_tools_of, settings_in
from toolcrib.config.paths import project_of
from toolcrib.errors import Denied, NotFound, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, RequestContext
from toolcrib.jobs.queue import JobQueue
from toolcrib.policy import OwnTools, Rule, RuleOrigin, Verdict
from toolcrib.store.jobs import JobRow

pytestmark = pytest.mark.req("KAI-9")


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return JobHarness(tmp_path)


@contextlib.asynccontextmanager
async def lent(harness: JobHarness, desk: JobQueue, row: JobRow) -> AsyncIterator[dict[str, Any]]:
    """What the process of a job is told when it asks for its agent."""
    assert desk.crib is not None
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    described = {"endpoint": "http://127.0.0.1:1/mcp", "for_runs": False, "pid": 1}
    host = SimpleNamespace(jobs=desk, leases=harness.leases, describe=lambda: described)
    context = CommandContext(
        crib=desk.crib,
        request=RequestContext(OWNER, await desk.crib.projects.at(project_of(Path(row.workdir)))),
        host=cast("CommandHost", host),
        via=Via.SOCKET,
        emit=told.put,
    )
    wanted = {
        "client": row.runs,
        "conversation": "c1",
        "profile": row.profile,
        "workdir": row.workdir,
        "lives": 60,
        "parent": row.submitter if row.submitter_since else "",
        "job": row.id,
    }
    asking = asyncio.create_task(registry.run("run:lease", wanted, context))
    first = asyncio.create_task(told.get())
    try:
        await asyncio.wait({asking, first}, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
        yield first.result()["lease"] if first.done() else await asking
    finally:
        for task in (asking, first):
            task.cancel()
        await asyncio.gather(asking, first, return_exceptions=True)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a submission looks."""
    monkeypatch.setattr("toolcrib.jobs.submission.find_program", lambda *_: None)


@pytest.mark.parametrize("program", ["claude", "codex", "gemini"])
async def test_agents_may_have_a_program_run_only_where_the_person_named_it(harness: JobHarness, program: str) -> None:
    async with harness.open() as desk:
        for who in (await agent(desk, "a", profile="trusted", workdir=harness.root), CLIENT):
            with pytest.raises(Denied) as raised:
                await desk.submit(who, harness.root, order(runs=program))
            assert ("`jobs: {programs: " in raised.value.remedy) is (program != "gemini")
        with pytest.raises(NotFound, match="not installed"):
            await desk.submit(OWNER, harness.root, order(runs=program))


async def test_a_program_that_was_named_is_taken(harness: JobHarness) -> None:
    async with harness.open(programs=["claude"]) as desk:
        who = await agent(desk, "a")
        with pytest.raises(NotFound, match="not installed"):
            await desk.submit(who, harness.root, order(runs="claude"))
        with pytest.raises(Denied, match="codex"):
            await desk.submit(who, harness.root, order(runs="codex"))


@pytest.mark.parametrize(
    ("who", "program", "expected"),
    [
        ("trusted", "claude", OwnTools.EDIT),
        ("developer", "claude", OwnTools.EDIT),
        ("read-only", "claude", OwnTools.READ),
        ("trusted", "codex", OwnTools.NONE),
        ("client", "claude", OwnTools.EDIT),
        ("client", "codex", OwnTools.NONE),
        ("owner", "claude", OwnTools.ALL),
        ("owner", "codex", OwnTools.ALL),
    ],
)
async def test_by_its_own_hands_a_job_s_program_does_only_what_it_keeps_to_its_folder(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch, who: str, program: str, expected: OwnTools
) -> None:
    install(monkeypatch)
    async with harness.open(programs=["claude", "codex"]) as desk:
        callers = {"owner": OWNER, "client": CLIENT}
        # A profile may submit or not; what it may by hand is another matter.
        rules = (Rule(effect=Verdict.ALLOW, tools="crib:job_*", origin=RuleOrigin.AGENT),)
        caller = callers.get(who) or await agent(desk, "a", profile=who, workdir=harness.root, rules=rules)
        profile = "trusted" if who == "owner" else ""
        row = await desk.submit(caller, harness.root, order(runs=program, profile=profile))
        await harness.begun("do it")
        async with lent(harness, desk, row) as lease:
            assert lease["own_tools"] == expected


@pytest.mark.parametrize(
    ("settings", "workspace", "expected"),
    [
        ("", True, OwnTools.EDIT),
        ("", False, OwnTools.NONE),
        ("read_only: true\n", True, OwnTools.NONE),
        ("read_only: [\n", True, OwnTools.NONE),
        ("tools: {write_file: false}\n", True, OwnTools.READ),
        ("tools: {read_file: false}\n", True, OwnTools.NONE),
        ("hidden: [secret.txt]\n", True, OwnTools.NONE),
    ],
)
async def test_what_the_folder_does_not_offer_no_program_does_by_its_own_hands(
    harness: JobHarness, settings: str, workspace: bool, expected: OwnTools
) -> None:
    """The desk's crib has no sandbox: a workspace that is read-only then runs nothing at all."""
    harness.config = {"workspace": workspace}
    if settings:
        (harness.root / ".toolcrib").mkdir()
        (harness.root / ".toolcrib" / "workspace.yml").write_text(settings)
    async with harness.open() as desk:
        assert desk.crib is not None
        await agent(desk, "lead")
        await agent(desk, "child", parent="lead", profile="trusted")
        crib = desk.crib
        held = await settings_in(crib, harness.root)
        assert (
            own_tools_of(crib, crib.projects.home, crib.services.agents.find("child"), held, job_with="claude").tools
            is expected
        )


@pytest.mark.parametrize("workdir", [True, False])
async def test_a_folder_that_became_a_link_while_the_job_waited_is_refused(harness: JobHarness, workdir: bool) -> None:
    outside = harness.home / "private"
    outside.mkdir()
    async with harness.open() as desk:
        assert desk.crib is not None
        caller = await agent(desk, "a", **({"workdir": harness.root} if workdir else {}))
        row = await desk.submit(caller, harness.root, order(workdir="src"))
        await harness.begun("do it")
        (harness.root / "src").rmdir()
        (harness.root / "src").symlink_to(outside)
        with pytest.raises(Denied, match="is now a link"):
            async with lent(harness, desk, row):
                pass
        assert [one.name for one in desk.crib.services.agents.agents] == ["a"]


async def test_only_a_job_that_runs_is_lent_an_agent(harness: JobHarness) -> None:
    async with harness.open(max_running=1) as desk:
        caller = await agent(desk, "a")
        first = await desk.submit(caller, harness.root, order("first"))
        waits = await desk.submit(caller, harness.root, order("second"))
        await harness.begun("first")
        with pytest.raises(Denied, match="is running"):
            async with lent(harness, desk, waits):
                pass
        async with lent(harness, desk, first) as lease:
            assert lease["agent"] == "model-c1"


def test_a_job_s_program_starts_in_the_folder_itself_whatever_stands_at_its_path(tmp_path: Path) -> None:
    inside, outside = tmp_path / "sub", tmp_path / "private"
    inside.mkdir()
    outside.mkdir()
    wanted = RunRequest(
        client=client_named("claude"),
        prompt="p",
        workdir=inside,
        profile="developer",
        timeout=1,
        on_mcp_failure=OnMcpFailure.STOP,
        environ={},
        job="job-1",
    )
    with entered_workdir(wanted) as folder:
        moved = inside.rename(tmp_path / "moved")
        inside.symlink_to(outside)
        told = subprocess.run(["pwd", "-P"], cwd=folder, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert told.stdout.strip() == str(moved)
    with pytest.raises(Denied, match="no longer the folder"), entered_workdir(wanted):
        pass


@pytest.mark.parametrize("prompt", ["@secret.txt", "what is in @/etc/passwd?", 'see "@x"', "a\n@b", "(@../c)"])
async def test_a_file_is_not_read_by_being_mentioned(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    install(monkeypatch)
    async with harness.open(programs=["claude"]) as desk:
        who = await agent(desk, "a")
        with pytest.raises(UsageError, match="mentions") as raised:
            await desk.submit(who, harness.root, order(prompt, runs="claude"))
        assert "without the @" in raised.value.remedy
        await desk.submit(OWNER, harness.root, order(prompt, runs="claude"))
        await desk.submit(who, harness.root, order("write to me@example.com @ noon", runs="claude"))


async def test_a_job_stays_in_its_submitter_s_project(harness: JobHarness) -> None:
    (harness.root / "app" / ".toolcrib").mkdir(parents=True)
    (harness.root / "app" / ".toolcrib" / "config.json").write_text("{}")
    async with harness.open() as desk:
        for who in (await agent(desk, "a", workdir=harness.root), CLIENT):
            with pytest.raises(Denied, match="in another project"):
                await desk.submit(who, harness.root, order(workdir="app"))
        assert (await desk.submit(OWNER, harness.root, order(workdir="app"))).workdir == str(harness.root / "app")


async def test_a_folder_that_became_a_project_while_the_job_waited_is_refused(harness: JobHarness) -> None:
    async with harness.open() as desk:
        row = await desk.submit(CLIENT, harness.root, order(workdir="src"))
        await harness.begun("do it")
        (harness.root / ".git").mkdir()
        (harness.root / ".git" / "HEAD").touch()
        with pytest.raises(Denied, match="is now in another"):
            async with lent(harness, desk, row):
                pass


async def test_the_keys_of_jobs_are_known_as_secrets_and_withheld_from_programs(harness: JobHarness) -> None:
    harness.config = {"servers": {}}
    async with harness.open(api_keys={"openai": "${SMALL_SECRET}", "google": "literal-key-0123"}) as desk:
        assert desk.crib is not None
        assert desk.crib.environment.mask.known(f"{SECRET}, literal-key-0123") == "****, ****"
        row = await desk.submit(OWNER, harness.root, order())
        await harness.begun("do it")
        async with lent(harness, desk, row) as lease:
            assert lease["withheld"] == ["SMALL_SECRET"]
