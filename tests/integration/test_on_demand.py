"""Real servers that start with their first call, stop when idle, and are shared by projects, by all, or by nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.test_projects import bridge_in
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.waiting import during, until
from toolcrib.calls import CallRequest
from toolcrib.commands.all import registry
from toolcrib.commands.local import NoDaemon
from toolcrib.commands.registry import CommandContext, Via
from toolcrib.config.paths import Paths
from toolcrib.core import project as project_module
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.core.results import read_answer
from toolcrib.errors import Denied, ServerUnavailable
from toolcrib.events import AgentEnded, CatalogChanged, Event
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext
from toolcrib.servers.model import ServerState

pytestmark = [pytest.mark.req("BNS-7"), pytest.mark.slow]

PROGRAM = """
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "starts"), "a") as file:
    file.write(f"{os.getpid()}\\n")
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        info = {"name": "x", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": json.load(open(os.path.join(here, "tools.json")))}
    elif method == "tools/call":
        with open(os.path.join(here, "calls"), "a") as file:
            file.write(message["params"]["name"] + "\\n")
        while message["params"]["name"] == "wait" and not os.path.exists(os.path.join(here, "go")):
            pass
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    elif number is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("whoami", "wait")]
NEW = {"name": "new", "inputSchema": {"type": "object"}}


@dataclass(kw_only=True)
class OwnServer:
    """A server whose tools are in a file, and which records its starts and calls."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "server.py").write_text(PROGRAM)
        self.offer(*TOOLS)

    def offer(self, *tools: dict[str, Any]) -> None:
        (self.folder / "tools.json").write_text(json.dumps(tools))

    def entry(self, **keys: Any) -> dict[str, Any]:
        words = ["-I", "-S", str(self.folder / "server.py")]
        return {"command": sys.executable, "args": words, "connect_timeout": 60, **keys}

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    @property
    def starts(self) -> int:
        return len(self._lines("starts"))

    @property
    def calls(self) -> list[str]:
        return self._lines("calls")


@pytest.fixture
def own(tmp_path: Path) -> OwnServer:
    return OwnServer(folder=tmp_path / "server")


OpenCrib = Callable[..., AbstractAsyncContextManager[Crib]]


@pytest.fixture
def open_crib(tmp_path: Path) -> OpenCrib:
    """`open_crib(entry)` is a crib with the server `s`; all cribs of a test have one database."""
    for name in ("home/start", "one", "two"):
        (tmp_path / name).mkdir(parents=True)

    @asynccontextmanager
    async def opened(entry: dict[str, Any], **more: Any) -> AsyncIterator[Crib]:
        environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        (tmp_path / "home" / "config.json").write_text(json.dumps({"servers": {"s": entry}}))
        async with Crib(paths=Paths.of_user(environ), root=tmp_path / "one", environ=environ, **more) as crib:
            await crib.projects.home.settled()
            yield crib

    return opened


async def listed_once(open_crib: OpenCrib, own: OwnServer, entry: dict[str, Any]) -> None:
    """Makes the server's tools known."""
    async with open_crib(entry) as crib:
        assert crib.status()["s"].tools == len(TOOLS)
    assert own.starts == 1


async def pid(crib: Crib, project: Project, principal: Principal = OWNER) -> int:
    """The process that answers this caller."""
    request = CallRequest(tool="s:whoami", params={"arguments": msgspec.Raw(b"{}")})
    answer = await crib.services.door.call(RequestContext(principal, project), request)
    return int(read_answer(answer.answer).text)


def state(crib: Crib) -> ServerState:
    return crib.status()["s"].state


async def test_a_server_with_known_tools_starts_with_its_first_call(open_crib: OpenCrib, own: OwnServer) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry()) as crib:
        assert [tool.name for tool in crib.tools()] == ["whoami", "wait"]
        assert (state(crib), own.starts) == (ServerState.IDLE, 1)
        pids = await asyncio.gather(*(pid(crib, crib.projects.home) for _ in range(3)))
        assert (len(set(pids)), state(crib), own.starts) == (1, ServerState.READY, 2)


async def test_tools_known_from_one_project_start_nothing_in_another(
    open_crib: OpenCrib, own: OwnServer, tmp_path: Path
) -> None:
    await listed_once(open_crib, own, own.entry(cwd="project"))
    async with open_crib(own.entry(cwd="project")) as crib:
        project = await crib.projects.at(tmp_path / "two")
        assert [tool.name for tool in project.catalog.of_server("s")] == ["whoami", "wait"]
        assert (project.servers["s"].status.state, own.starts) == (ServerState.IDLE, 1)
        assert await pid(crib, project) != await pid(crib, crib.projects.home)


