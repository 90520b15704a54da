"""The client layer in a program of one's own: one server with `Client`, many with `Crib`."""

import sys
from pathlib import Path

import pytest

import toolcrib
from toolcrib import Client, Crib, server_config
from toolcrib.config import Paths
from toolcrib.crib.results import (
    AudioBlock,
    ImageBlock,
    OtherBlock,
    ResourceBlock,
    ResourceLinkBlock,
    TextBlock,
    read_result,
)
from toolcrib.errors import ConfigError, InvalidArguments, ServerAway, UnknownTool

CLOCK = Path(__file__).parents[2] / "examples" / "clock_server.py"


@pytest.fixture
def clock():
    return server_config("clock", {"command": sys.executable, "args": [str(CLOCK)]})


@pytest.fixture
def parts_server():
    script = Path(__file__).parents[1] / "parts" / "servers" / "own_v2.py"
    return server_config("own", {"command": sys.executable, "args": [str(script)]})


@pytest.fixture
def paths(tmp_path):
    return Paths.of_user({"TOOLCRIB_HOME": str(tmp_path), "HOME": str(tmp_path)})


@pytest.fixture
async def crib(paths, tmp_path):
    async with Crib(paths=paths, root=tmp_path, environ={}) as crib:
        yield crib


def test_the_root_offers_just_these_names():
    assert sorted(toolcrib.__all__) == [
        "AgentEvent",
        "Client",
        "CodeAgent",
        "Crib",
        "ExecutionResult",
        "Result",
        "ServerConfig",
        "ToolcribError",
        "__version__",
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
    with pytest.raises(ServerAway):
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
    with pytest.raises(ServerAway, match="no-such-program"):
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
    found = await crib.discover(clock)
    assert [tool.display for tool in found] == ["clock:now"]
    assert crib.tools() == ()
    with pytest.raises(UnknownTool):
        await crib.call("clock:now", {"zone": "UTC"})


@pytest.mark.req("ENG-2")
async def test_discover_and_register_is_one_step(crib, clock):
    registered = await crib.register(clock)
    assert [tool.display for tool in registered] == ["clock:now"]
    assert (await crib.call("clock:now", {"zone": "UTC"})).text
    await crib.reload()
    assert (await crib.call("clock:now", {"zone": "UTC"})).text


@pytest.mark.req("ENG-2")
async def test_one_tool_can_be_registered_by_hand(crib, parts_server):
    offered = {tool.name for tool in await crib.discover(parts_server)}
    assert {"echo", "add"} <= offered
    await crib.register(parts_server, only={"add"})
    assert [tool.name for tool in crib.tools()] == ["add"]
    with pytest.raises(UnknownTool):
        await crib.call("own:echo", {})


@pytest.mark.req("ENG-3", "ENG-10")
async def test_a_tool_is_a_definition_and_something_that_runs_and_knows_its_server(crib, clock):
    await crib.register(clock)
    tool = crib.home.catalog.find("clock:now")
    assert tool.server == "clock"
    assert tool.input_schema["required"] == ["zone"]
    assert (await crib.call(tool.display, {"zone": "UTC"})).text
    await crib.unregister("clock")
    assert crib.tools() == ()


@pytest.mark.req("ENG-2")
async def test_a_server_that_cannot_be_reached_registers_nothing(crib, tmp_path):
    missing = server_config("gone", {"command": str(tmp_path / "no-such-program")})
    with pytest.raises(ServerAway):
        await crib.register(missing)
    assert crib.tools() == ()


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
