"""Sessions: found at once, begun durably, bound to their agent, forgotten when nobody needs them, none lost."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from toolcrib.errors import NotFound, StoreError, TooManySessions
from toolcrib.events import AgentEnded, Bus, CallOutcome
from toolcrib.identity import sessions as module
from toolcrib.identity.sessions import Session, SessionRegistry
from toolcrib.store import identity as rows
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store
from toolcrib.store.identity import SessionRow

pytestmark = pytest.mark.req("KSI-3", "KSI-9")

DAY = 24 * 3600.0


class SessionsHarness:
    """Sessions on a store that can be closed and opened again, as by a restart."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bus = Bus()
        self.agents = {"a", "b", "owner"}
        self.commits: GroupCommit | None = None

    @contextlib.asynccontextmanager
    async def open(self, *, idle: float = DAY) -> AsyncIterator[SessionRegistry]:
        store = await Store.open(self.url)
        self.commits = commits = GroupCommit(store)
        sessions = await SessionRegistry.open(store, commits, bus=self.bus, exists=self.agents.__contains__, idle=idle)
        try:
            yield sessions
        finally:
            await sessions.close()
            await commits.close()
            await store.close()

    async def stored(self) -> dict[tuple[str, str], SessionRow]:
        """What a process that is killed now leaves behind."""
        store = await Store.open(self.url)
        found = {(row.agent, row.conversation): row for row in await store.read(rows.all_sessions)}
        await store.close()
        return found

    async def until(self, condition: Callable[[dict[tuple[str, str], SessionRow]], bool]) -> None:
        for _ in range(500):
            if condition(await self.stored()):
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"the store still holds {await self.stored()}")

    async def stored_ids(self) -> dict[str, tuple[str, str]]:
        store = await Store.open(self.url)
        found = {row.id: (row.agent, row.conversation) for row in await store.read(rows.all_legacy_sessions)}
        await store.close()
        return found


@pytest.fixture
def harness(store_url: str) -> SessionsHarness:
    return SessionsHarness(store_url)


@pytest.fixture
def light(tmp_path: Any) -> SessionsHarness:
    """On SQLite alone, for what does not depend on the engine."""
    return SessionsHarness(str(tmp_path / "crib.db"))


