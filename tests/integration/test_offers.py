"""What servers offer besides tools, in all four pairs of eras: resources, templates, prompts, completion, log messages.

One daemon connects a server for each transport with clients of both eras, at the endpoint and through the bridge. The
tests assert what the servers received, not only what came back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from integration.kept import kept_open
from parts.agent_clients import ERAS
from parts.client import at_endpoint, through_bridge
from parts.daemon import Daemon, Home, StartDaemon
from parts.raw_client import Endpoint
from parts.server_process import StartServer
from parts.servers.sdk_tools import CONTENTS, RESOURCES
from parts.upstreams import UPSTREAMS, Upstreams, connect_upstreams
from parts.waiting import during, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    # The SDK discourages what only the legacy era has.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

WAYS = {"endpoint": at_endpoint, "bridge": through_bridge}
CLIENTS = list(itertools.product(ERAS, WAYS))
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def fleet(
    shared_home: Home,
    start_shared_server: StartServer,
    start_shared_daemon: StartDaemon,
    parts: Callable[[str], list[str]],
) -> Upstreams:
    parts("mcp-v1")
    return connect_upstreams(shared_home, start_shared_server, start_shared_daemon)


@dataclass(kw_only=True)
class Connected:
    client: Client
    notices: list[Any] = field(default_factory=list)
    logs: list[tuple[str, Any]] = field(default_factory=list)

    def updates(self, uri: str) -> int:
        found = [one for one in self.notices if getattr(one, "method", "") == "notifications/resources/updated"]
        return sum(str(one.params.uri) == uri for one in found)


@contextlib.asynccontextmanager
async def connected(daemon: Daemon, era: str, way: str, **more: Any) -> AsyncIterator[Connected]:
    notices: list[Any] = []
    logs: list[tuple[str, Any]] = []

    async def hear(message: Any) -> None:
        notices.append(message)

    async def log(params: Any) -> None:
        logs.append((params.level, params.data))

    async with WAYS[way](daemon, era, message_handler=hear, logging_callback=log, **more) as client:
        yield Connected(client=client, notices=notices, logs=logs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(fleet: Upstreams) -> AsyncIterator[dict[tuple[str, str], Connected]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            (era, way): await stack.enter_async_context(kept_open(connected(fleet.daemon, era, way)))
            for era, way in CLIENTS
        }


def address(upstream: str, uri: str) -> str:
    """All servers have the same addresses."""
    return f"{upstream.replace('_', '-')}+{uri}"


@pytest.mark.req("ENG-9", "KSI-1", "KSI-9")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("who", CLIENTS, ids=["-".join(client) for client in CLIENTS])
async def test_every_client_uses_what_every_server_offers(
    clients: dict[tuple[str, str], Connected], who: tuple[str, str], upstream: str, fleet: Upstreams
) -> None:
    client, mark = clients[who].client, f"{'_'.join(who)}_{next(_numbers)}"
    listed = {str(one.uri): one for one in (await client.list_resources(cache_mode="refresh")).resources}
    one = listed[address(upstream, "test://one")]
    assert one.model_dump(by_alias=True)["_meta"] == RESOURCES[0]["_meta"]
    templates = {one.uri_template for one in (await client.list_resource_templates()).resource_templates}
    assert address(upstream, "test://note/{id}") in templates

    for uri, content in CONTENTS.items():
        read = (await client.read_resource(address(upstream, uri))).contents[0]
        assert (
            read.model_dump(by_alias=True, exclude_none=True, mode="json").items()
            >= {
                "uri": address(upstream, uri),
                **{key: value for key, value in content.items() if key != "x-odd"},
            }.items()
        )
    note = await client.read_resource(address(upstream, f"test://note/{mark}"))
    assert note.contents[0].text == f"note {mark}"
    assert fleet.all_seen(upstream, "resources/read", f"test://note/{mark}"), "the server gets its own address"
    with pytest.raises(MCPError) as raised:
        await client.read_resource(address(upstream, "test://missing"))
    legacy_pair = who[0] == "legacy" and upstream.endswith("legacy")
    assert (raised.value.error.code, raised.value.error.message) == (
        -32002 if legacy_pair else -32602,
        "Resource not found",
    )

    prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
    assert prompts[f"{upstream}_greet"].arguments[0].required
    greeting = await client.get_prompt(f"{upstream}_greet", {"who": mark})
    assert greeting.messages[0].content.text == f"Greet {mark}."
    assert fleet.all_seen(upstream, "prompts/get", mark)[0]["name"] == "greet"

    for ref, own in (
        ({"type": "ref/prompt", "name": f"{upstream}_greet"}, {"type": "ref/prompt", "name": "greet"}),
        (
            {"type": "ref/resource", "uri": address(upstream, "test://note/{id}")},
            {"type": "ref/resource", "uri": "test://note/{id}"},
        ),
    ):
        found = await client.complete(_ref(ref), {"name": "who", "value": mark})
        assert found.completion.values == [f"{mark}rld"]
        seen = fleet.all_seen(upstream, "completion/complete", mark)[-1]["arguments"]["ref"]
        assert {key: value for key, value in seen.items() if value is not None} == own


def _ref(ref: dict[str, str]) -> Any:
    return (PromptReference if ref["type"] == "ref/prompt" else ResourceTemplateReference).model_validate(ref)


@pytest.mark.req("BNS-4")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("who", CLIENTS, ids=["-".join(client) for client in CLIENTS])
async def test_a_subscriber_is_told_of_changes_until_it_unsubscribes(
    clients: dict[tuple[str, str], Connected], who: tuple[str, str], upstream: str, fleet: Upstreams
) -> None:
    at, own = clients[who], f"test://note/{next(_numbers)}"
    uri = address(upstream, own)
    legacy_server = upstream.endswith("legacy")

    async def touch() -> None:
        await at.client.call_tool(f"{upstream}_touch", {"uri": own})

    if who[0] == "modern":
        async with at.client.listen(resource_subscriptions=[uri]) as subscription:
            if legacy_server:
                assert fleet.all_seen(upstream, "resources/subscribe", own)
            await touch()
            async with asyncio.timeout(60):
                event = await anext(aiter(subscription))
            assert str(event.uri) == uri
    else:
        await at.client.subscribe_resource(uri)
        if legacy_server:
            assert fleet.all_seen(upstream, "resources/subscribe", own)
        await touch()
        await until(lambda: at.updates(uri), "the notice of the change")
        await at.client.unsubscribe_resource(uri)
    if legacy_server:
        await until(lambda: fleet.all_seen(upstream, "resources/unsubscribe", own), "the server to be unsubscribed")


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("way", WAYS)
async def test_each_legacy_client_gets_log_messages_of_its_own_level(fleet: Upstreams, upstream: str, way: str) -> None:
    mark = f"log_{next(_numbers)}"
    levels = {"levels": ["debug", "info", "error"], "text": mark}
    async with (
        connected(fleet.daemon, "legacy", way) as detailed,
        connected(fleet.daemon, "legacy", way) as terse,
        connected(fleet.daemon, "legacy", way) as silent,
    ):
        await detailed.client.set_logging_level("debug")
        await terse.client.set_logging_level("error")
        if upstream.endswith("legacy"):
            await until(
                lambda: fleet.all_seen(upstream, "logging/setLevel", "debug"), "the server to be told the level"
            )
        await detailed.client.call_tool(f"{upstream}_say", levels)
        await until(lambda: ("error", mark) in detailed.logs, "the log messages")
        assert detailed.logs == [("debug", mark), ("info", mark), ("error", mark)], "each of them once"
        await terse.client.call_tool(f"{upstream}_say", levels)
        await until(lambda: ("error", mark) in terse.logs, "the log message")
        assert {level for level, _ in terse.logs} == {"error"}
        await silent.client.call_tool(f"{upstream}_say", levels)
        assert silent.logs == []


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_modern_client_gets_the_log_messages_that_its_request_asks_for(
    clients: dict[tuple[str, str], Connected], fleet: Upstreams, upstream: str, way: str
) -> None:
    at, mark = clients["modern", way], f"log_{next(_numbers)}"
    levels = {"levels": ["debug", "info", "error"], "text": mark}
    await at.client.call_tool(f"{upstream}_say", levels)
    await at.client.call_tool(f"{upstream}_say", levels, meta={LOG_LEVEL_KEY: "info"})
    await until(lambda: ("error", mark) in at.logs, "the log messages")
    assert [one for one in at.logs if one[1] == mark] == [("info", mark), ("error", mark)]


@pytest.mark.req("ENG-9")
async def test_servers_instructions_reach_clients_under_their_names(
    clients: dict[tuple[str, str], Connected], fleet: Upstreams
) -> None:
    found = [clients["legacy", way].client.instructions for way in WAYS]
    found.append((await during(Endpoint(fleet.daemon).modern, "server/discover")).result["instructions"])
    for text in found:
        assert re.findall(r"# Server (\w+)\nA server for tests\.", text or "") == sorted(UPSTREAMS)
