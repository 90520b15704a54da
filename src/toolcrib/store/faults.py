"""What goes wrong with a database, in our words.

In: whatever a driver raises. Out: `StoreError` with what to do. Nothing here tries again: who writes decides that.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from toolcrib.errors import StoreError

_PRIMARY_CODE = 0xFF
"""SQLite's extended result codes keep the primary one in their low byte."""
_ROOM = 256 * 1024
"""Bytes of free disk below which a failed write is a full disk, whatever SQLite calls it."""

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
    """Where the database is, for people: without a password, or options that may hold one."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    socket = {"host": url.query["host"]} if "host" in url.query else {}
    bare = sa.URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database, query=socket
    )
    return bare.render_as_string()


@contextmanager
def in_our_words(url: sa.URL) -> Iterator[None]:
    """Turns what goes wrong with the database inside into `StoreError`."""
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
    words = _one_line(url, original)
    if code in _DAMAGED:
        message, remedy = f"The database {place} is damaged: {words}.", _how_to_replace(url)
    elif code in _FULL or (code in _MAYBE_FULL and _no_room(place)):
        message = f"There is no room to write the database {place}."
        remedy = "Free some disk space; what was written before is intact, and a running Toolcrib goes on by itself."
    elif code in _BUSY:
        message = f"The database {place} is locked by another process."
        remedy = "End the program that holds it, then try again."
    elif code in _FORBIDDEN:
        message = f"The database {place} cannot be opened for writing: {words}."
        remedy = "Check the path and its permissions."
    elif isinstance(error, IntegrityError):
        message = f"The database {place} refused a row that does not fit to the others: {words}."
        remedy = "Another process may have changed them meanwhile; look, then try again."
    elif url.get_backend_name() == "postgresql" and _is_away(error):
        message = f"The database {place} cannot be reached: {words}."
        remedy = f"{_how_to_come_in(original, words, url)} A running Toolcrib then goes on by itself."
    else:
        message, remedy = f"The database {place} failed: {words}.", "See the log, and whether its disk is in order."
    return StoreError(message, remedy=remedy)


def _is_away(error: Exception) -> bool:
    """Of an error at connecting SQLAlchemy knows no connection; one that was lost it calls invalid."""
    return isinstance(error, DBAPIError) and (error.connection_invalidated or error.statement is None)


def _how_to_come_in(original: BaseException, words: str, url: sa.URL) -> str:
    """libpq gives no code for what fails before there is a connection: only its words tell."""
    if getattr(getattr(original, "pgconn", None), "needs_password", False):
        return (
            "It wants a password: put it into a PGPASSFILE (mode 0600), into TOOLCRIB_STORE, or into your "
            "configuration as `store: postgresql://user:${DB_PASSWORD}@host/name`."
        )
    if "authentication failed" in words:
        return "Correct the user or the password, where you keep it: PGPASSFILE, TOOLCRIB_STORE or `store:`."
    if "no pg_hba.conf entry" in words:
        return "Allow this user, database and address in the server's pg_hba.conf, or ask who runs it."
    if "database" in words and "does not exist" in words:
        return f"Make it (`createdb {shlex.quote(url.database or '')}` on that server), or correct its name."
    if "role" in words and "does not exist" in words:
        return "Make that user on the server (`createuser`), or correct its name."
    return "Start PostgreSQL, or correct its address."


def _how_to_replace(url: sa.URL) -> str:
    place = place_of(url)
    if url.get_backend_name() == "postgresql":
        return "Stop Toolcrib and restore the database from a backup."
    return (
        f"Stop Toolcrib, move the file away (mv {place} {place}.damaged) and start again, or put back a backup. "
        "Known tools come back as servers connect; agents, permissions and trust must be given again."
    )


def _no_room(place: str) -> bool:
    try:
        free = os.statvfs(Path(place).parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _ROOM


def _one_line(url: sa.URL, error: BaseException) -> str:
    words = " ".join(str(error).split()).rstrip(".?")
    return words.replace(url.password, "****") if url.password else words
