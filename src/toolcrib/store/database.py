"""What lasts, read and written by whoever may wait for it.

In: a file or URL, then facts. Out: the same facts after a restart. `Store` gives this to the event loop;
commands that run without a daemon use it as it is. One thread may read while another writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.store.engine import READING, WRITING, database_url, make_engine
from toolcrib.store.faults import in_our_words, place_of
from toolcrib.store.lock import Holder, LockLost, lock_file, lock_session
from toolcrib.store.schema import MIGRATIONS, Migration, is_current, migrate

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT = 2.0
"""Seconds to wait for another process that writes. Twice that must fit into the time in which a daemon ends."""


class Database:
    """Made by `open`; closed by `close` or at the end of a `with`."""

    def __init__(self, url: sa.URL, engine: sa.Engine) -> None:
        self._url = url
        self._engine = engine
        self._writer: tuple[sa.Engine, Holder] | None = None
        """On PostgreSQL, where somebody holds it: the one session that writes, and has to have the lock."""
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
        migrations: Sequence[Migration] = MIGRATIONS,
        holder: Holder | None = None,
    ) -> Self:
        """Opens, creates or migrates the database at a path or URL; for a `holder`, which then is the only one."""
        url = database_url(where)
        with in_our_words(url):
            engine = make_engine(url, busy_timeout=busy_timeout)
            database = cls(url, engine)
            try:
                if holder is not None:
                    database._hold(holder, busy_timeout)
                # Without need nobody is asked to let us write: a locked database can still be read.
                if not database.read(is_current, migrations):
                    database.write(migrate, migrations)
            except BaseException:
                database.close()
                raise
        return database

    def _hold(self, holder: Holder, busy_timeout: float) -> None:
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
        with self._reading() as connection:
            return work(connection, *args, **kwargs)

    def write(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the work in one transaction: all of it is durable when this returns, or none of it was done."""
        with self._writing() as connection:
            return work(connection, *args, **kwargs)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._usable(), self._engine.connect() as connection:
            yield connection.execution_options(**READING)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        engine, holder = self._writer or (self._engine, None)
        with self._usable(), engine.connect() as connection:
            writer = connection.execution_options(**WRITING)
            with writer.begin():
                if holder is not None:
                    self._locked(writer, holder)
                yield writer

    def _locked(self, writer: sa.Connection, holder: Holder) -> None:
        """The lock goes with the session, and is taken again before the next one writes.

        If another has had it meanwhile, nothing is written any more: what we know may no longer be so.
        """
        if self._lost is not None:
            raise LockLost(self._lost, by_another=True)
        try:
            lock_session(writer, self.place, holder, patient=self._patient)
        except LockLost as lost:
            self._lost = lost.message if lost.by_another else None
            raise

    @contextmanager
    def _usable(self) -> Iterator[None]:
        if self._closed:
            raise StoreError("The database is closed.", remedy="Toolcrib is stopping; start it again.")
        with in_our_words(self._url):
            yield