async def test_a_server_whose_file_is_deleted_and_restored_stays_idle(
    open_crib: OpenCrib, own: OwnServer, tmp_path: Path
) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry()) as crib:
        file = tmp_path / "home" / "config.json"
        content = file.read_text()
        file.unlink()
        await crib.projects.reload()
        assert crib.status() == {}
        file.write_text(content)
        await crib.projects.reload()
        assert (state(crib), own.starts) == (ServerState.IDLE, 1)


@pytest.mark.parametrize("how", ["eager", "restart", "refresh", "connect"])
async def test_a_server_also_starts_where_it_should_be_ready(open_crib: OpenCrib, own: OwnServer, how: str) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry(start="eager") if how == "eager" else own.entry()) as crib:
        server = crib.projects.home.servers["s"]
        match how:
            case "restart":
                await server.restart()
            case "refresh":
                await server.refresh()
            case "connect":
                await crib.servers.connect("s")
        assert (state(crib), own.starts) == (ServerState.READY, 2)


@pytest.mark.req("BNS-4")
async def test_changed_tools_are_noticed_when_the_server_starts(open_crib: OpenCrib, own: OwnServer) -> None:
    await listed_once(open_crib, own, own.entry())
    own.offer({**TOOLS[0], "description": "Now it does more."}, TOOLS[1], NEW)
    async with open_crib(own.entry()) as crib:
        news: list[Event] = []
        crib.bus.subscribe(news.append, CatalogChanged)
        before = crib.catalog.version
        # The caller and its permission were checked against the old definition.
        with pytest.raises(ServerUnavailable, match=r"its tool 'whoami' had changed\. The call did not run"):
            await crib.call("whoami", {})
        assert own.calls == []
        await until(lambda: news)
        assert crib.catalog.version > before
        assert [tool.name for tool in crib.catalog.tools] == ["whoami", "wait", "new"]
        assert await pid(crib, crib.projects.home)
    own.offer({**TOOLS[0], "description": "Now it does more."})
    async with open_crib(own.entry()) as crib:
        # The called tool is the same, so the call is made.
        assert await pid(crib, crib.projects.home)
        assert [tool.name for tool in crib.catalog.tools] == ["whoami"]


async def test_a_call_that_waits_for_a_reconnection_is_refused_if_its_tool_changed(
    open_crib: OpenCrib, own: OwnServer
) -> None:
    async with open_crib(own.entry(start="eager")) as crib:
        own.offer({**TOOLS[0], "description": "Now it does more."})
        restarting = asyncio.create_task(crib.projects.home.servers["s"].restart())
        await until(lambda: state(crib) is ServerState.CONNECTING)
        # Either the connection notices it first or the door.
        with pytest.raises((ServerUnavailable, Denied), match=r"whoami'? (had )?changed.* (not|did not) run"):
            await crib.call("whoami", {})
        await restarting
        assert own.calls == []


async def test_an_idle_server_stops_and_comes_back_with_the_next_call(open_crib: OpenCrib, own: OwnServer) -> None:
    async with open_crib(own.entry(idle_minutes=0.005)) as crib:
        news: list[Event] = []
        await until(lambda: state(crib) is ServerState.IDLE)
        crib.bus.subscribe(news.append, CatalogChanged)
        home, listed = crib.projects.home, crib.catalog
        first = await pid(crib, home)
        await until(lambda: state(crib) is ServerState.IDLE)
        assert crib.status()["s"].pid is None
        assert not Path(f"/proc/{first}").exists()
        assert await pid(crib, home) != first
        assert (news, crib.catalog, own.starts) == ([], listed, 3)
        assert home.servers["s"].restarts == 0


