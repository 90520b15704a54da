"""Agents and their rules, user-defined profiles, sessions, and counters that only grow.

In: a connection and rows. Out: the same rows after a restart. `identity` interprets them: rules and profiles are plain
text here, and only a token's digest is stored.
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
    errors: str = "result"
    listing: str = ""


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
    """False if the name is taken; the existing agent stays unchanged."""
    return insert_new(connection, agents, vars(row))


def change_token(connection: sa.Connection, name: str, digest: bytes, expires_at: float | None) -> bool:
    """False if the agent no longer exists."""
    changed = agents.update().where(agents.c.name == name).values(digest=digest, expires_at=expires_at)
    return bool(connection.execute(changed).rowcount)


def remove_agents(connection: sa.Connection, names: Sequence[str]) -> None:
    """Also removes their rules and all their sessions."""
    if not names:
        return
    gone = [{"gone": name} for name in names]
    for column in (sessions.c.agent, agents.c.name):
        # The schema cascades to the agents' rules and the sessions' legacy sessions.
        connection.execute(column.table.delete().where(column == sa.bindparam("gone")), gone)


def all_rules(connection: sa.Connection) -> tuple[RuleRow, ...]:
    """In the order in which they were added."""
    rows = connection.execute(sa.select(agent_rules).order_by(agent_rules.c.id))
    return tuple(RuleRow(**row._mapping) for row in rows)


def add_rule(connection: sa.Connection, agent: str, *, origin: str, rule: str, added_at: float) -> RuleRow:
    values = {"agent": agent, "origin": origin, "rule": rule, "added_at": added_at}
    made = connection.execute(agent_rules.insert().values(values)).inserted_primary_key
    if made is None:
        raise RuntimeError("the insert returned no primary key")
    return RuleRow(id=made[0], agent=agent, origin=origin, rule=rule, added_at=added_at)


def drop_rules(connection: sa.Connection, ids: Sequence[int]) -> None:
    if ids:
        query = agent_rules.delete().where(agent_rules.c.id == sa.bindparam("gone"))
        connection.execute(query, [{"gone": id_} for id_ in ids])


def all_profiles(connection: sa.Connection) -> tuple[ProfileRow, ...]:
    rows = connection.execute(sa.select(profiles).order_by(profiles.c.name))
    return tuple(ProfileRow(**row._mapping) for row in rows)


def put_profile(connection: sa.Connection, row: ProfileRow) -> None:
    upsert(connection, profiles, [vars(row)])


def drop_profile(connection: sa.Connection, name: str) -> bool:
    """False if there is none of this name."""
    return bool(connection.execute(profiles.delete().where(profiles.c.name == name)).rowcount)


def version(connection: sa.Connection, name: str) -> int:
    """The counter's value; 0 if it was never incremented."""
    value = connection.execute(sa.select(counters.c.value).where(counters.c.name == name)).scalar_one_or_none()
    return int(value or 0)


def next_version(connection: sa.Connection, name: str) -> int:
    """Increments the counter. No other caller gets the same number, in this process or another."""
    moved = counters.update().where(counters.c.name == name).values(value=counters.c.value + 1)
    if not connection.execute(moved).rowcount:
        # If two callers find no counter, the second waits here for the first, and then continues from its value.
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
    usage: str = "{}"
    """As JSON."""


@dataclass(frozen=True, kw_only=True)
class LegacySessionRow:
    id: str
    agent: str
    conversation: str
    started_at: float
    capabilities: str
    """What the client can be asked, as JSON."""
    client: str
    """The name with which it introduced itself."""


def put_sessions(connection: sa.Connection, rows: Sequence[SessionRow]) -> None:
    """Inserts or updates them. Don't pass an ended session: it would be stored again."""
    upsert(connection, sessions, [vars(row) for row in rows])


def all_sessions(connection: sa.Connection) -> tuple[SessionRow, ...]:
    """The most recently used one comes last."""
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
    """Skips rows whose session has ended in the meantime."""
    if not rows:
        return
    values = [sa.bindparam(f"new_{column.name}", type_=column.type) for column in legacy_sessions.columns]
    agent, conversation = (
        sa.bindparam(f"new_{name}", type_=sessions.c[name].type) for name in ("agent", "conversation")
    )
    session_exists = sa.exists().where(sessions.c.agent == agent, sessions.c.conversation == conversation)
    statement = legacy_sessions.insert().from_select(
        [column.name for column in legacy_sessions.columns], sa.select(*values).where(session_exists)
    )
    connection.execute(statement, [{f"new_{name}": value for name, value in vars(row).items()} for row in rows])


def all_legacy_sessions(connection: sa.Connection) -> tuple[LegacySessionRow, ...]:
    rows = connection.execute(sa.select(legacy_sessions).order_by(legacy_sessions.c.started_at))
    return tuple(LegacySessionRow(**row._mapping) for row in rows)


def end_legacy_sessions(connection: sa.Connection, ids: Sequence[str]) -> None:
    if ids:
        query = legacy_sessions.delete().where(legacy_sessions.c.id == sa.bindparam("gone"))
        connection.execute(query, [{"gone": id_} for id_ in ids])
