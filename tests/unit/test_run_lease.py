"""The run's end of a lease, against a daemon that does what no real one does on purpose."""

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
from toolcrib.daemon_client import lease as harnesses
from toolcrib.daemon_client import lease as leases
from toolcrib.daemon_client.lease import LeaseClient, LeaseEvent, LeaseLost, LeaseRequest, open_lease_client
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime
from toolcrib.errors import DaemonNotRunning, Denied, ProtocolViolation, ToolcribError, UsageError

pytestmark = pytest.mark.req("FRG-10")

LIMIT = 60.0
LEASE = {
    "agent": "claude-c1",
    "token": "tcb_t",
    "endpoint": "http://127.0.0.1:1/mcp",
    "for_runs": False,
    "daemon": 1,
    "folder": "/nowhere",
    "own_tools": "read",
    "own_shell": True,
    "guarded": [],
    "broken": "",
    "unavailable": {"w": "it ended"},
    "withheld": ["KEY"],
    "warnings": ["The server w is unavailable: it ended"],
    "tools": 1,
    "names": {"w_note": ["w", "note"]},
}

Answer = Callable[[dict[str, Any], "Peer"], Awaitable[None]]


class Peer:
    """The daemon's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, **message: Any) -> None:
        self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self._writer.drain()

    async def event(self, **event: Any) -> None:
        await self.say(method="event", params={"id": 1, "event": event})

    async def refuse(self, kind: str, message: str = "No.") -> None:
        data = {"kind": kind, "remedy": "Do.", "exit_code": 1, "more": 1}
        await self.say(id=1, error={"code": 1, "message": message, "data": data})

    async def until_they_disconnect(self) -> None:
        await self._reader.read()


@contextlib.asynccontextmanager
async def daemon_that(*answers: Answer) -> AsyncIterator[LeaseClient]:
    """Answers each `run:lease` in turn, the last answer again and again; all else as a healthy daemon would."""
    left = list(answers)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                if asked["method"] == "run:lease":
                    await (left.pop(0) if len(left) > 1 else left[0])(asked["params"], peer)
                    break
                await peer.say(id=asked["id"], result={"pid": 1, "stopping": False})
        finally:
            writer.close()

    # Short, because the path of a unix socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tc-", dir="/tmp") as folder:
        environ = {"TOOLCRIB_HOME": folder, "HOME": folder}
        paths = Paths.of_user(environ)
        paths.run_dir.mkdir()
        server = await asyncio.start_unix_server(connected, paths.socket)
        async with asyncio.timeout(LIMIT), server, open_lease_client(paths, Path("/"), environ) as harness:
            yield harness
            server.close()


def wanted() -> LeaseRequest:
    return LeaseRequest(client="claude", profile="developer", workdir=Path("/"), conversation="c1", lives=1.0)


async def lends(_: dict[str, Any], peer: Peer) -> None:
    await peer.event(lease=LEASE)
    await peer.until_they_disconnect()


async def hangs_up(_: dict[str, Any], peer: Peer) -> None:
    """As one that is just ending."""


async def is_stopping(_: dict[str, Any], peer: Peer) -> None:
    await peer.refuse("DaemonNotRunning", "Toolcrib is stopping.")


async def noted(stream: AsyncIterator[LeaseEvent]) -> list[LeaseEvent]:
    return [note async for note in stream]


async def test_a_daemon_that_is_just_ending_is_asked_again_until_the_next_one_lends() -> None:
    async with daemon_that(hangs_up, is_stopping, hangs_up, lends) as harness:
        lease = await harness.lease(wanted())
        assert (lease.agent, lease.names) == ("claude-c1", {"w_note": ("w", "note")})
        assert lease.warnings == ("The server w is unavailable: it ended",)
        assert "tcb_t" not in repr(lease)


async def test_a_daemon_that_keeps_ending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harnesses, "CONNECT_TIMEOUT", 0.2)
    async with daemon_that(hangs_up) as harness:
        with pytest.raises(DaemonNotRunning, match="ended before it leased"):
            await harness.lease(wanted())


async def test_a_daemon_of_an_older_version_is_said_to_be_one() -> None:
    async def does_not_know(_: dict[str, Any], peer: Peer) -> None:
        await peer.refuse("UnknownCommand")

    async with daemon_that(does_not_know) as harness:
        with pytest.raises(DaemonNotRunning, match="older version") as caught:
            await harness.lease(wanted())
    assert "toolcrib down" in caught.value.remedy


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("UsageError", UsageError), ("Denied", Denied), ("Mapping", ToolcribError), ("", ToolcribError)],
)
async def test_what_the_daemon_refuses_is_raised_as_it_raised_it(kind: str, raised: type[ToolcribError]) -> None:
    async def refuses(_: dict[str, Any], peer: Peer) -> None:
        await peer.refuse(kind, "Not so.")

    async with daemon_that(refuses) as harness:
        with pytest.raises(ToolcribError, match=r"Not so\.") as caught:
            await harness.lease(wanted())
    assert type(caught.value) is raised
    assert (caught.value.remedy, caught.value.data) == ("Do.", {"more": 1})


async def test_an_answer_that_is_no_lease_is_an_error() -> None:
    async def babbles(_: dict[str, Any], peer: Peer) -> None:
        await peer.event(weather="fine")

    async with daemon_that(babbles) as harness:
        with pytest.raises(ProtocolViolation):
            await harness.lease(wanted())


async def test_notes_that_cannot_be_understood_are_a_lost_lease_and_no_silence() -> None:
    async def tells_otherwise(_: dict[str, Any], peer: Peer) -> None:
        await peer.event(lease=LEASE)
        await peer.event(news={})
        await peer.event(listed={"tools": 1})
        await peer.until_they_disconnect()

    async with daemon_that(tells_otherwise) as harness:
        (lost,) = await noted((await harness.lease(wanted())).events())
    assert lost == LeaseLost(why="The daemon sent an unexpected form of listed.")


async def test_a_lease_is_given_back_once_and_its_last_notes_are_still_read() -> None:
    over = asyncio.Event()

    async def tells_at_the_end(_: dict[str, Any], peer: Peer) -> None:
        await peer.event(lease=LEASE)
        await peer.until_they_disconnect()
        await peer.event(listed={"tools": 1, "bytes": 2, "tokens": 1, "tokens_estimated": True, "names": {}, "at": 1.0})
        over.set()

    async with daemon_that(tells_at_the_end) as harness:
        lease = await harness.lease(wanted())
        await asyncio.gather(lease.release(), lease.release())
        assert over.is_set(), "who releases waits for the daemon's end of it"
        assert [type(note).__name__ for note in await noted(lease.events())] == ["ListingSeen"]
        assert await noted(lease.events()) == []
        await lease.release()


async def test_a_daemon_that_never_hangs_up_does_not_hold_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_RELEASED_WITHIN", 0.1)
    done = asyncio.Event()

    async def clings(_: dict[str, Any], peer: Peer) -> None:
        await peer.event(lease=LEASE)
        await done.wait()

    async with daemon_that(clings) as harness:
        lease = await harness.lease(wanted())
        await lease.release()
        assert await noted(lease.events()) == []
        done.set()


async def test_a_run_comes_back_with_its_token_and_says_whose() -> None:
    asked: list[dict[str, Any]] = []

    async def lends_and_falls(params: dict[str, Any], peer: Peer) -> None:
        asked.append(params)
        await peer.event(lease=LEASE)

    async def lends_again(params: dict[str, Any], peer: Peer) -> None:
        asked.append(params)
        await peer.event(lease=LEASE)
        await peer.event(ended={"why": "removed"})
        await peer.until_they_disconnect()

    async with daemon_that(lends_and_falls, hangs_up, is_stopping, lends_again) as harness:
        (ended,) = await noted((await harness.lease(wanted())).events())
    assert ended == leases.LeaseEnded(why="removed")
    assert [params.get("resume") for params in asked] == [None, {"agent": "claude-c1", "token": "tcb_t"}]


def test_a_daemon_for_runs_is_told_when_the_last_has_left_and_lets_nobody_in_then() -> None:
    told: list[str] = []
    here = ActiveLeases(DaemonLifetime.FOR_RUNS, on_idle=lambda: told.append("idle"))
    with here.held("a"):
        with here.needed(), pytest.raises(UsageError), here.held("a"):
            raise AssertionError("it is held already")
        assert (told, here.idle, here.agents) == ([], False, {"a"})
    assert (told, here.idle, here.agents) == (["idle"], True, set())
    here.close()
    assert not here.agents_stay
    with pytest.raises(DaemonNotRunning), here.needed():
        raise AssertionError("it is closed")


def test_a_daemon_that_lasts_is_never_told_and_leaves_its_agents_to_the_next() -> None:
    here = ActiveLeases(on_idle=lambda: pytest.fail("it lasts"))
    with here.held("a"):
        assert not here.agents_stay
        here.close()
        assert here.agents_stay
