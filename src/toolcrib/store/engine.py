"""The configured database engine, and its errors.

In: a file or a URL. Out: an SQLAlchemy engine with two connections, one for reading and one for writing; every driver
error as a `StoreError` with a remedy. Nothing is retried here; `commits` decides that. `database` uses it.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError, StatementError

from toolcrib.errors import StoreError

WRITING = {"toolcrib_writing": True}
"""Execution options of a connection that will write."""
READING = {"postgresql_readonly": True}

_CONNECT_TIMEOUT = 3
"""Seconds to connect to PostgreSQL."""
_LOST_AFTER = 10
"""Seconds after which a PostgreSQL server that no longer responds counts as lost."""


def database_url(where: str | Path) -> sa.URL:
    """Parses `postgresql://…` or `sqlite://…`; anything else is the path of a SQLite file."""
    if isinstance(where, Path) or "://" not in where:
        return sa.URL.create("sqlite", database=str(where))
    try:
        url = sa.make_url(where)
    except (ArgumentError, ValueError):
        # The message omits the URL: it may contain a password.
        raise StoreError(
            "The database URL is invalid.", remedy="Write it as postgresql://user@host/name, or give a file."
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(
            f"The database {url.get_backend_name()!r} is not supported.",
            remedy="Use a SQLite file or postgresql://….",
        )
    return url


def make_engine(url: sa.URL, *, busy_timeout: float, connections: int = 2, label: str = "toolcrib") -> sa.Engine:
    postgres = url.get_backend_name() == "postgresql"
    if not postgres:
        _prepare_file(url)
    try:
        engine = sa.create_engine(
            url,
            poolclass=sa.QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_pre_ping=postgres,
            hide_parameters=True,
            connect_args=_limits(url, label) if postgres else {},
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise StoreError(
            "The PostgreSQL driver is not installed.", remedy="Install it: pip install 'toolcrib[postgres]'."
        ) from error
    if postgres:
        _set_up_postgres(engine, busy_timeout)
    else:
        _set_up_sqlite(engine, busy_timeout)
    return engine


def _prepare_file(url: sa.URL) -> None:
    """Only the owner may access the file and its folder; SQLite gives its side files the same mode."""
    file = Path(url.database or "")
    if not file.parent.exists():
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    file.touch(mode=0o600)
    if file.stat().st_mode & 0o077:
        file.chmod(0o600)


def _set_up_sqlite(engine: sa.Engine, busy_timeout: float) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        # The driver's own transactions begin too late for DDL, so `_begun` begins them.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_timeout * 1000)}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA journal_mode = WAL")
        # NORMAL would lose the last commits on a power failure, but acknowledged rows must last. Group commits
        # make the extra cost small.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        # A transaction that starts as a reader cannot wait for the write lock later, so writers take it at once.
        writing = connection.get_execution_options().get("toolcrib_writing")
        driver: Any = connection.connection.driver_connection
        wanted = "OFF" if writing else "ON"
        # Directly on the driver, and only if necessary: this is part of every commit.
        if connection.info.get("query_only") != wanted:
            driver.execute(f"PRAGMA query_only = {wanted}")
            connection.info["query_only"] = wanted
        driver.execute("BEGIN IMMEDIATE" if writing else "BEGIN")


def _limits(url: sa.URL, label: str) -> dict[str, Any]:
    """Without these, we would wait many minutes for a host that vanished. Parameters in the URL take precedence."""
    limits = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "tcp_user_timeout": _LOST_AFTER * 1000,
        "keepalives_idle": _LOST_AFTER,
        "keepalives_interval": _LOST_AFTER // 2,
        "keepalives_count": 2,
        "application_name": label,
    }
    return {name: value for name, value in limits.items() if name not in url.query}


def _set_up_postgres(engine: sa.Engine, busy_timeout: float) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {int(busy_timeout * 1000)}")
        # Whatever the server's default: acknowledged rows must be on its disk.
        cursor.execute("SET synchronous_commit = on")
        # The server also ends a session, and its lock, when the client vanishes.
        cursor.execute(f"SET tcp_keepalives_idle = {_LOST_AFTER}")
        cursor.execute(f"SET tcp_keepalives_interval = {_LOST_AFTER // 2}")
        cursor.execute("SET tcp_keepalives_count = 2")
        cursor.close()
        connection.commit()


_PRIMARY_CODE = 0xFF
"""SQLite's extended result codes keep the primary one in their low byte."""
_MIN_FREE_BYTES = 256 * 1024
"""With less free disk than this, a failed write counts as a full disk, whatever SQLite reports."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, "XX001", "XX002"})
_FULL = frozenset({sqlite3.SQLITE_FULL, "53100"})
_MAYBE_FULL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, "55P03", "40P01", "40001"})
_FORBIDDEN = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
        "25006",
        "42501",
    }
)
"""Numbers are SQLite's, texts are PostgreSQL's."""


def place_of(url: sa.URL) -> str:
    """The database's location for display: without the password, or options that may contain one."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    socket = {"host": url.query["host"]} if "host" in url.query else {}
    bare = sa.URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database, query=socket
    )
    return bare.render_as_string()


