"""Listing modes with a real daemon and real servers: clients of both eras, over HTTP and through `toolcrib stdio`.

Asserts what the servers received, what the audit log has, and the bytes of lists.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts.agent_clients import AgentClient, AgentEndpoint, Owner, all_at_once, refusal
from parts.asked_clients import EVERYTHING, LIMIT, AskedClient, Json
from parts.daemon import PROGRAM, Daemon, Home, StartDaemon, nothing_left_behind, run_cli
from parts.preloaded import Preloaded
from parts.raw_client import INITIALIZE, LEGACY, legacy_request, notice
from parts.recording_server import Notes
from parts.server_process import stdio_entry
from parts.waiting import wait_for
from toolcrib import Crib

__all__ = ["nothing_left_behind"]

pytestmark = [pytest.mark.req("KSI-4"), pytest.mark.slow, pytest.mark.req("KSI-9", "BNS-4")]

ERAS = ("modern", "legacy")
MODES = ("full", "thin", "search")
OWN = ["crib_find", "crib_describe", "crib_call", "crib_batch", "crib_result"]
TASKS = "io.modelcontextprotocol/tasks"
every_era = pytest.mark.parametrize("era", ERAS)


def result_text(result: Json) -> str:
    return "\n".join(block.get("text", "") for block in result["content"])


@dataclass(frozen=True, kw_only=True)
class Scene:
    daemon: Daemon
    owner: Owner
    notes: Notes
    files: Path
    seen: Path

    def agent(self, name: str, era: str, *, listing: str = "", **more: Any) -> AgentClient:
        client = AgentClient(self.daemon, name, self.owner.add(name, **{"profile": "developer", **more}), era)
        if listing:
            client.endpoint.labels = (("X-Toolcrib-Listing", listing),)
        return client

    def asked(self, name: str, era: str, way: str, capabilities: Json = EVERYTHING) -> AskedClient:
        token = self.owner.add(name, profile="developer")
        if way == "bridge":
            return AskedClient.through_bridge(self.daemon, era, name, capabilities)
        return AskedClient.at_endpoint(self.daemon, era, token, capabilities)

    def rows(self, agent: str) -> list[Json]:
        return [row for row in self.owner.audit(agent=agent) if row["kind"] != "change"]

    def received(self, method: str) -> list[Json]:
        """By the server `tasks`."""
        lines = [json.loads(line) for line in self.seen.read_text().splitlines()]
        return [line for line in lines if line.get("method") == method]


@pytest.fixture(scope="module")
def scene(
    shared_home: Home, start_shared_daemon: StartDaemon, parts: Callable[[str], list[str]], tmp_path_factory: Any
) -> Iterator[Scene]:
    notes = Notes(tmp_path_factory.mktemp("notes") / "seen")
    files, seen = shared_home.path / "files", shared_home.path / "tasks.seen"
    files.mkdir()
    words = {
        "everything": parts("everything"),
        "filesystem": [*parts("filesystem"), str(files)],
        "memory": parts("memory"),
    }
    servers: Json = {
        name: {"command": one[0], "args": one[1:], "connect_timeout": LIMIT} for name, one in words.items()
    }
    servers["memory"]["env"] = {"MEMORY_FILE_PATH": str(shared_home.path / "memory.jsonl")}
    servers["w"] = notes.server("note", "burn", reads="look,peek", cache={"peek": 3600})
    servers["brief"] = {**notes.server("note"), "call_timeout": 0.5}
    servers["tasks"] = stdio_entry("task_server", "--seen", str(seen))
    servers["asks"] = stdio_entry("sdk_v2", "--modern-only")
    daemon = start_shared_daemon({"servers": servers, "result_tokens": 1000, "listing": "auto"})
    daemon.wait_until_ready(*servers)
    owner = Owner(daemon)
    owner.say("server:trust", name="w")
    yield Scene(daemon=daemon, owner=owner, notes=notes, files=files, seen=seen)


@every_era
def test_search_mode_finds_describes_and_calls_real_tools(scene: Scene, era: str) -> None:
    name = f"searcher-{era}"
    with scene.agent(name, era, listing="search") as client:
        listed = client.ask("tools/list").result["tools"]
        assert [one["name"] for one in listed] == OWN
        for server in ("everything", "filesystem", "memory", "w", "tasks", "asks"):
            assert f"\n{server} (" in listed[0]["description"]
        hits = result_text(client.call("crib_find", query="write text into a file", server="filesystem").result)
        assert "filesystem_write_file(path: string, content: string)" in hits
        (described,) = result_text(client.call("crib_describe", tools=["filesystem_write_file"]).result).splitlines()
        assert json.loads(described)["inputSchema"]["required"] == ["path", "content"]
        file = scene.files / f"{era}.txt"
        arguments = {"path": str(file), "content": "é" * 5000}
        assert "isError" not in client.call("crib_call", tool="filesystem_write_file", arguments=arguments).result
        assert file.read_text() == "é" * 5000

        long = client.call("crib_call", tool="filesystem_read_text_file", arguments={"path": str(file)}).result
        assert len(json.dumps(long, ensure_ascii=False).encode()) < 3500
        id = long["_meta"]["toolcrib/result"]
        assert result_text(client.call("crib_result", id=id, page=2).result).startswith("é")
        picture = client.call("crib_call", tool="everything_get-tiny-image").result
        assert "image" in {block["type"] for block in picture["content"]}
        assert picture["content"] == client.call("everything_get-tiny-image").result["content"]

        (session,) = (one for one in scene.owner.sessions() if one["agent"] == name)
        shown = run_cli(scene.daemon.home, "sessions", "show", session["id"]).ok().out
        assert "listing       search, sent 1 time" in shown
        assert "searches      1" in shown
        assert "descriptions  1" in shown
        assert "1 of rank" in shown
        rows = scene.rows(name)
        assert {row["mode"] for row in rows} == {"search"}
        outcomes = [row["tool"] for row in rows if row["kind"] == "outcome"]
        assert outcomes[:4] == ["crib:find", "crib:describe", "filesystem:write_file", "filesystem:read_text_file"]
        assert not [row for row in rows if row["tool"] == "crib:call"]


@pytest.mark.parametrize("way", ["endpoint", "bridge"])
@every_era
def test_servers_ask_in_the_middle_of_calls_through_the_gateways_tools(scene: Scene, era: str, way: str) -> None:
    name = f"asked-{era}-{way}"
    form = {"type": "object", "properties": {"colour": {"type": "string"}}}
    question = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": form}}
    accepted = {"action": "accept", "content": {"colour": "green"}}
    call = {"tool": "asks_ask", "arguments": {"rounds": [{"q": question}], "mark": name}}
    with scene.asked(name, era, way) as client:
        done = client.finish(client.call("crib_call", call), lambda _: accepted)
        assert done.result["structuredContent"] == {"q": accepted}
        turn = client.call("crib_batch", {"calls": [call, {"tool": "w_note", "arguments": {"nonce": name}}, call]})
        assert len(turn.questions) == 1
        assert name not in scene.notes.nonces(), "it waits for the call before it"
        done = client.finish(turn, lambda _: accepted)
        assert result_text(done.result).count("green") == 2
        assert scene.notes.nonces().count(name) == 1
    rows = scene.rows(name)
    assert [row["outcome"] for row in rows if row["kind"] == "question"] == ["accept"] * 3
    assert {row["tool"] for row in rows} == {"asks:ask", "w:note", "crib:batch"}


@every_era
def test_a_task_created_through_crib_call_is_the_tools_own(scene: Scene, era: str) -> None:
    capabilities = {**EVERYTHING, **({"extensions": {TASKS: {}}} if era == "modern" else {})}
    with scene.asked(f"tasks-{era}", era, "endpoint", capabilities) as client:
        arguments = {"tool": "tasks_steps", "arguments": {"looks": 1}}
        wish = {"task": {"ttl": 30_000}} if era == "legacy" else {}
        made = client.ask("tools/call", {"name": "crib_call", "arguments": arguments, **wish}).result
        task = made["task"] if era == "legacy" else made
        if era == "legacy":
            result = client.ask("tasks/result", {"taskId": task["taskId"]}).result
        else:
            look = partial(client.ask, "tasks/get", {"taskId": task["taskId"]})
            wait_for(lambda: look().result["status"] == "completed", "the end of the task")
            result = look().result["result"]
        assert "steps done" in result_text(result)
        batch = client.call("crib_batch", {"calls": [{"tool": "tasks_steps", "arguments": {"looks": 1}}]})
        assert "steps done" in result_text(batch.result), "a batch waits for the result"
    assert {row["tool"] for row in scene.rows(f"tasks-{era}")} == {"tasks:steps", "crib:batch"}


@every_era
def test_reads_of_a_batch_overlap_at_their_server(scene: Scene, era: str) -> None:
    nonces = [f"{era}-{number}" for number in range(3)]
    calls = [{"tool": "w_look", "arguments": {"nonce": nonce, "hold": True}} for nonce in nonces]
    later = {"tool": "w_note", "arguments": {"nonce": f"{era}-after"}}
    with (
        scene.agent(f"reader-{era}", era) as client,
        scene.agent(f"releaser-{era}", era) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(client.call, "crib_batch", calls=[*calls, later])
        wait_for(lambda: set(nonces) <= set(scene.notes.nonces()), "the reads, all at once")
        assert later["arguments"]["nonce"] not in scene.notes.nonces()
        other.call("w_release")
        assert answer.result(LIMIT).result["isError"] is False
    assert scene.notes.nonces()[-1] == later["arguments"]["nonce"]
    rows = [row for row in scene.rows(f"reader-{era}") if row["kind"] == "outcome"]
    assert [row["outcome"] for row in rows] == ["ok"] * 5


@pytest.mark.parametrize("through", ["crib_call", "crib_batch"])
@every_era
def test_cancellation_progress_and_time_limits_reach_the_inner_call(scene: Scene, era: str, through: str) -> None:
    name = f"cancels-{era}-{through}"

    def wrapped(tool: str, **arguments: Any) -> Json:
        call = {"tool": tool, "arguments": arguments}
        return call if through == "crib_call" else {"calls": [call, {"tool": "w_burn", "arguments": {"nonce": name}}]}

    with scene.agent(name, era) as client:
        late = client.call(through, **wrapped("brief_note", nonce=f"late-{name}", hold=True)).result
        direct = client.call("brief_note", nonce="x", hold=True).result
        assert result_text(direct) in result_text(late)
        assert "isError" in direct
        assert scene.notes.nonces().count(name) == (through == "crib_batch")
        client.send_call(through, **wrapped("w_note", nonce=f"gone-{name}", hold=True))
        wait_for(lambda: f"gone-{name}" in scene.notes.nonces(), "the call")
        if era == "legacy":
            client.cancel()
        else:
            client.close()
        wait_for(lambda: f"gone-{name}" in scene.notes.cancelled(), "the cancellation")
    ended = [(row["tool"], row["outcome"]) for row in scene.rows(name) if row["kind"] == "outcome"]
    assert ended[0] == ("brief:note", "timeout")
    assert ("w:note", "cancelled") in ended
    assert scene.notes.nonces().count(name) == (through == "crib_batch"), "nothing ran after the cancelled call"
    if through == "crib_call":
        with scene.agent(f"progress-{era}", era) as client:
            arguments = {"tool": "w_note", "arguments": {"nonce": name, "progress": 2}}
            client.send_call("crib_call", meta={"progressToken": "p"}, **arguments)
            *told, _ = client.connection.messages()
            assert [one["params"]["progressToken"] for one in told] == ["p", "p"]


@every_era
def test_cached_answers_are_the_same_through_gateway_tools_and_end_with_the_permission(scene: Scene, era: str) -> None:
    name, nonce = f"caches-{era}", f"cached-{era}"
    with scene.agent(name, era) as client:
        client.call("w_peek", nonce=nonce)
        again = client.call("crib_call", tool="w_peek", arguments={"nonce": nonce}).result
        assert "toolcrib/cached" in again["_meta"]
        assert "done" in result_text(
            client.call("crib_batch", calls=[{"tool": "w:peek", "arguments": {"nonce": nonce}}]).result
        )
        assert scene.notes.nonces().count(nonce) == 1
        rules = [row["rule"] for row in scene.rows(name) if row["tool"] == "w:peek" and row["kind"] == "outcome"]
        assert ["cached answer" in rule for rule in rules] == [False, True, True]
        scene.owner.deny(name, "w:peek")
        assert "may not use" in refusal(client.call("crib_call", tool="w_peek", arguments={"nonce": nonce}))
        batch = client.call("crib_batch", calls=[{"tool": "w_peek", "arguments": {"nonce": nonce}}]).result
        assert batch["isError"] is True
        assert "done" not in result_text(batch)


@pytest.mark.parametrize(("client", "mode"), [("claude-code", "full"), ("something", "thin")])
def test_auto_lists_everything_only_for_clients_that_defer_definitions(scene: Scene, client: str, mode: str) -> None:
    endpoint = AgentEndpoint(scene.daemon, scene.owner.add(f"auto-{client}", profile="developer"))
    about = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": client, "version": "1"}}
    session = endpoint.begin(legacy_request("initialize", about))
    listed = endpoint.legacy(session, "tools/list").message
    endpoint.labels = (("X-Toolcrib-Listing", mode),)
    assert endpoint.legacy(session, "tools/list").message == listed
    assert all_at_once(lambda _: endpoint.legacy(session, "tools/list").message, range(4)) == [listed] * 4
    assert 4_000 < len(listed) / 4 < 25_000 or mode == "full"


async def test_a_program_gets_whole_lists_and_results(scene: Scene) -> None:
    home = scene.daemon.home
    scene.owner.add("program", profile="developer", listing="search")
    with scene.agent("compared", "modern", listing="full") as client:
        tools = client.ask("tools/list").result["tools"]
        listed = sorted(json.dumps(one["inputSchema"]) for one in tools if one["name"] != "crib_result")
    token = {"TOOLCRIB_TOKEN": scene.owner.rotate("program")}
    async with Crib.connect(environ=home.environ(token), workdir=home.project) as connection:
        # It gives them shorter names.
        assert sorted(json.dumps(tool.schema) for tool in connection.tools()) == listed
        text = "x" * 20_000
        result = await connection.call("w_note", {"say": text})
        assert result.structured["say"] == text


@every_era
def test_the_owner_approves_the_tool_itself(scene: Scene, era: str) -> None:
    name = f"approved-{era}"
    scene.owner.put_profile("careful", {"allow": "*:*"}, {"ask": "w:note"})
    with scene.agent(name, era, profile="careful") as client, ThreadPoolExecutor(1) as pool:
        call = {"tool": "w_note", "arguments": {"nonce": name}}
        for tool, arguments in (("crib_call", call), ("crib_batch", {"calls": [call]})):
            answer = pool.submit(client.call, tool, **arguments)
            (waiting,) = wait_for(lambda: scene.owner.say("approval:list")["approvals"], "the approval")
            shown = run_cli(scene.daemon.home, "approvals").ok().out
            assert f"{name}" in shown
            assert "w:note" in shown
            assert "crib_" not in shown
            run_cli(scene.daemon.home, "approve", waiting["id"]).ok()
            assert "done" in result_text(answer.result(LIMIT).result)
    assert scene.notes.nonces().count(name) == 2
    assert [row["tool"] for row in scene.rows(name) if row["decision"] == "ask"] == ["w:note"] * 4


@every_era
def test_a_mode_set_by_command_is_announced_to_connected_clients(scene: Scene, era: str) -> None:
    name = f"moded-{era}"
    with scene.agent(name, era) as client, client.listening() as stream:
        for mode, first in (("search", OWN[0]), ("full", "asks_echo"), ("default", "asks_echo")):
            run_cli(scene.daemon.home, "agent", "listing", name, mode).ok()
            assert stream.event()["method"] == "notifications/tools/list_changed"
            assert client.ask("tools/list").result["tools"][0]["name"] == first
    assert [row["outcome"] for row in scene.owner.audit(agent=name)].count("listing changed") == 3


@every_era
def test_a_mode_set_by_command_counts_for_a_bridge_that_is_connected(scene: Scene, era: str) -> None:
    name = f"bridged-{era}"
    with scene.asked(name, era, "bridge") as client:
        thin = ["crib_batch", "crib_result"]
        for mode, expected in (("thin", thin), ("handshake", ["crib_result"]), ("search", OWN), ("thin", thin)):
            assert client.ask("tools/list", {}).result["tools"]
            run_cli(scene.daemon.home, "agent", "listing", name, mode).ok()
            if era == "legacy":
                assert client.line.read()["method"] == "notifications/tools/list_changed"
            names = [tool["name"] for tool in client.ask("tools/list", {}).result["tools"]]
            assert [one for one in names if one in OWN] == expected


def texts_of(client: AgentClient, near: str) -> str:
    """What the gateway says of tools with such a name, in every way."""
    said = []
    for mode in MODES:
        client.endpoint.labels = (("X-Toolcrib-Listing", mode),)
        said.append(client.ask("tools/list").message.decode())
    client.endpoint.labels = ()
    for query in (near.replace("_", " "), "note burn look", "zzzz"):
        said.append(result_text(client.call("crib_find", query=query, limit=20).result))
    said.append(result_text(client.call("crib_describe", tools=[near]).result))
    said.append(refusal(client.call("crib_call", tool=near)))
    said.append(result_text(client.call("crib_batch", calls=[{"tool": near}]).result))
    said.append(refusal(client.call(near)))
    return "\n".join(said)


def disable_server(daemon: Daemon) -> None:
    daemon.command("server:disable", name="r")


def disable_tool(daemon: Daemon) -> None:
    daemon.command("server:disable", name="r:burn_notes")


def remove(daemon: Daemon) -> None:
    daemon.command("server:remove", name="r")


def deny(daemon: Daemon) -> None:
    Owner(daemon).deny("a", "r:burn_notes")


@pytest.mark.parametrize("revoke", [disable_server, disable_tool, remove, deny], ids=lambda one: one.__name__)
def test_nothing_of_a_tool_is_left_when_it_is_gone(
    daemon: StartDaemon, toolcrib_home: Home, tmp_path: Path, revoke: Callable[[Daemon], None]
) -> None:
    notes = Notes(tmp_path / "seen")
    servers = {"r": notes.server("burn_notes", era="legacy"), "kept": notes.server("keep_notes")}
    running = daemon({"servers": servers, "result_tokens": 1000})
    running.wait_until_ready()
    Owner(running).say("favorites:add", tools=["r:burn_notes"])
    with AgentClient(running, "a", Owner(running).add("a", profile="developer"), "modern") as client:
        long = client.call("crib_call", tool="r_burn_notes", arguments={"say": "x" * 20_000}).result
        id = long["_meta"]["toolcrib/result"]
        assert "isError" not in client.call("crib_result", id=id).result
        assert texts_of(client, "r_burn_note").count("r_burn_notes") > 5
        revoke(running)
        gone = texts_of(client, "r_burn_note")
        assert "burn_notes" not in gone
        assert "keep_notes" in gone
        assert "There is no result" in refusal(client.call("crib_result", id=id))


def names_through_bridge(home: Home, *words: str, label: str, initialize: bytes = INITIALIZE) -> list[str]:
    """What one start of a client lists."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environ = home.environ({"TOOLCRIB_CONVERSATION": label})
    with Preloaded([str(PROGRAM), "stdio", *words], env=environ, cwd=home.project, **pipes) as process:
        lines = [initialize, notice("notifications/initialized"), legacy_request("tools/list", id=2)]
        process.stdin.write(b"\n".join(lines) + b"\n")
        process.stdin.flush()
        while (message := json.loads(process.stdout.readline())).get("id") != 2:
            continue
        process.stdin.close()
        process.wait(LIMIT)
    return [tool["name"] for tool in message["result"]["tools"]]


