"""A program follows the states of the daemon's servers, even if the daemon fails or restarts."""

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
from toolcrib.core import connection as connection_module
from toolcrib.core import daemon_catalog
from toolcrib.core.connection import Connection
from toolcrib.core.daemon_catalog import DaemonServerStates
from toolcrib.errors import DaemonNotRunning
from toolcrib.servers.model import ServerState

LIMIT = 60.0
Send = Callable[[dict[str, Any]], Awaitable[None]]


@contextlib.asynccontextmanager
async def daemon_that(answer: Callable[[dict[str, Any], Send], Awaitable[None]]) -> AsyncIterator[Paths]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(message: dict[str, Any]) -> None:
            writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await writer.drain()

        try:
            while line := await reader.readline():
                await answer(json.loads(line), send)
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
    listed = [{"name": name, "state": state} for name, state in states.items()]
    return {"method": "event", "params": {"id": 1, "event": {"servers": listed}}}


async def test_each_change_is_reported_once_and_begin_waits_for_the_first_states() -> None:
    changes: list[tuple[str, str]] = []
    more = asyncio.Event()

    async def sends(request: dict[str, Any], send: Send) -> None:
        assert (request["method"], request["params"]) == ("agent:servers", {"token": "tcb_x"})
        await send(servers(a="ready", b="unavailable", c="of another version"))
        await more.wait()
        await send(servers(a="ready", b="ready"))

    states = DaemonServerStates(lambda name, state: changes.append((name, state.value)))
    async with daemon_that(sends) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {"a": ServerState.READY, "b": ServerState.UNAVAILABLE}
        more.set()
        while len(changes) < 3:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()
    assert changes == [("a", "ready"), ("b", "unavailable"), ("b", "ready")]


async def test_after_an_error_the_daemon_is_not_requests_again() -> None:
    requests: list[str] = []

    async def refuses(request: dict[str, Any], send: Send) -> None:
        requests.append(request["method"])
        data = {"kind": "UnknownCommand", "remedy": "", "exit_code": 1}
        await send({"id": 1, "error": {"code": -32601, "message": "No such command.", "data": data}})

    states = DaemonServerStates(lambda *_: None)
    async with daemon_that(refuses) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        assert states.by_server == {}
        await states.close()
    assert requests == ["agent:servers"]


async def test_a_restarted_daemon_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_catalog, "_LOOK_AGAIN", 0.01)
    times: list[int] = []

    async def sends_and_disconnects(_: dict[str, Any], send: Send) -> None:
        times.append(1)
        await send(servers(a="ready" if len(times) > 1 else "unavailable"))
        if len(times) == 1:
            raise ConnectionResetError

    changes: list[str] = []
    states = DaemonServerStates(lambda _, state: changes.append(state.value))
    async with daemon_that(sends_and_disconnects) as paths:
        await states.begin(paths.socket, "tcb_x", Path("/"))
        while changes != ["unavailable", "ready"]:  # noqa: ASYNC110 - within the daemon's limit
            await asyncio.sleep(0.01)
        await states.close()


@pytest.mark.parametrize("who", [{}, {"token": "tcb_x"}])
async def test_the_wait_for_a_daemon_that_hangs_is_limited(
    who: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_LENT_WITHIN", 0.1)
    monkeypatch.setattr(connection_module, "_ANSWERS_WITHIN", 0.1)

    async def hangs(*_: Any) -> None:
        return

    async with daemon_that(hangs) as paths:
        with pytest.raises(DaemonNotRunning, match="does not answer"):
            await Connection(paths=paths, **who).__aenter__()
