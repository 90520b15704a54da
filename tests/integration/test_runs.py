"""Runs of a coding agent at the real daemon, with a program of our own: what is the same whatever the program is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from parts import own, scribe
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.waiting import wait_for
from toolcrib.coding_agents import run_history
from toolcrib.coding_agents.client_spec import Launch, LaunchRequest
from toolcrib.coding_agents.clients import CLIENTS
from toolcrib.coding_agents.code_agent import CodingAgentRun, RunStream
from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_preparation import RunRequest
from toolcrib.coding_agents.run_result import ExecutionResult, OnMcpFailure, RunStatus
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

LIMIT = 60.0
SECRET = "hunter2-hunter2"


def steps(*given: dict[str, Any]) -> str:
    return json.dumps(given)


def call(tool: str, /, *, silent: bool = False, **arguments: Any) -> dict[str, Any]:
    return {"call": [f"own_{tool}", arguments, *(["silent"] if silent else [])]}


@dataclass(kw_only=True)
class Scene:
    """A home with a server that writes down what it saw, and the program `scribe` on its PATH."""

    home: Home
    cli: Cli
    start: StartDaemon
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        return self.home.environ({**self.more, "PATH": f"{self.home.path / 'bin'}:{os.environ['PATH']}"})

    def servers(self, **entry: Any) -> dict[str, Any]:
        program, *words = own.stdio_words("own_v2")
        env = {"TOOLCRIB_TEST_SEEN": str(self.home.path / "seen")}
        return {"servers": {"own": {"command": program, "args": words, "env": env, **entry}}}

    def daemon(self) -> Daemon:
        started = self.start(self.servers())
        started.wait_until_ready()
        return started

    def seen(self, method: str = "tools/call") -> list[dict[str, Any]]:
        file = self.home.path / "seen"
        notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [note for note in notes if note["method"] == method]

    def order(self, prompt: str, **changed: Any) -> RunRequest:
        usual: dict[str, Any] = {
            "client": scribe.SCRIBE,
            "prompt": prompt,
            "workdir": self.home.project,
            "profile": "developer",
            "timeout": LIMIT,
            "on_mcp_failure": OnMcpFailure.STOP,
            "environ": self.environ,
        }
        return RunRequest(**{**usual, **changed})

    async def run(self, *given: dict[str, Any], **changed: Any) -> ExecutionResult:
        async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(self.order(steps(*given), **changed))) as stream:
            async for _ in stream:
                pass
        return stream.result

    def log(self, result: ExecutionResult) -> list[dict[str, Any]]:
        return [json.loads(line) for line in result.log.read_text().splitlines()]

    def agents(self) -> list[str]:
        """Those of runs; also as folders."""
        named = {agent["name"] for agent in self.cli("agent", "list", "--json").ok().json["agents"]}
        folders = {path.name for path in (self.home.toolcrib / "state" / "agents").glob("*")}
        return sorted(named | folders)


@pytest.fixture
def scene(toolcrib_home: Home, daemon: StartDaemon, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scribe.install(toolcrib_home.path / "bin")
    monkeypatch.setattr(run_history, "CLIENTS", (*CLIENTS, scribe.SCRIBE))
    return Scene(home=toolcrib_home, cli=cli, start=daemon)


def tools(events: tuple[AgentEvent, ...]) -> list[tuple[str, str, ToolStatus | None, Any]]:
    return [(e.server, e.tool_name, e.tool_status, e.tool_args) for e in events if e.kind is AgentEventKind.TOOL]


@pytest.mark.req("FRG-6", "FRG-7", "KAI-10")
async def test_every_call_is_told_whole_whether_or_not_the_program_prints_it(scene: Scene) -> None:
    scene.daemon()
    result = await scene.run(
        {"say": "I begin."}, call("echo", n=1), call("echo", silent=True, n=2), call("absent"), {"print": "no JSON"}
    )
    assert result.status is RunStatus.FINISHED
    assert tools(result.raw_events)[:2] == [
        ("own", "echo", ToolStatus.STARTED, {"n": 1}),
        ("own", "echo", ToolStatus.OK, {"n": 1}),
    ]
    over = [e for e in result.raw_events if e.kind is AgentEventKind.TOOL and e.tool_status is not ToolStatus.STARTED]
    assert sorted((e.tool_name, str(e.tool_status), e.decision) for e in over) == [
        ("echo", "ok", "allow"),
        ("echo", "ok", "allow"),
        ("own_absent", "unknown", ""),
    ]
    assert all(e.tool_duration_ms is not None for e in over if e.server == "own")
    assert [note["arguments"] for note in scene.seen()] == [{"n": 1}, {"n": 2}]
    assert any(e.kind is AgentEventKind.RAW and e.raw == "no JSON" for e in result.raw_events)
    assert (result.text, result.usage.input, result.usage.output, result.usage.cached) == ("I begin.", 11, 7, 3)


@pytest.mark.req("FRG-7")
async def test_the_log_holds_who_ran_what_everything_that_happened_and_what_it_came_to(scene: Scene) -> None:
    scene.daemon()
    result = await scene.run(call("echo", n=1), {"complain": "hm"})
    first, *events, last = scene.log(result)
    assert first["metadata"]["run_id"] == result.run_id
    assert first["metadata"]["profile"] == "developer"
    told = [line["event"] for line in events if "event" in line]
    assert told == [json.loads(json.dumps(e.to_json())) for e in result.raw_events]
    assert [line["session"]["session"] for line in events if "session" in line] == ["scribe-1"]
    summary = last["summary"]
    assert summary["tools"] == {"own:echo": 1}
    assert summary["usage"]["input"] == 11
    assert summary["listing"]["tools"] > 5
    assert 100 < summary["listing"]["tokens"] < summary["listing"]["bytes"]
    assert result.log == scene.home.project / ".toolcrib" / "runs" / f"{result.run_id}.jsonl"
    assert result.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("KSI-2", "KSI-5")
async def test_nothing_of_a_run_is_left_when_it_is_over(scene: Scene) -> None:
    running = scene.daemon()
    stream = RunStream(CodingAgentRun(scene.order(steps({"leave": 1}, {"variables": 1}))))
    folders, said = set(), []
    async for event in stream:
        folders |= {path.name for path in (scene.home.toolcrib / "state" / "agents").glob("*")}
        if event.kind is AgentEventKind.MESSAGE:
            said.append(event.text)
    child, variables = int(said[0]), json.loads(said[1])
    assert folders == {stream.result.metadata["agent"]}
    assert scene.agents() == []
    assert process_started_at(child) is None, "what the program started ends with it"
    assert variables["SCRIBE_URL"] == running.endpoint
    token = json.loads(variables["SCRIBE_HEADERS"])["Authorization"].removeprefix("Bearer ")
    assert token.startswith("tcb_")
    assert token not in stream.result.log.read_text(), "the log holds no token, though the program printed it"
    assert (await _status(running, token)) == 401


async def _status(running: Daemon, token: str) -> int:
    host, _, port = running.endpoint.removeprefix("http://").removesuffix("/mcp").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n\r\n{}".encode()
    )
    answer = await asyncio.wait_for(reader.read(), LIMIT)
    writer.close()
    return int(answer.split()[1])


@pytest.mark.req("FRG-7", "KSI-6")
async def test_a_denial_is_told_with_its_rule_and_counted(scene: Scene) -> None:
    scene.daemon()
    result = await scene.run(call("echo", n=1), profile="nothing")
    (over,) = [
        e for e in result.raw_events if e.kind is AgentEventKind.TOOL and e.tool_status is not ToolStatus.STARTED
    ]
    assert (over.tool_status, over.decision, over.rule) == (ToolStatus.DENIED, "deny", "no rule allows it")
    assert result.metadata["denials"] == 1
    assert scene.seen() == []


@pytest.mark.req("FRG-10")
async def test_a_run_that_takes_too_long_is_ended_though_its_program_does_not_listen(scene: Scene) -> None:
    scene.daemon()
    never = str(scene.home.path / "never")
    result = await scene.run({"deaf": 1}, {"leave": 1}, {"until": never}, timeout=1.5)
    assert result.status is RunStatus.TIMEOUT
    assert "--timeout=4h" in result.metadata["remedy"]
    assert process_started_at(int(result.text)) is None
    assert scene.log(result)[-1]["summary"]["status"] == "timeout"
    assert scene.agents() == []


@pytest.mark.req("FRG-7", "FRG-11")
@pytest.mark.parametrize("way", ["cancelled", "left"])
async def test_a_run_that_is_interrupted_ends_in_order(scene: Scene, way: str) -> None:
    scene.daemon()
    order = scene.order(steps({"leave": 1}, {"until": str(scene.home.path / "never")}))
    stream = RunStream(CodingAgentRun(order))
    said: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with stream:
            async for event in stream:
                if event.kind is AgentEventKind.MESSAGE:
                    said.set_result(int(event.text))
                    if way == "left":
                        break

    reading = asyncio.create_task(read())
    child = await asyncio.wait_for(said, LIMIT)
    if way == "cancelled":
        reading.cancel()
    await asyncio.wait({reading}, timeout=LIMIT)
    assert reading.cancelled() is (way == "cancelled")
    assert stream.result.status is RunStatus.INTERRUPTED
    assert scene.log(stream.result)[-1]["summary"]["status"] == "interrupted"
    assert process_started_at(child) is None
    assert scene.agents() == []


@pytest.mark.req("FRG-10", "KSI-5")
@pytest.mark.parametrize("on_failure", list(OnMcpFailure))
async def test_a_run_whose_agent_is_removed_stops_or_goes_on_without_tools(
    scene: Scene, on_failure: OnMcpFailure
) -> None:
    scene.daemon()
    go = scene.home.path / "go"
    order = scene.order(steps(call("echo", n=1), {"until": str(go)}, call("echo", n=2)), on_mcp_failure=on_failure)
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.tool_status is ToolStatus.OK:
                assert stream.metadata is not None
                await asyncio.to_thread(scene.cli, "agent", "remove", stream.metadata.agent)
                go.touch()
    result = stream.result
    assert result.status is (RunStatus.REVOKED if on_failure is OnMcpFailure.STOP else RunStatus.FINISHED)
    warnings = [e.text for e in result.raw_events if e.kind is AgentEventKind.LOG and e.role == "toolcrib"]
    assert any("was ended (removed)" in text for text in warnings)
    assert [note["arguments"] for note in scene.seen()] == [{"n": 1}]


@pytest.mark.req("FRG-10")
async def test_a_run_whose_daemon_dies_says_so(scene: Scene) -> None:
    running = scene.daemon()
    order = scene.order(steps(call("echo", n=1), {"until": str(scene.home.path / "never")}))
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.tool_status is ToolStatus.OK:
                running.kill()
    assert stream.result.status is RunStatus.NO_TOOLS
    assert "daemon is gone" in stream.result.error


@pytest.mark.req("FRG-10", "KSI-3")
async def test_a_run_goes_on_through_a_restart_of_the_daemon(scene: Scene) -> None:
    running = scene.daemon()
    port = running.endpoint.rpartition(":")[2].partition("/")[0]
    go = scene.home.path / "go"
    order = scene.order(steps(call("echo", n=1), {"until": str(go)}, call("echo", n=2)))
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.tool_status is ToolStatus.OK and not go.exists():
                await asyncio.to_thread(running.stop)
                again = await asyncio.to_thread(scene.start, None, "--port", port)
                await asyncio.to_thread(again.wait_until_ready)
                go.touch()
    assert stream.result.status is RunStatus.FINISHED
    assert [note["arguments"] for note in scene.seen()] == [{"n": 1}, {"n": 2}]
    over = [e for e in stream.result.raw_events if e.tool_status is ToolStatus.OK]
    assert [e.decision for e in over] == ["allow", "allow"], "what the new daemon sees is told as well"
    assert scene.agents() == []


@pytest.mark.req("FRG-3", "FRG-11")
async def test_without_a_daemon_one_is_there_for_as_long_as_runs_need_it(scene: Scene) -> None:
    scene.home.write_config(scene.servers())
    go = scene.home.path / "go"
    results = asyncio.gather(
        scene.run(call("echo", n=1), {"until": str(go)}), scene.run(call("echo", n=2)), scene.run(call("echo", n=3))
    )
    await asyncio.to_thread(wait_for, lambda: len(scene.seen()) == 3, "three calls", LIMIT)
    go.touch()
    assert [result.status for result in await results] == [RunStatus.FINISHED] * 3
    assert len({note["pid"] for note in scene.seen()}) == 1, "one server, started once"
    await asyncio.to_thread(wait_for, lambda: not scene.home.socket.exists(), "the daemon to be gone", LIMIT)


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("on_failure", list(OnMcpFailure))
async def test_where_the_tools_cannot_be_had_a_run_stops_or_goes_on_without(
    scene: Scene, on_failure: OnMcpFailure
) -> None:
    scene.home.write_config({"store": "/proc/none/mcp.db", **scene.servers()})
    if on_failure is OnMcpFailure.STOP:
        with pytest.raises(ToolcribError) as told:
            await scene.run({"say": "hello"}, on_mcp_failure=on_failure)
        assert told.value.remedy
        return
    result = await scene.run({"say": "hello"}, {"variables": 1}, on_mcp_failure=on_failure)
    assert (result.status, json.loads(result.text)["SCRIBE_URL"]) == (RunStatus.FINISHED, "")
    assert "goes on without" in result.raw_events[0].text


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("on_failure", list(OnMcpFailure))
async def test_a_program_that_goes_on_silently_without_the_tools_is_found_out(
    scene: Scene, on_failure: OnMcpFailure
) -> None:
    scene.daemon()
    result = await scene.run({"say": "Done, I think."}, extra=("--never-ask",), on_mcp_failure=on_failure)
    assert result.status is (RunStatus.NO_TOOLS if on_failure is OnMcpFailure.STOP else RunStatus.FINISHED)
    assert any("has not asked Toolcrib for its tools" in e.text for e in result.raw_events)


@pytest.mark.req("FRG-10")
async def test_a_program_that_insists_on_the_tools_is_started_again_without_where_it_may_go_on(scene: Scene) -> None:
    scene.daemon()
    order = scene.order(
        steps({"say": "without"}), extra=("--insist",), on_mcp_failure=OnMcpFailure.CONTINUE, client=scribe.REFUSED
    )
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for _ in stream:
            pass
    assert (stream.result.status, stream.result.text) == (RunStatus.FINISHED, "without")
    assert sum("401" in e.text for e in stream.result.raw_events if e.role == "toolcrib") == 1


@pytest.mark.req("FRG-10")
async def test_a_run_says_why_it_has_fewer_tools_than_one_may_expect(scene: Scene) -> None:
    config = scene.servers()
    config["servers"]["gone"] = {"command": "/no/such/program"}
    config["servers"]["unset"] = {"url": "https://${NEVER_SET}/mcp"}
    (scene.home.project / ".toolcrib").mkdir()
    (scene.home.project / ".toolcrib" / "config.json").write_text('{"servers": {"x": {"command": "x"}}}')
    scene.start(config).wait_until_ready("own")
    result = await scene.run({"say": "x"})
    warnings = [e.text for e in result.raw_events if e.role == "toolcrib"]
    assert len(warnings) == 3, "\n".join(warnings)
    assert any("NEVER_SET" in text for text in warnings)
    assert any("toolcrib trust" in text for text in warnings)
    assert any(text.startswith("The server gone is not there: ") for text in warnings)
    assert (result.status, list(result.metadata["unavailable"])) == (RunStatus.FINISHED, ["gone"]), (
        "the result says it, too"
    )


@pytest.mark.req("FRG-10")
async def test_a_run_waits_for_a_server_that_is_still_starting(scene: Scene) -> None:
    gate = scene.home.path / "gate"
    slow = ["-c", 'until [ -e "$0" ]; do sleep 0.1; done; exec "$@"', str(gate)]
    config = scene.servers(connect_timeout=LIMIT)
    own_server = config["servers"]["own"]
    own_server |= {"command": "/bin/sh", "args": [*slow, own_server["command"], *own_server["args"]]}
    own_server["env"] |= {"PYTHONSAFEPATH": ""}
    scene.start(config)
    running = asyncio.create_task(scene.run(call("echo", n=1)))
    await asyncio.to_thread(wait_for, scene.agents, "the run to have an agent")
    assert not running.done()
    gate.touch()
    result = await running
    assert (result.status, result.metadata["tools"], result.metadata["unavailable"]) == (
        RunStatus.FINISHED,
        {"own:echo": 1},
        {},
    )


@pytest.mark.req("FRG-10")
async def test_where_workspace_yml_is_broken_a_run_says_so_and_fails_if_nothing_succeeded(scene: Scene) -> None:
    (scene.home.project / ".toolcrib").mkdir()
    (scene.home.project / ".toolcrib" / "workspace.yml").write_text("limits: [\n")
    scene.daemon()
    looks: dict[str, Any] = {"call": ["workspace_list_dir", {}]}
    failed = await scene.run(looks, {"say": "done"})
    warnings = [event.text for event in failed.raw_events if event.role == "toolcrib"]
    assert any("workspace.yml" in text and "Every tool of the workspace will refuse." in text for text in warnings)
    assert (failed.status, "workspace.yml" in failed.error) == (RunStatus.FAILED, True)
    assert "toolcrib workspace check" in failed.metadata["remedy"]
    assert (await scene.run(looks, call("echo", n=1), {"say": "done"})).status is RunStatus.FINISHED
    assert (await scene.run({"say": "no call at all"})).status is RunStatus.FINISHED


@pytest.mark.req("FRG-9")
async def test_a_whole_home_and_toolcribs_own_folders_are_no_place_for_a_run(scene: Scene) -> None:
    scene.daemon()
    for folder in (scene.home.user, scene.home.path, scene.home.toolcrib, Path("/")):
        with pytest.raises(UsageError, match="cannot be a run's folder"):
            await scene.run({"say": "x"}, workdir=folder)
    assert not (scene.home.user / ".toolcrib").exists()


@pytest.mark.req("FRG-6")
async def test_what_a_program_prints_while_it_is_stopped_is_not_lost(scene: Scene) -> None:
    scene.daemon()
    order = scene.order(steps({"talks": 3000}, {"say": "x"}, {"until": str(scene.home.path / "never")}))
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.kind is AgentEventKind.MESSAGE:
                break
    told = [e.raw for e in stream.result.raw_events if isinstance(e.raw, dict)]
    lines = [line["n"] for line in told if line["type"] == "last"]
    assert lines == list(range(3000))


@pytest.mark.req("FRG-10")
async def test_a_daemon_that_does_not_answer_does_not_let_the_program_work_on(scene: Scene) -> None:
    running = scene.daemon()
    ticks = scene.home.path / "ticks"
    order = scene.order(steps({"say": "x"}, {"tick": str(ticks)}), timeout=10.0)
    began = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
            async for event in stream:
                if event.kind is AgentEventKind.MESSAGE:
                    running.process.send_signal(signal.SIGSTOP)
                    began = time.monotonic()
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert stream.result.status is RunStatus.TIMEOUT
    assert float(ticks.read_text()) - began < LIMIT / 2, "the program must not work on while the daemon hangs"


@pytest.mark.req("FRG-11")
async def test_a_conversation_goes_on_in_the_programs_session_and_in_ours(scene: Scene) -> None:
    scene.daemon()
    first = await scene.run(call("echo", n=1))
    conversation = first.metadata["conversation"]
    second = await scene.run(call("echo", n=2), conversation=conversation)
    third = await scene.run({"say": "x"}, conversation="last")
    assert second.metadata["session_before"] == first.metadata["session"] == "scribe-1"
    assert [e.text for e in second.raw_events if e.role == "toolcrib"] == []
    assert second.raw_events[0].raw["words"][0] == "session=scribe-1"
    assert {one.metadata["conversation"] for one in (first, second, third)} == {conversation}
    entries = scene.cli("audit", "--json").ok().json["entries"]
    calls = [entry for entry in entries if entry["tool"] == "own:echo" and entry["kind"] == "outcome"]
    assert {(entry["agent"], entry["conversation"]) for entry in calls} == {(first.metadata["agent"], conversation)}
    with pytest.raises(NotFound):
        await scene.run({"say": "x"}, conversation="unheard-of")


@pytest.mark.req("FRG-7", "FRG-11")
async def test_a_session_is_on_record_while_the_run_still_goes_on(scene: Scene) -> None:
    scene.daemon()
    order = scene.order(steps({"say": "here"}, {"until": str(scene.home.path / "never")}))
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.kind is AgentEventKind.MESSAGE:
                break
        found = run_history.conversation_state(scene.home.project, "last", "scribe", LogSeals.of_user(scene.environ))
    assert found.session == "scribe-1"


@pytest.mark.req("FRG-7", "FRG-11")
async def test_a_log_that_the_project_brought_along_does_not_say_what_the_next_run_is(scene: Scene) -> None:
    scene.daemon()
    first = await scene.run({"say": "x"})
    planted = "29990101-000000-aaaaaa"
    lines = scene.log(first)
    lines[0]["metadata"]["run_id"] = planted
    lines[-1]["summary"]["session"] = "scribe-77"
    first.log.with_name(f"{planted}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for conversation in ("last", first.metadata["conversation"]):
        result = await scene.run({"say": "x"}, conversation=conversation)
        assert result.raw_events[0].raw["words"][0] == "session=scribe-1"


@pytest.mark.req("FRG-7")
async def test_a_folder_whose_name_is_no_text_is_refused_before_anything_starts(scene: Scene) -> None:
    folder = Path(os.fsdecode(os.fsencode(scene.home.path) + b"/b\xff\xfed"))
    folder.mkdir()
    with pytest.raises(UsageError, match="is not UTF-8"):
        await scene.run({"say": "x"}, workdir=folder)
    assert list(folder.iterdir()) == []


@pytest.mark.req("FRG-11")
async def test_two_runs_of_one_conversation_at_once_are_refused(scene: Scene) -> None:
    scene.daemon()
    conversation = (await scene.run({"say": "x"})).metadata["conversation"]
    go = scene.home.path / "go"
    order = scene.order(steps({"say": "here"}, {"until": str(go)}), conversation=conversation)
    async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(order)) as stream:
        async for event in stream:
            if event.kind is AgentEventKind.MESSAGE:
                with pytest.raises(UsageError):
                    await scene.run({"say": "me too"}, conversation=conversation)
                go.touch()
    assert stream.result.status is RunStatus.FINISHED


@pytest.mark.req("FRG-3")
async def test_the_program_gets_the_persons_environment_without_what_is_ours(scene: Scene) -> None:
    scene.more = {"OWN_KEY": SECRET, "EDITOR": "ed", "TOOLCRIB_LOG_LEVEL": "info", "SCRIBE_KEY": "mine"}
    config = scene.servers()
    config["servers"]["own"]["env"] |= {"KEY": "${OWN_KEY}", "OTHER": "${SCRIBE_KEY}"}
    scene.start(config, env=scene.more).wait_until_ready()
    plain = await scene.run({"variables": 1})
    variables = json.loads(plain.text)
    assert variables["EDITOR"] == "ed"
    assert variables["SCRIBE_KEY"] == "mine", "the program's own variables stay"
    assert not [name for name in variables if name.startswith("TOOLCRIB_") and name != "TOOLCRIB_CHILD"]
    assert "OWN_KEY" not in variables
    assert any("OWN_KEY" in e.text for e in plain.raw_events if e.role == "toolcrib")
    file = scene.home.path / "more.env"
    file.write_text("# mine\nMORE='a longer secret'\n")
    file.chmod(0o600)
    named = await scene.run({"variables": 1}, env=("OWN_KEY",), env_file=file)
    assert json.loads(named.text)["OWN_KEY"] == SECRET
    assert json.loads(named.text)["MORE"] == "a longer secret"
    log = named.log.read_text()
    assert SECRET not in log
    assert "a longer secret" not in log


@pytest.mark.req("KSI-2")
async def test_a_launch_knows_which_folders_are_toolcribs_own(scene: Scene) -> None:
    orders: list[LaunchRequest] = []
    headless = scribe.SCRIBE.headless
    assert headless is not None

    def launch(order: LaunchRequest) -> Launch:
        orders.append(order)
        return headless.launch(order)

    await scene.run(client=replace(scribe.SCRIBE, headless=replace(headless, launch=launch)))
    home = scene.home.toolcrib
    [order] = orders
    logs = scene.home.project / ".toolcrib" / "runs"
    assert set(order.private) == {home, home / "state", home / "cache", home / "run", logs}


@pytest.mark.req("FRG-7")
async def test_a_program_that_fails_is_told_to_have_failed(scene: Scene) -> None:
    scene.daemon()
    result = await scene.run({"say": "no"}, {"exit": 7})
    assert (result.status, result.program_exit_code, result.ok) == (RunStatus.FAILED, 7, False)
    assert "code 7" in result.error


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("last", [{"exit": 0}, {"print": '{"type": "end", "tokens": {"in": 11, "out"'}])
async def test_a_program_that_ends_without_its_last_line_has_failed_whatever_its_exit_code(
    scene: Scene, last: dict[str, Any]
) -> None:
    scene.daemon()
    result = await scene.run({"say": "no"}, last, {"exit": 0})
    assert (result.status, result.program_exit_code, result.text) == (RunStatus.FAILED, 0, "no")
    assert result.error == "Scribe ended without the line that ends a run: its answer is lost, or not whole."
    assert "--conversation last" in result.metadata["remedy"]


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize("version", ["", "1.1.9"])
async def test_a_program_that_is_missing_or_too_old_is_told_with_the_line_that_installs_it(
    scene: Scene, version: str
) -> None:
    program = scene.home.path / "bin" / "scribe"
    text = program.read_text().replace("1.4.0", version)
    program.unlink()
    if version:
        program.write_text(text)
        program.chmod(0o755)
    with pytest.raises(ToolcribError) as told:
        await scene.run({"say": "x"})
    assert "pip install scribe" in told.value.text()
    assert version in told.value.text()


@pytest.mark.req("FRG-11")
@pytest.mark.parametrize("projects", [1, 10])
async def test_ten_runs_at_once_share_each_projects_servers_and_nothing_else(scene: Scene, projects: int) -> None:
    scene.start(scene.servers(cwd="project", connect_timeout=LIMIT)).wait_until_ready()
    folders = [scene.home.path / f"project-{n}" for n in range(projects)]
    for folder in folders:
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    results = await asyncio.gather(
        *(scene.run(call("echo", n=n), {"say": f"I am {n}"}, workdir=folders[n % projects]) for n in range(10))
    )
    for n, result in enumerate(results):
        assert (result.status, result.text) == (RunStatus.FINISHED, f"I am {n}")
        assert [args for *_, args in tools(result.raw_events)] == [{"n": n}, {"n": n}], "only its own calls"
        assert len(scene.log(result)) == len(result.raw_events) + 3
    assert len({result.metadata["agent"] for result in results}) == 10
    assert len({note["pid"] for note in scene.seen()}) == projects, "a server is started once in each project"
    assert scene.agents() == []
