"""Projects: which of them share a server process, and what a project's own file may do before a person trusts it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from integration.kept import kept_open
from parts.client import MODES, at_endpoint
from parts.daemon import PROGRAM, Cli, Daemon, Home, StartDaemon
from parts.server_process import StartServer, stdio_command
from toolcrib.config.paths import project_of

pytestmark = pytest.mark.slow

LIMIT = 60.0
SEEN = "seen.jsonl"
_folders = itertools.count(1)


@pytest.fixture(scope="module")
def daemon_of_all(shared_home: Home, start_shared_server: StartServer, start_shared_daemon: StartDaemon) -> Daemon:
    """`here` is started in each project, `fixed` in a folder of its own, `web` is somewhere else.

    The first two write what they are asked into the folder they were started in.
    """
    words = stdio_command("raw_server", "--seen", SEEN)
    web = start_shared_server(stdio_command("sdk_v2", "--transport", "http"))
    fixed = shared_home.path / "fixed"
    fixed.mkdir()
    daemon = start_shared_daemon(
        {
            "servers": {
                "here": {"command": words[0], "args": words[1:], "cwd": "project"},
                "fixed": {"command": words[0], "args": words[1:], "cwd": str(fixed)},
                "web": {"url": web.url("http")},
            }
        }
    )
    daemon.wait_until_ready("here", "fixed", "web")
    return daemon


def new_project(home: Home) -> Path:
    folder = home.path / f"project{next(_folders)}"
    (folder / ".git" / "HEAD").mkdir(parents=True)
    return folder


@dataclass(kw_only=True)
class Bridge:
    client: Client
    daemon: Daemon
    folder: Path
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client was told that the list changed."""

    async def call(self, tool: str, **arguments: Any) -> Any:
        async with asyncio.timeout(LIMIT):
            result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result
        return result.structured_content

    async def pid(self, server: str) -> int:
        """The process that serves this client, as the owner is told; to the client itself it is nobody's business."""
        listed = await asyncio.to_thread(self.daemon.command, "server:list", project_of(self.folder))
        rows = listed["servers"]
        pid: int = next(row["pid"] for row in rows if row["name"] == server)
        return pid

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools}

    async def told_of_a_change(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.changed.wait()
        self.changed.clear()


@contextlib.asynccontextmanager
async def bridge_in(daemon: Daemon, folder: Path, era: str = "legacy") -> AsyncIterator[Bridge]:
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    words = StdioServerParameters(command=str(PROGRAM), args=["stdio"], env=daemon.home.environ(), cwd=folder)
    async with Client(words, mode=MODES[era], message_handler=hear) as client:
        yield Bridge(client=client, daemon=daemon, folder=folder, changed=changed)


def heard(folder: Path, word: str) -> bool:
    """Whether a server that was started in the folder was asked this."""
    file = folder / SEEN
    return file.exists() and word in file.read_text()


@pytest.mark.req("KSI-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_each_project_gets_a_process_of_its_own_in_its_folder(era: str, daemon_of_all: Daemon) -> None:
    first, second = new_project(daemon_of_all.home), new_project(daemon_of_all.home)
    async with bridge_in(daemon_of_all, first, era) as one, bridge_in(daemon_of_all, second, era) as two:
        await one.call("here_ok", word="to the first")
        await two.call("here_ok", word="to the second")
        assert await one.pid("here") != await two.pid("here")
    assert [heard(folder, "to the first") for folder in (first, second)] == [True, False]
    assert [heard(folder, "to the second") for folder in (first, second)] == [False, True]


@pytest.mark.req("KSI-1")
async def test_a_client_in_a_folder_below_works_in_the_project_above(daemon_of_all: Daemon) -> None:
    project = new_project(daemon_of_all.home)
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    async with bridge_in(daemon_of_all, project) as one, bridge_in(daemon_of_all, below) as two:
        await two.call("here_ok", word="from below")
        assert await one.pid("here") == await two.pid("here")
    assert heard(project, "from below")


@pytest.mark.req("KSI-1")
async def test_clients_that_come_to_a_new_project_together_share_its_process(daemon_of_all: Daemon) -> None:
    project = new_project(daemon_of_all.home)
    async with contextlib.AsyncExitStack() as stack:
        opening = [kept_open(bridge_in(daemon_of_all, project)) for _ in range(4)]
        bridges = await asyncio.gather(*(stack.enter_async_context(one) for one in opening))
        await asyncio.gather(*(bridge.call("here_ok") for bridge in bridges))
        pids = {await bridge.pid("here") for bridge in bridges}
        assert processes_in(project) == pids
    assert len(pids) == 1


def processes_in(folder: Path) -> set[int]:
    """The processes of our server that work in the folder: their guards, which Toolcrib knows by their ids."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if process.joinpath("cwd").readlink() == folder and b"raw_server.py" in words and b"\0guard\0" in words:
                found.add(int(process.name))
    return found


@pytest.mark.req("KSI-1")
async def test_servers_that_do_not_depend_on_the_folder_are_shared(daemon_of_all: Daemon) -> None:
    folders = new_project(daemon_of_all.home), new_project(daemon_of_all.home)
    async with (
        bridge_in(daemon_of_all, folders[0]) as one,
        bridge_in(daemon_of_all, folders[1], "modern") as two,
        at_endpoint(daemon_of_all, "modern") as three,
    ):
        everybody = (one, two, Bridge(client=three, daemon=daemon_of_all, folder=daemon_of_all.home.project))
        for number, bridge in enumerate(everybody):
            await bridge.call("fixed_ok", word=f"from {number}")
        assert len({await bridge.pid("fixed") for bridge in everybody}) == 1
        assert len({(await bridge.call("web_whoami"))["pid"] for bridge in everybody}) == 1
    assert all(heard(daemon_of_all.home.path / "fixed", f"from {number}") for number in range(3))


@pytest.mark.req("KSI-1")
def test_a_command_works_in_the_project_where_it_is_typed(daemon_of_all: Daemon, shared_cli: Cli) -> None:
    project, home = new_project(daemon_of_all.home), daemon_of_all.home.project
    for folder, word in ((project, "typed there"), (home, "typed at home")):
        shared_cli("call", "here:ok", "--args", json.dumps({"word": word}), cwd=folder).ok()
    assert [heard(project, word) for word in ("typed there", "typed at home")] == [True, False]
    assert [heard(home, word) for word in ("typed there", "typed at home")] == [False, True]


@pytest.mark.req("ENG-10", "BNS-4")
async def test_a_server_added_by_its_user_reaches_every_project(daemon_of_all: Daemon, shared_cli: Cli) -> None:
    words = stdio_command("raw_server", "--plain", "--tools", "1")
    async with bridge_in(daemon_of_all, new_project(daemon_of_all.home)) as bridge:
        await bridge.names()
        await asyncio.to_thread(lambda: shared_cli("add", "late", "--", *words).ok())
        await bridge.told_of_a_change()
        await until_listed(bridge, "late_tool_00000")
        await asyncio.to_thread(lambda: shared_cli("remove", "late").ok())
        await bridge.told_of_a_change()
        assert "late_tool_00000" not in await bridge.names()


async def until_listed(bridge: Bridge, name: str) -> None:
    async with asyncio.timeout(LIMIT):
        while name not in await bridge.names():
            await bridge.told_of_a_change()


def project_file(folder: Path, proof: Path, tools: int = 1) -> None:
    """A project's file whose command leaves a proof that it ran."""
    script = 'touch "$0"; exec "$@"'
    args = ["-c", script, str(proof), *stdio_command("raw_server", "--plain", "--tools", str(tools))]
    (folder / ".toolcrib").mkdir(exist_ok=True)
    config = {"servers": {"repo": {"command": "/bin/sh", "args": args}}}
    # JSON is YAML too.
    (folder / ".toolcrib" / "config.yml").write_text(json.dumps(config))


@pytest.mark.req("BNS-3", "BNS-10")
async def test_a_projects_file_does_nothing_until_it_is_trusted_and_nothing_again_once_it_changed(
    daemon_of_all: Daemon, shared_cli: Cli
) -> None:
    project = new_project(daemon_of_all.home)
    proof = daemon_of_all.home.path / f"{project.name}.proof"
    project_file(project, proof)

    async def run(*words: str, exit_code: int = 0) -> Any:
        done = await asyncio.to_thread(lambda: shared_cli(*words, cwd=project))
        assert done.exit_code == exit_code, done.err
        return done

    async with bridge_in(daemon_of_all, project) as bridge:
        assert "here_ok" in await bridge.names()
        assert "repo_tool_00000" not in await bridge.names()
        assert "repo" not in (await run("servers", "--json")).out
        checked = (await run("config", "check", "--json")).json
        assert checked["untrusted"] == [str(project / ".toolcrib" / "config.yml")]
        assert not proof.exists()

        refused = await asyncio.to_thread(lambda: shared_cli("trust", cwd=project))
        assert refused.exit_code == 2
        assert "--yes" in refused.err
        assert not proof.exists()

        bridge.changed.clear()
        await run("trust", "--yes")
        await until_listed(bridge, "repo_tool_00000")
        assert proof.exists()

        project_file(project, proof, tools=2)
        proof.unlink()
        # Whatever reads the configuration again.
        await run("add", "other", "--url", "http://127.0.0.1:1/mcp", exit_code=6)
        await run("remove", "other")
        assert not [name for name in await bridge.names() if name.startswith("repo_")]
        assert not proof.exists()


@pytest.mark.req("BNS-3", "BNS-10")
def test_trust_lasts_over_a_restart_and_ends_with_the_content(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    proof = toolcrib_home.path / "proof"
    project_file(toolcrib_home.project, proof)
    cli("trust", "--yes").ok()
    assert not proof.exists()
    first = daemon({})
    first.wait_until_ready("repo")
    assert proof.exists()
    first.stop()

    project_file(toolcrib_home.project, proof, tools=2)
    proof.unlink()
    second = daemon({"workspace": False})
    status = second.status()
    assert [server["name"] for server in status["servers"]] == []
    assert status["untrusted"] == [str(toolcrib_home.project / ".toolcrib" / "config.yml")]
    assert [tool["display"] for tool in cli("tools", "--json").ok().json["tools"] if tool["server"] != "crib"] == []
    assert not proof.exists()
    second.stop()
