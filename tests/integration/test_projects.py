"""Projects: which of them share a server process, and what a project's file may do before you trust it."""

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
from parts.server_process import StartServer, stdio_command, stdio_entry
from toolcrib.config.paths import project_of

pytestmark = pytest.mark.slow

LIMIT = 60.0
SEEN = "seen.jsonl"
_folders = itertools.count(1)


@pytest.fixture(scope="module")
def daemon_of_all(shared_home: Home, start_shared_server: StartServer, start_shared_daemon: StartDaemon) -> Daemon:
    """`here` starts in each project, `fixed` in one folder, `web` runs elsewhere.

    The first two record their messages in the folder in which they start.
    """
    here = stdio_entry("raw_server", "--seen", SEEN, cwd="project")
    web = start_shared_server(stdio_command("sdk_v2", "--transport", "http"))
    fixed = shared_home.path / "fixed"
    fixed.mkdir()
    servers = {"here": here, "fixed": {**here, "cwd": str(fixed)}, "web": {"url": web.url("http")}}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return daemon


def new_project(home: Home) -> Path:
    folder = home.path / f"project{next(_folders)}"
    (folder / ".git" / "HEAD").mkdir(parents=True)
    return folder


@dataclass(kw_only=True)
class BridgeProcess:
    client: Client
    daemon: Daemon
    folder: Path
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client learns of a changed list."""

    async def call(self, tool: str, **arguments: Any) -> Any:
        async with asyncio.timeout(LIMIT):
            result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result
        return result.structured_content

    async def pid(self, server: str) -> int:
        """The process that serves this client. Only the owner can see it."""
        listed = await asyncio.to_thread(self.daemon.command, "server:list", project_of(self.folder))
        return next(row["pid"] for row in listed["servers"] if row["name"] == server)

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools}

    async def next_change(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.changed.wait()
        self.changed.clear()


@contextlib.asynccontextmanager
async def bridge_in(daemon: Daemon, folder: Path, era: str = "legacy") -> AsyncIterator[BridgeProcess]:
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    words = StdioServerParameters(command=str(PROGRAM), args=["stdio"], env=daemon.home.environ(), cwd=folder)
    async with Client(words, mode=MODES[era], message_handler=hear) as client:
        yield BridgeProcess(client=client, daemon=daemon, folder=folder, changed=changed)


def received(folder: Path, word: str) -> bool:
    """Whether a server that was started in the folder received this."""
    file = folder / SEEN
    return file.exists() and word in file.read_text()


@pytest.mark.req("KSI-1")
async def test_each_project_gets_its_own_process_in_its_folder_and_shares_the_other_servers(
    daemon_of_all: Daemon, shared_cli: Cli
) -> None:
    home = daemon_of_all.home
    folders = [new_project(home) for _ in range(2)]
    below = folders[0] / "src" / "deep"
    below.mkdir(parents=True)
    async with (
        bridge_in(daemon_of_all, folders[0], "modern") as one,
        bridge_in(daemon_of_all, folders[1], "legacy") as two,
        bridge_in(daemon_of_all, below, "legacy") as inner,
        at_endpoint(daemon_of_all, "modern") as http,
    ):
        for bridge, word in ((one, "to the first"), (two, "to the second"), (inner, "from below")):
            await bridge.call("here_ok", word=word)
        assert await one.pid("here") == await inner.pid("here") != await two.pid("here")
        everyone = (one, two, BridgeProcess(client=http, daemon=daemon_of_all, folder=home.project))
        for number, bridge in enumerate(everyone):
            await bridge.call("fixed_ok", word=f"from {number}")
        assert len({await bridge.pid("fixed") for bridge in everyone}) == 1
        assert len({(await bridge.call("web_whoami"))["pid"] for bridge in everyone}) == 1
        for folder, word in ((folders[1], "typed there"), (home.project, "typed at home")):
            words = ("call", "here:ok", "--args", json.dumps({"word": word}))
            (await asyncio.to_thread(shared_cli, *words, cwd=folder)).ok()
    arrived = {
        "to the first": [True, False, False],
        "to the second": [False, True, False],
        "from below": [True, False, False],
        "typed there": [False, True, False],
        "typed at home": [False, False, True],
    }
    assert {word: [received(folder, word) for folder in (*folders, home.project)] for word in arrived} == arrived
    assert all(received(home.path / "fixed", f"from {number}") for number in range(3))


@pytest.mark.req("KSI-1")
async def test_clients_that_open_a_new_project_together_share_its_process(daemon_of_all: Daemon) -> None:
    project = new_project(daemon_of_all.home)
    async with contextlib.AsyncExitStack() as stack:
        opening = [kept_open(bridge_in(daemon_of_all, project)) for _ in range(4)]
        bridges = await asyncio.gather(*(stack.enter_async_context(one) for one in opening))
        await asyncio.gather(*(bridge.call("here_ok") for bridge in bridges))
        pids = {await bridge.pid("here") for bridge in bridges}
        assert processes_in(project) == pids
    assert len(pids) == 1


def processes_in(folder: Path) -> set[int]:
    """Our server's processes in the folder: their guards, whose ids Toolcrib shows."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if process.joinpath("cwd").readlink() == folder and b"raw_server.py" in words and b"\0guard\0" in words:
                found.add(int(process.name))
    return found


