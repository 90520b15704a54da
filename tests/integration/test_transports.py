"""One test over every transport and era: what a server does, it does over each of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Raw

from parts import fleet, leftovers
from parts.server_process import RunningServer, StartServer
from parts.servers.odd_web import EXACT, TOOL, OddWeb, running
from toolcrib.config.model import ConfigSource, Layer, Retry, ServerConfig, TokenFile, Transport
from toolcrib.errors import CallTimeout, ProtocolViolation, ServerFailure, ServerUnavailable
from toolcrib.events import Bus, Event, ServerStateChanged
from toolcrib.servers.address import Address
from toolcrib.servers.model import MODERN_VERSION, Era, ServerAnswer, ServerState, ServerStatus, ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server
from toolcrib.servers.web import _shared_clients as shared_clients
from toolcrib.servers.web import shared_post_client

OWN = Path(__file__).parent.parent / "parts" / "servers"
ODD_STDIO = str(OWN / "odd_stdio.py")
SOURCE = ConfigSource(layer=Layer.FLAGS)
LIMIT = 60.0

pytestmark = pytest.mark.req("BNS-1", "BNS-2", "BNS-4", "BNS-5", "ENG-1")


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, params={"arguments": Raw(json.dumps(arguments).encode())})


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


async def until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> None:
    try:
        async with asyncio.timeout(limit):
            while not condition():  # noqa: ASYNC110 - the condition lies in other processes
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited {limit:g} s for {what}")


@dataclass
class Bench:
    """Makes servers and ends them with the test."""

    root: Path
    bus: Bus = field(default_factory=Bus)
    reaper: Reaper = field(default_factory=Reaper)
    news: list[tuple[ServerState, int]] = field(default_factory=list)
    """State and number of tools at each call of on_tools."""
    events: list[Event] = field(default_factory=list)
    made: list[Server] = field(default_factory=list)

    def make(self, config: ServerConfig, **more: Any) -> Server:
        def on_tools(server: Server) -> None:
            self.news.append((server.status.state, len(server.tools or ())))

        server = Server(config, root=self.root, on_tools=on_tools, bus=self.bus, reaper=self.reaper, **more)
        self.made.append(server)
        return server

    async def started(self, config: ServerConfig, **more: Any) -> Server:
        server = self.make(config, **more)
        server.start()
        await server.settled()
        return server

    async def odd(self, odd: str = "", **settings: Any) -> Server:
        return await self.started(odd_config(odd, **settings))

    async def end(self) -> None:
        for server in self.made:
            await server.stop()
        self.reaper.close()


def odd_config(odd: str = "", env: Mapping[str, str] | None = None, **settings: Any) -> ServerConfig:
    return ServerConfig(
        name="odd",
        transport=Transport.STDIO,
        source=SOURCE,
        command=sys.executable,
        args=("-I", "-S", ODD_STDIO),
        env={"ODD": odd, **(env or {})},
        **settings,
    )


def web_config(url: str, transport: Transport = Transport.HTTP, **settings: Any) -> ServerConfig:
    return ServerConfig(name="web", transport=transport, source=SOURCE, url=url, **settings)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(root=tmp_path)
    bench.bus.subscribe(bench.events.append, ServerStateChanged)
    yield bench
    await bench.end()


# Every transport, with servers of the present SDK (and one by hand for WebSocket).


@dataclass
class Far:
    """The far side of one way to connect."""

    way: str
    era: Era
    config: ServerConfig
    seen: Path
    process: RunningServer | None
    again: Callable[[], RunningServer] | None

    def noted(self, method: str) -> list[dict[str, Any]]:
        lines = self.seen.read_text().splitlines() if self.seen.exists() else []
        return [note for note in map(json.loads, lines) if note["method"] == method]

    def kill(self, server: Server) -> None:
        if self.process is not None:
            self.process.process.kill()
            self.process.process.wait(60)
        else:
            pid = server.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


WAYS = ["stdio modern", "stdio legacy", "http modern", "http legacy", "sse legacy", "websocket legacy"]


@pytest.fixture(params=WAYS)
def far(request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer) -> Far:
    way, era = request.param.split()
    seen = tmp_path / "seen"
    retry = Retry(backoff=0.05)
    sdk_v2 = [sys.executable, str(fleet.SERVERS / "sdk_v2.py"), f"--{era}-only", "--seen", str(seen)]
    if way == "stdio":
        config = ServerConfig(
            name="own", transport=Transport.STDIO, source=SOURCE, command=sdk_v2[0], args=tuple(sdk_v2[1:]), retry=retry
        )
        return Far(request.param, Era(era), config, seen, None, None)
    port = ["--port", str(free_port())]
    start = (
        [sys.executable, str(OWN / "ws_server.py"), "--seen", str(seen), *port]
        if way == "websocket"
        else [*sdk_v2, "--transport", way, *port]
    )
    process = start_server(start)
    url = process.url({"websocket": "ws"}.get(way, way))
    config = ServerConfig(name="own", transport=Transport(way), source=SOURCE, url=url, retry=retry)
    return Far(request.param, Era(era), config, seen, process, lambda: start_server(start))


@pytest.mark.slow
@pytest.mark.req("ENG-9", "BNS-9")
async def test_tools_are_listed_and_called(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    status = server.status
    assert (status.state, era_of(status), status.last_error) == (ServerState.READY, far.era, "")
    assert names(server)[:3] == ["echo", "add", "fail"]
    assert words(await server.call(call("echo", a=[None, 1.5]))) == '{"a": [null, 1.5]}'
    assert result(await server.call(call("fail")))["isError"] is True
    refused = await server.call(call("boom", code=-31999))
    assert refused.error is not None
    assert json.loads(refused.error) == {
        "code": -31999,
        "message": "boom, as asked",
        "data": {"why": "asked", "none": None},
    }
    rich = result(await server.call(call("rich")))
    assert rich["x-unknown"] == {"kept": None}
    assert rich["structuredContent"]["big"] == 9007199254740993
    assert [part["type"] for part in rich["content"]][:4] == ["text", "image", "audio", "resource_link"]
    assert server.status.last_seen is not None


@pytest.mark.slow
async def test_the_callers_meta_arrives_and_the_connections_own_keys_fit_the_era(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    strange = {"io.modelcontextprotocol/protocolVersion": "1999", "progressToken": "theirs", "x/mine": {"n": None}}
    await server.call(ToolCall(name="echo", meta=strange))
    (note,) = far.noted("tools/call")
    meta = dict(note["meta"])
    assert meta.pop("x/mine") == {"n": None}
    if far.era is Era.MODERN:
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "toolcrib"
        assert len(meta) == 3
    else:
        assert meta == {}


@pytest.mark.slow
async def test_progress_is_told_while_the_call_runs(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    heard: list[dict[str, Any]] = []
    await server.call(call("progress", n=3), on_progress=heard.append)
    await until(lambda: len(heard) == 3, "three notices of progress")
    assert [(notice["progress"], notice["total"]) for notice in heard] == [(1, 3), (2, 3), (3, 3)]
    assert all("progressToken" not in notice for notice in heard)


@pytest.mark.slow
async def test_a_time_limit_and_a_cancelled_caller_reach_the_server(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    with pytest.raises(CallTimeout, match=r"0\.2 s"):
        await server.call(call("slow", seconds=600), timeout=0.2)
    await until(lambda: len(far.noted("cancelled")) == 1, "the server to hear of the time limit")
    waiting = asyncio.create_task(server.call(call("slow", seconds=601)))
    await until(lambda: len(far.noted("tools/call")) == 2, "the second call to arrive")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: len(far.noted("cancelled")) == 2, "the server to hear of the cancellation")
    assert words(await server.call(call("add", a=1, b=2))) == "3"


@pytest.mark.slow
async def test_a_changed_list_is_fetched_again(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    before = len(server.tools or ())
    await server.call(call("grow", name="newcomer"))
    await until(lambda: "newcomer" in names(server), "the new tool")
    assert bench.news == [(ServerState.READY, before), (ServerState.READY, before + 1)]


@pytest.mark.slow
async def test_a_server_that_dies_fails_its_calls_and_comes_back(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    listed = server.tools
    running_call = asyncio.create_task(server.call(call("slow", seconds=600)))
    await until(lambda: far.noted("tools/call"), "the call to arrive")
    far.kill(server)
    with pytest.raises(ServerUnavailable, match="may have run"):
        await running_call
    if far.again is not None:
        with pytest.raises(ServerUnavailable, match="did not run"):
            await server.call(call("echo"))
        await until(lambda: server.status.state is not ServerState.READY, "the loss to be noticed")
        assert server.tools == listed
        far.process = far.again()
    await until(lambda: server.status.state is ServerState.READY, "the server to be back")
    assert words(await server.call(call("add", a=1, b=2))) == "3"
    assert len(far.noted("tools/call")) == 2  # the call that may have run was not repeated


@pytest.mark.slow
async def test_a_restart_connects_anew(far: Far, bench: Bench) -> None:
    server = await bench.started(far.config)
    pid = server.status.pid
    waiting = asyncio.create_task(server.call(call("slow", seconds=600)))
    await until(lambda: far.noted("tools/call"), "the call to arrive")
    await server.restart()
    with pytest.raises(ServerUnavailable, match=r"restarted.*may have run"):
        await waiting
    assert server.status.state is ServerState.READY
    assert pid is None or server.status.pid != pid
    assert words(await server.call(call("add", a=1, b=2))) == "3"
    await server.stop()
    assert server.status.state is ServerState.STOPPED
    with pytest.raises(ServerUnavailable, match="stopped"):
        await server.call(call("echo"))


# Bytes in = bytes out.


@pytest.mark.req("ENG-9")
async def test_definitions_and_results_pass_unchanged_over_stdio(bench: Bench) -> None:
    server = await bench.odd()
    exact = (await server.call(ToolCall(name="echo"))).result
    assert exact == EXACT
    assert (server.tools or ())[0] == (
        b'{"name":"echo", "inputSchema":{"type":"object","x-unknown":[1.0,null]} , "_meta":{"a":null},"title":null}'
    )


@pytest.mark.req("ENG-9")
async def test_arguments_pass_unchanged_even_with_line_ends_between_their_tokens(bench: Bench) -> None:
    server = await bench.odd()
    pretty = Raw(b'{\r\n  "a": "\\n",\n  "b": null,\r "n": 10000000000000000000001 }')
    sent = ToolCall(name="params", params={"arguments": pretty, "task": Raw(b'{"ttl":1}')})
    params = json.loads(words(await server.call(sent)))
    assert params["arguments"] == {"a": "\n", "b": None, "n": 10000000000000000000001}
    assert params["task"] == {"ttl": 1}


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("tool", ["echo", "events", "resumed", "moved"])
@pytest.mark.req("ENG-9")
async def test_results_pass_unchanged_over_http(era: str, tool: str, bench: Bench) -> None:
    async with running(OddWeb(era)) as odd:
        server = await bench.started(web_config(odd.url))
        assert server.tools == (TOOL,)
        heard: list[dict[str, Any]] = []
        answer = await server.call(ToolCall(name=tool), on_progress=heard.append)
        assert answer.result == EXACT
        assert heard == ([{"progress": 1}] if tool == "events" else [])
        await server.stop()


@pytest.mark.req("ENG-9")
async def test_a_result_of_50_mb_passes_over_stdio(bench: Bench) -> None:
    server = await bench.odd()
    assert len(words(await server.call(call("big", size=50_000_000)))) == 50_000_000


@pytest.mark.parametrize("tool", ["big", "bigstream"])
@pytest.mark.req("ENG-9")
async def test_a_result_of_50_mb_passes_over_http(tool: str, bench: Bench) -> None:
    async with running(OddWeb("modern")) as odd:
        server = await bench.started(web_config(odd.url))
        answer = await server.call(call(tool, size=50_000_000))
        assert answer.result is not None
        assert len(answer.result) > 50_000_000
        await server.stop()


async def test_a_result_of_5_mb_passes_over_websocket_and_sse(start_server: StartServer, bench: Bench) -> None:
    ws = start_server([sys.executable, str(OWN / "ws_server.py")])
    sse = start_server([sys.executable, str(fleet.SERVERS / "sdk_v2.py"), "--transport", "sse"])
    for url, transport in ((ws.url("ws"), Transport.WEBSOCKET), (sse.url("sse"), Transport.SSE)):
        server = await bench.started(web_config(url, transport))
        assert len(words(await server.call(call("big", n=5_000_000)))) == 5_000_000


# Servers that misbehave.


@pytest.mark.req("BNS-10")
async def test_what_is_no_message_on_stdout_is_skipped(bench: Bench) -> None:
    server = await bench.odd("chatty")
    assert server.status.state is ServerState.READY
    assert words(await server.call(call("garbage"))) == "still here"


@pytest.mark.parametrize(
    ("tool", "why"),
    [("truncated", "truncated"), ("latin", "UTF-8"), ("deep", "deeply"), ("neither", "neither")],
)
@pytest.mark.req("BNS-10")
async def test_a_broken_answer_fails_its_own_call_at_once_and_no_other(tool: str, why: str, bench: Bench) -> None:
    server = await bench.odd()
    waiting = asyncio.create_task(server.call(call("hang")))
    with pytest.raises(ProtocolViolation, match=why):
        await server.call(call(tool), timeout=LIMIT)
    assert (await server.call(ToolCall(name="echo"))).result == EXACT
    assert not waiting.done()
    waiting.cancel()


async def test_an_answer_in_a_batch_is_understood(bench: Bench) -> None:
    server = await bench.odd()
    assert (await server.call(call("batch"))).result == b'{"in":"a batch"}'


@pytest.mark.parametrize("odd", ["strict", "deaf"])
async def test_a_legacy_server_that_cannot_bear_the_modern_probe_is_reached(odd: str, bench: Bench) -> None:
    server = await bench.odd(odd, connect_timeout=10.0)
    assert (server.status.state, era_of(server.status)) == (ServerState.READY, Era.LEGACY)


@pytest.mark.req("BNS-10")
async def test_malformed_tools_do_not_hide_the_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    server = await bench.odd("malformed")
    assert server.tools == (b'{"name":"good","inputSchema":{}}', b'{"name":"last"}')
    assert len([record for record in caplog.records if "skipped" in record.message]) == 5


@pytest.mark.parametrize(("odd", "expected"), [("pages", ["t0", "t1", "t2", "t3"]), ("circle", ["t0", "t1"])])
async def test_all_pages_are_read_and_a_circle_ends(odd: str, expected: list[str], bench: Bench) -> None:
    assert names(await bench.odd(odd)) == expected


async def test_a_storm_of_changes_costs_few_lists(bench: Bench) -> None:
    server = await bench.odd()
    await server.call(call("storm", times=20_000))
    await until(lambda: "extra1" in names(server), "the new tool")
    assert int(words(await server.call(call("lists")))) <= 4
    assert len(bench.news) == 2


async def test_refresh_lists_again(bench: Bench) -> None:
    server = await bench.odd()
    before = int(words(await server.call(call("lists"))))
    await server.refresh()
    assert int(words(await server.call(call("lists")))) == before + 1
    assert len(bench.news) == 1  # nothing changed, so nobody is told


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("ping", {}, {"result": {}}),
        ("roots/list", {}, {"error": {"code": -32600, "message": "List roots not supported"}}),
        ("never/heard", {}, {"error": {"code": -32601, "message": "Method not found", "data": "never/heard"}}),
    ],
)
async def test_what_a_server_asks_is_answered_or_declined(
    method: str, params: dict[str, Any], expected: dict[str, Any], bench: Bench
) -> None:
    server = await bench.odd()
    answer = json.loads(words(await server.call(call("ask", method=method, params=params))))
    assert answer == {"jsonrpc": "2.0", "id": "q1", **expected}


async def test_what_a_server_asks_within_the_stream_of_a_call_is_answered(bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        server = await bench.started(web_config(odd.url))
        assert (await server.call(call("asks", method="ping"), timeout=LIMIT)).result == EXACT
        assert odd.requests[-1].message == {"jsonrpc": "2.0", "id": "q9", "result": {}}
        assert odd.requests[-1].headers["Mcp-Session-Id"] == "session-1"
        await server.stop()


# Failures say what to do and keep secrets.


@pytest.mark.req("BNS-10")
async def test_a_server_that_cannot_start_says_why_without_its_secrets(bench: Bench) -> None:
    server = await bench.odd("exits", env={"SECRET": "hunter2-hunter2"}, retry=Retry(backoff=60))
    status = server.status
    assert status.state is ServerState.UNAVAILABLE
    assert "code 7" in status.last_error
    assert "cannot use the key ****" in status.last_error
    assert server.stderr_tail(1) == ["cannot use the key ****"]
    with pytest.raises(ServerUnavailable, match="code 7") as error:
        await server.call(call("echo"))
    assert "hunter2" not in error.value.text()


async def test_a_missing_program_and_a_missing_folder_are_named(bench: Bench) -> None:
    config = ServerConfig(name="gone", transport=Transport.STDIO, source=SOURCE, command="no-such-program-here")
    server = await bench.started(config)
    assert "'no-such-program-here' is not installed or not on PATH" in server.status.last_error
    server = await bench.odd(cwd="/no/such/folder")
    assert "/no/such/folder" in server.status.last_error


@pytest.mark.parametrize("transport", ["http", "sse", "websocket"])
async def test_a_port_where_nobody_listens_is_named(transport: str, bench: Bench) -> None:
    scheme = "ws" if transport == "websocket" else "http"
    url = f"{scheme}://user:pass@127.0.0.1:{free_port()}/mcp?key=topsecret"
    server = await bench.started(web_config(url, Transport(transport)))
    assert "connection refused" in server.status.last_error
    assert "topsecret" not in server.status.last_error
    assert "pass@" not in server.status.last_error


@pytest.mark.parametrize(("status", "text"), [(401, "needs credentials"), (403, "credentials"), (405, "sse")])
@pytest.mark.parametrize("transport", ["http", "sse", "websocket"])
async def test_a_refusal_by_status_is_explained(status: int, text: str, transport: str, bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        odd.status = status
        url = odd.url.replace("http", "ws", 1) if transport == "websocket" else odd.url
        config = web_config(url, Transport(transport), headers={"Authorization": "Bearer hunter2-hunter2"})
        server = await bench.started(config)
        assert server.status.state is ServerState.UNAVAILABLE
        assert text in server.status.last_error
        assert "hunter2" not in server.status.last_error
        await server.stop()


def token_config(url: str, file: Path, transport: Transport = Transport.HTTP) -> ServerConfig:
    file.touch(0o600)
    return web_config(
        url,
        transport,
        token_file=TokenFile(path=file, header="Authorization", before="Bearer "),
        retry=Retry(backoff=0.01),
    )


@pytest.mark.parametrize("way", ["http modern", "http legacy", "sse legacy"])
async def test_a_token_that_was_replaced_is_used_at_once_and_the_call_runs_once(
    way: str, bench: Bench, tmp_path: Path
) -> None:
    transport, era = way.split()
    async with running(OddWeb(era)) as odd:
        url = odd.url if transport == "http" else odd.url.replace("/mcp", "/sse")
        config = token_config(url, tmp_path / "token", Transport(transport))
        (tmp_path / "token").write_text("first-token\n")
        odd.token = "first-token"
        server = await bench.started(config)
        result(await server.call(call("echo")))
        odd.token = "second-token"
        with pytest.raises(ServerUnavailable, match="needs credentials"):
            await server.call(call("echo"))
        (tmp_path / "token").write_text("second-token\n")
        assert result(await server.call(call("echo")))["structuredContent"] == {"n": 1.0, "z": None}
        sent = [seen.headers["Authorization"] for seen in odd.calls()]
        assert sent == ["Bearer first-token", *["Bearer first-token"] * 2, "Bearer second-token"]
        assert server.mask.line("first-token second-token") == "**** ****"
        await server.stop()


async def test_a_token_file_that_others_can_read_is_not_used_and_its_remedy_is_said(
    bench: Bench, tmp_path: Path
) -> None:
    async with running(OddWeb("modern")) as odd:
        config = token_config(odd.url, tmp_path / "token")
        (tmp_path / "token").write_text("some-token")
        (tmp_path / "token").chmod(0o640)
        server = await bench.started(config)
        assert "chmod 600" in server.status.last_error
        assert str(tmp_path / "token") in server.status.last_error
        assert odd.requests == []
        (tmp_path / "token").chmod(0o600)
        await until(lambda: server.status.state is ServerState.READY, "the next attempt")
        await server.stop()


async def test_a_mute_server_is_given_up_in_time_and_a_call_learns_it(bench: Bench) -> None:
    server = await bench.odd("mute", connect_timeout=0.5, retry=Retry(max_attempts=1))
    assert server.status.state is ServerState.FAILED
    assert "not ready within 0.5 s" in server.status.last_error
    with pytest.raises(ServerUnavailable, match="no longer retried"):
        await server.call(call("echo"))


async def test_attempts_are_counted_and_given_up_after_the_configured_number(bench: Bench) -> None:
    server = bench.make(odd_config("exits", retry=Retry(max_attempts=3, backoff=0.01)))
    server.start()
    await until(lambda: server.status.state is ServerState.FAILED, "the third attempt")
    assert server.status.attempts == 3


async def test_the_last_known_tools_stay_while_a_server_is_away(bench: Bench) -> None:
    known = (b'{"name":"known"}',)
    server = await bench.started(odd_config("exits", retry=Retry(backoff=60)), known_tools=known)
    assert server.tools == known
    assert server.status.tools == 1


async def test_a_call_hastens_the_next_attempt_at_most_once_a_second(bench: Bench) -> None:
    server = await bench.odd("exits", retry=Retry(backoff=60))
    attempts = server.status.attempts
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            await server.call(call("echo"))
    assert server.status.attempts == attempts + 1


@pytest.mark.parametrize(
    ("tool", "error", "text"),
    [
        ("html", ProtocolViolation, "text/html"),
        ("broken", ProtocolViolation, "invalid MCP"),
        ("accepted", ProtocolViolation, "HTTP 202"),
        ("other", ProtocolViolation, "does not match a request"),
        ("elsewhere", ServerUnavailable, "redirects"),
        ("unauthorized", ServerUnavailable, "needs credentials"),
        ("ends", ServerUnavailable, "may have run"),
    ],
)
@pytest.mark.req("BNS-10")
async def test_one_bad_answer_over_http_harms_no_other_call(
    tool: str, error: type[ServerFailure], text: str, bench: Bench
) -> None:
    async with running(OddWeb("modern")) as odd:
        server = await bench.started(web_config(odd.url))
        waiting = asyncio.create_task(server.call(call("hang")))
        await until(odd.calls, "the first call")
        with pytest.raises(error, match=text):
            await server.call(call(tool))
        assert (await server.call(ToolCall(name="echo"))).result == EXACT
        assert server.status.state is ServerState.READY
        assert not waiting.done()
        await server.stop()
        with pytest.raises(ServerUnavailable, match="stopped"):
            await waiting


@pytest.mark.parametrize("status", [404, 400])
async def test_a_forgotten_session_is_renewed_and_the_call_that_did_not_run_goes_through(
    status: int, bench: Bench
) -> None:
    async with running(OddWeb("legacy")) as odd:
        odd.status_for_lost_session = status
        server = await bench.started(web_config(odd.url, retry=Retry(backoff=60)))
        odd.session = 7
        assert (await server.call(ToolCall(name="echo"))).result == EXACT
        assert odd.session == 8
        assert [seen.headers["Mcp-Session-Id"] for seen in odd.calls()] == ["session-1", "session-8"]
        assert odd.ended == 0
        await server.stop()
        assert odd.ended == 1


class SessionTalk(OddWeb):
    """Fails a call with words that sound like a lost session, and never ends its answer to a cancellation."""

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


async def test_an_error_that_speaks_of_a_session_is_the_answer_and_the_call_runs_once(bench: Bench) -> None:
    async with running(SessionTalk("legacy")) as odd:
        server = await bench.started(web_config(odd.url))
        answer = await server.call(ToolCall(name="shop"))
        assert json.loads(answer.error or b"")["message"] == "Your session at the shop is over"
        assert (len(odd.calls()), odd.session) == (1, 1)
        await server.stop()


async def test_calls_that_ran_out_of_time_leave_no_connection_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.servers.http._CANCEL", 0.1)
    async with running(SessionTalk("legacy")) as odd:
        server = await bench.started(web_config(odd.url))
        (lease,) = shared_clients[asyncio.get_running_loop()].values()
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await server.call(call("hang"), timeout=0.05)
        await until(lambda: not lease.client._all, "the connections to be closed")
        await server.stop()


async def test_a_server_without_a_standing_stream_stays_connected_whatever_it_says_to_the_get(bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        odd.status_for_get = 404
        server = await bench.started(web_config(odd.url))
        await until(lambda: odd.gets == 2, "the stream to be given up")
        assert (await server.call(ToolCall(name="echo"))).result == EXACT
        assert (odd.session, server.status.state) == (1, ServerState.READY)
        await server.stop()


async def test_a_session_forgotten_over_sse_is_renewed_too(bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        config = web_config(odd.url.replace("/mcp", "/sse"), Transport.SSE, retry=Retry(backoff=60))
        server = await bench.started(config)
        odd.session = 7
        assert result(await server.call(ToolCall(name="echo"))) == json.loads(EXACT)
        assert (odd.session, len(odd.calls())) == (8, 2)
        await server.stop()


@pytest.mark.req("BNS-10")
async def test_an_sse_server_cannot_send_our_messages_to_another_origin(bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        odd.endpoint = f"http://localhost:{odd.port}/messages"
        server = await bench.started(web_config(odd.url.replace("/mcp", "/sse"), Transport.SSE))
        assert "another origin" in server.status.last_error
        assert odd.requests == []
        await server.stop()


@pytest.mark.parametrize("transport", ["sse", "websocket"])
@pytest.mark.req("BNS-10")
async def test_our_headers_do_not_follow_a_redirect_to_another_origin(transport: str, bench: Bench) -> None:
    async with running(OddWeb("legacy")) as odd:
        odd.status = 307
        url = odd.url.replace("http", "ws", 1) if transport == "websocket" else odd.url
        server = await bench.started(web_config(url, Transport(transport), headers={"X-Key": "secret-key"}))
        assert server.status.state is ServerState.UNAVAILABLE
        assert "redirects" in server.status.last_error
        assert set(odd.redirected) == {f"127.0.0.1:{odd.port}"}
        await server.stop()


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "both.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, *plain))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


@pytest.mark.req("BNS-10")
async def test_a_certificate_is_verified_unless_the_configuration_says_otherwise(bench: Bench, tmp_path: Path) -> None:
    async with running(OddWeb("modern"), self_signed(tmp_path)) as odd:
        url = odd.url.replace("http", "https", 1)
        strict = await bench.started(web_config(url))
        assert "certificate" in strict.status.last_error
        assert odd.requests == []
        lax = await bench.started(web_config(url, verify_tls=False))
        assert (await lax.call(ToolCall(name="echo"))).result == EXACT
        await asyncio.gather(strict.stop(), lax.stop())


@pytest.mark.req("BNS-10")
async def test_certificates_that_are_trusted_meanwhile_count_from_the_next_connection(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted.pem"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    self_signed(tmp_path / "old")
    trusted.write_bytes((tmp_path / "old" / "both.pem").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    async with running(OddWeb("modern"), self_signed(tmp_path / "new")) as odd:
        url = odd.url.replace("http", "https", 1)
        server = await bench.started(web_config(url, retry=Retry(backoff=0.01)))
        assert "certificate" in server.status.last_error
        trusted.write_bytes((tmp_path / "new" / "both.pem").read_bytes())
        await until(lambda: server.status.state is ServerState.READY, "the next attempt")
        await server.stop()


async def test_calls_pass_through_a_proxys_tunnel_over_one_connection(tmp_path: Path) -> None:
    async with running(OddWeb("modern"), self_signed(tmp_path)) as odd, asyncio.TaskGroup() as group:
        tunnels = 0

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(ConnectionError):
                while chunk := await reader.read(65536):
                    writer.write(chunk)

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tunnels
            tunnels += 1
            await reader.readuntil(b"\r\n\r\n")
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", odd.port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            group.create_task(pump(reader, far_writer))
            await pump(far_reader, writer)

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


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_http_requests_carry_the_headers_of_their_era(era: str, bench: Bench) -> None:
    async with running(OddWeb(era)) as odd:
        server = await bench.started(web_config(odd.url, headers={"X-Key": "k"}))
        await server.call(ToolCall(name="echo", headers={"Mcp-Param-Region": "eu"}))
        headers = odd.calls()[0].headers
        assert headers["X-Key"] == "k"
        modern = {
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "echo",
            "Mcp-Param-Region": "eu",
            "Mcp-Session-Id": None,
        }
        legacy = {**dict.fromkeys(modern), "MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": "session-1"}
        assert {name: headers.get(name) for name in modern} == (modern if era == "modern" else legacy)
        with contextlib.suppress(ServerFailure):
            await server.call(ToolCall(name="ütf"))
        if era == "modern":
            assert odd.calls()[1].headers["Mcp-Name"] == "=?base64?w7x0Zg==?="
        await server.stop()


async def test_abandoning_a_modern_http_call_closes_its_stream(bench: Bench) -> None:
    async with running(OddWeb("modern")) as odd:
        server = await bench.started(web_config(odd.url))
        with pytest.raises(CallTimeout):
            await server.call(call("hang"), timeout=0.1)
        await until(lambda: odd.dropped == ["hang"], "the stream to be closed")
        assert [seen.message["method"] for seen in odd.requests][-1] == "tools/call"
        await server.stop()


async def test_websocket_with_an_http_address_means_streamable_http(bench: Bench) -> None:
    async with running(OddWeb("modern")) as odd:
        server = await bench.started(web_config(odd.url, Transport.WEBSOCKET))
        assert (await server.call(ToolCall(name="echo"))).result == EXACT
        await server.stop()


async def test_a_dead_server_delays_no_other(bench: Bench) -> None:
    mute = bench.make(odd_config("mute", connect_timeout=30.0))
    mute.start()
    server = await bench.odd()
    assert server.status.state is ServerState.READY
    assert mute.status.state is ServerState.CONNECTING
    with pytest.raises(CallTimeout):
        await server.call(call("hang"), timeout=0.05)


# Processes: what they see, and that none stays.


@pytest.mark.req("BNS-10")
async def test_a_child_sees_an_allow_list_its_own_variables_and_the_projects_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_SERVERS_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy:1")
    server = await bench.odd(env={"MINE": "yes"})
    seen = json.loads(words(await server.call(call("surroundings"))))
    assert seen["env"]["MINE"] == "yes"
    assert seen["env"]["LC_TIME"] == "C"
    assert seen["env"]["PATH"] == os.environ["PATH"]
    assert seen["env"]["TOOLCRIB_CHILD"].startswith(bench.reaper.instance)
    assert not {"OTHER_SERVERS_KEY", "HTTPS_PROXY"} & set(seen["env"])
    assert Path(seen["cwd"]) == bench.root


async def test_stderr_is_kept_and_written_to_the_log(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "logs" / "odd.log"
    server = await bench.started(odd_config(retry=Retry(backoff=60)), log_file=file)
    with pytest.raises(ServerUnavailable, match="dying of thirst"):
        await server.call(call("die"))
    assert server.stderr_tail(5) == ["I am dying of thirst"]
    assert file.read_text() == "I am dying of thirst\n"


def alive(pid: int) -> bool:
    return leftovers.read(pid) is not None


async def test_stopping_ends_stubborn_processes_and_those_that_left_the_group(
    bench: Bench,
) -> None:
    server = await bench.odd("stubborn")
    pids = [server.status.pid or 0, *json.loads(words(await server.call(call("escape"))))]
    assert all(alive(pid) for pid in pids)
    await server.stop()
    assert not [pid for pid in pids if alive(pid)]


async def test_a_crash_takes_along_what_the_server_had_started(bench: Bench) -> None:
    server = await bench.odd(retry=Retry(backoff=60))
    pids = json.loads(words(await server.call(call("escape"))))
    with pytest.raises(ServerUnavailable):
        await server.call(call("die"))
    await until(lambda: not [pid for pid in pids if alive(pid)], "the rest to be ended")


KILLED = """
import asyncio, json, os, sys
from pathlib import Path
from toolcrib.config.model import Layer, ServerConfig, ConfigSource, Transport
from toolcrib.events import Bus
from toolcrib.servers.model import ToolCall
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server

