"""What a person trusts: project files with exactly their content, and servers whose word on their own tools counts.

In: a connection. Out: rows. `crib` asks; nothing here is trusted by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from toolcrib.store.schema import trusted_files, trusted_servers
from toolcrib.store.upsert import upsert


@dataclass(frozen=True, kw_only=True)
class TrustedFile:
    path: str
    sha256: str
    trusted_at: float


def trust_file(connection: sa.Connection, path: str | Path, sha256: str) -> None:
    upsert(connection, trusted_files, [{"path": _absolute(path), "sha256": sha256, "trusted_at": time.time()}])


def untrust_file(connection: sa.Connection, path: str | Path) -> bool:
    """False: it was not trusted anyway."""
    return bool(connection.execute(trusted_files.delete().where(trusted_files.c.path == _absolute(path))).rowcount)


def files(connection: sa.Connection) -> tuple[TrustedFile, ...]:
    rows = connection.execute(sa.select(trusted_files).order_by(trusted_files.c.path))
    return tuple(TrustedFile(**row._mapping) for row in rows)


def believe_server(connection: sa.Connection, identity: str, name: str) -> None:
    """The identity is the server's as it is now: with another command or address it is another server."""
    upsert(connection, trusted_servers, [{"identity": identity, "name": name, "trusted_at": time.time()}])


def disbelieve_server(connection: sa.Connection, identity: str) -> bool:
    """False: it was not believed anyway."""
    return bool(connection.execute(trusted_servers.delete().where(trusted_servers.c.identity == identity)).rowcount)


def believed_servers(connection: sa.Connection) -> frozenset[str]:
    """Their identities."""
    return frozenset(connection.execute(sa.select(trusted_servers.c.identity)).scalars())


def _absolute(path: str | Path) -> str:
    if not Path(path).is_absolute():
        raise ValueError(f"trust is bound to an absolute path, not to {str(path)!r}")
    return str(path)
