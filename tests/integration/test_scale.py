"""Much at once: thousands of tools, twenty servers, many callers, results of any size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from parts.daemon import Daemon, shared_daemon
from parts.raw_client import INITIALIZE, Endpoint, SocketClient, legacy_request, request
from parts.server_process import stdio_command
from parts.sizes import FULL

SERVERS = 20
TOOLS_EACH = 250
SLOW_START = 0.5
CALLERS = 64
CALLS_EACH = 50 if FULL else 5
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,48}")


def server(number: int) -> dict[str, Any]:
    # The long prefix makes names that do not fit, so that shortening is part of what is shown here.
    prefix = "a_tool_with_a_rather_long_name_of_its_own_" if number % 2 else "tool_"
    era = ("modern", "legacy")[number % 2]
    flags = ["--era", era, "--plain", "--tools", str(TOOLS_EACH), "--prefix", prefix, "--page", "100"]
    words = stdio_command("raw_server", *flags, "--slow-start", str(SLOW_START))
    return {"command": words[0], "args": words[1:]}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    words = stdio_command("raw_server")
    servers = {f"server-{number:02d}": server(number) for number in range(SERVERS)}
    with shared_daemon({"servers": {**servers, "raw": {"command": words[0], "args": words[1:]}}}) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def door(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


@pytest.mark.req("BNS-9")
def test_twenty_slow_servers_start_in_parallel(shared: Daemon) -> None:
    shared.wait_until_ready()
    servers = shared.status()["servers"]
    ready = [row["since"] for row in servers]
    assert len(ready) == SERVERS + 1
    assert max(ready) - min(ready) < SERVERS * SLOW_START / 2


@pytest.mark.req("KSI-1", "BNS-4", "BNS-8")
def test_five_thousand_tools_list_with_names_that_are_unique_and_fit(shared: Daemon, door: Endpoint) -> None:
    shared.wait_until_ready()
    for answer in (door.modern("tools/list"), door.legacy(door.begin(), "tools/list")):
        tools = answer.result["tools"]
        ours = [tool["name"] for tool in tools if tool["name"].startswith("server-")]
        assert len(ours) == SERVERS * TOOLS_EACH == 5000
        names = [tool["name"] for tool in tools]
        assert len({name.lower() for name in names}) == len(names)
        assert all(LEGAL.fullmatch(name) for name in names)
        assert "nextCursor" not in answer.result


@pytest.mark.req("BNS-8", "ENG-10")
def test_each_of_many_names_leads_to_its_own_tool(shared: Daemon, door: Endpoint) -> None:
    shared.wait_until_ready()
    names = [tool["name"] for tool in door.modern("tools/list").result["tools"] if tool["name"].startswith("server-")]
    with door.connect() as connection:
        for name in names[:: len(names) // 40]:
            connection.send(door.modern_bytes("tools/call", {"name": name, "arguments": {"path": name}}))
            assert connection.answer().result["structuredContent"] == {"ok": True, "arguments": {"path": name}}


@pytest.mark.req("KSI-1")
def test_the_same_listing_is_the_same_bytes(shared: Daemon, door: Endpoint) -> None:
    shared.wait_until_ready()
    bodies = {door.modern("tools/list").body for _ in range(10)}
    assert len(bodies) == 1


@pytest.mark.req("KSI-1", "BNS-5")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_many_callers_with_one_id_get_each_their_own_result(shared: Daemon, door: Endpoint, era: str) -> None:
    shared.wait_until_ready("raw")
    session = door.begin()

    def caller(number: int) -> None:
        with door.connect() as connection:
            for turn in range(CALLS_EACH):
                arguments = {"caller": number, "turn": turn, "path": "x" * (number * 100)}
                params = {"name": "raw_ok", "arguments": arguments}
                if era == "modern":
                    connection.send(door.modern_bytes("tools/call", params, id=0))
                else:
                    connection.send(door.legacy_bytes(session, legacy_request("tools/call", params, id=0)))
                told = connection.answer()
                assert told.json["id"] == 0
                assert told.result["structuredContent"]["arguments"] == arguments

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(caller, range(CALLERS)))


@pytest.mark.req("KSI-1", "BNS-5")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_many_calls_sent_ahead_over_the_bridge_are_each_answered(shared: Daemon, era: str) -> None:
    shared.wait_until_ready("raw")
    with SocketClient(shared) as pipe:
        make = request if era == "modern" else legacy_request
        if era == "legacy":
            pipe.ask(INITIALIZE)
        count = CALLERS * CALLS_EACH
        for number in range(count):
            pipe.send(make("tools/call", {"name": "raw_ok", "arguments": {"n": number}}, id=f"c{number}"))
        told: dict[str, Any] = {}
        while len(told) < count:
            message = pipe.message()
            if "id" in message:
                told[message["id"]] = message["result"]["structuredContent"]["arguments"]["n"]
        assert told == {f"c{number}": number for number in range(count)}


@pytest.mark.req("BNS-5")
@pytest.mark.parametrize("size", [0, 1, 4095, 65535, 65536, 65537, 1_000_000, *([200_000_000] if FULL else [])])
def test_results_of_any_size_arrive_whole(shared: Daemon, door: Endpoint, size: int) -> None:
    shared.wait_until_ready("raw")
    text = door.call("raw_huge", {"bytes": size}).result["content"][0]["text"]
    assert text == "x" * size


@pytest.mark.req("ENG-10")
def test_many_sessions_and_streams_at_once_are_held(shared: Daemon, door: Endpoint) -> None:
    shared.wait_until_ready("raw")
    streams = []
    try:
        for _ in range(100):
            connection = door.connect()
            streams.append(connection)
            headers = [door.host, door.auth, ("Accept", "text/event-stream"), ("Mcp-Session-Id", door.begin())]
            connection.send(door.raw(headers, verb="GET"))
            assert connection.head()[0] == 200
        assert door.call("raw_ok").status == 200
    finally:
        for connection in streams:
            connection.close()
