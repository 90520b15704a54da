"""The tools that are listed directly in search mode, how often each tool was called, and how much of it lists show.

In: a connection, rows. Out: the same rows; the calls in a part of the audit log. `core.favorites` decides what is
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from toolcrib.events import CallOutcome
from toolcrib.store.schema import audit, favorites, tool_uses


@dataclass(frozen=True, kw_only=True)
class FavoriteRow:
    tool: str
    """`server:tool`."""
    origin: str


@dataclass(frozen=True, kw_only=True)
class ToolUseRow:
    tool: str
    calls: int
    level: int = 0
    level_since: float = 0.0
    counted_at: float


@dataclass(frozen=True, kw_only=True)
class CountedCalls:
    tool: str
    server: str
    calls: int
    judged: int = 0
    """Those since the tool's level was set."""
    invalid: int = 0
    """Those of them with invalid arguments."""


def load_favorites(connection: sa.Connection) -> tuple[FavoriteRow, ...]:
    """In order."""
    rows = connection.execute(sa.select(favorites.c.tool, favorites.c.origin).order_by(favorites.c.position))
    return tuple(FavoriteRow(**row._mapping) for row in rows)


def put_favorites(connection: sa.Connection, rows: Sequence[FavoriteRow]) -> None:
    """Replaces them all."""
    connection.execute(favorites.delete())
    if rows:
        values = [{"tool": row.tool, "origin": row.origin, "position": at} for at, row in enumerate(rows)]
        connection.execute(favorites.insert(), values)


def load_uses(connection: sa.Connection) -> tuple[ToolUseRow, ...]:
    rows = connection.execute(sa.select(tool_uses).order_by(tool_uses.c.tool))
    return tuple(ToolUseRow(**row._mapping) for row in rows)


def put_recount(connection: sa.Connection, rows: Sequence[FavoriteRow], uses: Sequence[ToolUseRow]) -> None:
    put_favorites(connection, rows)
    connection.execute(tool_uses.delete())
    if uses:
        connection.execute(tool_uses.insert(), [vars(use) for use in uses])


def count_calls(
    connection: sa.Connection, after: int, through: int, without: Collection[CallOutcome]
) -> list[CountedCalls]:
    """By tool: the calls among the audit log's rows above `after` up to `through`, except those with an outcome of
    `without`."""
    judged = audit.c.at >= sa.func.coalesce(tool_uses.c.level_since, 0.0)
    invalid = sa.and_(judged, audit.c.outcome == CallOutcome.INVALID.value)
    query = (
        sa.select(
            audit.c.tool,
            audit.c.server,
            sa.func.count().label("calls"),
            sa.func.sum(sa.case((judged, 1), else_=0)).label("judged"),
            sa.func.sum(sa.case((invalid, 1), else_=0)).label("invalid"),
        )
        .select_from(audit.outerjoin(tool_uses, tool_uses.c.tool == audit.c.tool))
        .where(audit.c.seq > after, audit.c.seq <= through)
        # A name that no tool had has no server.
        .where(audit.c.kind == "outcome", audit.c.server != "", audit.c.outcome.not_in([str(one) for one in without]))
        .group_by(audit.c.tool, audit.c.server)
    )
    return [CountedCalls(**row._mapping) for row in connection.execute(query)]
