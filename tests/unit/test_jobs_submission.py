"""A job never has more permissions than its submitter: its program, own tools, folder, model and secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from parts.job_harness import LIMIT, SECRET, JobHarness
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.run_lifecycle import entered_workdir
from toolcrib.coding_agents.run_preparation import RunRequest
from toolcrib.coding_agents.run_result import OnMcpFailure
from toolcrib.commands.all import registry
from toolcrib.commands.job import SubmitJob
from toolcrib.commands.registry import CommandContext, CommandHost, Via
from toolcrib.commands.run import own_tools_of, settings_in
from toolcrib.config.job_settings import JobSettings
from toolcrib.config.layers import load
from toolcrib.config.model import Config
from toolcrib.config.paths import Paths, project_of
from toolcrib.config.show import mask
from toolcrib.errors import ConfigError, Denied, NotFound, ToolcribError, UsageError
from toolcrib.identity.principal import CLIENT, OWNER, RequestContext
from toolcrib.policy import OwnTools, Rule, RuleOrigin, Verdict
from toolcrib.store.jobs import JobRow
from toolcrib.workspace.settings.model import DEFAULTS

pytestmark = pytest.mark.req("KAI-9")


@pytest.fixture
def harness(tmp_path: Path) -> JobHarness:
    return JobHarness(tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submissions find every coding agent."""
    monkeypatch.setattr("toolcrib.jobs.submission.find_program", lambda *_: None)


