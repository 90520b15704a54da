"""The library: one server with `Client`, many with `Crib`."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from parts import leftovers
from parts.recording_server import Notes
from parts.server_process import stdio_entry
from parts.waiting import until
from toolcrib import Client, Crib, server_config
from toolcrib.config.from_code import StdioServer
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Opening
from toolcrib.core.results import (
    AudioBlock,
    ImageBlock,
    OtherBlock,
    ResourceBlock,
    ResourceLinkBlock,
    TextBlock,
    read_result,
)
from toolcrib.errors import ConfigError, InvalidArguments, ServerUnavailable, UnknownServer, UnknownTool, UsageError
from toolcrib.events import CallFinished, CatalogChanged, Event, ServerStateChanged
from toolcrib.servers.model import ServerState

CLOCK = Path(__file__).parents[2] / "examples" / "clock_server.py"


@pytest.fixture
def clock():
    return server_config("clock", {"command": sys.executable, "args": [str(CLOCK)], "connect_timeout": 60})


@pytest.fixture
def parts_server():
    return server_config("own", stdio_entry("sdk_v2"))


def home_of(folder: Path) -> dict[str, str]:
    return {"TOOLCRIB_HOME": str(folder), "HOME": str(folder)}


@pytest.fixture
def paths(tmp_path):
    return Paths.of_user(home_of(tmp_path))


@pytest.fixture
async def crib(paths, tmp_path):
    async with Crib(paths=paths, root=tmp_path, environ={}) as crib:
        yield crib


async def test_a_crib_is_used_once_and_only_inside_its_async_with(crib):
    with pytest.raises(UsageError, match="used only once"):
        await crib.__aenter__()
    assert crib.status() == {}
    with pytest.raises(UsageError, match="A Crib must be used inside its `async with`"):
        Crib.from_config({"servers": {}}).tools()
    with pytest.raises(UsageError, match="cannot be a dict"):
        await Crib.from_config({"servers": {}}).servers.discover({})


async def test_an_invalid_entry_or_source_is_refused_with_the_reason(environ, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="comand"):
        server_config("x", {"comand": "python"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    for source, message in (
        ({"servers": {"a": {"comand": "x"}}}, "comand"),
        ({"servers": {"a": {"command": "${NOT_SET_ANYWHERE}"}}}, "NOT_SET_ANYWHERE"),
        ({"servers": {"a": {"command": object()}}}, "object"),
        ("nowhere.json", "nowhere.json"),
        ("broken.json", "broken.json"),
    ):
        with pytest.raises(ConfigError, match=message):
            await Crib.from_config(source, root=tmp_path, environ=environ).__aenter__()


NAMES = """
    AgentEvent AgentOptions ChangeSchema Client CodeAgent CodingTools Connection Crib DefaultArguments DescribeTools
    DropTools ExecutionResult FixArguments ForTools HttpServer KeepTools Kit OfferedTool PrefixTools ProviderOptions
    RenameArguments RenameTools Result ServerConfig ServerQuestion SseServer StdioServer ToolProvider ToolRequest
    ToolcribError Tools WebSocketServer __version__ destructive idempotent open_world read_only run_agent server_config
