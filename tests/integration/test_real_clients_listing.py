"""The real Claude Code, Codex and Gemini CLI do a task of six calls on twelve servers, in each listing mode.

Scripted models show that the lists are enough and what they cost, not that a real model chooses well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, runs
from parts.agent_clients import AgentClient, Owner
from parts.coding_agents import CodingAgent
from parts.daemon import nothing_left_behind, run_cli
from parts.listing_scene import (
    FIRST_WORDS,
    STAND_INS,
    FinishedTask,
    ListingScene,
    TaskCall,
    expected_mode,
    listing_scene,
    task,
)
from toolcrib.config.model import ListingMode
from toolcrib.testing.conversation import ModelTool, ToolOffering
from toolcrib.testing.script import Call, CallByName
from toolcrib.testing.server import ScriptedModel, serving

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-4")

EVERY = [
    (name, offering, mode)
    for name, setup in runs.ALL.items()
    for offering in setup.offerings
    for mode in ListingMode
    # Codex's own search misses tools with short definitions.
    if (name, offering, mode) != ("codex", ToolOffering.DEFERRED, ListingMode.THIN)
]
Shape = tuple[str, frozenset[str], frozenset[str]]
"""A definition's description, parameters and required parameters: clients change other parts of the schemas."""


@pytest.fixture(scope="module")
def scene(parts: Callable[[str], list[str]], bwrap: Path) -> Iterator[ListingScene]:
    for name in runs.ALL:
        parts(name)
    with listing_scene() as opened:
        yield opened


@pytest.fixture(scope="module")
def listed(scene: ListingScene) -> Callable[[ListingMode], dict[str, Shape]]:
    """What an agent of the same profile gets from the daemon."""
    token = Owner(scene.daemon).add("looker", profile="developer")

    def by_mode(mode: ListingMode) -> dict[str, Shape]:
        with AgentClient(scene.daemon, "looker", token, "modern") as client:
            client.endpoint.labels = (("X-Toolcrib-Listing", mode),)
            tools = client.ask("tools/list").result["tools"]
        return {_name(tool["name"]): _shape(tool, tool["inputSchema"]) for tool in tools}

    return by_mode


@pytest.mark.usual(offering="PLAIN")
@pytest.mark.parametrize(("client", "offering", "mode"), EVERY)
def test_a_task_of_six_calls_is_done_in_every_mode(
    scene: ListingScene,
    listed: Callable[[ListingMode], dict[str, Shape]],
    client: str,
    offering: ToolOffering,
    mode: ListingMode,
) -> None:
    done = scene.do(client, offering, mode)
    assert [run.exit_code for run in done.runs] == [0] * len(done.runs), done.runs[-1].err
    assert done.model.offering is offering

    first = expected_mode(client, mode)
    second = ListingMode.THIN if mode is ListingMode.HANDSHAKE else first
    modes = [first] + [second] * (len(done.calls) - 1)
    searched = first is ListingMode.SEARCH
    results = done.model.results[1::2] if searched else done.model.results
    assert len(results) == len(done.calls) == 6
    for call, result in zip(done.calls, results, strict=True):
        assert call.answer in result, call.display
    _check_the_record(done, modes, searched=searched)
    _check_the_definitions(done, client, listed(first))
    run_lists = [run.json["listing"]["mode"] for run in done.runs]
    assert run_lists == ([first, second] if mode is ListingMode.HANDSHAKE else [first])
    if mode is ListingMode.HANDSHAKE and offering is ToolOffering.PLAIN:
        _check_the_second_list(done, client, listed(first), listed(second))


def _check_the_second_list(
    done: FinishedTask, client: str, first: Mapping[str, Shape], second: Mapping[str, Shape]
) -> None:
    later = done.first_requests[1].conversation
    assert later is not None
    # Claude Code continues a conversation with the definitions that it began with, and adds new tools.
    expected = {**second, **first} if client == runs.CLAUDE.agent.name else second
    assert _ours(client, later.tools) == expected


@pytest.mark.usual(client="claude")
@pytest.mark.parametrize("client", coding_agents.ALL, ids=lambda agent: str(agent.name))
def test_a_connected_client_searches_and_calls_over_the_bridge(
    scene: ListingScene, tmp_path: Path, client: CodingAgent
) -> None:
    call = task(scene.home.path)[3]
    steps = [
        Call("crib_find", {"query": call.query}),
        Call("crib_call", {"tool": call.name, "arguments": call.arguments}),
    ]
    model = connected(scene, tmp_path, client, "search", *steps)
    assert client.tools(model) == {"crib_find", "crib_describe", "crib_call", "crib_batch", "crib_result"}
    assert call.name in model.results[0]
    assert call.answer in model.results[1]
    intents = [row for row in Owner(scene.daemon).audit(agent=client.name) if row["kind"] == "intent"]
    assert [(row["tool"], row["mode"]) for row in intents] == [(call.display, "search")]


