"""The fault matrix: what the caller of a faulty server gets over each transport, and that the server is back by itself
while the calls of another server continue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parts.fleet import SERVERS
from parts.live_servers import SOURCE, LiveServers, call, live
from parts.server_process import RunningServer, starting
from parts.waiting import LIMIT, until
from toolcrib.config.model import Retry, ServerConfig, Transport
from toolcrib.errors import CallTimeout, ProtocolViolation, ServerFailure, ServerUnavailable
from toolcrib.servers import health
from toolcrib.servers.model import ServerState
from toolcrib.servers.server import Server

__all__ = ["live"]

pytestmark = pytest.mark.req("BNS-9", "BNS-10", "BNS-11")

FAULTY = str(SERVERS / "faulty.py")
LINE = 10_000_000
TRANSPORTS = list(Transport)
WEB = [Transport.HTTP, Transport.SSE, Transport.WEBSOCKET]
PATHS = {Transport.HTTP: "http://{}/mcp", Transport.SSE: "http://{}/sse", Transport.WEBSOCKET: "ws://{}/ws"}
MAY = "may have run"


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
    monkeypatch.setattr(health, "ANSWER_LIMIT", 0.3)
    monkeypatch.setattr(health, "_LOOK_AGAIN", 0.1)


@dataclass
class Relay:
    """A TCP proxy on loopback that passes bytes on, holds them back, or refuses connections."""

    target: int
    port: int = 0
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        self.passing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self.passing.wait()
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


def config(transport: Transport, address: str, mode: Path, **more: Any) -> ServerConfig:
    settings = {"source": SOURCE, "retry": Retry(backoff=0.02), "connect_timeout": 2.0, "call_timeout": LIMIT, **more}
    if transport is Transport.STDIO:
        settings |= {"command": sys.executable, "args": ("-I", "-S", FAULTY), "env": {"MODE": str(mode)}}
    else:
        settings["url"] = PATHS[transport].format(address)
    return ServerConfig(name="faulty", transport=transport, **settings)


@contextlib.asynccontextmanager
async def scene(transport: Transport, live: LiveServers, address: str, mode: Path, **more: Any) -> AsyncIterator[Scene]:
    server, neighbour = await asyncio.gather(live.started(config(transport, address, mode, **more)), live.odd())
    made = Scene(transport, live, server, neighbour, mode)
    calling = asyncio.create_task(made.keep_calling())
    try:
        yield made
        assert not calling.done()
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


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_fault_in_a_call_fails_that_call_only(
    transport: Transport, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    async with scene(transport, live, f"127.0.0.1:{web_server.port}", web_mode) as here:
        for fault, expected in FAULTS.items():
            wanted = expected.get(transport, expected[""])
            async with here.others_continue(fault):
                if isinstance(wanted, str):
                    assert (await here.result(fault))["text"] == wanted, fault
                else:
                    limit = 0.15 if wanted[0] is CallTimeout else LIMIT
                    with pytest.raises(wanted[0], match=wanted[1]):
                        await here.server.call(call(fault, seconds=0.8), timeout=limit)
                await here.heals()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stopped_server_is_noticed_and_comes_back(
    transport: Transport, live: LiveServers, web_server: RunningServer, web_mode: Path
) -> None:
    async with scene(transport, live, f"127.0.0.1:{web_server.port}", web_mode) as here:
        pid = await here.pid()
        waiting = asyncio.create_task(here.server.call(call("hang", seconds=0.5)))
        async with here.others_continue("SIGSTOP"):
            # A server that runs a call gets its time.
            assert (await waiting).result is not None
            assert live.reasons() == []
            with stopped(pid):
                await until(live.reasons, "the stopped server to be noticed")
                expected = r"stopped \(SIGSTOP\)" if transport is Transport.STDIO else "did not answer ping"
                assert re.search(expected, live.reasons()[0])
                if transport is not Transport.STDIO:
                    with pytest.raises(ServerUnavailable, match=r"did not answer.*did not run"):
                        await here.server.call(call("echo"))
            await here.heals()
        assert (await here.pid() != pid) is (transport is Transport.STDIO)


async def test_calls_of_a_stopped_process_fail_with_the_reason(live: LiveServers, web_mode: Path) -> None:
    async with scene(Transport.STDIO, live, "", web_mode) as here:
        with stopped(await here.pid()), pytest.raises(ServerUnavailable, match=r"stopped \(SIGSTOP\).*may have run"):
            await here.server.call(call("echo"))
        await here.heals()
