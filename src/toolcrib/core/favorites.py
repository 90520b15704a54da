"""The favorite tools, which search mode lists directly, and what follows from the use of all tools.

In: the owner's choice; the calls of the last 30 days in the audit log, counted once a day. Out: the favorite tools in
order, the number of calls by tool (for the ranking of searches), and the level of tools that are often called wrongly
(`listing` shows more of their schema). Requests change none of this: lists stay the same, and prompt caches hold.
`projects` subscribes to `ListingSettingsChanged` and notifies clients. Only the daemon counts every day.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from toolcrib.config.model import COMMANDS
from toolcrib.errors import NotFound, StoreError, UsageError
from toolcrib.events import Bus, CallOutcome, ListingSettingsChanged
from toolcrib.listing.thin import Level
from toolcrib.store import audit
from toolcrib.store import favorites as rows
from toolcrib.store.clock import DAY
from toolcrib.store.database import Store
from toolcrib.store.favorites import CountedCalls, FavoriteRow, ToolUseRow

log = logging.getLogger(__name__)

MOST_LISTED = 8
"""Favorite tools in a list."""
COUNTED_DAYS = 30
MAX_LEVEL = max(Level) - min(Level)

_MOST_USED = 32
"""Tools kept from use: an agent is shown the first ones that it may use."""
_FEWEST_CALLS = 5
"""Fewer say nothing about a tool."""
_OFTEN_WRONG = 0.2
"""Calls with invalid arguments, as a share of all."""
_NO_USE = (CallOutcome.DENIED, CallOutcome.REFUSED, CallOutcome.UNAVAILABLE, CallOutcome.ASKED)
"""Outcomes that say nothing about what agents need; a call that was asked something ends with another outcome."""
_WINDOW = 20_000
"""Rows of the audit log that one query reads, so that others need not wait for long."""


class FavoriteOrigin(enum.StrEnum):
    CHOSEN = "chosen"
    """By the owner."""
    USED = "used"
    """One of the most used tools."""
    REMOVED = "removed"
    """By the owner: it does not come back from use."""


class Favorites:
    def __init__(
        self,
        store: Store,
        stored: Sequence[FavoriteRow],
        uses: Sequence[ToolUseRow],
        bus: Bus,
    ) -> None:
        self._store = store
        self._bus = bus
        self._rows = tuple(stored)
        self._changing = asyncio.Lock()
        self.version = 0
        """Increases with every change that lists show."""
        self.uses: Mapping[str, int] = MappingProxyType({})
        """Calls in the last 30 days, by `server:tool`."""
        self.levels: Mapping[str, int] = MappingProxyType({})
        """By `server:tool`, how many levels more than usual a list shows of its schema. Others have none."""
        self.counted_at = max((use.counted_at for use in uses), default=0.0)
        self._take_uses(uses)

    @classmethod
    async def load(cls, store: Store, bus: Bus) -> Self:
        return cls(store, await store.read(rows.load_favorites), await store.read(rows.load_uses), bus)

    @property
    def all(self) -> tuple[FavoriteRow, ...]:
        """The chosen ones first, then the most used."""
        return tuple(row for row in self._rows if row.origin != FavoriteOrigin.REMOVED)

    def listed(self, shown: Callable[[str], bool]) -> tuple[str, ...]:
        """The first favorite tools that are shown, as `server:tool`. Those from use come in alphabetical order, which
        stays the same while their use differs a little."""
        first = [row for row in self.all if shown(row.tool)][:MOST_LISTED]
        chosen = [row.tool for row in first if row.origin == FavoriteOrigin.CHOSEN]
        return (*chosen, *sorted(row.tool for row in first if row.origin == FavoriteOrigin.USED))

    async def add(self, tools: Iterable[str]) -> None:
        """Adds them to the chosen ones, in this order."""
        async with self._changing:
            added = list(dict.fromkeys(tools))
            chosen = [row for row in self._of(FavoriteOrigin.CHOSEN) if row.tool not in added]
            if len(chosen) + len(added) > MOST_LISTED:
                raise UsageError(
                    f"At most {MOST_LISTED} tools can be chosen, and {len(chosen)} are.",
                    remedy="Remove one first: toolcrib favorites remove TOOL",
                )
            chosen += [FavoriteRow(tool=tool, origin=FavoriteOrigin.CHOSEN) for tool in added]
            await self._change((*chosen, *(row for row in self._not_chosen() if row.tool not in added)))

    async def remove(self, tools: Iterable[str]) -> None:
        async with self._changing:
            gone = list(dict.fromkeys(tools))
            known = {row.tool for row in self.all}
            for tool in gone:
                if tool not in known:
                    raise NotFound(f"{tool} is not a favorite tool.", remedy="`toolcrib favorites` lists them.")
            removed = [FavoriteRow(tool=tool, origin=FavoriteOrigin.REMOVED) for tool in gone]
            await self._change((*(row for row in self._rows if row.tool not in gone), *removed))

    async def recount(self) -> None:
        """Counts the calls of the last 30 days again, and takes the favorite tools and the levels from them."""
        now = time.time()
        counted = await self._counted(now - COUNTED_DAYS * DAY)
        async with self._changing:
            before = {use.tool: use for use in await self._store.read(rows.load_uses)}
            uses = _with_levels(counted, before, now)
            taken = {row.tool for row in self._rows if row.origin != FavoriteOrigin.USED}
            most = sorted(
                (use for use in uses if use.calls >= _FEWEST_CALLS and use.tool not in taken),
                key=lambda use: (-use.calls, use.tool),
            )
            used = [FavoriteRow(tool=use.tool, origin=FavoriteOrigin.USED) for use in most[:_MOST_USED]]
            stored = (*self._of(FavoriteOrigin.CHOSEN), *used, *self._of(FavoriteOrigin.REMOVED))
            await self._store.write(rows.put_recount, stored, uses)
            levels = self.levels
            self._take_uses(uses)
            self.counted_at = now
            self._take(stored, changed=levels != self.levels)

    @property
    def outdated(self) -> bool:
        """Whether the last count is a day old. A clock that was set back does not postpone the next one for long."""
        return abs(time.time() - self.counted_at) >= DAY

    async def _counted(self, since: float) -> dict[str, CountedCalls]:
        head = await self._store.read(audit.head)
        first = await self._store.read(audit.first_since, since, 0)
        found: dict[str, CountedCalls] = {}
        if head is None or first is None:
            return found
        for after in range(first - 1, head[0], _WINDOW):
            for one in await self._store.read(rows.count_calls, after, min(after + _WINDOW, head[0]), _NO_USE):
                # Not resources and prompts, whose names begin with their kind; not our own commands.
                if one.tool.startswith(f"{one.server}:") and one.server != COMMANDS:
                    found[one.tool] = _sum(found[one.tool], one) if one.tool in found else one
        return found

    def _of(self, origin: FavoriteOrigin) -> tuple[FavoriteRow, ...]:
        return tuple(row for row in self._rows if row.origin == origin)

    def _not_chosen(self) -> tuple[FavoriteRow, ...]:
        return self._of(FavoriteOrigin.USED) + self._of(FavoriteOrigin.REMOVED)

    async def _change(self, stored: tuple[FavoriteRow, ...]) -> None:
        await self._store.write(rows.put_favorites, stored)
        self._take(stored)

    def _take(self, stored: tuple[FavoriteRow, ...], *, changed: bool = False) -> None:
        before = self.all
        self._rows = stored
        if changed or self.all != before:
            self.version += 1
            self._bus.publish(ListingSettingsChanged())

    def _take_uses(self, uses: Sequence[ToolUseRow]) -> None:
        self.uses = MappingProxyType({use.tool: use.calls for use in uses})
        self.levels = MappingProxyType({use.tool: use.level for use in uses if use.level})


def _sum(one: CountedCalls, other: CountedCalls) -> CountedCalls:
    return CountedCalls(
        tool=one.tool,
        server=one.server,
        calls=one.calls + other.calls,
        judged=one.judged + other.judged,
        invalid=one.invalid + other.invalid,
    )


def _with_levels(
    counted: Mapping[str, CountedCalls], before: Mapping[str, ToolUseRow], now: float
) -> tuple[ToolUseRow, ...]:
    raised = {tool for tool, use in before.items() if use.level}
    return tuple(
        _with_level(counted.get(tool) or CountedCalls(tool=tool, server="", calls=0), before.get(tool), now)
        for tool in sorted(counted.keys() | raised)
    )


def _with_level(calls: CountedCalls, before: ToolUseRow | None, now: float) -> ToolUseRow:
    """Only calls since the last change of the level are judged. A level that helps stays for 30 days, because each
    change costs clients their prompt cache; then the one below is tried again."""
    level, since = (0, 0.0) if before is None else (before.level, before.level_since)
    often_wrong = calls.judged >= _FEWEST_CALLS and calls.invalid >= _OFTEN_WRONG * calls.judged
    if often_wrong and level < MAX_LEVEL:
        level, since = level + 1, now
    elif not often_wrong and level and now - since >= COUNTED_DAYS * DAY:
        level, since = level - 1, now
    return ToolUseRow(tool=calls.tool, calls=calls.calls, level=level, level_since=since, counted_at=now)


_NEXT_LOOK = 3600.0
"""Seconds until it looks again whether a count is due: a computer may be suspended, and its clock may be set."""


async def _count_daily(favorites: Favorites) -> None:
    # At once, so that a new daemon's first count doesn't change the lists that clients have just got.
    while True:
        if favorites.outdated:
            try:
                await favorites.recount()
            except StoreError as error:
                log.warning("the calls of the last days could not be counted: %s", error.text())
        await asyncio.sleep(_NEXT_LOOK)


@contextlib.asynccontextmanager
async def counting_daily(favorites: Favorites) -> AsyncIterator[None]:
    task = asyncio.create_task(_count_daily(favorites))
    try:
        yield
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            log.error("the calls were not counted to the end", exc_info=ended)
