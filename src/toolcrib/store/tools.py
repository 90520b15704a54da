"""The tools that each server last listed, for a start without it.

In: a connection, a server's identity, a project's root. Out: definitions, byte for byte. `crib` keeps them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from toolcrib.store.schema import known_tools
from toolcrib.store.upsert import upsert

log = logging.getLogger(__name__)


def known(connection: sa.Connection, identity: str, root: str | None) -> tuple[bytes, ...] | None:
    """The definitions last remembered for this server in this project; None if there never were any."""
    query = sa.select(known_tools.c.definitions).where(_key(identity, root))
    packed = connection.execute(query).scalar_one_or_none()
    if packed is None:
        return None
    try:
        return msgspec.msgpack.decode(packed, type=tuple[bytes, ...])
    except msgspec.MsgspecError:
        log.warning("the tools remembered for server %s cannot be read; they count as unknown", identity)
        return None


def remember(connection: sa.Connection, identity: str, root: str | None, definitions: Sequence[bytes]) -> bool:
    """Keeps a server's definitions. False: they were the same already, nothing was written."""
    packed = msgspec.msgpack.encode(tuple(definitions))
    digest = hashlib.sha256(packed).hexdigest()
    before = connection.execute(sa.select(known_tools.c.digest).where(_key(identity, root))).scalar_one_or_none()
    if before == digest:
        return False
    row = {"identity": identity, "root": root or "", "digest": digest, "definitions": packed, "saved_at": time.time()}
    upsert(connection, known_tools, [row])
    return True


def forget(connection: sa.Connection, identity: str) -> None:
    """Drops what is remembered of a server, for every project."""
    connection.execute(known_tools.delete().where(known_tools.c.identity == identity))


def _key(identity: str, root: str | None) -> sa.ColumnElement[bool]:
    return sa.and_(known_tools.c.identity == identity, known_tools.c.root == (root or ""))
