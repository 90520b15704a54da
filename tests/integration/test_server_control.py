"""A program connects, checks, refreshes and disconnects servers one by one, or all: `Crib`, `Kit` and `Client`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from parts.live_servers import LIMIT, call, until
from toolcrib import Client, Crib, Kit, server_config
from toolcrib.errors import ServerUnavailable, UnknownServer, UsageError
from toolcrib.servers.model import ServerState

ODD = Path(__file__).parents[1] / "parts" / "servers" / "odd_stdio.py"

Provider = Crib | Kit
Opened = Callable[[dict[str, Any]], AbstractAsyncContextManager[Provider]]


def entry(odd: str = "") -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(ODD)], "env": {"ODD": odd}, "connect_timeout": LIMIT}


@pytest.fixture(params=["crib", "kit"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the servers of these entries."""

    def crib(entries: dict[str, Any]) -> Crib:
        environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        return Crib.from_config({"servers": entries}, root=tmp_path, environ=environ)

    def kit(entries: dict[str, Any]) -> Kit:
        return Kit([server_config(name, one) for name, one in entries.items()], root=tmp_path, connect_limit=LIMIT)

    return crib if request.param == "crib" else kit


@pytest.fixture
async def two(opened: Opened) -> AsyncIterator[Provider]:
    async with opened({"a": entry(), "b": entry()}) as provider:
        yield provider


@pytest.mark.req("BNS-7")
async def test_one_server_is_disconnected_and_all_are_connected_again(two: Provider) -> None:
    first, other = two.server_info("a").pid, two.server_info("b").pid
    await two.disconnect("a")
    assert leftovers.read(first or 0) is None
    assert "a_echo" in two.tools(), "its tools stay listed"
    with pytest.raises(ServerUnavailable, match="is stopped"):
        await two.call("a:echo")
    with pytest.raises(ServerUnavailable, match="is stopped"):
        await two.refresh("a")
    assert not (await two.call("b:echo")).is_error
    states = await two.connect_all()
    assert {name: status.state for name, status in states.items()} == {"a": ServerState.READY, "b": ServerState.READY}
    assert two.server_info("a").pid != first
    assert two.server_info("b").pid == other, "a connected server is left alone"
    assert not (await two.call("a:echo")).is_error
    await two.disconnect()
    assert {status.state for status in two.status().values()} == {ServerState.STOPPED}
    assert leftovers.read(other or 0) is None
    await two.connect_all()
    assert not (await two.call("b:echo")).is_error


@pytest.mark.req("BNS-7")
async def test_health_is_a_real_exchange_and_never_connects(two: Provider) -> None:
    healthy = await two.health("a")
    assert healthy.ok and healthy.seconds > 0 and not healthy.error
    pid = two.server_info("a").pid
    assert pid is not None
    os.killpg(pid, signal.SIGSTOP)
    try:
        silent = await two.health("a", timeout=0.2)
        assert not silent.ok and "did not answer ping within 0.2 s" in silent.error
        assert (await two.health("b")).ok
    finally:
        os.killpg(pid, signal.SIGCONT)
    await two.disconnect("a")
    stopped = await two.health("a")
    assert not stopped.ok and stopped.error == "Server 'a' is stopped."
    for work in (two.health("never"), two.refresh("never"), two.disconnect("never")):
        with pytest.raises(UnknownServer, match="never"):
            await work


@pytest.mark.req("BNS-7")
async def test_connecting_all_reports_a_server_that_fails_and_connects_the_others(opened: Opened) -> None:
    async with opened({"good": entry(), "bad": entry("exits")}) as provider:
        await provider.disconnect("good")
        states = await provider.connect_all()
        assert states["good"].state is ServerState.READY
        assert "exited with code 7" in states["bad"].last_error
        health = await provider.health("bad")
        assert not health.ok and "exited with code 7" in health.error


async def test_refresh_lists_the_tools_again(two: Provider) -> None:
    async def lists() -> int:
        server = two._servers["a"] if isinstance(two, Kit) else two.projects.home.servers["a"]
        return int(json.loads((await server.call(call("lists"))).result or b"")["content"][0]["text"])

    before = await lists()
    await two.refresh("a")
    assert await lists() == before + 1


async def test_a_client_checks_its_one_server() -> None:
    client = Client(server_config("odd", entry()))
    with pytest.raises(UsageError, match="A Client must be used"):
        await client.health()
    async with client:
        assert (await client.health()).ok
        pid = client.server_info.pid
        assert pid is not None
        os.killpg(pid, signal.SIGKILL)
        await until(lambda: client.server_info.pid != pid)
