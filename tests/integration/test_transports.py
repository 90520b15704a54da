"""One test over every transport and era: a server behaves the same over each of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from msgspec import Raw

from parts import leftovers
from parts.certificates import self_signed
from parts.live_servers import LIMIT, ODD_STDIO, SOURCE, LiveServers, call, live, odd_config, web_config
from parts.server_process import RunningServer, StartServer, stdio_command
from parts.servers.odd_web import EXACT, TOOL, OddWeb, running
from parts.waiting import until
from toolcrib.config.model import Retry, ServerConfig, TokenFile, Transport
from toolcrib.errors import CallTimeout, ProtocolViolation, ServerFailure, ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers.address import Address
from toolcrib.servers.model import MODERN_VERSION, Era, ServerAnswer, ServerState, ServerStatus, ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.server import Server
from toolcrib.servers.web import _shared_clients as shared_clients
from toolcrib.servers.web import shared_post_client

__all__ = ["live"]

pytestmark = pytest.mark.req("BNS-1", "BNS-2", "BNS-4", "BNS-5", "ENG-1")

ECHO = ToolCall(name="echo")
SLOW_RETRY = Retry(backoff=60)


def result(answer: ServerAnswer) -> Any:
    assert answer.result is not None, answer.error
    return json.loads(answer.result)


def words(answer: ServerAnswer) -> str:
    text: str = result(answer)["content"][0]["text"]
    return text


def era_of(status: ServerStatus) -> Era:
    return Era.MODERN if status.protocol_version == MODERN_VERSION else Era.LEGACY


def names(server: Server) -> list[str]:
    return [json.loads(tool)["name"] for tool in server.tools or ()]


# Every transport, with servers of the current SDK (and a handwritten one for WebSocket).


@dataclass
class Upstream:
    """A test server that records its calls."""

    era: Era
    config: ServerConfig
    seen: Path
    process: RunningServer | None
    again: Callable[[], RunningServer] | None

    def noted(self, method: str) -> list[dict[str, Any]]:
        lines = self.seen.read_text().splitlines() if self.seen.exists() else []
        return [note for note in map(json.loads, lines) if note["method"] == method]

    async def until_noted(self, method: str, count: int) -> None:
        await until(lambda: len(self.noted(method)) == count, f"the server to note {method} {count} times")

    def kill(self, server: Server) -> None:
        if self.process is not None:
            self.process.process.kill()
            self.process.process.wait(60)
        else:
            assert server.status.pid is not None
            os.kill(server.status.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


WAYS = ["stdio modern", "stdio legacy", "http modern", "http legacy", "sse legacy", "websocket legacy"]


@pytest.fixture(params=WAYS)
def upstream(request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer) -> Upstream:
    way, era = request.param.split()
    seen = tmp_path / "seen"
    given: dict[str, Any] = {"name": "own", "transport": Transport(way), "source": SOURCE, "connect_timeout": LIMIT}
    given["retry"] = Retry(backoff=0.05)
    sdk_v2 = stdio_command("sdk_v2", f"--{era}-only", "--seen", str(seen))
    if way == "stdio":
        return Upstream(Era(era), ServerConfig(command=sdk_v2[0], args=tuple(sdk_v2[1:]), **given), seen, None, None)
    websocket = stdio_command("ws_server", "--seen", str(seen))
    start = [*(websocket if way == "websocket" else [*sdk_v2, "--transport", way]), "--port", str(free_port())]
    process = start_server(start)
    config = ServerConfig(url=process.url({"websocket": "ws"}.get(way, way)), **given)
    return Upstream(Era(era), config, seen, process, lambda: start_server(start))


BOOM = {"code": -31999, "message": "boom, as asked", "data": {"why": "asked", "none": None}}


@pytest.mark.slow
@pytest.mark.req("ENG-9", "BNS-9")
async def test_tools_are_listed_and_called_over_every_transport(upstream: Upstream, live: LiveServers) -> None:
    server = await live.started(upstream.config)
    status = server.status
    assert (status.state, era_of(status), status.last_error) == (ServerState.READY, upstream.era, "")
    assert names(server)[:3] == ["echo", "add", "fail"]
    # The caller's own keys of _meta arrive; those of the connection fit the era.
    meta = {"io.modelcontextprotocol/protocolVersion": "1999", "progressToken": "theirs", "x/mine": {"n": None}}
    await server.call(ToolCall(name="echo", meta=meta))
    (note,) = upstream.noted("tools/call")
    arrived = dict(note["meta"])
    assert arrived.pop("x/mine") == {"n": None}
    if upstream.era is Era.MODERN:
        assert arrived.pop("io.modelcontextprotocol/protocolVersion") == "2026-07-28"
        assert arrived.pop("io.modelcontextprotocol/clientCapabilities") == {"roots": {}}
        assert arrived.pop("io.modelcontextprotocol/clientInfo")["name"] == "toolcrib"
    assert arrived == {}

    assert words(await server.call(call("echo", a=[None, 1.5]))) == '{"a": [null, 1.5]}'
    assert result(await server.call(call("fail")))["isError"] is True
    assert json.loads((await server.call(call("boom", code=-31999))).error or b"") == BOOM
    rich = result(await server.call(call("rich")))
    assert rich["x-unknown"] == {"kept": None}
    assert rich["structuredContent"]["big"] == 9007199254740993
    assert [part["type"] for part in rich["content"]][:4] == ["text", "image", "audio", "resource_link"]
    assert server.status.last_seen is not None

    progress: list[dict[str, Any]] = []
    await server.call(call("progress", n=3), on_progress=progress.append)
    await until(lambda: len(progress) == 3, "three progress notifications")
    assert [(notice["progress"], notice["total"]) for notice in progress] == [(1, 3), (2, 3), (3, 3)]
    assert all("progressToken" not in notice for notice in progress)

    before = len(server.tools or ())
    await server.call(call("grow", name="newcomer"))
    await until(lambda: "newcomer" in names(server), "the new tool")
    assert live.news == [(ServerState.READY, before), (ServerState.READY, before + 1)]

    with pytest.raises(CallTimeout, match=r"0\.2 s"):
        await server.call(call("slow", seconds=600), timeout=0.2)
    await upstream.until_noted("cancelled", 1)
    calls = len(upstream.noted("tools/call"))
    waiting = asyncio.create_task(server.call(call("slow", seconds=601)))
    await upstream.until_noted("tools/call", calls + 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await upstream.until_noted("cancelled", 2)
    assert words(await server.call(call("add", a=1, b=2))) == "3"


@pytest.mark.slow
async def test_a_server_that_dies_fails_its_calls_and_reconnects(upstream: Upstream, live: LiveServers) -> None:
    server = await live.started(upstream.config)
    listed = server.tools
    in_flight = asyncio.create_task(server.call(call("slow", seconds=600)))
    await upstream.until_noted("tools/call", 1)
    upstream.kill(server)
    with pytest.raises(ServerUnavailable, match="may have run"):
        await in_flight
    if upstream.again is not None:
        with pytest.raises(ServerUnavailable, match="did not run"):
            await server.call(call("echo"))
        await until(lambda: server.status.state is not ServerState.READY, "the loss to be noticed")
        assert server.tools == listed
        upstream.process = upstream.again()
    await until(lambda: server.status.state is ServerState.READY, "the server to reconnect")
    assert words(await server.call(call("add", a=1, b=2))) == "3"
    assert len(upstream.noted("tools/call")) == 2  # the call that may have run was not repeated

    pid = server.status.pid
    in_flight = asyncio.create_task(server.call(call("slow", seconds=600)))
    await upstream.until_noted("tools/call", 3)
    await server.restart()
    with pytest.raises(ServerUnavailable, match=r"restarted.*may have run"):
        await in_flight
    assert server.status.state is ServerState.READY
    assert pid is None or server.status.pid != pid
    assert words(await server.call(call("add", a=1, b=2))) == "3"
    await server.stop()
    assert server.status.state is ServerState.STOPPED
    with pytest.raises(ServerUnavailable, match="stopped"):
        await server.call(call("echo"))


# Bytes in = bytes out.


@pytest.mark.req("ENG-9")
async def test_definitions_results_and_arguments_pass_unchanged_over_stdio(live: LiveServers) -> None:
    server = await live.odd()
    assert (await server.call(ECHO)).result == EXACT
    assert (server.tools or ())[0] == (
        b'{"name":"echo", "inputSchema":{"type":"object","x-unknown":[1.0,null]} , "_meta":{"a":null},"title":null}'
    )
    # Line breaks between the tokens would end the message.
    pretty = Raw(b'{\r\n  "a": "\\n",\n  "b": null,\r "n": 10000000000000000000001 }')
    sent = ToolCall(name="params", params={"arguments": pretty, "task": Raw(b'{"ttl":1}')})
    params = json.loads(words(await server.call(sent)))
    assert params["arguments"] == {"a": "\n", "b": None, "n": 10000000000000000000001}
    assert params["task"] == {"ttl": 1}
    assert (await server.call(call("batch"))).result == b'{"in":"a batch"}'
    assert len(words(await server.call(call("big", size=50_000_000)))) == 50_000_000


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.req("ENG-9")
async def test_results_pass_unchanged_over_http(era: str, live: LiveServers) -> None:
    for tool in ("echo", "events", "resumed", "moved"):
        async with live.web(era) as (_, server):
            assert server.tools == (TOOL,)
            progress: list[dict[str, Any]] = []
            answer = await server.call(ToolCall(name=tool), on_progress=progress.append)
            assert answer.result == EXACT, tool
            assert progress == ([{"progress": 1}] if tool == "events" else [])


@pytest.mark.req("ENG-9")
async def test_a_result_of_50_mb_passes_over_http(live: LiveServers) -> None:
    async with live.web("modern") as (_, server):
        for tool in ("big", "bigstream"):
            answer = await server.call(call(tool, size=50_000_000))
            assert answer.result is not None
            assert len(answer.result) > 50_000_000


async def test_a_result_of_5_mb_passes_over_websocket_and_sse(start_server: StartServer, live: LiveServers) -> None:
    ws = start_server(stdio_command("ws_server"))
    sse = start_server(stdio_command("sdk_v2", "--transport", "sse"))
    for url, transport in ((ws.url("ws"), Transport.WEBSOCKET), (sse.url("sse"), Transport.SSE)):
        server = await live.started(web_config(url, transport))
        assert len(words(await server.call(call("big", n=5_000_000)))) == 5_000_000


# Servers that misbehave.

BROKEN = {"truncated": "truncated", "latin": "UTF-8", "deep": "deeply", "neither": "neither"}


@pytest.mark.req("BNS-10")
async def test_an_invalid_answer_fails_its_own_call_only_and_other_output_is_skipped(live: LiveServers) -> None:
    server = await live.odd("chatty")
    assert server.status.state is ServerState.READY
    assert words(await server.call(call("garbage"))) == "still here"
    waiting = asyncio.create_task(server.call(call("hang")))
    for tool, reason in BROKEN.items():
        with pytest.raises(ProtocolViolation, match=reason):
            await server.call(call(tool), timeout=LIMIT)
        assert (await server.call(ECHO)).result == EXACT
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("odd", ["strict", "deaf"])
async def test_a_legacy_server_that_fails_at_the_modern_probe_is_connected(odd: str, live: LiveServers) -> None:
    server = await live.odd(odd, connect_timeout=10.0)
    assert (server.status.state, era_of(server.status)) == (ServerState.READY, Era.LEGACY)


@pytest.mark.req("BNS-10")
async def test_malformed_tools_do_not_hide_the_others(live: LiveServers, caplog: pytest.LogCaptureFixture) -> None:
    server = await live.odd("malformed")
    assert server.tools == (b'{"name":"good","inputSchema":{}}', b'{"name":"last"}')
    assert len([record for record in caplog.records if "skipped" in record.message]) == 5


async def test_all_pages_are_read_and_a_circle_ends(live: LiveServers) -> None:
    assert names(await live.odd("pages")) == ["t0", "t1", "t2", "t3"]
    assert names(await live.odd("circle")) == ["t0", "t1"]


async def test_refresh_lists_again_and_many_changes_cost_few_lists(live: LiveServers) -> None:
    server = await live.odd()
    before = int(words(await server.call(call("lists"))))
    await server.refresh()
    assert int(words(await server.call(call("lists")))) == before + 1
    assert len(live.news) == 1, "the list did not change"
    await server.call(call("storm", times=20_000))
    await until(lambda: "extra1" in names(server), "the new tool")
    assert int(words(await server.call(call("lists")))) <= before + 4
    assert len(live.news) == 2


REQUESTS: dict[str, dict[str, Any]] = {
    "ping": {"result": {}},
    "never/heard": {"error": {"code": -32601, "message": "Method not found", "data": "never/heard"}},
}


async def test_a_servers_own_requests_are_answered_or_refused(live: LiveServers) -> None:
    server = await live.odd()
    for method, expected in REQUESTS.items():
        answer = json.loads(words(await server.call(call("ask", method=method, params={}))))
        assert answer == {"jsonrpc": "2.0", "id": "q1", **expected}
    answer = json.loads(words(await server.call(call("ask", method="roots/list", params={}))))
    assert answer["result"] == {"roots": [{"uri": live.root.as_uri(), "name": live.root.name}]}
    async with live.web("legacy") as (odd, server):
        # Within the stream of a call.
        assert (await server.call(call("asks", method="ping"), timeout=LIMIT)).result == EXACT
        assert odd.requests[-1].message == {"jsonrpc": "2.0", "id": "q9", "result": {}}
        assert odd.requests[-1].headers["Mcp-Session-Id"] == "session-1"


# Errors give a remedy and no secrets.


@pytest.mark.req("BNS-10")
async def test_a_server_that_cannot_start_shows_the_reason_without_its_secrets(
    live: LiveServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.servers.breaker._KICK", 60)
    server = await live.odd("exits", env={"SECRET": "hunter2-hunter2"}, retry=SLOW_RETRY)
    status = server.status
    assert status.state is ServerState.UNAVAILABLE
    assert "code 7" in status.last_error
    assert "cannot use the key ****" in status.last_error
    assert server.stderr_tail(1) == ["cannot use the key ****"]
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="code 7") as error:
            await server.call(call("echo"))
        assert "hunter2" not in error.value.text()
    assert server.status.attempts == status.attempts + 1, "calls cause at most one attempt per interval"


async def test_a_missing_program_or_folder_is_named(live: LiveServers) -> None:
    server = await live.odd(command="no-such-program-here")
    assert "'no-such-program-here' is not installed or not on PATH" in server.status.last_error
    server = await live.odd(cwd="/no/such/folder")
    assert "/no/such/folder" in server.status.last_error


@pytest.mark.parametrize("transport", [Transport.HTTP, Transport.SSE, Transport.WEBSOCKET])
async def test_a_refused_connection_is_explained_without_secrets(transport: Transport, live: LiveServers) -> None:
    scheme = "ws" if transport is Transport.WEBSOCKET else "http"
    url = f"{scheme}://user:pass@127.0.0.1:{free_port()}/mcp?key=topsecret"
    error = (await live.started(web_config(url, transport))).status.last_error
    assert "connection refused" in error
    assert "topsecret" not in error
    assert "pass@" not in error
    for status, text in ((401, "needs credentials"), (403, "credentials"), (405, "sse")):
        odd = OddWeb("legacy")
        odd.status = status
        key = {"Authorization": "Bearer hunter2-hunter2"}
        async with live.web(odd, transport, "/mcp", headers=key) as (_, server):
            assert server.status.state is ServerState.UNAVAILABLE
            assert text in server.status.last_error
            assert "hunter2" not in server.status.last_error


async def test_http_falls_back_to_the_older_sse_if_the_server_offers_only_that(live: LiveServers) -> None:
    async with live.web("legacy", Transport.HTTP, "/sse") as (odd, server):
        assert server.status.state is ServerState.READY, server.status.last_error
        assert server.status.transport == "sse"
        assert (await server.call(call("echo"))).result
        assert [seen.message["method"] for seen in odd.requests][-2:] == ["tools/list", "tools/call"]


async def test_a_stream_that_names_no_endpoint_is_not_taken_for_the_older_sse(live: LiveServers) -> None:
    odd = OddWeb("legacy")
    odd.status, odd.status_for_get = 405, 200
    async with live.web(odd, Transport.HTTP, connect_timeout=2.0, retry=Retry(max_attempts=1)) as (_, server):
        assert server.status.state is ServerState.FAILED
        assert "HTTP 405" in server.status.last_error
    assert odd.gets >= 1


def token_settings(file: Path, token: str) -> dict[str, Any]:
    file.touch(0o600)
    file.write_text(token)
    token_file = TokenFile(path=file, header="Authorization", before="Bearer ")
    return {"token_file": token_file, "retry": Retry(backoff=0.01)}


@pytest.mark.parametrize("way", ["http modern", "http legacy", "sse legacy"])
async def test_a_replaced_token_is_used_at_once_and_the_call_runs_once(
    way: str, live: LiveServers, tmp_path: Path
) -> None:
    transport, era = way.split()
    odd = OddWeb(era)
    odd.token = "first-token"
    settings = token_settings(tmp_path / "token", "first-token\n")
    async with live.web(odd, Transport(transport), **settings) as (_, server):
        result(await server.call(call("echo")))
        odd.token = "second-token"
        with pytest.raises(ServerUnavailable, match="needs credentials"):
            await server.call(call("echo"))
        (tmp_path / "token").write_text("second-token\n")
        assert result(await server.call(call("echo")))["structuredContent"] == {"n": 1.0, "z": None}
        sent = [seen.headers["Authorization"] for seen in odd.calls()]
        assert sent == ["Bearer first-token"] * 3 + ["Bearer second-token"]
        assert server.mask.line("first-token second-token") == "**** ****"


async def test_a_token_file_that_others_can_read_is_not_used(live: LiveServers, tmp_path: Path) -> None:
    settings = token_settings(tmp_path / "token", "some-token")
    (tmp_path / "token").chmod(0o640)
    async with live.web("modern", **settings) as (odd, server):
        assert "chmod 600" in server.status.last_error
        assert str(tmp_path / "token") in server.status.last_error
        assert odd.requests == []
        (tmp_path / "token").chmod(0o600)
        await until(lambda: server.status.state is ServerState.READY, "the next attempt")


async def test_a_silent_server_fails_within_its_limit_and_delays_no_other(live: LiveServers) -> None:
    mute = live.make(odd_config("mute", connect_timeout=30.0))
    mute.start()
    server = await live.odd("mute", connect_timeout=0.5, retry=Retry(max_attempts=1))
    assert server.status.state is ServerState.FAILED
    assert "not ready within 0.5 s" in server.status.last_error
    with pytest.raises(ServerUnavailable, match="stopped trying"):
        await server.call(call("echo"))
    server = await live.odd()
    assert server.status.state is ServerState.READY
    assert mute.status.state is ServerState.CONNECTING
    with pytest.raises(CallTimeout):
        await server.call(call("hang"), timeout=0.05)


async def test_attempts_are_counted_and_limited_and_the_last_known_tools_stay(live: LiveServers) -> None:
    known = (b'{"name":"known"}',)
    server = live.make(odd_config("exits", retry=Retry(max_attempts=3, backoff=0.01)), known_tools=known)
    server.start()
    await until(lambda: server.status.state is ServerState.FAILED, "the third attempt")
    assert (server.status.attempts, server.status.tools, server.tools) == (3, 1, known)


BAD_ANSWERS: dict[str, tuple[type[ServerFailure], str]] = {
    "html": (ProtocolViolation, "text/html"),
    "broken": (ProtocolViolation, "invalid MCP"),
    "accepted": (ProtocolViolation, "HTTP 202"),
    "other": (ProtocolViolation, "does not match a request"),
    "elsewhere": (ServerUnavailable, "redirects"),
    "unauthorized": (ServerUnavailable, "needs credentials"),
    "ends": (ServerUnavailable, "may have run"),
}


@pytest.mark.parametrize("tool", BAD_ANSWERS)
@pytest.mark.req("BNS-10")
async def test_an_invalid_answer_over_http_affects_no_other_call(tool: str, live: LiveServers) -> None:
    error, text = BAD_ANSWERS[tool]
    async with live.web("modern") as (odd, server):
        waiting = asyncio.create_task(server.call(call("hang")))
        await until(odd.calls, "the first call")
        with pytest.raises(error, match=text):
            await server.call(call(tool))
        assert (await server.call(ECHO)).result == EXACT
        assert server.status.state is ServerState.READY
        assert not waiting.done()
        await server.stop()
        with pytest.raises(ServerUnavailable, match="stopped"):
            await waiting


@pytest.mark.parametrize("status", [404, 400])
async def test_a_lost_session_is_renewed_and_the_refused_call_repeated(status: int, live: LiveServers) -> None:
    async with live.web("legacy", retry=SLOW_RETRY) as (odd, server):
        odd.status_for_lost_session = status
        odd.session = 7
        assert (await server.call(ECHO)).result == EXACT
        assert odd.session == 8
        assert [seen.headers["Mcp-Session-Id"] for seen in odd.calls()] == ["session-1", "session-8"]
        assert odd.ended == 0
        await server.stop()
        assert odd.ended == 1


async def test_a_session_lost_over_sse_is_renewed_too(live: LiveServers) -> None:
    async with live.web("legacy", Transport.SSE, retry=SLOW_RETRY) as (odd, server):
        odd.session = 7
        assert result(await server.call(ECHO)) == json.loads(EXACT)
        assert (odd.session, len(odd.calls())) == (8, 2)


class SessionTalk(OddWeb):
    """Fails a call with an error that mentions a session, and never finishes its answer to a cancellation."""

    async def call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["params"]["name"] == "shop":
            return self.error(message, -32000, "Your session at the shop is over", 400)
        return await super().call(request, message)

    async def post(self, request: web.Request) -> web.StreamResponse:
        if b"notifications/cancelled" in await request.read():
            await (response := web.StreamResponse()).prepare(request)
            await asyncio.sleep(600)
            return response
        return await super().post(request)


async def test_a_tools_error_about_a_session_is_the_answer_and_timed_out_calls_leave_no_connection(
    live: LiveServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.servers.http._CANCEL", 0.1)
    async with live.web(SessionTalk("legacy")) as (odd, server):
        answer = await server.call(ToolCall(name="shop"))
        assert json.loads(answer.error or b"")["message"] == "Your session at the shop is over"
        assert (len(odd.calls()), odd.session) == (1, 1)
        (lease,) = shared_clients[asyncio.get_running_loop()].values()
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await server.call(call("hang"), timeout=0.05)
        await until(lambda: not lease.client._all, "the connections to be closed")


async def test_a_server_that_refuses_the_standing_stream_stays_connected(live: LiveServers) -> None:
    odd = OddWeb("legacy")
    odd.status_for_get = 404
    async with live.web(odd) as (_, server):
        await until(lambda: odd.gets == 2, "the stream to be given up")
        assert (await server.call(ECHO)).result == EXACT
        assert (odd.session, server.status.state) == (1, ServerState.READY)


@pytest.mark.req("BNS-10")
async def test_an_sse_server_cannot_redirect_our_messages_to_another_origin(live: LiveServers) -> None:
    odd = OddWeb("legacy")
    odd.port = free_port()
    odd.endpoint = f"http://localhost:{odd.port}/messages"
    async with live.web(odd, Transport.SSE) as (_, server):
        assert "another origin" in server.status.last_error
        assert odd.requests == []


@pytest.mark.parametrize("transport", [Transport.SSE, Transport.WEBSOCKET])
@pytest.mark.req("BNS-10")
async def test_headers_do_not_follow_a_redirect_to_another_origin(transport: Transport, live: LiveServers) -> None:
    odd = OddWeb("legacy")
    odd.status = 307
    async with live.web(odd, transport, "/mcp", headers={"X-Key": "secret-key"}) as (_, server):
        assert server.status.state is ServerState.UNAVAILABLE
        assert "redirects" in server.status.last_error
        assert set(odd.redirected) == {f"127.0.0.1:{odd.port}"}


@pytest.mark.req("BNS-10")
async def test_certificates_are_verified_by_default_and_trusted_ones_are_read_for_each_connection(
    live: LiveServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = self_signed(tmp_path / "new.pem")
    self_signed(tmp_path / "trusted.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
    async with live.web("modern", tls=tls, retry=Retry(backoff=0.01)) as (odd, server):
        assert "certificate" in server.status.last_error
        assert odd.requests == []
        (tmp_path / "trusted.pem").write_bytes((tmp_path / "new.pem").read_bytes())
        await until(lambda: server.status.state is ServerState.READY, "the next attempt")
    monkeypatch.delenv("SSL_CERT_FILE")
    async with live.web("modern", tls=tls) as (odd, server):
        assert "certificate" in server.status.last_error
        assert odd.requests == []
    async with live.web("modern", tls=tls, verify_tls=False) as (_, server):
        assert (await server.call(ECHO)).result == EXACT


async def test_calls_pass_through_a_proxys_tunnel_over_one_connection(tmp_path: Path) -> None:
    async with running(OddWeb("modern"), self_signed(tmp_path / "both.pem")) as odd, asyncio.TaskGroup() as group:
        tunnels = 0

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(ConnectionError):
                while chunk := await reader.read(65536):
                    writer.write(chunk)

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tunnels
            tunnels += 1
            await reader.readuntil(b"\r\n\r\n")
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", odd.port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            group.create_task(pump(reader, server_writer))
            await pump(server_reader, writer)

        async with (
            await asyncio.start_server(proxy, "127.0.0.1", 0) as server,
            shared_post_client(verify=False) as lax,
            shared_post_client(verify=True) as strict,
        ):
            by = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            address = Address.of(odd.url.replace("http", "https", 1), by)
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
            for _ in range(2):
                with await lax.client.request(b"POST", address, b"", body) as response:
                    assert TOOL in await response.read()
            assert tunnels == 1
            with pytest.raises(ssl.SSLCertVerificationError):
                async with asyncio.timeout(60):
                    await strict.client.request(b"POST", address, b"", body)


ROUTING = {"Mcp-Method": "tools/call", "Mcp-Name": "echo", "Mcp-Param-Region": "eu"}
ERA_HEADERS: dict[str, dict[str, str | None]] = {
    "modern": {**ROUTING, "MCP-Protocol-Version": "2026-07-28", "Mcp-Session-Id": None},
    "legacy": {**dict.fromkeys(ROUTING), "MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": "session-1"},
}


@pytest.mark.parametrize("era", ERA_HEADERS)
async def test_http_requests_carry_the_headers_of_their_era(era: str, live: LiveServers) -> None:
    async with live.web(era, headers={"X-Key": "k"}) as (odd, server):
        await server.call(ToolCall(name="echo", headers={"Mcp-Param-Region": "eu"}))
        headers = odd.calls()[0].headers
        assert headers["X-Key"] == "k"
        assert {name: headers.get(name) for name in ERA_HEADERS[era]} == ERA_HEADERS[era]
        with contextlib.suppress(ServerFailure):
            await server.call(ToolCall(name="ütf"))
        if era == "modern":
            assert odd.calls()[1].headers["Mcp-Name"] == "=?base64?w7x0Zg==?="


async def test_abandoning_a_modern_http_call_closes_its_stream(live: LiveServers) -> None:
    async with live.web("modern") as (odd, server):
        with pytest.raises(CallTimeout):
            await server.call(call("hang"), timeout=0.1)
        await until(lambda: odd.dropped == ["hang"], "the stream to be closed")
        assert [seen.message["method"] for seen in odd.requests][-1] == "tools/call"
        # `websocket` with an HTTP address means Streamable HTTP.
        other = await live.started(web_config(odd.url, Transport.WEBSOCKET))
        assert (await other.call(ECHO)).result == EXACT
        await other.stop()


# Processes: their environment, and that none stays behind.


@pytest.mark.req("BNS-10")
async def test_a_child_gets_allowed_variables_its_own_ones_and_the_projects_folder(
    live: LiveServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_SERVERS_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy:1")
    server = await live.odd(env={"MINE": "yes"})
    seen = json.loads(words(await server.call(call("surroundings"))))
    expected = {"MINE": "yes", "LC_TIME": "C", "PATH": os.environ["PATH"]}
    assert {name: seen["env"][name] for name in expected} == expected
    assert seen["env"]["TOOLCRIB_CHILD"].startswith(live.reaper.instance)
    assert not {"OTHER_SERVERS_KEY", "HTTPS_PROXY"} & set(seen["env"])
    assert Path(seen["cwd"]) == live.root


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if leftovers.read(pid) is not None]


async def test_a_crash_keeps_stderr_in_the_log(live: LiveServers, tmp_path: Path) -> None:
    file = tmp_path / "logs" / "odd.log"
    server = await live.started(odd_config(retry=SLOW_RETRY), log_file=file)
    with pytest.raises(ServerUnavailable, match="dying of thirst"):
        await server.call(call("die"))
    assert server.stderr_tail(5) == ["I am dying of thirst"]
    assert file.read_text() == "I am dying of thirst\n"


async def test_a_crash_ends_the_servers_children(live: LiveServers) -> None:
    server = await live.odd(retry=SLOW_RETRY)
    pids = json.loads(words(await server.call(call("escape"))))
    with pytest.raises(ServerUnavailable):
        await server.call(call("die"))
    await until(lambda: not alive(*pids), "its children to be ended")


async def test_stopping_ends_stubborn_processes_and_those_that_left_the_group(live: LiveServers) -> None:
    server = await live.odd("stubborn")
    pids = [server.status.pid or 0, *json.loads(words(await server.call(call("escape"))))]
    assert alive(*pids) == pids
    await server.stop()
    assert not alive(*pids)
    assert [event.state for event in live.events] == ["connecting", "ready", "stopped"]


KILLED = """
import asyncio, json, sys
from pathlib import Path
from toolcrib.config.model import Layer, ServerConfig, ConfigSource, Transport
from toolcrib.events import Bus
from toolcrib.servers.model import ToolCall
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server

