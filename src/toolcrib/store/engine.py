"""A database engine set up the way we need it, and its errors in our words.

In: a file or a URL. Out: an SQLAlchemy engine with one connection; `StoreError` instead of whatever the driver
raises. `database` is the only neighbour.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from toolcrib.errors import StoreError

WRITING = {"toolcrib_writing": True}
"""Execution options of a connection that will write."""

_PRIMARY_CODE = 0xFF
"""SQLite's extended result codes keep the primary one in their low byte."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FORBIDDEN = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH})


def database_url(where: str | Path) -> sa.URL:
    """`postgresql://…` or `sqlite://…` as they are, anything else as the path of a SQLite file."""
    if isinstance(where, Path) or "://" not in where:
        return sa.URL.create("sqlite", database=str(where))
    try:
        url = sa.make_url(where)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise StoreError(
            "The database's URL cannot be read.", remedy="Write it as postgresql://user@host/name, or give a file."
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(
            f"There is no support for the database {url.get_backend_name()!r}.",
            remedy="Use a SQLite file or postgresql://….",
        )
    return url


def make_engine(url: sa.URL, *, busy_timeout: float) -> sa.Engine:
    """One connection: all work of a store is done on one thread."""
    if url.get_backend_name() == "sqlite":
        _prepare_file(url)
    try:
        engine = sa.create_engine(
            url,
            poolclass=sa.QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=url.get_backend_name() == "postgresql",
            hide_parameters=True,
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise StoreError(
            "PostgreSQL needs a driver that is not installed.", remedy="Install it: pip install 'toolcrib[postgres]'."
        ) from error
    if engine.dialect.name == "sqlite":
        _set_up_sqlite(engine, busy_timeout)
    return engine


def _prepare_file(url: sa.URL) -> None:
    """The file and its folder are the owner's alone; SQLite gives its side files the same mode."""
    if not url.database or url.database == ":memory:":
        return
    file = Path(url.database)
    if not file.parent.exists():
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    file.touch(mode=0o600)
    if file.stat().st_mode & 0o077:
        file.chmod(0o600)


def _set_up_sqlite(engine: sa.Engine, busy_timeout: float) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        # The driver's own transactions begin too late for DDL; `_begun` begins them instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_timeout * 1000)}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA journal_mode = WAL")
        # NORMAL would lose the last commits when the machine loses power; what was acknowledged must stay,
        # and this store writes seldom enough to pay for it.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        # A reader that turns writer cannot wait for a lock, so writers take it at once.
        writing = connection.get_execution_options().get("toolcrib_writing")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def in_our_words(url: sa.URL) -> Iterator[None]:
    """Turns what goes wrong with the database inside into `StoreError`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _explained(url, error) from error
    except OSError as error:
        raise StoreError(
            f"The database {_shown(url)} cannot be opened: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
        ) from error
    except UnicodeEncodeError as error:
        raise StoreError("The database cannot hold a text that is not Unicode.", remedy="Rename the file.") from error


def _explained(url: sa.URL, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
    original = error.orig if isinstance(error, DBAPIError) else error
    place = _shown(url)
    code = getattr(original, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code in _DAMAGED:
        message = f"The database {place} is damaged: {original}."
        remedy = (
            f"Stop Toolcrib, move the file away (mv {place} {place}.damaged) and start again. Known tools come back "
            "as servers connect; trust must be given again."
        )
    elif code == sqlite3.SQLITE_FULL:
        message = f"There is no room to write the database {place}."
        remedy = "Free some disk space; what was written before is intact."
    elif code in _BUSY:
        message = f"The database {place} is locked by another process."
        remedy = "End the program that holds it, then try again."
    elif code in _FORBIDDEN:
        message = f"The database {place} cannot be opened for writing: {original}."
        remedy = "Check the path and its permissions."
    else:
        message = f"The database {place} failed: {str(original).strip()}."
        remedy = "See that it can be reached." if url.get_backend_name() == "postgresql" else "See the log."
    return StoreError(message, remedy=remedy)


def _shown(url: sa.URL) -> str:
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    return url.render_as_string(hide_password=True)
