"""When a lost server is tried again, and whether calls wait for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from parts.live_servers import LIMIT, LiveServers, call, live
from parts.waiting import until
from toolcrib.config.model import Retry
from toolcrib.errors import CallTimeout, ServerUnavailable
from toolcrib.servers import breaker as breaker_module
from toolcrib.servers.breaker import MAX_PAUSE, Breaker
from toolcrib.servers.model import ServerState

__all__ = ["live"]

pytestmark = pytest.mark.req("BNS-7", "BNS-10")


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(breaker_module, "time", clock)
    monkeypatch.setattr(breaker_module, "random", SimpleNamespace(uniform=lambda low, high: 1.0))
    return clock


def lose(breaker: Breaker, clock: Clock, *, after: float) -> float:
    """A connection that lasts some seconds. Returns the pause that follows."""
    breaker.begin()
    breaker.connected()
    clock.now += after
    breaker.lost()
    return breaker.pause()


def test_a_server_that_dies_in_a_loop_is_tried_ever_more_rarely(clock: Clock) -> None:
    breaker = Breaker(Retry(backoff=0.5))
    assert [lose(breaker, clock, after=6) for _ in range(5)] == [0.5, 1, 2, 4, 8]
    assert lose(breaker, clock, after=60) == 0.5
    assert max(lose(breaker, clock, after=6) for _ in range(30)) == MAX_PAUSE


def test_after_three_failures_one_call_in_each_pause_triggers_an_attempt(clock: Clock) -> None:
    breaker = Breaker(Retry(backoff=8))
    for _ in range(2):
        lose(breaker, clock, after=0)
    assert (breaker.is_open, breaker.kick(), breaker.kick()) == (False, True, False)
    assert lose(breaker, clock, after=1.5) == breaker.next_attempt == 32
    assert (breaker.is_open, breaker.kick()) == (True, False)
    clock.now += 31
    assert (breaker.kick(), breaker.kick(), breaker.next_attempt) == (True, False, 1)
    breaker.reset()
    assert (breaker.is_open, breaker.exhausted) == (False, False)


def test_calls_do_not_wait_for_a_server_that_hangs(clock: Clock) -> None:
    breaker = Breaker(Retry())
    breaker.hang()
    breaker.lost()
    assert (breaker.is_open, breaker.kick()) == (True, False)
    breaker.connected()
    assert not breaker.is_open


def test_a_server_that_wants_to_be_left_alone_is_not_tried_before(clock: Clock) -> None:
    breaker = Breaker(Retry(backoff=0.5))
    breaker.postpone(100)
    breaker.lost()
    assert (breaker.pause(), breaker.next_attempt, breaker.kick()) == (100, 100, False)
    clock.now += 100
    assert breaker.kick()
    breaker.postpone(100)
    breaker.begin()
    assert (breaker.pause(), breaker.kick()) == (0.5, False)
    clock.now += 1
    assert breaker.kick()


async def test_a_call_to_an_open_breaker_fails_at_once_with_the_time_of_the_next_attempt(live: LiveServers) -> None:
    server = await live.odd("exits", retry=Retry(backoff=0.01, max_attempts=None))
    await until(lambda: server.status.attempts >= 4, "some attempts")
    with pytest.raises(ServerUnavailable, match=r"code 7.*did not run\."):
        await server.call(call("echo"))
    (past,) = server.errors
    assert past.times >= 4 and past.first_at < past.at
    assert "code 7" in past.error
    limited = await live.odd("exits", retry=Retry(backoff=0.01, max_attempts=2))
    await until(lambda: limited.status.state is ServerState.FAILED, "the limit of attempts")
    with pytest.raises(ServerUnavailable, match="toolcrib restart odd"):
        await limited.call(call("echo"))


async def test_a_server_has_a_limit_of_calls_and_a_tool_its_own_time_limit(live: LiveServers) -> None:
    server = await live.odd(max_waiting_calls=1, call_timeouts={"hang": 0.2}, call_timeout=LIMIT)
    with pytest.raises(CallTimeout, match=r"within 0\.2 s.*Raise the server's call_timeouts\.hang if"):
        await server.call(call("hang"))
    waiting = asyncio.create_task(server.call(call("hang"), timeout=LIMIT))
    await until(lambda: server.calls == 1, "the first call")
    with pytest.raises(ServerUnavailable, match=r"limit of 1 running.*did not run.*max_waiting_calls"):
        await server.call(call("echo"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await server.call(call("echo"))).result is not None
