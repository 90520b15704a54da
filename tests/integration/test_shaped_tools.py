"""Filters and transforms from a program and from configuration files, as a real server sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parts.raw_client import Endpoint
from parts.recording_server import Notes
from toolcrib import Crib, DescribeTools, FixArguments, PrefixTools, RenameArguments, RenameTools, destructive
from toolcrib.errors import UnknownTool

RULES: list[dict[str, Any]] = [
    {"drop": "*:release"},
    {"drop": {"annotation": "destructive"}, "only": {"not": "*_push"}},
    {"rename": {"git_push": "publish"}},
    {"describe": "[{server}] {description}"},
    {"rename_arguments": {"nonce": "mark"}, "only": "git:git_status"},
    {"fix": {"tool": "git:git_push", "arguments": {"nonce": "fixed"}}},
    {"options": {"anthropic": {"cache_control": {"type": "ephemeral"}}}, "only": "*_status"},
]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "seen")


def seen(notes: Notes) -> list[tuple[str, dict[str, Any]]]:
    return [(call["tool"], call["arguments"]) for call in notes.calls()]


def write(home: Path, **config: Any) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps(config))
    return {"TOOLCRIB_HOME": str(home), "HOME": str(home)}


@pytest.mark.req("ENG-3", "ENG-5", "ENG-6", "ENG-10")
async def test_the_server_receives_the_original_names_and_arguments(tmp_path: Path, notes: Notes) -> None:
    environ = write(tmp_path / "t", servers={"git": notes.server("git_push", "git_reset", reads="git_status")})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        tools = crib.tools(
            keep="git:*",
            drop=lambda offer: destructive(offer) and offer.name != "git_push",
            transform=[
                RenameTools({"git_status": "state"}),
                PrefixTools("mcp"),
                DescribeTools(lambda offer: f"[{offer.server}] {offer.tool.name}"),
                RenameArguments({"nonce": "mark"}),
                FixArguments({"mark": "fixed"}, tools="mcp_git_push"),
            ],
        )
        assert tools.names == ("mcp_git_push", "mcp_state")
        assert tools["mcp_state"].description == "[git] git_status"
        definitions = {one["name"]: one["input_schema"]["properties"] for one in tools.to_anthropic()}
        assert definitions == {"mcp_git_push": {}, "mcp_state": {"mark": {"type": "string"}}}
        for name in definitions:
            assert not (await tools.call(name, {"mark": "given"})).is_error
        assert [offer.server for offer in tools] == ["git", "git"]
        assert "git_reset" in crib.tools().names, "the crib still has all tools"
    assert seen(notes) == [("git_push", {"nonce": "fixed"}), ("git_status", {"nonce": "given"})]


@pytest.mark.req("ENG-5", "ENG-6")
async def test_the_library_applies_the_rules_of_a_file_and_their_changes(tmp_path: Path, notes: Notes) -> None:
    servers = {"git": notes.server("git_push", "git_reset", reads="git_status")}
    environ = write(tmp_path / "t", servers=servers, tools=[*RULES, {"rename": {"git_status": "status"}}])
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        tools = crib.tools()
        assert tools.names == ("publish", "status")
        assert tools.of("git").to_anthropic()[1]["cache_control"] == {"type": "ephemeral"}
        await tools.call("publish", {})
        await crib.call("status", {"mark": "by its new name"})
        await crib.call("git:git_status", {"mark": "by its server's"})
        for gone in ("git_reset", "git:git_reset", "git_git_status"):
            with pytest.raises(UnknownTool):
                await crib.call(gone, {})
        write(tmp_path / "t", servers=servers, tools=[{"keep": "git_reset"}])
        await crib.projects.reload()
        assert crib.tools().names == ("git_reset",)
        await crib.call("git_reset", {"nonce": "now"})
    assert seen(notes) == [
        ("git_push", {"nonce": "fixed"}),
        ("git_status", {"nonce": "by its new name"}),
        ("git_status", {"nonce": "by its server's"}),
        ("git_reset", {"nonce": "now"}),
    ]


@pytest.mark.req("ENG-5", "ENG-6", "BNS-10")
def test_gateway_and_command_line_apply_the_rules_of_a_file_but_a_projects_only_when_trusted(
    daemon, cli, toolcrib_home, notes
):
    project = toolcrib_home.project / ".toolcrib" / "config.json"
    project.parent.mkdir()
    project.write_text(json.dumps({"tools": [{"prefix": "x", "only": "git:*"}, {"drop": "crib:*"}]}))
    servers = {"git": notes.server("git_push", "git_reset", reads="git_status")}
    running = daemon({"servers": servers, "workspace": False, "tools": RULES})
    running.wait_until_ready("git")
    endpoint = Endpoint(running)

    def listed() -> dict[str, Any]:
        tools = endpoint.modern("tools/list").result["tools"]
        assert any(tool["name"].startswith("crib_") for tool in tools), "Toolcrib's own tools stay"
        return {tool["name"]: tool for tool in tools if tool["name"].startswith("git_")}

    before = listed()
    assert before.keys() == {"git_publish", "git_git_status"}
    assert before["git_publish"]["inputSchema"]["properties"] == {}
    assert before["git_git_status"]["inputSchema"]["properties"] == {"mark": {"type": "string"}}
    assert endpoint.call("git_publish", {}).result["structuredContent"]["tool"] == "git_push"
    refused = endpoint.call("git_git_status", {"mark": 3}).result
    assert refused["isError"]
    assert "arguments.mark must be of type string" in refused["content"][0]["text"]
    cli("call", "git:git_status", "mark=7").ok()
    shown = cli("config", "show", "--json").ok().json["config"]
    assert shown["tools"] == RULES

    cli("trust", "--yes").ok()
    assert listed().keys() == {"git_x_publish", "git_x_git_status"}
    names = {row["display"]: row["name"] for row in cli("tools", "git", "--json").ok().json["tools"]}
    assert names == {"git:git_push": "git_x_publish", "git:git_status": "git_x_git_status"}
    cli("call", "x_git_status", "mark=8").ok()
    statuses = [("git_status", {"nonce": "7"}), ("git_status", {"nonce": "8"})]
    assert seen(notes) == [("git_push", {"nonce": "fixed"}), *statuses]
    audit_log = cli("audit", "--json").ok().json
    assert "git:git_push" in json.dumps(audit_log)
    assert "publish" not in json.dumps(audit_log)
