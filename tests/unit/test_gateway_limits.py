"""The gateway's tools, with agents that share one daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import GatewayHarness, opened
from toolcrib.catalog.tool import OfferKind
from toolcrib.listing.search import SearchIndex
from toolcrib.policy import rule_from


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    (tmp_path / "t").mkdir(mode=0o700)
    async with opened(tmp_path) as harness:
        yield harness


async def find(harness: GatewayHarness, token: str, query: str) -> str:
    exchange = await harness.modern("tools/call", token, name="crib_find", arguments={"query": query})
    text: str = exchange.json["result"]["content"][0]["text"]
    return text


async def test_one_agents_searches_leave_threads_to_the_others(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, real, running = threading.Event(), SearchIndex.find, []

    def slow(self: SearchIndex, query: str, **more: Any) -> Any:
        if query == "slow":
            running.append(query)
            released.wait(60)
        return real(self, query, **more)

    monkeypatch.setattr(SearchIndex, "find", slow)
    ann, bob = await harness.agent("ann"), await harness.agent("bob")
    searches = [asyncio.create_task(find(harness, ann, "slow")) for _ in range(40)]
    try:
        for _ in range(5):
            assert "slow_ask" in await asyncio.wait_for(find(harness, bob, "ask"), 30)
        assert len(running) == 1
    finally:
        for search in searches[1:]:
            search.cancel()
        released.set()
        await asyncio.gather(*searches, return_exceptions=True)


@pytest.mark.parametrize("setting", ["listing: search", "listing: {clients: {codex: thin}}", "result_tokens: off"])
async def test_clients_are_told_when_the_configuration_changes_their_lists(
    harness: GatewayHarness, tmp_path: Path, setting: str
) -> None:
    projects = harness.crib.projects
    told: asyncio.Queue[frozenset[OfferKind]] = asyncio.Queue()
    await projects.reload()
    await asyncio.sleep(0)
    projects.home.subscribe(told.put_nowait)
    (tmp_path / "t" / "config.yml").write_text(setting + "\n")
    await projects.reload()
    assert await asyncio.wait_for(told.get(), 20) == {OfferKind.TOOL}


@pytest.mark.parametrize(
    ("profile", "tool", "arguments", "expected"),
    [
        ("developer", "crib_call", {"tool": "zzz"}, 'There is no tool "zzz". Use crib_find to find tools'),
        ("developer", "crib_call", {"tool": "slow_whre"}, "Did you mean slow_where"),
        ("developer", "crib_describe", {"tools": ["zzz"]}, 'There is no tool "zzz". Use crib_find to find tools'),
        ("nothing", "crib_describe", {"tools": ["slow_ask"]}, 'There is no tool "slow_ask". Use crib_find to find'),
        ("developer", "crib_batch", {"calls": [{"tool": "crib_find"}]}, "crib_find cannot be part of a batch. Call it"),
        ("nothing", "crib_find", {"query": "ask"}, "You may use no tools."),
        (
            "nothing",
            "crib_find",
            {"query": "ask", "server": "slow"},
            "no server 'slow'. You may use no tools.",
        ),
    ],
)
async def test_what_cannot_be_done_is_said_with_what_to_do(
    harness: GatewayHarness, profile: str, tool: str, arguments: Any, expected: str
) -> None:
    minted = await harness.crib.services.agents.add("ann", profile=profile)
    exchange = await harness.modern("tools/call", minted.token, name=tool, arguments=arguments)
    assert expected in exchange.json["result"]["content"][-1]["text"]


async def test_a_search_shows_nothing_that_was_forbidden_while_it_ran(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, real, loop = asyncio.Event(), threading.Event(), SearchIndex.find, asyncio.get_running_loop()

    def slow(self: SearchIndex, query: str, **more: Any) -> Any:
        found = real(self, query, **more)
        loop.call_soon_threadsafe(began.set)
        go_on.wait(30)
        return found

    monkeypatch.setattr(SearchIndex, "find", slow)
    search = asyncio.create_task(find(harness, await harness.agent("ann"), "ask"))
    await began.wait()
    await harness.crib.services.agents.add_rule("ann", rule_from({"deny": "slow:*"}, where="test"))
    go_on.set()
    assert "slow" not in await search