def test_handshake_lists_and_all_bytes_are_the_same_after_a_restart(
    daemon: StartDaemon, toolcrib_home: Home, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "seen")
    servers = {"w": notes.server("note", "burn", reads="look"), "x": notes.server("other", era="legacy")}
    listing = {"default": "full", "clients": {"shaking": "handshake"}}
    first = daemon({"servers": servers, "result_tokens": 1000, "listing": listing})
    first.wait_until_ready()
    owner = Owner(first)
    tokens = {name: owner.add(name, profile="developer") for name in ("a", "b")}
    owner.say("favorites:add", tools=["w:burn"])
    owner.say("agent:listing", name="b", mode="handshake")

    with AgentClient(first, "a", tokens["a"], "modern") as client:
        client.call("w_note", nonce="counted")
    # Otherwise the restart would count, because nothing has been counted yet.
    owner.say("favorites:refresh")

    def lists(running: Daemon) -> list[tuple[str, ...]]:
        found = []
        for era in ERAS:
            for name, token in tokens.items():
                with AgentClient(running, name, token, era) as client:
                    for mode in MODES:
                        client.endpoint.labels = (("X-Toolcrib-Listing", mode),)
                        found.append((era, mode, client.ask("tools/list").message.decode()))
        return sorted(found)

    before = lists(first)
    assert len(set(before)) == len(ERAS) * len(MODES), "both agents get the same bytes"
    hello = partial(names_through_bridge, toolcrib_home, "--listing", "handshake")
    agents = partial(names_through_bridge, toolcrib_home, "--agent", "b")
    full, thin = hello(label="one"), hello(label="one")
    assert ("crib_batch" in full, "crib_batch" in thin) == (False, True)
    assert (agents(label="one"), agents(label="one")) == (full, thin)
    about = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "shaking", "version": "1"}}
    by_client = partial(names_through_bridge, toolcrib_home, initialize=legacy_request("initialize", about))
    assert (by_client(label="three"), by_client(label="three")) == (full, thin)
    with AgentClient(first, "a", tokens["a"], "modern") as client:
        long = client.call("crib_call", tool="w_note", arguments={"say": "x" * 20_000}).result
        for number in range(50):
            client.call("crib_call", tool="w_note", arguments={"nonce": str(number)})
    first.stop()

    second = daemon()
    second.wait_until_ready()
    assert lists(second) == before
    assert hello(label="one") == thin
    assert agents(label="one") == thin
    assert hello(label="two") == full
    with AgentClient(second, "a", tokens["a"], "modern") as client:
        assert "xxxx" in result_text(client.call("crib_result", id=long["_meta"]["toolcrib/result"], page=2).result)
    with AgentClient(second, "b", tokens["b"], "modern") as client:
        assert "There is no result" in refusal(client.call("crib_result", id=long["_meta"]["toolcrib/result"]))
