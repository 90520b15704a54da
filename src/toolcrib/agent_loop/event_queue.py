"""The events of a run on their way to its reader.

In: facts, from the run's own task. Out: events in order, each with the run's id and its model's provider, and without
the key that a provider may repeat. `run`, `tool_sources`, `loop` and `tool_calls` emit by the `EventEmitter`. `loop`
waits before each question to the model until all events are read, and in an answer until there is room: a reader who
stops stops the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcrib.agent_loop.events import AnyRunEvent, ModelUsage, Retrying, RunEnd, RunFailed, RunFinished
from toolcrib.config.masking import Masker

MOST_WAITING = 256
"""Events that wait, before an answer is not read on."""


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
        if len(self._unread) >= MOST_WAITING:
            self._room.clear()

    def end(self) -> None:
        self._over = True
        self._arrived.set()

    async def next(self) -> AnyRunEvent | None:
        """None: there will be no more."""
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


MOST_CHARACTERS = 2000
"""Characters of a provider's words that are passed on."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a run came."""

    text: str = ""
    """What the model said last."""
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
        self.emit(Retrying, reason=self._words(reason), delay=delay, attempt=attempt)

    def finished(self, ended: RunEnd, progress: RunProgress) -> None:
        self.emit(RunFinished, ended=ended, **vars(progress))

    def failed(self, error: str, remedy: str, progress: RunProgress) -> None:
        self.emit(RunFailed, error=self._words(error), remedy=self._words(remedy), **vars(progress))

    def _words(self, text: str) -> str:
        text = self.without_key(text)
        return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