class Clock:
    """The wall's clock and the loop's, moved by hand."""

    def __init__(self, sessions: SessionRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = (time.time, sessions._loop.time)
        self.ahead = 0.0
        monkeypatch.setattr(module.time, "time", lambda: self._real[0]() + self.ahead)
        self._sessions = sessions
        loop_time = sessions._loop.time

        class Loop:
            def time(inner) -> float:
                return loop_time() + self.ahead

            def call_later(inner, delay: float, work: Callable[[], None]) -> asyncio.TimerHandle:
                return asyncio.get_running_loop().call_later(delay, work)

        monkeypatch.setattr(sessions, "_loop", Loop())


def use(sessions: SessionRegistry, session: Session) -> None:
    sessions.used(session, catalog_version=1, permission_version=1)


async def test_a_session_is_found_by_its_agent_and_conversation_alone(light: SessionsHarness) -> None:
    async with light.open() as sessions:
        assert sessions.find("a", "x") is None
        session = await sessions.begin("a", "x")
        assert sessions.find("a", "x") is session
        assert await sessions.begin("a", "x") is session
        assert sessions.find("b", "x") is None
        assert sessions.find("a", "y") is None
        assert sessions.by_id(session.id) is session
        with pytest.raises(NotFound):
            sessions.by_id("s_0")


async def test_a_session_that_began_is_in_the_store_before_anybody_is_told(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        session = await sessions.begin("a", "x")
        row = (await harness.stored())["a", "x"]
        assert (row.id, row.agent, row.conversation) == (session.id, "a", "x")


async def test_who_comes_while_a_session_is_being_written_waits_as_well(light: SessionsHarness) -> None:
    async with light.open() as sessions:
        first = asyncio.create_task(sessions.begin("a", "x"))
        await asyncio.sleep(0)
        assert sessions.find("a", "x") is None
        second = await sessions.begin("a", "x")
        assert await first is second
        assert len(sessions) == 1


async def test_a_restart_loses_neither_a_session_nor_what_was_counted_in_it(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        session = await sessions.begin("a", "x")
        sessions.used(session, catalog_version=7, permission_version=9, mode="full")
        sessions.listed(session)
        for outcome in ("ok", "denied", "tool_error", "timeout"):
            sessions.count(session, CallOutcome(outcome), 100)
        session.add_tokens((40, True))
        session.add_tokens((2, False))
        before = session.row()
    async with harness.open() as sessions:
        found = sessions.find("a", "x")
        assert found is not None
        assert found.row() == before
        assert (found.calls, found.denied, found.failed, found.listings) == (4, 1, 2, 1)
        assert (found.result_bytes, found.tokens, found.tokens_estimated) == (400, 42, True)
        assert (found.catalog_version, found.permission_version, found.mode) == (7, 9, "full")


async def test_what_was_counted_is_written_after_a_moment_without_being_asked(
    light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WRITE_AFTER", 0.01)
    async with light.open() as sessions:
        session = await sessions.begin("a", "x")
        sessions.count(session, CallOutcome.OK, 10)
        await light.until(lambda stored: stored["a", "x"].calls == 1)
        sessions.count(session, CallOutcome.OK, 10)
        await light.until(lambda stored: stored["a", "x"].calls == 2)


async def test_more_changes_than_one_batch_holds_are_all_written(
    light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WRITE_AFTER", 0.01)
    monkeypatch.setattr(module, "_WRITTEN_AT_ONCE", 3)
    async with light.open() as sessions:
        for number in range(10):
            sessions.count(await sessions.begin("a", f"c{number}"), CallOutcome.OK, 1)
        await light.until(lambda stored: [row.calls for row in stored.values()] == [1] * 10)


class TestTheEnd:
    async def test_an_ended_session_is_gone_from_memory_and_store(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            session = await sessions.begin("a", "x")
            await sessions.begin("a", "y")
            sessions.count(session, CallOutcome.OK, 1)
            await sessions.end(session)
            await sessions.end(session)
            assert sessions.find("a", "x") is None
            assert list(await harness.stored()) == [("a", "y")]
            assert len(sessions) == 1

    async def test_what_is_counted_after_the_end_does_not_bring_it_back(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            session = await sessions.begin("a", "x")
            await sessions.end(session)
            sessions.count(session, CallOutcome.OK, 1)
            use(sessions, session)
            session.add_tokens((1, False))
        assert await harness.stored() == {}

    async def test_a_new_session_may_take_the_place_of_an_ended_one(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            old = await sessions.begin("a", "x")
            ending = asyncio.create_task(sessions.end(old))
            await asyncio.sleep(0)
            new = await sessions.begin("a", "x")
            await ending
            assert new.id != old.id
            assert (await harness.stored())["a", "x"].id == new.id

    async def test_an_agent_takes_its_sessions_along_and_nobody_elses(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            ended: list[str] = []
            for agent in ("a", "b"):
                for conversation in ("x", "y"):
                    session = await sessions.begin(agent, conversation)
                    session.begin(lambda name=f"{agent}{conversation}": ended.append(name))
            harness.bus.publish(AgentEnded(agent="a"))
            assert sorted(ended) == ["ax", "ay"]
            assert {one.agent for one in sessions} == {"b"}
        assert sorted(await harness.stored()) == [("b", "x"), ("b", "y")]

    async def test_a_new_token_ends_what_is_open_and_keeps_the_conversation(self, light: SessionsHarness) -> None:
        async with light.open() as sessions:
            ended: list[str] = []
            session = await sessions.begin("a", "x")
            session.begin(lambda: ended.append("x"))
            light.bus.publish(AgentEnded(agent="a", returns=True))
            assert ended == ["x"]
            assert sessions.find("a", "x") is session

    async def test_all_sessions_of_an_agent_can_be_ended_by_hand(self, light: SessionsHarness) -> None:
        async with light.open() as sessions:
            for conversation in "xyz":
                await sessions.begin("a", conversation)
            await sessions.begin("b", "x")
            assert await sessions.end_agent("a") == 3
            assert await sessions.end_agent("a") == 0
            assert [(one.agent, one.conversation) for one in sessions] == [("b", "x")]

    async def test_after_a_restart_sessions_of_agents_that_are_gone_are_over(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            await sessions.begin("a", "x")
            id, _ = await sessions.begin_legacy("a", None)
            await sessions.begin("b", "x")
        harness.agents.discard("a")
        async with harness.open() as sessions:
            assert [one.agent for one in sessions] == ["b"]
            assert sessions.legacy(id, "a") is None
        assert list(await harness.stored()) == [("b", "x")]

    async def test_what_is_under_way_is_cut_short_once(self, light: SessionsHarness) -> None:
        async with light.open() as sessions:
            session = await sessions.begin("a", "x")
            ended: list[int] = []
            first, second = (lambda: ended.append(1)), (lambda: ended.append(2))
            session.begin(first)
            session.begin(second)
            session.over(first)
            session.over(first)
            await sessions.end(session)
            assert ended == [2]
            session.over(second)
            assert session.open_requests is None


class TestIdle:
    async def test_a_session_that_nobody_uses_is_swept_and_one_at_work_is_not(self, light: SessionsHarness) -> None:
        async with light.open(idle=0.2) as sessions:
            idle, busy = await sessions.begin("a", "idle"), await sessions.begin("a", "busy")
            busy.begin(lambda: None)
            await light.until(lambda stored: ("a", "idle") not in stored)
            assert idle.ended
            assert sessions.find("a", "busy") is busy
        assert list(await light.stored()) == [("a", "busy")]

    async def test_use_keeps_a_session(self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        async with light.open() as sessions:
            clock = Clock(sessions, monkeypatch)
            kept, idle = await sessions.begin("a", "kept"), await sessions.begin("a", "idle")
            clock.ahead = DAY - 60
            use(sessions, kept)
            clock.ahead = DAY + 60
            sessions._sweep()
            sessions._sweeping.cancel()
            assert idle.ended
            assert not kept.ended

    async def test_idle_time_goes_on_over_a_restart(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with light.open() as sessions:
            await sessions.begin("a", "x")
        real = time.time
        monkeypatch.setattr(module.time, "time", lambda: real() + DAY / 2)
        async with light.open() as sessions:
            found = sessions.find("a", "x")
            assert found is not None
            assert sessions._loop.time() - found.idle_since == pytest.approx(DAY / 2, abs=60)
        monkeypatch.setattr(module.time, "time", lambda: real() + DAY + 60)
        async with light.open() as sessions:
            assert len(sessions) == 0

    async def test_a_clock_that_was_set_back_makes_no_session_immortal(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with light.open() as sessions:
            await sessions.begin("a", "x")
        real = time.time
        monkeypatch.setattr(module.time, "time", lambda: real() - 10 * DAY)
        async with light.open() as sessions:
            found = sessions.find("a", "x")
            assert found is not None
            assert found.idle_since <= sessions._loop.time()


class TestRoom:
    async def test_of_an_agent_with_too_many_the_one_unused_for_longest_goes(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_OF_AN_AGENT", 3)
        async with light.open() as sessions:
            first, second, third = [await sessions.begin("a", name) for name in "123"]
            other = await sessions.begin("b", "1")
            use(sessions, first)
            second.begin(lambda: None)
            await sessions.begin("a", "4")
            assert third.ended
            assert not (first.ended or second.ended or other.ended)

    async def test_an_agent_whose_sessions_are_all_active_gets_no_more(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_OF_AN_AGENT", 2)
        async with light.open() as sessions:
            for name in "12":
                (await sessions.begin("a", name)).begin(lambda: None)
            with pytest.raises(TooManySessions) as caught:
                await sessions.begin("a", "3")
            assert "2 active sessions" in caught.value.text()
            assert caught.value.http_status == 503
            assert len(sessions) == 2
            await sessions.begin("b", "1")

    async def test_over_all_agents_the_one_unused_for_longest_goes(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST", 4)
        async with light.open() as sessions:
            oldest = await sessions.begin("a", "1")
            others = [await sessions.begin(agent, name) for agent, name in (("b", "1"), ("a", "2"), ("b", "2"))]
            await sessions.begin("owner", "1")
            assert oldest.ended
            assert not any(one.ended for one in others)
            for one in sessions:
                one.begin(lambda: None)
            with pytest.raises(TooManySessions):
                await sessions.begin("owner", "2")


class TestLegacyIds:
    async def test_an_id_without_a_label_is_a_conversation_of_its_own(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            id, session = await sessions.begin_legacy("a", None)
            assert session.conversation == id
            assert sessions.legacy(id, "a") is session
            assert await harness.stored_ids() == {id: ("a", id)}

    async def test_ids_under_one_label_share_its_session(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            first, session = await sessions.begin_legacy("a", "x")
            second, same = await sessions.begin_legacy("a", "x")
            assert same is session is await sessions.begin("a", "x")
            assert set(await harness.stored_ids()) == {first, second}

    async def test_anothers_id_is_as_unknown_as_none(self, light: SessionsHarness) -> None:
        async with light.open() as sessions:
            id, _ = await sessions.begin_legacy("a", None)
            assert sessions.legacy(id, "b") is None
            assert sessions.legacy(id, "") is None
            assert sessions.legacy(id[:-1], "a") is None
            assert sessions.legacy("", "a") is None

    async def test_ids_cannot_be_guessed(self, light: SessionsHarness) -> None:
        async with light.open() as sessions:
            ids = {(await sessions.begin_legacy("a", "x"))[0] for _ in range(50)}
            assert len(ids) == 50
            assert all(re.fullmatch(r"[0-9a-f]{32}", id) for id in ids)

    async def test_after_a_restart_an_id_leads_to_the_same_session(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            id, session = await sessions.begin_legacy("a", None)
            labelled, other = await sessions.begin_legacy("a", "x")
        async with harness.open() as sessions:
            for one, before in ((id, session), (labelled, other)):
                found = sessions.legacy(one, "a")
                assert found is not None
                assert found.id == before.id
                assert sessions.legacy(one, "b") is None

    async def test_a_client_that_leaves_ends_its_id_and_a_session_of_its_own(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            own, _ = await sessions.begin_legacy("a", None)
            one, shared = await sessions.begin_legacy("a", "x")
            other, _ = await sessions.begin_legacy("a", "x")
            await sessions.end_legacy(own)
            await sessions.end_legacy(own)
            await sessions.end_legacy(one)
            assert sessions.legacy(own, "a") is None
            assert sessions.legacy(one, "a") is None
            assert sessions.legacy(other, "a") is shared
            assert await harness.stored_ids() == {other: ("a", "x")}
            assert list(await harness.stored()) == [("a", "x")]

    async def test_the_end_of_a_session_is_the_end_of_its_ids(self, harness: SessionsHarness) -> None:
        async with harness.open() as sessions:
            id, session = await sessions.begin_legacy("a", "x")
            await sessions.end(session)
            assert sessions.legacy(id, "a") is None
            assert await harness.stored_ids() == {}

    async def test_a_client_that_begins_again_and_again_keeps_the_ids_it_uses(
        self, light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_LEGACY_IDS", 3)
        async with light.open() as sessions:
            ids = [(await sessions.begin_legacy("a", "x"))[0] for _ in range(3)]
            assert sessions.legacy(ids[0], "a") is not None
            ids.append((await sessions.begin_legacy("a", "x"))[0])
            assert [sessions.legacy(id, "a") is not None for id in ids] == [True, False, True, True]
        assert set(await light.stored_ids()) == {ids[0], ids[2], ids[3]}


class Broken(GroupCommit):
    """A store that cannot be written."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.failure = StoreError("no room")

    async def settled(self) -> None:
        raise StoreError("no room")


async def test_a_store_that_cannot_be_written_ends_no_conversation(light: SessionsHarness) -> None:
    store = await Store.open(light.url)
    commits = Broken(store)
    sessions = await SessionRegistry.open(store, commits, bus=light.bus, exists=light.agents.__contains__, idle=DAY)
    session = await sessions.begin("a", "x")
    assert sessions.find("a", "x") is session
    id, _ = await sessions.begin_legacy("a", None)
    assert sessions.legacy(id, "a") is not None
    await sessions.close()
    await commits.close()
    await store.close()
    assert ("a", "x") in await light.stored()


async def test_a_store_that_does_not_answer_holds_up_a_beginning_only_for_a_while(
    light: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    async with light.open() as sessions:
        assert light.commits is not None

        async def never() -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as stuck:
            stuck.setattr(light.commits, "flush", never)
            async with asyncio.timeout(60):
                session = await sessions.begin("a", "x")
        assert sessions.find("a", "x") is session


@pytest.mark.slow
async def test_ten_thousand_sessions_are_cheap(light: SessionsHarness) -> None:
    light.agents |= {f"agent-{number}" for number in range(100)}
    store = await Store.open(light.url)
    commits = GroupCommit(store)
    sessions = await SessionRegistry.open(store, commits, bus=light.bus, exists=light.agents.__contains__, idle=DAY)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(10_000):
        sessions._made(f"agent-{number % 100}", f"conversation-{number}").kept = True
    await commits.flush()
    each = (tracemalloc.get_traced_memory()[0] - before) / 10_000
    tracemalloc.stop()
    keys = [(f"agent-{number % 100}", f"conversation-{number}") for number in range(10_000)]
    assert None not in [sessions.find(*key) for key in keys]
    await sessions.close()
    await commits.close()
    await store.close()
    print(f"a session takes {each:.0f} bytes")
    assert each < 1500
