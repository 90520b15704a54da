"""Files generated for an agent follow the daemon and the token, are removed with the agent, and work."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from parts import server_process
from parts.client import MODES, TIMEOUT
from parts.daemon import PROGRAM, Cli, Home, StartDaemon

CLIENTS = ("claude", "codex", "gemini", "generic")

pytestmark = pytest.mark.req("KSI-2")


@pytest.fixture(scope="module")
def reviewer(shared_home: Home, start_shared_daemon: StartDaemon, shared_cli: Cli) -> Cli:
    """The command line of a home whose agent `reviewer` may use one tool of a running server."""
    program, *args = server_process.stdio_command("raw_server")
    start_shared_daemon({"servers": {"raw": {"command": program, "args": args}}}).wait_until_ready()
    shared_cli("agent", "add", "reviewer", "--profile", "nothing").ok()
    shared_cli("allow", "reviewer", "raw:ok").ok()
    return shared_cli


def generated(cli: Cli, client: str) -> Path:
    return Path(cli("connect", client, "--agent", "reviewer", "--json").ok().json["generated"])


def entry(file: Path) -> dict[str, Any]:
    text = file.read_text()
    whole = tomllib.loads(text)["mcp_servers"] if file.suffix == ".toml" else json.loads(text)["mcpServers"]
    found: dict[str, Any] = whole["toolcrib"]
    return found


def headers(file: Path) -> dict[str, str]:
    held = entry(file)
    found: dict[str, str] = held.get("headers") or held["http_headers"]
    return found


def test_generated_files_follow_the_token_and_the_port_and_are_removed_with_the_agent(
    daemon: StartDaemon, cli: Cli
) -> None:
    cli("agent", "add", "reviewer", "--profile", "read-only").ok()
    offline = generated(cli, "claude")
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    first = daemon({"servers": {}})
    assert headers(offline)["Authorization"] == f"Bearer {token}", (
        "a rotation without a daemon is followed at its start"
    )
    assert entry(offline)["url"] == first.endpoint

    files = [generated(cli, client) for client in CLIENTS]
    assert all(first.endpoint in file.read_text() for file in files)
    token = cli("agent", "rotate", "reviewer", "--json").ok().json["token"]
    assert {headers(file)["Authorization"] for file in files} == {f"Bearer {token}"}
    first.kill()
    second = daemon()
    assert second.endpoint != first.endpoint
    assert all(second.endpoint in file.read_text() for file in files)
    assert all(first.endpoint not in file.read_text() for file in files)

    second.kill()
    cli("agent", "remove", "reviewer").ok()
    folder = offline.parent
    assert not folder.exists()
    # A crash can leave the folder of an agent that no longer exists.
    folder.mkdir(parents=True)
    offline.write_text("a token")
    daemon()
    assert not folder.exists()


async def check(client: Client) -> None:
    assert [tool.name for tool in (await client.list_tools()).tools] == ["raw_ok"]
    assert (await client.call_tool("raw_ok", {})).structured_content == {"ok": True, "arguments": {}}


@pytest.mark.parametrize("era", list(MODES))
async def test_a_client_with_the_generic_file_is_the_agent(reviewer: Cli, era: str) -> None:
    file = generated(reviewer, "generic")
    async with (
        httpx2.AsyncClient(headers=headers(file), timeout=TIMEOUT, trust_env=False) as http,
        Client(streamable_http_client(entry(file)["url"], http_client=http), mode=MODES[era]) as client,
    ):
        await check(client)


@pytest.mark.parametrize("era", list(MODES))
async def test_the_bridge_of_an_agent_offers_the_agents_tools(reviewer: Cli, shared_home: Home, era: str) -> None:
    shown = reviewer("connect", "generic", "--agent", "reviewer", "--json").ok().json["entry"]
    assert shown["command"] == str(PROGRAM)
    environ = {**shared_home.environ(), **shown["env"]}
    server = StdioServerParameters(command=shown["command"], args=shown["args"], env=environ, cwd=shared_home.project)
    async with Client(server, mode=MODES[era]) as client:
        await check(client)
