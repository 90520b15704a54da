"""Which requests the endpoint accepts, and the error that each other request gets."""

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

from parts.daemon import Cli, Daemon, Home, nothing_left_behind, shared_daemon
from parts.raw_client import (
    CAPABILITIES_KEY,
    LEGACY,
    META,
    MODERN,
    VERSION_KEY,
    Endpoint,
    Header,
    RawAnswer,
    legacy_request,
    notice,
    request,
)
from parts.server_process import stdio_entry
from parts.waiting import wait_for
from toolcrib import http_server
from toolcrib.gateway.messages import MAX_BODY

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("KSI-1", "BNS-10")

LIST = request("tools/list")
LIST_HEADERS = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/list")]


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with shared_daemon({"servers": {"raw": stdio_entry("raw_server")}}, ready=["raw"]) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mcp(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def changed(mcp: Endpoint, name: str, *values: str | None, body: bytes = LIST) -> list[Header]:
    """The headers of a valid `tools/list`, with these values for one of them; None leaves it out."""
    kept = [header for header in mcp.usual(body, *LIST_HEADERS) if header[0] != name]
    words = {"port": mcp.port, "other": mcp.port + 1, "token": mcp.token, "short": mcp.token[:-1]}
    return kept + [(name, value.format(**words)) for value in values if value is not None]


def ask(mcp: Endpoint, name: str, *values: str | None) -> RawAnswer:
    return mcp.ask(changed(mcp, name, *values), LIST)


def test_the_port_is_open_on_loopback_only(shared: Daemon, mcp: Endpoint) -> None:
    wanted = f"{mcp.port:04X}"
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{wanted}")]
    assert listening == [f"0100007F:{wanted}"]
    assert shared.endpoint == f"http://127.0.0.1:{mcp.port}/mcp"


CREDENTIALS = ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {short}"]


@pytest.mark.parametrize("credential", [None, *CREDENTIALS, "Bearer \xff\xfe"])
def test_without_its_token_a_client_only_learns_how_to_get_one(mcp: Endpoint, credential: str | None) -> None:
    answer = ask(mcp, "Authorization", credential)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "toolcrib agent" in answer.error["message"]
    assert mcp.token not in answer.body.decode()


VALID: list[tuple[str, tuple[str, ...]]] = [
    ("X-Other", ("anything",)),
    ("Authorization", ("bEARER {token}",)),
    ("Content-Type", ("Application/JSON; charset=utf-8",)),
    ("Accept", ("*/*",)),
    ("Accept", ("application/json", "text/event-stream")),
    ("Accept", ("text/*;q=0.5,application/*",)),
    ("X-Large", ("y" * 400,) * 100),
]


@pytest.mark.parametrize(("name", "values"), VALID)
def test_every_valid_spelling_of_a_header_is_accepted(mcp: Endpoint, name: str, values: tuple[str, ...]) -> None:
    answer = ask(mcp, name, *values)
    assert answer.status == 200
    assert "raw_ok" in [tool["name"] for tool in answer.result["tools"]]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_every_loopback_name_is_accepted_as_host_and_origin(mcp: Endpoint, name: str) -> None:
    host = f"{name}:{mcp.port}"
    assert mcp.ask([*changed(mcp, "Host", host), ("Origin", f"http://{host}")], LIST).status == 200


HOSTS = ("", "evil.com", "evil.com:{port}", "127.0.0.1", "127.0.0.1:{other}", "127.0.0.1:{port}.", "127.0.0.1.:{port}")
MORE_HOSTS = ("localhost.:{port}", "LOCALHOST:{port}", "127.0.0.1:{port}@evil.com", "127.1:{port}", "0.0.0.0:{port}")
FOREIGN = ("http://evil.com", "null", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://localhost:{port}/", "")
REFUSED: list[tuple[str, set[int], tuple[str | None, ...]]] = [
    ("Host", {400, 421}, (None, *HOSTS, *MORE_HOSTS)),
    ("Origin", {403}, FOREIGN),
    ("Content-Type", {415}, (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "")),
    ("Accept", {406}, (None, "text/html", "application/json", "text/event-stream", "application/jsonx")),
]


@pytest.mark.parametrize(("name", "statuses", "values"), REFUSED)
def test_an_invalid_header_is_refused(mcp: Endpoint, name: str, statuses: set[int], values: tuple[str, ...]) -> None:
    for value in values:
        answer = ask(mcp, name, value)
        assert answer.status in statuses, value
        assert b"tools" not in answer.body, value


def test_the_endpoint_has_one_path_in_one_spelling(mcp: Endpoint) -> None:
    paths = ["/", "/mcp/", "//mcp", "/mcp%2f", "/%6dcp", "/MCP", "/mcp/../mcp", "/mcp;x", "*", "http://evil.com/mcp"]
    for target in (*paths, f"http://127.0.0.1:{mcp.port}/mcp"):
        answer = mcp.ask(mcp.usual(LIST, *LIST_HEADERS), LIST, target=target)
        assert answer.status in (400, 404), target
        assert b"tools" not in answer.body, target


MODERN_GET = [("Accept", "text/event-stream"), ("MCP-Protocol-Version", MODERN)]


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "GET", "DELETE"])
def test_the_answer_to_another_http_method_names_the_allowed_ones(mcp: Endpoint, verb: str) -> None:
    only_legacy = verb in ("GET", "DELETE")
    with mcp.connect() as connection:
        connection.send(mcp.raw([mcp.host, mcp.auth, *(MODERN_GET if only_legacy else [])], verb=verb))
        status, headers = connection.head()
    assert (status, headers["allow"]) == (405, "POST" if only_legacy else "POST, GET, DELETE")


