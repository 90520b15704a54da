"""Jobs at the real daemon: agents in processes of their own, under the permissions of who submitted them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers, runs
from parts.agent_clients import AgentClient, Owner
from parts.daemon import Cli, Daemon, Home, StartDaemon
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


def config(model: ScriptedModel, **more: Any) -> dict[str, Any]:
    """The person's own: which model jobs ask, where, with which key."""
    jobs = {"model": "openai:worker", "base_urls": {"openai": model.url}, "api_keys": {"openai": "${JOBS_KEY}"}}
    return {"jobs": {**jobs, **more}}


def start(daemon: StartDaemon, model: ScriptedModel, **more: Any) -> Daemon:
    return daemon(config(model, **more), env={"JOBS_KEY": KEY})


def workers(home: Home) -> list[leftovers.Process]:
    here = str(home.path).encode()
    return [one for one in leftovers.living() if "toolcrib.jobs" in one.words and here in one.environ]


def entries(daemon: Daemon, **wanted: str) -> list[dict[str, Any]]:
    found = daemon.command("audit:query", limit=200)["entries"]
    return [one for one in found if all(one[name] == value for name, value in wanted.items())]


async def test_a_heartbeat_submits_a_job_through_mcp_and_fetches_its_result(
    toolcrib_home: Home, daemon: StartDaemon
) -> None:
    (toolcrib_home.project / "report.txt").write_text("profit: 42\n")
    wanted: dict[str, Any] = {"wait": 50}
    told: list[dict[str, Any]] = []

    def remember() -> None:
        """What the heartbeat's model learnt of its job: the only place where it knows the id from."""
        told[:] = [json.loads(text) for text in heartbeat.conversations[-1].results]
        wanted["job"] = told[0]["job"]

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
        options = AgentOptions(
            model="anthropic:heart",
            base_url=heartbeat.url,
            api_key=KEY,
            mcp_servers=[HttpServer("jobs", url=running.endpoint, headers={"Authorization": f"Bearer {token}"})],
        )
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
    assert "submit_job" not in offered, "a job submits none"
    assert "list_jobs" in offered

    [read] = entries(running, tool="workspace:read_file", kind="outcome")
    assert (read["agent"], read["outcome"]) == (submitted["job"], "ok")
    calls = [one["tool"] for one in entries(running, agent="heartbeat", kind="outcome")]
    assert sorted(calls) == ["crib:job_list", "crib:job_result", "crib:job_submit"]
    [added] = entries(running, agent=submitted["job"], outcome="agent added")
    assert added["detail"]["parent"] == "heartbeat"
    assert [agent["name"] for agent in running.command("agent:list")["agents"]] == ["heartbeat"]
    assert not workers(toolcrib_home)


def test_a_job_may_not_do_what_its_submitter_may_not(toolcrib_home: Home, daemon: StartDaemon) -> None:
    with scripted("openai", [Call("read_file", {"path": "a"}), Say("Tried.")]) as model:
        running = start(daemon, model)
        allowed = ("crib:job_*", "workspace:read_file")
        token = Owner(running).add("bounded", *allowed, workdir=str(toolcrib_home.project))
        with AgentClient(running, "bounded", token, "modern") as client:
            assert client.tools() == {"workspace_read_file", *TOOLS}
            told = client.call("submit_job", prompt="look", profile="trusted").result["structuredContent"]
            done = client.call("crib_job_result", job=told["job"], wait=LIMIT).result["structuredContent"]
            refused = client.call("submit_job", prompt="x", model="openai:dear").result
    assert done["status"] == "done", done
    assert {tool.name for tool in model.offered} == {"workspace_read_file", *TOOLS - {"submit_job"}}
    assert refused["isError"] is True
    assert "may not use the model" in refused["content"][0]["text"]


