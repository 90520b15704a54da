"""The database for the event loop.

In: the same as `Database`. Out: the same, awaited. One thread of the store's own writes and one reads, each in the
order it was asked, so a slow disk or a locked file never holds up a call, and a long look at the book no commit.
`crib` and `daemon` use it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from toolcrib.errors import StoreError
from toolcrib.store.database import BUSY_TIMEOUT, Database
from toolcrib.store.lock import Holder

P = ParamSpec("P")
T = TypeVar("T")

_WAITED = 0.5
"""Seconds after which a write that failed has waited for another process."""


class Store:
    """Made by `open`. A call that is cancelled while it waits may still be carried out."""

    def __init__(self, database: Database, *, writer: ThreadPoolExecutor, reader: ThreadPoolExecutor) -> None:
        self._database = database
        self._writer = writer
        self._reader = reader
        self._closed = False
        self._hurried = False
        self._given_up = ""
        """Why nothing more is written."""

    @classmethod
    async def open(cls, where: str | Path, *, busy_timeout: float = BUSY_TIMEOUT, holder: Holder | None = None) -> Self:
        """For a `holder`, which has it alone until it is closed."""
        writer = ThreadPoolExecutor(1, thread_name_prefix="toolcrib-store")
        opening = writer.submit(Database.open, where, busy_timeout=busy_timeout, holder=holder)
        try:
            database = await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException:
            # Cancelled while the thread still opens it: nobody will use it.
            opening.add_done_callback(_discard)
            writer.shutdown(wait=False)
            raise
        return cls(database, writer=writer, reader=ThreadPoolExecutor(1, thread_name_prefix="toolcrib-store"))

    @property
    def engine(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._database.engine

    @property
    def place(self) -> str:
        """The file, or the address without its password."""
        return self._database.place

    def hurry(self) -> None:
        """Toolcrib is stopping: once a write has waited for another process in vain, no later one waits again."""
        self._hurried = True

    async def close(self) -> None:
        """What was asked for before is still done."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._reader, lambda: None)
            await loop.run_in_executor(self._writer, self._database.close)
        finally:
            self._reader.shutdown(wait=False)
            self._writer.shutdown(wait=False)

    async def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What was written, and awaited, before is seen."""
        return await self._run(self._reader, lambda: self._database.read(work, *args, **kwargs))

    async def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._writer, lambda: self._patient(lambda: self._database.write(work, *args, **kwargs)))

    async def run(self, work: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For work that has more to do where writing is done than one transaction."""
        return await self._run(self._writer, lambda: self._patient(lambda: work(self._database, *args, **kwargs)))

    def _patient(self, work: Callable[[], T]) -> T:
        """In the thread that writes."""
        if self._given_up:
            raise StoreError(self._given_up, remedy="Toolcrib is stopping; what is missing is found at its next start.")
        began = time.monotonic()
        try:
            return work()
        except StoreError as error:
            if self._hurried and time.monotonic() - began >= _WAITED:
                self._given_up = error.message
            raise

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError("The database is closed.", remedy="Toolcrib is stopping; start it again.")
        return await asyncio.get_running_loop().run_in_executor(thread, work)


def _discard(opening: Future[Database]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
