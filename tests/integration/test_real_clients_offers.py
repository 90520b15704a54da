"""The real Claude Code, Codex and Gemini CLI with a server's prompts and resources, through the daemon.

The tests check what the model and the server received.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, server_process
from parts.coding_agents import CodingAgent
from parts.daemon import Cli, Home, StartDaemon
from toolcrib.testing.script import CallByName, Step
from toolcrib.testing.server import ScriptedModel, serving

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5")]


DIRECT: dict[str, Callable[[dict[str, Any]], str]] = {
    "claude": lambda entry: json.dumps({"mcpServers": {"toolcrib": entry}}),
    "codex": lambda entry: (
        "[mcp_servers.toolcrib]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    ),
}


class OffersScene:
    """A daemon with a server that has a prompt and resources, and a client's runs at it or at the server itself."""

    def __init__(self, home: Home, cli: Cli, daemon: StartDaemon, parts: Callable[[str], list[str]]) -> None:
        self.home, self.cli, self.parts = home, cli, parts
        self.seen_file = home.path / "seen"
        program, *words = server_process.stdio_command("sdk_v2", "--seen", str(self.seen_file))
        self.server = {"command": program, "args": words}
        self.daemon = daemon({"servers": {"own": self.server}})
        self.daemon.wait_until_ready()
        cli("agent", "add", "reviewer", "--profile", "developer").ok()

    def seen(self, method: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.seen_file.read_text().splitlines()]
        return [line for line in lines if line["method"] == method]

    def run(self, client: CodingAgent, *steps: Step, directly: bool = False) -> ScriptedModel:
        """`directly`: with the server's own entry, under the same name, instead of the one for Toolcrib."""
        self.parts(client.name)
        if directly:
            generated = self.home.path / "direct"
            generated.write_text(DIRECT[client.name](self.server))
        else:
            connected = self.cli("connect", client.name, "--agent", "reviewer", "--json").ok().json
            generated = Path(connected["generated"])
        with serving(client.provider, steps) as model:
            folder = self.home.path / ("direct-client" if directly else "client")
            coding_agents.install_agent(client, folder, model).run(cwd=self.home.project, generated=generated)
        return model


@pytest.fixture
def scene(toolcrib_home: Home, cli: Cli, daemon: StartDaemon, parts: Callable[[str], list[str]]) -> OffersScene:
    return OffersScene(toolcrib_home, cli, daemon, parts)


def saying(client: CodingAgent, prompt: str, *more: str) -> CodingAgent:
    words = tuple(prompt if word == coding_agents.PROMPT else word for word in client.words)
    return replace(client, words=(*words, *more))


def test_claude_uses_a_servers_prompt_as_a_slash_command_and_reads_a_resource(scene: OffersScene) -> None:
    steps = (
        CallByName("ListMcpResourcesTool", {"server": "toolcrib"}),
        CallByName("ReadMcpResourceTool", {"server": "toolcrib", "uri": "test://one"}),
    )

    def run(prompt: str, *, directly: bool) -> ScriptedModel:
        allowed = "mcp__toolcrib,ListMcpResourcesTool,ReadMcpResourceTool"
        client = saying(coding_agents.CLAUDE, f"/mcp__toolcrib__{prompt} Ada", "--allowedTools", allowed)
        return scene.run(client, *steps, directly=directly)

    model = run("own_greet", directly=False)
    assert "Greet Ada." in json.dumps(model.bodies[0]["messages"])
    assert [one["arguments"]["arguments"] for one in scene.seen("prompts/get")] == [{"who": "Ada"}]
    listed, read = model.results
    assert "test://one" in listed
    assert "crib://servers" in listed
    assert "tekst ✓" in read
    assert [one["name"] for one in scene.seen("resources/read")] == ["test://one"]

    direct = run("greet", directly=True)
    assert read == direct.results[1], "the model reads the same"
    assert "Greet Ada." in json.dumps(direct.bodies[0]["messages"])


def test_codex_lists_and_reads_resources(scene: OffersScene) -> None:
    steps = (
        CallByName("list_mcp_resources", {"server": "toolcrib"}),
        CallByName("list_mcp_resource_templates", {"server": "toolcrib"}),
        CallByName("read_mcp_resource", {"server": "toolcrib", "uri": "test://one"}),
    )
    listed, templates, read = scene.run(coding_agents.CODEX, *steps).results
    assert "test://one" in listed
    assert "test://note/{id}" in templates
    assert "tekst ✓" in read
    assert read == scene.run(coding_agents.CODEX, *steps, directly=True).results[2], "the model reads the same"


def test_gemini_uses_a_servers_prompt_as_a_slash_command_and_reads_a_resource(scene: OffersScene) -> None:
    model = scene.run(
        saying(coding_agents.GEMINI, "/own_greet Ada"),
        CallByName("list_mcp_resources", {"serverName": "toolcrib"}),
        CallByName("read_mcp_resource", {"uri": "test://one"}),
    )
    assert "Greet Ada." in json.dumps(model.bodies[0])
    assert [one["arguments"]["arguments"] for one in scene.seen("prompts/get")] == [{"who": "Ada"}]
    listed, read = model.results
    assert "test://one" in listed
    assert "tekst ✓" in read, read
