"""The database: `Database` for commands that may block, `Store` for the event loop.

In: a file or URL, then functions that read or write rows. Out: their results. A `Store` writes in one thread and reads
in another, each in order, so that a slow disk or a locked file never blocks a call, and a long query of the audit log
never blocks a commit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from toolcrib.errors import StoreError
from toolcrib.store.engine import READING, WRITING, as_store_errors, database_url, make_engine, place_of
from toolcrib.store.lock import LockLost, StoreHolder, lock_file, lock_session
from toolcrib.store.schema import create, is_current

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT = 2.0
"""Seconds to wait for another process that writes. A daemon's shutdown must leave time for two such waits."""


class Database:
    """Create it with `open`; close it with `close` or a `with` block."""

    def __init__(self, url: sa.URL, engine: sa.Engine) -> None:
        self._url = url
        self._engine = engine
        self._writer: tuple[sa.Engine, StoreHolder] | None = None
        """On PostgreSQL with a holder: the only session that writes, which must have the lock."""
        self._lock: int | None = None
        self._patient = True
        self._lost: str | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        busy_timeout: float = BUSY_TIMEOUT,
        holder: StoreHolder | None = None,
    ) -> Self:
        """Opens or creates the database at a path or URL; a `holder` locks it until it is closed."""
        url = database_url(where)
        with as_store_errors(url):
            engine = make_engine(url, busy_timeout=busy_timeout)
            database = cls(url, engine)
            try:
                if holder is not None:
                    database._hold(holder, busy_timeout)
                # Take the write lock only if necessary: a locked database can still be read.
                if not database.read(is_current, database.place):
                    database.write(create, database.place)
            except BaseException:
                database.close()
                raise
        return database

    def _hold(self, holder: StoreHolder, busy_timeout: float) -> None:
        if self.engine == "sqlite":
            self._lock = lock_file(self._url.database or "", holder)
            return
        engine = make_engine(self._url, busy_timeout=busy_timeout, connections=1, label=holder.label)
        self._writer = engine, holder
        self.write(lambda _: None)
        self._patient = False

    @property
    def engine(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @property
    def place(self) -> str:
        """The file, or the address without its password."""
        return place_of(self._url)

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()
        if self._writer is not None:
            self._writer[0].dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the work on a connection that can only read."""
        if self._closed:
            raise _closed()
        with as_store_errors(self._url), self._engine.connect() as connection:
            return work(connection.execution_options(**READING), *args, **kwargs)

    def write(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the work in one transaction: when this returns, all of it is durable; if it raises, none of it is."""
        if self._closed:
            raise _closed()
        engine, holder = self._writer or (self._engine, None)
        with as_store_errors(self._url), engine.connect() as connection:
            writer = connection.execution_options(**WRITING)
            with writer.begin():
                if holder is not None:
                    self._locked(writer, holder)
                return work(writer, *args, **kwargs)

    def _locked(self, writer: sa.Connection, holder: StoreHolder) -> None:
        """The lock ends with its session, so a new session takes it again before it writes.

        If another process had the lock in between, nothing is written any more: our data in memory may be out of date.
        """
        if self._lost is not None:
            raise LockLost(self._lost, by_another=True)
        try:
            lock_session(writer, self.place, holder, patient=self._patient)
        except LockLost as lost:
            self._lost = lost.message if lost.by_another else None
            raise


def _closed() -> StoreError:
    return StoreError("The database is closed.", remedy="Toolcrib is stopping; start it again.")


_WAITED = 0.5
"""A failed write that took longer than this many seconds has waited for another process."""


class Store:
    """Create it with `open`. A call that is cancelled while it waits may still be executed."""

    def __init__(self, database: Database, *, writer: ThreadPoolExecutor, reader: ThreadPoolExecutor) -> None:
        self._database = database
        self._writer = writer
        self._reader = reader
        self._closed = False
        self._hurried = False
        self._given_up = ""
        """Why nothing more is written."""

    @classmethod
    async def open(
        cls, where: str | Path, *, busy_timeout: float = BUSY_TIMEOUT, holder: StoreHolder | None = None
    ) -> Self:
        """A `holder` locks the database until it is closed."""
        writer = ThreadPoolExecutor(1, thread_name_prefix="toolcrib-store")
        opening = writer.submit(Database.open, where, busy_timeout=busy_timeout, holder=holder)
        try:
            database = await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException:
            # Cancelled while the thread is still opening it: close it once it is open.
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
        """Call this at shutdown: once a write has waited for another process in vain, later writes fail at once."""
        self._hurried = True

    async def close(self) -> None:
        """Earlier calls still complete."""
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
        """Sees every write that was awaited before."""
        return await self._run(self._reader, partial(self._database.read, work, *args, **kwargs))

    async def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        written = partial(self._database.write, work, *args, **kwargs)
        return await self._run(self._writer, partial(self._patient, written))

    async def run(self, work: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs work in the writing thread that needs more than one transaction."""
        return await self._run(self._writer, partial(self._patient, partial(work, self._database, *args, **kwargs)))

    def _patient(self, work: Callable[[], T]) -> T:
        """Runs in the writing thread."""
        if self._given_up:
            raise StoreError(self._given_up, remedy="Toolcrib is stopping; its next start recovers the missing data.")
        began = time.monotonic()
        try:
            return work()
        except StoreError as error:
            if self._hurried and time.monotonic() - began >= _WAITED:
                self._given_up = error.message
            raise

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise _closed()
        return await asyncio.get_running_loop().run_in_executor(thread, work)


def _discard(opening: Future[Database]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
