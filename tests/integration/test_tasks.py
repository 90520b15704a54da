"""Tasks in both forms: clients of both eras, servers of both eras, over stdio and HTTP.

One daemon connects every server. The clients write their own bytes; the servers record what they receive.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import Owner
from parts.asked_clients import EVERYTHING, AskedClient, Json, Turn
from parts.daemon import Daemon, Home, StartDaemon, run_cli
from parts.raw_client import legacy_request, notice, request
from parts.server_process import StartServer, stdio_command, stdio_entry
from parts.waiting import wait_for
from toolcrib import Kit, StdioServer

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-9")]

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
KNOWING: dict[str, Json] = {
    "legacy": EVERYTHING,
    "modern": {**EVERYTHING, "extensions": {EXTENSION: {}}},
}
SERVERS = {
    "stdio_modern": ("task_server", "stdio"),
    "http_modern": ("task_server", "http"),
    "stdio_legacy": ("sdk_v1_tasks", "stdio"),
    "http_legacy": ("sdk_v1_tasks", "http"),
}
MODERN, LEGACY = ("stdio_modern", "http_modern"), ("stdio_legacy", "http_legacy")
ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Scene:
    daemon: Daemon
    owner: Owner
    home: Home
    clients: dict[str, AskedClient]
    seen_files: dict[str, Path]

    def seen(self, server: str, method: str, text: str = "") -> list[Json]:
        file = self.seen_files[server]
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line.get("method") == method and text in json.dumps(line)]

    def client(self, name: str, era: str, capabilities: Json) -> AskedClient:
        token = self.owner.add(name, profile="developer", workdir=str(self.home.project))
        return AskedClient.at_endpoint(self.daemon, era, token, capabilities)


@pytest.fixture(scope="module")
def scene(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Iterator[Scene]:
    parts("mcp-v1")
    seen_files = {name: shared_home.path / f"{name}.seen" for name in SERVERS}
    servers: Json = {}
    for name, (program, transport) in SERVERS.items():
        flags = ["--seen", str(seen_files[name])]
        if transport == "stdio":
            servers[name] = stdio_entry(program, *flags)
        else:
            running = start_shared_server([*stdio_command(program, *flags), "--transport", "http"])
            servers[name] = {"url": running.url("http"), "transport": "http"}
    servers["brief"] = {**servers["stdio_legacy"], "call_timeout": 0.5}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    owner = Owner(daemon)
    found = Scene(daemon=daemon, owner=owner, home=shared_home, clients={}, seen_files=seen_files)
    for era, capabilities in KNOWING.items():
        found.clients[era] = found.client(f"knows-{era}", era, capabilities)
        found.clients[f"{era}_plain"] = found.client(f"plain-{era}", era, EVERYTHING)
    yield found
    for client in found.clients.values():
        client.line.close()


def create(client: AskedClient, tool: str, arguments: Json, **task: Any) -> Json:
    """Calls a tool as a task; a legacy client says so."""
    params = {"name": tool, "arguments": arguments} | ({"task": task} if client.era == "legacy" else {})
    result = client.ask("tools/call", params).result
    if client.era == "legacy":
        return dict(result["task"])
    assert result["resultType"] == "task", result
    return result


def look(client: AskedClient, task: Json) -> Json:
    return client.ask("tasks/get", {"taskId": task["taskId"]}).result


def until(client: AskedClient, task: Json, *statuses: str) -> Json:
    states: list[Json] = []
    wait_for(lambda: states.append(look(client, task)) or states[-1]["status"] in statuses, "the task's next status")
    return states[-1]


def ended(client: AskedClient, task: Json) -> Turn:
    """The end of a task: its result, as `tasks/result` or the state has it."""
    if client.era == "legacy":
        return client.ask("tasks/result", {"taskId": task["taskId"]})
    state = until(client, task, *ENDED)
    return Turn(asked={}, message={key: state[key] for key in ("result", "error") if key in state})


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("era", KNOWING)
def test_a_task_is_created_watched_and_fetched(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[era]
    modern = server in MODERN
    arguments = {"looks": 1} if modern else {"messages": ["halfway"]}
    tool = f"{server}_{'steps' if modern else 'later'}"

    task = create(client, tool, arguments, ttl=30_000)
    assert task["status"] == "working"
    assert "secret" not in json.dumps(task)
    limits = ("ttl", "pollInterval") if era == "legacy" else ("ttlMs", "pollIntervalMs")
    assert set(limits) <= task.keys()
    assert not {"ttl", "pollInterval", "ttlMs", "pollIntervalMs"} - set(limits) & task.keys()
    assert task["createdAt"]
    state = look(client, task)
    assert (state["taskId"], state["status"] in (*ENDED, "working")) == (task["taskId"], True)
    result = ended(client, task).result

    assert "done" in result["content"][0]["text"]
    related = result.get("_meta", {}).get(RELATED)
    assert related == ({"taskId": task["taskId"]} if era == "legacy" else None)
    if not modern:
        assert result["structuredContent"]["messages"] == ["halfway"]
        assert result["_meta"]["vendor"] == 1


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("era", KNOWING)
def test_a_call_of_a_client_without_tasks_waits_for_the_result(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[f"{era}_plain"]
    modern, before = server in MODERN, len(scene.owner.audit(agent=f"plain-{era}"))
    arguments = {"looks": 2} if modern else {"messages": ["one", "two"]}
    tool = f"{server}_{'steps' if modern else 'later'}"
    params = {"name": tool, "arguments": arguments}
    client.meta["progressToken"] = "p1"

    turn = client.ask("tools/call", params if era == "modern" else {**params, "_meta": {"progressToken": "p1"}})

    assert "done" in turn.result["content"][0]["text"]
    assert RELATED not in json.dumps(turn.result)
    if modern:
        told = [one["params"]["message"] for one in client.received if one.get("method") == "notifications/progress"]
        assert "2 to go." in told
    else:
        # Over HTTP it comes on a stream of its own, which the server may open too late.
        told = [one["params"] for one in client.received if one.get("method") == "notifications/progress"]
        assert server == "http_legacy" or ("Counting.", 7, 9) in [
            (one.get("message"), one["progress"], one.get("total")) for one in told
        ]
    rows = scene.owner.audit(agent=f"plain-{era}")[before:]
    assert [(row["kind"], row["outcome"]) for row in rows] == [("intent", ""), ("outcome", "ok")]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("era", [*KNOWING, "legacy_plain", "modern_plain"])
def test_a_task_asks_and_gets_the_answer(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[era]
    modern, knows = server in MODERN, "plain" not in era
    tool = f"{server}_{'steps' if modern else 'later'}"
    arguments: Json = {"asks": ["colour"]} if modern else {"question": "colour"}
    agent = f"knows-{era}" if knows else f"plain-{era.removesuffix('_plain')}"
    before = len(scene.owner.audit(agent=agent))
    accepted = {"action": "accept", "content": {"colour": "green"}}

    if not knows:
        turn = client.call(tool, arguments)
        task: Json = {}
    else:
        task = create(client, tool, arguments)
        state = until(client, task, "input_required")
        assert state["taskId"] == task["taskId"]
        if client.era == "legacy":
            turn = client.ask("tasks/result", {"taskId": task["taskId"]})
        else:
            turn = Turn(asked={}, questions=state["inputRequests"])
    (question,) = turn.questions.values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == f"Server '{server}' asks: Which colour?"
    related = question["params"].get("_meta", {}).get(RELATED)
    assert related == ({"taskId": task["taskId"]} if era == "legacy" else None)
    if era == "modern":
        answers = dict.fromkeys(turn.questions, accepted)
        update = client.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": answers})
        assert update.result["resultType"] == "complete"
        turn = ended(client, task)
    else:
        turn = client.answer(turn, lambda _: accepted)

    assert "green" in json.dumps(turn.result)
    if not modern:
        assert scene.seen(server, "answered")[-1]["answer"] == accepted
    rows = scene.owner.audit(agent=agent)[before:]
    assert [row["outcome"] for row in rows if row["kind"] == "question"] == ["accept"]
    assert "green" not in json.dumps([row for row in rows if row["kind"] == "question"])


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("era", KNOWING)
def test_a_task_is_cancelled_once(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[era]
    modern = server in MODERN
    tool, arguments = ("steps", {"looks": 9999}) if modern else ("later", {"stays": True})
    task = create(client, f"{server}_{tool}", arguments)

    result = client.ask("tasks/cancel", {"taskId": task["taskId"]}).result

    if era == "legacy":
        assert (result["taskId"], result["status"]) == (task["taskId"], "cancelled")
        assert client.ask("tasks/cancel", {"taskId": task["taskId"]}).error["code"] == -32602
    else:
        assert (result["resultType"], "taskId" in result, "status" in result) == ("complete", False, False)
        assert client.ask("tasks/cancel", {"taskId": task["taskId"]}).result["resultType"] == "complete"
    assert until(client, task, *ENDED)["status"] == "cancelled"
    assert scene.seen(server, "tasks/cancel")


def test_what_a_task_asks_is_settled_once_however_often_it_is_looked_at(scene: Scene) -> None:
    client = scene.client("sparing", "modern", {"extensions": {EXTENSION: {}}})
    task = create(client, "http_modern_steps", {"asks": ["colour"]})
    result = ended(client, task).result
    assert json.loads(result["content"][0]["text"].partition(": ")[2])["colour"] == {"action": "cancel"}
    rows = scene.owner.audit(agent="sparing")
    assert [row["outcome"] for row in rows if row["kind"] == "question"] == ["nobody could be asked"]
    client.line.close()

    client = scene.clients["modern"]
    task = create(client, "http_modern_multi_input", {})
    first, again = look(client, task), look(client, task)
    assert first["inputRequests"].keys() == {"first", "second"}
    assert first == again
    for key in ("first", "second"):
        answers = {key: {"action": "accept", "content": {key: "x"}}}
        client.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": answers})
    assert ended(client, task).result["content"]


def test_a_task_that_outlasts_the_servers_time_limit_goes_on(scene: Scene) -> None:
    client = scene.clients["modern"]
    task = create(client, "brief_later", {"question": "colour", "stays": True})
    state = until(client, task, "input_required")
    answers = {key: {"action": "accept", "content": {"colour": "red"}} for key in state["inputRequests"]}
    client.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": answers})
    until(client, task, "working")
    over = time.monotonic() + 1.5
    while time.monotonic() < over:
        assert look(client, task)["status"] == "working"
    client.ask("tasks/cancel", {"taskId": task["taskId"]})
    until(client, task, "cancelled")


def test_only_the_agent_of_a_task_can_use_it(scene: Scene) -> None:
    modern, legacy = scene.clients["modern"], scene.clients["legacy"]
    task = create(modern, "http_modern_steps", {"looks": 9999})
    before = len(scene.seen("http_modern", "tasks/get"))

    for client, method in ((legacy, "tasks/get"), (legacy, "tasks/result"), (legacy, "tasks/cancel")):
        assert client.ask(method, {"taskId": task["taskId"]}).error["code"] == -32602
    for id in ("secret-1", "nonsense", task["taskId"][:-2] + "AA"):
        assert modern.ask("tasks/get", {"taskId": id}).error["code"] == -32602
    assert task["taskId"] not in json.dumps(legacy.ask("tasks/list", {}).result)
    assert len(scene.seen("http_modern", "tasks/get")) == before


def test_each_generation_has_only_its_own_requests(scene: Scene) -> None:
    modern, legacy, plain = scene.clients["modern"], scene.clients["legacy"], scene.clients["modern_plain"]
    for method in ("tasks/result", "tasks/list"):
        assert modern.ask(method, {"taskId": "x"} if method == "tasks/result" else {}).error["code"] == -32601
    assert legacy.ask("tasks/update", {"taskId": "x", "inputResponses": {}}).error["code"] == -32601
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        error = plain.ask(method, {"taskId": "x"}).error
        assert (error["code"], error["data"]["requiredCapabilities"]) == (-32021, {"extensions": {EXTENSION: {}}})
    capabilities = modern.ask("server/discover", {}).result["capabilities"]
    assert EXTENSION in capabilities["extensions"]
    assert "tasks" not in capabilities


def test_a_server_of_the_same_generation_is_passed_on_unchanged(scene: Scene) -> None:
    modern, legacy = scene.clients["modern"], scene.clients["legacy"]
    task = create(modern, "stdio_modern_steps", {"looks": 1, "ttl": None, "poll": 70})
    assert (task["vendor"], task["ttlMs"], task["pollIntervalMs"]) == ({"kept": [1, 2.5]}, None, 70)
    assert look(modern, task)["vendor"] == {"kept": [1, 2.5]}

    params = {"name": "http_legacy_maybe", "arguments": {}, "task": {"ttl": 40_000}}
    created = legacy.ask("tools/call", params).result

    assert created["_meta"]["io.modelcontextprotocol/model-immediate-response"] == "It runs."
    assert scene.seen("http_legacy", "tools/call")[-1]["task"] == {"ttl": 40_000}
    listed = legacy.ask("tasks/list", {}).result["tasks"]
    assert created["task"]["taskId"] in [one["taskId"] for one in listed]


def test_only_tools_that_can_be_tasks_become_tasks(scene: Scene) -> None:
    modern, legacy = scene.clients["modern"], scene.clients["legacy"]
    refused = legacy.ask("tools/call", {"name": "http_legacy_plain", "arguments": {}, "task": {}})
    assert refused.error["code"] == -32601
    assert modern.ask("tools/call", {"name": "http_legacy_plain", "arguments": {}}).result["resultType"] == "complete"
    assert create(modern, "http_legacy_maybe", {})["resultType"] == "task"
    assert legacy.ask("tools/call", {"name": "http_legacy_maybe", "arguments": {}}).result["content"]
    hinted = {"name": "http_modern_greet", "arguments": {"name": "you"}, "task": {"ttl": 1}}
    assert modern.ask("tools/call", hinted).result["content"][0]["text"] == "Hello, you!"
    # A legacy client that asks for a task gets one, also from a server that has finished at once.
    own = legacy.ask("tools/call", hinted).result["task"]
    assert (own["status"], look(legacy, own)["status"]) == ("completed", "completed")
    assert ended(legacy, own).result["content"][0]["text"] == "Hello, you!"
    assert legacy.ask("tasks/cancel", {"taskId": own["taskId"]}).error["code"] == -32602
    listed = {tool["name"]: tool for tool in legacy.ask("tools/list", {}).result["tools"]}
    assert listed["http_legacy_later"]["execution"] == {"taskSupport": "optional"}
    assert listed["http_legacy_plain"]["execution"] == {"taskSupport": "forbidden"}


@pytest.mark.parametrize("server", ["http_modern", "http_legacy"])
@pytest.mark.parametrize("era", KNOWING)
def test_failures_have_the_form_of_the_clients_generation(scene: Scene, era: str, server: str) -> None:
    client = scene.clients[era]
    if server == "http_modern":
        task = create(client, "http_modern_failing_job", {})
        assert ended(client, task).result["isError"] is True
        task = create(client, "http_modern_protocol_error_job", {})
        assert ended(client, task).error == {"code": -32603, "message": "It broke."}
    else:
        task = create(client, "http_legacy_later", {"fails": "no paper"})
    state = until(client, task, *ENDED)
    assert state["status"] == "failed"
    if era == "modern":
        assert state["error"]["message"] in ("It broke.", "no paper")


def test_a_waiting_call_says_how_a_task_ended_without_a_result(scene: Scene) -> None:
    client = scene.clients["legacy_plain"]
    result = client.call("http_legacy_later", {"fails": "no paper"}).result
    assert (result["isError"], "no paper" in result["content"][0]["text"]) == (True, True)
    assert client.call("http_modern_protocol_error_job", {}).result["content"][0]["text"].endswith("at once")
    assert client.call("http_modern_failing_job", {}).result["isError"] is True


def test_a_permission_that_is_withdrawn_ends_the_use_of_a_task(scene: Scene) -> None:
    client = scene.client("fickle", "modern", KNOWING["modern"])
    task = create(client, "http_modern_steps", {"looks": 9999})
    assert look(client, task)["status"] == "working"
    scene.owner.deny("fickle", "http_modern:steps")
    before = len(scene.seen("http_modern", "tasks/get"))
    assert "error" in client.ask("tasks/get", {"taskId": task["taskId"]}).message
    assert len(scene.seen("http_modern", "tasks/get")) == before
    client.line.close()


def test_the_audit_log_has_the_requests_about_a_task(scene: Scene) -> None:
    client = scene.client("watched", "modern", KNOWING["modern"])
    task = create(client, "http_modern_steps", {"looks": 2})
    ended(client, task)
    client.ask("tasks/cancel", {"taskId": task["taskId"]})
    client.line.close()

    rows = [row for row in scene.owner.audit(agent="watched") if row["kind"] != "change"]
    about = [(row["kind"], row["outcome"], (row["detail"] or {}).get("method")) for row in rows]
    assert about == [
        ("intent", "", None),
        ("outcome", "task", None),
        ("outcome", "ok", "tasks/get"),
        ("intent", "", "tasks/cancel"),
        ("outcome", "ok", "tasks/cancel"),
    ]
    assert len({(row["detail"] or {}).get("task") for row in rows[1:]}) == 1
    assert "secret-" not in json.dumps(rows)
    assert "tasks/cancel for the task " in run_cli(scene.home, "audit", "--agent", "watched").out


def test_tasks_are_listed_and_cancelled_by_the_owner(scene: Scene) -> None:
    cli = partial(run_cli, scene.home)
    client = scene.client("lister", "legacy", KNOWING["legacy"])
    create(client, "stdio_legacy_later", {"stays": True, "messages": ["nearly"]})
    (row,) = [one for one in cli("tasks", "--json").json["tasks"] if one["agent"] == "lister"]
    assert (row["tool"], row["status"]) == ("stdio_legacy:later", "working")

    assert "stdio_legacy:later of lister" in cli("tasks", "cancel", row["id"]).err

    assert scene.seen("stdio_legacy", "tasks/cancel")
    changes = [one for one in scene.owner.audit(agent="lister") if one["outcome"] == "task cancelled"]
    assert [(one["kind"], one["detail"]["task"]) for one in changes] == [("change", row["id"])]
    assert "cancelled" in next(line for line in cli("tasks").out.splitlines() if "lister" in line)
    assert cli("tasks", "cancel", row["id"]).exit_code == 2
    client.line.close()


def working(scene: Scene, agent: str) -> list[str]:
    """The tools whose tasks the agent waits for."""
    tasks = scene.owner.say("task:list")["tasks"]
    return [one["tool"] for one in tasks if (one["agent"], one["status"]) == (agent, "working")]


@pytest.mark.parametrize("way", ["leaves", "cancels"])
def test_leaving_a_call_cancels_the_task_that_it_waits_for(scene: Scene, way: str) -> None:
    era = "modern" if way == "leaves" else "legacy"
    client = scene.clients[f"{era}_plain"]
    before = {server: len(scene.seen(server, "tasks/cancel")) for server in SERVERS}
    for server in SERVERS:
        tool, arguments = ("steps", {"looks": 9999}) if server in MODERN else ("later", {"stays": True})
        params = {"name": f"{server}_{tool}", "arguments": arguments}
        modern = era == "modern"
        body = (
            request("tools/call", params, id=0, meta=client.meta)
            if modern
            else legacy_request("tools/call", params, id=0)
        )
        client.line.request(body, "tools/call", params)
        name = f"{server}:{tool}"
        wait_for(lambda name=name: name in working(scene, f"plain-{era}"), "the task")
        if modern:
            client.line.close()
        else:
            client.line.reply(notice("notifications/cancelled", {"requestId": 0}))
        wait_for(lambda server=server: len(scene.seen(server, "tasks/cancel")) > before[server], "the cancellation")
        wait_for(lambda name=name: name not in working(scene, f"plain-{era}"), "the list to say so")


def test_a_task_outlives_its_clients_connection(scene: Scene) -> None:
    token = scene.owner.add("returns", profile="developer", workdir=str(scene.home.project))
    tasks = {}
    for server in SERVERS:
        with AskedClient.at_endpoint(scene.daemon, "legacy", token, EVERYTHING) as first:
            tool, arguments = ("steps", {"looks": 3}) if server in MODERN else ("later", {})
            tasks[server] = create(first, f"{server}_{tool}", arguments)
    for era, task in zip(KNOWING, tasks.values(), strict=False):
        with AskedClient.at_endpoint(scene.daemon, era, token, KNOWING[era]) as second:
            assert "done" in ended(second, task).result["content"][0]["text"]
    with AskedClient.through_bridge(scene.daemon, "legacy", "returns") as third:
        for task in tasks.values():
            assert "done" in ended(third, task).result["content"][0]["text"]


def tasks(daemon: Daemon) -> list[dict[str, Any]]:
    return list(daemon.command("task:list")["tasks"])


@pytest.mark.parametrize("era", KNOWING)
def test_a_tool_of_the_npm_server_that_runs_only_as_a_task_can_be_called(
    toolcrib_home: Home, daemon: StartDaemon, parts: Callable[[str], list[str]], era: str
) -> None:
    program, *words = parts("everything")
    running = daemon({"servers": {"everything": {"command": program, "args": words}}})
    running.wait_until_ready("everything")
    topic = {"topic": "python", "ambiguous": True}
    with AskedClient.at_endpoint(running, era, capabilities=EVERYTHING) as client:
        turn = client.call("everything_simulate-research-query", topic)
        (question,) = turn.questions.values()
        assert "multiple interpretations" in question["params"]["message"]
        turn = client.finish(turn, lambda _: {"action": "accept", "content": {"interpretation": "snake"}})
        assert "python (snake)" in turn.result["content"][0]["text"]
    if era == "legacy":
        done = run_cli(toolcrib_home, "call", "everything:simulate-research-query", "topic=cats")
        assert "Research Report: cats" in done.out, done.err
        assert done.err.endswith("...\n")
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(run_cli, toolcrib_home, "call", "everything:simulate-research-query", "topic=dogs")
            task = wait_for(lambda: [one for one in tasks(running) if one["status"] == "working"], "the task")[0]
            assert run_cli(toolcrib_home, "tasks", "cancel", task["id"]).exit_code == 0
            assert (called.result().exit_code, "The task was cancelled" in called.result().out) == (10, True)
        assert tasks(running)[-1]["status"] == "cancelled"


async def test_a_program_calls_a_tool_that_runs_only_as_a_task(
    parts: Callable[[str], list[str]], tmp_path: Path
) -> None:
    parts("mcp-v1")
    seen = ["--seen", str(tmp_path / "seen")]
    entries = {"old": stdio_command("sdk_v1_tasks", *seen), "new": stdio_command("task_server", *seen)}
    async with Kit([StdioServer(name, command=words[0], args=words[1:]) for name, words in entries.items()]) as kit:
        assert (await kit.tools().call("later", {"messages": ["so far"]})).structured["messages"] == ["so far"]
        assert "steps done" in (await kit.tools().call("steps", {"looks": 1})).text


def test_a_server_that_dies_during_a_task_ends_the_call(toolcrib_home: Home, daemon: StartDaemon) -> None:
    running = daemon({"servers": {"new": stdio_entry("task_server", "--seen", str(toolcrib_home.path / "seen"))}})
    running.wait_until_ready("new")
    client = AskedClient.at_endpoint(running, "legacy")
    params = {"name": "new_steps", "arguments": {"looks": 9999}}
    client.line.request(legacy_request("tools/call", params, id=0), "tools/call", params)
    wait_for(lambda: running.command("task:list")["tasks"], "the task")
    (row,) = running.command("server:list")["servers"]
    os.kill(row["pid"], signal.SIGKILL)
    message = client.line.read()
    assert message["result"]["isError"] is True
    assert "may have run" in message["result"]["content"][0]["text"]
    client.line.close()


def test_tasks_of_remote_servers_outlive_the_daemon(
    toolcrib_home: Home, daemon: StartDaemon, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server([*stdio_command("task_server", "--seen", str(tmp_path / "seen")), "--transport", "http"])
    config = {"servers": {"new": {"url": server.url("http")}}}
    first = daemon(config)
    first.wait_until_ready("new")
    token = Owner(first).add("patient", profile="developer", workdir=str(toolcrib_home.project))
    with AskedClient.at_endpoint(first, "modern", token, KNOWING["modern"]) as client:
        task = create(client, "new_steps", {"looks": 1})
    assert first.stop() == 0
    second = daemon(config)
    second.wait_until_ready("new")
    assert second.command("task:list")["tasks"] == []
    with AskedClient.at_endpoint(second, "modern", token, KNOWING["modern"]) as client:
        assert "done" in ended(client, task).result["content"][0]["text"]
