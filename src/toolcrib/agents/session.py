"""One agent in one conversation, and how it is written down.

In: what happened in it. Out: a row of the store, and the session again after a restart. `sessions` has them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from toolcrib.store import sessions as rows
from toolcrib.store.sessions import LegacyRow, SessionRow

if TYPE_CHECKING:
    from sqlalchemy import Connection


_WRITTEN = tuple(field.name for field in fields(SessionRow))


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    agent: str
    conversation: str
    id: str
    started_at: float
    used_at: float
    idle_since: float
    """The same moment by the clock that nobody sets."""
    catalog_version: int = 0
    permission_version: int = 0
    mode: str = "full"
    listings: int = 0
    calls: int = 0
    denied: int = 0
    failed: int = 0
    result_bytes: int = 0
    tokens: int = 0
    legacy: tuple[str, ...] = ()
    """Ids that legacy clients have of it, the one used last at the end."""
    under_way: set[Callable[[], None]] | None = None
    """What ends each request and stream that is open now."""
    kept: bool = False
    """Whether its beginning was written down, or cannot be for now."""
    ended: bool = False
    changed: bool = False
    """Whether it waits to be written."""
    mark: Callable[[Session], None]
    """Has it written."""

    def add_tokens(self, tokens: int) -> None:
        """What the results of a call came to, once they were counted."""
        self.tokens += tokens
        self.mark(self)

    def begin(self, end: Callable[[], None]) -> None:
        """Something is under way from now on; `end` cuts it short."""
        if self.under_way is None:
            self.under_way = {end}
        else:
            self.under_way.add(end)

    def over(self, end: Callable[[], None]) -> None:
        if self.under_way is not None:
            self.under_way.discard(end)
            if not self.under_way:
                self.under_way = None

    def interrupt(self) -> None:
        """Cuts short all that is under way."""
        for end in tuple(self.under_way or ()):
            end()

    def row(self) -> SessionRow:
        return SessionRow(**{name: getattr(self, name) for name in _WRITTEN})

    @classmethod
    def of(cls, row: SessionRow, *, idle_since: float, mark: Callable[[Session], None]) -> Session:
        return cls(**vars(row), idle_since=idle_since, kept=True, mark=mark)


@dataclass(frozen=True, slots=True)
class Ended:
    agent: str
    conversation: str


@dataclass(frozen=True, slots=True)
class IdEnded:
    id: str


Item = SessionRow | LegacyRow | Ended | IdEnded
"""What is written of sessions."""


def written(connection: Connection, items: list[Item]) -> None:
    """One kind of work for all of them: only then are they written in the order in which they came about."""
    for kind, group in itertools.groupby(items, type):
        many = list(group)
        if kind is SessionRow:
            rows.put_many(connection, [one for one in many if isinstance(one, SessionRow)])
        elif kind is LegacyRow:
            rows.begin_legacy(connection, [one for one in many if isinstance(one, LegacyRow)])
        elif kind is Ended:
            rows.end(connection, [(one.agent, one.conversation) for one in many if isinstance(one, Ended)])
        else:
            rows.end_legacy(connection, [one.id for one in many if isinstance(one, IdEnded)])
