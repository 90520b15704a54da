"""The tables, a text type that works on both engines, and upserts.

In: a connection inside a transaction. Out: the same database with the tables of this version, or a `StoreError` with a
remedy. `database` checks the version when it opens. Only features that SQLite and PostgreSQL share are used: PostgreSQL
cannot store NUL in a text and neither can store a lone surrogate, so `Text` rejects both on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import dialects

from toolcrib.config.masking import is_storable
from toolcrib.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class Text(sa.types.TypeDecorator[str]):
    """The type of every text column."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is not None and not is_storable(value):
            raise StoreError(
                f"The database cannot store the text {value[:100]!a}: it contains NUL or is not valid Unicode.",
                remedy="Remove that character; rename a file with such a name.",
            )
        return value


metadata = sa.MetaData()


def _required(kind: type[sa.types.TypeEngine[Any]], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


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
    sa.Column("offers", sa.LargeBinary, nullable=False),
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

pins = sa.Table(
    "pins",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("sha256", Text, primary_key=True),
    sa.Column("tool", Text, nullable=False),
    sa.Column("definition", sa.LargeBinary, nullable=False),
    sa.Column("accepted_at", sa.Double, nullable=False),
    sa.Column("accepted_by", Text, nullable=False),
)
"""The accepted definitions of a server's tools. `accepted_by` is empty for those remembered at first use."""

kept_out_tools = sa.Table(
    "kept_out_tools",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("tool", Text, primary_key=True),
)

pin_notices = sa.Table(
    "pin_notices",
    metadata,
    sa.Column("identity", Text, primary_key=True),
    sa.Column("root", Text, primary_key=True),
    sa.Column("digest", Text, nullable=False),
)
"""The differences that were reported last, so that each is reported once."""

favorites = sa.Table(
    "favorites",
    metadata,
    sa.Column("tool", Text, primary_key=True),
    sa.Column("origin", Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
)

tool_uses = sa.Table(
    "tool_uses",
    metadata,
    sa.Column("tool", Text, primary_key=True),
    *_required(sa.BigInteger, "calls"),
    *_required(sa.Integer, "level"),
    *_required(sa.Double, "level_since", "counted_at"),
)

clock = sa.Table(
    "clock",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    *_required(sa.Double, "seen_at", "passed"),
    sa.Column("boot", Text, nullable=False),
)
"""One row: the last time seen, the elapsed time counted by then, and the boot it is counted from."""

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
    *_required(Text, "errors", "listing"),
)

agent_rules = sa.Table(
    "agent_rules",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("agent", Text, sa.ForeignKey("agents.name", ondelete="CASCADE"), nullable=False, index=True),
    *_required(Text, "origin", "rule"),
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
    *_required(sa.Double, "started_at", "used_at"),
    *_required(sa.BigInteger, "catalog_version", "permission_version"),
    sa.Column("mode", Text, nullable=False),
    *_required(sa.BigInteger, "listings", "calls", "denied", "failed", "result_bytes"),
    sa.Column("usage", Text, nullable=False),
)

legacy_sessions = sa.Table(
    "legacy_sessions",
    metadata,
    sa.Column("id", Text, primary_key=True),
    *_required(Text, "agent", "conversation"),
    sa.Column("started_at", sa.Double, nullable=False),
    *_required(Text, "capabilities", "client"),
    sa.ForeignKeyConstraint(["agent", "conversation"], ["sessions.agent", "sessions.conversation"], ondelete="CASCADE"),
    sa.Index("ix_legacy_sessions_owner", "agent", "conversation"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    *_required(Text, "kind", "call", "agent", "session", "conversation", "tool", "server", "decision", "rule", "mode"),
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
"""Where the retained part of the chain begins: the last deleted row and its hash."""

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", Text, primary_key=True),
    *_required(Text, "daemon", "submitter"),
    sa.Column("submitter_since", sa.Double, nullable=False),
    *_required(Text, "runs", "model", "profile", "workdir", "root", "prompt"),
    sa.Column("masked", sa.Boolean, nullable=False),
    sa.Column("timeout", sa.Double, nullable=False),
    sa.Column("max_steps", sa.Integer, nullable=False),
    sa.Column("status", Text, nullable=False, index=True),
    sa.Column("agent", Text, nullable=False),
    sa.Column("submitted_at", sa.Double, nullable=False, index=True),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    *_required(Text, "text", "error", "usage"),
    *_required(sa.BigInteger, "steps", "events"),
)


SCHEMA_VERSION = 10
"""Increases with every change of the tables. Versions 1 to 9 predate the first release."""

_POSTGRES_LOCK = 0x746F6F6C63726962
"""`toolcrib` in ASCII: two processes that open the same new database must not both create it."""


def is_current(connection: sa.Connection, place: str) -> bool:
    """False if the tables must be created; raises `StoreError` for a database of another version."""
    if not sa.inspect(connection).has_table("schema_version"):
        return False
    version = connection.execute(sa.select(schema_version.c.version)).scalar_one_or_none() or 0
    if version == SCHEMA_VERSION:
        return True
    if version > SCHEMA_VERSION:
        age, remedy = "a newer", "Update Toolcrib, or use another database (TOOLCRIB_STORE, or `up --store FILE`)."
    else:
        empty = "use an empty database" if "://" in place else f"move the file away (mv {place} {place}.old)"
        age = "an older"
        remedy = f"Stop Toolcrib, {empty} and start again. Agents, permissions and trust must be set up again."
    raise StoreError(
        f"The database {place} is from {age} Toolcrib: its tables have version {version}, not {SCHEMA_VERSION}.",
        remedy=remedy,
        data={"version": version, "known": SCHEMA_VERSION},
    )


def create(connection: sa.Connection, place: str) -> None:
    """Creates all tables or none, in the caller's transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
    # Another process may have created them while we waited.
    if not is_current(connection, place):
        metadata.create_all(connection, checkfirst=False)
        connection.execute(schema_version.insert().values(id=1, version=SCHEMA_VERSION))


def insert_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """False if the key exists; its row then stays unchanged."""
    insert = _insert(connection, table).values(dict(row)).on_conflict_do_nothing()
    # Without this, PostgreSQL doesn't report the number of inserted rows.
    return bool(connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount)


def upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts each row, or replaces the one with the same primary key. Each row must have every column."""
    if not rows:
        return
    insert = _insert(connection, table)
    key = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=values), [dict(row) for row in rows])


def _insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    # The engine has loaded its own dialect; an import here would load an unused one.
    dialect = getattr(dialects, connection.dialect.name)
    made: postgresql.Insert | sqlite.Insert = dialect.insert(table)
    return made
