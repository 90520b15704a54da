"""Agents, their rules, the profiles that a person wrote, sessions, and the numbers that only grow.

In: a connection and rows. Out: the same rows after a restart. `identity` makes sense of them: a rule and a profile
are mere text here, and of a token there is only a digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from toolcrib.store.schema import agent_rules, agents, counters, insert_new, legacy_sessions, profiles, sessions, upsert


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    name: str
    profile: str
    workdir: str | None = None
    parent: str | None = None
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    created_at: float
    expires_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    id: int
    agent: str
    origin: str
    rule: str
    added_at: float


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    name: str
    content: str
    changed_at: float


def all_agents(connection: sa.Connection) -> tuple[AgentRow, ...]:
    rows = connection.execute(sa.select(agents).order_by(agents.c.created_at, agents.c.name))
    return tuple(AgentRow(**row._mapping) for row in rows)


def add_agent(connection: sa.Connection, row: AgentRow) -> bool:
    """False: there is one of this name already, and it stays as it is."""
    return insert_new(connection, agents, vars(row))


def change_token(connection: sa.Connection, name: str, digest: bytes, expires_at: float | None) -> bool:
    """False: the agent is gone."""
    changed = agents.update().where(agents.c.name == name).values(digest=digest, expires_at=expires_at)
    return bool(connection.execute(changed).rowcount)


def remove_agents(connection: sa.Connection, names: Sequence[str]) -> None:
    """With their rules and their sessions of every kind."""
    if not names:
        return
    gone = [{"gone": name} for name in names]
    for column in (sessions.c.agent, agents.c.name):
        # Rules go with their agent and legacy sessions with their session: the schema says so.
        connection.execute(column.table.delete().where(column == sa.bindparam("gone")), gone)


def all_rules(connection: sa.Connection) -> tuple[RuleRow, ...]:
    """In the order in which they were added."""
    rows = connection.execute(sa.select(agent_rules).order_by(agent_rules.c.id))
    return tuple(RuleRow(**row._mapping) for row in rows)


def add_rule(connection: sa.Connection, agent: str, *, origin: str, rule: str, added_at: float) -> RuleRow:
    values = {"agent": agent, "origin": origin, "rule": rule, "added_at": added_at}
    made = connection.execute(agent_rules.insert().values(values)).inserted_primary_key
    if made is None:
        raise RuntimeError("an insert tells the key it made")
    return RuleRow(id=made[0], agent=agent, origin=origin, rule=rule, added_at=added_at)


def drop_rules(connection: sa.Connection, ids: Sequence[int]) -> None:
    if ids:
        query = agent_rules.delete().where(agent_rules.c.id == sa.bindparam("gone"))
        connection.execute(query, [{"gone": one} for one in ids])


def all_profiles(connection: sa.Connection) -> tuple[ProfileRow, ...]:
    rows = connection.execute(sa.select(profiles).order_by(profiles.c.name))
    return tuple(ProfileRow(**row._mapping) for row in rows)


def put_profile(connection: sa.Connection, row: ProfileRow) -> None:
    upsert(connection, profiles, [vars(row)])


def drop_profile(connection: sa.Connection, name: str) -> bool:
    """False: there was none of this name."""
    return bool(connection.execute(profiles.delete().where(profiles.c.name == name)).rowcount)


def version(connection: sa.Connection, name: str) -> int:
    """Where the counter stands; 0 if it never moved."""
    value = connection.execute(sa.select(counters.c.value).where(counters.c.name == name)).scalar_one_or_none()
    return int(value or 0)


def next_version(connection: sa.Connection, name: str) -> int:
    """Moves the counter on. Nobody else gets the same number, in this process or another."""
    moved = counters.update().where(counters.c.name == name).values(value=counters.c.value + 1)
    if not connection.execute(moved).rowcount:
        # Of two that find no counter the second waits here for the first, and then counts on from it.
        insert_new(connection, counters, {"name": name, "value": 0})
        connection.execute(moved)
    return version(connection, name)


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
    tokens_estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class LegacySessionRow:
    id: str
    agent: str
    conversation: str
    started_at: float


def put_sessions(connection: sa.Connection, rows: Sequence[SessionRow]) -> None:
    """New ones begin, known ones change. One that was ended must not be among them: it would begin again."""
    upsert(connection, sessions, [vars(row) for row in rows])


def all_sessions(connection: sa.Connection) -> tuple[SessionRow, ...]:
    """The one that was used last comes last."""
    rows = connection.execute(sa.select(sessions).order_by(sessions.c.used_at))
    return tuple(SessionRow(**row._mapping) for row in rows)


def end_sessions(connection: sa.Connection, keys: Sequence[tuple[str, str]]) -> None:
    """Each key is an agent and a conversation; their legacy ids end with them."""
    if keys:
        query = sessions.delete().where(
            sessions.c.agent == sa.bindparam("whose"), sessions.c.conversation == sa.bindparam("which")
        )
        connection.execute(query, [{"whose": agent, "which": conversation} for agent, conversation in keys])


def begin_legacy_sessions(connection: sa.Connection, rows: Sequence[LegacySessionRow]) -> None:
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


def all_legacy_sessions(connection: sa.Connection) -> tuple[LegacySessionRow, ...]:
    rows = connection.execute(sa.select(legacy_sessions).order_by(legacy_sessions.c.started_at))
    return tuple(LegacySessionRow(**row._mapping) for row in rows)


def end_legacy_sessions(connection: sa.Connection, ids: Sequence[str]) -> None:
    if ids:
        query = legacy_sessions.delete().where(legacy_sessions.c.id == sa.bindparam("gone"))
        connection.execute(query, [{"gone": one} for one in ids])
