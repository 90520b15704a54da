"""The events of a run on their way to who reads them.

In: events, from the run's own task. Out: the same in order, to the reader. `loop` waits before each question to the
model until all are read, and in an answer until there is room: a reader who stops stops the run.
"""

from __future__ import annotations

import asyncio
from collections import deque

from toolcrib.agent.events import AnyRunEvent

MOST = 256
"""Events that wait, before an answer is not read on."""


class Feed:
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
        if len(self._unread) >= MOST:
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
