"""However a run of `run_agent` ends, and whenever: nothing of it is left."""

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

from parts.agent_runs import Bench, Calls, World, in_memory, options, other_tasks, result, run, turns
from toolcrib.agent_loop import coding
from toolcrib.agent_loop.events import McpConnected, NameConflict, RunEvent, RunFinished, RunStarted, ToolCalled
from toolcrib.agent_loop.options import CodingTools, ToolRequest
from toolcrib.agent_loop.run import AgentRun, run_agent
from toolcrib.core.results import Result, read_result
from toolcrib.errors import UsageError

MOST = 2000
"""Turns of the event loop that the run below never takes."""


class Inline(ThreadPoolExecutor):
    """Does at once what is given to it, so that each run takes the same turns of the event loop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **named))
        return done


class Tools:
    """Built-in tools in memory."""

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


class Story:
    """A run with all there is: built-in tools, servers, two calls at once, an approval."""

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

        self.kit = Bench({"desk": {"slow": slow, "Bash": lambda _: "not this one"}})
        self.tools = Tools()
        self.world: World = in_memory(
            patch, ["I act.", Calls(tool="slow"), Calls(tool="Bash")], ["That", " was", " it."], kit=self.kit
        )
        patch.setattr(coding, "coding_tools", self.tools.open)
        self.run: AgentRun = run_agent("Go.", options(mcp_servers=["the bench"], coding_tools="all", approve=approve))
        self.events: list[RunEvent] = []

    async def read(self) -> None:
        async for event in self.run:
            self.events.append(event)

    def assert_nothing_left(self, besides: asyncio.Task[None] | None = None) -> None:
        assert not other_tasks() - {besides}
        assert self.kit.opened == self.kit.closed
        assert self.world.opened == self.world.closed
        assert self.tools.opened == self.tools.closed
        assert self.calls == 0


@pytest.fixture
async def stepped() -> AsyncIterator[None]:
    asyncio.get_running_loop().set_default_executor(Inline())
    yield


async def cancelled(story: Story, reader: asyncio.Task[None]) -> None:
    reader.cancel()
    await asyncio.wait({reader})


async def cancelled_twice(story: Story, reader: asyncio.Task[None]) -> None:
    reader.cancel()
    await turns(2)
    reader.cancel()
    await asyncio.wait({reader})


async def closed(story: Story, reader: asyncio.Task[None]) -> None:
    """From another task than the one that reads."""
    await story.run.aclose()
    story.assert_nothing_left(besides=reader)
    await reader


async def all_cancelled(story: Story, reader: asyncio.Task[None]) -> None:
    """As asyncio.run does at its end."""
    everybody = other_tasks()
    for task in everybody:
        task.cancel()
    await asyncio.wait(everybody)


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", [cancelled, cancelled_twice, closed, all_cancelled])
@pytest.mark.usefixtures("stepped")
async def test_a_run_that_is_ended_at_any_await_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Story, asyncio.Task[None]], Any]
) -> None:
    whole = 0
    for step in itertools.count():
        assert step < MOST
        story = Story(monkeypatch)
        reader = asyncio.create_task(story.read())
        await turns(step)
        if reader.done():
            whole = step
            await reader
            break
        async with asyncio.timeout(60):
            await end(story, reader)
        story.assert_nothing_left()
        # Closing takes its time, and who waits for it must not cut it short.
        assert story.kit.disturbed == 0 or end is all_cancelled
    assert whole > 30
    assert isinstance(story.events[-1], RunFinished)
    assert any(isinstance(event, NameConflict) for event in story.events)
    story.assert_nothing_left()


@pytest.mark.req("KAI-3")
@pytest.mark.usefixtures("stepped")
async def test_a_reader_that_leaves_its_loop_at_any_event_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in itertools.count(1):
        story = Story(monkeypatch)
        run_, story.run = story.run, None  # type: ignore[assignment]
        seen = 0
        async for _ in run_:
            seen += 1
            if seen == wanted:
                break
        if seen < wanted:
            break
        # What the loop above held goes with it; nobody calls aclose.
        del run_
        await turns(20)
        story.assert_nothing_left()
    assert wanted > 8


@pytest.mark.req("KAI-3")
async def test_a_reader_that_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        async with story.run as events:
            async for event in events:
                if isinstance(event, ToolCalled):
                    raise ZeroDivisionError
    story.assert_nothing_left()
    assert story.kit.opened == 1


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("wanted", [RunStarted, McpConnected, ToolCalled, RunFinished])
def test_an_event_loop_that_ends_in_mid_run_takes_the_run_along(
    monkeypatch: pytest.MonkeyPatch, wanted: type[RunEvent]
) -> None:
    story: Story | None = None

    async def main() -> None:
        nonlocal story
        story = Story(monkeypatch)
        async for event in story.run:
            if isinstance(event, wanted):
                return

    asyncio.run(main())
    assert story is not None
    assert story.kit.opened == story.kit.closed
    assert (story.tools.opened, story.tools.closed) == (1, 1)
    assert story.world.opened == story.world.closed
    assert story.calls == 0
    # Its event loop is closed by now, and that must not matter.
    del story
    gc.collect()


async def test_a_run_that_nobody_reads_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    await story.run.aclose()
    assert [event async for event in story.run] == []
    Story(monkeypatch).run.__del__()
    assert (story.kit.opened, story.tools.opened) == (0, 0)
    assert not other_tasks()


async def test_a_closed_run_has_no_more_events_and_is_closed_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    assert isinstance(await anext(story.run), RunStarted)
    await asyncio.gather(story.run.aclose(), story.run.aclose())
    await story.run.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(story.run)
    story.assert_nothing_left()
    assert story.kit.closed == story.kit.opened


async def test_everything_is_closed_before_the_last_event_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    async for event in story.run:
        if isinstance(event, RunFinished):
            assert (story.kit.closed, story.world.closed, story.tools.closed) == (1, 1, 1)


async def test_a_server_that_cannot_be_closed_does_not_take_the_answer_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Bench):
        async def __aexit__(self, *_: object) -> None:
            raise OSError("it does not go")

    world = in_memory(monkeypatch, ["Fine."], kit=Stuck({"desk": {}}))
    last = (await run(mcp_servers=["the bench"], api_key="sk-secret"))[-1]
    assert isinstance(last, RunFinished)
    assert last.text == "Fine."
    assert "it does not go" in caplog.text
    assert world.closed == 1


async def test_a_folder_that_cannot_be_worked_in_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    kit = Bench({"desk": {}})
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    with pytest.raises(UsageError, match="coding_tools"):
        await run(mcp_servers=["the bench"], coding_tools=CodingTools.all(tmp_path / "nothing"))
    assert (kit.opened, world.opened) == (0, 0)
    assert not other_tasks()


@pytest.mark.req("KAI-5")
async def test_a_built_in_tool_keeps_its_name_before_a_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    await story.read()
    (conflict,) = [event for event in story.events if isinstance(event, NameConflict)]
    assert (conflict.name, conflict.kept, conflict.left_out) == ("Bash", "Bash", "desk:Bash")
    assert story.world.offered[0] == ["Bash", "slow"]
    assert [part.content for part in story.world.results] == ["x", "ran"]
    assert sorted(story.asked) == ["Bash", "slow"]


async def test_many_runs_at_once_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    crib = Bench({"desk": {"ask": lambda _: "answer"}})
    in_memory(monkeypatch, [Calls(tool="ask")], ["Done."])
    runs = await asyncio.gather(*(run(f"Run {n}.", crib=crib) for n in range(20)))
    for number, events in enumerate(runs):
        last = events[-1]
        assert isinstance(last, RunFinished)
        assert last.steps == 2
        assert [part["content"] for part in last.messages[0]["parts"]] == [f"Run {number}."]
        assert {event.run_id for event in events} == {last.run_id}
    assert len({events[0].run_id for events in runs}) == len(runs) == len(crib.calls)
    assert not other_tasks()
