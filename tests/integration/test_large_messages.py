"""A server that sends more than its limits: the call fails with the reason, over every transport; the next one runs."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import StartDaemon
from parts.live_servers import LiveServers, call, live, until, web_config
from parts.raw_client import Endpoint
from parts.server_process import StartServer, stdio_command
from parts.servers.odd_web import EXACT, OddWeb
from parts.sizes import some
from parts.waiting import wait_for
from toolcrib.config.model import Retry, Transport
from toolcrib.errors import ProtocolViolation, ServerFailure
from toolcrib.servers import input_budget
from toolcrib.servers.model import ServerState
from toolcrib.servers.server import Server

__all__ = ["live"]

pytestmark = pytest.mark.req("BNS-5", "BNS-10")


@pytest.fixture
def small(live: LiveServers) -> LiveServers:
    """Servers with a small limit."""
    live.defaults = {"max_message_mb": 0.1, "retry": Retry(backoff=0.05)}
    return live


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_over_stdio_and_http_only_the_call_with_a_large_result_fails(era: str, small: LiveServers) -> None:
    server = await small.odd()
    with pytest.raises(ProtocolViolation, match=r"'odd'.* more than 0\.1 MB.*max_message_mb"):
        await server.call(call("big", size=200_000))
    assert (await server.call(call("big", size=50_000))).result is not None
    assert server.status.attempts == 0
    async with small.web(era) as (odd, server):
        for tool in ("big", "bigchunks", "bigstream", "biglines", "headers", "gzip"):
            reason = {"headers": "64 KB of headers", "gzip": "compressed"}.get(tool, r"0\.1 MB.*max_message_mb")
            with pytest.raises(ProtocolViolation, match=rf"'web'.*{reason}"):
                await server.call(call(tool, size=200_000))
            assert (await server.call(call("echo"))).result == EXACT
            assert server.status.state is ServerState.READY
            assert len([seen for seen in odd.calls() if seen.message["params"]["name"] == tool]) == 1


@pytest.mark.parametrize("transport", [Transport.WEBSOCKET, Transport.SSE])
async def test_over_websocket_and_sse_the_connection_ends_with_the_reason_and_is_reopened(
    transport: Transport, start_server: StartServer, small: LiveServers
) -> None:
    if transport is Transport.SSE:
        url = start_server(stdio_command("sdk_v2", "--transport", "sse")).url("sse")
    else:
        url = start_server(stdio_command("ws_server")).url("ws")
    server = await small.started(web_config(url, transport, **small.defaults))
    with pytest.raises(ServerFailure, match=r"0\.1 MB.*max_message_mb"):
        await server.call(call("big", n=200_000))
    assert (await server.call(call("big", n=50_000))).result is not None


NOISES = (
    *("garbage", "newlines", "stderr", "stderr newlines", "messages", "changes"),
    *("requests", "answers", "batches", "endless", "progress"),
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood is ended after a few pauses instead of a few hundred."""
    monkeypatch.setattr(input_budget, "MAX_FLOOD", 0.06)
    monkeypatch.setattr(input_budget, "_LASTING", 0.0)
    monkeypatch.setattr(input_budget, "FORWARD_COST", 0.000003)


async def calls_until(flood: asyncio.Future[Any], quiet: Server) -> int:
    """How many calls of another server are answered meanwhile."""
    answered = 0
    while not flood.done():
        assert (await quiet.call(call("echo"))).result is not None
        answered += 1
    return answered


@pytest.mark.usefixtures("impatient")
async def test_a_process_that_floods_is_ended_with_the_reason_and_delays_no_other(small: LiveServers) -> None:
    quiet = await small.odd()
    for number, what in enumerate(NOISES):
        flooding = await small.odd()
        flood = asyncio.create_task(flooding.call(call("flood", what=what), on_progress=lambda _: None))
        assert await calls_until(flood, quiet) >= 2, what
        with pytest.raises(ServerFailure, match=r"'odd'.*sends far more.*may have run"):
            await flood
        await until(lambda seen=number: len(small.reasons()) > seen, "the reason")
        assert small.reasons()[number:] == [input_budget.FLOOD_REASON], what
        if what == "garbage":
            # The reason is still shown when the server is connected again.
            assert (await flooding.call(call("echo"))).result is not None
            assert (flooding.status.state, flooding.status.last_error) == (ServerState.READY, input_budget.FLOOD_REASON)
        await flooding.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["answer", "standing", "sse"])
async def test_a_stream_of_events_that_floods_is_ended_with_the_reason(way: str, small: LiveServers) -> None:
    odd = OddWeb("legacy")
    odd.status_for_get = 200 if way == "standing" else 405
    async with small.web(odd, Transport.SSE if way == "sse" else Transport.HTTP) as (_, server):
        quiet = await small.odd()
        odd.flooding.set()
        reason = until(small.reasons, "the reason")
        flood = asyncio.ensure_future(server.call(call("flood")) if way == "answer" else reason)
        assert await calls_until(flood, quiet) >= 2
        odd.flooding.clear()
        if way == "answer":
            reason.close()
            with pytest.raises(ServerFailure, match="sends far more"):
                await flood
        else:
            assert (await flood)[0] == input_budget.FLOOD_REASON


