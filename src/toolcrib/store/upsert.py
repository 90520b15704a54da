"""Rows put in place, whether they were there before or not, on either engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


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
