"""The gate of the endpoint: who may come in, and how each request that may not is told so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Cli, Daemon, StartDaemon, nothing_left_behind, shared_daemon
from parts.raw_client import (
    CAPABILITIES_KEY,
    INITIALIZE,
    LEGACY,
    META,
    MODERN,
    VERSION_KEY,
    Endpoint,
    Header,
    legacy_request,
    notice,
    request,
)
from parts.server_process import stdio_command
from parts.waiting import wait_for
from toolcrib import http_server
from toolcrib.gateway.messages import MAX_BODY

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

RAW = stdio_command("raw_server")
LIST = request("tools/list")
LIST_HEADERS = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/list")]


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with shared_daemon({"servers": {"raw": {"command": RAW[0], "args": RAW[1:]}}}, ready=["raw"]) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def door(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def replaced(headers: list[Header], name: str, *values: str) -> list[Header]:
    """The headers with these values, one header each, in place of the named one's."""
    return [header for header in headers if header[0] != name] + [(name, value) for value in values]


def test_the_port_is_open_on_loopback_only(shared: Daemon, door: Endpoint) -> None:
    wanted = f"{door.port:04X}"
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{wanted}")]
    assert listening == [f"0100007F:{wanted}"]
    assert shared.endpoint == f"http://127.0.0.1:{door.port}/mcp"


def test_the_usual_request_is_answered(door: Endpoint) -> None:
    answer = door.ask(door.usual(LIST, *LIST_HEADERS), LIST)
    assert answer.status == 200
    assert "raw_ok" in [tool["name"] for tool in answer.result["tools"]]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "credential",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {short}"],
)
def test_without_the_token_nothing_is_answered_but_how_to_get_it(door: Endpoint, credential: str | None) -> None:
    values = [] if credential is None else [credential.format(token=door.token, short=door.token[:-1])]
    answer = door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Authorization", *values), LIST)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "toolcrib agent" in answer.error["message"]
    assert door.token not in answer.body.decode()


def test_a_token_of_bytes_beyond_ascii_is_just_a_wrong_one(door: Endpoint) -> None:
    answer = door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Authorization", "Bearer \xff\xfe"), LIST)
    assert answer.status == 401


def test_the_scheme_may_be_spelled_in_any_case(door: Endpoint) -> None:
    answer = door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Authorization", f"bEARER {door.token}"), LIST)
    assert answer.status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:{port}",
        "127.0.0.1",
        "127.0.0.1:{other}",
        "127.0.0.1:{port}.",
        "127.0.0.1.:{port}",
        "localhost.:{port}",
        "LOCALHOST:{port}",
        "127.0.0.1:{port}@evil.com",
        "127.1:{port}",
        "0.0.0.0:{port}",
        "",
    ],
)
def test_a_host_that_is_not_ours_exactly_is_turned_away(door: Endpoint, host: str) -> None:
    named = host.format(port=door.port, other=door.port + 1)
    answer = door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Host", named), LIST)
    assert answer.status in (400, 421)
    assert b"tools" not in answer.body


def test_a_request_without_host_is_turned_away(door: Endpoint) -> None:
    assert door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Host"), LIST).status in (400, 421)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_each_name_of_loopback_is_ours(door: Endpoint, name: str) -> None:
    host = f"{name}:{door.port}"
    headers = [*replaced(door.usual(LIST, *LIST_HEADERS), "Host", host), ("Origin", f"http://{host}")]
    assert door.ask(headers, LIST).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.com", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://localhost:{port}/", ""],
)
def test_a_page_from_elsewhere_is_turned_away_even_with_the_token(door: Endpoint, origin: str) -> None:
    answer = door.ask([*door.usual(LIST, *LIST_HEADERS), ("Origin", origin.format(port=door.port))], LIST)
    assert answer.status == 403


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/mcp/",
        "//mcp",
        "/mcp%2f",
        "/%6dcp",
        "/MCP",
        "/mcp/../mcp",
        "/mcp;x",
        "*",
        "http://127.0.0.1:{port}/mcp",
        "http://evil.com/mcp",
    ],
)
def test_there_is_one_path_in_one_spelling(door: Endpoint, target: str) -> None:
    answer = door.ask(door.usual(LIST, *LIST_HEADERS), LIST, target=target.format(port=door.port))
    assert answer.status in (400, 404)
    assert b"tools" not in answer.body


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_other_methods_are_told_which_there_are(door: Endpoint, verb: str) -> None:
    with door.connect() as connection:
        connection.send(door.raw([door.host, door.auth], verb=verb))
        status, headers = connection.head()
    assert status == 405
    assert headers["allow"] == "POST, GET, DELETE"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""])
