"""A database engine set up the way we need it.

In: a file or a URL. Out: an SQLAlchemy engine with two connections, one for who reads and one for who writes.
`database` uses it; `faults` says what goes wrong with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from toolcrib.errors import StoreError

WRITING = {"toolcrib_writing": True}
"""Execution options of a connection that will write."""
READING = {"postgresql_readonly": True}

_REACH_WITHIN = 3
"""Seconds to reach a PostgreSQL."""
_SILENCE = 10
"""Seconds after which a PostgreSQL that no longer answers on the wire counts as gone."""


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
            "PostgreSQL needs a driver that is not installed.", remedy="Install it: pip install 'toolcrib[postgres]'."
        ) from error
    if postgres:
        _set_up_postgres(engine, busy_timeout)
    else:
        _set_up_sqlite(engine, busy_timeout)
    return engine


def _prepare_file(url: sa.URL) -> None:
    """The file and its folder are the owner's alone; SQLite gives its side files the same mode."""
    file = Path(url.database or "")
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
        # and what is written often shares its commits.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        # A reader that turns writer cannot wait for a lock, so writers take it at once.
        writing = connection.get_execution_options().get("toolcrib_writing")
        driver: Any = connection.connection.driver_connection
        wanted = "OFF" if writing else "ON"
        # By the driver itself, and only what is needed: these are part of every commit.
        if connection.info.get("query_only") != wanted:
            driver.execute(f"PRAGMA query_only = {wanted}")
            connection.info["query_only"] = wanted
        driver.execute("BEGIN IMMEDIATE" if writing else "BEGIN")


def _limits(url: sa.URL, label: str) -> dict[str, Any]:
    """Without them a host that vanished would be waited for many minutes. What the URL itself says stands."""
    limits = {
        "connect_timeout": _REACH_WITHIN,
        "tcp_user_timeout": _SILENCE * 1000,
        "keepalives_idle": _SILENCE,
        "keepalives_interval": _SILENCE // 2,
        "keepalives_count": 2,
        "application_name": label,
    }
    return {name: value for name, value in limits.items() if name not in url.query}


def _set_up_postgres(engine: sa.Engine, busy_timeout: float) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {int(busy_timeout * 1000)}")
        # Whatever the server's habit: what was acknowledged is on its disk.
        cursor.execute("SET synchronous_commit = on")
        # The server, too, lets go of a session whose client vanished, and of its lock.
        cursor.execute(f"SET tcp_keepalives_idle = {_SILENCE}")
        cursor.execute(f"SET tcp_keepalives_interval = {_SILENCE // 2}")
        cursor.execute("SET tcp_keepalives_count = 2")
        cursor.close()
        connection.commit()
