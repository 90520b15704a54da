"""`toolcrib enable` and `disable`: servers and single tools, for the user and for one project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parts.client import at_endpoint
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.waiting import during

YAML = """\
# my servers
servers:
  w:  # the recorder
    command: {command}
    args: {args}
"""


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def running(daemon: StartDaemon, toolcrib_home: Home, notes: Notes) -> Daemon:
    entry = notes.server("note", "other")
    text = YAML.format(command=json.dumps(entry["command"]), args=json.dumps(entry["args"]))
    (toolcrib_home.toolcrib / "config.yml").write_text(text)
    started = daemon()
    started.wait_until_ready()
    return started


def tools(daemon: Daemon, root: Path | None = None) -> list[str]:
    return sorted(tool["tool"] for tool in daemon.command("tool:list", root, server="w")["tools"])


def pid(daemon: Daemon) -> Any:
    return daemon.command("server:list")["servers"][0].get("pid")


async def test_a_disabled_tool_is_neither_listed_nor_called_and_its_server_keeps_running(
    running: Daemon, cli: Cli, toolcrib_home: Home, notes: Notes
) -> None:
    file, before = toolcrib_home.toolcrib / "config.yml", pid(running)
    text = file.read_text()
    async with at_endpoint(running, "legacy") as client:
        done = await during(cli, "disable", "w:note")
        assert done.ok().out == f"Disabled w:note in {file}.\n"
        assert file.read_text() == f"{text}    disabled_tools: [note]\n", "comments stay"
        assert {tool.name for tool in (await client.list_tools()).tools if tool.name.startswith("w_")} == {
            "w_other",
            "w_release",
        }
    for name in ("w:note", "w_note"):
        refused = await during(cli, "call", name, "nonce=1")
        assert refused.exit_code == 4
        assert "toolcrib enable w:note" in refused.err
    assert pid(running) == before
    assert (await during(cli, "disable", "w:note")).ok().out.startswith("w:note was already disabled")
    assert "no tool 'nothing'" in (await during(cli, "disable", "w:nothing")).err
    nameless = await during(cli, "disable", "w:")
    assert (nameless.exit_code, "w: names no tool" in nameless.err, pid(running)) == (2, True, before)
    (await during(cli, "enable", "w:note")).ok()
    assert file.read_text() == text
    (await during(cli, "call", "w:note", "nonce=2")).ok()
    assert notes.nonces() == ["2"]
    rows = (await during(cli, "audit", "--json")).ok().json["entries"]
    changes = [row["outcome"] for row in rows if row["kind"] == "change"]
    assert [one for one in changes if one.startswith("tool ")] == ["tool disabled", "tool enabled"]


def test_a_server_is_disabled_for_one_project_or_everywhere(
    running: Daemon, cli: Cli, toolcrib_home: Home, tmp_path: Path
) -> None:
    shared, elsewhere = toolcrib_home.project / ".toolcrib" / "config.yml", tmp_path
    cli("disable", "w", "--project").ok()
    assert shared.read_text() == "servers:\n  w:\n    enabled: false\n"
    assert tools(running) == []
    assert tools(running, elsewhere) == ["note", "other", "release"]
    for words in (["call", "w:note", "nonce=1"], ["restart", "w"], ["refresh", "w"]):
        assert "toolcrib enable w" in cli(*words).err
    cli("enable", "w").ok()
    running.wait_until_ready()
    assert tools(running) == ["note", "other", "release"]
    cli("disable", "w:note", "--project").ok()
    assert tools(running) == ["other", "release"]
    assert tools(running, elsewhere) == ["note", "other", "release"]
    kept = cli("enable", "w:note").ok()
    assert "It is still disabled by another file. Use --project." in kept.err
    shared.write_text(shared.read_text() + "  more: {command: x}\n")
    refused = cli("enable", "w:note", "--project")
    assert "content that you have not trusted" in refused.err, "a change must not trust the rest"
    cli("disable", "w").ok()
    assert (tools(running), tools(running, elsewhere)) == ([], [])


async def test_an_agent_with_all_permissions_switches_servers_over_mcp_but_not_in_a_projects_file(
    running: Daemon,
) -> None:
    async with at_endpoint(running, "modern") as client:
        await client.call_tool("crib_server_disable", {"name": "w:note"})
        assert tools(running) == ["other", "release"]
        await client.call_tool("crib_server_enable", {"name": "w:note"})
        assert tools(running) == ["note", "other", "release"]
        refused = await client.call_tool("crib_server_disable", {"name": "w", "scope": "project"})
        assert refused.is_error and "over MCP" in refused.content[0].text


def test_a_server_is_switched_without_a_daemon(toolcrib_home: Home, cli: Cli, notes: Notes) -> None:
    toolcrib_home.write_config({"servers": {"w": notes.server("note", "other")}})
    cli("disable", "w:note").ok()
    refused = cli("call", "w:note", "nonce=1")
    assert (refused.exit_code, "toolcrib enable w:note" in refused.err) == (4, True)
    cli("enable", "w:note").ok()
    cli("call", "w:note", "nonce=2").ok()
    assert notes.nonces() == ["2"]
    missing = cli("disable", "never")
    assert (missing.exit_code, "never" in missing.err) == (4, True)
