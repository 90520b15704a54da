"""Clients of both eras with servers of both eras, over every transport, at the endpoint and through `toolcrib stdio`.

One daemon connects a server for each transport with four clients of the SDK, and with clients that write their own
bytes. The tests assert what the server received, not only what came back.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp.shared.exceptions import MCPError

from integration.kept import kept_open
from parts.agent_clients import ERAS, AgentClient
from parts.client import at_endpoint, through_bridge
from parts.daemon import Home, StartDaemon
from parts.live_servers import LIMIT, until
from parts.raw_client import RawAnswer
from parts.server_process import StartServer
from parts.upstreams import SPELLED, UPSTREAMS, Upstreams, connect_upstreams
from parts.waiting import wait_for
from toolcrib.servers.model import MODERN_VERSION

pytestmark = pytest.mark.slow

WAYS = {"endpoint": at_endpoint, "bridge": through_bridge}
CLIENTS = list(itertools.product(ERAS, WAYS))
TOOLS = {"echo", "add", "fail", "boom", "progress", "slow", "big", "rich", "grow", "whoami"}
CONTENT = ["text", "image", "audio", "resource_link", "resource", "resource"]
in_one_loop = pytest.mark.asyncio(loop_scope="module")
_numbers = itertools.count(1)


class Fleet(Upstreams):
    def seen(self, upstream: str, method: str, text: str) -> dict[str, Any] | None:
        return next(iter(self.all_seen(upstream, method, text)), None)

    async def until_seen(self, upstream: str, method: str, text: str) -> Any:
        return await until(lambda: self.seen(upstream, method, text), f"{upstream} to record {method} {text}")

    def wait_until_seen(self, upstream: str, method: str, seconds: float) -> None:
        wait_for(lambda: self.seen(upstream, method, f'{{"seconds": {seconds}}}'), f"{upstream} to record {method}")


@pytest.fixture(scope="module")
def fleet(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Fleet:
    parts("mcp-v1")
    found = connect_upstreams(shared_home, start_shared_server, start_shared_daemon)
    return Fleet(daemon=found.daemon, seen_files=found.seen_files)


@dataclass(kw_only=True)
class Connected:
    client: Client
    notices: list[str] = field(default_factory=list)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        async with asyncio.timeout(LIMIT):
            return await self.client.call_tool(tool, arguments or {}, **more)

    async def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in (await self.client.list_tools(cache_mode="refresh")).tools}


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


@contextlib.asynccontextmanager
async def next_change(at: Connected, era: str) -> AsyncIterator[Callable[[], Any]]:
    """Yields a function that waits until this client learns of a changed list."""
    if era == "modern":
        async with at.client.listen(tools_list_changed=True) as subscription:

            async def changed() -> None:
                async with asyncio.timeout(LIMIT):
                    await anext(aiter(subscription))

            yield changed
    else:
        at.notices.clear()
        yield lambda: until(lambda: "notifications/tools/list_changed" in at.notices, "the notice of a changed list")


@pytest.mark.req("BNS-1", "BNS-2", "KSI-1")
def test_the_daemon_uses_each_servers_own_era(fleet: Fleet) -> None:
    for server in fleet.daemon.status()["servers"]:
        transport, _, era = server["name"].partition("_")
        assert (server["transport"], server["state"]) == (SPELLED.get(transport, transport), "ready")
        assert (server["protocol_version"] == MODERN_VERSION) is (era == "modern")
        assert server["server_info"]["name"].startswith("own-v")


@in_one_loop
@pytest.mark.req("BNS-1", "BNS-4", "BNS-5", "BNS-8", "ENG-1", "ENG-3", "ENG-9", "KSI-1")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("who", CLIENTS, ids=["-".join(client) for client in CLIENTS])
async def test_every_client_uses_every_server(
    clients: dict[tuple[str, str], Connected], who: tuple[str, str], upstream: str, fleet: Fleet
) -> None:
    at, mark = clients[who], f"{'_'.join(who)}_{next(_numbers)}"
    assert (at.client.protocol_version == "2026-07-28") is (who[0] == "modern")
    tools = {name.removeprefix(f"{upstream}_"): tool for name, tool in (await at.tools()).items() if upstream in name}
    assert tools.keys() >= TOOLS
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert tools["add"].description == "Adds two numbers."

    arguments = {"mark": mark, "words": "čtyři ✓", "none": None, "deep": [{"n": 1.5, "no": False}]}
    result = await at.call(f"{upstream}_echo", arguments, meta={"example.test/trace": mark})
    assert not result.is_error
    assert result.structured_content == arguments
    seen = await fleet.until_seen(upstream, "tools/call", mark)
    assert (seen["name"], seen["arguments"], seen["meta"]["example.test/trace"]) == ("echo", arguments, mark)

    rich = await at.call(f"{upstream}_rich")
    assert [block.type for block in rich.content] == CONTENT
    assert base64.b64decode(rich.content[1].data).startswith(b"\x89PNG")
    assert base64.b64decode(rich.content[2].data).startswith(b"RIFF")
    assert rich.structured_content["big"] == 9007199254740993

    failed = await at.call(f"{upstream}_fail", {"message": "out of paper"})
    assert failed.is_error
    assert [block.text for block in failed.content] == ["out of paper"]
    with pytest.raises(MCPError) as raised:
        await at.call(f"{upstream}_boom", {"code": -31234})
    error = raised.value.error
    assert (error.code, error.message) == (-31234, "boom, as asked")
    assert error.data == {"why": "asked", "none": None}
    invalid = await at.call(f"{upstream}_add", {"a": f"invalid {mark}", "b": 2})
    assert invalid.is_error
    assert "a" in invalid.content[0].text

    steps: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    result = await at.call(f"{upstream}_progress", {"n": 4}, progress_callback=hear)
    assert result.content[0].text == "4 steps"
    await until(lambda: len(steps) >= 4, "all steps")
    assert steps == [(n, 4, f"step {n}") for n in range(1, 5)]

    seconds = 60 + next(_numbers) / 1000
    call = asyncio.create_task(at.client.call_tool(f"{upstream}_slow", {"seconds": seconds}))
    await fleet.until_seen(upstream, "tools/call", f'"seconds": {seconds}')
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await fleet.until_seen(upstream, "cancelled", f'"seconds": {seconds}')

    async with next_change(at, who[0]) as changed:
        await at.call(f"{upstream}_grow", {"name": mark})
        await changed()
    assert f"{upstream}_{mark}" in await at.tools()
    assert (await at.call(f"{upstream}_{mark}")).content[0].text == f"{mark} was grown"
    assert not fleet.seen(upstream, "tools/call", f"invalid {mark}"), "invalid arguments never reach the server"


@in_one_loop
@pytest.mark.req("BNS-5", "KSI-1")
async def test_concurrent_calls_of_all_clients_to_all_servers_get_their_own_answers(
    clients: dict[tuple[str, str], Connected],
) -> None:
    async def one(at: Connected, upstream: str, number: int) -> None:
        result = await at.call(f"{upstream}_add", {"a": number, "b": 1})
        assert result.structured_content == {"sum": number + 1}

    everyone = itertools.product(clients.values(), UPSTREAMS, range(8))
    await asyncio.gather(*(one(at, upstream, 100 * n) for n, (at, upstream, _) in enumerate(everyone)))


@in_one_loop
@pytest.mark.req("BNS-4", "KSI-1")
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_every_client_is_notified_of_a_change(clients: dict[tuple[str, str], Connected], upstream: str) -> None:
    name = f"every_client_{next(_numbers)}"
    async with contextlib.AsyncExitStack() as stack:
        waits = [await stack.enter_async_context(next_change(at, who[0])) for who, at in clients.items()]
        await clients["modern", "endpoint"].call(f"{upstream}_grow", {"name": name})
        await asyncio.gather(*(changed() for changed in waits))
    for who, at in clients.items():
        assert f"{upstream}_{name}" in await at.tools(), who


# The same byte by byte at the endpoint, which a client of the SDK would hide.


def messages(answer: RawAnswer) -> list[Any]:
    return [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.req("BNS-4", "BNS-5", "BNS-8", "ENG-1")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", ["stdio_modern", "stdio_legacy"])
def test_the_bytes_at_the_endpoint_are_those_of_the_clients_era(fleet: Fleet, era: str, server: str) -> None:
    grown = f"grown{next(_numbers)}"
    with AgentClient(fleet.daemon, "owner", fleet.daemon.token, era) as client, client.listening() as stream:
        answer = client.call(f"{server}_add", a=40, b=2)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["id"] == 0
        assert answer.result["structuredContent"] == {"sum": 42}
        assert era == "legacy" or answer.result["resultType"] == "complete"

        for token in ("a token", 0):
            client.send_call(f"{server}_progress", meta={"progressToken": token}, n=2)
            answer = client.answer()
            assert answer.headers["content-type"] == "text/event-stream"
            *progress, last = messages(answer)
            assert [message["method"] for message in progress] == ["notifications/progress"] * 2
            assert [message["params"]["progressToken"] for message in progress] == [token] * 2
            assert [message["params"]["progress"] for message in progress] == [1, 2]
            assert (last["id"], last["result"]["content"][0]["text"]) == (0, "2 steps")

        client.call(f"{server}_grow", name=grown)
        event = stream.event()
        assert event["method"] == "notifications/tools/list_changed"
        if era == "modern":
            assert event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 0
        listing = client.ask("tools/list").result
        assert {f"{server}_add", f"{server}_{grown}"} <= {tool["name"] for tool in listing.pop("tools")}
        hints = {"resultType": "complete", "cacheScope": "private", "ttlMs": 0, "_meta": listing.get("_meta")}
        assert listing == (hints if era == "modern" else {})


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("server", ["stdio_modern", "stdio_legacy"])
def test_a_modern_client_cancels_by_disconnecting_and_a_legacy_one_by_a_notification(fleet: Fleet, server: str) -> None:
    modern, legacy = (AgentClient(fleet.daemon, "owner", fleet.daemon.token, era) for era in ERAS)
    for client, end, method, least in (
        (modern, modern.close, "cancelled", 60),
        (legacy, legacy.close, "finished", 0.3),
        (legacy, legacy.cancel, "cancelled", 60),
    ):
        seconds = least + next(_numbers) / 1000
        client.send_call(f"{server}_slow", seconds=seconds)
        fleet.wait_until_seen(server, "tools/call", seconds)
        end()
        fleet.wait_until_seen(server, method, seconds)
    legacy.close()
