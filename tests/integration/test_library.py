"""The client layer in a program of one's own: one server with `Client`, many with `Crib`."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from parts import leftovers
from parts.recording_server import Notes
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
    return server_config("clock", {"command": sys.executable, "args": [str(CLOCK)]})


@pytest.fixture
def parts_server():
    script = Path(__file__).parents[1] / "parts" / "servers" / "sdk_v2.py"
    return server_config("own", {"command": sys.executable, "args": [str(script)]})


@pytest.fixture
def paths(tmp_path):
    return Paths.of_user({"TOOLCRIB_HOME": str(tmp_path), "HOME": str(tmp_path)})


@pytest.fixture
async def crib(paths, tmp_path):
    async with Crib(paths=paths, root=tmp_path, environ={}) as crib:
        yield crib


async def test_a_crib_is_entered_once_and_who_tries_again_does_not_close_it(crib):
    with pytest.raises(UsageError, match="used once"):
        await crib.__aenter__()
    assert crib.status() == {}


def test_the_root_offers_just_these_names():
    assert sorted(toolcrib.__all__) == [
        "AgentEvent",
        "AgentOptions",
        "ChangeSchema",
        "Client",
        "CodeAgent",
        "CodingTools",
        "Connection",
        "Crib",
        "DefaultArguments",
        "DescribeTools",
        "DropTools",
        "ExecutionResult",
        "FixArguments",
        "ForTools",
        "HttpServer",
        "KeepTools",
        "Kit",
        "OfferedTool",
        "PrefixTools",
        "ProviderOptions",
        "RenameArguments",
        "RenameTools",
        "Result",
        "ServerConfig",
        "SseServer",
        "StdioServer",
        "ToolProvider",
        "ToolRequest",
        "ToolcribError",
        "Tools",
        "WebSocketServer",
        "__version__",
        "destructive",
        "idempotent",
        "open_world",
        "read_only",
        "run_agent",
        "server_config",
    ]
    assert all(getattr(toolcrib, name) for name in toolcrib.__all__)
    with pytest.raises(AttributeError):
        toolcrib.Nothing  # noqa: B018


@pytest.mark.req("BNS-1")
async def test_a_client_connects_lists_calls_and_disconnects(clock):
    client = Client(clock)
    assert not client.is_connected
    await client.connect()
    try:
        assert client.is_connected
        assert client.server_info.server_info["name"] == "clock"
        assert [tool.name for tool in client.list_tools()] == ["now"]
        result = await client.call_tool("now", {"zone": "UTC"})
        assert result.text.endswith("+00:00")
        assert not result.is_error
    finally:
        await client.disconnect()
    assert not client.is_connected
    with pytest.raises(UsageError):
        await client.call_tool("now", {"zone": "UTC"})


@pytest.mark.req("BNS-1")
async def test_a_client_can_be_connected_again(clock):
    client = Client(clock)
    for _ in range(2):
        async with client:
            assert (await client.call_tool("clock:now", {"zone": "UTC"})).text


@pytest.mark.req("BNS-4")
async def test_a_client_asks_again_for_tools_that_came_without_a_word(tmp_path):
    # The clock, but with a second tool from the moment that a file appears; it tells nobody of it.
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


@pytest.mark.req("BNS-1", "BNS-5")
async def test_a_server_that_is_not_there_is_said_so(tmp_path):
    missing = server_config("gone", {"command": str(tmp_path / "no-such-program")})
    with pytest.raises(ServerUnavailable, match="no-such-program"):
        await Client(missing).connect()


@pytest.mark.req("BNS-5")
async def test_wrong_names_and_arguments_are_errors_and_a_tools_failure_is_a_result(clock):
    async with Client(clock) as client:
        with pytest.raises(UnknownTool, match="nov"):
            await client.call_tool("nov")
        with pytest.raises(InvalidArguments, match="zone"):
            await client.call_tool("now", {"zone": 3})
        assert (await client.call_tool("now", {"zone": "Mars/Olympus"})).is_error


@pytest.mark.req("ENG-2")
async def test_discovering_registers_nothing(crib, clock):
    found = await crib.servers.discover(clock)
    assert [tool.display for tool in found] == ["clock:now"]
    assert crib.tools().names == ()
    with pytest.raises(UnknownTool):
        await crib.call("clock:now", {"zone": "UTC"})


@pytest.mark.req("ENG-2")
async def test_discover_and_register_is_one_step(crib, clock):
    registered = await crib.servers.register(clock)
    assert [tool.display for tool in registered] == ["clock:now"]
    assert (await crib.call("clock:now", {"zone": "UTC"})).text
    await crib.projects.reload()
    assert (await crib.call("clock:now", {"zone": "UTC"})).text


@pytest.mark.req("ENG-2")
async def test_one_tool_can_be_registered_by_hand(crib, parts_server):
    offered = {tool.name for tool in await crib.servers.discover(parts_server)}
    assert {"echo", "add"} <= offered
    await crib.servers.register(parts_server, only={"add"})
    assert [tool.name for tool in crib.tools()] == ["add"]
    with pytest.raises(UnknownTool):
        await crib.call("own:echo", {})


@pytest.mark.req("ENG-2")
async def test_tools_can_be_registered_one_after_the_other(crib, parts_server, clock):
    assert (await crib.servers.register_tool(parts_server, "add")).display == "own:add"
    assert (await crib.servers.register_tool(parts_server, "echo")).display == "own:echo"
    assert {offer.tool.name for offer in crib.tools()} == {"add", "echo"}
    with pytest.raises(UnknownTool, match="ecko") as told:
        await crib.servers.register_tool(parts_server, "ecko")
    assert "own:echo" in told.value.remedy
    with pytest.raises(UnknownTool):
        await crib.servers.register(parts_server, only="nothing")
    assert {offer.tool.name for offer in crib.tools()} == {"add", "echo"}, "nothing was changed"
    await crib.servers.register(parts_server, only="add")
    assert crib.tools().names == ("add",)


@pytest.mark.req("ENG-3", "ENG-10")
async def test_a_tool_is_a_definition_and_something_that_runs_and_knows_its_server(crib, clock):
    await crib.servers.register(clock)
    tool = crib.projects.home.catalog.find("clock:now")
    assert tool.server == "clock"
    assert tool.input_schema["required"] == ["zone"]
    assert (await crib.call(tool.display, {"zone": "UTC"})).text
    await crib.servers.unregister("clock")
    assert crib.tools().names == ()


@pytest.mark.req("ENG-2")
async def test_a_server_that_cannot_be_reached_registers_nothing(crib, tmp_path):
    missing = server_config("gone", {"command": str(tmp_path / "no-such-program")})
    with pytest.raises(ServerUnavailable):
        await crib.servers.register(missing)
    assert crib.tools().names == ()


def test_an_entry_that_cannot_be_used_is_refused_with_its_reason():
    with pytest.raises(ConfigError, match="comand"):
        server_config("x", {"comand": "python"})


@pytest.mark.req("ENG-9")
def test_every_kind_of_content_becomes_a_block_and_nothing_is_dropped():
    result = read_result(
        b"""{"content": [
        {"type": "text", "text": "hi", "annotations": {"priority": 1}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "_meta": {"x": 1}},
        {"type": "resource", "resource": {"uri": "a:b", "text": "t"}},
        {"type": "resource", "resource": {"uri": "a:c", "blob": "aGk=", "mimeType": "x/y"}},
        {"type": "resource_link", "uri": "a:d", "name": "d"},
        {"type": "hologram", "depth": 3},
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
        7
        ], "structuredContent": {"n": null}, "isError": true, "later": [1]}"""
    )
    kinds = [
        TextBlock,
        ImageBlock,
        AudioBlock,
        ResourceBlock,
        ResourceBlock,
        ResourceLinkBlock,
        OtherBlock,
        OtherBlock,
        OtherBlock,
    ]
    assert [type(block) for block in result.blocks] == kinds
    assert result.blocks[0].raw["annotations"] == {"priority": 1}
    assert result.blocks[1].data == b"hi"
    assert result.blocks[2].raw["_meta"] == {"x": 1}
    assert result.blocks[4].blob == b"hi"
    assert result.blocks[6].raw["depth"] == 3
    assert result.structured == {"n": None}
    assert result.is_error
    assert result.raw["later"] == [1]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "seen")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of a person with a home of their own."""
    return {"TOOLCRIB_HOME": str(tmp_path / "t"), "HOME": str(tmp_path)}


