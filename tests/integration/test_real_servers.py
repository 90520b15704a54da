"""Servers by other authors, and our own of both eras, all behind one daemon.

Each is connected, listed and used with a visible effect: a file on disk, a commit, a row of a database.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp.shared.exceptions import MCPError

from integration.kept import kept_open
from parts.client import at_endpoint, through_bridge
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.postgres import Postgres
from parts.server_process import StartServer, stdio_command, stdio_entry
from parts.waiting import during, until
from toolcrib.servers.model import MODERN_VERSION

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

Parts = Callable[[str], list[str]]

LIMIT = 60.0
OTHERS = {"everything": 10, "filesystem": 10, "memory": 9, "postgres": 1, "git": 10, "time": 2}
"""Each with its least number of tools."""
OWN = {
    "v2stdio": ("sdk_v2", "stdio", "modern"),
    "v2http": ("sdk_v2", "http", "modern"),
    "v2httpold": ("sdk_v2 --legacy-only", "http", "legacy"),
    # This transport is older than the modern era.
    "v2sse": ("sdk_v2", "sse", "legacy"),
    "v1stdio": ("sdk_v1", "stdio", "legacy"),
}
"""Servers of both eras; `test_four_pairs` has those that know only one, over every transport."""
ERAS = ("modern", "legacy")
_numbers = itertools.count(1)

every_era = pytest.mark.parametrize("era", ERAS)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The data that the servers use."""

    daemon: Daemon
    files: Path
    memory: Path
    repository: Path
    postgres: Postgres


@pytest.fixture(scope="module")
def repository(shared_home: Home) -> Path:
    folder = shared_home.path / "repository"
    environ = shared_home.environ({"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"})

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(folder), *words], check=True, timeout=20, env=environ, capture_output=True)

    folder.mkdir()
    git("init", "-q", "-b", "trunk")
    git("config", "user.email", "tests@example.test")
    git("config", "user.name", "Tests")
    (folder / "first.txt").write_text("one\n")
    git("add", "first.txt")
    git("commit", "-q", "-m", "Begin")
    return folder