@contextlib.asynccontextmanager
async def leased(harness: JobHarness, job: JobRow) -> AsyncIterator[dict[str, Any]]:
    """The lease that the process of a job gets."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    described = {"endpoint": "http://127.0.0.1:1/mcp", "for_runs": False, "pid": 1}
    host = SimpleNamespace(jobs=harness.queue, leases=harness.leases, describe=lambda: described)
    project = await harness.crib.projects.at(project_of(Path(job.workdir)))
    context = CommandContext(
        crib=harness.crib,
        request=RequestContext(OWNER, project),
        host=cast("CommandHost", host),
        via=Via.SOCKET,
        emit=events.put,
    )
    parent = job.submitter if job.submitter_since else ""
    wanted = {"client": job.runs, "conversation": "c1", "profile": job.profile, "workdir": job.workdir, "lives": 60}
    leasing = asyncio.create_task(registry.run("run:lease", {**wanted, "parent": parent, "job": job.id}, context))
    first = asyncio.create_task(events.get())
    try:
        await asyncio.wait({leasing, first}, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
        yield first.result()["lease"] if first.done() else await leasing
    finally:
        for task in (leasing, first):
            task.cancel()
        await asyncio.gather(leasing, first, return_exceptions=True)


async def refuse_lease(harness: JobHarness, job: JobRow, message: str) -> None:
    with pytest.raises(Denied, match=message):
        async with leased(harness, job):
            pass


INVALID: list[tuple[str, dict[str, Any], type[ToolcribError], str]] = [
    ("agent", {"model": "openai:dear"}, Denied, "may not use the model"),
    ("client", {"model": "openai:dear"}, Denied, "may not use the model"),
    ("owner", {"model": "nowhere:x"}, UsageError, "does not start with a known provider"),
    ("owner", {"model": "google:x"}, UsageError, "No API key for google"),
    ("owner", {"model": "openai:x", "runs": "claude"}, UsageError, "takes its model"),
    ("owner", {"runs": "claude"}, NotFound, "not installed"),
    ("agent", {"workdir": "../.."}, Denied, "not inside"),
    ("agent", {"workdir": "/"}, Denied, "not inside"),
    ("agent", {"workdir": "out"}, Denied, "not inside"),
    ("client", {"workdir": "/"}, Denied, "not inside"),
    ("owner", {"workdir": "nowhere"}, UsageError, "is not a folder"),
    ("agent", {"workdir": "app"}, Denied, "in another project"),
    ("client", {"workdir": "app"}, Denied, "in another project"),
    ("client", {"profile": "trusted"}, Denied, "have the profile developer"),
    ("agent", {"profile": "owner"}, UsageError, "can have the profile owner"),
    ("agent", {"profile": "ghost"}, UsageError, "There is no profile"),
    ("owner", {"profile": "owner"}, UsageError, "can have the profile owner"),
    ("owner", {"timeout": 601}, UsageError, "600 s at most"),
    ("owner", {"prompt": " \n"}, UsageError, "prompt is empty"),
    ("owner", {"prompt": "x" * 300_000}, UsageError, "256 KiB"),
]


async def test_an_invalid_submission_is_refused_with_a_remedy_and_not_stored(harness: JobHarness) -> None:
    (harness.root / "out").symlink_to(harness.home)
    (harness.root / "app" / ".toolcrib").mkdir(parents=True)
    (harness.root / "app" / ".toolcrib" / "config.json").write_text("{}")
    async with harness.open() as queue:
        callers = {"owner": OWNER, "client": CLIENT, "agent": await harness.agent(workdir=harness.root)}
        for who, wanted, error, message in INVALID:
            with pytest.raises(error, match=message) as caught:
                await harness.submit(by=callers[who], **wanted)
            assert caught.value.remedy, wanted
        assert (await queue.latest(OWNER, status=None, most=9))[1] == 0
        assert (await harness.submit(workdir="app")).workdir == str(harness.root / "app")


async def test_agents_choose_among_the_allowed_models_and_the_owner_among_all(harness: JobHarness) -> None:
    async with harness.open():
        for caller, model in ((await harness.agent(), "anthropic:small-1"), (OWNER, "openai:dear")):
            assert (await harness.submit(by=caller, model=model)).model == model


async def test_without_a_model_or_with_invalid_settings_no_job_is_accepted(harness: JobHarness) -> None:
    for invalid in ({"max_running": "many"}, {"model": ""}):
        async with harness.open(**invalid):
            with pytest.raises(ConfigError, match=next(iter(invalid))) as raised:
                await harness.submit()
            assert raised.value.remedy
    harness.config = {"jobs": {}}
    async with harness.open():
        for caller, remedy in ((OWNER, "--model"), (CLIENT, "The owner can set")):
            with pytest.raises(UsageError, match="has no model") as caught:
                await harness.submit(by=caller)
            assert remedy in caught.value.remedy


async def test_agents_may_run_only_the_programs_that_the_configuration_names(harness: JobHarness) -> None:
    async with harness.open():
        for program in ("claude", "codex", "gemini"):
            for caller in (await harness.agent(program, profile="trusted", workdir=harness.root), CLIENT):
                with pytest.raises(Denied) as caught:
                    await harness.submit(by=caller, runs=program)
                assert ("`jobs: {programs: " in caught.value.remedy) is (program != "gemini")
            with pytest.raises(NotFound, match="not installed"):
                await harness.submit(runs=program)
        await harness.change_settings(programs=["claude"])
        caller = await harness.agent()
        with pytest.raises(NotFound, match="not installed"):
            await harness.submit(by=caller, runs="claude")
        with pytest.raises(Denied, match="codex"):
            await harness.submit(by=caller, runs="codex")


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
@pytest.mark.usefixtures("installed")
async def test_the_own_tools_of_a_jobs_program_are_limited(
    harness: JobHarness, who: str, program: str, expected: OwnTools
) -> None:
    async with harness.open(programs=["claude", "codex"]):
        # Whether a profile may submit jobs does not matter here.
        rules = (Rule(effect=Verdict.ALLOW, tools="crib:job_*", origin=RuleOrigin.AGENT),)
        callers = {"owner": OWNER, "client": CLIENT}
        caller = callers.get(who) or await harness.agent(profile=who, workdir=harness.root, rules=rules)
        job = await harness.submit(by=caller, runs=program, profile="trusted" if who == "owner" else "")
        await harness.started()
        async with leased(harness, job) as lease:
            assert lease["own_tools"] == expected


@pytest.mark.parametrize(
    ("profile", "rules", "expected", "shell"),
    [
        ("trusted", {}, OwnTools.EDIT, True),
        ("read-only", {}, OwnTools.READ, False),
        ("nothing", {}, OwnTools.NONE, False),
        ("developer", {"workspace:write_file": Verdict.DENY}, OwnTools.READ, True),
        ("developer", {"workspace:run_shell_safe": Verdict.DENY}, OwnTools.READ, False),
        ("developer", {"workspace:*": Verdict.ASK}, OwnTools.NONE, False),
        ("developer", {"other:*": Verdict.DENY}, OwnTools.EDIT, True),
    ],
)
async def test_a_childs_program_gets_no_more_own_tools_than_its_parent_may_use(
    harness: JobHarness, profile: str, rules: dict[str, Verdict], expected: OwnTools, *, shell: bool
) -> None:
    async with harness.open():
        own = [Rule(effect=effect, tools=tools, origin=RuleOrigin.AGENT) for tools, effect in rules.items()]
        await harness.agent("lead", profile=profile, rules=own)
        await harness.agent("child", parent="lead")
        child = harness.crib.services.agents.find("child")
        limit = own_tools_of(harness.crib, harness.crib.projects.home, child, DEFAULTS)
        assert (limit.tools, limit.shell) == (expected, shell)


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
async def test_a_program_gets_no_own_tools_that_its_folder_does_not_offer(
    harness: JobHarness, settings: str, workspace: bool, expected: OwnTools
) -> None:
    """The harness has no sandbox: a read-only workspace then runs nothing at all."""
    harness.config = {"workspace": workspace}
    if settings:
        (harness.root / ".toolcrib").mkdir()
        (harness.root / ".toolcrib" / "workspace.yml").write_text(settings)
    async with harness.open():
        await harness.agent("lead")
        await harness.agent("child", parent="lead", profile="trusted")
        child, held = harness.crib.services.agents.find("child"), await settings_in(harness.crib, harness.root)
        limit = own_tools_of(harness.crib, harness.crib.projects.home, child, held, job_with="claude")
        assert limit.tools is expected


@pytest.mark.parametrize("workdir", [True, False])
async def test_a_folder_that_became_a_link_while_the_job_waited_is_refused(harness: JobHarness, workdir: bool) -> None:
    (harness.home / "private").mkdir()
    async with harness.open():
        caller = await harness.agent(**({"workdir": harness.root} if workdir else {}))
        job = await harness.submit(by=caller, workdir="src")
        await harness.started()
        (harness.root / "src").rmdir()
        (harness.root / "src").symlink_to(harness.home / "private")
        await refuse_lease(harness, job, "is now a link")
        assert [one.name for one in harness.crib.services.agents.agents] == ["a"]


async def test_a_folder_that_became_a_project_while_the_job_waited_is_refused(harness: JobHarness) -> None:
    async with harness.open():
        job = await harness.submit(by=CLIENT, workdir="src")
        await harness.started()
        (harness.root / ".git").mkdir()
        (harness.root / ".git" / "HEAD").touch()
        await refuse_lease(harness, job, "is now in another")


async def test_only_a_running_job_gets_an_agent(harness: JobHarness) -> None:
    async with harness.open(max_running=1):
        caller = await harness.agent()
        first, waits = await harness.submit("first", caller), await harness.submit("second", caller)
        await harness.started("first")
        await refuse_lease(harness, waits, "is running")
        async with leased(harness, first) as lease:
            assert lease["agent"] == "model-c1"


def test_a_jobs_program_starts_in_the_original_folder_even_if_its_path_is_replaced(tmp_path: Path) -> None:
    inside, outside = tmp_path / "sub", tmp_path / "private"
    inside.mkdir()
    outside.mkdir()
    request = RunRequest(
        client=client_named("claude"),
        prompt="p",
        workdir=inside,
        profile="developer",
        timeout=1,
        on_mcp_failure=OnMcpFailure.STOP,
        environ={},
        job="job-1",
    )
    with entered_workdir(request) as folder:
        moved = inside.rename(tmp_path / "moved")
        inside.symlink_to(outside)
        pwd = subprocess.run(["pwd", "-P"], cwd=folder, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert pwd.stdout.strip() == str(moved)
    with pytest.raises(Denied, match="no longer the folder"), entered_workdir(request):
        pass


@pytest.mark.usefixtures("installed")
async def test_a_prompt_that_mentions_a_file_is_refused_for_agents(harness: JobHarness) -> None:
    async with harness.open(programs=["claude"], max_waiting=9):
        caller = await harness.agent()
        for prompt in ("@secret.txt", "what is in @/etc/passwd?", 'see "@x"', "a\n@b", "(@../c)"):
            with pytest.raises(UsageError, match="mentions") as caught:
                await harness.submit(prompt, caller, runs="claude")
            assert "without the @" in caught.value.remedy
            await harness.submit(prompt, runs="claude")
        await harness.submit("write to me@example.com @ noon", caller, runs="claude")


async def test_the_keys_of_jobs_are_masked_and_not_passed_to_programs(harness: JobHarness) -> None:
    harness.config = {"servers": {}}
    async with harness.open(api_keys={"openai": "${SMALL_SECRET}", "google": "literal-key-0123"}):
        assert harness.crib.environment.mask.known(f"{SECRET}, literal-key-0123") == "****, ****"
        job = await harness.submit()
        await harness.started()
        async with leased(harness, job) as lease:
            assert lease["withheld"] == ["SMALL_SECRET"]


def loaded(home: Path, jobs: Any, **environ: str) -> Config:
    environ = {"TOOLCRIB_HOME": str(home), "HOME": str(home), **environ}
    (home / "config.json").write_text(json.dumps({"jobs": jobs}))
    return load(paths=Paths.of_user(environ), root=None, environ=environ)


def test_the_settings_of_jobs_are_loaded_and_keys_are_never_shown(tmp_path: Path) -> None:
    given = {
        "model": "openai:a",
        "models": ["anthropic:*"],
        "programs": ["claude"],
        "base_urls": {"openai": "http://127.0.0.1:1/v1"},
        "api_keys": {"openai": "${KEY}"},
        "max_running": 1,
        "max_waiting": 2,
        "max_per_agent": 3,
        "timeout": 4,
        "max_timeout": 5,
        "keep_days": 6,
    }
    config = loaded(tmp_path, given, KEY=SECRET)
    assert not config.problems
    jobs = config.settings.jobs
    read = {"models": ("anthropic:*",), "programs": ("claude",), "api_keys": {"openai": SECRET}}
    assert jobs == JobSettings(for_agents=True, **{**given, **read})
    assert jobs.spelled == {"openai": "${KEY}"}
    assert [jobs.allows(model) for model in ("openai:a", "anthropic:x", "openai:b")] == [True, True, False]
    shown = mask(config)
    assert SECRET not in json.dumps(shown) + repr(config)
    assert shown["settings"]["jobs"]["base_urls"] == given["base_urls"]


@pytest.mark.parametrize(
    ("jobs", "key"),
    [
        ([], "jobs"),
        ({"model": "gpt"}, "jobs.model"),
        ({"model": 3.5}, "jobs.model"),
        ({"models": "openai:*"}, "jobs.models"),
        ({"programs": ["gemini"]}, "jobs.programs[0]"),
        ({"programs": "claude"}, "jobs.programs"),
        ({"base_urls": {"openai": "ftp://x"}}, "jobs.base_urls.openai"),
        ({"api_keys": {"openai": "${NO_SUCH_KEY}"}}, "jobs.api_keys.openai"),
        ({"max_running": 0}, "jobs.max_running"),
        ({"max_waiting": 1.5}, "jobs.max_waiting"),
        ({"timeout": 10, "max_timeout": 5}, "jobs.timeout"),
        ({"max_runing": 3}, "jobs.max_runing"),
    ],
)
def test_a_mistake_in_the_settings_is_reported_and_makes_all_of_them_invalid(
    tmp_path: Path, jobs: Any, key: str
) -> None:
    config = loaded(tmp_path, jobs)
    assert [problem.key for problem in config.problems] == [key]
    assert config.settings.jobs == JobSettings()
    assert "jobs" in config.unusable, "no job starts with the defaults instead"


def test_a_project_cannot_configure_jobs(tmp_path: Path) -> None:
    (tmp_path / "project" / ".toolcrib").mkdir(parents=True)
    evil = {"jobs": {"base_urls": {"openai": "http://evil.example"}}}
    (tmp_path / "project" / ".toolcrib" / "config.json").write_text(json.dumps(evil))
    environ = {"TOOLCRIB_HOME": str(tmp_path / "t"), "HOME": str(tmp_path)}
    paths = Paths.of_user(environ)
    config = load(paths=paths, root=tmp_path / "project", environ=environ, is_trusted=lambda *_: True)
    assert config.settings.jobs == JobSettings()
    assert [problem.key for problem in config.problems] == ["jobs"]


def test_the_parameters_of_a_submission() -> None:
    assert SubmitJob.model_validate({"prompt": "p", "with": "claude"}).runs == "claude"
    schema = SubmitJob.model_json_schema()
    assert ("with" in schema["properties"], schema["required"]) == (True, ["prompt"])
    for timeout in ("nan", "inf", 0, -1):
        with pytest.raises(ValidationError, match="timeout"):
            SubmitJob.model_validate({"prompt": "p", "timeout": timeout})
