"""Jobs of the real daemon: agents in their own processes, with at most their submitter's permissions."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers, runs
from parts.agent_clients import AgentClient, Owner, refusal
from parts.daemon import Daemon, Home, StartDaemon
from parts.runs import ProgramUser
from parts.waiting import wait_for
from toolcrib.agent_loop.events import RunFinished
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.run import run_agent
from toolcrib.config.from_code import HttpServer
from toolcrib.testing import Call, Hold, Say, ScriptedModel, scripted
from toolcrib.testing.server import serving

pytestmark = pytest.mark.req("KAI-9")

LIMIT = 60.0
KEY = "sk-test-0123456789abcdef"
TOOLS = {"submit_job", "list_jobs", "get_job_result", "cancel_job"}


def start(daemon: StartDaemon, model: ScriptedModel, **more: Any) -> Daemon:
    jobs = {"model": "openai:worker", "base_urls": {"openai": model.url}, "api_keys": {"openai": "${JOBS_KEY}"}}
    return daemon({"jobs": {**jobs, **more}}, env={"JOBS_KEY": KEY})


def workers(home: Home) -> list[leftovers.Process]:
    here = str(home.path).encode()
    return [one for one in leftovers.living() if "toolcrib.jobs" in one.words and here in one.environ]


def entries(daemon: Daemon, **wanted: str) -> list[dict[str, Any]]:
    found = daemon.command("audit:query", limit=200)["entries"]
    return [one for one in found if all(one[name] == value for name, value in wanted.items())]


async def test_an_agent_submits_a_job_through_mcp_and_fetches_its_result(toolcrib_home, daemon, monkeypatch):
    monkeypatch.setattr("toolcrib.agent_loop.setup.CONNECT_LIMIT", LIMIT)
    (toolcrib_home.project / "report.txt").write_text("profit: 42\n")
    wanted: dict[str, Any] = {"wait": 50}

    def remember() -> None:
        """The model knows the job's id only from the result of its first call."""
        wanted["job"] = json.loads(heartbeat.conversations[-1].results[0])["job"]

    job_steps = [Call("read_file", {"path": "report.txt"}), Say("The profit is 42.")]
    heart_steps = [
        Call("submit_job", {"prompt": "Read report.txt and tell the profit."}),
        Call("list_jobs"),
        Call("get_job_result", wanted, first=remember),
        Say("Reported."),
    ]
    with scripted("openai", job_steps) as job, scripted("anthropic", heart_steps) as heartbeat:
        running = start(daemon, job)
        token = Owner(running).add("heartbeat", "*:*", profile="nothing", workdir=str(toolcrib_home.project))
        headers = {"Authorization": f"Bearer {token}"}
        server = HttpServer("jobs", url=running.endpoint, headers=headers, connect_timeout=LIMIT)
        endpoint = {"base_url": heartbeat.url, "api_key": KEY}
        options = AgentOptions(model="anthropic:heart", mcp_servers=[server], **endpoint)
        events = [event async for event in run_agent("heartbeat", options)]

    assert isinstance(events[-1], RunFinished), events[-1]
    assert events[-1].text == "Reported."
    assert {tool.name for tool in heartbeat.offered} >= TOOLS
    submitted, listed, fetched = [json.loads(text) for text in heartbeat.conversations[-1].results]
    assert submitted["status"] in ("queued", "running")
    assert [one["job"] for one in listed["jobs"]] == [submitted["job"]]
    assert (fetched["status"], fetched["text"], fetched["submitter"]) == ("done", "The profit is 42.", "heartbeat")
    assert fetched["steps"] == 2
    assert fetched["usage"]["output_tokens"] > 0

    assert job.conversations[0].asked[-1] == "Read report.txt and tell the profit."
    assert "profit: 42" in job.conversations[-1].results[0]
    assert job.requests[0].headers["authorization"] == f"Bearer {KEY}"
    offered = {tool.name for tool in job.offered}
    assert "submit_job" not in offered, "a job cannot submit jobs"
    assert "list_jobs" in offered

    [read] = entries(running, tool="workspace:read_file", kind="outcome")
    assert (read["agent"], read["outcome"]) == (submitted["job"], "ok")
    calls = [one["tool"] for one in entries(running, agent="heartbeat", kind="outcome")]
    assert sorted(calls) == ["crib:job_list", "crib:job_result", "crib:job_submit"]
    [added] = entries(running, agent=submitted["job"], outcome="agent added")
    assert added["detail"]["parent"] == "heartbeat"
    assert [agent["name"] for agent in running.command("agent:list")["agents"]] == ["heartbeat"]
    assert not workers(toolcrib_home)