def test_the_tools_of_jobs_go_by_both_names_and_only_to_those_who_may_use_them(daemon: StartDaemon) -> None:
    running = daemon({"jobs": {}})
    owner = Owner(running)
    with AgentClient(running, "r", owner.add("r", profile="read-only"), "modern") as client:
        assert TOOLS & client.tools() == {"list_jobs", "get_job_result"}
        for name in ("list_jobs", "crib_job_list", "mcp_crib_job_list", "crib:job_list"):
            assert client.call(name).result["structuredContent"] == {"jobs": [], "total": 0}
        assert "may not use crib:job_submit" in client.call("submit_job", prompt="p").result["content"][0]["text"]
    with AgentClient(running, "d", owner.add("d", profile="developer"), "legacy") as client:
        assert client.tools() > TOOLS
        refused = client.call("crib_job_submit", prompt="p").result["content"][0]["text"]
        assert "none is configured for jobs" in refused


def test_agents_are_offered_jobs_only_where_the_person_wants_them(daemon: StartDaemon, cli: Cli) -> None:
    running = daemon({})
    with AgentClient(running, "t", Owner(running).add("t", profile="trusted"), "modern") as client:
        assert not TOOLS & client.tools()
        refused = client.call("crib_raw_command", command="job:submit", parameters={"prompt": "p"}).result
        assert "There is no tool" in refused["content"][0]["text"]
    told = cli("job", "submit", "p")
    assert "none is configured for jobs" in told.err