def configure(environ: dict[str, str], servers: dict[str, Any], **more: Any) -> None:
    folder = Path(environ["TOOLCRIB_HOME"])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"servers": servers, **more}))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.req("ENG-4")
async def test_configured_servers_are_there_at_the_first_use(environ, notes, tmp_path):
    missing = {"command": str(tmp_path / "no-such-program")}
    configure(environ, {"w": notes.server("note"), "gone": missing})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert set(crib.tools().names) == {"note", "release"}
        await crib.call("note", {"nonce": "first"})
        status = crib.status()
        assert status["w"].state is ServerState.READY
        assert status["gone"].state is not ServerState.READY
        assert "no-such-program" in crib.server_info("gone").last_error
        with pytest.raises(UnknownServer):
            crib.server_info("never")
    assert notes.nonces() == ["first"]


@pytest.mark.req("ENG-4", "ENG-10")
async def test_a_server_whose_tools_are_known_from_last_time_is_not_waited_for(environ, notes, tmp_path):
    configure(environ, {"w": notes.server("note")})
    async with Crib.from_config(root=tmp_path, environ=environ):
        pass
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert crib.server_info("w").state is ServerState.CONNECTING, "nobody waited"
        assert crib.tools()["note"].server == "w"
        await crib.call("note", {"nonce": "the call waits"})
        await crib.servers.disconnect("w")
        assert "note" in crib.tools()
    configure(environ, {"w": {**notes.server("note"), "enabled": False}})
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert crib.tools().names == (), "what is switched off takes its tools along"
    assert notes.nonces() == ["the call waits"]