SINGLE = ["Host", "Authorization", "Content-Type", "Content-Length", "Origin", "Mcp-Session-Id"]


@pytest.mark.parametrize("name", [*SINGLE, "MCP-Protocol-Version", "Mcp-Method"])
def test_a_header_that_must_be_single_is_refused_twice(mcp: Endpoint, name: str) -> None:
    value = dict(mcp.usual(LIST, *LIST_HEADERS)).get(name, f"http://127.0.0.1:{mcp.port}")
    answer = ask(mcp, name, value, value)
    assert answer.status == 400
    if name not in SINGLE:
        assert answer.error["code"] == -32020


def test_a_body_that_is_too_large_or_has_both_a_length_and_chunks_is_refused(mcp: Endpoint) -> None:
    both = [*mcp.usual(LIST, *LIST_HEADERS), ("Transfer-Encoding", "chunked")]
    assert mcp.ask(both, b"%x\r\n%b\r\n0\r\n\r\n" % (len(LIST), LIST)).status == 400
    unread = mcp.ask(changed(mcp, "Content-Length", str(MAX_BODY + 1)))
    assert (unread.status, str(MAX_BODY) in unread.error["message"]) == (413, True)
    headers = [*changed(mcp, "Content-Length"), ("Transfer-Encoding", "chunked")]
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in LIST) + b"0\r\n\r\n"
    assert mcp.ask(headers, chunked).status == 200
    block = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    with mcp.connect() as connection:
        connection.send(mcp.raw(headers))
        try:
            for _ in range(MAX_BODY // (1 << 20) + 1):
                connection.send(block)
        except OSError:
            pytest.fail("the connection was closed before the error was sent")
        assert connection.answer().status == 413


@pytest.mark.parametrize("start", [b"POST /mcp HTTP/1.1\r\nX: ", b"POST /", b"POST /mcp HTTP/1.1\r\n"])
def test_garbage_gets_an_error_and_an_endless_head_closes_the_connection(mcp: Endpoint, start: bytes) -> None:
    with mcp.connect() as connection:
        connection.send(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert connection.answer().status == 400
        assert connection.is_closed()
    block = b"X-Y: z\r\n" * 1000 if start.endswith(b"\n") else b"x" * 8000
    with mcp.connect() as connection:
        connection.send(start)
        sent = 0
        try:
            while sent < 50_000_000:
                connection.send(block)
                sent += len(block)
        except OSError:
            assert sent > http_server.LARGEST_HEAD / 2
        assert sent < 50_000_000
    assert mcp.modern("tools/list").status == 200


def test_expect_100_continue_needs_the_token(mcp: Endpoint) -> None:
    for credential, status in (("Bearer {token}", 100), ("Bearer wrong", 401)):
        with mcp.connect() as connection:
            connection.send(mcp.raw([*changed(mcp, "Authorization", credential), ("Expect", "100-continue")]))
            assert connection.head()[0] == status
            if status == 100:
                connection.send(LIST)
                assert connection.answer().status == 200


@pytest.mark.parametrize("kind", ["websocket", "h2c"])
def test_an_upgrade_is_refused(mcp: Endpoint, kind: str) -> None:
    upgrade = [("Connection", "Upgrade"), ("Upgrade", kind), ("Sec-WebSocket-Version", "13")]
    answer = mcp.ask([mcp.host, mcp.auth, *upgrade, ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")], verb="GET")
    assert answer.status in (400, 406)
    assert mcp.modern("tools/list").status == 200


def test_slow_clients_delay_no_other_and_pipelined_requests_are_answered_in_order(mcp: Endpoint) -> None:
    whole = mcp.modern_bytes("tools/list")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(mcp.connect()) for _ in range(50)]
        for number, connection in enumerate(slow):
            connection.send(whole[: 20 + number * 5])
        with mcp.connect() as connection:
            connection.send(b"".join(mcp.modern_bytes("tools/list", id=number) for number in range(5)))
            assert [connection.answer().json["id"] for _ in range(5)] == [0, 1, 2, 3, 4]
        slow[0].send(whole[20:])
        assert slow[0].answer().status == 200


# Modern clients.

CONTRADICTIONS = [("MCP-Protocol-Version", "2025-06-18"), ("Mcp-Method", "tools/call"), ("Mcp-Method", "TOOLS/LIST")]


def test_headers_must_match_the_body_and_the_tools_name_may_be_base64(mcp: Endpoint) -> None:
    for name, value in (*CONTRADICTIONS, ("MCP-Protocol-Version", None), ("Mcp-Method", None)):
        answer = ask(mcp, name, value)
        assert (answer.status, answer.error["code"], answer.json["id"]) == (400, -32020, 1), (name, value)
    body = request("tools/call", {"name": "raw_ok", "arguments": {}})
    for name in ("raw_die", None, "=?base64?cmF3X2RpZQ==?=", "=?base64?!!?="):
        answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("tools/call", name)), body)
        assert (answer.status, answer.error["code"]) == (400, -32020), name
    answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("tools/call", "=?base64?cmF3X29r?=")), body)
    assert answer.result["structuredContent"]["ok"] is True


