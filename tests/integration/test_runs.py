"""Runs with the real daemon and a small test program in place of a coding agent: what all coding agents share."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parts import scribe, server_process
from parts.agent_clients import AgentEndpoint
from parts.daemon import Daemon, Home, StartDaemon
from parts.waiting import during, wait_for
from toolcrib.coding_agents import run_history, run_lifecycle
from toolcrib.coding_agents.client_spec import Launch, LaunchRequest
from toolcrib.coding_agents.clients import CLIENTS
from toolcrib.coding_agents.code_agent import CodingAgentRun, RunStream
from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_preparation import RunRequest
from toolcrib.coding_agents.run_result import ExecutionResult, OnMcpFailure, RunStatus
from toolcrib.config.model import ListingMode
from toolcrib.daemon_client import lease
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

LIMIT = 60.0
SECRET = "hunter2-hunter2"
FOREVER: dict[str, Any] = {"until": "/nowhere/never"}
React = Callable[[AgentEvent, RunStream], object]
STOP, CONTINUE = OnMcpFailure.STOP, OnMcpFailure.CONTINUE
_numbers = itertools.count()


def call(tool: str, /, *, silent: bool = False, **arguments: Any) -> dict[str, Any]:
    return {"call": [f"own_{tool}", arguments, *(["silent"] if silent else [])]}


@dataclass(kw_only=True)
class Scene:
    """A project with the program `scribe` on PATH, and a daemon whose server `own` records its calls."""

    home: Home
    project: Path
    start: StartDaemon
    daemon: Daemon | None = None

    def __post_init__(self) -> None:
        (self.home.path / "seen").write_text("")
        scribe.install(self.home.path / "bin")
        self.environ = self.home.environ({"PATH": f"{self.home.path / 'bin'}:{os.environ['PATH']}"})

    def servers(self, **entry: Any) -> dict[str, Any]:
        program, *args = server_process.stdio_command("sdk_v2")
        env = {"TOOLCRIB_TEST_SEEN": str(self.home.path / "seen")}
        return {"servers": {"own": {"command": program, "args": args, "env": env, **entry}}}

    def start_daemon(self, *args: str, config: dict[str, Any] | None = None, ready: bool = True) -> Daemon:
        self.daemon = self.start(config or self.servers(), *args, env=self.environ)
        if ready:
            self.daemon.wait_until_ready("own")
        return self.daemon

    def command(self, name: str, /, **params: Any) -> dict[str, Any]:
        assert self.daemon is not None
        return self.daemon.command(name, **params)

    def seen(self) -> list[dict[str, Any]]:
        """The calls that arrived at the server."""
        notes = map(json.loads, (self.home.path / "seen").read_text().splitlines())
        return [note for note in notes if note["method"] == "tools/call"]

    def arguments(self) -> list[dict[str, Any]]:
        return [note["arguments"] for note in self.seen()]

    def request(self, *steps: dict[str, Any], **changed: Any) -> RunRequest:
        usual: dict[str, Any] = {"client": scribe.SCRIBE, "prompt": json.dumps(steps), "workdir": self.project}
        usual |= {"profile": "developer", "timeout": LIMIT, "on_mcp_failure": STOP, "environ": self.environ}
        return RunRequest(**{**usual, **changed})

    async def run(self, *steps: dict[str, Any], react: React | None = None, **changed: Any) -> ExecutionResult:
        """Runs to the end. `react` gets each event in a thread."""
        async with asyncio.timeout(LIMIT), RunStream(CodingAgentRun(self.request(*steps, **changed))) as stream:
            async for event in stream:
                if react is not None:
                    await asyncio.to_thread(react, event, stream)
        return stream.result

    def log(self, result: ExecutionResult) -> list[dict[str, Any]]:
        return [json.loads(line) for line in result.log.read_text().splitlines()]

    def folders(self) -> set[str]:
        return {path.name for path in (self.home.toolcrib / "state" / "agents").glob("*")}

    def agents(self) -> list[str]:
        """The agents of runs, in the registry or as folders."""
        return sorted({agent["name"] for agent in self.command("agent:list")["agents"]} | self.folders())


@pytest.fixture(autouse=True)
def _known_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_history, "CLIENTS", (*CLIENTS, scribe.SCRIBE))


@pytest.fixture(scope="module")
def shared(shared_home: Home, start_shared_daemon: StartDaemon) -> Scene:
    scene = Scene(home=shared_home, project=shared_home.project, start=start_shared_daemon)
    scene.start_daemon()
    return scene


@pytest.fixture
def scene(shared: Scene) -> Scene:
    """A new project in the home that the tests of this file share."""
    project = shared.home.path / f"p{next(_numbers)}"
    project.mkdir()
    return Scene(home=shared.home, project=project, start=shared.start, daemon=shared.daemon)


@pytest.fixture
def alone(toolcrib_home: Home, daemon: StartDaemon) -> Scene:
    """For tests that configure, stop or kill the daemon."""
    return Scene(home=toolcrib_home, project=toolcrib_home.project, start=daemon)


def ended(result: ExecutionResult) -> list[AgentEvent]:
    events = [event for event in result.raw_events if event.kind is AgentEventKind.TOOL]
    return [event for event in events if event.tool_status is not ToolStatus.STARTED]


def warnings(result: ExecutionResult) -> list[str]:
    return [event.text for event in result.raw_events if event.role == "toolcrib"]


@pytest.mark.req("FRG-6", "FRG-7", "KAI-10")
async def test_events_and_log_have_every_call_whether_or_not_the_program_prints_it(scene):
    calls = call("echo", n=1), call("echo", silent=True, n=2), call("absent")
    result = await scene.run({"say": "I begin."}, *calls, {"print": "no JSON"}, {"complain": "hm"})
    assert result.status is RunStatus.FINISHED
    calls = [event for event in result.raw_events if event.kind is AgentEventKind.TOOL][:2]
    assert [(e.server, e.tool_name, e.tool_status, e.tool_args) for e in calls] == [
        ("own", "echo", ToolStatus.STARTED, {"n": 1}),
        ("own", "echo", ToolStatus.OK, {"n": 1}),
    ]
    assert sorted((e.tool_name, str(e.tool_status), e.decision) for e in ended(result)) == [
        ("echo", "ok", "allow"),
        ("echo", "ok", "allow"),
        ("own_absent", "unknown", ""),
    ]
    assert all(e.tool_duration_ms is not None for e in ended(result) if e.server == "own")
    assert scene.arguments() == [{"n": 1}, {"n": 2}]
    assert any(e.kind is AgentEventKind.RAW and e.raw == "no JSON" for e in result.raw_events)
    assert (result.text, result.usage.input, result.usage.output, result.usage.cached) == ("I begin.", 11, 7, 3)

    first, *events, last = scene.log(result)
    assert (first["metadata"]["run_id"], first["metadata"]["profile"]) == (result.run_id, "developer")
    logged = [line["event"] for line in events if "event" in line]
    assert logged == [json.loads(json.dumps(e.to_json())) for e in result.raw_events]
    assert [line["session"]["session"] for line in events if "session" in line] == ["scribe-1"]
    summary, listing = last["summary"], last["summary"]["listing"]
    reported = {"input_tokens": 11, "output_tokens": 7, "cache_read_tokens": 3, "cache_creation_tokens": None}
    listed = {"mode": "full", "tools": listing["tools"], "list_tokens": listing["tokens"]}
    assert events[-1] == {"token_usage": {**reported, **listed, "list_tokens_estimated": False}}
    assert (summary["tools"]["own:echo"], summary["usage"]["input"], listing["tools"] > 5) == (2, 11, True)
    assert 100 < listing["tokens"] < listing["bytes"]
    assert result.log == scene.project / ".toolcrib" / "runs" / f"{result.run_id}.jsonl"
    assert result.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("KSI-2", "KSI-5")
async def test_a_run_leaves_no_process_agent_or_token_and_its_launch_gets_toolcribs_private_folders(scene):
    folders: set[str] = set()
    messages: list[str] = []
    requests: list[LaunchRequest] = []

    def note(event: AgentEvent, _: RunStream) -> None:
        folders.update(scene.folders())
        messages.extend([event.text] if event.kind is AgentEventKind.MESSAGE else [])

    def launch(request: LaunchRequest) -> Launch:
        requests.append(request)
        return scribe.HEADLESS.launch(request)

    client = replace(scribe.SCRIBE, headless=replace(scribe.HEADLESS, launch=launch))
    result = await scene.run({"leave": 1}, {"variables": 1}, react=note, client=client)
    child, variables = int(messages[0]), json.loads(messages[1])
    assert folders == {result.metadata["agent"]}
    assert scene.agents() == []
    assert process_started_at(child) is None, "child processes end with the program"
    assert variables["SCRIBE_URL"] == scene.daemon.endpoint
    token = json.loads(variables["SCRIBE_HEADERS"])["Authorization"].removeprefix("Bearer ")
    assert token.startswith("tcb_")
    assert token not in result.log.read_text(), "the log holds no token, although the program printed it"
    assert AgentEndpoint(scene.daemon, token).modern("tools/list").status == 401
    [request] = requests
    home = scene.home.toolcrib
    logs = scene.project / ".toolcrib" / "runs"
    assert set(request.private) == {home, home / "state", home / "cache", home / "run", logs}


@pytest.mark.req("FRG-7", "KSI-6")
async def test_a_denial_has_its_rule_and_is_counted(scene):
    result = await scene.run(call("echo", n=1), profile="nothing")
    (over,) = ended(result)
    assert (over.tool_status, over.decision, over.rule) == (ToolStatus.DENIED, "deny", "no rule allows it")
    assert result.metadata["denials"] == 1
    assert scene.seen() == []


@pytest.mark.req("FRG-10")
async def test_a_run_that_takes_too_long_is_ended_even_if_its_program_ignores_signals(scene):
    result = await scene.run({"deaf": 1}, {"leave": 1}, FOREVER, timeout=1.5)
    assert result.status is RunStatus.TIMEOUT
    assert "--timeout=4h" in result.metadata["remedy"]
    assert process_started_at(int(result.text)) is None
    assert scene.log(result)[-1]["summary"]["status"] == "timeout"
    assert scene.agents() == []


@pytest.mark.req("FRG-6", "FRG-7", "FRG-11")
@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_interrupted_run_ends_cleanly_and_keeps_its_session_and_last_output(scene, cancelled):
    stream = RunStream(CodingAgentRun(scene.request({"talks": 3000}, {"leave": 1}, FOREVER)))
    message: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with stream:
            async for event in stream:
                if event.kind is AgentEventKind.MESSAGE:
                    seals = LogSeals.of_user(scene.environ)
                    found = run_history.conversation_state(scene.project, "last", "scribe", seals)
                    assert found.session == "scribe-1", "the session is in the log while the run continues"
                    message.set_result(int(event.text))
                    if not cancelled:
                        break

    reading = asyncio.create_task(read())
    child = await asyncio.wait_for(message, LIMIT)
    if cancelled:
        reading.cancel()
    await asyncio.wait({reading}, timeout=LIMIT)
    assert reading.cancelled() is cancelled
    assert stream.result.status is RunStatus.INTERRUPTED
    assert scene.log(stream.result)[-1]["summary"]["status"] == "interrupted"
    assert process_started_at(child) is None
    assert scene.agents() == []
    printed = [e.raw for e in stream.result.raw_events if isinstance(e.raw, dict)]
    assert [line["n"] for line in printed if line["type"] == "last"] == list(range(3000))


@pytest.mark.req("FRG-10")
async def test_a_run_stops_when_its_daemon_dies(alone, monkeypatch):
    monkeypatch.setattr(lease, "GONE_FOR", 0.5)
    running = alone.start_daemon()

    def kill(event: AgentEvent, _: RunStream) -> None:
        if event.tool_status is ToolStatus.OK:
            running.kill()

    result = await alone.run(call("echo", n=1), FOREVER, react=kill)
    assert result.status is RunStatus.NO_TOOLS
    assert "daemon was lost" in result.error


@pytest.mark.req("FRG-10")
async def test_if_no_daemon_can_start_a_run_stops_or_continues_without_tools(alone):
    alone.home.write_config({"store": "/proc/none/mcp.db", **alone.servers()})
    with pytest.raises(ToolcribError) as raised:
        await alone.run({"say": "hello"})
    assert raised.value.remedy
    result = await alone.run({"say": "hello"}, {"variables": 1}, on_mcp_failure=CONTINUE)
    assert (result.status, json.loads(result.text)["SCRIBE_URL"]) == (RunStatus.FINISHED, "")
    assert "continues without" in result.raw_events[0].text


@pytest.mark.req("FRG-10")
async def test_a_program_that_never_lists_the_tools_or_requires_them_is_detected(scene, monkeypatch):
    monkeypatch.setattr(run_lifecycle, "_NOTES_TIMEOUT", 0.2)
    for on_failure, status in ((STOP, RunStatus.NO_TOOLS), (CONTINUE, RunStatus.FINISHED)):
        result = await scene.run({"say": "Done, I think."}, extra=("--never-ask",), on_mcp_failure=on_failure)
        assert result.status is status
        assert any("has not connected to Toolcrib" in e.text for e in result.raw_events)
    insists = {"extra": ("--insist",), "client": scribe.REFUSED}
    result = await scene.run({"say": "without"}, on_mcp_failure=CONTINUE, **insists)
    assert (result.status, result.text) == (RunStatus.FINISHED, "without"), "it was started again without them"
    assert sum("401" in text for text in warnings(result)) == 1


@pytest.mark.req("FRG-3", "FRG-10")
async def test_the_program_gets_the_users_environment_and_a_warning_for_each_missing_server(alone):
    alone.environ |= {"OWN_KEY": SECRET, "EDITOR": "ed", "TOOLCRIB_LOG_LEVEL": "info", "SCRIBE_KEY": "mine"}
    config = alone.servers()
    config["servers"]["own"]["env"] |= {"KEY": "${OWN_KEY}", "OTHER": "${SCRIBE_KEY}"}
    config["servers"]["gone"] = {"command": "/no/such/program"}
    config["servers"]["unset"] = {"url": "https://${NEVER_SET}/mcp"}
    (alone.project / ".toolcrib").mkdir()
    (alone.project / ".toolcrib" / "config.json").write_text('{"servers": {"x": {"command": "x"}}}')
    alone.start_daemon(config=config)

    plain = await alone.run({"variables": 1})
    texts = warnings(plain)
    assert len(texts) == 4, "\n".join(texts)
    for part in ("NEVER_SET", "toolcrib trust", "OWN_KEY", "erver gone "):
        assert [part in text for text in texts].count(True) == 1, part
    assert (plain.status, list(plain.metadata["unavailable"])) == (RunStatus.FINISHED, ["gone"])
    variables = json.loads(plain.text)
    assert variables["EDITOR"] == "ed"
    assert variables["SCRIBE_KEY"] == "mine", "the program's own variables stay"
    assert not [name for name in variables if name.startswith("TOOLCRIB_") and name != "TOOLCRIB_CHILD"]
    assert "OWN_KEY" not in variables

    file = alone.home.path / "more.env"
    file.write_text("# mine\nMORE='a longer secret'\n")
    file.chmod(0o600)
    named = await alone.run({"variables": 1}, env=("OWN_KEY",), env_file=file)
    assert json.loads(named.text)["OWN_KEY"] == SECRET
    assert json.loads(named.text)["MORE"] == "a longer secret"
    log = named.log.read_text()
    assert SECRET not in log
    assert "a longer secret" not in log


@pytest.mark.req("FRG-10")
async def test_a_run_waits_for_a_server_that_is_still_starting(alone):
    gate = alone.home.path / "gate"
    slow = ["-c", 'until [ -e "$0" ]; do sleep 0.1; done; exec "$@"', str(gate)]
    config = alone.servers(connect_timeout=LIMIT)
    server = config["servers"]["own"]
    server |= {"command": "/bin/sh", "args": [*slow, server["command"], *server["args"]]}
    server["env"] |= {"PYTHONSAFEPATH": ""}
    alone.start_daemon(config=config, ready=False)
    running = asyncio.create_task(alone.run(call("echo", n=1)))
    await during(wait_for, alone.agents, "the run to have an agent")
    assert not running.done()
    gate.touch()
    result = await running
    metadata = result.metadata
    assert (result.status, metadata["tools"], metadata["unavailable"]) == (RunStatus.FINISHED, {"own:echo": 1}, {})


@pytest.mark.req("FRG-10")
async def test_a_broken_workspace_yml_is_reported_and_fails_a_run_if_no_call_succeeded(scene):
    (scene.project / ".toolcrib").mkdir()
    (scene.project / ".toolcrib" / "workspace.yml").write_text("limits: [\n")
    looks: dict[str, Any] = {"call": ["workspace_list_dir", {}]}
    failed = await scene.run(looks, {"say": "done"})
    assert any("workspace.yml" in text and "will refuse calls" in text for text in warnings(failed))
    assert (failed.status, "workspace.yml" in failed.error) == (RunStatus.FAILED, True)
    assert "toolcrib workspace check" in failed.metadata["remedy"]
    assert (await scene.run(looks, call("echo", n=1), {"say": "done"})).status is RunStatus.FINISHED
    assert (await scene.run({"say": "no call at all"})).status is RunStatus.FINISHED


@pytest.mark.req("FRG-7", "FRG-9")
async def test_a_home_toolcribs_folders_and_a_name_that_is_not_utf8_are_refused_as_folders(scene):
    for folder in (scene.home.user, scene.home.path, scene.home.toolcrib, Path("/")):
        with pytest.raises(UsageError, match="cannot be a run's folder"):
            await scene.run({"say": "x"}, workdir=folder)
    assert not (scene.home.user / ".toolcrib").exists()
    unreadable = Path(os.fsdecode(os.fsencode(scene.project) + b"/b\xff\xfed"))
    unreadable.mkdir()
    with pytest.raises(UsageError, match="is not UTF-8"):
        await scene.run({"say": "x"}, workdir=unreadable)
    assert list(unreadable.iterdir()) == []


@pytest.mark.req("FRG-10")
async def test_the_program_is_stopped_even_if_the_daemon_hangs(alone, monkeypatch):
    monkeypatch.setattr(lease, "_RELEASED_WITHIN", 1.0)
    running = alone.start_daemon()
    ticks = alone.home.path / "ticks"
    began = [time.monotonic()]

    def hang(event: AgentEvent, _: RunStream) -> None:
        if event.kind is AgentEventKind.MESSAGE:
            running.process.send_signal(signal.SIGSTOP)
            began.append(time.monotonic())

    try:
        result = await alone.run({"say": "x"}, {"tick": str(ticks)}, timeout=3.0, react=hang)
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert result.status is RunStatus.TIMEOUT
    assert float(ticks.read_text()) - began[-1] < LIMIT / 2, "the program must not continue while the daemon hangs"


@pytest.mark.req("FRG-7", "FRG-11")
async def test_a_conversation_continues_in_the_programs_session_and_only_by_a_sealed_log(scene):
    first = await scene.run(call("echo", n=1))
    conversation = first.metadata["conversation"]
    second = await scene.run(call("echo", n=2), conversation=conversation)
    assert second.metadata["session_before"] == first.metadata["session"] == "scribe-1"
    assert warnings(second) == []
    entries = scene.command("audit:query")["entries"]
    calls = [e for e in entries if e["kind"] == "outcome" and e["conversation"] == conversation]
    assert {(entry["tool"], entry["agent"]) for entry in calls} == {("own:echo", first.metadata["agent"])}
    assert len(calls) == 2

    planted = "29990101-000000-aaaaaa"
    lines = scene.log(first)
    lines[0]["metadata"]["run_id"] = planted
    lines[-1]["summary"]["session"] = "scribe-77"
    first.log.with_name(f"{planted}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    third = await scene.run({"say": "x"}, conversation="last")

    def run_at_the_same_time(event: AgentEvent, _: RunStream) -> None:
        if event.kind is AgentEventKind.MESSAGE:
            with pytest.raises(UsageError):
                asyncio.run(scene.run({"say": "me too"}, conversation=conversation))

    fourth = await scene.run({"say": "here"}, conversation=conversation, react=run_at_the_same_time)
    for result in (second, third, fourth):
        assert (result.status, result.metadata["conversation"]) == (RunStatus.FINISHED, conversation)
        assert result.raw_events[0].raw["words"][0] == "session=scribe-1"
    with pytest.raises(NotFound):
        await scene.run({"say": "x"}, conversation="unheard-of")


async def test_a_run_says_which_list_of_tools_it_gets(scene):
    """`handshake` means a full list for the first run of a conversation, and a thin one for those that continue it."""

    async def said(**changed: Any) -> tuple[str | None, str]:
        result = await scene.run({"variables": None}, **changed)
        headers: dict[str, str] = json.loads(json.loads(result.text)["SCRIBE_HEADERS"])
        assert "X-Toolcrib-Without" not in headers, "a profile takes the program's own tools away"
        return headers.get("X-Toolcrib-Listing"), result.metadata["conversation"]

    full, conversation = await said(listing=ListingMode.HANDSHAKE)
    thin, _ = await said(listing=ListingMode.HANDSHAKE, conversation=conversation)
    plain, _ = await said(conversation=conversation)
    search, _ = await said(listing=ListingMode.SEARCH)
    assert (full, thin, plain, search) == ("full", "thin", None, "search")


INCOMPLETE = "Scribe exited without its final output line, so its answer is missing or incomplete."


@pytest.mark.req("FRG-7")
async def test_a_run_fails_if_its_program_exits_with_an_error_or_without_its_final_line(scene):
    for last, code, error, remedy in (
        ({"exit": 7}, 7, "code 7", ""),
        ({"exit": 0}, 0, INCOMPLETE, "--conversation last"),
        ({"print": '{"type": "end", "tokens": {"in": 11, "out"'}, 0, INCOMPLETE, "--conversation last"),
    ):
        result = await scene.run({"say": "no"}, last, {"exit": 0})
        assert (result.status, result.program_exit_code, result.text) == (RunStatus.FAILED, code, "no")
        assert not result.ok
        assert error in result.error
        assert remedy in result.metadata["remedy"]


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize("version", ["", "1.1.9"])
async def test_a_missing_or_outdated_program_is_refused_with_the_command_that_installs_it(scene, version):
    program = scene.home.path / "bin" / "scribe"
    text = program.read_text().replace("1.4.0", version)
    program.unlink()
    if version:
        program.write_text(text)
        program.chmod(0o755)
    with pytest.raises(ToolcribError) as raised:
        await scene.run({"say": "x"})
    assert "pip install scribe" in raised.value.text()
    assert version in raised.value.text()


@pytest.mark.req("FRG-3", "FRG-11")
async def test_ten_runs_at_once_start_one_daemon_and_share_each_projects_servers_and_nothing_else(alone):
    alone.home.write_config(alone.servers(cwd="project", connect_timeout=LIMIT))
    folders = [alone.home.path / f"project-{n}" for n in range(3)]
    for folder in folders:
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    go = alone.home.path / "go"
    steps = [(call("echo", n=n), {"until": str(go)}, {"say": f"I am {n}"}) for n in range(10)]
    running = asyncio.gather(*(alone.run(*steps[n], workdir=folders[n % 3]) for n in range(10)))
    await during(wait_for, lambda: len(alone.seen()) == 10, "ten calls")
    go.touch()
    results = await running
    for n, result in enumerate(results):
        assert (result.status, result.text) == (RunStatus.FINISHED, f"I am {n}")
        calls = [event.tool_args for event in result.raw_events if event.kind is AgentEventKind.TOOL]
        assert calls == [{"n": n}, {"n": n}], "only its own calls"
        assert sum("event" in line for line in alone.log(result)) == len(result.raw_events)
    assert len({result.metadata["agent"] for result in results}) == 10
    assert len({note["pid"] for note in alone.seen()}) == 3, "a server is started once in each project"
    await during(wait_for, lambda: not alone.home.socket.exists(), "the daemon to end")
    assert alone.folders() == set()
