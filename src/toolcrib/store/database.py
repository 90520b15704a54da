"""What lasts, read and written by whoever may wait for it.

In: a file or URL, then facts. Out: the same facts after a restart. `Store` gives this to the event loop;
commands that run without a daemon use it as it is. One thread may read while another writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.store.engine import READING, WRITING, database_url, make_engine
from toolcrib.store.faults import in_our_words, place_of
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
        self._closed = False

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        busy_timeout: float = BUSY_TIMEOUT,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Self:
        """Opens, creates or migrates the database at a path or URL."""
        url = database_url(where)
        with in_our_words(url):
            engine = make_engine(url, busy_timeout=busy_timeout)
            database = cls(url, engine)
            try:
                # Without need nobody is asked to let us write: a locked database can still be read.
                if not database.read(is_current, migrations):
                    database.write(migrate, migrations)
            except BaseException:
                engine.dispose()
                raise
        return database

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
        with self._usable(), self._engine.connect() as connection:
            writer = connection.execution_options(**WRITING)
            with writer.begin():
                yield writer

    @contextmanager
    def _usable(self) -> Iterator[None]:
        if self._closed:
            raise StoreError("The database is closed.", remedy="Toolcrib is stopping; start it again.")
        with in_our_words(self._url):
            yield