def test_an_unknown_version_gets_the_supported_ones_and_an_incomplete_meta_is_refused(mcp: Endpoint) -> None:
    body = request("tools/list", meta={**META, VERSION_KEY: "2099-01-01"})
    answer = mcp.ask(mcp.usual(body, ("MCP-Protocol-Version", "2099-01-01"), ("Mcp-Method", "tools/list")), body)
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": [MODERN], "requested": "2099-01-01"}
    for meta in (None, {}, {VERSION_KEY: MODERN}, {CAPABILITIES_KEY: {}}):
        body = request("tools/list", meta=meta)
        answer = mcp.ask(mcp.usual(body, *LIST_HEADERS), body)
        assert (answer.status, answer.error["code"]) == (400, -32602), meta
        assert "_meta" in answer.error["message"], meta


def test_an_unknown_method_is_not_found_and_an_unknown_cursor_is_refused(mcp: Endpoint) -> None:
    for method in ("tools/nothing", "", "ping", "initialized", "x" * 5000):
        answer = mcp.modern(method)
        assert (answer.status, answer.error["code"]) == (404, -32601), method
        assert len(answer.body) < 500
    for cursor in ("abc", "", 7, {}):
        assert mcp.modern("tools/list", {"cursor": cursor}).error["code"] == -32602, cursor


def test_an_unknown_tool_gets_similar_names_but_not_its_own_long_name(mcp: Endpoint) -> None:
    answer = mcp.call("raw_okk")
    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert "raw_ok" in answer.error["message"] or "raw:ok" in answer.error["message"]
    answer = mcp.call("n" * 4000)
    assert answer.error["code"] == -32602
    assert len(answer.body) < 1000


def test_a_notification_is_accepted_without_an_answer(mcp: Endpoint) -> None:
    body = notice("notifications/cancelled", {"requestId": 5, "_meta": META})
    answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("notifications/cancelled")), body)
    assert (answer.status, answer.body) == (202, b"")


# Legacy clients.


def test_a_session_exists_until_it_is_deleted_which_cancels_its_calls(mcp: Endpoint) -> None:
    for session in ("", "unknown", "0" * 32, "\xff"):
        body = legacy_request("tools/list")
        assert mcp.ask(mcp.usual(body, ("Mcp-Session-Id", session)), body).status == 404, session
    session = mcp.begin()
    assert mcp.legacy(session, "ping").result == {}
    known = [mcp.host, mcp.auth, ("Mcp-Session-Id", session)]
    with mcp.connect() as waiting:
        waiting.send(mcp.legacy_bytes(session, legacy_request("tools/call", {"name": "raw_never"})))

        def in_flight() -> bool:
            stats = mcp.call("crib_system_stats").result["structuredContent"]
            return bool(stats["calls"]["in_flight"] >= 2)

        wait_for(in_flight, "the call to run")
        assert mcp.ask(known, verb="DELETE").status == 200
        assert "cancelled" in json.loads(waiting.answer().message)["error"]["message"]
    assert mcp.legacy(session, "ping").status == 404
    assert mcp.ask(known, verb="DELETE").status == 404


