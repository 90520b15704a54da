"""Setting the computer's clock deletes no audit entries that must be kept, and extends no token."""

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


class Computer:
    """The computer's two clocks, and its boot id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.elapsed, self.boot = NOON, 1000.0, "first"
        monkeypatch.setattr(module, "_wall", lambda: self.wall)
        monkeypatch.setattr("time.time", lambda: self.wall)
        monkeypatch.setattr(module, "_elapsed", lambda: self.elapsed)
        monkeypatch.setattr(module, "_boot", lambda: self.boot)
        monkeypatch.setattr(module, "_CHECK_INTERVAL", 0.02)

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    return Computer(monkeypatch)


def test_a_jump_ahead_deletes_at_the_pace_of_real_time_until_it_is_confirmed(computer: Computer) -> None:
    clock = ExpiryClock()
    computer.advance(400 * DAY)
    now = computer.wall
    assert (clock.strict(), clock.patient(), clock.ahead) == (now, now, 0)
    computer.wall += 100 * DAY
    assert (clock.strict(), clock.patient(), clock.ahead) == (now + 100 * DAY, now, 100 * DAY)
    computer.advance(3 * DAY)
    assert (clock.patient(), clock.ahead) == (now + 3 * DAY, 100 * DAY)
    clock.confirm()
    assert (clock.patient(), clock.ahead) == (computer.wall, 0)


def test_a_clock_that_is_set_back_extends_nothing(computer: Computer) -> None:
    clock = ExpiryClock()
    computer.wall -= 100 * DAY
    computer.advance(2 * DAY)
    assert (clock.strict(), clock.patient(), clock.ahead) == (NOON + 2 * DAY, NOON + 2 * DAY, -100 * DAY)


@pytest.mark.parametrize(
    ("boot", "elapsed", "wall", "patient"),
    [
        ("first", 50 * DAY, 50 * DAY, 50 * DAY),  # only Toolcrib was stopped
        ("first", 50 * DAY, 150 * DAY, 50 * DAY),
        ("second", 0, 6 * DAY, 6 * DAY),  # the computer was off
        ("second", 0, 100 * DAY, 0),  # possibly
        ("second", 0, -100 * DAY, 0),
    ],
)
def test_a_restart_continues_from_the_stored_time(
    computer: Computer, boot: str, elapsed: float, wall: float, patient: float
) -> None:
    row = ExpiryClock().row()
    computer.boot, computer.elapsed, computer.wall = boot, computer.elapsed + elapsed, computer.wall + wall
    clock = ExpiryClock()
    clock.resume(row)
    assert clock.patient() == NOON + patient


@pytest.fixture
def crib(store_url: str, tmp_path: Path) -> Callable[[], Crib]:
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TOOLCRIB_STORE": store_url}
    return lambda: Crib(paths=Paths.of_user(environ), root=tmp_path, environ=environ)


async def outcomes(crib: Crib) -> list[Any]:
    return [entry["outcome"] for entry in await crib.services.audit.query(limit=1000)]


async def audited(crib: Crib, outcome: str, times: int = 1) -> None:
    async with asyncio.timeout(60):
        while (await outcomes(crib)).count(outcome) < times:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)


async def test_a_clock_that_jumps_briefly_deletes_nothing(computer: Computer, crib: Callable[[], Crib]) -> None:
    async with crib() as one:
        token = (await one.services.agents.add("scout", profile="read-only", lives=8 * 3600)).token
        for _ in range(44):
            one.services.audit.note(AuditEntry(kind=EntryKind.CHANGE, outcome="kept"))
        await one.services.sessions.begin("scout", "talk")
        computer.wall += 100 * DAY
        await audited(one, "clock jumped")
        assert one.services.agents.authenticate(token) is None, "the token has expired"
        assert await one.services.audit.prune() == 0
        late = (await one.services.agents.add("late", profile="read-only", lives=3600)).token
        assert one.services.agents.authenticate(late) is not None
    async with crib() as two:
        await two.services.agents.sweep()
        assert await two.services.audit.prune() == 0
        assert len(await two.services.store.read(rows.all_sessions)) == 1
        await audited(two, "clock jumped", 2)
        computer.wall -= 100 * DAY
        await audited(two, "clock agrees again")
        assert two.services.agents.authenticate(token) is not None
        assert two.services.agents.authenticate(late) is None, "it would last 100 days longer than it should"
        assert (await outcomes(two)).count("kept") == 44
        assert (await two.services.audit.verify()).ok
        computer.wall -= 100 * DAY
        computer.advance(9 * 3600)
        assert two.services.agents.authenticate(token) is None


async def test_a_confirmed_clock_deletes_old_entries(computer: Computer, crib: Callable[[], Crib]) -> None:
    async with crib() as one:
        await one.services.agents.add("scout", profile="read-only", lives=8 * 3600)
        for _ in range(44):
            one.services.audit.note(AuditEntry(kind=EntryKind.CHANGE, outcome="kept"))
        await one.services.audit.flush()
        computer.wall += 100 * DAY
        request = RequestContext(OWNER, one.projects.home)
        context = CommandContext(
            crib=one, request=request, host=NoDaemon(), via=Via.SOCKET, emit=lambda _: asyncio.sleep(0)
        )
        assert (await registry.run("system:status", {}, context))["clock"] == {"ahead": 100 * DAY}
        assert await registry.run("clock:confirm", {}, context) == {"seconds": 100 * DAY}
        assert (await registry.run("system:status", {}, context))["clock"] == {"ahead": 0}
        assert "clock confirmed" in await outcomes(one)
        assert await one.services.audit.prune() > 44
        await one.services.agents.add("next", profile="read-only")
        assert "kept" not in await outcomes(one)