async def test_a_server_does_not_stop_while_a_call_is_under_way(open_crib: OpenCrib, own: OwnServer) -> None:
    async with open_crib(own.entry(idle_minutes=0.001)) as crib:
        waiting = asyncio.create_task(crib.call("wait", {}))
        await until(lambda: own.calls)
        server = crib.projects.home.servers["s"]
        # A call that begins as the timer fires: the timer starts again.
        server._idle.stop()
        await server.rest()
        assert server._idle._timer is not None
        # Longer than the limit, however often it looks.
        looks = 0
        while looks < 3:
            looks += server._idle._timer is not None and server._idle._timer.when() > 0
            await server.rest()
            await asyncio.sleep(0.06)
        assert state(crib) is ServerState.READY
        (own.folder / "go").touch()
        result = await waiting
        assert not result.is_error
        await until(lambda: state(crib) is ServerState.IDLE)


async def test_zero_minutes_means_never(open_crib: OpenCrib, own: OwnServer) -> None:
    async with open_crib(own.entry(idle_minutes=0)) as crib:
        assert crib.projects.home.servers["s"]._idle._timer is None


@pytest.mark.parametrize("share", ["all", "project"])
async def test_servers_stop_when_their_last_client_has_left(
    open_crib: OpenCrib, own: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    monkeypatch.setattr(project_module, "GRACE", 0.3)
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry(share=share), is_daemon=True) as crib:
        for root in (tmp_path / "one", tmp_path / "two"):
            async with crib.projects.working_in(root) as project:
                async with crib.projects.working_in(root):
                    used = await pid(crib, project)
                server = project.servers["s"]
                await crib.projects.release_unused(project)
                assert server.status.state is ServerState.READY
            closed = share == "project" and project is not crib.projects.home
            ended = ServerState.STOPPED if closed else ServerState.IDLE
            await until(lambda server=server, ended=ended: server.status.state is ended)
            assert not Path(f"/proc/{used}").exists()
        assert [tool.name for tool in crib.catalog.tools] == ["whoami", "wait"]
        assert await pid(crib, crib.projects.home) != used


@pytest.mark.parametrize(
    ("share", "distinct"), [({}, 1), ({"share": "all"}, 1), ({"share": "project"}, 2), ({"share": "agent"}, 4)]
)
async def test_processes_are_shared_as_the_entry_says(
    open_crib: OpenCrib, own: OwnServer, tmp_path: Path, share: dict[str, str], distinct: int
) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry(**share)) as crib:
        found = []
        for root in (tmp_path / "one", tmp_path / "two"):
            project = await crib.projects.at(root)
            found += [await pid(crib, project), await pid(crib, project, CLIENT), await pid(crib, project, CLIENT)]
        assert len(set(found)) == distinct
        assert own.starts == 1 + distinct


