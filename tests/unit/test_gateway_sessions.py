"""Legacy sessions: found by their owner only, ended on request, forgotten when nobody uses them."""

from __future__ import annotations

from typing import cast

import pytest

from toolcrib.crib import Project
from toolcrib.gateway import sessions
from toolcrib.gateway.sessions import LegacySessions, TooManySessions
from toolcrib.policy import OWNER, Caller

pytestmark = pytest.mark.req("KSI-1")

PROJECT = cast(Project, object())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sessions, "time", made)
    return made


def test_a_session_is_found_by_its_id() -> None:
    known = LegacySessions()
    session = known.begin(OWNER, PROJECT)
    assert known.find(session.id, OWNER) is session
    assert known.find(session.id[:-1], OWNER) is None
    assert known.find("", OWNER) is None


def test_ids_cannot_be_guessed() -> None:
    known = LegacySessions()
    ids = {known.begin(OWNER, PROJECT).id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(session_id) == 32 and int(session_id, 16) >= 0 for session_id in ids)


def test_anothers_session_is_as_unknown_as_none() -> None:
    known = LegacySessions()
    session = known.begin(OWNER, PROJECT)
    assert known.find(session.id, Caller(agent="another", profile="owner")) is None


def test_the_owner_may_call_from_another_conversation() -> None:
    known = LegacySessions()
    session = known.begin(OWNER, PROJECT)
    assert known.find(session.id, Caller(agent="owner", profile="owner", conversation="b")) is session


def test_a_session_that_was_ended_is_gone() -> None:
    known = LegacySessions()
    session = known.begin(OWNER, PROJECT)
    known.end(session)
    known.end(session)
    assert known.find(session.id, OWNER) is None
    assert len(known) == 0


def test_an_idle_session_is_forgotten_and_a_used_one_kept(clock: Clock) -> None:
    known = LegacySessions()
    idle, used, busy = (known.begin(OWNER, PROJECT) for _ in range(3))
    busy.under_way[1] = lambda: None
    clock.now += sessions.IDLE_LIMIT - 1
    assert known.find(used.id, OWNER) is used
    clock.now += 2
    known.begin(OWNER, PROJECT)
    assert known.find(idle.id, OWNER) is None
    assert known.find(used.id, OWNER) is used
    assert known.find(busy.id, OWNER) is busy


def test_where_all_places_are_taken_the_one_unused_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 3)
    known = LegacySessions()
    first, second, third = (known.begin(OWNER, PROJECT) for _ in range(3))
    known.find(first.id, OWNER)
    fourth = known.begin(OWNER, PROJECT)
    assert [bool(known.find(s.id, OWNER)) for s in (first, second, third, fourth)] == [True, False, True, True]


def test_sessions_at_work_are_not_forgotten_and_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 3)
    known = LegacySessions()
    for _ in range(3):
        known.begin(OWNER, PROJECT).under_way[1] = lambda: None
    with pytest.raises(TooManySessions) as caught:
        known.begin(OWNER, PROJECT)
    assert caught.value.http_status == 503
    assert len(known) == 3
