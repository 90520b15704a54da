"""The rows of the audit log, and the point where its retained part begins.

In: a connection, rows that `audit` made and linked. Out: the same rows by number, by age or by filter.
The `audit` package interprets the rows and verifies the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from toolcrib.store.schema import audit, audit_base, upsert

COLUMNS = tuple(column.name for column in audit.columns)
"""In the order in which the chain hashes them; the last is the hash itself."""

_BEGIN, _KEPT = 0, 1
"""The rows of `audit_base`: the audit log's id, and the last row that was deleted."""

_POSTGRES_LOCK = 0x746F6F6C61756469
"""`toolaudi` in ASCII. With this lock, the second of two concurrent writers reads the head that the first wrote."""

# Built once, since every commit uses them. Raw driver SQL avoids SQLAlchemy's type processing for each value.
_INSERT = {
    dialect: f"INSERT INTO audit ({', '.join(COLUMNS)}) VALUES ({', '.join([mark] * len(COLUMNS))})"  # noqa: S608
    for dialect, mark in (("sqlite", "?"), ("postgresql", "%s"))
}
_HEAD = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"


@dataclass(frozen=True, kw_only=True)
class ChainBase:
    """Where the chain begins: the row before the first retained one, or number 0 and the audit log's id."""

    chain: str
    seq: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    agent: str | None = None
    tool: str | None = None
    """A name or a glob with `*` and `?`; without a colon it matches the tools of every server."""
    server: str | None = None
    outcome: str | None = None
    session: str | None = None
    since: float | None = None
    until: float | None = None


def lock(connection: sa.Connection) -> None:
    """Blocks other writers until the transaction ends. SQLite only ever has one writer."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))


def read_snapshot(connection: sa.Connection) -> None:
    """Makes all reads of this transaction see one snapshot; SQLite does so by default."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def base(connection: sa.Connection) -> ChainBase | None:
    """None if there is no audit log yet."""
    found = {row.id: row for row in connection.execute(sa.select(audit_base))}
    begin = found.get(_BEGIN)
    if begin is None:
        return None
    kept = found.get(_KEPT, begin)
    return ChainBase(chain=begin.hash, seq=kept.seq, hash=kept.hash)


def begin(connection: sa.Connection, chain: str) -> ChainBase:
    connection.execute(audit_base.insert().values(id=_BEGIN, seq=0, hash=chain))
    return ChainBase(chain=chain, seq=0, hash=chain)


def head(connection: sa.Connection) -> tuple[int, str] | None:
    """The newest row's number and hash."""
    row = connection.exec_driver_sql(_HEAD).first()
    return None if row is None else (row.seq, row.hash)


def append(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Each row must have all columns in order and only `storable` texts; neither is checked here."""
    connection.exec_driver_sql(_INSERT[connection.dialect.name], [tuple(row.values()) for row in rows])


def page(connection: sa.Connection, after: int, limit: int) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    return connection.execute(sa.select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(limit)).all()


def oldest(connection: sa.Connection, after: int, limit: int) -> Sequence[sa.Row[int, float, str]]:
    """Number, time and hash of the oldest rows above `after`."""
    query = sa.select(audit.c.seq, audit.c.at, audit.c.hash).where(audit.c.seq > after)
    return connection.execute(query.order_by(audit.c.seq).limit(limit)).all()


def by_seq(connection: sa.Connection, numbers: Sequence[int]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    return connection.execute(sa.select(audit).where(audit.c.seq.in_(numbers))).all()


def delete_through(connection: sa.Connection, after: int, seq: int, hash_: str) -> None:
    """Deletes all rows above `after` up to this one."""
    connection.execute(audit.delete().where(audit.c.seq > after, audit.c.seq <= seq))
    upsert(connection, audit_base, [{"id": _KEPT, "seq": seq, "hash": hash_}])


def first_since(connection: sa.Connection, at: float, after: int) -> int | None:
    """The lowest number above `after` among the rows since `at`."""
    number: int | None = connection.execute(
        sa.select(sa.func.min(audit.c.seq)).where(audit.c.at >= at, audit.c.seq > after)
    ).scalar_one_or_none()
    return number


def lowest(connection: sa.Connection) -> int | None:
    number: int | None = connection.execute(sa.select(sa.func.min(audit.c.seq))).scalar_one_or_none()
    return number


def find(connection: sa.Connection, wanted: AuditFilter, low: int, high: int, limit: int) -> list[dict[str, Any]]:
    """The newest matches among the rows above `low` up to `high`, newest first."""
    query = _matching(connection, wanted).where(audit.c.seq > low, audit.c.seq <= high)
    rows = connection.execute(query.order_by(audit.c.seq.desc()).limit(limit))
    return [dict(row._mapping) for row in rows]


def find_after(connection: sa.Connection, wanted: AuditFilter, after: int, limit: int) -> list[dict[str, Any]]:
    """The oldest matches among the rows above `after`, oldest first."""
    query = _matching(connection, wanted).where(audit.c.seq > after)
    return [dict(row._mapping) for row in connection.execute(query.order_by(audit.c.seq).limit(limit))]


def _matching(connection: sa.Connection, wanted: AuditFilter) -> sa.Select[*tuple[Any, ...]]:
    query = sa.select(audit)
    for name in ("agent", "server", "outcome", "session"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(audit.c[name] == value)
    if wanted.tool is not None:
        tool = wanted.tool
        matches = _like(connection, tool)
        query = query.where(matches if ":" in tool else sa.or_(matches, _like(connection, f"*:{tool}")))
    if wanted.since is not None:
        query = query.where(audit.c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(audit.c.at <= wanted.until)
    return query


def _like(connection: sa.Connection, glob: str) -> sa.ColumnElement[bool]:
    """Case-sensitive: SQLite's LIKE ignores case, so GLOB is used there."""
    if connection.dialect.name == "sqlite":
        return audit.c.tool.op("GLOB")(glob.replace("[", "[[]"))
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return audit.c.tool.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")
