"""Ending, closing and reading a run of `run_agent`: however and whenever it ends, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from parts.agent_runs import (
    SERVERS,
    Calls,
    FakeServers,
    Piece,
    desk,
    in_memory,
    of,
    only,
    options,
    other_tasks,
    result,
    run,
    turns,
)
from toolcrib.agent_loop import coding
from toolcrib.agent_loop.event_queue import MAX_UNREAD_EVENTS
from toolcrib.agent_loop.events import (
    McpConnected,
    NameConflict,
    RunEnd,
    RunEvent,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCalled,
)
from toolcrib.agent_loop.options import CodingTools, ToolRequest
from toolcrib.agent_loop.run import AgentRun, run_agent
from toolcrib.core.results import Result, read_result
from toolcrib.errors import UsageError

MOST_TURNS = 2000
"""More turns of the event loop than the run below takes."""
HISTORY = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Before."}]}]


class InlineExecutor(ThreadPoolExecutor):
    """Runs each function at once, so that every run takes the same turns of the event loop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **named))
        return done


@pytest.fixture
async def inline_executor() -> None:
    asyncio.get_running_loop().set_default_executor(InlineExecutor())


@pytest.fixture(autouse=True)
async def _no_tasks_left() -> AsyncIterator[None]:
    yield
    assert not other_tasks()


class FakeCodingTools:
    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.offers = (coding._offer(b'{"name":"Bash","inputSchema":{"type":"object"}}'),)

    @asynccontextmanager
    async def open(self, _: CodingTools) -> AsyncIterator[Any]:
        await turns(1)
        self.opened += 1
        try:
            yield SimpleNamespace(offers=self.offers, call=self._call, checked=lambda _, given: given)
        finally:
            try:
                await turns(2)
            finally:
                self.closed += 1

    async def _call(self, name: str, arguments: dict[str, Any]) -> Result:
        await turns(2)
        return read_result(b'{"content":[{"type":"text","text":"ran"}]}')


