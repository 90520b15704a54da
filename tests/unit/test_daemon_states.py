"""How the daemon's servers do, as a program hears it, whatever the other end does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.paths import Paths
from toolcrib.core import connection as of_connection
from toolcrib.core import daemon_catalog
from toolcrib.core.connection import Connection
from toolcrib.core.daemon_catalog import DaemonServerStates
from toolcrib.errors import DaemonNotRunning
from toolcrib.servers.model import ServerState

LIMIT = 60.0
Say = Callable[[dict[str, Any]], Awaitable[None]]


@contextlib.asynccontextmanager
async def daemon_that(answer: Callable[[dict[str, Any], Say], Awaitable[None]]) -> AsyncIterator[Paths]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(message: dict[str, Any]) -> None:
            writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await writer.drain()

        try:
            while line := await reader.readline():
                await answer(json.loads(line), say)
        finally:
            writer.close()

    # Short, because the path of a unix socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tc-", dir="/tmp") as folder:
        paths = Paths.of_user({"TOOLCRIB_HOME": folder, "HOME": folder})
        paths.run_dir.mkdir()
        server = await asyncio.start_unix_server(connected, paths.socket)
        async with asyncio.timeout(LIMIT), server:
            yield paths
            server.close()


def servers(**states: str) -> dict[str, Any]:
    told = [{"name": name, "state": state} for name, state in states.items()]
    return {"method": "event", "params": {"id": 1, "event": {"servers": told}}}


async def test_each_change_is_noted_once_and_the_first_word_is_waited_for() -> None:
    heard: list[tuple[str, str]] = []
    more = asyncio.Event()

    async def tells(asked: dict[str, Any], say: Say) -> None:
        assert (asked["method"], asked["params"]) == ("agent:servers", {"token": "tcb_x"})
        await say(servers(a="ready", b="unavailable", c="of another version"))
        await more.wait()
        await say(servers(a="ready", b="ready"))

    states = DaemonServerStates(lambda name, state: heard.append((name, state.value)))
    async with daemon_that(tells) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {"a": ServerState.READY, "b": ServerState.UNAVAILABLE}
        more.set()
        while len(heard) < 3:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()
    assert heard == [("a", "ready"), ("b", "unavailable"), ("b", "ready")]


async def test_a_daemon_that_refuses_is_not_asked_again() -> None:
    asked: list[str] = []

    async def refuses(request: dict[str, Any], say: Say) -> None:
        asked.append(request["method"])
        data = {"kind": "UnknownCommand", "remedy": "", "exit_code": 1}
        await say({"id": 1, "error": {"code": -32601, "message": "No such command.", "data": data}})

    states = DaemonServerStates(lambda *_: None)
    async with daemon_that(refuses) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {}
        await states.close()
    assert asked == ["agent:servers"]


async def test_a_daemon_that_comes_back_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_catalog, "_LOOK_AGAIN", 0.01)
    times: list[int] = []

    async def tells_and_goes(_: dict[str, Any], say: Say) -> None:
        times.append(1)
        await say(servers(a="ready" if len(times) > 1 else "unavailable"))
        if len(times) == 1:
            raise ConnectionResetError

    heard: list[str] = []
    states = DaemonServerStates(lambda _, state: heard.append(state.value))
    async with daemon_that(tells_and_goes) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        while heard != ["unavailable", "ready"]:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()


@pytest.mark.parametrize("who", [{}, {"token": "tcb_x"}])
async def test_a_daemon_that_hangs_is_not_waited_for_without_end(
    who: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_connection, "_LENT_WITHIN", 0.1)
    monkeypatch.setattr(of_connection, "_ANSWERS_WITHIN", 0.1)

    async def hangs(*_: Any) -> None:
        return

    async with daemon_that(hangs) as paths:
        with pytest.raises(DaemonNotRunning, match="does not answer"):
            await Connection(paths=paths, **who).__aenter__()
