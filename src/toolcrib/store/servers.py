"""The tools that each server last listed, for a start without it; the trusted files and servers.

In: a connection, a server's identity, a project's root. Out: definitions, byte for byte, and rows. `core` uses it and
decides whom to trust.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sa

from toolcrib.store.schema import known_tools, trusted_files, trusted_servers, upsert

log = logging.getLogger(__name__)


def load_tools(connection: sa.Connection, identity: str, root: str | None) -> tuple[bytes, ...] | None:
    """The last known definitions of this server: of this project, else the newest of any; None if there are none."""
    packed = _last_known(connection, known_tools.c.definitions, identity, root)
    if packed is None:
        return None
    try:
        return msgspec.msgpack.decode(packed, type=tuple[bytes, ...])
    except msgspec.MsgspecError:
        log.warning("the stored tools of server %s cannot be read; they count as unknown", identity)
        return None


def load_offers(connection: sa.Connection, identity: str, root: str | None) -> bytes:
    """What was stored with these definitions."""
    return _last_known(connection, known_tools.c.offers, identity, root) or b""


def _last_known(connection: sa.Connection, column: sa.Column[bytes], identity: str, root: str | None) -> bytes | None:
    of_project = known_tools.c.root == (root or "")
    query = sa.select(column).where(known_tools.c.identity == identity)
    query = query.order_by(of_project.desc(), known_tools.c.saved_at.desc()).limit(1)
    return connection.execute(query).scalar_one_or_none()


def remember_tools(
    connection: sa.Connection, identity: str, root: str | None, definitions: Sequence[bytes], offers: bytes = b""
) -> bool:
    """Stores a server's definitions, and its other offers. False if they are unchanged; then nothing is written."""
    packed = msgspec.msgpack.encode(tuple(definitions))
    digest = hashlib.sha256(packed + offers).hexdigest()
    before = connection.execute(sa.select(known_tools.c.digest).where(_key(identity, root))).scalar_one_or_none()
    if before == digest:
        return False
    row = {
        "identity": identity,
        "root": root or "",
        "digest": digest,
        "definitions": packed,
        "offers": offers,
        "saved_at": time.time(),
    }
    upsert(connection, known_tools, [row])
    return True


def forget_tools(connection: sa.Connection, identity: str) -> None:
    """Deletes a server's stored definitions, for every project."""
    connection.execute(known_tools.delete().where(known_tools.c.identity == identity))


def _key(identity: str, root: str | None) -> sa.ColumnElement[bool]:
    return sa.and_(known_tools.c.identity == identity, known_tools.c.root == (root or ""))


@dataclass(frozen=True, kw_only=True)
class TrustedFile:
    path: str
    sha256: str
    trusted_at: float


def trust_file(connection: sa.Connection, path: str | Path, sha256: str) -> None:
    upsert(connection, trusted_files, [{"path": _absolute(path), "sha256": sha256, "trusted_at": time.time()}])


def untrust_file(connection: sa.Connection, path: str | Path) -> bool:
    """False if it was not trusted."""
    return bool(connection.execute(trusted_files.delete().where(trusted_files.c.path == _absolute(path))).rowcount)


def all_trusted_files(connection: sa.Connection) -> tuple[TrustedFile, ...]:
    rows = connection.execute(sa.select(trusted_files).order_by(trusted_files.c.path))
    return tuple(TrustedFile(**row._mapping) for row in rows)


def trust_server(connection: sa.Connection, identity: str, name: str) -> None:
    """Trust is bound to the server's current identity: a changed command or address makes it another server."""
    upsert(connection, trusted_servers, [{"identity": identity, "name": name, "trusted_at": time.time()}])


def untrust_server(connection: sa.Connection, identity: str) -> bool:
    """False if it was not trusted."""
    return bool(connection.execute(trusted_servers.delete().where(trusted_servers.c.identity == identity)).rowcount)


def all_trusted_servers(connection: sa.Connection) -> frozenset[str]:
    """By identity."""
    return frozenset(connection.execute(sa.select(trusted_servers.c.identity)).scalars())


def _absolute(path: str | Path) -> str:
    if not Path(path).is_absolute():
        raise ValueError(f"only an absolute path can be trusted, not {str(path)!r}")
    return str(path)
