"""`run_agent`: an agent's run as a stream of events.

In: a prompt and `AgentOptions`. Out: an `AgentRun`, to be read with `async for`. The run lives in a task of its own
(`course`); whoever stops reading ends it, and who closes it, or reads to the end, knows that nothing of it is left: no
process, no connection, no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from toolcrib.agent.course import Course
from toolcrib.agent.events import AnyRunEvent
from toolcrib.agent.feed import Feed
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.plan import planned
from toolcrib.errors import UsageError

_under_way: set[asyncio.Task[None]] = set()
"""Held until they are over: the event loop itself holds its tasks only weakly."""

_within: ContextVar[frozenset[str]] = ContextVar("_within", default=frozenset())
"""The runs that the current task is a part of."""


def run_agent(prompt: str, options: AgentOptions) -> AgentRun:
    """Runs an agent: the model is asked, and calls tools, until it has nothing more to do.

    Nothing begins before the first event is asked for. Options that cannot work raise a `UsageError` there; from then
    on, whatever happens is an event, and the last one is `RunFinished` or `RunFailed`.

        async for event in run_agent("What time is it?", AgentOptions(model="anthropic:claude-sonnet-5-5")):
            print(event)

    Leaving the loop early ends the run, and so does cancelling who waits for an event. To know that it is over, use
    `async with run_agent(…) as events`.
    """
    return AgentRun(prompt, options)


class AgentRun(AsyncIterator[AnyRunEvent]):
    """A run's events, to be read with `async for`, by one reader."""

    def __init__(self, prompt: str, options: AgentOptions) -> None:
        self.id = uuid.uuid4().hex
        self._prompt = prompt
        self._options = options
        self._feed = Feed()
        self._life: _Life | None = None
        self._over = False
        self._being_read = False

    async def __anext__(self) -> AnyRunEvent:
        if self._being_read:
            raise UsageError("Another task reads this run.", remedy="Read it in one place, and hand the events on.")
        if self._over:
            raise StopAsyncIteration
        self._being_read = True
        try:
            return await self._next()
        finally:
            self._being_read = False

    async def _next(self) -> AnyRunEvent:
        if self._life is None:
            self._life = _Life(self._prompt, self._options, self._feed, self.id)
        try:
            event = await self._feed.next()
        except BaseException:
            await self.aclose()
            raise
        if event is not None:
            return event
        if not self._over:
            self._over = True
            self._life.task.result()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the run, unless it is over, and returns when nothing is left of it. Within the run, as in `approve`, it
        is the end of who calls it, too: what waits there is a part of it, and is cancelled."""
        self._over = True
        if self._life is not None:
            self._life.stop()
            if self.id in _within.get():
                await self._life.stopped_from_within()
            else:
                await self._life.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._life is not None and not self._life.task.done():
            # A closed event loop has no tasks that could be ended.
            with contextlib.suppress(RuntimeError):
                self._life.task.get_loop().call_soon_threadsafe(self._life.stop)


class _Life:
    """A run in its own task, from its first look at the options. Knows nothing of who reads."""

    def __init__(self, prompt: str, options: AgentOptions, feed: Feed, run_id: str) -> None:
        self._course: Course | None = None
        self.task = asyncio.create_task(self._whole(prompt, options, feed, run_id), name=f"run_agent {run_id}")
        _under_way.add(self.task)
        self.task.add_done_callback(_under_way.discard)
        self.task.add_done_callback(lambda _: feed.end())

    async def _whole(self, prompt: str, options: AgentOptions, feed: Feed, run_id: str) -> None:
        _within.set(_within.get() | {run_id})
        self._course = Course(await planned(prompt, options), feed, run_id)
        await self._course.run()

    def stop(self) -> None:
        if not self._closing:
            self.task.cancel()

    @property
    def _closing(self) -> bool:
        return self._course is not None and self._course.closing

    async def stopped(self) -> None:
        """Waits whole, however often whoever waits is cancelled meanwhile: what was started must not stay."""
        cancelled: asyncio.CancelledError | None = None
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError as error:
                cancelled = error
        if not self.task.cancelled():
            # Looked at, so that nobody complains of an error that nobody saw.
            self.task.exception()
        if cancelled is not None:
            raise cancelled

    async def stopped_from_within(self) -> None:
        """Waits to be cancelled, so that nothing more is done. What is at work while the run closes is not cancelled,
        and the run waits for it."""
        if not self._closing:
            await asyncio.wait({self.task})