async def main():
    config = ServerConfig(name="odd", transport=Transport.STDIO, source=ConfigSource(layer=Layer.FLAGS),
                          command=sys.executable, args=("-I", "-S", sys.argv[1]), env={"ODD": "stubborn"})
    server = Server(config, root=Path.cwd(), on_tools=lambda server: None, bus=Bus(), reaper=Reaper())
    server.start()
    await server.settled()
    answer = await server.call(ToolCall(name="escape"))
    print(server.status.pid, *json.loads(json.loads(answer.result)["content"][0]["text"]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_after_kill_9_of_the_parent_no_process_remains(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, ODD_STDIO, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await asyncio.wait_for(parent.stdout.readline(), LIMIT)).split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    parent.kill()
    await parent.wait()
    await until(lambda: not [pid for pid in pids if alive(pid)], "all of them to be ended")


ABANDONED = """
import sys, time
from pathlib import Path
from toolcrib.servers.reaper import Reaper

reaper = Reaper()
reaper.unlink(Path(sys.argv[1]))
print("told", flush=True)
time.sleep(600)
"""


async def test_after_kill_9_of_the_parent_its_files_are_gone(tmp_path: Path) -> None:
    file = tmp_path / "daemon.sock"
    file.write_text("")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ABANDONED, str(file), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert await asyncio.wait_for(parent.stdout.readline(), LIMIT) == b"told\n"
    assert file.exists()
    parent.kill()
    await parent.wait()
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
def test_a_child_inherits_no_file_of_ours_and_is_noticed_when_it_stops_reading(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def try_it() -> None:
        bench = Bench(root=tmp_path)
        config = odd_config(retry=Retry(backoff=60))
        ours = os.dup(0)
        os.set_inheritable(ours, True)
        try:
            server = await bench.started(dataclasses.replace(config, args=("-I", "-S", "-c", DEAF)))
            await until(lambda: server.status.state is ServerState.UNAVAILABLE, "the loss to be noticed")
            assert server.status.last_error == "Its process has closed its input."
            # 3 is what the listing itself had open.
            assert server.stderr_tail(1) == ["['0', '1', '2', '3']"]
        finally:
            os.close(ours)
            await bench.end()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(try_it())


async def test_a_reaper_that_was_killed_is_replaced_and_knows_all_groups(bench: Bench) -> None:
    await bench.odd("stubborn")
    (helper,) = [p for p in leftovers.living() if f"TOOLCRIB_CHILD={bench.reaper.instance}." in p.words]
    os.kill(helper.pid, signal.SIGKILL)
    await until(lambda: not alive(helper.pid), "the reaper to be gone")
    other = await bench.odd()
    assert other.status.state is ServerState.READY
    pids = [server.status.pid or 0 for server in bench.made]
    bench.reaper.close()
    await until(lambda: not [pid for pid in pids if alive(pid)], "the second reaper to end both")


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
async def test_a_server_released_while_it_restarts_stays_stopped(tmp_path: Path) -> None:
    pool = ServerPool(bus=Bus(), on_tools=lambda server: None)
    try:
        server = pool.acquire(odd_config(), tmp_path)
        await server.settled()
        await asyncio.gather(server.restart(), pool.release(server))
        assert server.status.state is ServerState.STOPPED
        await server.restart()
        assert server.status.state is ServerState.STOPPED
        assert children() == []
    finally:
        await pool.close()


@pytest.mark.req("BNS-9")
async def test_two_restarts_at_once_leave_one_process(bench: Bench) -> None:
    server = await bench.odd()
    await asyncio.gather(server.restart(), server.restart())
    assert server.status.state is ServerState.READY
    assert children() == [server.status.pid]


async def test_a_server_that_is_about_to_try_again_can_be_stopped(bench: Bench) -> None:
    server = await bench.started(
        dataclasses.replace(odd_config(retry=Retry(backoff=60)), command="/nowhere/to/be/found")
    )
    server._wake.set()
    async with asyncio.timeout(60):
        await server.stop()
    assert server.status.state is ServerState.STOPPED


async def test_state_changes_are_events(bench: Bench) -> None:
    server = await bench.odd()
    await server.stop()
    states = [getattr(event, "state", "") for event in bench.events]
    assert states == ["connecting", "ready", "stopped"]
