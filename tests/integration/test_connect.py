"""What was generated for an agent follows the daemon and the token, goes with the agent, and works."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from parts import own
from parts.client import MODES, TIMEOUT
from parts.daemon import PROGRAM, Cli, Home, StartDaemon

CLIENTS = ("claude", "codex", "gemini", "generic")

pytestmark = pytest.mark.req("KSI-2")


@pytest.fixture
def servers() -> dict[str, Any]:
    program, *words = own.stdio_words("raw_server")
    return {"servers": {"raw": {"command": program, "args": words}}}


@pytest.fixture
def generate(cli: Cli) -> Callable[[str], Path]:
    return lambda client: Path(cli("connect", client, "--agent", "reviewer", "--json").ok().json["generated"])


def entry(file: Path) -> dict[str, Any]:
    text = file.read_text()
    whole = tomllib.loads(text)["mcp_servers"] if file.suffix == ".toml" else json.loads(text)["mcpServers"]
    found: dict[str, Any] = whole["toolcrib"]
    return found


def headers(file: Path) -> dict[str, str]:
    held = entry(file)
    found: dict[str, str] = held.get("headers") or held["http_headers"]
    return found


def test_generated_files_follow_a_rotation_at_once_and_a_new_port_at_the_next_start(
    daemon: StartDaemon, cli: Cli, generate: Callable[[str], Path]
) -> None:
    first = daemon({"servers": {}})
    cli("agent", "add", "reviewer", "--profile", "read-only").ok()
    files = [generate(client) for client in CLIENTS]
    assert all(first.endpoint in file.read_text() for file in files)
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    assert {headers(file)["Authorization"] for file in files} == {f"Bearer {token}"}
    first.kill()
    second = daemon()
    assert second.endpoint != first.endpoint
    assert all(second.endpoint in file.read_text() for file in files)
    assert all(first.endpoint not in file.read_text() for file in files)


def test_a_rotation_without_a_daemon_is_followed_at_the_next_start(
    daemon: StartDaemon, cli: Cli, generate: Callable[[str], Path]
) -> None:
    cli("agent", "add", "reviewer", "--profile", "read-only").ok()
    file = generate("claude")
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    started = daemon({"servers": {}})
    assert headers(file)["Authorization"] == f"Bearer {token}"
    assert entry(file)["url"] == started.endpoint


def test_generated_files_go_with_the_agent_also_after_a_crash(
    daemon: StartDaemon, cli: Cli, generate: Callable[[str], Path]
) -> None:
    started = daemon({"servers": {}})
    cli("agent", "add", "reviewer").ok()
    removed = generate("codex")
    started.kill()
    cli("agent", "remove", "reviewer").ok()
    assert not removed.parent.exists()
    # As a crash between the two halves of an end leaves it.
    removed.parent.mkdir(parents=True)
    removed.write_text("a token")
    daemon()
    assert not removed.parent.exists()


@pytest.mark.parametrize("era", list(MODES))
async def test_a_client_with_the_generic_file_is_the_agent(
    daemon: StartDaemon, cli: Cli, generate: Callable[[str], Path], servers: dict[str, Any], era: str
) -> None:
    daemon(servers).wait_until_ready()
    cli("agent", "add", "reviewer", "--profile", "nothing").ok()
    cli("allow", "reviewer", "raw:ok").ok()
    file = generate("generic")
    async with (
        httpx2.AsyncClient(headers=headers(file), timeout=TIMEOUT, trust_env=False) as http,
        Client(streamable_http_client(entry(file)["url"], http_client=http), mode=MODES[era]) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["raw_ok"]
        assert (await client.call_tool("raw_ok", {})).structured_content == {"ok": True, "arguments": {}}


@pytest.mark.parametrize("era", list(MODES))
async def test_the_bridge_of_an_agent_shows_what_the_agent_may_use(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home, servers: dict[str, Any], era: str
) -> None:
    daemon(servers).wait_until_ready()
    cli("agent", "add", "reviewer", "--profile", "nothing").ok()
    cli("allow", "reviewer", "raw:ok").ok()
    told = cli("connect", "generic", "--agent", "reviewer", "--json").ok().json["entry"]
    assert told["command"] == str(PROGRAM)
    words = StdioServerParameters(
        command=told["command"],
        args=told["args"],
        env={**toolcrib_home.environ(), **told["env"]},
        cwd=toolcrib_home.project,
    )
    async with Client(words, mode=MODES[era]) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["raw_ok"]
        assert (await client.call_tool("raw_ok", {})).structured_content == {"ok": True, "arguments": {}}
