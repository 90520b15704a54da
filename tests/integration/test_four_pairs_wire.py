"""The four pairs of eras byte by byte at the endpoint: what an SDK's client would hide.

Two servers that know one era each, and requests that are written by hand.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Daemon, Home, StartDaemon
from parts.raw_client import META, Endpoint, RawConnection, legacy_request, notice, request
from parts.server_process import stdio_command
from parts.waiting import wait_for

pytestmark = pytest.mark.slow

SERVERS = {"modern": ("sdk_v2", "--modern-only"), "legacy": ("sdk_v1",)}
_numbers = itertools.count(1)

every_server = pytest.mark.parametrize("server", SERVERS)
every_era = pytest.mark.parametrize("era", ["modern", "legacy"])


@pytest.fixture(scope="module")
def seen(shared_home: Home) -> Path:
    return shared_home.path / "seen"


@pytest.fixture(scope="module")
def running(
    shared_home: Home, start_shared_daemon: StartDaemon, seen: Path, parts: Callable[[str], list[str]]
) -> Daemon:
    parts("mcp-v1")
    words = {name: stdio_command(*flags, "--seen", str(seen)) for name, flags in SERVERS.items()}
    daemon = start_shared_daemon(
        {"servers": {name: {"command": given[0], "args": given[1:]} for name, given in words.items()}}
    )
    daemon.wait_until_ready(*SERVERS)
    return daemon


@pytest.fixture
def door(running: Daemon) -> Endpoint:
    return Endpoint(running)


class Caller:
    """A client of one era that writes its own bytes."""

    def __init__(self, door: Endpoint, era: str) -> None:
        self.door = door
        self.session = door.begin() if era == "legacy" else None

    def bytes(self, method: str, params: dict[str, Any], *, id: Any = 1, token: Any = None) -> bytes:
        meta = {} if token is None else {"progressToken": token}
        if self.session is not None:
            told = {**params, "_meta": meta} if meta else params
            return self.door.legacy_bytes(self.session, legacy_request(method, told, id=id))
        body = request(method, params, id=id, meta={**META, **meta})
        headers = self.door.modern_headers(method, params.get("name"))
        return self.door.raw(self.door.usual(body, *headers), body)

    def ask(self, method: str, params: dict[str, Any], **more: Any) -> tuple[dict[str, str], list[Any]]:
        """The answer's headers and its messages, in their order."""
        with self.door.connect() as connection:
            connection.send(self.bytes(method, params, **more))
            answer = connection.answer()
        if answer.headers["content-type"] == "application/json":
            return dict(answer.headers), [answer.json]
        datas = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        return dict(answer.headers), [json.loads(data) for data in datas]

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[dict[str, str], list[Any]]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    def changes(self, connection: RawConnection) -> None:
        """Begins to listen for changes of the list, and returns when the daemon listens too."""
        if self.session is None:
            connection.send(
                self.bytes("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="ears")
            )
            assert connection.head()[0] == 200
            assert connection.event()["method"] == "notifications/subscriptions/acknowledged"
            return
        headers = [self.door.host, self.door.auth, ("Accept", "text/event-stream"), ("Mcp-Session-Id", self.session)]
        connection.send(self.door.raw(headers, verb="GET"))
        assert connection.head()[0] == 200


@pytest.fixture
def caller(door: Endpoint, era: str) -> Caller:
    return Caller(door, era)


def noted(seen: Path, method: str, seconds: float) -> bool:
    lines = [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []
    return any(line["method"] == method and line["arguments"] == {"seconds": seconds} for line in lines)


@pytest.mark.req("BNS-5", "ENG-1")
@every_era
@every_server
def test_a_quick_answer_is_plain_json_of_the_clients_era(caller: Caller, era: str, server: str) -> None:
    headers, (answer,) = caller.call(f"{server}_add", {"a": 40, "b": 2}, id="seven")
    assert headers["content-type"] == "application/json"
    assert answer["id"] == "seven"
    assert answer["result"]["structuredContent"] == {"sum": 42}
    if era == "modern":
        assert answer["result"]["resultType"] == "complete"


@pytest.mark.req("BNS-4", "BNS-8")
@every_era
@every_server
def test_a_listing_says_of_itself_what_its_era_asks(caller: Caller, era: str, server: str) -> None:
    _, (answer,) = caller.ask("tools/list", {})
    result = answer["result"]
    assert f"{server}_add" in {tool["name"] for tool in result["tools"]}
    if era == "modern":
        assert (result["resultType"], result["cacheScope"], result["ttlMs"]) == ("complete", "private", 0)
    else:
        assert result.keys() == {"tools"}


@pytest.mark.req("BNS-5")
@every_era
@every_server
@pytest.mark.parametrize("token", ["a token", 0])
def test_progress_carries_the_clients_own_token_before_the_answer(caller: Caller, server: str, token: Any) -> None:
    headers, messages = caller.call(f"{server}_progress", {"n": 2}, token=token, id=12)
    assert headers["content-type"] == "text/event-stream"
    *progress, answer = messages
    assert [message["method"] for message in progress] == ["notifications/progress"] * 2
    assert [message["params"]["progressToken"] for message in progress] == [token] * 2
    assert [message["params"]["progress"] for message in progress] == [1, 2]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (12, "2 steps")


@pytest.mark.req("BNS-5")
@every_server
def test_a_modern_client_cancels_by_going_away(door: Endpoint, seen: Path, server: str) -> None:
    seconds = 60 + next(_numbers) / 1000
    with door.connect() as connection:
        connection.send(
            Caller(door, "modern").bytes("tools/call", {"name": f"{server}_slow", "arguments": {"seconds": seconds}})
        )
        wait_for(lambda: noted(seen, "tools/call", seconds), "the call to arrive")
    wait_for(lambda: noted(seen, "cancelled", seconds), "the cancellation to arrive")


@pytest.mark.req("BNS-5")
@every_server
def test_a_legacy_client_cancels_in_words_and_not_by_going_away(door: Endpoint, seen: Path, server: str) -> None:
    caller = Caller(door, "legacy")
    session = caller.session or ""
    tool = f"{server}_slow"
    left = 0.3 + next(_numbers) / 1000
    with door.connect() as connection:
        connection.send(caller.bytes("tools/call", {"name": tool, "arguments": {"seconds": left}}, id=1))
        wait_for(lambda: noted(seen, "tools/call", left), "the call to arrive")
    wait_for(lambda: noted(seen, "finished", left), "the call to end by itself")

    said = 60 + next(_numbers) / 1000
    with door.connect() as connection, door.connect() as beside:
        connection.send(caller.bytes("tools/call", {"name": tool, "arguments": {"seconds": said}}, id=2))
        wait_for(lambda: noted(seen, "tools/call", said), "the call to arrive")
        beside.send(door.legacy_bytes(session, notice("notifications/cancelled", {"requestId": 2})))
        assert beside.answer().status == 202
        wait_for(lambda: noted(seen, "cancelled", said), "the cancellation to arrive")


@pytest.mark.req("BNS-4")
@every_era
@every_server
def test_a_changed_list_is_told_on_the_stream_of_the_clients_era(caller: Caller, era: str, server: str) -> None:
    name = f"grown{next(_numbers)}"
    with caller.door.connect() as connection:
        caller.changes(connection)
        caller.call(f"{server}_grow", {"name": name})
        told = connection.event()
    assert told["method"] == "notifications/tools/list_changed"
    if era == "modern":
        assert told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "ears"
    _, (answer,) = caller.ask("tools/list", {})
    assert f"{server}_{name}" in {tool["name"] for tool in answer["result"]["tools"]}