async def test_a_crib_for_a_daemon_waits_for_nobody(paths, tmp_path):
    slow = [sys.executable, "-c", "import time; time.sleep(600)"]
    (tmp_path / "config.json").write_text(json.dumps({"servers": {"s": {"command": slow[0], "args": slow[1:]}}}))
    async with asyncio.timeout(60), Crib(paths=paths, root=tmp_path, environ={}) as crib:
        assert crib.server_info("s").state is ServerState.CONNECTING
        assert crib._opening is Opening.AT_ONCE


@pytest.mark.parametrize("source", ["mapping", "file", "mcpServers"])
async def test_a_source_of_ones_own_is_all_there_is(environ, notes, tmp_path, source):
    configure(environ, {"users": notes.server("users_tool")}, tools=[{"drop": "*_tool"}])
    entry = notes.server("${TOOL}")
    section = "mcpServers" if source == "mcpServers" else "servers"
    given: Any = {section: {"mine": entry}, "tools": [{"drop": "release"}]}
    if source == "file":
        (tmp_path / "mine.json").write_text(json.dumps(given))
        given = tmp_path / "mine.json"
    async with Crib.from_config(given, root=tmp_path, environ={**environ, "TOOL": "my_tool"}) as crib:
        assert {offer.name: offer.server for offer in crib.tools()} == {"my_tool": "mine"}
        await crib.call("my_tool", {"nonce": source})
        await crib.services.audit.flush()
        rows = await crib.services.audit.query(tool="mine:my_tool")
        assert [row["kind"] for row in rows] == ["intent", "outcome"], "the user's audit log has it"
    async with Crib.from_config(root=tmp_path, environ=environ) as crib:
        assert {offer.name: offer.server for offer in crib.tools()} == {"release": "users"}
        assert await crib.services.audit.query(tool="mine:my_tool")
        assert (await crib.services.audit.verify()).ok


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"servers": {"a": {"comand": "x"}}}, "comand"),
        ({"servers": {"a": {"command": "${NOT_SET_ANYWHERE}"}}}, "NOT_SET_ANYWHERE"),
        ({"servers": {"a": {"command": object()}}}, "object"),
        ("nowhere.json", "nowhere.json"),
        ("broken.json", "broken.json"),
    ],
)
async def test_a_source_that_cannot_be_used_is_refused(environ, tmp_path, monkeypatch, source, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=said):
        await Crib.from_config(source, root=tmp_path, environ=environ).__aenter__()


async def test_in_a_file_one_bad_entry_leaves_the_others(environ, notes, tmp_path):
    servers = {"good": notes.server("note"), "bad": {"comand": "x"}}
    (tmp_path / "mine.json").write_text(json.dumps({"servers": servers}))
    async with Crib.from_config(tmp_path / "mine.json", root=tmp_path, environ=environ) as crib:
        assert {offer.server for offer in crib.tools()} == {"good"}
        assert "comand" in str(crib.servers.problems[0])