def test_a_body_must_say_that_it_is_json(door: Endpoint, kind: str | None) -> None:
    headers = replaced(door.usual(LIST, *LIST_HEADERS), "Content-Type", *([] if kind is None else [kind]))
    assert door.ask(headers, LIST).status == 415


def test_json_may_name_its_charset(door: Endpoint) -> None:
    headers = replaced(door.usual(LIST, *LIST_HEADERS), "Content-Type", "Application/JSON; charset=utf-8")
    assert door.ask(headers, LIST).status == 200


@pytest.mark.parametrize("accept", [None, "text/html", "application/json", "text/event-stream", "application/jsonx"])
def test_a_client_must_accept_both_kinds_of_answer(door: Endpoint, accept: str | None) -> None:
    headers = replaced(door.usual(LIST, *LIST_HEADERS), "Accept", *([] if accept is None else [accept]))
    assert door.ask(headers, LIST).status == 406


@pytest.mark.parametrize("accept", [["*/*"], ["application/json", "text/event-stream"], ["text/*;q=0.5,application/*"]])
def test_what_is_accepted_may_be_said_in_any_lawful_way(door: Endpoint, accept: list[str]) -> None:
    assert door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Accept", *accept), LIST).status == 200


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Content-Type", "Content-Length", "Origin", "Mcp-Session-Id"]
)
def test_a_header_that_must_be_single_may_not_stand_twice(door: Endpoint, name: str) -> None:
    headers = door.usual(LIST, *LIST_HEADERS)
    value = dict(headers).get(name, f"http://127.0.0.1:{door.port}")
    answer = door.ask(replaced(headers, name, value, value), LIST)
    assert answer.status == 400


@pytest.mark.parametrize("name", ["MCP-Protocol-Version", "Mcp-Method"])
def test_a_routing_header_may_not_stand_twice(door: Endpoint, name: str) -> None:
    headers = door.usual(LIST, *LIST_HEADERS)
    value = dict(headers)[name]
    answer = door.ask(replaced(headers, name, value, value), LIST)
    assert (answer.status, answer.error["code"]) == (400, -32020)


def test_a_length_and_chunks_at_once_are_refused(door: Endpoint) -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LIST), LIST)
    headers = [*door.usual(LIST, *LIST_HEADERS), ("Transfer-Encoding", "chunked")]
    assert door.ask(headers, chunked).status == 400


def test_a_body_that_says_it_is_too_large_is_refused_unread(door: Endpoint) -> None:
    headers = replaced(door.usual(b"", *LIST_HEADERS), "Content-Length", str(MAX_BODY + 1))
    answer = door.ask(headers)
    assert answer.status == 413
    assert str(MAX_BODY) in answer.error["message"]