class FullRun:
    """A run with everything: built-in tools, servers, two calls at once, an approval."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0

        async def slow(_: Any) -> dict[str, Any]:
            self.calls += 1
            try:
                await turns(3)
            finally:
                self.calls -= 1
            return result("x")

        self.asked: list[str] = []

        async def approve(request: ToolRequest) -> bool:
            self.asked.append(request.name)
            await turns(1)
            return True

        self.kit = desk(slow=slow, Bash=lambda _: "not this one")
        self.tools = FakeCodingTools()
        turn = ["I act.", Calls(tool="slow"), Calls(tool="Bash")]
        self.model = in_memory(patch, turn, ["That", " was", " it."], kit=self.kit)
        patch.setattr(coding, "coding_tools", self.tools.open)
        self.run: AgentRun = run_agent("Go.", options(**SERVERS, coding_tools="all", approve=approve))
        self.events: list[RunEvent] = []

    async def read(self) -> None:
        async for event in self.run:
            self.events.append(event)

    def assert_all_closed(self) -> None:
        assert self.kit.opened == self.kit.closed
        assert self.model.opened == self.model.closed
        assert self.tools.opened == self.tools.closed
        assert self.calls == 0

    def assert_nothing_left(self, besides: asyncio.Task[None] | None = None) -> None:
        assert not other_tasks() - {besides}
        self.assert_all_closed()


async def cancelled(_: FullRun, reader: asyncio.Task[None]) -> None:
    reader.cancel()
    await asyncio.wait({reader})


async def cancelled_twice(_: FullRun, reader: asyncio.Task[None]) -> None:
    reader.cancel()
    await turns(2)
    reader.cancel()
    await asyncio.wait({reader})


async def closed_by_another_task(full: FullRun, reader: asyncio.Task[None]) -> None:
    await full.run.aclose()
    full.assert_nothing_left(besides=reader)
    await reader


async def all_cancelled(_: FullRun, reader: asyncio.Task[None]) -> None:
    """Like the end of asyncio.run."""
    tasks = other_tasks()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", [cancelled, cancelled_twice, closed_by_another_task, all_cancelled])
@pytest.mark.usefixtures("inline_executor")
async def test_a_run_that_ends_at_any_await_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[FullRun, asyncio.Task[None]], Any]
) -> None:
    for step in itertools.count():
        assert step < MOST_TURNS
        full = FullRun(monkeypatch)
        reader = asyncio.create_task(full.read())
        await turns(step)
        if reader.done():
            await reader
            break
        async with asyncio.timeout(60):
            await end(full, reader)
        full.assert_nothing_left()
        assert full.kit.disturbed == 0 or end is all_cancelled, "closing was cut short"
    assert step > 30
    assert isinstance(full.events[-1], RunFinished)
    assert of(NameConflict, full.events)
    full.assert_nothing_left()


@pytest.mark.req("KAI-3")
@pytest.mark.usefixtures("inline_executor")
async def test_a_reader_that_leaves_its_loop_at_any_event_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in itertools.count(1):
        full = FullRun(monkeypatch)
        run_, full.run = full.run, None  # type: ignore[assignment]
        seen = 0
        async for _ in run_:
            seen += 1
            if seen == wanted:
                break
        if seen < wanted:
            break
        # The last reference; aclose is never called.
        del run_
        await turns(20)
        full.assert_nothing_left()
    assert wanted > 8


@pytest.mark.req("KAI-3")
async def test_a_reader_that_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullRun(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        async with full.run as events:
            async for event in events:
                if isinstance(event, ToolCalled):
                    raise ZeroDivisionError
    full.assert_nothing_left()
    assert full.kit.opened == 1


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("wanted", [RunStarted, McpConnected, ToolCalled, RunFinished])
def test_a_run_ends_with_its_event_loop(monkeypatch: pytest.MonkeyPatch, wanted: type[RunEvent]) -> None:
    full: FullRun | None = None

    async def main() -> None:
        nonlocal full
        full = FullRun(monkeypatch)
        async for event in full.run:
            if isinstance(event, wanted):
                return

    asyncio.run(main())
    assert full is not None
    full.assert_all_closed()
    assert full.tools.opened == 1
    # Its finalizer must not fail, although the event loop is closed.
    del full
    gc.collect()


async def test_a_closed_run_has_no_more_events_and_an_unread_one_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullRun(monkeypatch)
    await full.run.aclose()
    assert [event async for event in full.run] == []
    FullRun(monkeypatch).run.__del__()
    assert (full.kit.opened, full.tools.opened) == (0, 0)
    full = FullRun(monkeypatch)
    assert isinstance(await anext(full.run), RunStarted)
    await asyncio.gather(full.run.aclose(), full.run.aclose())
    await full.run.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(full.run)
    full.assert_nothing_left()


async def test_a_server_that_cannot_be_closed_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(FakeServers):
        async def __aexit__(self, *_: object) -> None:
            raise OSError("it cannot be closed")

    model = in_memory(monkeypatch, ["Fine."], kit=Stuck({"desk": {}}))
    assert only(RunFinished, await run(**SERVERS, api_key="sk-secret")).text == "Fine."
    assert "it cannot be closed" in caplog.text
    assert model.closed == 1


@pytest.mark.req("KAI-5")
async def test_a_built_in_tool_has_priority_over_a_servers_and_all_is_closed_before_the_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = FullRun(monkeypatch)
    async for event in full.run:
        full.events.append(event)
        if isinstance(event, RunFinished):
            assert (full.kit.closed, full.model.closed, full.tools.closed) == (1, 1, 1)
    conflict = only(NameConflict, full.events)
    assert (conflict.name, conflict.kept, conflict.left_out) == ("Bash", "Bash", "desk:Bash")
    assert full.model.offered[0] == ["Bash", "slow"]
    assert [part.content for part in full.model.results] == ["x", "ran"]
    assert sorted(full.asked) == ["Bash", "slow"]


async def test_concurrent_runs_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    crib = desk(ask=lambda _: "answer")
    in_memory(monkeypatch, [Calls(tool="ask")], ["Done."])
    runs = await asyncio.gather(*(run(f"Run {n}.", crib=crib) for n in range(20)))
    for number, events in enumerate(runs):
        last = only(RunFinished, events)
        assert last.steps == 2
        assert [part["content"] for part in last.messages[0]["parts"]] == [f"Run {number}."]
        assert {event.run_id for event in events} == {last.run_id}
    assert len({events[0].run_id for events in runs}) == len(runs) == len(crib.calls)


async def directly(run_: AgentRun) -> None:
    await run_.aclose()


async def in_a_task(run_: AgentRun) -> None:
    await asyncio.create_task(run_.aclose())


async def in_another_run(run_: AgentRun) -> None:
    async def approve(_: ToolRequest) -> bool:
        await run_.aclose()
        return True

    async for _ in run_agent("Inner.", options(**SERVERS, approve=approve)):
        pass


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("close", [directly, in_a_task, in_another_run])
async def test_approve_can_close_its_run_and_then_the_tool_does_not_run(
    monkeypatch: pytest.MonkeyPatch, close: Callable[[AgentRun], Any], calls: int
) -> None:
    async def approve(_: ToolRequest) -> bool:
        await close(run_)
        return True

    kit = desk(act=lambda _: "done")
    model = in_memory(monkeypatch, [Calls(tool="act")] * calls, ["Done."], kit=kit)
    run_ = run_agent("Go.", options(**SERVERS, approve=approve))
    async with asyncio.timeout(60):
        assert "run_finished" not in [event.type async for event in run_]
        await run_.aclose()
    assert kit.calls == []
    assert kit.opened == kit.closed > 0
    assert model.opened == model.closed


@pytest.mark.req("KAI-3")
async def test_a_server_can_close_the_run_that_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closer(FakeServers):
        async def __aexit__(self, *what: object) -> None:
            await run_.aclose()
            await super().__aexit__(*what)

    kit = Closer({"desk": {}})
    in_memory(monkeypatch, ["Done."], kit=kit)
    run_ = run_agent("Go.", options(**SERVERS))
    async with asyncio.timeout(60):
        assert [event.type async for event in run_][-1] == "run_finished"
    assert (kit.closed, kit.disturbed) == (1, 0)


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("given", [{}, {"history": HISTORY}])
async def test_a_run_that_is_closed_while_it_starts_sends_no_request(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    for step in range(4):
        kit = desk()
        model = in_memory(monkeypatch, ["Hello."], kit=kit)
        run_ = run_agent("Go.", options(**SERVERS, **given))
        reader = asyncio.create_task(anext(run_, "over"))
        await turns(step)
        async with asyncio.timeout(60):
            await run_.aclose()
            assert not other_tasks() - {reader}
            event = await reader
            assert await anext(run_, "over") == "over"
        assert kit.opened == kit.closed
        assert model.opened == model.closed
        assert not model.asked
        assert event != "over" or kit.opened == model.opened == 0


@pytest.mark.parametrize("given", [{}, {"history": HISTORY}])
async def test_a_second_reader_is_refused_and_the_first_continues(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    model = in_memory(monkeypatch, ["Hello."])
    run_ = run_agent("Go.", options(**given))
    first, *others = await asyncio.gather(*(anext(run_) for _ in range(4)), return_exceptions=True)
    assert isinstance(first, RunStarted)
    assert [isinstance(other, UsageError) and bool(other.remedy) for other in others] == [True] * 3
    assert only(RunFinished, [event async for event in run_]).text == "Hello."
    assert (model.opened, len(model.asked)) == (1, 1)


async def test_a_cancelled_reader_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, [lambda: asyncio.Event().wait()])
    run_ = run_agent("Go.", options())
    assert isinstance(await anext(run_), RunStarted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(run_), 0.01)
    assert await anext(run_, "over") == "over"


@pytest.mark.req("KAI-3")
async def test_an_answer_waits_for_a_reader_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def count() -> None:
        nonlocal sent
        sent += 1

    pieces: list[Piece] = ["x", count]
    in_memory(monkeypatch, pieces * 4 * MAX_UNREAD_EVENTS)
    run_ = run_agent("Go.", options())
    async for event in run_:
        if isinstance(event, TextDelta):
            break
    await turns(20 * MAX_UNREAD_EVENTS)
    assert MAX_UNREAD_EVENTS <= sent <= MAX_UNREAD_EVENTS + 2
    async with asyncio.timeout(60):
        rest = [event async for event in run_]
    assert only(RunFinished, rest).text == "x" * 4 * MAX_UNREAD_EVENTS
    assert "x" + "".join(event.text for event in of(TextDelta, rest)) == "x" * 4 * MAX_UNREAD_EVENTS


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", ["closed", "timeout"])
async def test_a_run_that_waits_for_its_reader_can_be_ended(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    asked = asyncio.Event()
    model = in_memory(monkeypatch, [asked.set, *["x"] * 4 * MAX_UNREAD_EVENTS])
    run_ = run_agent("Go.", options(timeout=0.3 if end == "timeout" else None))
    assert isinstance(await anext(run_), RunStarted)
    async with asyncio.timeout(60):
        await asked.wait()
        await turns(50)
        if end == "closed":
            await run_.aclose()
        else:
            await asyncio.wait(other_tasks())
            last = only(RunFinished, [event async for event in run_])
            assert last.ended is RunEnd.TIMEOUT
            assert MAX_UNREAD_EVENTS <= len(last.text) < 4 * MAX_UNREAD_EVENTS
    assert model.opened == model.closed == 1