def test_claude_code_keeps_workspace_tools_in_a_run_that_nobody_watches(scene: ListingScene, tmp_path: Path) -> None:
    """There, its own Bash and Write ask for an approval that nobody can give."""
    file = tmp_path / "project" / "written.txt"
    steps = [
        CallByName("Write", {"file_path": str(file), "content": "by its own tool"}),
        Call("workspace_write_file", {"path": file.name, "content": "by ours"}),
    ]
    model = connected(scene, tmp_path, coding_agents.CLAUDE, "full", *steps)
    assert "granted" in model.results[0]
    assert file.read_text() == "by ours"
    tools = coding_agents.CLAUDE.tools(model)
    assert {"workspace_run_shell_safe", "workspace_edit_file"} <= tools
    assert "workspace_read_file" not in tools


def connected(
    scene: ListingScene, folder: Path, client: CodingAgent, listing: str, *steps: Call | CallByName
) -> ScriptedModel:
    """A run of the client with the entry that `toolcrib connect --write` puts into its file."""
    project = folder / "project"
    project.mkdir()
    (project / ".git").mkdir()
    environ = {"HOME": str(folder / "home"), "CODEX_HOME": str(folder / "home" / ".codex")}
    words = ("connect", client.name, "--listing", listing, "--json")
    with serving(client.provider, steps) as model:
        installed = coding_agents.install_agent(client, folder, model)
        run_cli(scene.home, *words, "--write", env=environ, cwd=project).ok()
        installed.file.write_text(client.unattended(installed.file.read_text()))
        try:
            installed.run(cwd=project)
        finally:
            run_cli(scene.home, *words[:2], "--remove", env=environ, cwd=project).ok()
    return model


def _check_the_record(done: FinishedTask, modes: list[ListingMode], *, searched: bool) -> None:
    arrived = [(call["tool"], call["arguments"]) for call in done.recorded]
    assert arrived == [(call.tool, call.arguments) for call in done.calls if call.server in STAND_INS]
    intents = [row for row in done.audit if row["kind"] == "intent"]
    assert [(row["tool"], row["mode"]) for row in intents] == [
        (call.display, mode) for call, mode in zip(done.calls, modes, strict=True)
    ]
    outcomes = [(row["tool"], row["outcome"]) for row in done.audit if row["kind"] == "outcome"]
    assert outcomes == [pair for call in done.calls for pair in _outcomes(call, searched=searched)]


def _outcomes(call: TaskCall, *, searched: bool) -> list[tuple[str, str]]:
    return [*([("crib:find", "ok")] if searched else []), (call.display, "ok")]


def _check_the_definitions(done: FinishedTask, client: str, listed: Mapping[str, Shape]) -> None:
    """The model gets the definitions of the mode: all of them, or those that the client's own search found."""
    model = done.model
    if model.offering is ToolOffering.PLAIN:
        assert _ours(client, model.offered) == listed
        return
    assert _ours(client, model.offered) == {}
    if model.offering is ToolOffering.DEFERRED:
        first_run = (one for one in model.conversations if FIRST_WORDS not in one.said)
        found = _ours(client, tuple(tool for one in first_run for tool in one.found))
        assert found.items() <= listed.items()
        assert found


def _ours(client: str, tools: tuple[ModelTool, ...]) -> dict[str, Shape]:
    prefix = runs.ALL[client].agent.prefix
    return {
        _name(tool.name.removeprefix(prefix)): _shape(tool.definition, _schema(tool.definition))
        for tool in tools
        if prefix in (tool.namespace, tool.name[: len(prefix)])
    }


def _name(name: str) -> str:
    # Codex's tools have no hyphens.
    return name.replace("-", "_")


def _schema(definition: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("input_schema", "parameters", "parametersJsonSchema")
    return next(definition[key] for key in keys if key in definition)


def _shape(definition: Mapping[str, Any], schema: Mapping[str, Any]) -> Shape:
    # Claude Code writes three dots, and Gemini CLI adds a parameter of its own.
    description = definition.get("description", "").replace("…", "...")
    parameters = frozenset(schema.get("properties", {})) - {"wait_for_previous"}
    return description, parameters, frozenset(schema.get("required", ()))
