"""What lasts, read and written by whoever may wait for it.

In: a file or URL, then facts. Out: the same facts after a restart. `Store` gives this to the event loop;
commands that run without a daemon use it as it is. One thread at a time.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from toolcrib.errors import StoreError
from toolcrib.store.engine import WRITING, database_url, in_our_words, make_engine
from toolcrib.store.schema import MIGRATIONS, Migration, known_tools, migrate, trusted_files

log = logging.getLogger(__name__)

BUSY_TIMEOUT = 5.0
"""Seconds to wait for another process that writes."""


@dataclass(frozen=True, kw_only=True)
class TrustedFile:
    path: str
    sha256: str
    trusted_at: float


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
                with database._writing() as connection:
                    migrate(connection, migrations)
            except BaseException:
                engine.dispose()
                raise
        return database

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def known_tools(self, identity: str, root: str | None) -> tuple[bytes, ...] | None:
        """The definitions last remembered for this server in this project; None if there never were any."""
        query = sa.select(known_tools.c.definitions).where(_key(identity, root))
        with self._reading() as connection:
            packed = connection.execute(query).scalar_one_or_none()
        if packed is None:
            return None
        try:
            return msgspec.msgpack.decode(packed, type=tuple[bytes, ...])
        except msgspec.MsgspecError:
            log.warning("the tools remembered for server %s cannot be read; they count as unknown", identity)
            return None

    def remember_tools(self, identity: str, root: str | None, definitions: Sequence[bytes]) -> bool:
        """Keeps a server's definitions, byte for byte. False: they were the same already, nothing was written."""
        packed = msgspec.msgpack.encode(tuple(definitions))
        digest = hashlib.sha256(packed).hexdigest()
        with self._reading() as connection:
            known = connection.execute(sa.select(known_tools.c.digest).where(_key(identity, root))).scalar_one_or_none()
        if known == digest:
            return False
        self._put(
            known_tools,
            {"identity": identity, "root": root or ""},
            {"digest": digest, "definitions": packed, "saved_at": time.time()},
        )
        return True

    def forget_tools(self, identity: str) -> None:
        """Drops what is remembered of a server, for every project."""
        with self._writing() as connection:
            connection.execute(known_tools.delete().where(known_tools.c.identity == identity))

    def is_trusted(self, path: str | Path, sha256: str) -> bool:
        """Whether a person trusted this file with exactly this content."""
        query = sa.select(trusted_files.c.sha256).where(trusted_files.c.path == _absolute(path))
        with self._reading() as connection:
            return bool(connection.execute(query).scalar_one_or_none() == sha256)

    def trust(self, path: str | Path, sha256: str) -> None:
        self._put(trusted_files, {"path": _absolute(path)}, {"sha256": sha256, "trusted_at": time.time()})

    def untrust(self, path: str | Path) -> bool:
        """False: it was not trusted anyway."""
        with self._writing() as connection:
            gone = connection.execute(trusted_files.delete().where(trusted_files.c.path == _absolute(path)))
            return bool(gone.rowcount)

    def trusted_files(self) -> tuple[TrustedFile, ...]:
        with self._reading() as connection:
            rows = connection.execute(sa.select(trusted_files).order_by(trusted_files.c.path))
            return tuple(TrustedFile(path=row.path, sha256=row.sha256, trusted_at=row.trusted_at) for row in rows)

    def _put(self, table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        statement = insert(table).values(**key, **values)
        with self._writing() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._usable(), self._engine.connect() as connection:
            yield connection

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


def _key(identity: str, root: str | None) -> sa.ColumnElement[bool]:
    return sa.and_(known_tools.c.identity == identity, known_tools.c.root == (root or ""))


def _absolute(path: str | Path) -> str:
    if not Path(path).is_absolute():
        raise ValueError(f"trust is bound to an absolute path, not to {str(path)!r}")
    return str(path)
