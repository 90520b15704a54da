"""The queue of events between a run and its reader.

In: event types and fields, from the run's own task. Out: events in order, each with the run's id and its model's
provider, and with the API key masked. `run`, `tool_sources`, `loop` and `tool_calls` emit through the `EventEmitter`.
`loop` applies backpressure: it waits until all events are read before each request to the model, and for room in the
queue during an answer. A reader that pauses pauses the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.agent_loop.events import AnyRunEvent, ModelUsage, Retrying, RunEnd, RunFailed, RunFinished
from toolcrib.config.masking import Masker

MAX_UNREAD_EVENTS = 256
"""Unread events at which the model's answer is no longer read."""


class EventQueue:
    def __init__(self) -> None:
        self._unread: deque[AnyRunEvent] = deque()
        self._arrived = asyncio.Event()
        self._read = asyncio.Event()
        self._read.set()
        self._room = asyncio.Event()
        self._room.set()
        self._over = False

    def put(self, event: AnyRunEvent) -> None:
        self._unread.append(event)
        self._read.clear()
        self._arrived.set()
        if len(self._unread) >= MAX_UNREAD_EVENTS:
            self._room.clear()

    def end(self) -> None:
        self._over = True
        self._arrived.set()

    async def next(self) -> AnyRunEvent | None:
        """None after the last event."""
        while not self._unread:
            if self._over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._unread.popleft()
        self._room.set()
        if not self._unread:
            self._read.set()
        return event

    async def all_read(self) -> None:
        await self._read.wait()

    async def room(self) -> None:
        await self._room.wait()


MAX_ERROR_LENGTH = 2000
"""Maximum characters of a provider's error message."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    text: str = ""
    """The model's last message."""
    usage: ModelUsage = field(default_factory=ModelUsage)
    steps: int = 0
    messages: Sequence[Mapping[str, Any]] = ()


class EventEmitter:
    def __init__(self, *, run_id: str, provider: str, key: str, queue: EventQueue) -> None:
        self.run_id = run_id
        self._provider = provider
        self._queue = queue
        self.without_key = Masker([key]).known

    def emit(self, kind: type[AnyRunEvent], **fields: Any) -> None:
        self._queue.put(kind(provider=self._provider, run_id=self.run_id, **fields))

    def retrying(self, reason: str, delay: float, attempt: int) -> None:
        self.emit(Retrying, reason=self._message(reason), delay=delay, attempt=attempt)

    def finished(self, ended: RunEnd, progress: RunProgress) -> None:
        self.emit(RunFinished, ended=ended, **vars(progress))

    def failed(self, error: str, remedy: str, progress: RunProgress) -> None:
        self.emit(RunFailed, error=self._message(error), remedy=self._message(remedy), **vars(progress))

    def _message(self, text: str) -> str:
        text = self.without_key(text)
        return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]}…"
