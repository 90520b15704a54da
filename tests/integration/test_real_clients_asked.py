"""The real Claude Code and Codex answer a server's question, at the server itself and through the daemon.

Claude Code answers with its hook `Elicitation`, Codex through its app server; both show what they received. The tests
compare both ways: only the message differs, which names the server.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, server_process
from parts.codex_app import CodexApp
from parts.coding_agents import CodingAgent, InstalledAgent
from parts.daemon import Cli, Home, StartDaemon
from toolcrib.testing.script import Call
from toolcrib.testing.server import serving

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-9")]

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "title": "Colour", "enum": ["red", "green"]}, "n": {"type": "integer"}},
    "required": ["colour"],
}
FORM = {"method": "elicitation/create", "params": {"message": "Which colour?", "requestedSchema": SCHEMA}}
PAGE = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Please pay.", "url": "https://shop.example.com/pay", "elicitationId": "e1"},
}
ACCEPTED: dict[str, Any] = {"action": "accept", "content": {"colour": "green", "n": 3}}
SERVERS = {"modern": ("sdk_v2",), "legacy": ("sdk_v1",)}


NAMES = {"claude": "toolcrib__ask", "codex": "ask"}
"""The tool at the server itself, as the end of the name that each client gives it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    received: dict[str, Any]
    """What the client passed on to whoever answers."""
    answered: Any
    """What the server got."""
    capabilities: Any
    """What the server was told that the client can do."""
    result: str
    """What the model got."""


class AskedScene:
    def __init__(self, home: Home, cli: Cli, start: StartDaemon, era: str) -> None:
        self.home, self.cli = home, cli
        self.seen_file = home.path / "seen"
        program, *words = server_process.stdio_command(*SERVERS[era], "--seen", str(self.seen_file))
        self.server = {"command": program, "args": words}
        start({"servers": {"own": self.server}}).wait_until_ready()
        cli("agent", "add", "reviewer", "--profile", "developer").ok()

    def run(self, client: CodingAgent, question: dict[str, Any], answer: dict[str, Any], *, directly: bool) -> Outcome:
        """`directly`: with the server's own entry, under the name of the one for Toolcrib."""
        mark = f"{question['params'].get('mode', 'form')}-{'direct' if directly else 'through'}"
        folder = self.home.path / mark
        call = Call(NAMES[client.name] if directly else "own_ask", {"rounds": [{"q": question}], "mark": mark})
        with serving(client.provider, [call]) as model:
            installed = coding_agents.install_agent(client, folder, model)
            entry = folder / "entry"
            entry.write_text(self.entry(client, directly=directly))
            (received,) = ASKED[client.name](installed, entry, self.home.project, answer)
        seen = [json.loads(line) for line in self.seen_file.read_text().splitlines()]
        (answered,), (capabilities,) = (
            [one["arguments"] for one in seen if (one["method"], one["name"]) == (kind, mark)]
            for kind in ("answered", "asking")
        )
        return Outcome(received=received, answered=answered, capabilities=capabilities, result=model.results[-1])

    def entry(self, client: CodingAgent, *, directly: bool) -> str:
        if not directly:
            connected = self.cli("connect", client.name, "--agent", "reviewer", "--json").ok().json
            return Path(connected["generated"]).read_text()
        if client is coding_agents.CODEX:
            lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.server.items())
            return client.unattended(f"[mcp_servers.toolcrib]\n{lines}")
        return json.dumps({"mcpServers": {"toolcrib": self.server}})


def claude_asked(installed: InstalledAgent, entry: Path, cwd: Path, answer: dict[str, Any]) -> list[dict[str, Any]]:
    asked = installed.home.with_name("asked")
    told = {"hookSpecificOutput": {"hookEventName": "Elicitation", **answer}}
    command = f"cat >> {shlex.quote(str(asked))}; echo {shlex.quote(json.dumps(told))}"
    settings = json.dumps({"hooks": {"Elicitation": [{"hooks": [{"type": "command", "command": command}]}]}})
    agent = replace(installed.agent, words=(*installed.agent.words, "--settings", settings))
    replace(installed, agent=agent).run(cwd=cwd, generated=entry)
    return [json.loads(line) for line in asked.read_text().splitlines()]


def codex_asked(installed: InstalledAgent, entry: Path, cwd: Path, answer: dict[str, Any]) -> list[dict[str, Any]]:
    with installed.file.open("a") as settings:
        settings.write(entry.read_text())
    return CodexApp(installed, cwd).run(answer)


ASKED = {"claude": claude_asked, "codex": codex_asked}
SHOWN = {"claude": ("mode", "requested_schema", "url"), "codex": ("mode", "requestedSchema", "url")}
"""What a client passes on, besides the message and its own ids."""


@pytest.mark.usual(era="modern")
@pytest.mark.parametrize("era", SERVERS)
@pytest.mark.parametrize("client", [coding_agents.CLAUDE, coding_agents.CODEX], ids=lambda client: str(client.name))
def test_a_client_answers_questions_as_it_does_at_the_server_itself(
    client: CodingAgent,
    era: str,
    toolcrib_home: Home,
    cli: Cli,
    daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> None:
    parts(client.name)
    parts("mcp-v1")
    scene = AskedScene(toolcrib_home, cli, daemon, era)
    for question, answer in ((FORM, ACCEPTED), (PAGE, {"action": "accept"})):
        direct, through = (scene.run(client, question, answer, directly=directly) for directly in (True, False))
        assert direct.answered["q"].items() >= answer.items()
        assert through.answered == direct.answered
        assert through.capabilities["elicitation"] == direct.capabilities["elicitation"]
        shown = SHOWN[client.name]
        assert [through.received.get(key) for key in shown] == [direct.received.get(key) for key in shown]
        assert direct.received["message"] == question["params"]["message"]
        assert through.received["message"].startswith("Server 'own' asks")
        assert through.received["message"].endswith(f": {direct.received['message']}")
        assert json.dumps(answer["action"]) in through.result
