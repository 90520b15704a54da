"""The tables, texts that both engines can hold, and rows put in place.

In: a connection inside a transaction. Out: the same database with the tables of this version, or a `StoreError` that
says what to do. `database` checks when it opens. Only what SQLite and PostgreSQL both have is used: PostgreSQL has
no NUL in texts and neither engine has half a surrogate pair, so both refuse both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from toolcrib.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class Text(sa.types.TypeDecorator[str]):
    """The type of every text column."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is not None and not _can_be_kept(value):
            raise StoreError(
                f"The database cannot hold the text {value[:100]!a}: it has a NUL or is not Unicode.",
                remedy="Use a text without it; a file with such a name must be renamed.",
            )
        return value


def storable(text: str) -> str:
    """What cannot be kept spelled out as an escape: for texts that come from strangers and must be written down."""
    if _can_be_kept(text):
        return text
    return "".join(f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)


def _can_be_kept(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    sa.Column("tokens_estimated", sa.Boolean, nullable=False),
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
    sa.Column("tokens_estimated", sa.Boolean, nullable=False),
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
        sa.Column("tokens_estimated", sa.Boolean, nullable=False),
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
        sa.Column("tokens_estimated", sa.Boolean, nullable=False),
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


def insert_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """False: there is one with this key already, and it stays as it is."""
    insert = _insert(connection, table).values(dict(row)).on_conflict_do_nothing()
    # Otherwise the rows that an insert made go uncounted on PostgreSQL.
    return bool(connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount)


def upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Each row has every column. One whose primary key is there already takes the place of what was there."""
    if not rows:
        return
    insert = _insert(connection, table)
    key = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=values), [dict(row) for row in rows])


def _insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    # Only the engine in use is loaded: every program that imports the library would wait for the other one.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415

    return sqlite.insert(table)