@pytest.mark.usefixtures("impatient")
async def test_a_websocket_with_too_many_fragments_or_messages_is_ended_with_the_reason(
    start_server: StartServer, small: LiveServers
) -> None:
    url = start_server(stdio_command("ws_server")).url("ws")
    server = await small.started(web_config(url, Transport.WEBSOCKET, **small.defaults))
    quiet = await small.odd()
    assert (await server.call(call("pieces", count=3000))).result == b'{"content": []}'
    with pytest.raises(ServerFailure, match="too many fragments"):
        await server.call(call("pieces", count=5000))
    for lost, what in ((1, "messages"), (2, "pings")):
        await until(lambda times=lost: len(small.reasons()) >= times, "the loss to be noticed")
        await until(lambda: server.status.state is ServerState.READY, "the server to reconnect")
        flood = asyncio.create_task(server.call(call("flood", what=what)))
        # A flood of pings may end within the time of two calls.
        assert await calls_until(flood, quiet) >= 1
        with pytest.raises(ServerFailure, match="sends far more"):
            await flood


async def test_a_handshake_or_list_that_is_too_large_is_refused(small: LiveServers) -> None:
    for odd, megabytes, reason in (
        ("verbose", 0.1, "max_message_mb"),
        ("many", 64, "lists more than 5,000 tools"),
        ("endless pages", 64, "lists more than 5,000 tools"),
        ("large", 64, "lists more than 16 MB"),
        ("ones", 64, "lists more than 500,000 values"),
    ):
        server = await small.odd(odd, max_message_mb=megabytes)
        assert server.status.state is not ServerState.READY, odd
        assert reason in server.status.last_error, odd
    for opening, reason in (("body", "more than 1024 KB"), ("headers", "64 KB of headers"), ("gzip", "compresses")):
        web = OddWeb("legacy")
        web.opening = opening
        async with small.web(web) as (_, server):
            assert server.status.state is not ServerState.READY, opening
            assert reason in server.status.last_error, opening


class Endless(http.server.BaseHTTPRequestHandler):
    """A legacy server whose tool answers with as many bytes as it is asked for, with a length or without."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_error(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        results = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO},
            "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in WAYS]},
        }
        if message.get("method") == "tools/call":
            with contextlib.suppress(ConnectionError):
                self._flood(message["params"]["name"], message["params"]["arguments"]["mb"])
            self.close_connection = True
            return
        answer = {"jsonrpc": "2.0", "id": message.get("id")}
        known = results.get(message["method"])
        answer |= {"error": {"code": -32601, "message": "no"}} if known is None else {"result": known}
        body = json.dumps(answer).encode()
        self.send_response(200 if "id" in message else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _flood(self, way: str, megabytes: int) -> None:
        self.send_response(200)
        if way == "headers":
            self.flush_headers()
            for _ in range(megabytes):
                self.wfile.write(b"X-A: " + b"x" * 1_000_000 + b"\r\n")
            return
        self.send_header("Content-Type", "text/event-stream" if way == "event" else "application/json")
        if way == "length":
            self.send_header("Content-Length", str(megabytes * 1_000_000))
        self.end_headers()
        self.wfile.write(b"data: " if way == "event" else b'{"t":"')
        for _ in range(megabytes):
            self.wfile.write(b"x" * 1_000_000)


INFO = {"name": "endless", "version": "1"}
WAYS = ("length", "close", "event", "headers")


def kilobytes(pid: int, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("megabytes", some([100], [1500]))
def test_a_refused_result_costs_little_memory_and_none_afterwards(daemon: StartDaemon, megabytes: int) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as process:
        threading.Thread(target=process.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{process.server_address[1]}/mcp"
        started = daemon({"servers": {"far": {"url": url, "max_message_mb": 16}}})
        started.wait_until_ready("far")
        mcp = Endpoint(started)
        pid = started.status()["pid"]
        mcp.modern("tools/list")
        wait_for(lambda: next(row["tokens"] for row in started.command("session:list")["sessions"]), "the tokenizer")
        before = kilobytes(pid, "VmRSS")
        for way in (*WAYS, "close", "close"):
            answer = mcp.call(f"far_{way}", {"mb": megabytes}).result
            assert answer["isError"], way
            assert ("64 KB of headers" if way == "headers" else "max_message_mb") in answer["content"][0]["text"]
        assert kilobytes(pid, "VmHWM") - before < 60_000
        assert kilobytes(pid, "VmRSS") - before < 30_000
        process.shutdown()
