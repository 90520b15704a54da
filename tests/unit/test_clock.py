"""A clock that is set does not delete what the record has to keep, and lets no token last longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.commands.all import registry
from toolcrib.commands.local import NoDaemon
from toolcrib.commands.registry import CommandContext, Via
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.store import clock as module
from toolcrib.store import identity as rows
from toolcrib.store.clock import DAY, ExpiryClock

pytestmark = pytest.mark.req("KSI-3")

NOON = 1_800_000_000.0


class Hands:
    """What the computer's two clocks show, and since which boot it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.counted, self.boot = NOON, 1000.0, "first"
        monkeypatch.setattr(module, "_wall", lambda: self.wall)
        monkeypatch.setattr("time.time", lambda: self.wall)
        monkeypatch.setattr(module, "_elapsed", lambda: self.counted)
        monkeypatch.setattr(module, "_boot", lambda: self.boot)
        monkeypatch.setattr(module, "_CHECK_INTERVAL", 0.02)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.counted += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


def test_time_that_passes_counts_whole(hands: Hands) -> None:
    clock = ExpiryClock()
    hands.pass_by(400 * DAY)
    assert (clock.strict(), clock.patient(), clock.ahead) == (hands.wall, hands.wall, 0)


def test_a_jump_ahead_deletes_a_days_worth_per_day_until_it_is_confirmed(hands: Hands) -> None:
    clock = ExpiryClock()
    hands.wall += 100 * DAY
    assert (clock.strict(), clock.patient(), clock.ahead) == (hands.wall, NOON, 100 * DAY)
    hands.pass_by(3 * DAY)
    assert (clock.patient(), clock.ahead) == (NOON + 3 * DAY, 100 * DAY)
    clock.confirm()
    assert (clock.patient(), clock.ahead) == (hands.wall, 0)


def test_a_clock_that_is_set_back_lets_nothing_last_longer(hands: Hands) -> None:
    clock = ExpiryClock()
    hands.wall -= 100 * DAY
    hands.pass_by(2 * DAY)
    assert (clock.strict(), clock.patient(), clock.ahead) == (NOON + 2 * DAY, NOON + 2 * DAY, -100 * DAY)


@pytest.mark.parametrize(
    ("boot", "counted", "wall", "patient"),
    [
        ("first", 50 * DAY, 50 * DAY, 50 * DAY),  # it was only Toolcrib that did not run
        ("first", 50 * DAY, 150 * DAY, 50 * DAY),
        ("second", 0, 6 * DAY, 6 * DAY),  # the computer was off
        ("second", 0, 100 * DAY, 0),  # perhaps
        ("second", 0, -100 * DAY, 0),
    ],
)
def test_the_next_start_goes_on_from_what_was_seen(
    hands: Hands, boot: str, counted: float, wall: float, patient: float
) -> None:
    row = ExpiryClock().row()
    hands.boot, hands.counted, hands.wall = boot, hands.counted + counted, hands.wall + wall
    clock = ExpiryClock()
    clock.resume(row)
    assert clock.patient() == NOON + patient


@pytest.fixture
def crib(store_url: str, tmp_path: Path) -> Callable[[], Crib]:
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TOOLCRIB_STORE": store_url}
    return lambda: Crib(paths=Paths.of_user(environ), root=tmp_path, environ=environ)


async def written(crib: Crib) -> list[Any]:
    return [entry["outcome"] for entry in await crib.services.audit.query(limit=1000)]


async def test_nothing_is_lost_by_a_clock_that_jumps_for_a_moment(hands: Hands, crib: Callable[[], Crib]) -> None:
    async with crib() as one:
        token = (await one.services.agents.add("scout", profile="read-only", lives=8 * 3600)).token
        for _ in range(44):
            one.services.audit.note(AuditEntry(kind=EntryKind.CHANGE, outcome="kept"))
        await one.services.sessions.begin("scout", "talk")
        hands.wall += 100 * DAY
        async with asyncio.timeout(60):
            while "clock jumped" not in await written(one):  # noqa: ASYNC110 - the audit log tells nobody
                await asyncio.sleep(0.02)
        assert one.services.agents.authenticate(token) is None, "a token is not used after its time"
        assert await one.services.audit.prune() == 0
        late = (await one.services.agents.add("late", profile="read-only", lives=3600)).token
        assert one.services.agents.authenticate(late) is not None
    async with crib() as two:
        await two.services.agents.sweep()
        assert await two.services.audit.prune() == 0
        assert len(await two.services.store.read(rows.all_sessions)) == 1
        hands.wall -= 100 * DAY
        assert two.services.agents.authenticate(token) is not None
        assert two.services.agents.authenticate(late) is None, "it would last 100 days longer than it should"
        assert (await written(two)).count("kept") == 44
        assert (await two.services.audit.verify()).ok
        hands.wall -= 100 * DAY
        hands.pass_by(9 * 3600)
        assert two.services.agents.authenticate(token) is None


async def test_a_confirmed_clock_deletes_what_is_too_old(hands: Hands, crib: Callable[[], Crib]) -> None:
    async with crib() as one:
        await one.services.agents.add("scout", profile="read-only", lives=8 * 3600)
        for _ in range(44):
            one.services.audit.note(AuditEntry(kind=EntryKind.CHANGE, outcome="kept"))
        await one.services.audit.flush()
        hands.wall += 100 * DAY
        context = CommandContext(
            crib=one,
            request=RequestContext(OWNER, one.projects.home),
            host=NoDaemon(),
            via=Via.SOCKET,
            emit=lambda _: asyncio.sleep(0),
        )
        assert (await registry.run("system:status", {}, context))["clock"] == {"ahead": 100 * DAY}
        assert await registry.run("clock:confirm", {}, context) == {"seconds": 100 * DAY}
        assert (await registry.run("system:status", {}, context))["clock"] == {"ahead": 0}
        assert "clock confirmed" in await written(one)
        assert await one.services.audit.prune() > 44
        await one.services.agents.add("next", profile="read-only")
        assert "kept" not in await written(one)
