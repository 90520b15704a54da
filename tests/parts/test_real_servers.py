"""Servers that others wrote, and our own on every transport, behind the real daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.client import at_endpoint, through_bridge
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.own import StartServer, stdio_words
from parts.postgres import Postgres

pytestmark = pytest.mark.slow

Parts = Callable[[str], list[str]]


def entry(words: list[str], *more: str) -> dict[str, Any]:
    return {"command": words[0], "args": [*words[1:], *more]}


def said(result: Any) -> str:
    assert not result.is_error, result
    return "".join(block.text for block in result.content if block.type == "text")


@pytest.fixture
def repository(toolcrib_home: Home) -> Path:
    folder = toolcrib_home.path / "repository"
    environ = toolcrib_home.environ({"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"})
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(folder)], check=True, timeout=20, env=environ)
    (folder / "untracked.txt").write_text("new")
    return folder


REAL = {
    "everything": ("everything_echo", {"message": "hello"}, "hello"),
    "filesystem": ("filesystem_read_text_file", {"path": "hello.txt"}, "from a file"),
    "memory": ("memory_read_graph", {}, "entities"),
    "git": ("git_git_status", {"repo_path": "REPOSITORY"}, "untracked.txt"),
    "time": ("time_get_current_time", {"timezone": "UTC"}, "UTC"),
    "postgres": ("postgres_query", {"sql": "select 40 + 2 as answer"}, "42"),
}


@pytest.fixture
def real_servers(
    toolcrib_home: Home, parts: Parts, postgres: Postgres, repository: Path, daemon: StartDaemon
) -> Daemon:
    files = toolcrib_home.project
    (files / "hello.txt").write_text("from a file")
    memory = {**entry(parts("memory")), "env": {"MEMORY_FILE_PATH": str(toolcrib_home.path / "memory.jsonl")}}
    servers = {
        "everything": entry(parts("everything")),
        "filesystem": entry(parts("filesystem"), str(files)),
        "memory": memory,
        "git": entry(parts("git"), "--repository", str(repository)),
        "time": entry(parts("time"), "--local-timezone", "UTC"),
        "postgres": entry(parts("postgres"), postgres.url),
    }
    running = daemon({"servers": servers})
    running.wait_until_ready(*servers)
    return running


@pytest.mark.req("BNS-1", "BNS-2", "BNS-4", "KSI-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_servers_that_others_wrote_list_and_answer_behind_one_endpoint(
    era: str, real_servers: Daemon, repository: Path, toolcrib_home: Home
) -> None:
    places = {"REPOSITORY": str(repository), "hello.txt": str(toolcrib_home.project / "hello.txt")}
    async with at_endpoint(real_servers, era) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        for server, (tool, arguments, expected) in REAL.items():
            assert tool in names, f"{server}: {sorted(name for name in names if name.startswith(server))}"
            given = {key: places.get(value, value) for key, value in arguments.items()}
            assert expected in said(await client.call_tool(tool, given)), server


OWN = [
    ("own_v2", "stdio"),
    ("own_v2", "http"),
    ("own_v2", "sse"),
    ("own_v1", "stdio"),
    ("own_v1", "http"),
    ("own_v1", "sse"),
    ("own_v1", "ws"),
]


@pytest.mark.req("BNS-2", "ENG-1")
@pytest.mark.parametrize(("name", "transport"), OWN, ids=["-".join(pair) for pair in OWN])
async def test_each_transport_of_each_sdk_carries_calls_in_both_eras(
    name: str, transport: str, parts: Parts, start_server: StartServer, daemon: StartDaemon
) -> None:
    parts("mcp-v1")
    if transport == "stdio":
        configured = entry(stdio_words(name))
    else:
        server = start_server([*stdio_words(name), "--transport", transport])
        configured = {"url": server.url(transport)}
        if transport == "sse":
            configured["transport"] = "sse"
    running = daemon({"servers": {"own": configured}})
    running.wait_until_ready("own")
    for era in ("modern", "legacy"):
        async with at_endpoint(running, era) as client:
            assert said(await client.call_tool("own_add", {"a": 40, "b": 2})) == "42"
            assert (await client.call_tool("own_fail", {})).is_error


@pytest.mark.req("KSI-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_bridge_carries_calls_in_both_eras(era: str, daemon: StartDaemon) -> None:
    running = daemon({"servers": {"own": entry(stdio_words("own_v2"))}})
    running.wait_until_ready("own")
    async with through_bridge(running, era) as client:
        assert said(await client.call_tool("own_add", {"a": 40, "b": 2})) == "42"


@pytest.mark.req("BNS-1", "BNS-5")
def test_the_command_line_calls_a_real_server(parts: Parts, daemon: StartDaemon, cli: Cli) -> None:
    running = daemon({"servers": {"time": entry(parts("time"), "--local-timezone", "UTC")}})
    running.wait_until_ready("time")
    done = cli("call", "time:get_current_time", "timezone=UTC", "--json").ok()
    assert "UTC" in done.out
