"""One run of a coding agent, from its identity to its end.

In: a `RunOrder`. Out: events as they happen, then an `ExecutionResult`. However it ends (the program's own end, a time
limit, Ctrl-C, a revoked identity, an error of ours), the program and all it started are stopped, the identity is
revoked and its folder removed, and the log has its last line. `preparing` sets up, `course` is what happens then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from toolcrib.agent_events import AgentEvent, Kind
from toolcrib.errors import ToolcribError
from toolcrib.runs.course import Course, Ending
from toolcrib.runs.preparing import Prepared, RunOrder, prepared
from toolcrib.runs.result import ExecutionResult, Metadata, Status, Summary


@dataclass(eq=False)
class Run:
    """For one use: `events` once, then `result`."""

    order: RunOrder
    metadata: Metadata | None = None
    result: ExecutionResult | None = None
    mask: Callable[[Any], Any] = field(default=lambda value: value)
    """Takes the run's secrets out of a text, or of anything that is made of texts."""
    _events: list[AgentEvent] = field(default_factory=list)
    _log_failed: bool = False

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Raises what kept the run from starting; what happens later is in the result."""
        async with prepared(self.order) as ready:
            self.metadata = ready.metadata
            self.mask = ready.log.mask
            course = Course(self.order, ready)
            try:
                async for event in course.events():
                    ready.log.session(course.session)
                    for one in self._noted(event, ready):
                        yield one
            except (GeneratorExit, asyncio.CancelledError):
                course.ending = Ending(status=Status.INTERRUPTED, error="It was interrupted.")
                raise
            except BaseException as error:
                told = error.text() if isinstance(error, ToolcribError) else f"{type(error).__name__}: {error}"
                course.ending = Ending(status=Status.FAILED, error=told)
                raise
            finally:
                await asyncio.shield(self._ended(ready, course))

    def _noted(self, event: AgentEvent, ready: Prepared) -> Iterable[AgentEvent]:
        """The event, once it is in the log; and a warning, once, where the log is not whole."""
        self._events.append(event)
        ready.log.event(event)
        yield event
        if ready.log.failure and not self._log_failed:
            self._log_failed = True
            text = f"The log is not whole: {ready.log.failure}"
            warning = AgentEvent(kind=Kind.LOG, provider=event.provider, role="toolcrib", text=text)
            self._events.append(warning)
            yield warning

    async def _ended(self, ready: Prepared, course: Course) -> None:
        def keep(event: AgentEvent) -> None:
            self._events.append(event)
            ready.log.event(event)

        # Both at once: a daemon that is slow to revoke must not let the program work on.
        closing = asyncio.create_task(ready.close())
        exit_code = await course.stop(keep)
        await closing
        await asyncio.to_thread(ready.sweep)
        course.finish(keep)
        summary = course.summary(exit_code, time.time() - ready.metadata.started_at)
        ready.log.end(summary)
        self.result = _result(ready, summary, self._events)


def _result(ready: Prepared, summary: Summary, events: Iterable[AgentEvent]) -> ExecutionResult:
    about: dict[str, Any] = {**ready.metadata.to_json(), **summary.to_json(), "log": str(ready.log.path)}
    for said_beside in ("text", "usage", "status", "program_exit_code", "error"):
        del about[said_beside]
    return ExecutionResult(
        text=summary.text,
        raw_events=tuple(events),
        usage=summary.usage,
        status=summary.status,
        program_exit_code=summary.program_exit_code,
        error=summary.error,
        metadata=about,
    )