def test_a_job_that_is_cancelled_leaves_no_process(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> None:
    hold = Hold()
    with scripted("openai", [Say("Too late.", hold=hold)]) as model:
        start(daemon, model)
        job = cli("job", "submit", "think", "--json").ok().json["job"]
        wait_for(lambda: model.requests, "the model to be asked", LIMIT)
        assert len(workers(toolcrib_home)) == 1
        assert cli("job", "show", job).ok().out.count("running") == 1
        assert cli("job", "cancel", job).ok().out == f"{job} is cancelled.\n"
        assert not workers(toolcrib_home)
        hold.release()
    told = cli("job", "result", job)
    assert (told.exit_code, told.out) == (10, "")
    assert "It was cancelled by owner." in told.err
    assert cli("job", "list").ok().out.splitlines()[1].split()[:3] == [job, "cancelled", "model"]


def test_a_killed_daemon_takes_its_jobs_along_and_the_next_one_says_so_and_asks_nothing_again(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    hold = Hold()
    with scripted("openai", [Say("Never heard.", hold=hold)]) as model:
        running = start(daemon, model, max_running=1)
        ran = running.command("job:submit", prompt="think")["job"]
        waited = running.command("job:submit", prompt="afterwards")["job"]
        wait_for(lambda: model.requests, "the model to be asked", LIMIT)
        [worker] = workers(toolcrib_home)
        running.kill()
        wait_for(lambda: not workers(toolcrib_home), f"the worker {worker.pid} to end", LIMIT)
        hold.release()
        again = start(daemon, model, max_running=1)
        told = again.command("job:result", job=ran)
        assert (told["status"], told["text"]) == ("interrupted", "")
        assert "not started again" in told["error"]
        assert again.command("job:result", job=waited, wait=LIMIT)["status"] == "done"
    asked = [one.asked[-1] for one in model.conversations]
    assert asked.count("think") == 1
    assert asked.count("afterwards") >= 1


def test_a_daemon_that_is_stopped_ends_its_jobs_in_time(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> None:
    hold = Hold()
    with scripted("openai", [Say("Never heard.", hold=hold)]) as model:
        running = start(daemon, model)
        job = running.command("job:submit", prompt="think")["job"]
        wait_for(lambda: model.requests, "the model to be asked", LIMIT)
        cli("down").ok()
        assert not workers(toolcrib_home)
        hold.release()
        again = start(daemon, model)
        assert again.command("job:result", job=job)["status"] == "interrupted"
        assert again.command("agent:list")["agents"] == []


def test_a_daemon_that_is_stopped_ends_in_time_also_where_its_store_is_locked(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    hold = Hold()
    with scripted("openai", [Say("Never heard.", hold=hold)]) as model:
        running = start(daemon, model)
        job = running.command("job:submit", prompt="think")["job"]
        wait_for(lambda: model.requests, "the model to be asked", LIMIT)
        store = toolcrib_home.toolcrib / "state" / "mcp_sessions.db"
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as other:
            other.execute("begin immediate")
            cli("down").ok()
        assert not workers(toolcrib_home)
        hold.release()
        again = start(daemon, model)
        assert again.command("job:result", job=job)["status"] == "interrupted"
        assert entries(again, outcome="job interrupted")


def test_a_time_limit_that_is_no_number_is_refused_in_words(daemon: StartDaemon, cli: Cli) -> None:
    daemon({})
    told = cli("job", "submit", "p", "--timeout", "nan")
    assert (told.exit_code, told.out) == (2, "")
    assert "nan is not a number of seconds" in told.err


def test_without_a_daemon_jobs_say_how_to_start_one(cli: Cli) -> None:
    for words in (("list",), ("result", "job-1"), ("cancel", "job-1"), ("submit", "do it")):
        told = cli("job", *words)
        assert told.exit_code == 7
        assert "toolcrib up" in told.err


@pytest.mark.slow
def test_a_job_can_be_a_coding_agent_s_run(
    toolcrib_home: Home, daemon: StartDaemon, parts: Callable[[str], list[str]]
) -> None:
    project = toolcrib_home.project
    (project / "report.txt").write_text("profit: 42\n")
    parts("claude")
    person = runs.ALL["claude"]
    steps = [Call("workspace_read_file", {"path": "report.txt"}), Say("It is 42.")]
    with (
        runs.program_user(person, toolcrib_home, project) as user,
        serving(person.agent.provider, steps) as model,
    ):
        user.use(model.url)
        running = daemon({"jobs": {"programs": ["claude"]}}, env=user.environ)
        token = Owner(running).add("lead", profile="developer", workdir=str(project))
        with AgentClient(running, "lead", token, "modern") as client:
            asked = {"prompt": "What is the profit?", "with": "claude"}
            told = client.call("submit_job", **asked).result["structuredContent"]
            done = client.call("get_job_result", job=told["job"], wait=LIMIT).result["structuredContent"]
        assert (done["status"], done["text"]) == ("done", "It is 42."), done
        assert any("profit: 42" in text for one in model.conversations for text in one.results)
        [read] = entries(running, tool="workspace:read_file", kind="outcome")
        assert (read["agent"], read["outcome"]) == (done["agent"], "ok")
        assert done["agent"].startswith("claude-")
        [added] = entries(running, agent=done["agent"], outcome="agent added")
        assert added["detail"]["parent"] == "lead"
        rest = [one.words for one in user.processes() if one.pid != running.pid]
        assert not rest, "when the result is there, nothing of the run is left"


ROOT = Path(__file__).parents[2]
WITH_PROGRAMS = re.findall(
    r"^toolcrib (job submit .* --with \w+ .*)$", (ROOT / "docs/jobs.md").read_text(), re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.parametrize("line", [*WITH_PROGRAMS, "job submit 'Review. @.env' --with claude --workdir ~/src/app"])
def test_the_page_s_job_of_a_coding_agent_runs_as_written_and_reads_no_file_that_a_prompt_names(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli, parts: Callable[[str], list[str]], line: str
) -> None:
    parts("claude")
    person = runs.ALL["claude"]
    with (
        runs.program_user(person, toolcrib_home, toolcrib_home.project) as user,
        serving(person.agent.provider, [], last_words="Done.") as model,
    ):
        user.use(model.url)
        app = user.folder / "src" / "app"
        app.mkdir(parents=True)
        (app / ".env").write_text("SECRET=1234\n")
        daemon({}, env=user.environ)
        words = [str(user.folder / word[2:]) if word.startswith("~/") else word for word in shlex.split(line)]
        job = cli(*words, "--json").ok().json["job"]
        done = cli("job", "result", job, "--wait", "--json").ok().json
        assert (done["status"], done["text"]) == ("done", "Done."), done
        asked = json.dumps(model.bodies)
        assert words[2] in asked
        assert "SECRET=1234" not in asked


def test_the_page_has_a_job_of_a_coding_agent() -> None:
    assert WITH_PROGRAMS