def test_a_body_that_grows_too_large_is_refused(door: Endpoint) -> None:
    headers = replaced(door.usual(b"", *LIST_HEADERS), "Content-Length")
    block = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    with door.connect() as connection:
        connection.send(door.raw([*headers, ("Transfer-Encoding", "chunked")]))
        try:
            for _ in range(MAX_BODY // (1 << 20) + 1):
                connection.send(block)
        except OSError:
            pytest.fail("it was cut off before it was told why")
        assert connection.answer().status == 413


def test_a_body_in_chunks_is_as_good_as_any(door: Endpoint) -> None:
    headers = replaced(door.usual(b"", *LIST_HEADERS), "Content-Length")
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in LIST) + b"0\r\n\r\n"
    answer = door.ask([*headers, ("Transfer-Encoding", "chunked")], chunked)
    assert answer.status == 200


def test_garbage_instead_of_http_is_answered_and_the_connection_closed(door: Endpoint) -> None:
    with door.connect() as connection:
        connection.send(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert connection.answer().status == 400
        assert connection.is_closed()
    assert door.modern("tools/list").status == 200


@pytest.mark.parametrize("start", [b"POST /mcp HTTP/1.1\r\nX: ", b"POST /", b"POST /mcp HTTP/1.1\r\n"])
def test_a_head_without_end_is_cut_off(door: Endpoint, start: bytes) -> None:
    block = b"X-Y: z\r\n" * 1000 if start.endswith(b"\n") else b"x" * 8000
    with door.connect() as connection:
        connection.send(start)
        sent = 0
        try:
            while sent < 50_000_000:
                connection.send(block)
                sent += len(block)
        except OSError:
            assert sent > http_server.LARGEST_HEAD / 2
        assert sent < 50_000_000
    assert door.modern("tools/list").status == 200


def test_a_head_of_honest_size_passes(door: Endpoint) -> None:
    more = [(f"X-{number}", "y" * 400) for number in range(100)]
    assert door.ask([*door.usual(LIST, *LIST_HEADERS), *more], LIST).status == 200


def test_whoever_asks_before_sending_is_told_to_go_on_only_with_the_token(door: Endpoint) -> None:
    headers = [*door.usual(LIST, *LIST_HEADERS), ("Expect", "100-continue")]
    with door.connect() as connection:
        connection.send(door.raw(headers))
        assert connection.head()[0] == 100
        connection.send(LIST)
        assert connection.answer().status == 200
    with door.connect() as connection:
        connection.send(door.raw(replaced(headers, "Authorization", "Bearer wrong")))
        assert connection.head()[0] == 401


@pytest.mark.parametrize("kind", ["websocket", "h2c"])
def test_there_is_nothing_to_upgrade_to(door: Endpoint, kind: str) -> None:
    upgrade = [("Connection", "Upgrade"), ("Upgrade", kind), ("Sec-WebSocket-Version", "13")]
    answer = door.ask([door.host, door.auth, *upgrade, ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")], verb="GET")
    assert answer.status in (400, 406)
    assert door.modern("tools/list").status == 200


def test_a_slow_client_delays_nobody(door: Endpoint) -> None:
    slow = [door.connect() for _ in range(50)]
    try:
        for number, connection in enumerate(slow):
            whole = door.modern_bytes("tools/list")
            connection.send(whole[: 20 + number * 5])
        assert door.modern("tools/list").status == 200
        rest = door.modern_bytes("tools/list")[20:]
        slow[0].send(rest)
        assert slow[0].answer().status == 200
    finally:
        for connection in slow:
            connection.close()


def test_requests_sent_ahead_are_answered_in_their_order(door: Endpoint) -> None:
    with door.connect() as connection:
        connection.send(b"".join(door.modern_bytes("tools/list", id=number) for number in range(5)))
        assert [connection.answer().json["id"] for _ in range(5)] == [0, 1, 2, 3, 4]


class TestModern:
    @pytest.mark.parametrize(
        ("changed", "value"),
        [
            ("MCP-Protocol-Version", "2025-06-18"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Method", "TOOLS/LIST"),
            ("MCP-Protocol-Version", None),
            ("Mcp-Method", None),
        ],
    )
    def test_headers_must_say_what_the_body_says(self, door: Endpoint, changed: str, value: str | None) -> None:
        headers = replaced(door.usual(LIST, *LIST_HEADERS), changed, *([] if value is None else [value]))
        answer = door.ask(headers, LIST)
        assert (answer.status, answer.error["code"]) == (400, -32020)
        assert answer.json["id"] == 1

    @pytest.mark.parametrize("name", ["raw_die", None, "=?base64?cmF3X2RpZQ==?=", "=?base64?!!?="])
    def test_the_name_in_the_header_must_be_the_one_in_the_body(self, door: Endpoint, name: str | None) -> None:
        body = request("tools/call", {"name": "raw_ok", "arguments": {}})
        answer = door.ask(door.usual(body, *door.modern_headers("tools/call", name)), body)
        assert (answer.status, answer.error["code"]) == (400, -32020)

    def test_the_name_may_travel_in_base64(self, door: Endpoint) -> None:
        body = request("tools/call", {"name": "raw_ok", "arguments": {}})
        answer = door.ask(door.usual(body, *door.modern_headers("tools/call", "=?base64?cmF3X29r?=")), body)
        assert answer.result["structuredContent"]["ok"] is True

    def test_a_version_from_the_future_is_told_which_ones_there_are(self, door: Endpoint) -> None:
        body = request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"})
        answer = door.ask(door.usual(body, ("MCP-Protocol-Version", "2099-01-01"), ("Mcp-Method", "tools/list")), body)
        assert (answer.status, answer.error["code"]) == (400, -32022)
        assert answer.error["data"] == {"supported": [MODERN], "requested": "2099-01-01"}

    @pytest.mark.parametrize("meta", [None, {}, {VERSION_KEY: MODERN}, {CAPABILITIES_KEY: {}}])
    def test_a_request_without_its_meta_is_told_what_is_missing(self, door: Endpoint, meta: Any) -> None:
        body = request("tools/list", meta=meta)
        answer = door.ask(door.usual(body, *LIST_HEADERS), body)
        assert (answer.status, answer.error["code"]) == (400, -32602)
        assert "_meta" in answer.error["message"]

    @pytest.mark.parametrize("method", ["tools/nothing", "", "ping", "initialized", "x" * 5000])
    def test_an_unknown_method_is_not_found(self, door: Endpoint, method: str) -> None:
        answer = door.modern(method)
        assert (answer.status, answer.error["code"]) == (404, -32601)
        assert len(answer.body) < 500

    def test_an_unknown_tool_is_named_with_those_like_it(self, door: Endpoint) -> None:
        answer = door.call("raw_okk")
        assert (answer.status, answer.error["code"]) == (400, -32602)
        assert "raw_ok" in answer.error["message"] or "raw:ok" in answer.error["message"]

    def test_a_long_unknown_name_is_not_repeated_whole(self, door: Endpoint) -> None:
        answer = door.call("n" * 4000)
        assert answer.error["code"] == -32602
        assert len(answer.body) < 1000

    @pytest.mark.parametrize("verb", ["GET", "DELETE"])
    def test_there_is_nothing_to_get_or_delete(self, door: Endpoint, verb: str) -> None:
        headers = [door.host, door.auth, ("Accept", "text/event-stream"), ("MCP-Protocol-Version", MODERN)]
        answer = door.ask(headers, verb=verb)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")

    def test_a_notification_is_accepted_without_an_answer(self, door: Endpoint) -> None:
        body = notice("notifications/cancelled", {"requestId": 5, "_meta": META})
        answer = door.ask(door.usual(body, *door.modern_headers("notifications/cancelled")), body)
        assert (answer.status, answer.body) == (202, b"")

    @pytest.mark.parametrize("cursor", ["abc", "", 7, {}])
    def test_a_cursor_that_nobody_gave_is_refused(self, door: Endpoint, cursor: Any) -> None:
        assert door.modern("tools/list", {"cursor": cursor}).error["code"] == -32602


class TestLegacy:
    def test_a_request_before_initialize_is_told_to_begin(self, door: Endpoint) -> None:
        body = legacy_request("tools/list")
        answer = door.ask(door.usual(body), body)
        assert answer.status == 400
        assert "initialize" in answer.error["message"]

    @pytest.mark.parametrize("session", ["", "unknown", "0" * 32, "\xff"])
    def test_an_unknown_session_is_not_found(self, door: Endpoint, session: str) -> None:
        answer = door.ask(
            door.usual(INITIALIZE, ("Mcp-Session-Id", session)), legacy_request("tools/list").ljust(len(INITIALIZE))
        )
        assert answer.status == 404

    def test_a_session_lives_until_it_is_deleted(self, door: Endpoint) -> None:
        session = door.begin()
        assert door.legacy(session, "ping").result == {}
        known = [door.host, door.auth, ("Mcp-Session-Id", session)]
        assert door.ask(known, verb="DELETE").status == 200
        assert door.legacy(session, "ping").status == 404
        assert door.ask(known, verb="DELETE").status == 404

    def test_deleting_a_session_takes_its_calls_back(self, door: Endpoint) -> None:
        session = door.begin()
        with door.connect() as waiting:
            waiting.send(door.legacy_bytes(session, legacy_request("tools/call", {"name": "raw_never"})))

            def under_way() -> bool:
                stats = door.call("crib_system_stats").result["structuredContent"]
                return bool(stats["calls"]["in_flight"] >= 2)

            wait_for(under_way, "the call to be under way")
            assert door.ask([door.host, door.auth, ("Mcp-Session-Id", session)], verb="DELETE").status == 200
            assert "cancelled" in json.loads(waiting.answer().message)["error"]["message"]

    def test_a_version_that_no_legacy_client_speaks_is_refused(self, door: Endpoint) -> None:
        session = door.begin()
        body = legacy_request("ping")
        answer = door.ask(door.usual(body, ("Mcp-Session-Id", session), ("MCP-Protocol-Version", "2020-01-01")), body)
        assert answer.status == 400

    def test_a_request_without_version_is_taken_as_an_early_one(self, door: Endpoint) -> None:
        session = door.begin()
        body = legacy_request("ping")
        assert door.ask(door.usual(body, ("Mcp-Session-Id", session)), body).result == {}

    def test_a_stream_needs_a_session_and_the_right_accept(self, door: Endpoint) -> None:
        base = [door.host, door.auth]
        stream = ("Accept", "text/event-stream")
        assert door.ask([*base, stream], verb="GET").status == 400
        assert door.ask([*base, stream, ("Mcp-Session-Id", "x")], verb="GET").status == 404
        assert door.ask([*base, ("Accept", "application/json")], verb="GET").status == 406
        with door.connect() as connection:
            connection.send(door.raw([*base, stream, ("Mcp-Session-Id", door.begin())], verb="GET"))
            status, headers = connection.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")

    @pytest.mark.parametrize(
        ("asked", "spoken"), [("2024-11-05", "2024-11-05"), (LEGACY, LEGACY), ("1999-01-01", LEGACY), (MODERN, LEGACY)]
    )
    def test_initialize_agrees_on_a_version(self, door: Endpoint, asked: str, spoken: str) -> None:
        body = legacy_request("initialize", {"protocolVersion": asked, "capabilities": {}})
        assert door.ask(door.usual(body), body).result["protocolVersion"] == spoken

    @pytest.mark.parametrize("version", [None, 5, {}])
    def test_initialize_without_a_version_is_told_so(self, door: Endpoint, version: Any) -> None:
        body = legacy_request("initialize", {"protocolVersion": version})
        answer = door.ask(door.usual(body), body)
        assert answer.error["code"] == -32602


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_only_the_owner_can_read_the_token_and_open_the_socket(shared: Daemon) -> None:
    base = shared.home.toolcrib
    assert stat.S_ISSOCK((base / "run" / "daemon.sock").stat().st_mode)
    assert [mode(base / "run" / name) for name in ("daemon.sock", "daemon.json", "daemon.lock")] == ["0o600"] * 3
    assert [mode(base / "state" / name) for name in ("owner.token", "toolcrib.log", "mcp_sessions.db")] == ["0o600"] * 3
    assert [mode(base / name) for name in ("run", "state")] == ["0o700"] * 2


def test_the_token_stands_in_no_log_and_no_command_line(shared: Daemon, door: Endpoint) -> None:
    door.ask(replaced(door.usual(LIST, *LIST_HEADERS), "Authorization", "Bearer wrong"), LIST)
    texts = [path.read_bytes() for path in (shared.home.toolcrib / "state").rglob("*.log")]
    texts += [Path(f"/proc/{shared.pid}/cmdline").read_bytes(), Path(f"/proc/{shared.pid}/environ").read_bytes()]
    assert not any(door.token.encode() in text for text in texts)


@pytest.mark.parametrize("bits", [0o640, 0o604])
def test_a_token_file_that_others_can_read_is_refused_at_the_start(cli: Cli, toolcrib_home: Any, bits: int) -> None:
    file = toolcrib_home.toolcrib / "state" / "owner.token"
    file.parent.mkdir(mode=0o700)
    file.write_text("t" * 43)
    file.chmod(bits)
    done = cli("up", "--port", "0")
    assert done.exit_code == 3
    assert "owner.token" in done.err
    assert "chmod 600" in done.err
    assert "t" * 43 not in done.out + done.err


def test_an_empty_token_file_is_refused_at_the_start(cli: Cli, toolcrib_home: Any) -> None:
    file = toolcrib_home.toolcrib / "state" / "owner.token"
    file.parent.mkdir(mode=0o700)
    file.touch(mode=0o600)
    done = cli("up", "--port", "0")
    assert done.exit_code == 3
    assert "Remove it" in done.err


def test_the_token_stays_the_same_from_start_to_start(daemon: StartDaemon) -> None:
    first = daemon({})
    first.stop()
    second = daemon()
    assert second.token == first.token
    assert Endpoint(second).modern("tools/list").status == 200
    second.stop()


class TestArrival:
    """A request must arrive within a limit, here a short one."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.3)

    @pytest.fixture
    async def address(self) -> AsyncIterator[tuple[str, int]]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            while (event := await receive())["type"] == "http.request" and event["more_body"]:
                pass
            if scope["path"] == "/slow":
                await asyncio.sleep(0.5)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

        listener = socket.create_server(("127.0.0.1", 0))
        server = http_server.AsgiServer(app)
        await server.start(listener)
        yield listener.getsockname()
        await server.stop(limit=0.1)

    @pytest.mark.parametrize(
        "half",
        [
            b"",
            b"P",
            b"POST /mcp HTTP/1.1\r\nHost: x\r\n",
            b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
            b"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
        ],
    )
    async def test_half_a_request_is_cut_off(self, address: tuple[str, int], half: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(half)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(60):
            while await reader.read(1000):
                pass
        assert asyncio.get_running_loop().time() - began >= 0.25
        writer.close()

    async def test_sending_a_byte_now_and_then_does_not_help(self, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")

        async def drip() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        # Cut off means the end, or a reset where bytes of ours were still on their way.
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                while await reader.read(1000):
                    pass
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.close()

    async def test_half_a_second_request_is_cut_off_too(self, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nPOST /mcp HTTP/1.1\r\nHost: x\r\n")
        async with asyncio.timeout(60):
            answered = await reader.read(-1)
        assert answered.endswith(b"ok")
        writer.close()

    async def test_an_answer_may_take_longer_than_the_request(self, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(2):
            writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(60):
                answer = await reader.readuntil(b"ok")
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()

    async def test_an_idle_connection_between_requests_stays(self, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(60):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.6)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
