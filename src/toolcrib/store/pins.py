"""Pins: the accepted definitions of each server's tools, and the tools that are kept out.

In: a connection, a server's identity. Out: rows. `core.pins` uses it and decides what is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field

import sqlalchemy as sa

from toolcrib.store.schema import kept_out_tools, pin_notices, pins, upsert


@dataclass(frozen=True, kw_only=True)
class PinRow:
    sha256: str
    tool: str
    definition: bytes = field(repr=False)
    accepted_at: float
    accepted_by: str
    """Empty if the definition was remembered at first use."""


@dataclass(frozen=True, kw_only=True)
class PinChange:
    add: Sequence[PinRow] = ()
    drop: Collection[str] = ()
    """Digests."""
    kept_out: Collection[str]
    """Afterwards, exactly these tools are kept out."""


def load_pins(connection: sa.Connection) -> dict[str, tuple[PinRow, ...]]:
    """By identity, without the definitions."""
    columns = [column for column in pins.c if column.name != "definition"]
    found: dict[str, list[PinRow]] = {}
    for row in connection.execute(sa.select(*columns).order_by(pins.c.accepted_at)):
        fields = dict(row._mapping)
        found.setdefault(fields.pop("identity"), []).append(PinRow(definition=b"", **fields))
    return {identity: tuple(rows) for identity, rows in found.items()}


def load_kept_out(connection: sa.Connection) -> dict[str, frozenset[str]]:
    """By identity."""
    found: dict[str, set[str]] = {}
    for row in connection.execute(sa.select(kept_out_tools)):
        found.setdefault(row.identity, set()).add(row.tool)
    return {identity: frozenset(tools) for identity, tools in found.items()}


def pins_of(connection: sa.Connection, identity: str, tools: Collection[str]) -> tuple[PinRow, ...]:
    """The accepted definitions of these tools, the oldest first."""
    wanted = sa.and_(pins.c.identity == identity, pins.c.tool.in_(tools))
    return _rows(connection, sa.select(pins).where(wanted).order_by(pins.c.accepted_at))


def change_pins(connection: sa.Connection, identity: str, change: PinChange) -> tuple[PinRow, ...]:
    """Returns the rows that were dropped or replaced."""
    touched = sa.and_(
        pins.c.identity == identity, pins.c.sha256.in_({*change.drop, *(row.sha256 for row in change.add)})
    )
    before = _rows(connection, sa.select(pins).where(touched))
    connection.execute(pins.delete().where(touched))
    upsert(connection, pins, [{"identity": identity, **asdict(row)} for row in change.add])
    connection.execute(kept_out_tools.delete().where(kept_out_tools.c.identity == identity))
    if change.kept_out:
        kept_out = [{"identity": identity, "tool": tool} for tool in sorted(change.kept_out)]
        connection.execute(kept_out_tools.insert(), kept_out)
    return before


def noted_difference(connection: sa.Connection, identity: str, root: str) -> str:
    """The digest of the difference that was reported last; empty if there was none."""
    here = sa.and_(pin_notices.c.identity == identity, pin_notices.c.root == root)
    return connection.execute(sa.select(pin_notices.c.digest).where(here)).scalar_one_or_none() or ""


def note_difference(connection: sa.Connection, identity: str, root: str, digest: str) -> None:
    upsert(connection, pin_notices, [{"identity": identity, "root": root, "digest": digest}])


def _rows(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> tuple[PinRow, ...]:
    found = (dict(row._mapping) for row in connection.execute(query))
    return tuple(PinRow(**{name: value for name, value in row.items() if name != "identity"}) for row in found)
