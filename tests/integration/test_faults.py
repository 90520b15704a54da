"""The fault matrix: what the caller of a faulty server gets over each transport, and that the server is back by itself
while the calls of another server continue."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parts.certificates import self_signed
from parts.daemon import Cli, StartDaemon
from parts.fleet import SERVERS
from parts.live_servers import SOURCE, LiveServers, call, live
from parts.raw_client import Endpoint
from parts.server_process import RunningServer, starting, stdio_entry
from parts.waiting import LIMIT, until, wait_for
from toolcrib.config.model import Retry, ServerConfig, Transport
from toolcrib.errors import CallTimeout, ProtocolViolation, ServerFailure, ServerUnavailable
from toolcrib.servers import breaker, health
from toolcrib.servers.model import Era, ServerState
from toolcrib.servers.server import Server

__all__ = ["live"]

pytestmark = pytest.mark.req("BNS-9", "BNS-10")

FAULTY = str(SERVERS / "faulty.py")
LINE = 10_000_000
TRANSPORTS = list(Transport)
WEB = [Transport.HTTP, Transport.SSE, Transport.WEBSOCKET]
PATHS = {Transport.HTTP: "http://{}/mcp", Transport.SSE: "http://{}/sse", Transport.WEBSOCKET: "ws://{}/ws"}
ERAS = [(transport, Era.LEGACY) for transport in TRANSPORTS]
ERAS += [(transport, Era.MODERN) for transport in TRANSPORTS if transport is not Transport.SSE]
"""The modern protocol has no SSE transport."""
WEB_ERAS = [(transport, era) for transport, era in ERAS if transport in WEB]
MAY = "may have run"
ASKED = {Era.LEGACY: "did not answer ping", Era.MODERN: "did not answer server/discover"}


@pytest.fixture(scope="module")
def web_mode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("faulty") / "mode"
    file.write_text("ok")
    return file


@pytest.fixture(scope="module")
def web_server(web_mode: Path) -> Iterator[RunningServer]:
    with starting() as start:
        yield start([sys.executable, FAULTY, "--web"], env={"MODE": str(web_mode)})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SILENCE", 0.15)
    monkeypatch.setattr(health, "ANSWER_LIMIT", 1.0)
    monkeypatch.setattr(health, "_LOOK_AGAIN", 0.1)
    monkeypatch.setattr(breaker, "MAX_PAUSE", 0.2)


@dataclass
class Relay:
    """A TCP proxy on loopback that passes bytes on, holds them back, or refuses connections."""

    target: int
    tls: ssl.SSLContext | None = None
    reply: bytes = b""
    """If set, every request gets this answer."""
    port: int = 0
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        self.passing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            # asyncio never closes a connection that was accepted just before its server was closed.
            await asyncio.sleep(0)
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def reopen(self) -> None:
        if self._server is None:
            await self.open()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._pumps.add(task)
        # A task that is cancelled before it begins closes nothing itself.
        task.add_done_callback(lambda done: (self._pumps.discard(done), writer.close()))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            await self.passing.wait()
            if self.reply:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.reply)
                return
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
            with contextlib.closing(ours):
                await asyncio.gather(self._pump(reader, ours), self._pump(theirs, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            await self.passing.wait()
            writer.write(chunk)
        writer.close()


@dataclass
class Scene:
    transport: Transport
    live: LiveServers
    server: Server
    neighbour: Server
    mode: Path
    answered: int = 0
    """Calls that the neighbour has answered."""

    async def pid(self) -> int:
        return int((await self.result("pid"))["text"])

    async def result(self, name: str, **arguments: Any) -> Any:
        answer = await self.server.call(call(name, **arguments))
        assert answer.result is not None
        return json.loads(answer.result)

    async def heals(self) -> None:
        await until(lambda: self.server.status.state is ServerState.READY, "the server to be back")
        async with asyncio.timeout(LIMIT):
            while True:
                with contextlib.suppress(ServerFailure):
                    assert (await self.server.call(call("echo"), timeout=5)).result is not None
                    return
                await asyncio.sleep(0.01)

    async def keep_calling(self) -> None:
        while True:
            assert (await self.neighbour.call(call("echo"))).result is not None
            self.answered += 1
            await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def others_continue(self, fault: str) -> AsyncIterator[None]:
        before = self.answered
        yield
        await until(lambda: self.answered >= before + 2, f"another server's calls during {fault}")


def config(transport: Transport, address: str, mode: Path, era: Era = Era.LEGACY, **more: Any) -> ServerConfig:
    settings = {"source": SOURCE, "retry": Retry(backoff=0.02), "connect_timeout": LIMIT, "call_timeout": LIMIT, **more}
    if transport is Transport.STDIO:
        words = ("-I", "-S", FAULTY, *(["--modern"] if era is Era.MODERN else []))
        settings |= {"command": sys.executable, "args": words, "env": {"MODE": str(mode)}}
    else:
        settings["url"] = PATHS[transport].format(address + ("/modern" if era is Era.MODERN else ""))
    return ServerConfig(name="faulty", transport=transport, **settings)


@contextlib.asynccontextmanager
async def scene(
    transport: Transport, live: LiveServers, address: str, mode: Path, era: Era = Era.LEGACY, **more: Any
) -> AsyncIterator[Scene]:
    server, neighbour = await asyncio.gather(live.started(config(transport, address, mode, era, **more)), live.odd())
    made = Scene(transport, live, server, neighbour, mode)
    calling = asyncio.create_task(made.keep_calling())
    try:
        yield made
        assert not calling.done()
        assert server.era is era
    finally:
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


Expected = str | tuple[type[ServerFailure], str]
TIMEOUT = (CallTimeout, r"within 0\.15 s.*may have run")
BROKEN = (ServerUnavailable, MAY)
FAULTS: dict[str, dict[str, Expected]] = {
    "hang": {"": TIMEOUT},
    "die": {"": BROKEN, "stdio": (ServerUnavailable, "exited with code 3.*may have run")},
    "garbage": {"": TIMEOUT, "http": (ProtocolViolation, MAY)},
    "half": {"": BROKEN, "stdio": (ServerUnavailable, "exited with code 4.*may have run")},
    "drip": {"": TIMEOUT},
    "line": {"": "x" * LINE},
    "storm": {"": "storm"},
}
"""What the caller gets when the fault happens in its call: the text of the result or an error; by transport."""


@pytest.mark.parametrize(("transport", "era"), ERAS)
async def test_a_fault_in_a_call_fails_that_call_only(
    transport: Transport, era: Era, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    async with scene(transport, live, f"127.0.0.1:{web_server.port}", web_mode, era) as here:
        for fault, expected in FAULTS.items():
            wanted = expected.get(transport, expected[""])
            async with here.others_continue(fault):
                if isinstance(wanted, str):
                    assert (await here.result(fault))["text"] == wanted, fault
                else:
                    limit = 0.15 if wanted[0] is CallTimeout else LIMIT
                    with pytest.raises(wanted[0], match=wanted[1]):
                        await here.server.call(call(fault, seconds=0.4), timeout=limit)
                await here.heals()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("transport", "era"), ERAS)
async def test_a_stopped_server_is_noticed_and_comes_back(
    transport: Transport, era: Era, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    async with scene(transport, live, f"127.0.0.1:{web_server.port}", web_mode, era) as here:
        pid = await here.pid()
        waiting = asyncio.create_task(here.server.call(call("hang", seconds=0.5)))
        async with here.others_continue("SIGSTOP"):
            # A server that runs a call gets its time.
            assert (await waiting).result is not None
            assert live.reasons() == []
            with stopped(pid):
                await until(live.reasons, "the stopped server to be noticed")
                expected = r"stopped \(SIGSTOP\)" if transport is Transport.STDIO else ASKED[era]
                assert re.search(expected, live.reasons()[0])
                if transport is not Transport.STDIO:
                    with pytest.raises(ServerUnavailable, match=r"did not answer.*did not run"):
                        await here.server.call(call("echo"))
            await here.heals()
        assert (await here.pid() != pid) is (transport is Transport.STDIO)


async def test_calls_of_a_stopped_process_fail_with_the_reason_long_before_it_would_be_asked(
    live: LiveServers, web_mode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SILENCE", 1000.0)
    async with scene(Transport.STDIO, live, "", web_mode) as here:
        with stopped(await here.pid()), pytest.raises(ServerUnavailable, match=r"stopped \(SIGSTOP\).*may have run"):
            await here.server.call(call("echo"))
        await here.heals()


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 0", "Connection: close", "", ""]).encode()


AWAY = "http://user:secret@elsewhere.example/mcp?key=secret"
REPLIES = {
    "429": (status("429 Slow down", "Retry-After: 1"), r"too many requests \(HTTP 429\)\. Try again in 1 s"),
    "page": (status("200 OK", "Content-Type: text/html; charset=utf-8"), r"answers with a web page, not MCP\. .*/mcp"),
    "text": (status("200 OK", "Content-Type: text/plain"), "answers with content of type text/plain instead of "),
    "500": (status("500 Oops"), r"has failed \(HTTP 500\)"),
    "502": (status("502 Bad"), r"the server behind it does not answer \(HTTP 502\)"),
    "503": (status("503 Later"), r"overloaded or not available \(HTTP 503\)"),
    "redirect": (status("308 There", f"Location: {AWAY}"), r"redirects to http://elsewhere\.example/mcp \(HTTP 308\)"),
    "half": (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"jsonrpc',
        "broke off its answer|instead of an event stream",
    ),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.9\r\n", "not (?:valid )?HTTP"),
}
REASONS = {
    "refuse": "connection refused",
    "hang": "not ready within 1 s",
    "dns": "could not be resolved",
    "certificate": "is not trusted",
    "no tls": "does not speak TLS",
    **{fault: expected for fault, (_, expected) in REPLIES.items()},
}
"""Why a server is unavailable that could not be reached at first."""
UNKNOWN_HOST = "nowhere.example"


class Network:
    """Servers that cannot be reached, each for another reason, until `heal`."""

    def __init__(self, target: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._trusted, self._folder = folder / "trusted.pem", folder
        self._tls = self_signed(folder / "own.pem")
        self_signed(self._trusted)
        monkeypatch.setenv("SSL_CERT_FILE", str(self._trusted))
        self._known_hosts = False
        resolve = socket.getaddrinfo

        def resolved(host: Any, *more: Any, **options: Any) -> Any:
            if host not in (UNKNOWN_HOST, UNKNOWN_HOST.encode()):
                return resolve(host, *more, **options)
            if not self._known_hosts:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return resolve("127.0.0.1", *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        self.relays = {fault: Relay(target) for fault in REASONS}
        self.relays["certificate"].tls = self._tls
        for fault, (reply, _) in REPLIES.items():
            self.relays[fault].reply = reply

    def config(self, fault: str, transport: Transport, mode: Path, era: Era) -> ServerConfig:
        host = UNKNOWN_HOST if fault == "dns" else "127.0.0.1"
        limit = 1.0 if fault == "hang" else LIMIT
        made = config(transport, f"{host}:{self.relays[fault].port}", mode, era, connect_timeout=limit)
        secured = made.url.replace("http:", "https:").replace("ws:", "wss:")
        return dataclasses.replace(made, name=fault, url=secured if fault in {"certificate", "no tls"} else made.url)

    async def begin(self) -> None:
        await asyncio.gather(*(relay.open() for relay in self.relays.values()))
        await self.relays["refuse"].close()
        self.relays["hang"].passing.clear()

    async def heal(self) -> None:
        self._known_hosts = True
        self._trusted.write_bytes((self._folder / "own.pem").read_bytes())
        self.relays["hang"].passing.set()
        for relay in self.relays.values():
            relay.reply = b""
        await self.relays["no tls"].close()
        self.relays["no tls"].tls = self._tls
        await asyncio.gather(self.relays["no tls"].open(), self.relays["refuse"].open())

    async def end(self) -> None:
        await asyncio.gather(*(relay.close() for relay in self.relays.values()))


async def has_its_reason(fault: str, server: Server) -> None:
    await until(lambda: server.status.last_error, f"{fault} to be noticed")
    assert re.search(REASONS[fault], server.status.last_error), (fault, server.status.last_error)
    assert "secret" not in server.status.last_error
    with pytest.raises(ServerUnavailable, match="did not run"):
        await server.call(call("echo"))


async def has_healed(fault: str, server: Server) -> None:
    await until(lambda: server.status.state is ServerState.READY, f"{fault} to heal")
    assert (await server.call(call("echo"))).result is not None
    assert server.status.last_error == ""


@pytest.mark.usual(era="LEGACY")
@pytest.mark.parametrize(("transport", "era"), WEB_ERAS)
async def test_an_unreachable_server_has_its_reason_and_connects_when_it_can(
    transport: Transport,
    era: Era,
    live: LiveServers,
    web_server: RunningServer,
    web_mode: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(web_server.port, tmp_path, monkeypatch)
    await network.begin()
    try:
        servers = {fault: live.make(network.config(fault, transport, web_mode, era)) for fault in REASONS}
        for server in servers.values():
            server.start()
        await asyncio.gather(*(has_its_reason(fault, server) for fault, server in servers.items()))
        await network.heal()
        await asyncio.gather(*(has_healed(fault, server) for fault, server in servers.items()))
        await asyncio.gather(*(server.stop() for server in servers.values()))
    finally:
        await network.end()


@pytest.mark.parametrize("transport", WEB)
async def test_a_server_that_refuses_a_connection_for_some_time_is_left_alone(
    transport: Transport, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    relay = Relay(web_server.port, reply=status("503 Later", "Retry-After: 3000"))
    await relay.open()
    try:
        server = await live.started(config(transport, f"127.0.0.1:{relay.port}", web_mode))
        with pytest.raises(ServerUnavailable, match=r"HTTP 503.*did not run.*tries again in [23]\d\d\d s\."):
            await server.call(call("echo"))
        status_now = server.status
        assert (status_now.attempts, (status_now.next_attempt or 0) > 2000) == (1, True)
        relay.reply = b""
        await server.restart()
        assert (server.status.state, server.status.next_attempt) == (ServerState.READY, None)
    finally:
        await relay.close()


@pytest.mark.parametrize(("transport", "era"), WEB_ERAS)
async def test_a_partition_is_noticed_and_heals(
    transport: Transport, era: Era, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    relay = Relay(web_server.port)
    await relay.open()
    try:
        address = f"127.0.0.1:{relay.port}"
        async with scene(transport, live, address, web_mode, era) as here:
            assert (await here.result("echo"))["text"] == "echo"
            async with here.others_continue("a partition"):
                relay.passing.clear()
                with pytest.raises(CallTimeout):
                    await here.server.call(call("echo"), timeout=0.15)
                await until(live.reasons, "the partition to be noticed")
                assert ASKED[era] in live.reasons()[0]
                with pytest.raises(ServerUnavailable, match="did not run"):
                    await here.server.call(call("echo"))
                relay.passing.set()
                await here.heals()
    finally:
        await relay.close()


@pytest.mark.parametrize("way", ["refuse", "hang"])
async def test_a_process_that_does_not_start_has_its_reason_and_starts_when_it_can(
    way: str, live: LiveServers, tmp_path: Path
) -> None:
    mode = tmp_path / "mode"
    mode.write_text(way)
    limit = 1.0 if way == "hang" else LIMIT
    async with scene(Transport.STDIO, live, "", mode, connect_timeout=limit) as here, here.others_continue(way):
        expected = {"refuse": "Error: not today (its process exited with code 1).", "hang": "not ready within 1 s"}[way]
        await until(lambda: here.server.errors, "the reason")
        assert expected in here.server.errors[0].error
        with pytest.raises(ServerUnavailable, match="did not run"):
            await here.server.call(call("echo"))
        mode.write_text("ok")
        await here.heals()


@pytest.mark.parametrize(("transport", "era"), ERAS)
async def test_a_server_that_dies_in_a_loop_heals_when_it_stays_up(
    transport: Transport, era: Era, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    web_mode.write_text("loop")
    try:
        address = f"127.0.0.1:{web_server.port}"
        async with scene(transport, live, address, web_mode, era) as here, here.others_continue("a restart loop"):
            if transport is not Transport.HTTP:
                # Over HTTP, where no connection stays open, the next call notices it.
                await until(lambda: sum(past.times for past in here.server.errors) >= 3, "three restarts")
            web_mode.write_text("ok")
            await here.heals()
    finally:
        web_mode.write_text("ok")


@pytest.mark.req("BNS-7")
def test_servers_show_has_health_errors_limits_users_memory_and_cost(daemon: StartDaemon, cli: Cli) -> None:
    entry = stdio_entry("raw_server", call_timeout=30, call_timeouts={"ok": 5}, max_waiting_calls=7, start="eager")
    entry |= {"disabled_tools": ["chatter"], "env": {"KEY": "sec-ret"}}
    started = daemon({"servers": {"one": entry}})
    started.wait_until_ready("one")
    mcp = Endpoint(started)
    assert mcp.call("one_die").result["isError"] is True
    wait_for(lambda: not mcp.call("one_ok").result.get("isError"), "the server to reconnect")
    found = started.command("server:show", name="one")
    assert (found["state"], found["restarts"], found["calls"]) == ("ready", 1, 0)
    assert (found["limits"]["call_timeout"], found["limits"]["call_timeouts"]) == (30, {"ok": 5})
    (past,) = found["errors"]
    assert "exited with code" in past["error"]
    assert past["first_at"] == past["at"] <= found["since"] <= found["last_seen"]
    assert len(found["used_by"]["projects"]) == 1
    assert found["processes"] >= 1
    assert found["memory"] > 1_000_000
    assert found["tokens"] > 10
    shown = cli("servers", "show", "one").ok().out
    for text in (
        "state:",
        "ready since",
        "restarts:    1",
        "0 in progress, at most 7",
        "60 s to connect, 30 s for a call, ok 5 s",
        f"{found['tools']} tools (1 disabled: chatter), ",
        "raw_server.py",
        "config.json: servers.one",
        "exited with code",
    ):
        assert text in shown, shown
    assert "sec-ret" not in shown + json.dumps(found)
    assert cli("servers", "show", "none", "--json").exit_code == 4
    assert "one" in cli("servers").ok().out


SOAK_FAULTS = 2000
WHOLE = ("stop", "kill", "partition", "refuse")
"""Faults of a server or its network, besides those of a call."""


@dataclass
class Soaked:
    """One of the servers of the soak test, with its own network."""

    server: Server
    relay: Relay | None
    pids: list[int]

    async def suffer(self, fault: str) -> None:
        with contextlib.suppress(ServerFailure):
            if fault not in WHOLE:
                await self.server.call(call(fault, seconds=0.3), timeout=0.2)
            elif fault in {"stop", "kill"}:
                answer = await self.server.call(call("pid"), timeout=5)
                self.pids.append(int(json.loads(answer.result or b"")["text"]))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[-1], signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
            elif self.relay is not None and fault == "partition":
                self.relay.passing.clear()
            elif self.relay is not None:
                await self.relay.close()
            await self.server.call(call("echo"), timeout=0.5)

    async def recover(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.pids.clear()
        if self.relay is not None:
            self.relay.passing.set()
            await self.relay.reopen()


def held() -> tuple[int, int, int]:
    """Memory in MB, open files, and children of this process."""
    own, *children = health.processes_of(os.getpid())
    return own.resident // 1_000_000, len(list(Path("/proc/self/fd").iterdir())), len(children)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_after_many_random_faults_all_servers_are_up_and_nothing_is_left(
    live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    random = Random(16)  # noqa: S311 - the same faults in every run
    soaked: list[Soaked] = []
    for number in range(20):
        transport, era = ERAS[number % len(ERAS)]
        relay = None if transport is Transport.STDIO else Relay(web_server.port)
        if relay is not None:
            await relay.open()
        made = config(transport, f"127.0.0.1:{relay.port if relay else 0}", web_mode, era, connect_timeout=3.0)
        soaked.append(Soaked(live.make(dataclasses.replace(made, name=f"s{number}")), relay, []))
        soaked[-1].server.start()
    servers = [one.server for one in soaked]

    async def all_up() -> None:
        for server in servers:
            await until(lambda server=server: server.status.state is ServerState.READY, f"{server.name} to be up", 120)
            await Scene(Transport.HTTP, live, server, server, web_mode).heals()

    async def worker(own: list[Soaked], rounds: int) -> None:
        for _ in range(rounds):
            one = random.choice(own)
            async with asyncio.timeout(LIMIT):
                await until(lambda one=one: one.server.status.state is ServerState.READY, "a server to break")
                await one.suffer(random.choice([*FAULTS, *WHOLE]))
                await one.recover()

    try:
        await all_up()
        memory, files, children = held()
        await asyncio.gather(*(worker(soaked[start::5], SOAK_FAULTS // 5) for start in range(5)))
        await all_up()
        await until(lambda: held()[1] <= files and held()[2] <= children, f"{held()} to be {files, children}")
        assert held()[0] - memory < 60
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        await asyncio.gather(*(one.relay.close() for one in soaked if one.relay))