@pytest.mark.req("ENG-10")
async def test_a_server_is_disconnected_and_connected_by_its_name(environ, notes, tmp_path):
    states: list[str] = []
    source = {"servers": {"w": notes.server("note"), "off": {"command": "x", "enabled": False}}}
    async with Crib.from_config(source, root=tmp_path, environ=environ) as crib:
        crib.subscribe(lambda event: states.append(event.state), ServerStateChanged)
        pid = crib.server_info("w").pid
        await crib.servers.disconnect("w")
        assert leftovers.read(pid) is None
        assert "note" in crib.tools()
        with pytest.raises(ServerUnavailable, match="stopped") as told:
            await crib.call("note", {"nonce": "while away"})
        assert "await crib.servers.connect('w')" in told.value.remedy
        await crib.projects.reload()
        assert crib.server_info("w").state is ServerState.STOPPED, "it comes when it is wanted"
        await crib.servers.connect("w")
        await crib.call("note", {"nonce": "again"})
        await crib.servers.connect("w")
        with pytest.raises(UnknownServer, match="never"):
            await crib.servers.connect("never")
        with pytest.raises(UsageError, match="switched off"):
            await crib.servers.connect("off")
    assert states[:3] == ["stopped", "connecting", "ready"]
    assert notes.nonces() == ["again"]


@pytest.mark.req("ENG-10")
async def test_a_server_that_is_removed_takes_its_tools_along_and_one_that_dies_keeps_them(environ, notes, tmp_path):
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
    heard: dict[str, list[Event]] = {"one": [], "two": []}
    async with (
        Crib.from_config(one_source, root=tmp_path, environ=environ) as one,
        Crib.from_config(two_source, root=tmp_path, environ=environ) as two,
    ):
        one.subscribe(heard["one"].append)
        two.subscribe(heard["two"].append)
        assert set(one.tools().names) == {"shared", "first", "release"}
        assert set(two.tools().names) == {"shared", "second", "release"}
        await one.servers.register(clock)
        assert "now" in one.tools()
        assert "now" not in two.tools()
        await asyncio.gather(
            *(
                crib.call("shared", {"nonce": f"{name}{number}"})
                for number in range(3)
                for name, crib in (("one", one), ("two", two))
            )
        )
        with pytest.raises(UnknownTool):
            await two.call("first")
        await two.servers.disconnect("w")
        assert one.server_info("w").state is ServerState.READY
        assert (await one.services.audit.verify()).ok, "both write into the one audit log"
    assert sorted(one_notes.nonces()) == ["one0", "one1", "one2"]
    assert sorted(two_notes.nonces()) == ["two0", "two1", "two2"]
    for name in ("one", "two"):
        finished = [event for event in heard[name] if isinstance(event, CallFinished) and event.outcome == "ok"]
        assert all(json.loads(event.arguments)["nonce"].startswith(name) for event in finished)
        assert len(finished) == 3
    assert any(isinstance(event, CatalogChanged) for event in heard["one"])
    assert not any(isinstance(event, CatalogChanged) for event in heard["two"])


async def test_a_server_as_a_program_writes_it_can_be_discovered_and_registered(crib):
    given = StdioServer("clock", command=sys.executable, args=[CLOCK])
    assert [tool.name for tool in await crib.servers.discover(given)] == ["now"]
    await crib.servers.register(given)
    assert (await crib.call("now", {"zone": "UTC"})).text


async def test_a_crib_that_is_not_open_says_so():
    with pytest.raises(UsageError, match="A Crib is used inside its `async with`"):
        Crib.from_config({"servers": {}}).tools()
    with pytest.raises(UsageError, match="cannot be a dict"):
        await Crib.from_config({"servers": {}}).servers.discover({})


async def test_a_crib_cancelled_while_it_waits_for_its_servers_leaves_no_process(environ, tmp_path):
    mark = str(tmp_path / "mark")
    slow = {"command": sys.executable, "args": ["-c", "import time; time.sleep(600)", mark]}
    crib = Crib.from_config({"servers": {"s": slow}}, root=tmp_path, environ=environ)
    entering = asyncio.create_task(crib.__aenter__())
    there = lambda: [process for process in leftovers.living() if mark in process.words]  # noqa: E731
    await until(there)
    entering.cancel()
    await asyncio.wait({entering}, timeout=20)
    assert entering.cancelled()
    assert there() == []
