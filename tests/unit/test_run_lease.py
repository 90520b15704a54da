"""The client side of a lease, against a daemon that fails in every way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from parts.fake_daemon import FakePeer, fake_daemon
from toolcrib.daemon_client import lease as leases
from toolcrib.daemon_client.lease import AgentLease, LeaseClient, LeaseEvent, LeaseLost, LeaseRequest, open_lease_client
from toolcrib.daemon_client.lifetime import ActiveLeases, DaemonLifetime
from toolcrib.errors import DaemonNotRunning, Denied, ProtocolViolation, ToolcribError, UsageError

pytestmark = pytest.mark.req("FRG-10")

LEASE = {
    "agent": "claude-c1",
    "token": "tcb_t",
    "endpoint": "http://127.0.0.1:1/mcp",
    "listing": "",
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


@contextlib.asynccontextmanager
async def daemon_that(*answers: Callable[[dict[str, Any], FakePeer], Awaitable[None]]) -> AsyncIterator[LeaseClient]:
    """Answers each `run:lease` in turn, the last answer repeatedly, and other commands like a healthy daemon."""
    left = list(answers)

    async def answer(request: dict[str, Any], peer: FakePeer) -> bool:
        if request["method"] == "run:lease":
            await (left.pop(0) if len(left) > 1 else left[0])(request["params"], peer)
            return True
        await peer.send(id=request["id"], result={"pid": 1, "stopping": False})
        return False

    async with fake_daemon(answer) as paths:
        environ = {"TOOLCRIB_HOME": str(paths.config_dir), "HOME": str(paths.config_dir)}
        async with open_lease_client(paths, Path("/"), environ) as client:
            yield client


REQUEST = LeaseRequest(client="claude", profile="developer", workdir=Path("/"), conversation="c1", lives=1.0)


async def leases_agent(_: dict[str, Any], peer: FakePeer) -> None:
    await peer.event(lease=LEASE)
    await peer.until_disconnected()


async def hangs_up(_: dict[str, Any], peer: FakePeer) -> None:
    """Like a daemon that is ending."""


def refusing(kind: str, message: str = "Not so.") -> Callable[[dict[str, Any], FakePeer], Awaitable[None]]:
    async def refuse(_: dict[str, Any], peer: FakePeer) -> None:
        await peer.refuse(kind, message)

    return refuse


is_stopping = refusing("DaemonNotRunning", "Toolcrib is stopping.")


async def events_of(lease: AgentLease) -> list[LeaseEvent]:
    return [event async for event in lease.events()]


async def test_a_request_to_an_ending_daemon_is_repeated() -> None:
    async with daemon_that(hangs_up, is_stopping, hangs_up, leases_agent) as client:
        lease = await client.lease(REQUEST)
        assert (lease.agent, lease.names) == ("claude-c1", {"w_note": ("w", "note")})
        assert lease.warnings == ("The server w is unavailable: it ended",)
        assert "tcb_t" not in repr(lease)


async def test_after_a_timeout_no_more_daemons_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CONNECT_TIMEOUT", 0.2)
    async with daemon_that(hangs_up) as client:
        with pytest.raises(DaemonNotRunning, match="exited before it leased"):
            await client.lease(REQUEST)


async def test_a_daemon_of_an_older_version_is_an_error() -> None:
    async with daemon_that(refusing("UnknownCommand")) as client:
        with pytest.raises(DaemonNotRunning, match="older version") as caught:
            await client.lease(REQUEST)
    assert "toolcrib down" in caught.value.remedy


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("UsageError", UsageError), ("Denied", Denied), ("Mapping", ToolcribError), ("", ToolcribError)],
)
async def test_the_daemons_error_is_raised_with_its_class(kind: str, raised: type[ToolcribError]) -> None:
    async with daemon_that(refusing(kind)) as client:
        with pytest.raises(ToolcribError, match=r"Not so\.") as caught:
            await client.lease(REQUEST)
    assert type(caught.value) is raised
    assert (caught.value.remedy, caught.value.data) == ("Do.", {"more": 1})


async def test_an_answer_without_a_lease_is_an_error() -> None:
    async def sends_no_lease(_: dict[str, Any], peer: FakePeer) -> None:
        await peer.event(weather="fine")

    async with daemon_that(sends_no_lease) as client:
        with pytest.raises(ProtocolViolation):
            await client.lease(REQUEST)


async def test_an_invalid_event_ends_the_lease_with_an_error() -> None:
    async def sends_invalid(_: dict[str, Any], peer: FakePeer) -> None:
        await peer.event(lease=LEASE)
        await peer.event(news={})
        await peer.event(listed={"tools": 1})
        await peer.until_disconnected()

    async with daemon_that(sends_invalid) as client:
        (lost,) = await events_of(await client.lease(REQUEST))
    assert lost == LeaseLost(why="The daemon sent an unexpected form of listed.")


LISTED = {"mode": "full", "tools": 1, "bytes": 2, "tokens": 1, "tokens_estimated": True, "names": {}, "at": 1.0}


async def test_a_lease_is_released_once_and_its_last_events_can_be_read() -> None:
    over = asyncio.Event()

    async def sends_at_the_end(_: dict[str, Any], peer: FakePeer) -> None:
        await peer.event(lease=LEASE)
        await peer.until_disconnected()
        await peer.event(listed=LISTED)
        over.set()

    async with daemon_that(sends_at_the_end) as client:
        lease = await client.lease(REQUEST)
        await asyncio.gather(lease.release(), lease.release())
        assert over.is_set(), "`release` waits for the daemon"
        assert [type(event).__name__ for event in await events_of(lease)] == ["ListingSeen"]
        assert await events_of(lease) == []
        await lease.release()


async def test_releasing_does_not_wait_forever_for_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_RELEASED_WITHIN", 0.1)
    done = asyncio.Event()

    async def stays(_: dict[str, Any], peer: FakePeer) -> None:
        await peer.event(lease=LEASE)
        await done.wait()

    async with daemon_that(stays) as client:
        lease = await client.lease(REQUEST)
        await lease.release()
        assert await events_of(lease) == []
        done.set()


async def test_a_lease_continues_at_the_next_daemon_with_its_token() -> None:
    requests: list[dict[str, Any]] = []

    async def leases_and_ends(params: dict[str, Any], peer: FakePeer) -> None:
        requests.append(params)
        await peer.event(lease=LEASE)

    async def leases_again(params: dict[str, Any], peer: FakePeer) -> None:
        requests.append(params)
        await peer.event(lease=LEASE)
        await peer.event(ended={"why": "removed"})
        await peer.until_disconnected()

    async with daemon_that(leases_and_ends, hangs_up, is_stopping, leases_again) as client:
        (ended,) = await events_of(await client.lease(REQUEST))
    assert ended == leases.LeaseEnded(why="removed")
    assert [params.get("resume") for params in requests] == [None, {"agent": "claude-c1", "token": "tcb_t"}]


def test_a_daemon_for_runs_becomes_idle_with_its_last_user_and_refuses_new_ones() -> None:
    idle: list[str] = []
    here = ActiveLeases(DaemonLifetime.FOR_RUNS, on_idle=lambda: idle.append("idle"))
    with here.held("a"):
        with here.needed(), pytest.raises(UsageError), here.held("a"):
            raise AssertionError("it is held already")
        assert (idle, here.idle, here.agents) == ([], False, {"a"})
    assert (idle, here.idle, here.agents) == (["idle"], True, set())
    here.close()
    assert not here.agents_stay
    with pytest.raises(DaemonNotRunning), here.needed():
        raise AssertionError("it is closed")


def test_a_permanent_daemon_never_becomes_idle_and_keeps_its_agents() -> None:
    here = ActiveLeases(on_idle=lambda: pytest.fail("it lasts"))
    with here.held("a"):
        assert not here.agents_stay
        here.close()
        assert here.agents_stay
