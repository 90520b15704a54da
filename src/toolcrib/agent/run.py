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
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from toolcrib.agent.course import Course
from toolcrib.agent.events import RunEvent
from toolcrib.agent.feed import Feed
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.plan import planned

_under_way: set[asyncio.Task[None]] = set()
"""Held until they are over: the event loop itself holds its tasks only weakly."""


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


class AgentRun(AsyncIterator[RunEvent]):
    def __init__(self, prompt: str, options: AgentOptions) -> None:
        self.id = uuid.uuid4().hex
        self._prompt = prompt
        self._options = options
        self._feed = Feed()
        self._begun: _Begun | None = None
        self._over = False

    async def __anext__(self) -> RunEvent:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._begun is None:
                self._begun = await self._begin()
            event = await self._feed.next()
        except BaseException:
            await self.aclose()
            raise
        if event is not None:
            return event
        if not self._over:
            self._over = True
            self._begun.task.result()
        raise StopAsyncIteration

    async def _begin(self) -> _Begun:
        course = Course(await planned(self._prompt, self._options), self._feed, self.id)
        task = asyncio.create_task(course.run(), name=f"run_agent {self.id}")
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        task.add_done_callback(lambda _, feed=self._feed: feed.end())  # type: ignore[misc]
        return _Begun(course=course, task=task)

    async def aclose(self) -> None:
        """Ends the run, unless it is over, and returns when nothing is left of it."""
        self._over = True
        if self._begun is not None:
            self._begun.stop()
            await self._begun.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._begun is not None and not self._begun.task.done():
            # A closed event loop has no tasks that could be ended.
            with contextlib.suppress(RuntimeError):
                self._begun.task.get_loop().call_soon_threadsafe(self._begun.stop)


@dataclass(frozen=True, kw_only=True)
class _Begun:
    course: Course
    task: asyncio.Task[None]

    def stop(self) -> None:
        if not self.course.closing:
            self.task.cancel()

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
