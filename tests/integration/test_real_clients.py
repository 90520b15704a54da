"""The real Claude Code, Codex and Gemini CLI, each with a scripted model, as clients of the real daemon.

The tests check what the model and the server received: a client exits with 0 whatever happened.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, fleet, server_process
from parts.coding_agents import CodingAgent, InstalledAgent
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.server_process import StartServer
from toolcrib.testing.script import Call
from toolcrib.testing.server import ScriptedModel, serving

pytestmark = pytest.mark.req("KSI-5")


@pytest.fixture(params=coding_agents.ALL, ids=lambda agent: str(agent.name))
def client(request: pytest.FixtureRequest, parts: Callable[[str], list[str]]) -> CodingAgent:
    agent: CodingAgent = request.param
    parts(agent.name)
    return agent


@dataclass(kw_only=True)
class Scene:
    """A daemon with a server that records its calls, and the agent `reviewer`, for a real client."""

    home: Home
    cli: Cli
    start: StartDaemon
    daemon: Daemon

    @property
    def seen(self) -> Path:
        return self.home.path / "seen"

    def calls(self) -> list[dict[str, Any]]:
        """The arguments of the calls that arrived at the server, in order."""
        lines = self.seen.read_text().splitlines() if self.seen.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note["arguments"] for note in notes if note["method"] == "tools/call"]

    def restart_daemon(self, config: dict[str, Any] | None = None) -> None:
        # While the lock is held, a client's bridge does not start a daemon itself.
        with (self.home.socket.parent / "start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.daemon.stop()
            self._start_again(config)

    def kill_and_restart_daemon(self) -> None:
        self.daemon.kill()
        self._start_again(None)

    def _start_again(self, config: dict[str, Any] | None) -> None:
        port = self.daemon.endpoint.rpartition(":")[2].partition("/")[0]
        self.daemon = self.start(config, "--port", port)

    @property
    def client_home(self) -> Path:
        return self.home.path / "client" / "home"

    def installed(self, client: CodingAgent, model: ScriptedModel) -> InstalledAgent:
        return coding_agents.install_agent(client, self.client_home.parent, model)

    def run(self, client: CodingAgent, *steps: Call) -> ScriptedModel:
        """A run of the client with the file that Toolcrib generates for the agent."""
        generated = self.cli("connect", client.name, "--agent", "reviewer", "--json").ok().json["generated"]
        with serving(client.provider, steps) as model:
            self.installed(client, model).run(cwd=self.home.project, generated=Path(generated))
        return model


@pytest.fixture
def make_scene(toolcrib_home: Home, daemon: StartDaemon, cli: Cli) -> Callable[..., Scene]:
    def make(**more: dict[str, Any]) -> Scene:
        """With more servers, if a test needs them."""
        started = daemon({"servers": {"own": own_server(toolcrib_home), **more}})
        started.wait_until_ready()
        return Scene(home=toolcrib_home, cli=cli, start=daemon, daemon=started)

    return make


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene()


def own_server(home: Home) -> dict[str, Any]:
    program, *words = server_process.stdio_command("sdk_v2")
    return {"command": program, "args": words, "env": {"TOOLCRIB_TEST_SEEN": str(home.path / "seen")}}


UNAUTHORIZED = {
    "claude": "rejected the Authorization header",
    "codex": "Authentication required",
    "gemini": "This token is unknown",
}
"""The error that each client gives its model when its token is no longer valid."""


@pytest.mark.req("KSI-1", "KSI-2", "KSI-9")
def test_a_client_is_offered_its_agents_permitted_tools_until_the_agent_is_removed(scene, client):
    scene.cli("agent", "add", "reviewer", "--profile", "nothing").ok()
    scene.cli("allow", "reviewer", "own:echo").ok()
    scene.cli("allow", "reviewer", "own:add").ok()
    model = scene.run(
        client,
        Call("own_echo", {"word": "hello"}),
        Call("own_echo", {"n": 2}, first=lambda: scene.cli("agent", "remove", "reviewer").ok()),
    )
    assert client.tools(model) == {"own_echo", "own_add", "crib_result"}
    assert scene.calls() == [{"word": "hello"}]
    assert "hello" in model.results[0]
    assert UNAUTHORIZED[client.name] in model.results[1]


@pytest.mark.req("KSI-7")
@pytest.mark.usual(client=("claude", "gemini"))
def test_the_model_gets_the_reason_why_a_call_failed(
    make_scene: Callable[..., Scene], client: CodingAgent, start_server: StartServer
) -> None:
    web = start_server([sys.executable, str(fleet.SERVERS / "sdk_v2.py"), "--transport", "http"])
    program, *words = server_process.stdio_command("raw_server")
    scene = make_scene(web={"url": web.url("http")}, gone={"command": program, "args": words})
    scene.cli("agent", "add", "reviewer", "--profile", "developer").ok()
    scene.cli("deny", "reviewer", "own:echo", "--when", "mode one_of write").ok()

    def lose_a_server() -> None:
        scene.restart_daemon({"servers": {"own": own_server(scene.home)}})

    model = scene.run(
        client,
        Call("own_echo", {"mode": "write"}),
        Call("own_add", {"a": 1}),
        Call("web_echo", first=web.process.kill),
        Call("own_boom", {"code": -32602}),
        Call("gone_ok", first=lose_a_server),
        Call("own_echo", {"mode": "read"}),
    )
    denied, unfit, away, refused, unknown, fine = model.results
    assert "reviewer may not use own:echo: agent reviewer: deny own:echo when mode one_of write" in denied
    # Gemini CLI checks arguments itself and does not send these.
    assert "required property 'b'" in unfit if client is coding_agents.GEMINI else 'must have "b"' in unfit
    assert "Server 'web'" in away
    assert "boom, as asked" in refused
    # Claude Code may have listed the tools again by then, and refuse the call itself.
    assert "There is no tool" in unknown or (client is coding_agents.CLAUDE and "No such tool" in unknown)
    assert "read" in fine
    assert scene.calls() == [{"code": -32602}, {"mode": "read"}]


@pytest.mark.req("KSI-3")
@pytest.mark.usual(client="codex")
def test_a_conversation_continues_when_the_daemon_is_restarted_or_killed(scene: Scene, client: CodingAgent) -> None:
    scene.cli("agent", "add", "reviewer", "--profile", "developer").ok()
    sessions: list[dict[str, Any]] = []

    def kill_and_look() -> None:
        scene.kill_and_restart_daemon()
        # Codex ends its session when it exits, so look before.
        sessions.extend(scene.daemon.command("session:list")["sessions"])

    model = scene.run(
        client,
        Call("own_echo", {"n": 1}),
        Call("own_echo", {"n": 2}, first=scene.restart_daemon),
        Call("own_echo", {"n": 3}, first=kill_and_look),
    )
    assert scene.calls() == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert all(f'"n":{n}' in given.replace(" ", "") for n, given in enumerate(model.results, 1)), model.results
    assert [session["agent"] for session in sessions] == ["reviewer"], "it is the same session as before"


@pytest.mark.req("KSI-2", "KSI-3")
@pytest.mark.usual(client="claude")
def test_a_connected_client_works_over_the_bridge_through_a_restart_until_its_entry_is_removed(scene, client):
    environ = {"HOME": str(scene.client_home), "CODEX_HOME": str(scene.client_home / ".codex")}

    def connect(flag: str) -> Any:
        return scene.cli("connect", client.name, flag, "--json", env=environ).ok().json

    steps = [
        Call("own_echo", {"n": 1}),
        Call("own_echo", {"n": 2}, first=scene.restart_daemon),
        Call("own_echo", {"n": 3}, first=lambda: connect("--remove")),
    ]
    with serving(client.provider, steps) as model:
        installed = scene.installed(client, model)
        assert connect("--write")["made"] is True
        installed.file.write_text(client.unattended(installed.file.read_text()))
        installed.run(cwd=scene.home.project)
    assert client.tools(model) >= {"own_echo", "crib_system_health"}
    assert "crib_server_add" not in client.tools(model), "only the owner may change Toolcrib"
    assert scene.calls() == [{"n": 1}, {"n": 2}]
    assert f"There is no agent '{client.name}'" in model.results[2]
