"""Sessions, one per agent and conversation, and the ids that legacy clients hold of them.

In: a connection and rows, many at once so that they share a commit. Out: the same rows after a restart.
`agents.sessions` has them in memory; who may use one is decided there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from toolcrib.store.schema import legacy_sessions, sessions
from toolcrib.store.upsert import upsert


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    agent: str
    conversation: str
    id: str
    started_at: float
    used_at: float
    catalog_version: int = 0
    permission_version: int = 0
    mode: str = ""
    listings: int = 0
    calls: int = 0
    denied: int = 0
    failed: int = 0
    result_bytes: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class LegacyRow:
    id: str
    agent: str
    conversation: str
    started_at: float


def put_many(connection: sa.Connection, rows: Sequence[SessionRow]) -> None:
    """New ones begin, known ones change. One that was ended must not be among them: it would begin again."""
    upsert(connection, sessions, [vars(row) for row in rows])


def load_all(connection: sa.Connection) -> tuple[SessionRow, ...]:
    """The one that was used last comes last."""
    rows = connection.execute(sa.select(sessions).order_by(sessions.c.used_at))
    return tuple(SessionRow(**row._mapping) for row in rows)


def end(connection: sa.Connection, keys: Sequence[tuple[str, str]]) -> None:
    """Each key is an agent and a conversation; their legacy ids end with them."""
    if keys:
        query = sessions.delete().where(
            sessions.c.agent == sa.bindparam("whose"), sessions.c.conversation == sa.bindparam("which")
        )
        connection.execute(query, [{"whose": agent, "which": conversation} for agent, conversation in keys])


def begin_legacy(connection: sa.Connection, rows: Sequence[LegacyRow]) -> None:
    """Whose session has ended meanwhile gets none, and the others theirs."""
    if not rows:
        return
    values = [sa.bindparam(f"new_{column.name}", type_=column.type) for column in legacy_sessions.columns]
    agent, conversation = (
        sa.bindparam(f"new_{name}", type_=sessions.c[name].type) for name in ("agent", "conversation")
    )
    there = sa.exists().where(sessions.c.agent == agent, sessions.c.conversation == conversation)
    statement = legacy_sessions.insert().from_select(
        [column.name for column in legacy_sessions.columns], sa.select(*values).where(there)
    )
    connection.execute(statement, [{f"new_{name}": value for name, value in vars(row).items()} for row in rows])


def load_legacy(connection: sa.Connection) -> tuple[LegacyRow, ...]:
    rows = connection.execute(sa.select(legacy_sessions).order_by(legacy_sessions.c.started_at))
    return tuple(LegacyRow(**row._mapping) for row in rows)


def end_legacy(connection: sa.Connection, ids: Sequence[str]) -> None:
    if ids:
        query = legacy_sessions.delete().where(legacy_sessions.c.id == sa.bindparam("gone"))
        connection.execute(query, [{"gone": one} for one in ids])
