"""Clients of both eras with servers of both eras, over every transport, at the endpoint and through `toolcrib stdio`.

One daemon has a server for each transport behind it, and four clients in front of it; each behaviour is one test over
all of them. What is asserted is what the far side saw (`seen`), not only what came back.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp.shared.exceptions import MCPError

from integration.kept import kept_open
from parts.client import at_endpoint, through_bridge
from parts.daemon import Daemon, Home, StartDaemon
from parts.server_process import StartServer, stdio_command
from toolcrib.servers.model import MODERN_VERSION

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

LIMIT = 60.0

UPSTREAMS = {
    "stdio_modern": ("sdk_v2", "--modern-only"),
    "stdio_legacy": ("sdk_v1",),
    "http_modern": ("sdk_v2", "--modern-only"),
    "http_legacy": ("sdk_v1",),
    "sse_legacy": ("sdk_v1",),
    "ws_legacy": ("sdk_v1",),
}
WAYS = {"endpoint": at_endpoint, "bridge": through_bridge}
CLIENTS = list(itertools.product(("modern", "legacy"), WAYS))
TOOLS = {"echo", "add", "fail", "boom", "progress", "slow", "big", "rich", "grow", "whoami"}

every_upstream = pytest.mark.parametrize("upstream", UPSTREAMS)
every_client = pytest.mark.parametrize("who", CLIENTS, ids=["-".join(client) for client in CLIENTS])

_markers = itertools.count(1)


def marker(who: tuple[str, str]) -> str:
    """A word that no other call of this run holds, to find a call again in what the far side saw."""
    return f"{'_'.join(who)}_{next(_markers)}"


@dataclass(frozen=True, kw_only=True)
class Fleet:
    daemon: Daemon
    seen_files: dict[str, Path]

    def seen(self, upstream: str, method: str, holds: str) -> dict[str, Any] | None:
        """The line in which the upstream noted this, once it has."""
        file = self.seen_files[upstream]
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return next((line for line in lines if line["method"] == method and holds in json.dumps(line)), None)

    async def until_seen(self, upstream: str, method: str, holds: str) -> dict[str, Any]:
        return await until(lambda: self.seen(upstream, method, holds), f"{upstream} to note {method} {holds}")


async def until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    try:
        async with asyncio.timeout(limit):
            while not (answer := condition()):  # noqa: ASYNC110 - what other processes do rings no bell here
                await asyncio.sleep(0.01)
            return answer
    except TimeoutError:
        raise TimeoutError(f"waited {limit:g} s for {what}") from None


@pytest.fixture(scope="module")
def fleet(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Fleet:
    parts("mcp-v1")
    servers: dict[str, Any] = {}
    seen_files = {name: shared_home.path / f"{name}.seen" for name in UPSTREAMS}
    for name, (program, *flags) in UPSTREAMS.items():
        transport = name.partition("_")[0]
        words = stdio_command(program, *flags, "--seen", str(seen_files[name]))
        if transport == "stdio":
            servers[name] = {"command": words[0], "args": words[1:]}
        else:
            running = start_shared_server([*words, "--transport", transport])
            servers[name] = {"url": running.url(transport), "transport": {"ws": "websocket"}.get(transport, transport)}
    daemon = start_shared_daemon({"servers": servers})
    daemon.wait_until_ready(*servers)
    return Fleet(daemon=daemon, seen_files=seen_files)


@dataclass(kw_only=True)
class Connected:
    client: Client
    notices: list[str] = field(default_factory=list)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        async with asyncio.timeout(LIMIT):
            return await self.client.call_tool(tool, arguments or {}, **more)

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(fleet: Fleet) -> AsyncIterator[dict[tuple[str, str], Connected]]:
    async with contextlib.AsyncExitStack() as stack:
        found: dict[tuple[str, str], Connected] = {}
        for era, way in CLIENTS:
            notices: list[str] = []

            async def hear(message: Any, notices: list[str] = notices) -> None:
                notices.append(str(getattr(message, "method", "")))

            opening = WAYS[way](fleet.daemon, era, message_handler=hear)
            client = await stack.enter_async_context(kept_open(opening))
            found[era, way] = Connected(client=client, notices=notices)
        yield found


@pytest.fixture
def at(clients: dict[tuple[str, str], Connected], who: tuple[str, str]) -> Connected:
    return clients[who]


@pytest.mark.req("BNS-1", "BNS-2", "KSI-1")
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_the_daemon_speaks_to_each_server_in_the_era_it_knows(upstream: str, fleet: Fleet) -> None:
    servers = {server["name"]: server for server in fleet.daemon.status()["servers"]}
    transport, _, era = upstream.partition("_")
    found = servers[upstream]
    wanted = {"ws": "websocket"}.get(transport, transport)
    assert (found["transport"], found["state"]) == (wanted, "ready")
    assert (found["protocol_version"] == MODERN_VERSION) is (era == "modern")
    assert found["server_info"]["name"].startswith("own-v")


@pytest.mark.req("BNS-1", "KSI-1")
@every_client
async def test_a_client_speaks_its_own_era(who: tuple[str, str], at: Connected) -> None:
    assert (at.client.protocol_version == "2026-07-28") is (who[0] == "modern")


@pytest.mark.req("BNS-1", "BNS-4", "BNS-8", "KSI-1")
@every_upstream
@every_client
async def test_every_servers_tools_are_listed_under_its_name(at: Connected, upstream: str) -> None:
    tools = (await at.client.list_tools(cache_mode="refresh")).tools
    ours = {tool.name.removeprefix(f"{upstream}_"): tool for tool in tools if tool.name.startswith(f"{upstream}_")}
    assert ours.keys() >= TOOLS
    assert ours["add"].input_schema["required"] == ["a", "b"]
    assert ours["add"].description == "Adds two numbers."


@pytest.mark.req("BNS-5", "ENG-1", "ENG-3")
@every_upstream
@every_client
async def test_a_call_reaches_the_server_as_it_was_made(
    at: Connected, who: tuple[str, str], upstream: str, fleet: Fleet
) -> None:
    mark = marker(who)
    arguments = {"mark": mark, "words": "čtyři ✓", "none": None, "deep": [{"n": 1.5, "no": False}]}
    result = await at.call(f"{upstream}_echo", arguments, meta={"example.test/trace": mark})
    assert not result.is_error
    assert result.structured_content == arguments
    seen = await fleet.until_seen(upstream, "tools/call", mark)
    assert seen["arguments"] == arguments
    assert seen["name"] == "echo"
    assert seen["meta"]["example.test/trace"] == mark


@pytest.mark.req("ENG-9")
@every_upstream
@every_client
async def test_every_kind_of_content_arrives(at: Connected, upstream: str) -> None:
    rich = await at.call(f"{upstream}_rich")
    kinds = ["text", "image", "audio", "resource_link", "resource", "resource"]
    assert [block.type for block in rich.content] == kinds
    assert base64.b64decode(rich.content[1].data).startswith(b"\x89PNG")
    assert base64.b64decode(rich.content[2].data).startswith(b"RIFF")
    assert rich.structured_content["big"] == 9007199254740993


@pytest.mark.req("BNS-5")
@every_upstream
@every_client
async def test_a_tools_own_error_stays_a_result(at: Connected, upstream: str) -> None:
    result = await at.call(f"{upstream}_fail", {"message": "out of paper"})
    assert result.is_error
    assert [block.text for block in result.content] == ["out of paper"]


@pytest.mark.req("BNS-5")
@every_upstream
@every_client
async def test_a_json_rpc_error_arrives_whole(at: Connected, upstream: str) -> None:
    with pytest.raises(MCPError) as raised:
        await at.call(f"{upstream}_boom", {"code": -31234})
    error = raised.value.error
    assert (error.code, error.message) == (-31234, "boom, as asked")
    assert error.data == {"why": "asked", "none": None}


@pytest.mark.req("BNS-5")
@every_upstream
@every_client
async def test_arguments_that_do_not_fit_never_reach_the_server(
    at: Connected, who: tuple[str, str], upstream: str, fleet: Fleet
) -> None:
    mark = marker(who)
    result = await at.call(f"{upstream}_add", {"a": mark, "b": 2})
    assert result.is_error
    assert "a" in result.content[0].text
    await at.call(f"{upstream}_echo", {"after": mark})
    await fleet.until_seen(upstream, "finished", mark)
    assert not fleet.seen(upstream, "tools/call", f'"a": "{mark}"')


@pytest.mark.req("BNS-5")
@every_upstream
@every_client
async def test_progress_arrives_in_order(at: Connected, upstream: str) -> None:
    steps: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    result = await at.call(f"{upstream}_progress", {"n": 4}, progress_callback=hear)
    assert result.content[0].text == "4 steps"
    await until(lambda: len(steps) >= 4, "all steps to be heard")
    assert steps == [(n, 4, f"step {n}") for n in range(1, 5)]


@pytest.mark.req("BNS-5")
@every_upstream
@every_client
async def test_a_cancelled_call_is_cancelled_at_the_server(
    at: Connected, who: tuple[str, str], upstream: str, fleet: Fleet
) -> None:
    seconds = 60 + next(_markers) / 1000
    mark = f'"seconds": {seconds}'
    call = asyncio.create_task(at.client.call_tool(f"{upstream}_slow", {"seconds": seconds}))
    await fleet.until_seen(upstream, "tools/call", mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await fleet.until_seen(upstream, "cancelled", mark)
    assert (await at.call(f"{upstream}_add", {"a": 1, "b": 2})).content[0].text == "3"


@pytest.mark.req("BNS-5", "KSI-1")
async def test_calls_of_all_clients_to_all_servers_at_once_each_get_their_own_answer(
    clients: dict[tuple[str, str], Connected],
) -> None:
    async def one(at: Connected, upstream: str, number: int) -> None:
        result = await at.call(f"{upstream}_add", {"a": number, "b": 1})
        assert result.structured_content == {"sum": number + 1}

    everyone = itertools.product(clients.values(), UPSTREAMS, range(8))
    await asyncio.gather(*(one(at, upstream, 100 * n) for n, (at, upstream, _) in enumerate(everyone)))


@pytest.mark.req("BNS-4")
@every_upstream
@every_client
async def test_a_changed_list_is_told_and_the_new_tool_answers(
    at: Connected, who: tuple[str, str], upstream: str
) -> None:
    name = marker(who)
    async with told_of_changes(at, who[0]) as told:
        await at.call(f"{upstream}_grow", {"name": name})
        await told()
    grown = f"{upstream}_{name}"
    assert grown in await at.names()
    assert (await at.call(grown)).content[0].text == f"{name} was grown"


@pytest.mark.req("BNS-4", "KSI-1")
@every_upstream
async def test_one_change_is_told_to_every_client(clients: dict[tuple[str, str], Connected], upstream: str) -> None:
    name = marker(("every", "client"))
    async with contextlib.AsyncExitStack() as stack:
        waits = {
            who: await stack.enter_async_context(told_of_changes(connected, who[0]))
            for who, connected in clients.items()
        }
        await clients["modern", "endpoint"].call(f"{upstream}_grow", {"name": name})
        await asyncio.gather(*(told() for told in waits.values()))
    for who, connected in clients.items():
        assert f"{upstream}_{name}" in await connected.names(), who


@contextlib.asynccontextmanager
async def told_of_changes(at: Connected, era: str) -> AsyncIterator[Callable[[], Any]]:
    """Gives the wait for the next word of a change, in the way of the client's era."""
    if era == "modern":
        async with at.client.listen(tools_list_changed=True) as subscription:

            async def told() -> None:
                async with asyncio.timeout(LIMIT):
                    await anext(aiter(subscription))

            yield told
    else:
        at.notices.clear()
        yield lambda: until(lambda: "notifications/tools/list_changed" in at.notices, "word of a changed list")