async def main():
    config = ServerConfig(name="odd", transport=Transport.STDIO, source=ConfigSource(layer=Layer.FLAGS),
                          command=sys.executable, args=("-I", "-S", sys.argv[1]), env={"ODD": "stubborn"})
    reaper = Reaper()
    reaper.unlink(Path(sys.argv[2]))
    server = Server(config, root=Path.cwd(), on_tools=lambda server: None, bus=Bus(), reaper=reaper)
    server.start()
    await server.settled()
    answer = await server.call(ToolCall(name="escape"))
    print(server.status.pid, *json.loads(json.loads(answer.result)["content"][0]["text"]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_after_kill_9_of_the_parent_its_processes_and_files_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "daemon.sock"
    file.write_text("")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, ODD_STDIO, str(file), stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await asyncio.wait_for(parent.stdout.readline(), LIMIT)).split()]
    assert len(pids) == 3
    assert alive(*pids) == pids
    assert file.exists()
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(*pids), "the processes to be ended")
    await until(lambda: not file.exists(), "the file to be removed")


DEAF = """
import json, os, sys, time
print(sorted(os.listdir("/proc/self/fd")), file=sys.stderr, flush=True)
while True:
    message = json.loads(sys.stdin.readline())
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "deaf", "version": "1"}}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": []}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    if "id" in message:
        print(json.dumps(answer), flush=True)
    if "result" in answer and "tools" in answer["result"]:
        os.close(0)
        time.sleep(600)
"""


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_child_inherits_no_open_file_and_closing_its_input_is_noticed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def connect() -> None:
        live = LiveServers(root=tmp_path)
        ours = os.dup(0)
        os.set_inheritable(ours, True)
        try:
            server = await live.odd(args=("-I", "-S", "-c", DEAF), retry=SLOW_RETRY)
            await until(lambda: server.status.state is ServerState.UNAVAILABLE, "the loss to be noticed")
            assert server.status.last_error == "Its process has closed its input."
            # File 3 is the listing itself.
            assert server.stderr_tail(1) == ["['0', '1', '2', '3']"]
        finally:
            os.close(ours)
            await live.end()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(connect())


