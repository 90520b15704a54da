"""The tables, and the way from every earlier version to this one.

In: a connection inside a transaction. Out: the same database at the version that this code knows.
`database` migrates when it opens. Only what SQLite and PostgreSQL both have is used.

A migration never changes after a release: it has its own picture of the tables it makes, and the tables at the
top are today's. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from toolcrib.errors import StoreError
from toolcrib.store.text import Text

Migration = Callable[[sa.Connection], None]

metadata = sa.MetaData()

schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
)

known_tools = sa.Table(
    "known_tools",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("root", Text, primary_key=True),
    sa.Column("digest", Text, nullable=False),
    sa.Column("definitions", sa.LargeBinary, nullable=False),
    sa.Column("saved_at", sa.Double, nullable=False),
)

trusted_files = sa.Table(
    "trusted_files",
    metadata,
    sa.Column("path", Text, primary_key=True),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("trusted_at", sa.Double, nullable=False),
)


trusted_servers = sa.Table(
    "trusted_servers",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("trusted_at", sa.Double, nullable=False),
)

trusted_definitions = sa.Table(
    "trusted_definitions",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("sha256", Text, primary_key=True),
    sa.Column("tool", Text, nullable=False),
    sa.Column("trusted_at", sa.Double, nullable=False),
)
"""The definitions of tools that the trust in a server was given for."""

clock = sa.Table(
    "clock",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("passed", sa.Double, nullable=False),
    sa.Column("boot", Text, nullable=False),
)
"""One row: the time that was seen last, and what the computer had counted by then, since which boot."""

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("profile", Text, nullable=False),
    sa.Column("workdir", Text),
    sa.Column("parent", Text),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
)

agent_rules = sa.Table(
    "agent_rules",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("agent", Text, sa.ForeignKey("agents.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("origin", Text, nullable=False),
    sa.Column("rule", Text, nullable=False),
    sa.Column("added_at", sa.Double, nullable=False),
)

profiles = sa.Table(
    "profiles",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("content", Text, nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("agent", Text, primary_key=True),
    sa.Column("conversation", Text, primary_key=True),
    sa.Column("id", Text, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("used_at", sa.Double, nullable=False),
    sa.Column("catalog_version", sa.BigInteger, nullable=False),
    sa.Column("permission_version", sa.BigInteger, nullable=False),
    sa.Column("mode", Text, nullable=False),
    sa.Column("listings", sa.BigInteger, nullable=False),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("denied", sa.BigInteger, nullable=False),
    sa.Column("failed", sa.BigInteger, nullable=False),
    sa.Column("result_bytes", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)

legacy_sessions = sa.Table(
    "legacy_sessions",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("agent", Text, nullable=False),
    sa.Column("conversation", Text, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.ForeignKeyConstraint(["agent", "conversation"], ["sessions.agent", "sessions.conversation"], ondelete="CASCADE"),
    sa.Index("ix_legacy_sessions_owner", "agent", "conversation"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("kind", Text, nullable=False),
    sa.Column("call", Text, nullable=False),
    sa.Column("agent", Text, nullable=False),
    sa.Column("session", Text, nullable=False),
    sa.Column("conversation", Text, nullable=False),
    sa.Column("tool", Text, nullable=False),
    sa.Column("server", Text, nullable=False),
    sa.Column("decision", Text, nullable=False),
    sa.Column("rule", Text, nullable=False),
    sa.Column("mode", Text, nullable=False),
    sa.Column("shape", Text),
    sa.Column("arguments_hash", Text),
    sa.Column("arguments", Text),
    sa.Column("outcome", Text, nullable=False),
    sa.Column("duration", sa.Double, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger),
    sa.Column("detail", Text),
    sa.Column("hash", Text, nullable=False),
)

audit_base = sa.Table(
    "audit_base",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("hash", Text, nullable=False),
)
"""Where the kept part of the chain begins: the last row that was let go, and its hash."""

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("daemon", Text, nullable=False),
    sa.Column("submitter", Text, nullable=False),
    sa.Column("submitter_since", sa.Double, nullable=False),
    sa.Column("runs", Text, nullable=False),
    sa.Column("model", Text, nullable=False),
    sa.Column("profile", Text, nullable=False),
    sa.Column("workdir", Text, nullable=False),
    sa.Column("root", Text, nullable=False),
    sa.Column("prompt", Text, nullable=False),
    sa.Column("masked", sa.Boolean, nullable=False),
    sa.Column("timeout", sa.Double, nullable=False),
    sa.Column("max_steps", sa.Integer, nullable=False),
    sa.Column("status", Text, nullable=False, index=True),
    sa.Column("agent", Text, nullable=False),
    sa.Column("submitted_at", sa.Double, nullable=False, index=True),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("text", Text, nullable=False),
    sa.Column("error", Text, nullable=False),
    sa.Column("usage", Text, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("events", sa.BigInteger, nullable=False),
)


def _tools_and_trust(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "known_tools",
        tables,
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("root", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("definitions", sa.LargeBinary, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
    )
    sa.Table(
        "trusted_files",
        tables,
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("trusted_at", sa.Double, nullable=False),
    )
    tables.create_all(connection, checkfirst=False)


def _agents_and_audit(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "trusted_servers",
        tables,
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("trusted_at", sa.Double, nullable=False),
    )
    sa.Table(
        "counters",
        tables,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    sa.Table(
        "agents",
        tables,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("workdir", sa.Text),
        sa.Column("parent", sa.Text),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    sa.Table(
        "agent_rules",
        tables,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("agent", sa.Text, sa.ForeignKey("agents.name", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("added_at", sa.Double, nullable=False),
    )
    sa.Table(
        "profiles",
        tables,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    sa.Table(
        "sessions",
        tables,
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("conversation", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("catalog_version", sa.BigInteger, nullable=False),
        sa.Column("permission_version", sa.BigInteger, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("listings", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("denied", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("result_bytes", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )
    sa.Table(
        "legacy_sessions",
        tables,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("conversation", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["agent", "conversation"], ["sessions.agent", "sessions.conversation"], ondelete="CASCADE"
        ),
        sa.Index("ix_legacy_sessions_owner", "agent", "conversation"),
    )
    sa.Table(
        "audit",
        tables,
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False, index=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("conversation", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("shape", sa.Text),
        sa.Column("arguments_hash", sa.Text),
        sa.Column("arguments", sa.Text),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("duration", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("detail", sa.Text),
        sa.Column("hash", sa.Text, nullable=False),
    )
    sa.Table(
        "audit_base",
        tables,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
    )
    tables.create_all(connection, checkfirst=False)


def _jobs(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "jobs",
        tables,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("daemon", sa.Text, nullable=False),
        sa.Column("submitter", sa.Text, nullable=False),
        sa.Column("submitter_since", sa.Double, nullable=False),
        sa.Column("runs", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("workdir", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("masked", sa.Boolean, nullable=False),
        sa.Column("timeout", sa.Double, nullable=False),
        sa.Column("max_steps", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False, index=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False, index=True),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("usage", sa.Text, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
    )
    tables.create_all(connection, checkfirst=False)


def _trusted_definitions(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "trusted_definitions",
        tables,
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("trusted_at", sa.Double, nullable=False),
    )
    tables.create_all(connection, checkfirst=False)


def _clock(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "clock",
        tables,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("passed", sa.Double, nullable=False),
        sa.Column("boot", sa.Text, nullable=False),
    )
    tables.create_all(connection, checkfirst=False)


MIGRATIONS: tuple[Migration, ...] = (_tools_and_trust, _agents_and_audit, _jobs, _trusted_definitions, _clock)
"""The first leads to version 1, and so on."""

_POSTGRES_LOCK = 0x746F6F6C63726962
"""The word `toolcrib`: two processes that open one new database must not both create it."""


def is_current(connection: sa.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> bool:
    if not sa.inspect(connection).has_table("schema_version"):
        return False
    return bool(connection.execute(sa.select(schema_version.c.version)).scalar_one_or_none() == len(migrations))


def migrate(connection: sa.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Brings the database to the newest version, or leaves it as it is: the caller's transaction holds all of it."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
    if sa.inspect(connection).has_table("schema_version"):
        version = connection.execute(sa.select(schema_version.c.version)).scalar_one()
    else:
        schema_version.create(connection)
        connection.execute(schema_version.insert().values(id=1, version=0))
        version = 0
    if version > len(migrations):
        raise StoreError(
            f"The database has version {version}, but this Toolcrib knows only versions up to {len(migrations)}.",
            remedy="Update Toolcrib, or point it at another database.",
            data={"version": version, "known": len(migrations)},
        )
    for migration in migrations[version:]:
        migration(connection)
    if version < len(migrations):
        connection.execute(schema_version.update().values(version=len(migrations)))
