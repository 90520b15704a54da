"""Much at once: thousands of tools, twenty servers, many callers, results of any size."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from parts.daemon import Daemon, shared_daemon
from parts.raw_client import INITIALIZE, Endpoint, SocketClient, legacy_request, request
from parts.server_process import stdio_entry
from parts.sizes import FULL

SERVERS = 20
TOOLS_EACH = 250
ERAS = ("modern", "legacy")
CALLS = 3200 if FULL else 320
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,48}")


def server(number: int) -> dict[str, Any]:
    # The long prefix makes names that must be shortened.
    prefix = "a_tool_with_a_rather_long_name_of_its_own_" if number % 2 else "tool_"
    flags = ["--era", ERAS[number % 2], "--plain", "--tools", str(TOOLS_EACH), "--prefix", prefix, "--page", "100"]
    return stdio_entry("raw_server", *flags)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {f"server-{number:02d}": server(number) for number in range(SERVERS)}
    with shared_daemon(
        {
            "servers": {**servers, "raw": {**stdio_entry("raw_server"), "max_waiting_calls": CALLS}},
            "result_tokens": "off",
        }
    ) as daemon:
        daemon.wait_until_ready()
        yield daemon


@pytest.fixture(scope="module")
def mcp(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


@pytest.mark.req("KSI-1", "BNS-4", "BNS-8", "ENG-10")
def test_five_thousand_tools_have_unique_valid_names_that_lead_to_their_tools(mcp: Endpoint) -> None:
    assert len({mcp.modern("tools/list").body for _ in range(10)}) == 1
    for answer in (mcp.modern("tools/list"), mcp.legacy(mcp.begin(), "tools/list")):
        names = [tool["name"] for tool in answer.result["tools"]]
        ours = [name for name in names if name.startswith("server-")]
        assert len(ours) == SERVERS * TOOLS_EACH == 5000
        assert len({name.lower() for name in names}) == len(names)
        assert all(LEGAL.fullmatch(name) for name in names)
        assert "nextCursor" not in answer.result
    with mcp.connect() as connection:
        for name in ours[:: len(ours) // 40]:
            connection.send(mcp.modern_bytes("tools/call", {"name": name, "arguments": {"path": name}}))
            assert connection.answer().result["structuredContent"] == {"ok": True, "arguments": {"path": name}}


@pytest.mark.req("KSI-1", "BNS-5")
@pytest.mark.parametrize("era", ERAS)
def test_many_pipelined_calls_over_the_bridge_are_each_answered(shared: Daemon, era: str) -> None:
    with SocketClient(shared) as bridge:
        make = request if era == "modern" else legacy_request
        if era == "legacy":
            bridge.ask(INITIALIZE)
        for number in range(CALLS):
            bridge.send(make("tools/call", {"name": "raw_ok", "arguments": {"n": number}}, id=f"c{number}"))
        results: dict[str, Any] = {}
        while len(results) < CALLS:
            message = bridge.message()
            if "id" in message:
                results[message["id"]] = message["result"]["structuredContent"]["arguments"]["n"]
        assert results == {f"c{number}": number for number in range(CALLS)}


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("size", [0, 1, 4095, 65535, 65536, 65537, 1_000_000, *([200_000_000] if FULL else [])])
def test_results_of_any_size_arrive_whole(mcp: Endpoint, size: int) -> None:
    text = mcp.call("raw_huge", {"bytes": size}).result["content"][0]["text"]
    assert text == "x" * size


@pytest.mark.req("ENG-10")
def test_many_sessions_and_streams_stay_open_at_once(mcp: Endpoint) -> None:
    with contextlib.ExitStack() as streams:
        for _ in range(100):
            connection = streams.enter_context(mcp.connect())
            headers = [mcp.host, mcp.auth, ("Accept", "text/event-stream"), ("Mcp-Session-Id", mcp.begin())]
            connection.send(mcp.raw(headers, verb="GET"))
            assert connection.head()[0] == 200
        assert mcp.call("raw_ok").status == 200