@pytest.mark.parametrize("end", ["release", "disable"])
async def test_what_was_read_of_a_servers_list_is_freed_with_its_last_project(
    open_crib: OpenCrib, own: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    async with open_crib(own.entry(share="project", pins="hold")) as crib:
        trust = crib.trust

        def kept() -> set[Path | None]:
            return {root for held in (trust._latest, trust._reported, trust._reader._read) for _, root in held}

        other = await crib.projects.at(tmp_path / "two")
        await other.settled()
        assert await pid(crib, crib.projects.home)
        assert await pid(crib, other)
        await until(lambda: kept() == {tmp_path / "one", tmp_path / "two"})
        if end == "release":
            monkeypatch.setattr(project_module, "GRACE", 0.0)
            await crib.projects.release_unused(other)
        else:
            file = tmp_path / "home" / "config.json"
            file.write_text(json.dumps({"servers": {"s": {**own.entry(share="project"), "enabled": False}}}))
            await crib.projects.reload()
        await asyncio.gather(*crib.projects._background)
        assert kept() == ({tmp_path / "one"} if end == "release" else set())


@pytest.mark.req("KSI-8")
async def test_an_agents_own_process_ends_with_the_agent(open_crib: OpenCrib, own: OwnServer) -> None:
    async with open_crib(own.entry(share="agent")) as crib:
        home = crib.projects.home
        # It was started only to list its tools.
        await until(lambda: state(crib) is ServerState.IDLE)
        client, owner = await pid(crib, home, CLIENT), await pid(crib, home)
        crib.bus.publish(AgentEnded(agent=CLIENT.name))
        await until(lambda: not Path(f"/proc/{client}").exists())
        assert await pid(crib, home) == owner
        assert home.agent_servers.all() == ()


async def test_a_restart_includes_the_running_processes_of_agents(open_crib: OpenCrib, own: OwnServer) -> None:
    other = Principal.fixed("other", CLIENT.permission())
    async with open_crib(own.entry(share="agent")) as crib:
        home = crib.projects.home
        before, _ = await pid(crib, home, CLIENT), await pid(crib, home, other)
        await home.agent_servers.by_agent("s")[other.name].rest()
        request: Any = {"request": RequestContext(OWNER, home), "host": NoDaemon(), "emit": None}
        context = CommandContext(crib=crib, via=Via.SOCKET, **request)
        row = await registry.run("server:restart", {"name": "s"}, context)
        assert not Path(f"/proc/{before}").exists()
        assert {agent: one["state"] for agent, one in row["agents"].items()} == {"client": "ready", "other": "idle"}
        await until(lambda: state(crib) is ServerState.IDLE)
        assert (await registry.run("server:show", {"name": "s"}, context))["memory"], "the one running process"
        starts = own.starts
        assert (await pid(crib, home, CLIENT) != before, own.starts) == (True, starts)


@pytest.mark.req("BNS-4")
async def test_an_agents_own_process_updates_the_list(open_crib: OpenCrib, own: OwnServer) -> None:
    await listed_once(open_crib, own, own.entry())
    own.offer(TOOLS[0])
    async with open_crib(own.entry(share="agent")) as crib:
        assert await pid(crib, crib.projects.home, CLIENT)
        assert [tool.name for tool in crib.catalog.tools] == ["whoami"]
        assert state(crib) is ServerState.IDLE
    async with open_crib(own.entry()) as crib:
        assert [tool.name for tool in crib.catalog.tools] == ["whoami"]


@pytest.mark.req("BNS-4")
async def test_an_agents_own_process_with_outdated_tools_is_neither_called_nor_listed(
    open_crib: OpenCrib, own: OwnServer
) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry(share="agent")) as crib:
        home = crib.projects.home
        outdated = await pid(crib, home, CLIENT)
        own.offer({**TOOLS[0], "description": "Changed."}, TOOLS[1])
        with pytest.raises(ServerUnavailable, match="had changed"):
            await pid(crib, home)
        with pytest.raises(ServerUnavailable, match="lists another definition"):
            await pid(crib, home, CLIENT)
        assert own.calls == ["whoami"]
        listed: list[str] = []
        home.subscribe(lambda: listed.append(home.find("s:whoami").shown.description))
        mine = home.agent_servers.by_agent("s")[CLIENT.name]
        os.kill(outdated, signal.SIGKILL)
        await until(lambda: mine.restarts == 1)
        assert await pid(crib, home, CLIENT) != outdated
        assert set(listed) <= {"Changed."}


@pytest.mark.req("BNS-4")
async def test_an_idle_process_of_an_agent_starts_for_the_definition_that_is_listed(
    open_crib: OpenCrib, own: OwnServer
) -> None:
    await listed_once(open_crib, own, own.entry())
    async with open_crib(own.entry(share="agent")) as crib:
        home = crib.projects.home
        assert await pid(crib, home, CLIENT)
        await home.agent_servers.by_agent("s")[CLIENT.name].rest()
        own.offer({**TOOLS[0], "description": "Changed."}, TOOLS[1])
        with pytest.raises(ServerUnavailable, match="had changed"):
            await pid(crib, home)
        assert await pid(crib, home, CLIENT)


@pytest.mark.req("BNS-4")
async def test_looking_starts_nothing_and_a_client_learns_of_changed_tools(
    own: OwnServer, toolcrib_home: Home, cli: Cli, daemon: StartDaemon
) -> None:
    toolcrib_home.write_config({"servers": {"s": own.entry()}})
    (await during(cli, "call", "s:whoami")).ok()
    (without_daemon,) = (await during(cli, "servers", "--json")).ok().json["servers"]
    assert (without_daemon["state"], own.starts) == ("idle", 1)
    own.offer(TOOLS[0], NEW)
    running: Daemon = await during(daemon, {"servers": {"s": own.entry()}})
    assert (await during(cli, "tools", "s", "--json")).ok().json["tools"]
    assert (await during(cli, "status", "--json")).ok().json["servers"][0]["state"] == "idle"
    async with bridge_in(running, toolcrib_home.project) as bridge:
        assert {"s_whoami", "s_wait"} <= await bridge.names()
        assert own.starts == 1
        await bridge.call("s_whoami")
        await bridge.next_change()
        assert {name for name in await bridge.names() if name.startswith("s_")} == {"s_whoami", "s_new"}
    assert own.starts == 2
