"""The official conformance suite, against our fixture server alone and through the gateway."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from conformance import suite
from conformance.forwarder import Forwarder
from conformance.suite import HERE, Leg
from parts.daemon import StartDaemon
from parts.fleet import NotRun
from parts.report import not_run
from parts.server_process import StartServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXTENSIONS = suite.expected_failures("expected-failures.fixture.yml")


@pytest.fixture(params=list(Leg), ids=lambda leg: leg.name.lower())
def leg(request: pytest.FixtureRequest) -> Leg:
    chosen: Leg = request.param
    try:
        suite.fleet.ensure("node")
        suite.fleet.ensure(chosen.part)
    except NotRun as reason:
        not_run("conformance suite", str(reason))
    return chosen


@pytest.fixture
def everything(start_server: StartServer) -> str:
    """The URL of the fixture server."""
    port = start_server([sys.executable, str(HERE / "everything_server.py")]).port
    return f"http://127.0.0.1:{port}/mcp"


def test_the_fixture_server_alone_passes_the_official_suite(leg: Leg, everything: str, tmp_path: Path) -> None:
    verdict = suite.run(leg, everything, tmp_path, EXTENSIONS)
    assert verdict.good, str(verdict)


@pytest.mark.req("KSI-1", "ENG-9", "BNS-5")
async def test_the_gateway_passes_the_official_suite(
    leg: Leg, everything: str, daemon: StartDaemon, tmp_path: Path
) -> None:
    running = daemon({"names": "plain", "servers": {"everything": {"url": everything}}})
    running.wait_until_ready("everything")
    expected = suite.expected_failures(f"expected-failures.{leg.revision}.yml")
    async with Forwarder(running.endpoint, running.token).running() as url:
        verdict = await asyncio.to_thread(suite.run, leg, url, tmp_path, expected)
    assert verdict.good, str(verdict)


async def test_the_forwarder_adds_the_token_and_keeps_a_foreign_host() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def ask(own: str, host: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(own.rpartition(":")[2]))
        writer.write(f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n".encode())
        assert b"204" in await reader.read()
        writer.close()
        await writer.wait_closed()

    target = await asyncio.start_server(answer, "127.0.0.1", 0)
    place = f"127.0.0.1:{target.sockets[0].getsockname()[1]}"
    async with target, Forwarder(f"http://{place}/mcp", "secret").running() as url:
        own = url.removeprefix("http://").removesuffix("/mcp")
        await ask(own, own)
        await ask(own, "evil.example.com")
    ending = b"Authorization: Bearer secret\r\nConnection: close\r\n\r\n"
    assert heads == [
        f"POST /mcp HTTP/1.1\r\nHost: {place}\r\nOrigin: http://{place}\r\n".encode() + ending,
        b"POST /mcp HTTP/1.1\r\nHost: evil.example.com\r\nOrigin: http://evil.example.com\r\n" + ending,
    ]
