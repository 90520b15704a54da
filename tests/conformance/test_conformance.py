"""The official conformance suite, against our fixture server alone and through the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance import suite
from conformance.forwarder import Forwarder
from conformance.suite import HERE, Leg
from parts.daemon import StartDaemon
from parts.fleet import NotRun
from parts.report import not_run
from parts.server_process import StartServer, stdio_command
from parts.waiting import until, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ASKED = {"sampling": "allow", "roots": "client"}
"""The settings of an entry with which its server may ask everything."""
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
    running = daemon({"names": "plain", "servers": {"everything": {"url": everything, **ASKED}}})
    running.wait_until_ready("everything")
    expected = suite.expected_failures(f"expected-failures.{leg.revision}.yml")
    async with Forwarder(running.endpoint, running.token).running() as url:
        verdict = await asyncio.to_thread(suite.run, leg, url, tmp_path, expected)
    assert verdict.good, str(verdict)


@dataclass(frozen=True, kw_only=True)
class LegacyServer:
    url: str
    seen_file: Path

    @property
    def seen(self) -> list[str]:
        """The subscriptions, completions and levels that it got, in order."""
        return self.seen_file.read_text().splitlines() if self.seen_file.exists() else []


@pytest.fixture
def legacy_server(
    start_server: StartServer, parts: Callable[[str], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> LegacyServer:
    seen = tmp_path_factory.mktemp("legacy") / "seen"
    running = start_server([*parts("mcp-v1"), str(HERE / "legacy_server.py"), "--seen", str(seen)])
    return LegacyServer(url=running.url("http"), seen_file=seen)


WATCHED = "test://watched-resource"


@pytest.mark.parametrize("leg", [Leg.LEGACY_SUITE, Leg.LEGACY], ids=lambda leg: leg.name.lower(), indirect=True)
def test_the_legacy_server_alone_passes_the_official_suite(
    leg: Leg, legacy_server: LegacyServer, tmp_path: Path
) -> None:
    expected = suite.expected_failures(f"expected-failures.legacy-server.{leg.revision}.yml")
    verdict = suite.run(leg, legacy_server.url, tmp_path, expected)
    assert verdict.good, str(verdict)


@pytest.mark.req("KSI-1", "ENG-9", "BNS-4")
async def test_the_gateway_passes_the_official_suite_in_front_of_a_legacy_server(
    leg: Leg, legacy_server: LegacyServer, daemon: StartDaemon, tmp_path: Path
) -> None:
    running = daemon({"names": "plain", "servers": {"everything": {"url": legacy_server.url, **ASKED}}})
    running.wait_until_ready("everything")
    expected = suite.expected_failures(f"expected-failures.legacy-server.{leg.revision}.yml")
    async with Forwarder(running.endpoint, running.token).running() as url:
        verdict = await asyncio.to_thread(suite.run, leg, url, tmp_path, expected)
    assert verdict.good, str(verdict)
    # These scenarios pass with any answer that is no error, so the server's own view decides.
    arrived = {"complete arg1"}
    if leg is not Leg.MODERN:
        # A client that left without ending its session may still hold the subscription, or a more detailed level.
        arrived |= {f"subscribe {WATCHED}"}
        assert {"level info", "level debug"} & set(legacy_server.seen)
    await until(lambda: arrived <= set(legacy_server.seen), f"the server to record {arrived}")


PASSED_BY_UNKNOWN_TOOLS = {"tools-call-error", "tools-call-simple-text"}
"""The npm server does not have their tools, but answers with a result that says so."""


@pytest.mark.req("KSI-1", "ENG-9")
async def test_the_gateway_passes_what_the_npm_server_passes_alone(
    leg: Leg, npm_server: str, parts: Callable[[str], list[str]], daemon: StartDaemon, tmp_path: Path
) -> None:
    """Its tools and prompts have other names than those of the scenarios, so only some can pass."""
    program, *words = parts("everything")
    running = daemon({"names": "plain", "servers": {"everything": {"command": program, "args": words, **ASKED}}})
    running.wait_until_ready("everything")
    through, alone = tmp_path / "through", tmp_path / "alone"
    for folder in (through, alone):
        folder.mkdir()
    async with Forwarder(running.endpoint, running.token).running() as url:
        verdict = await asyncio.to_thread(suite.run, leg, url, through, frozenset())
    if leg is Leg.MODERN:
        assert verdict.passed >= {"caching", "prompts-list", "resources-list", "sep-2164-resource-not-found"}
        return
    directly = await asyncio.to_thread(suite.run, leg, npm_server, alone, frozenset())
    assert len(directly.passed) > 10
    assert directly.passed - verdict.passed <= PASSED_BY_UNKNOWN_TOOLS


@pytest.fixture
def npm_server(parts: Callable[[str], list[str]]) -> Iterator[str]:
    """The URL of npm's server-everything, which speaks only the legacy era."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*parts("everything"), "streamableHttp"]
    with subprocess.Popen(words, env={**os.environ, "PORT": str(port)}, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: is_open(port), "the server to listen")
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


def is_open(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


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


TASKS = {
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-mrtr-composition",
}
"""All scenarios about tasks but `tasks-required-task-error`: the gateway waits for clients without tasks instead."""


@pytest.mark.req("KSI-9", "BNS-5")
@pytest.mark.parametrize("leg", [Leg.MODERN], ids=["modern"], indirect=True)
async def test_the_gateway_passes_the_scenarios_about_tasks(
    leg: Leg, start_server: StartServer, daemon: StartDaemon, tmp_path: Path
) -> None:
    running = start_server([*stdio_command("task_server"), "--transport", "http"])
    through = daemon({"names": "plain", "servers": {"tasks": {"url": running.url("http")}}})
    through.wait_until_ready("tasks")
    async with Forwarder(through.endpoint, through.token).running() as url:
        verdict = await asyncio.to_thread(suite.run, leg, url, tmp_path, frozenset())
    assert verdict.passed >= TASKS, str(verdict)
