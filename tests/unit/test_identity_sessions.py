"""Sessions are found at once, start durably, belong to one agent, end when unused, and survive restarts."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.model import ListingMode
from toolcrib.errors import NotFound, StoreError, TooManySessions
from toolcrib.events import AgentEnded, Bus, CallOutcome
from toolcrib.identity import sessions as module
from toolcrib.identity import usage
from toolcrib.identity.sessions import Session, SessionRegistry
from toolcrib.identity.usage import ShownTools, TokenCounter, TokenKind
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
        self.commits: GroupCommit

    @contextlib.asynccontextmanager
    async def open(
        self, *, idle: float = DAY, commits: Callable[[Store], GroupCommit] = GroupCommit
    ) -> AsyncIterator[SessionRegistry]:
        store = await Store.open(self.url)
        self.commits = commits(store)
        exists = self.agents.__contains__
        sessions = await SessionRegistry.open(
            store, self.commits, bus=self.bus, exists=exists, idle=idle, count_tokens=lambda data: (len(data), False)
        )
        try:
            yield sessions
        finally:
            await sessions.close()
            await self.commits.close()
            await store.close()

    async def read(self, query: Callable[..., Any]) -> Any:
        """What a process that is killed now leaves behind."""
        store = await Store.open(self.url)
        found = await store.read(query)
        await store.close()
        return found

    async def stored(self) -> dict[tuple[str, str], SessionRow]:
        return {(row.agent, row.conversation): row for row in await self.read(rows.all_sessions)}

    async def stored_ids(self) -> dict[str, tuple[str, str]]:
        return {row.id: (row.agent, row.conversation) for row in await self.read(rows.all_legacy_sessions)}

    async def until(self, condition: Callable[[dict[tuple[str, str], SessionRow]], bool]) -> None:
        for _ in range(500):
            if condition(await self.stored()):
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"the store still holds {await self.stored()}")


@pytest.fixture
def harness(store_url: str) -> SessionsHarness:
    return SessionsHarness(store_url)


@pytest.fixture
def sqlite(tmp_path: Path) -> SessionsHarness:
    """For behaviours that do not depend on the database."""
    return SessionsHarness(str(tmp_path / "crib.db"))


def use(sessions: SessionRegistry, session: Session) -> None:
    sessions.used(session, catalog_version=1, permission_version=1)


async def test_a_session_is_found_only_by_its_agent_and_conversation(sqlite: SessionsHarness) -> None:
    async with sqlite.open() as sessions:
        first = asyncio.create_task(sessions.begin("a", "x"))
        await asyncio.sleep(0)
        assert sessions.find("a", "x") is None, "it is not durable yet"
        session = await sessions.begin("a", "x")
        assert await first is session is sessions.find("a", "x") is await sessions.begin("a", "x")
        assert (sessions.find("b", "x"), sessions.find("a", "y"), len(sessions)) == (None, None, 1)
        assert sessions.by_id(session.id) is session
        with pytest.raises(NotFound):
            sessions.by_id("s_0")


async def test_a_restart_loses_neither_a_session_nor_its_counts(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        session = await sessions.begin("a", "x")
        assert (await harness.stored())["a", "x"].id == session.id, "it is stored before `begin` returns"
        sessions.used(session, catalog_version=7, permission_version=9)
        sessions.listed(session, "thin", b"[...]")
        for outcome in ("ok", "denied", "tool_error", "timeout"):
            sessions.count(session, CallOutcome(outcome), 100, tool="w:t")
        session.add_tokens(TokenKind.RESULTS, (40, True))
        session.add_tokens(TokenKind.ARGUMENTS, (2, False))
        assert sessions.next_listing("a", "y") is ListingMode.FULL
    before = session.row()
    async with harness.open() as sessions:
        found = sessions.find("a", "x")
        assert found is not None
        assert found.row() == before
        assert (found.calls, found.denied, found.failed, found.listings) == (4, 1, 2, 1)
        assert found.result_bytes == 400
        assert found.usage.tokens == {"lists": 5, "results": 40, "arguments": 2}, "also the last list"
        assert (found.usage.total, found.usage.estimated) == (47, True)
        assert (found.catalog_version, found.permission_version, found.mode) == (7, 9, "thin")
        assert sessions.next_listing("a", "x") is ListingMode.THIN


async def test_searches_and_repairs_are_counted_with_the_ranks_of_the_tools_that_were_called(
    sqlite: SessionsHarness,
) -> None:
    async with sqlite.open() as sessions:
        session = await sessions.begin("a", "x")
        for tools in (["w:b", "w:t", "w:c"], ["w:c", "w:a"]):
            sessions.count_answer(session, TokenKind.SEARCHES)
            sessions.searched(session, tools)
        sessions.answered(session, TokenKind.REPAIRS, b"wrong: x")
        for outcome, tool in (("invalid", "w:t"), ("ok", "w:t"), ("ok", "w:c"), ("ok", "w:never_shown")):
            sessions.count(session, CallOutcome(outcome), 0, tool=tool)
    async with sqlite.open() as sessions:
        found = sessions.find("a", "x")
        assert found is not None
        assert found.usage.answers == {"searches": 2, "repairs": 1}
        assert found.usage.tokens == {"repairs": 8}
        assert found.usage.ranks == {2: 1, 1: 1}, "the first call of each; w:c was first in the latest search"
        assert found.usage.mean_rank == 1.5


def test_only_the_latest_searches_are_remembered() -> None:
    shown = ShownTools()
    shown.add([f"w:{number}" for number in range(100)])
    shown.add(["w:new"])
    assert (shown.chosen("w:99"), shown.chosen("w:0"), shown.chosen("w:1")) == (None, None, 2)
    assert (shown.chosen("w:new"), shown.chosen("w:new")) == (1, None)


async def test_tokens_are_counted_after_the_answer_and_too_many_bytes_are_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "_MOST_WAITING", 10)
    counts: list[tuple[int, bool]] = []
    counter = TokenCounter(lambda data: (len(data), False))
    counter.add(counts.append, b"12345678")
    counter.add(counts.append, b"12345678")
    assert (counts, counter.is_needed) == ([(2, True)], True)
    await counter.run()
    counter.add(counts.append, b"12345678")
    assert counts == [(2, True), (8, False)]


async def test_counts_are_written_after_a_moment_in_batches(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WRITE_AFTER", 0.01)
    monkeypatch.setattr(module, "_WRITTEN_AT_ONCE", 3)
    async with sqlite.open() as sessions:
        begun = [await sessions.begin("a", f"c{number}") for number in range(10)]
        for calls in (1, 2):
            for session in begun:
                sessions.count(session, CallOutcome.OK, 1, tool="w:t")
            await sqlite.until(lambda stored, calls=calls: [row.calls for row in stored.values()] == [calls] * 10)


async def test_an_ended_session_is_removed_and_later_counts_do_not_restore_it(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        session = await sessions.begin("a", "x")
        await sessions.begin("a", "y")
        sessions.count(session, CallOutcome.OK, 1, tool="w:t")
        await sessions.end(session)
        await sessions.end(session)
        assert (sessions.find("a", "x"), len(sessions)) == (None, 1)
        assert list(await harness.stored()) == [("a", "y")]
        sessions.count(session, CallOutcome.OK, 1, tool="w:t")
        sessions.listed(session, "full", b"[]")
        use(sessions, session)
        session.add_tokens(TokenKind.RESULTS, (1, False))
    assert list(await harness.stored()) == [("a", "y")]


async def test_a_new_session_may_replace_an_ended_one(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        old = await sessions.begin("a", "x")
        ending = asyncio.create_task(sessions.end(old))
        await asyncio.sleep(0)
        new = await sessions.begin("a", "x")
        await ending
        assert new.id != old.id
        assert (await harness.stored())["a", "x"].id == new.id


async def test_the_end_of_an_agent_ends_its_sessions_and_no_others(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        interrupted: list[str] = []
        for name in ("ax", "ay", "bx", "by"):
            session = await sessions.begin(*name)
            session.begin(lambda name=name: interrupted.append(name))
        harness.bus.publish(AgentEnded(agent="b", returns=True))
        assert sorted(interrupted) == ["bx", "by"], "a new token ends open requests"
        assert len(sessions) == 4, "a new token keeps the conversations"
        harness.bus.publish(AgentEnded(agent="a"))
        assert sorted(interrupted) == ["ax", "ay", "bx", "by"]
        assert {one.agent for one in sessions} == {"b"}
    assert sorted(await harness.stored()) == [("b", "x"), ("b", "y")]


async def test_all_sessions_of_an_agent_can_be_ended(sqlite: SessionsHarness) -> None:
    async with sqlite.open() as sessions:
        for name in ("ax", "ay", "az", "bx"):
            await sessions.begin(*name)
        assert (await sessions.end_agent("a"), await sessions.end_agent("a")) == (3, 0)
        assert [(one.agent, one.conversation) for one in sessions] == [("b", "x")]


async def test_a_restart_ends_sessions_of_removed_agents(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        await sessions.begin("a", "x")
        id, _ = await sessions.begin_legacy("a", None)
        await sessions.begin("b", "x")
    harness.agents.discard("a")
    async with harness.open() as sessions:
        assert [one.agent for one in sessions] == ["b"]
        assert sessions.legacy(id, "a") is None
    assert list(await harness.stored()) == [("b", "x")]


async def test_open_requests_are_interrupted_once(sqlite: SessionsHarness) -> None:
    async with sqlite.open() as sessions:
        session = await sessions.begin("a", "x")
        interrupted: list[int] = []
        first, second = (lambda: interrupted.append(1)), (lambda: interrupted.append(2))
        session.begin(first)
        session.begin(second)
        session.over(first)
        session.over(first)
        await sessions.end(session)
        assert interrupted == [2]
        session.over(second)
        assert session.open_requests is None


async def test_an_unused_session_ends_and_an_active_one_does_not(sqlite: SessionsHarness) -> None:
    async with sqlite.open(idle=0.2) as sessions:
        idle, busy = await sessions.begin("a", "idle"), await sessions.begin("a", "busy")
        busy.begin(lambda: None)
        await sqlite.until(lambda stored: ("a", "idle") not in stored)
        assert idle.ended
        assert sessions.find("a", "busy") is busy
    assert list(await sqlite.stored()) == [("a", "busy")]


async def test_using_a_session_keeps_it(sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sqlite.open() as sessions:
        loop, ahead = sessions._loop, 0.0

        class MovedLoop:
            call_later = staticmethod(loop.call_later)

            def time(self) -> float:
                return loop.time() + ahead

        monkeypatch.setattr(sessions, "_loop", MovedLoop())
        kept, idle = await sessions.begin("a", "kept"), await sessions.begin("a", "idle")
        ahead = DAY - 60
        use(sessions, kept)
        ahead = DAY + 60
        sessions._sweep()
        sessions._sweeping.cancel()
        assert (idle.ended, kept.ended) == (True, False)


async def test_idle_time_continues_across_a_restart_and_a_clock_set_back_does_not_extend_it(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.open() as sessions:
        await sessions.begin("a", "x")
    real = time.time
    for moved, idle in ((DAY / 2, DAY / 2), (-10 * DAY, 0.0), (DAY + 60, None)):
        monkeypatch.setattr(module.time, "time", lambda moved=moved: real() + moved)
        async with sqlite.open() as sessions:
            found = sessions.find("a", "x")
            assert (found is None) == (idle is None)
            if found is not None:
                since = sessions._loop.time() - found.idle_since
                assert since >= 0
                assert since == pytest.approx(idle, abs=60)


async def test_at_the_limit_the_least_recently_used_session_ends(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.open() as sessions:
        monkeypatch.setattr(module, "MOST_OF_AN_AGENT", 3)
        first, second, third = [await sessions.begin("a", name) for name in "123"]
        other = await sessions.begin("b", "1")
        use(sessions, first)
        second.begin(lambda: None)
        await sessions.begin("a", "4")
        assert [one.ended for one in (first, second, third, other)] == [False, False, True, False]
        monkeypatch.setattr(module, "MOST", 4)
        await sessions.begin("owner", "1")
        assert [one.ended for one in (first, second, other)] == [False, False, True], "second has an open request"
        for one in sessions:
            one.begin(lambda: None)
        with pytest.raises(TooManySessions):
            await sessions.begin("owner", "2")


async def test_an_agent_whose_sessions_are_all_active_gets_an_error_with_the_limit(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OF_AN_AGENT", 2)
    async with sqlite.open() as sessions:
        for name in "12":
            (await sessions.begin("a", name)).begin(lambda: None)
        with pytest.raises(TooManySessions, match="2 active sessions") as caught:
            await sessions.begin("a", "3")
        assert caught.value.http_status == 503
        assert len(sessions) == 2
        await sessions.begin("b", "1")


async def test_a_legacy_id_belongs_to_its_agents_session_also_after_a_restart(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        own, session = await sessions.begin_legacy("a", None)
        assert session.conversation == own
        first, shared = await sessions.begin_legacy("a", "x")
        second, same = await sessions.begin_legacy("a", "x")
        assert same is shared is await sessions.begin("a", "x")
        assert await harness.stored_ids() == {own: ("a", own), first: ("a", "x"), second: ("a", "x")}
        expected = {own: session.id, first: shared.id, second: shared.id}
        assert {id: one.id for id in expected if (one := sessions.legacy(id, "a"))} == expected
    async with harness.open() as sessions:
        assert {id: one.id for id in expected if (one := sessions.legacy(id, "a"))} == expected
        unknown = [(own, "b"), (first, "b"), (own, ""), (own[:-1], "a"), ("", "a")]
        assert [sessions.legacy(*one) for one in unknown] == [None] * 5


async def test_what_a_legacy_client_can_be_asked_is_known_after_a_restart(harness: SessionsHarness) -> None:
    forms = {"elicitation": {"form": {}}}
    async with harness.open() as sessions:
        own, _ = await sessions.begin_legacy("a", "x", forms)
        plain, _ = await sessions.begin_legacy("a", "y")
    async with harness.open() as sessions:
        assert (sessions.capabilities(own), sessions.capabilities(plain)) == (forms, {})
        await sessions.end_legacy(own)
        assert sessions.capabilities(own) == {}


async def test_legacy_ids_cannot_be_guessed(sqlite: SessionsHarness) -> None:
    async with sqlite.open() as sessions:
        ids = {(await sessions.begin_legacy("a", "x"))[0] for _ in range(50)}
        assert len(ids) == 50
        assert all(re.fullmatch(r"[0-9a-f]{32}", id) for id in ids)


async def test_a_client_that_leaves_ends_its_id_and_an_unlabelled_session(harness: SessionsHarness) -> None:
    async with harness.open() as sessions:
        own, _ = await sessions.begin_legacy("a", None)
        one, shared = await sessions.begin_legacy("a", "x")
        other, _ = await sessions.begin_legacy("a", "x")
        for id in (own, own, one):
            await sessions.end_legacy(id)
        assert [sessions.legacy(id, "a") for id in (own, one, other)] == [None, None, shared]
        assert await harness.stored_ids() == {other: ("a", "x")}
        assert list(await harness.stored()) == [("a", "x")]
        await sessions.end(shared)
        assert sessions.legacy(other, "a") is None
        assert await harness.stored_ids() == {}


async def test_a_client_that_initializes_repeatedly_keeps_the_ids_it_uses(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LEGACY_IDS", 3)
    async with sqlite.open() as sessions:
        ids = [(await sessions.begin_legacy("a", "x"))[0] for _ in range(3)]
        assert sessions.legacy(ids[0], "a") is not None
        ids.append((await sessions.begin_legacy("a", "x"))[0])
        assert [sessions.legacy(id, "a") is not None for id in ids] == [True, False, True, True]
    assert set(await sqlite.stored_ids()) == {ids[0], ids[2], ids[3]}


class FailingCommits(GroupCommit):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.failure = StoreError("no room")

    async def settled(self) -> None:
        raise StoreError("no room")


async def test_a_failing_store_ends_no_conversation(sqlite: SessionsHarness) -> None:
    async with sqlite.open(commits=FailingCommits) as sessions:
        session = await sessions.begin("a", "x")
        assert sessions.find("a", "x") is session
        id, _ = await sessions.begin_legacy("a", None)
        assert sessions.legacy(id, "a") is not None
    assert ("a", "x") in await sqlite.stored()


async def test_a_new_session_waits_only_a_limited_time_for_the_store(
    sqlite: SessionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    async with sqlite.open() as sessions:
        with monkeypatch.context() as stuck:
            stuck.setattr(sqlite.commits, "flush", asyncio.Event().wait)
            async with asyncio.timeout(60):
                session = await sessions.begin("a", "x")
        assert sessions.find("a", "x") is session


@pytest.mark.slow
async def test_ten_thousand_sessions_need_little_memory(sqlite: SessionsHarness) -> None:
    sqlite.agents |= {f"agent-{number}" for number in range(100)}
    keys = [(f"agent-{number % 100}", f"conversation-{number}") for number in range(10_000)]
    async with sqlite.open() as sessions:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for key in keys:
            sessions._made(*key).kept = True
        await sqlite.commits.flush()
        each = (tracemalloc.get_traced_memory()[0] - before) / 10_000
        tracemalloc.stop()
        assert None not in [sessions.find(*key) for key in keys]
    print(f"a session takes {each:.0f} bytes")
    assert each < 1500