@pytest.fixture(scope="module")
def bench(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Parts,
    postgres: Postgres,
    repository: Path,
) -> Bench:
    files = shared_home.path / "files"
    files.mkdir()
    memory = shared_home.path / "memory.jsonl"
    words = {
        "everything": parts("everything"),
        "filesystem": [*parts("filesystem"), str(files)],
        "memory": parts("memory"),
        "postgres": [*parts("postgres"), postgres.url],
        "git": [*parts("git"), "--repository", str(repository)],
        "time": [*parts("time"), "--local-timezone", "UTC"],
    }
    servers: dict[str, Any] = {
        name: {"command": given[0], "args": given[1:], "connect_timeout": LIMIT} for name, given in words.items()
    }
    servers["memory"]["env"] = {"MEMORY_FILE_PATH": str(memory)}
    parts("mcp-v1")
    for name, (program, transport, _) in OWN.items():
        if transport == "stdio":
            servers[name] = stdio_entry(*program.split())
        else:
            running = start_shared_server([*stdio_command(*program.split()), "--transport", transport])
            servers[name] = {"url": running.url(transport), **({"transport": "sse"} if transport == "sse" else {})}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return Bench(daemon=daemon, files=files, memory=memory, repository=repository, postgres=postgres)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(bench: Bench) -> AsyncIterator[dict[str, Client]]:
    """The modern client uses HTTP, the legacy one the bridge."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            "modern": await stack.enter_async_context(kept_open(at_endpoint(bench.daemon, "modern"))),
            "legacy": await stack.enter_async_context(kept_open(through_bridge(bench.daemon, "legacy"))),
        }


@pytest.fixture
def client(clients: dict[str, Client], era: str) -> Client:
    return clients[era]


async def test_the_probe_leaves_nothing_in_the_log_of_an_older_server(bench: Bench) -> None:
    [row] = [row for row in bench.daemon.command("server:list")["servers"] if row["name"] == "v1stdio"]
    assert (row["state"], row["stderr"], row["last_error"]) == ("ready", [], "")


async def use(client: Client, tool: str, **arguments: Any) -> Any:
    async with asyncio.timeout(LIMIT):
        return await client.call_tool(tool, arguments)


async def text_of(client: Client, tool: str, **arguments: Any) -> str:
    result = await use(client, tool, **arguments)
    assert not result.is_error, result
    return "".join(block.text for block in result.content if block.type == "text")


@pytest.mark.req("BNS-1", "BNS-2", "BNS-4", "BNS-5", "ENG-1", "KSI-1")
@every_era
async def test_every_servers_tools_are_listed_and_ours_answer_in_their_era(client: Client, bench: Bench) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert len(names) == len(set(names))
    for server, least in (*OTHERS.items(), *((name, 10) for name in OWN)):
        assert len([name for name in names if name.startswith(f"{server}_")]) >= least, server
    rows = {row["name"]: row for row in bench.daemon.status()["servers"]}
    for server, (_, transport, server_era) in OWN.items():
        row = rows[server]
        assert (row["state"], row["transport"]) == ("ready", transport)
        assert (row["protocol_version"] == MODERN_VERSION) is (server_era == "modern")
        assert await text_of(client, f"{server}_add", a=40, b=2) == "42"
        assert (await use(client, f"{server}_fail")).is_error


@pytest.mark.req("BNS-5", "ENG-9")
@every_era
async def test_everything_returns_text_image_links_structure_and_progress(client: Client) -> None:
    assert "hello" in await text_of(client, "everything_echo", message="hello")
    assert "42" in await text_of(client, "everything_get-sum", a=40, b=2)
    image = (await use(client, "everything_get-tiny-image")).content
    assert base64.b64decode(next(block.data for block in image if block.type == "image")).startswith(b"\x89PNG")
    links = (await use(client, "everything_get-resource-links", count=2)).content
    assert [block.type for block in links].count("resource_link") == 2
    weather = (await use(client, "everything_get-structured-content", location="Chicago")).structured_content
    assert weather.keys() == {"temperature", "conditions", "humidity"}
    steps: list[float] = []

    async def hear(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    long = {"duration": 0.2, "steps": 2}
    async with asyncio.timeout(LIMIT):
        await client.call_tool("everything_trigger-long-running-operation", long, progress_callback=hear)
    assert steps == [1, 2]


@pytest.mark.req("KSI-5")
async def test_the_owner_fills_in_the_form_of_everything(bench: Bench, shared_cli: Cli) -> None:
    called = asyncio.create_task(during(shared_cli, "call", "everything:trigger-elicitation-request"))
    (row,) = await until(lambda: bench.daemon.command("approval:list")["approvals"], "the form")
    (await during(shared_cli, "approve", row["id"], "name=Ada", "titledSingleSelectEnum=Superman")).ok()
    answered = (await called).ok().out
    assert '"name": "Ada"' in answered
    assert '"titledSingleSelectEnum": "hero-1"' in answered


@pytest.mark.req("BNS-5")
@every_era
async def test_filesystem_writes_and_reads_inside_its_folder_only(client: Client, bench: Bench) -> None:
    file = bench.files / f"note{next(_numbers)}.txt"
    await text_of(client, "filesystem_write_file", path=str(file), content="čtyři\n")
    assert file.read_text() == "čtyři\n"
    assert await text_of(client, "filesystem_read_text_file", path=str(file)) == "čtyři\n"
    assert (await use(client, "filesystem_read_text_file", path="/etc/hostname")).is_error


@pytest.mark.req("BNS-5")
@every_era
async def test_memory_stores_entities(client: Client, bench: Bench) -> None:
    name = f"hammer{next(_numbers)}"
    entity = {"name": name, "entityType": "tool", "observations": ["hangs on the wall"]}
    await text_of(client, "memory_create_entities", entities=[entity])
    assert name in bench.memory.read_text()
    assert "hangs on the wall" in await text_of(client, "memory_search_nodes", query=name)


@pytest.mark.req("BNS-5")
@every_era
async def test_postgres_reads_rows_and_refuses_to_write(client: Client, bench: Bench) -> None:
    table = f"shelf{next(_numbers)}"
    await asyncio.to_thread(bench.postgres.sql, f"create table {table} as select 'saw' as tool, 40 + 2 as price")
    rows = json.loads(await text_of(client, "postgres_query", sql=f"select * from {table}"))  # noqa: S608 - our own name
    assert rows == [{"tool": "saw", "price": 42}]
    with pytest.raises(MCPError, match="read-only"):
        await use(client, "postgres_query", sql=f"drop table {table}")


def last_commit(repository: Path) -> str:
    words = ["git", "-C", str(repository), "log", "-1", "--format=%s"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


@pytest.mark.req("BNS-5")
@every_era
async def test_git_commits_changes(client: Client, bench: Bench) -> None:
    place = {"repo_path": str(bench.repository)}
    file = bench.repository / f"new{next(_numbers)}.txt"
    file.write_text("new\n")
    assert file.name in await text_of(client, "git_git_status", **place)
    await text_of(client, "git_git_add", **place, files=[file.name])
    await text_of(client, "git_git_commit", **place, message=f"Add {file.name}")
    assert await asyncio.to_thread(last_commit, bench.repository) == f"Add {file.name}"
    assert "Begin" in await text_of(client, "git_git_log", **place)


@pytest.mark.req("BNS-5")
@every_era
async def test_time_converts_between_zones(client: Client) -> None:
    zones = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}
    converted = json.loads(await text_of(client, "time_convert_time", **zones, time="12:00"))
    assert "T21:00" in converted["target"]["datetime"]
    assert (await use(client, "time_convert_time", **zones, time="noon")).is_error


@pytest.mark.req("BNS-1", "BNS-5")
async def test_the_command_line_uses_a_real_server(bench: Bench, shared_cli: Cli) -> None:
    (bench.files / "read me.txt").write_text("from a file")
    path = bench.files / "read me.txt"
    assert shared_cli("call", "filesystem:read_text_file", f"path={path}").ok().out == "from a file\n"