def test_a_legacy_client_negotiates_a_version_which_its_requests_may_omit(mcp: Endpoint) -> None:
    versions = {"2024-11-05": "2024-11-05", LEGACY: LEGACY, "1999-01-01": LEGACY, MODERN: LEGACY}
    for version, agreed in versions.items():
        body = legacy_request("initialize", {"protocolVersion": version, "capabilities": {}})
        assert mcp.ask(mcp.usual(body), body).result["protocolVersion"] == agreed
    for invalid in (None, 5, {}):
        body = legacy_request("initialize", {"protocolVersion": invalid})
        assert mcp.ask(mcp.usual(body), body).error["code"] == -32602, invalid
    session, body = ("Mcp-Session-Id", mcp.begin()), legacy_request("ping")
    assert mcp.ask(mcp.usual(body, session), body).result == {}
    assert mcp.ask(mcp.usual(body, session, ("MCP-Protocol-Version", "2020-01-01")), body).status == 400


def test_a_stream_needs_a_session_and_the_right_accept_header(mcp: Endpoint) -> None:
    base = [mcp.host, mcp.auth]
    stream = ("Accept", "text/event-stream")
    assert mcp.ask([*base, stream], verb="GET").status == 400
    assert mcp.ask([*base, stream, ("Mcp-Session-Id", "x")], verb="GET").status == 404
    assert mcp.ask([*base, ("Accept", "application/json")], verb="GET").status == 406
    with mcp.connect() as connection:
        connection.send(mcp.raw([*base, stream, ("Mcp-Session-Id", mcp.begin())], verb="GET"))
        status, headers = connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")


# Files.


def test_only_the_owner_can_read_the_token_and_open_the_socket(shared: Daemon, mcp: Endpoint) -> None:
    base = shared.home.toolcrib
    assert stat.S_ISSOCK((base / "run" / "daemon.sock").stat().st_mode)
    run, state = ("daemon.sock", "daemon.json", "daemon.lock"), ("owner.token", "toolcrib.log", "mcp_sessions.db")
    for path in (*(base / "run" / name for name in run), *(base / "state" / name for name in state)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert [stat.S_IMODE((base / name).stat().st_mode) for name in ("run", "state")] == [0o700] * 2
    ask(mcp, "Authorization", "Bearer wrong")
    texts = [path.read_bytes() for path in (base / "state").rglob("*.log")]
    texts += [Path(f"/proc/{shared.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    assert not any(mcp.token.encode() in text for text in texts)


def test_a_token_file_that_is_empty_or_readable_by_others_is_refused_at_startup(cli: Cli, toolcrib_home: Home) -> None:
    file = toolcrib_home.toolcrib / "state" / "owner.token"
    file.parent.mkdir(mode=0o700)
    for text, bits, remedy in (
        ("t" * 43, 0o640, "chmod 600"),
        ("t" * 43, 0o604, "chmod 600"),
        ("", 0o600, "Remove it"),
    ):
        file.write_text(text)
        file.chmod(bits)
        done = cli("up", "--port", "0")
        assert done.exit_code == 3
        assert "owner.token" in done.err
        assert remedy in done.err
        assert "t" * 43 not in done.out + done.err


# A request must arrive within a limit, here a short one.


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.3)

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


POST = b"POST /mcp HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PARTS = {
    "nothing": b"",
    "one byte": b"P",
    "half a head": POST,
    "no body": POST + b"Content-Length: 10\r\n\r\n",
    "half a body": POST + b"Content-Length: 10\r\n\r\n12345",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n123",
    "half a second request": GET + POST,
}


async def test_a_partial_request_closes_the_connection(address: tuple[str, int]) -> None:
    async def send(name: str) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(PARTS[name])
        began = asyncio.get_running_loop().time()
        answer = await reader.read(-1)
        assert asyncio.get_running_loop().time() - began >= 0.25, name
        assert answer.endswith(b"ok") or name != "half a second request"
        writer.close()

    await asyncio.gather(*map(send, PARTS))


async def test_sending_a_byte_now_and_then_does_not_extend_the_limit(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(POST + b"Content-Length: 1000\r\n\r\n")

    async def drip() -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    # The connection ends, or is reset if some bytes were still in transit.
    with contextlib.suppress(ConnectionResetError):
        await reader.read(-1)
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    writer.close()


async def test_neither_a_slow_answer_nor_an_idle_connection_is_cut_off(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for path in (b"/slow", b"/slow", b"/"):
        writer.write(GET.replace(b"/", path, 1))
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.6)
    writer.write(GET)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.close()
