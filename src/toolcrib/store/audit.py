"""The rows of the audit log, and where its kept part begins.

In: a connection, rows that `audit` made and linked. Out: the same rows by number, by age or by what is looked for.
What a row means, and whether the chain holds, is decided there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from toolcrib.store.schema import audit, audit_base, upsert

COLUMNS = tuple(column.name for column in audit.columns)
"""In the order that the chain covers them; the last is the hash itself."""

_BEGIN, _KEPT = 0, 1
"""The rows of `audit_base`: the audit log's id, and the last row that was let go."""

_POSTGRES_LOCK = 0x746F6F6C61756469
"""The word `toolaudi`: of two who append at once, the second reads the head that the first has made."""

# Made once, since they are part of every commit. The driver's own words spare each value a look at its type.
_INSERT = {
    dialect: f"INSERT INTO audit ({', '.join(COLUMNS)}) VALUES ({', '.join([mark] * len(COLUMNS))})"  # noqa: S608
    for dialect, mark in (("sqlite", "?"), ("postgresql", "%s"))
}
_HEAD = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"


@dataclass(frozen=True, kw_only=True)
class ChainBase:
    """Where the chain begins: the row before the first that is kept, or number 0 and the audit log's id."""

    chain: str
    seq: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    agent: str | None = None
    tool: str | None = None
    """A name or a glob with `*` and `?`; without a colon it stands for the tool of any server."""
    server: str | None = None
    outcome: str | None = None
    session: str | None = None
    since: float | None = None
    until: float | None = None


def lock(connection: sa.Connection) -> None:
    """Until the transaction ends nobody else appends. A SQLite that is being written has but one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))


def read_snapshot(connection: sa.Connection) -> None:
    """All that is read in this transaction is as it was at one moment; SQLite does so by itself."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def base(connection: sa.Connection) -> ChainBase | None:
    """None: there is no audit log yet."""
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
    """Each has all columns in their order, and texts that are `storable`: neither is looked at once more."""
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
    """The lowest number above `after` among the rows that are not older."""
    number: int | None = connection.execute(
        sa.select(sa.func.min(audit.c.seq)).where(audit.c.at >= at, audit.c.seq > after)
    ).scalar_one_or_none()
    return number


def lowest(connection: sa.Connection) -> int | None:
    """The lowest number of all."""
    number: int | None = connection.execute(sa.select(sa.func.min(audit.c.seq))).scalar_one_or_none()
    return number


def find(connection: sa.Connection, wanted: AuditFilter, low: int, high: int, limit: int) -> list[dict[str, Any]]:
    """The newest that fit among the rows above `low` up to `high`, the newest first."""
    query = _fitting(connection, wanted).where(audit.c.seq > low, audit.c.seq <= high)
    rows = connection.execute(query.order_by(audit.c.seq.desc()).limit(limit))
    return [dict(row._mapping) for row in rows]


def find_after(connection: sa.Connection, wanted: AuditFilter, after: int, limit: int) -> list[dict[str, Any]]:
    """The oldest that fit among the rows above `after`, the oldest first."""
    query = _fitting(connection, wanted).where(audit.c.seq > after)
    return [dict(row._mapping) for row in connection.execute(query.order_by(audit.c.seq).limit(limit))]


def _fitting(connection: sa.Connection, wanted: AuditFilter) -> sa.Select[*tuple[Any, ...]]:
    query = sa.select(audit)
    for name in ("agent", "server", "outcome", "session"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(audit.c[name] == value)
    if wanted.tool is not None:
        tool = wanted.tool
        fits = _like(connection, tool)
        query = query.where(fits if ":" in tool else sa.or_(fits, _like(connection, f"*:{tool}")))
    if wanted.since is not None:
        query = query.where(audit.c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(audit.c.at <= wanted.until)
    return query


def _like(connection: sa.Connection, glob: str) -> sa.ColumnElement[bool]:
    """Upper and lower case differ, which SQLite's LIKE does not see and its GLOB does."""
    if connection.dialect.name == "sqlite":
        return audit.c.tool.op("GLOB")(glob.replace("[", "[[]"))
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return audit.c.tool.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")