def test_permitted_agents_reach_jobs_by_each_name_and_a_job_has_at_most_its_submitters_permissions(
    toolcrib_home, daemon, cli
):
    with scripted("openai", [Call("read_file", {"path": "a"}), Say("Tried.")]) as model:
        running = start(daemon, model)
        owner = Owner(running)
        with AgentClient(running, "r", owner.add("r", profile="read-only"), "modern") as client:
            assert TOOLS & client.tools() == {"list_jobs", "get_job_result"}
            for name in ("list_jobs", "crib_job_list", "mcp_crib_job_list", "crib:job_list"):
                assert client.call(name).result["structuredContent"] == {"jobs": [], "total": 0}
            assert "may not use crib:job_submit" in refusal(client.call("submit_job", prompt="p"))
        with AgentClient(running, "d", owner.add("d", profile="developer"), "legacy") as client:
            assert client.tools() > TOOLS
        failed = cli("job", "submit", "p", "--timeout", "nan")
        assert (failed.exit_code, failed.out) == (2, "")
        assert "nan is not a number of seconds" in failed.err

        token = owner.add("bounded", "crib:job_*", "workspace:read_file", workdir=str(toolcrib_home.project))
        with AgentClient(running, "bounded", token, "modern") as client:
            assert client.tools() == {"workspace_read_file", "crib_result", *TOOLS}
            job = client.call("submit_job", prompt="look", profile="trusted").result["structuredContent"]["job"]
            done = client.call("crib_job_result", job=job, wait=LIMIT).result["structuredContent"]
            refused = client.call("submit_job", prompt="x", model="openai:dear")
    assert done["status"] == "done", done
    assert {tool.name for tool in model.offered} == {"workspace_read_file", *TOOLS - {"submit_job"}}
    assert "may not use the model" in refusal(refused)


def test_agents_are_not_offered_jobs_unless_they_are_configured(daemon, cli):
    running = daemon({})
    with AgentClient(running, "t", Owner(running).add("t", profile="trusted"), "modern") as client:
        assert not TOOLS & client.tools()
        refused = client.call("crib_raw_command", command="job:submit", parameters={"prompt": "p"})
        assert "There is no tool" in refusal(refused)
    assert "no default model is configured" in cli("job", "submit", "p").err


def test_jobs_end_when_cancelled_or_with_their_daemon_and_the_next_one_does_not_repeat_them(toolcrib_home, daemon, cli):
    hold = Hold()
    with scripted("openai", [Say("Never sent.", hold=hold)] * 4) as model:

        def think(running: Daemon) -> str:
            """A job that waits for its model."""
            before = len(model.requests)
            job: str = running.command("job:submit", prompt="think")["job"]
            wait_for(lambda: len(model.requests) > before, "the model to be asked", LIMIT)
            assert len(workers(toolcrib_home)) == 1
            return job

        first = start(daemon, model, max_running=1)
        cancelled = think(first)
        assert cli("job", "show", cancelled).ok().out.count("running") == 1
        assert cli("job", "cancel", cancelled).ok().out == f"{cancelled} is cancelled.\n"
        assert not workers(toolcrib_home)
        result = cli("job", "result", cancelled)
        assert (result.exit_code, result.out) == (10, "")
        assert "It was cancelled by owner." in result.err
        assert cli("job", "list").ok().out.splitlines()[1].split()[:3] == [cancelled, "cancelled", "model"]

        stopped = think(first)
        cli("down").ok()
        assert not workers(toolcrib_home)
        second = start(daemon, model, max_running=1)
        assert second.command("agent:list")["agents"] == []

        stopped_while_locked = think(second)
        store = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as other:
            other.execute("begin immediate")
            cli("down").ok()
        assert not workers(toolcrib_home)
        third = start(daemon, model, max_running=1)

        killed = think(third)
        waited = third.command("job:submit", prompt="afterwards")["job"]
        third.kill()
        wait_for(lambda: not workers(toolcrib_home), "the worker to end", LIMIT)
        hold.release()
        last = start(daemon, model, max_running=1)
        for job in (stopped, stopped_while_locked, killed):
            result = last.command("job:result", job=job)
            assert (result["status"], result["text"]) == ("interrupted", "")
        assert "does not start again" in result["error"]
        assert last.command("job:result", job=waited, wait=LIMIT)["status"] == "done"
        assert len(entries(last, outcome="job interrupted")) == 3
    asked = [one.asked[-1] for one in model.conversations]
    assert asked.count("think") == 4
    assert asked.count("afterwards") >= 1


