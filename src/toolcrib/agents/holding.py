"""What holds and what is stored, and how the one follows the other.

In: a register as it shall be, and the change that led to it. Out: it holds, it is in the store and in the book, and
whoever has to know was told, before the change returns. What takes something away holds in memory first, so that it
holds also where the store cannot be written; what gives something is stored and noted first. `roster` says what
changes; `register` writes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from toolcrib.agents.register import Register, keep
from toolcrib.agents.standing import Standing
from toolcrib.errors import StoreError, ToolcribError
from toolcrib.events import AgentEnded, Bus, Change, PermissionChanged
from toolcrib.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")
Note = Callable[[Change], Awaitable[None]]
"""Writes a change into the book; returns when it is durable."""


class Holding:
    def __init__(self, store: Store, stored: Register, held: Register, *, version: int, bus: Bus, note: Note) -> None:
        self.version = version
        self.now = Standing.of(held, version=version)
        """What holds."""
        self.stored = stored
        self.sure = True
        """Whether `stored` is what the store holds; otherwise it is all that it may hold."""
        self._store = store
        self._bus = bus
        self._note = note
        self._changing = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()

    def begin(self, change: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Carries the change out when all before it are done, and to its end: half a change is none."""

        async def alone() -> T:
            async with self._changing:
                return await change

        task = asyncio.get_running_loop().create_task(alone())
        self._work.add(task)
        task.add_done_callback(self._finished)
        return task

    async def settled(self) -> None:
        """Nothing is under way any more."""
        await asyncio.gather(*self._work, return_exceptions=True)

    async def take(
        self,
        wanted: Register,
        *changes: Change,
        said: str,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A change that gives nobody more. `before` is done between its holding and its being stored, and may fail
        as the store may."""
        self._enforce(wanted, self.version + 1)
        lost: StoreError | None = None
        try:
            if before is not None:
                await before()
            self.version = await self._keep(wanted, at_least=self.version)
        except StoreError as error:
            lost = error
        try:
            await self._write_down(changes)
        except StoreError as error:
            if lost is None:
                raise StoreError(
                    f"{said}, now and after a restart, but the book could not be written: {error.message}",
                    remedy=error.remedy,
                ) from error
        if lost is not None:
            raise StoreError(
                f"{said} from now on, but that could not be stored and will not outlast a restart: {lost.message}",
                remedy=f"{lost.remedy} Then repeat the command.".lstrip(),
            ) from lost

    async def give(self, wanted: Register, *changes: Change) -> None:
        """A change that gives somebody more: only what is stored and in the book holds."""
        version = await self._keep(wanted, at_least=self.version + 1)
        try:
            await self._write_down(changes)
        except ToolcribError as error:
            try:
                await self._keep(self.now.register, at_least=version)
            except StoreError as worse:
                log.warning("a change that was taken back may be there after a restart: %s", worse.text())
            raise StoreError(
                f"Nothing was changed, because the book could not be written: {error.message}", remedy=error.remedy
            ) from error
        self._enforce(wanted, version)

    async def keep_owed(self) -> None:
        """Stores what holds already, if an earlier try failed."""
        if not self.sure or self.stored is not self.now.register:
            self.version = await self._keep(self.now.register, at_least=self.version)

    async def _keep(self, wanted: Register, *, at_least: int) -> int:
        """The version that the store was brought to."""
        try:
            reached = await self._store.write(
                keep, self.stored, wanted, at_least=at_least, now=time.time(), sure=self.sure
            )
        except StoreError:
            self.stored, self.sure = self.stored.or_else(wanted), False
            raise
        self.stored, self.sure = wanted, True
        return reached

    async def _write_down(self, changes: Iterable[Change]) -> None:
        # Begun in this order, settled together.
        told = await asyncio.gather(*(self._note(change) for change in changes), return_exceptions=True)
        for failure in told:
            if isinstance(failure, BaseException):
                raise failure

    def _enforce(self, register: Register, version: int) -> None:
        """From here on this is so; whoever has to know is told."""
        before = self.now.agents
        self.version = version
        self.now = Standing.of(register, version=self.version, before=self.now)
        for name, old in before.items():
            new = self.now.agents.get(name)
            if new is None:
                self._bus.publish(AgentEnded(agent=name))
            elif new.digest != old.digest:
                self._bus.publish(AgentEnded(agent=name, returns=True))
            elif new.permission.key != old.permission.key:
                self._bus.publish(PermissionChanged(agent=name))

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.debug("a change of the roster failed: %s", failure)
