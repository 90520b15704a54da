"""A server's share of our time, with a clock that the test moves."""

from __future__ import annotations

import itertools

import pytest

from toolcrib.servers import link
from toolcrib.servers.link import FLOOD_REASON, FORWARD_COST, MAX_FLOOD, SHARE, InputBudget


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(link.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_flood_gets_its_share_and_is_ended(clock: Clock) -> None:
    ended: list[str] = []
    meter = InputBudget(ended.append)
    began, spent = clock.now, 0.0
    for cost in itertools.cycle((0.0001, 0.02, 0.003, 0.0004, 0.007)):
        spent += cost
        clock.now += cost
        meter.charge(cost)
        clock.now += meter.pause
        if ended:
            break
    assert ended == [FLOOD_REASON]
    assert spent > MAX_FLOOD
    assert spent / (clock.now - began) < SHARE * 1.2


def test_a_server_that_says_little_at_a_time_never_waits(clock: Clock) -> None:
    meter = InputBudget(pytest.fail)
    for _ in range(10_000):
        meter.charge(0.0004)
        clock.now += 0.01
        assert meter.pause == 0


def test_a_burst_waits_and_is_forgiven(clock: Clock) -> None:
    meter = InputBudget(pytest.fail)
    for _ in range(20):
        meter.charge(MAX_FLOOD / 2)
        assert meter.pause == pytest.approx(MAX_FLOOD / 2 / SHARE)
        clock.now += 60
        meter.charge(0)
        assert meter.pause == 0


def test_what_was_asked_for_waits_and_never_ends_a_server(clock: Clock) -> None:
    meter = InputBudget(pytest.fail)
    began, spent = clock.now, 0.0
    while spent < 10 * MAX_FLOOD:
        spent += FORWARD_COST
        meter.charge(FORWARD_COST, asked=True)
        clock.now += meter.pause
    assert spent / (clock.now - began) < SHARE * 1.2