def test_without_a_daemon_the_commands_for_jobs_name_the_command_that_starts_one(cli):
    for words in (("list",), ("result", "job-1"), ("cancel", "job-1"), ("submit", "do it")):
        failed = cli("job", *words)
        assert failed.exit_code == 7
        assert "toolcrib up" in failed.err


@pytest.fixture
def claude_user(toolcrib_home: Home, parts: Callable[[str], list[str]]) -> Iterator[ProgramUser]:
    parts("claude")
    with runs.program_user(runs.CLAUDE, toolcrib_home, toolcrib_home.project) as user:
        yield user


@pytest.mark.slow
def test_a_job_can_be_a_coding_agents_run(toolcrib_home, daemon, claude_user):
    (toolcrib_home.project / "report.txt").write_text("profit: 42\n")
    steps = [Call("workspace_read_file", {"path": "report.txt"}), Say("It is 42.")]
    with serving(claude_user.setup.agent.provider, steps) as model:
        claude_user.use(model.url)
        running = daemon({"jobs": {"programs": ["claude"]}}, env=claude_user.environ)
        token = Owner(running).add("lead", profile="developer", workdir=str(toolcrib_home.project))
        with AgentClient(running, "lead", token, "modern") as client:
            asked = {"prompt": "What is the profit?", "with": "claude"}
            job = client.call("submit_job", **asked).result["structuredContent"]["job"]
            done = client.call("get_job_result", job=job, wait=LIMIT).result["structuredContent"]
        assert (done["status"], done["text"]) == ("done", "It is 42."), done
        assert any("profit: 42" in text for one in model.conversations for text in one.results)
        [read] = entries(running, tool="workspace:read_file", kind="outcome")
        assert (read["agent"], read["outcome"]) == (done["agent"], "ok")
        assert done["agent"].startswith("claude-")
        [added] = entries(running, agent=done["agent"], outcome="agent added")
        assert added["detail"]["parent"] == "lead"
        rest = [one.words for one in claude_user.processes() if one.pid != running.pid]
        assert not rest, "the run's processes have ended when there is a result"


ROOT = Path(__file__).parents[2]
WITH_PROGRAMS = re.findall(
    r"^toolcrib (job submit .* --with \w+ .*)$", (ROOT / "docs/jobs.md").read_text(), re.MULTILINE
)


@pytest.mark.slow
def test_the_pages_jobs_of_coding_agents_run_as_written_and_read_no_files_named_in_prompts(daemon, cli, claude_user):
    assert WITH_PROGRAMS
    app = claude_user.folder / "src" / "app"
    app.mkdir(parents=True)
    (app / ".env").write_text("SECRET=1234\n")
    daemon({}, env=claude_user.environ)
    for line in (*WITH_PROGRAMS, "job submit 'Review. @.env' --with claude --workdir ~/src/app"):
        with serving(claude_user.setup.agent.provider, [], last_words="Done.") as model:
            claude_user.use(model.url)
            words = [str(claude_user.folder / word[2:]) if word[:2] == "~/" else word for word in shlex.split(line)]
            job = cli(*words, "--json").ok().json["job"]
            done = cli("job", "result", job, "--wait", "--json").ok().json
        assert (done["status"], done["text"]) == ("done", "Done."), done
        received = json.dumps(model.bodies)
        assert words[2] in received
        assert "SECRET=1234" not in received