async def test_a_killed_reaper_is_replaced_by_one_that_knows_all_groups(live: LiveServers) -> None:
    await live.odd("stubborn")
    (helper,) = [p for p in leftovers.living() if f"TOOLCRIB_CHILD={live.reaper.instance}." in p.words]
    os.kill(helper.pid, signal.SIGKILL)
    await until(lambda: not alive(helper.pid), "the reaper to end")
    other = await live.odd()
    assert other.status.state is ServerState.READY
    pids = [server.status.pid or 0 for server in live.made]
    live.reaper.close()
    await until(lambda: not alive(*pids), "the second reaper to end both")


# The pool.


@pytest.mark.req("BNS-9")
async def test_one_instance_serves_a_project_and_ends_with_its_last_user(tmp_path: Path) -> None:
    pool = ServerPool(
        bus=Bus(), on_tools=lambda server: None, log_file=lambda name, root: tmp_path / "logs" / f"{name}.log"
    )
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    try:
        first = pool.acquire(odd_config(), one)
        assert pool.acquire(odd_config(), one) is first
        other = pool.acquire(odd_config(), two)
        changed = pool.acquire(odd_config(env={"A": "b"}), one)
        assert len({first, other, changed}) == 3
        fixed = odd_config(cwd=str(tmp_path))
        assert pool.acquire(fixed, one) is pool.acquire(fixed, two)
        await asyncio.gather(first.settled(), other.settled())
        await pool.release(first)
        assert first.status.state is ServerState.READY
        await pool.release(first)
        assert first.status.state is ServerState.STOPPED
        assert json.loads(words(await other.call(call("surroundings"))))["cwd"] == str(two)
    finally:
        await pool.close()
    assert {server.status.state for server in (other, changed)} == {ServerState.STOPPED}


def children() -> list[int]:
    ours = (process for process in leftovers.living() if process.parent == os.getpid())
    return [process.pid for process in ours if ODD_STDIO in process.words]


@pytest.mark.req("BNS-9")
async def test_two_restarts_leave_one_process_and_a_server_released_during_a_restart_stays_stopped(
    tmp_path: Path,
) -> None:
    pool = ServerPool(bus=Bus(), on_tools=lambda server: None)
    try:
        server = pool.acquire(odd_config(), tmp_path)
        await server.settled()
        await asyncio.gather(server.restart(), server.restart())
        assert server.status.state is ServerState.READY
        assert children() == [server.status.pid]
        await asyncio.gather(server.restart(), pool.release(server))
        assert server.status.state is ServerState.STOPPED
        await server.restart()
        assert server.status.state is ServerState.STOPPED
        assert children() == []
    finally:
        await pool.close()


async def test_a_server_that_is_about_to_retry_can_be_stopped(live: LiveServers) -> None:
    server = await live.started(dataclasses.replace(odd_config(retry=SLOW_RETRY), command="/nowhere/to/be/found"))
    server._wake.set()
    async with asyncio.timeout(60):
        await server.stop()
    assert server.status.state is ServerState.STOPPED
