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
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("root", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("definitions", sa.LargeBinary, nullable=False),
    sa.Column("saved_at", sa.Double, nullable=False),
)

trusted_files = sa.Table(
    "trusted_files",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("trusted_at", sa.Double, nullable=False),
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


MIGRATIONS: tuple[Migration, ...] = (_tools_and_trust,)
"""The first leads to version 1, and so on."""

_POSTGRES_LOCK = 0x746F6F6C63726962
"""The word `toolcrib`: two processes that open one new database must not both create it."""


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