@contextmanager
def as_store_errors(url: sa.URL) -> Iterator[None]:
    """Turns database errors into `StoreError`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _explained(url, error) from error
    except OSError as error:
        raise StoreError(
            f"The database {place_of(url)} cannot be opened: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
        ) from error


def _explained(url: sa.URL, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
    original = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    if isinstance(original, StoreError):
        return original
    place = place_of(url)
    code = getattr(original, "sqlite_errorcode", 0) & _PRIMARY_CODE or getattr(original, "sqlstate", None)
    reason = _one_line(url, original)
    if code in _DAMAGED:
        message, remedy = f"The database {place} is damaged: {reason}.", _how_to_replace(url)
    elif code in _FULL or (code in _MAYBE_FULL and _no_room(place)):
        message = f"The disk is full: the database {place} cannot be written."
        remedy = "Free some disk space. Earlier rows are intact, and a running Toolcrib continues automatically."
    elif code in _BUSY:
        message = f"The database {place} is locked by another process."
        remedy = "End the program that holds it, then try again."
    elif code in _FORBIDDEN:
        message = f"The database {place} cannot be opened for writing: {reason}."
        remedy = "Check the path and its permissions."
    elif isinstance(error, IntegrityError):
        message = f"The database {place} rejected a row that conflicts with others: {reason}."
        remedy = "Another process may have changed them in the meantime; check, then try again."
    elif url.get_backend_name() == "postgresql" and _is_away(error):
        message = f"The database {place} cannot be reached: {reason}."
        remedy = f"{_how_to_connect(original, reason, url)} A running Toolcrib then continues automatically."
    else:
        message, remedy = f"The database {place} failed: {reason}.", "See the log, and check the disk."
    return StoreError(message, remedy=remedy)


def _is_away(error: Exception) -> bool:
    """An error while connecting has no statement; a lost connection is marked as invalidated."""
    return isinstance(error, DBAPIError) and (error.connection_invalidated or error.statement is None)


def _how_to_connect(original: BaseException, reason: str, url: sa.URL) -> str:
    """libpq has no error codes for failed connections, so only the message shows the reason."""
    if getattr(getattr(original, "pgconn", None), "needs_password", False):
        return (
            "It requires a password: put it into a PGPASSFILE (mode 0600), into TOOLCRIB_STORE, or into your "
            "configuration as `store: postgresql://user:${DB_PASSWORD}@host/name`."
        )
    if "authentication failed" in reason:
        return "Correct the user or password in PGPASSFILE, TOOLCRIB_STORE or `store:`."
    if "no pg_hba.conf entry" in reason:
        return "Allow this user, database and address in the server's pg_hba.conf, or ask its administrator."
    if "database" in reason and "does not exist" in reason:
        return f"Create it (`createdb {shlex.quote(url.database or '')}` on that server), or correct its name."
    if "role" in reason and "does not exist" in reason:
        return "Create that user on the server (`createuser`), or correct its name."
    return "Start PostgreSQL, or correct its address."


def _how_to_replace(url: sa.URL) -> str:
    place = place_of(url)
    if url.get_backend_name() == "postgresql":
        return "Stop Toolcrib and restore the database from a backup."
    return (
        f"Stop Toolcrib, move the file away (mv {place} {place}.damaged) and start again, or restore a backup. "
        "Known tools return as servers connect; agents, permissions and trust must be set up again."
    )


def _no_room(place: str) -> bool:
    try:
        free = os.statvfs(Path(place).parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _MIN_FREE_BYTES


def _one_line(url: sa.URL, error: BaseException) -> str:
    reason = " ".join(str(error).split()).rstrip(".?")
    return reason.replace(url.password, "****") if url.password else reason