@pytest.mark.req("ENG-10", "BNS-4")
async def test_a_server_added_by_the_user_reaches_every_project(daemon_of_all: Daemon, shared_cli: Cli) -> None:
    words = stdio_command("raw_server", "--plain", "--tools", "1")
    async with bridge_in(daemon_of_all, new_project(daemon_of_all.home)) as bridge:
        await bridge.names()
        await asyncio.to_thread(lambda: shared_cli("add", "late", "--", *words).ok())
        await bridge.next_change()
        await until_listed(bridge, "late_tool_00000")
        await asyncio.to_thread(lambda: shared_cli("remove", "late").ok())
        await bridge.next_change()
        assert "late_tool_00000" not in await bridge.names()


async def until_listed(bridge: BridgeProcess, name: str) -> None:
    async with asyncio.timeout(LIMIT):
        while name not in await bridge.names():
            await bridge.next_change()


def project_file(folder: Path, proof: Path, tools: int = 1) -> None:
    """A project's file whose command creates the file `proof`."""
    script = 'touch "$0"; exec "$@"'
    args = ["-c", script, str(proof), *stdio_command("raw_server", "--plain", "--tools", str(tools))]
    (folder / ".toolcrib").mkdir(exist_ok=True)
    config = {"servers": {"repo": {"command": "/bin/sh", "args": args}}}
    # JSON is YAML too.
    (folder / ".toolcrib" / "config.yml").write_text(json.dumps(config))


@pytest.mark.req("BNS-3", "BNS-10")
async def test_a_projects_file_has_no_effect_until_it_is_trusted_or_after_it_changed(
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
        # These read the configuration again.
        await run("add", "other", "--url", "http://127.0.0.1:1/mcp", exit_code=6)
        await run("remove", "other")
        assert not [name for name in await bridge.names() if name.startswith("repo_")]
        assert not proof.exists()


@pytest.mark.req("BNS-3", "BNS-10")
def test_trust_survives_a_restart_and_ends_when_the_file_changes(
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


@pytest.mark.req("BNS-10")
def test_a_file_that_changed_since_it_was_trusted_is_neither_changed_nor_run(
    daemon_of_all: Daemon, shared_cli: Cli, tmp_path: Path
) -> None:
    evil = f"  evil: {{command: touch, args: [{tmp_path / 'ran'}]}}\n"
    project = new_project(daemon_of_all.home)
    file = project / ".toolcrib" / "config.yml"
    file.parent.mkdir()
    file.write_text("servers:\n  good: {command: cat}\n")

    def servers() -> set[str]:
        return {row["name"] for row in shared_cli("servers", "--json", cwd=project).ok().json["servers"]}

    shared_cli("trust", "--yes", cwd=project).ok()
    file.write_text(file.read_text() + evil)
    for words in (["remove", "good"], ["add", "--project", "more", "--", "cat"]):
        refused = shared_cli(*words, cwd=project)
        assert (refused.exit_code, "not trusted" in refused.err) == (3, True), words
        assert "good" in file.read_text()
        assert "evil" not in servers()
    # A dangling link does not make another file trusted.
    project = new_project(daemon_of_all.home)
    file = project / ".toolcrib" / "config.yml"
    file.parent.mkdir()
    file.with_name("config.yaml").write_text(f"servers:\n{evil}")
    file.symlink_to("nowhere")
    assert shared_cli("add", "--project", "more", "--", "cat", cwd=project).exit_code == 3
    file.unlink()
    assert servers() == {"here", "fixed", "web"}
    assert shared_cli("config", "check", "--json", cwd=project).json["untrusted"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.req("BNS-3")
def test_an_invalid_entry_replaces_no_server(daemon_of_all: Daemon, shared_cli: Cli) -> None:
    before = {path: path.read_bytes() for path in daemon_of_all.home.toolcrib.glob("config.*")}
    refused = shared_cli("add", "fixed", "--replace", "--env", "A=${NOT_SET_ANYWHERE}", "--", "cat")
    assert refused.exit_code == 3
    assert "NOT_SET_ANYWHERE" in refused.err
    assert {path: path.read_bytes() for path in before} == before
    assert "fixed" in [row["name"] for row in shared_cli("servers", "--json").ok().json["servers"]]