"""


def test_the_package_exports_exactly_these_names():
    assert sorted(toolcrib.__all__) == NAMES.split()
    assert all(getattr(toolcrib, name) for name in toolcrib.__all__)
    with pytest.raises(AttributeError):
        toolcrib.Nothing  # noqa: B018


@pytest.mark.req("BNS-1", "BNS-5")
async def test_a_client_connects_lists_calls_disconnects_and_connects_again(clock):
    client = Client(clock)
    for _ in range(2):
        assert not client.is_connected
        await client.connect()
        try:
            assert client.is_connected
            assert client.server_info.server_info["name"] == "clock"
            assert [tool.name for tool in client.list_tools()] == ["now"]
            for name in ("now", "clock:now"):
                result = await client.call_tool(name, {"zone": "UTC"})
                assert result.text.endswith("+00:00")
                assert not result.is_error
            with pytest.raises(UnknownTool, match="nov"):
                await client.call_tool("nov")
            with pytest.raises(InvalidArguments, match="zone"):
                await client.call_tool("now", {"zone": 3})
            assert (await client.call_tool("now", {"zone": "Mars/Olympus"})).is_error
        finally:
            await client.disconnect()
    assert not client.is_connected
    with pytest.raises(UsageError):
        await client.call_tool("now", {"zone": "UTC"})


@pytest.mark.req("BNS-4")
async def test_a_client_can_refresh_its_tools_if_the_server_does_not_announce_changes(tmp_path):
    # The clock, but with a second tool when a file exists, without a notification.
    grown = '[NOW, {**NOW, "name": "later"}] if __import__("os").path.exists(sys.argv[1]) else [NOW]'
    script = tmp_path / "silent.py"
    script.write_text(CLOCK.read_text().replace('{"tools": [NOW]}', f'{{"tools": {grown}}}'))
    mark = tmp_path / "grown"
    async with Client(server_config("clock", {"command": sys.executable, "args": [str(script), str(mark)]})) as client:
        assert [tool.name for tool in client.list_tools()] == ["now"]
        mark.touch()
        assert [tool.name for tool in client.list_tools()] == ["now"]
        await client.refresh()
        assert [tool.name for tool in client.list_tools()] == ["now", "later"]


@pytest.mark.req("BNS-1", "BNS-5", "ENG-2")
async def test_an_unreachable_server_is_reported_and_registers_nothing(crib, tmp_path):
    missing = server_config("gone", {"command": str(tmp_path / "no-such-program")})
    with pytest.raises(ServerUnavailable, match="no-such-program"):
        await Client(missing).connect()
    with pytest.raises(ServerUnavailable):
        await crib.servers.register(missing)
    assert crib.tools().names == ()


@pytest.mark.req("ENG-2", "ENG-3", "ENG-10")
async def test_a_server_is_discovered_registered_called_and_unregistered(crib, clock):
    given = StdioServer("clock", command=sys.executable, args=[CLOCK])
    for server in (clock, given):
        assert [tool.display for tool in await crib.servers.discover(server)] == ["clock:now"]
        assert crib.tools().names == (), "discovering registers nothing"
        with pytest.raises(UnknownTool):
            await crib.call("clock:now", {"zone": "UTC"})
        assert [tool.display for tool in await crib.servers.register(server)] == ["clock:now"]
        assert (await crib.call("now", {"zone": "UTC"})).text
        await crib.projects.reload()
        tool = crib.projects.home.catalog.find("clock:now")
        assert (tool.server, tool.input_schema["required"]) == ("clock", ["zone"])
        assert (await crib.call(tool.display, {"zone": "UTC"})).text
        await crib.servers.unregister("clock")
        assert crib.tools().names == ()


@pytest.mark.req("ENG-2")
async def test_single_tools_of_a_server_can_be_registered(crib, parts_server):
    assert {"echo", "add"} <= {tool.name for tool in await crib.servers.discover(parts_server)}
    await crib.servers.register(parts_server, only={"add"})
    assert crib.tools().names == ("add",)
    with pytest.raises(UnknownTool):
        await crib.call("own:echo", {})
    assert (await crib.servers.register_tool(parts_server, "add")).display == "own:add"
    assert (await crib.servers.register_tool(parts_server, "echo")).display == "own:echo"
    assert {offer.tool.name for offer in crib.tools()} == {"add", "echo"}
    with pytest.raises(UnknownTool, match="ecko") as raised:
        await crib.servers.register_tool(parts_server, "ecko")
    assert "own:echo" in raised.value.remedy
    with pytest.raises(UnknownTool):
        await crib.servers.register(parts_server, only="nothing")
    assert {offer.tool.name for offer in crib.tools()} == {"add", "echo"}, "nothing was changed"
    await crib.servers.register(parts_server, only="add")
    assert crib.tools().names == ("add",)


@pytest.mark.req("ENG-9")
def test_every_kind_of_content_becomes_a_block_and_nothing_is_dropped():
    content = [
        (TextBlock, {"type": "text", "text": "hi", "annotations": {"priority": 1}}),
        (ImageBlock, {"type": "image", "data": "aGk=", "mimeType": "image/png"}),
        (AudioBlock, {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "_meta": {"x": 1}}),
        (ResourceBlock, {"type": "resource", "resource": {"uri": "a:b", "text": "t"}}),
        (ResourceBlock, {"type": "resource", "resource": {"uri": "a:c", "blob": "aGk=", "mimeType": "x/y"}}),
        (ResourceLinkBlock, {"type": "resource_link", "uri": "a:d", "name": "d"}),
        (OtherBlock, {"type": "hologram", "depth": 3}),
        (OtherBlock, {"type": "image", "data": "not base64!", "mimeType": "image/png"}),
        (OtherBlock, 7),
    ]
    given = {"structuredContent": {"n": None}, "isError": True, "later": [1]}
    result = read_result(json.dumps({"content": [block for _, block in content], **given}).encode())
    assert [type(block) for block in result.blocks] == [kind for kind, _ in content]
    assert [block.raw for block in result.blocks[:-1]] == [block for _, block in content[:-1]]
    assert (result.blocks[1].data, result.blocks[4].blob) == (b"hi", b"hi")
    assert (result.structured, result.is_error, result.raw["later"]) == ({"n": None}, True, [1])


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "seen")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TOOLCRIB_HOME": str(tmp_path / "t"), "HOME": str(tmp_path)}


def configure(environ: dict[str, str], servers: dict[str, Any], **more: Any) -> None:
    folder = Path(environ["TOOLCRIB_HOME"])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"servers": servers, **more}))


@pytest.mark.req("ENG-4", "ENG-10")
async def test_a_crib_waits_for_configured_servers_unless_their_tools_are_cached(environ, notes, tmp_path):
    gone = {"command": str(tmp_path / "no-such-program")}
    configure(environ, {"w": notes.server("note"), "gone": gone})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert set(crib.tools().names) == {"note", "release"}
        await crib.call("note", {"nonce": "first"})
        status = crib.status()
        assert status["w"].state is ServerState.READY
        assert status["gone"].state is not ServerState.READY
        assert "no-such-program" in crib.server_info("gone").last_error
        with pytest.raises(UnknownServer):
            crib.server_info("never")
    configure(environ, {"w": notes.server("note")})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert crib.server_info("w").state is ServerState.IDLE, "its tools are known"
        assert crib.tools()["note"].server == "w"
        await crib.call("note", {"nonce": "the call waits"})
    configure(environ, {"w": {**notes.server("note"), "enabled": False}})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert crib.tools().names == (), "a disabled server has no tools"
    assert notes.nonces() == ["first", "the call waits"]


async def test_a_crib_that_waits_for_a_server_can_be_cancelled_and_one_for_a_daemon_does_not_wait(paths, tmp_path):
    mark = str(tmp_path / "mark")
    slow = {"command": sys.executable, "args": ["-c", "import time; time.sleep(600)", mark]}
    (tmp_path / "config.json").write_text(json.dumps({"servers": {"s": slow}}))
    async with asyncio.timeout(60), Crib(paths=paths, root=tmp_path, environ={}) as crib:
        assert crib.server_info("s").state is ServerState.CONNECTING
        assert crib._opening is Opening.AT_ONCE

    def running() -> list[leftovers.Process]:
        return [process for process in leftovers.living() if mark in process.words]

    assert running() == []
    entering = asyncio.create_task(Crib.from_config(root=tmp_path, environ=home_of(tmp_path)).__aenter__())
    await until(running)
    entering.cancel()
    await asyncio.wait({entering}, timeout=20)
    assert entering.cancelled()
    assert running() == []


@pytest.mark.parametrize("source", ["mapping", "file", "mcpServers"])
async def test_a_given_source_replaces_the_users_configuration(environ, notes, tmp_path, source):
    configure(environ, {"users": notes.server("users_tool")}, tools=[{"drop": "*_tool"}])
    section = "mcpServers" if source == "mcpServers" else "servers"
    given: Any = {section: {"mine": notes.server("${TOOL}")}, "tools": [{"drop": "release"}]}
    if source == "file":
        given[section]["bad"] = {"comand": "x"}
        (tmp_path / "mine.json").write_text(json.dumps(given))
        given = tmp_path / "mine.json"
    async with Crib.from_config(given, root=tmp_path, environ={**environ, "TOOL": "my_tool"}) as crib:
        assert {offer.name: offer.server for offer in crib.tools()} == {"my_tool": "mine"}
        if source == "file":
            assert "comand" in str(crib.servers.problems[0]), "it does not affect the others"
        await crib.call("my_tool", {"nonce": source})
        await crib.services.audit.flush()
        rows = await crib.services.audit.query(tool="mine:my_tool")
        assert [row["kind"] for row in rows] == ["intent", "outcome"], "the user's audit log has it"
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert {offer.name: offer.server for offer in crib.tools()} == {"release": "users"}
        assert await crib.services.audit.query(tool="mine:my_tool")
        assert (await crib.services.audit.verify()).ok


@pytest.mark.req("ENG-10")
async def test_a_server_is_disconnected_and_connected_by_its_name(environ, notes, tmp_path):
    states: list[str] = []
    source = {"servers": {"w": notes.server("note"), "off": {"command": "x", "enabled": False}}}
    async with Crib.from_config(source, root=tmp_path, environ=environ) as crib:
        crib.subscribe(lambda event: states.append(event.state), ServerStateChanged)
        pid = crib.server_info("w").pid
        await crib.disconnect("w")
        assert leftovers.read(pid) is None
        assert "note" in crib.tools()
        with pytest.raises(ServerUnavailable, match="stopped") as raised:
            await crib.call("note", {"nonce": "while away"})
        assert "await crib.servers.connect('w')" in raised.value.remedy
        await crib.projects.reload()
        assert crib.server_info("w").state is ServerState.STOPPED, "a reload does not connect it"
        await crib.servers.connect("w")
        await crib.call("note", {"nonce": "again"})
        await crib.servers.connect("w")
        with pytest.raises(UnknownServer, match="never"):
            await crib.servers.connect("never")
        with pytest.raises(UsageError, match="is disabled"):
            await crib.servers.connect("off")
    assert states[:3] == ["stopped", "connecting", "ready"]
    assert notes.nonces() == ["again"]


@pytest.mark.req("ENG-10")
async def test_the_tools_of_a_removed_server_disappear_and_those_of_a_killed_one_stay(environ, notes, tmp_path):
    configure(environ, {"w": notes.server("note"), "v": notes.server("other")})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        changes: list[Event] = []
        crib.subscribe(changes.append, CatalogChanged)
        configure(environ, {"w": notes.server("note")})
        await crib.projects.reload()
        assert {offer.server for offer in crib.tools()} == {"w"}
        await until(lambda: changes)
        with pytest.raises(UnknownTool):
            await crib.call("v:other")
        first = crib.server_info("w").pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: crib.server_info("w").pid != first)
        assert "note" in crib.tools()
        await crib.call("note", {"nonce": "by the next one"})
    assert notes.nonces() == ["by the next one"]


@pytest.mark.req("ENG-3")
async def test_two_cribs_in_one_process_do_not_see_each_other(environ, tmp_path, clock):
    one_notes, two_notes = Notes(tmp_path / "one"), Notes(tmp_path / "two")
    one_source = {"servers": {"w": one_notes.server("shared", "first")}}
    two_source = {"servers": {"w": two_notes.server("shared", "second")}}
    seen: dict[str, list[Event]] = {"one": [], "two": []}
    async with (
        Crib.from_config(one_source, root=tmp_path, environ=environ) as one,
        Crib.from_config(two_source, root=tmp_path, environ=environ) as two,
    ):
        one.subscribe(seen["one"].append)
        two.subscribe(seen["two"].append)
        assert set(one.tools().names) == {"shared", "first", "release"}
        assert set(two.tools().names) == {"shared", "second", "release"}
        await one.servers.register(clock)
        assert "now" in one.tools()
        assert "now" not in two.tools()
        pairs = [(name, crib, number) for number in range(3) for name, crib in (("one", one), ("two", two))]
        await asyncio.gather(*(crib.call("shared", {"nonce": f"{name}{n}"}) for name, crib, n in pairs))
        with pytest.raises(UnknownTool):
            await two.call("first")
        await two.disconnect("w")
        assert one.server_info("w").state is ServerState.READY
        assert (await one.services.audit.verify()).ok, "both write into the one audit log"
    assert sorted(one_notes.nonces()) == ["one0", "one1", "one2"]
    assert sorted(two_notes.nonces()) == ["two0", "two1", "two2"]
    for name in ("one", "two"):
        finished = [event for event in seen[name] if isinstance(event, CallFinished) and event.outcome == "ok"]
        assert all(json.loads(event.arguments)["nonce"].startswith(name) for event in finished)
        assert len(finished) == 3
    assert any(isinstance(event, CatalogChanged) for event in seen["one"])
    assert not any(isinstance(event, CatalogChanged) for event in seen["two"])
