"""Favorite tools: chosen by the owner or taken from use, stored, and only changed once a day or by a command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcrib.core import favorites as module
from toolcrib.core.favorites import MAX_LEVEL, MOST_LISTED, Favorites, counting_daily
from toolcrib.errors import NotFound, StoreError, UsageError
from toolcrib.events import Bus, Event, ListingSettingsChanged
from toolcrib.store import audit
from toolcrib.store.clock import DAY
from toolcrib.store.database import Store
from toolcrib.store.schema import Text
from toolcrib.store.schema import audit as audit_table

pytestmark = pytest.mark.req("KSI-4")

ANY: dict[str, Any] = {
    column.name: None if column.nullable else "" if isinstance(column.type, Text) else column.type.python_type()
    for column in audit_table.columns
}


def everything(_: str) -> bool:
    return True


class FavoritesHarness:
    """A store with an audit log, and favorites that can be loaded again, as by a restart."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes = 0
        self.rows = 0

    async def load(self) -> Favorites:
        bus = Bus()
        bus.subscribe(self._changed, ListingSettingsChanged)
        return await Favorites.load(self.store, bus)

    def _changed(self, _: Event) -> None:
        self.changes += 1

    async def called(self, tool: str, times: int, outcome: str = "ok", *, ago: float = 0.0, **fields: Any) -> None:
        server = tool.partition(":")[0]
        values = {**ANY, "at": time.time() - ago, "kind": "outcome", "tool": tool, "server": server, "outcome": outcome}
        rows = [{**values, "seq": self.rows + number + 1, **fields} for number in range(times)]
        self.rows += times
        await self.store.write(audit.append, rows)


@pytest.fixture
async def harness(store_url: str) -> AsyncIterator[FavoritesHarness]:
    store = await Store.open(store_url)
    yield FavoritesHarness(store)
    await store.close()


async def test_chosen_tools_come_first_in_their_order_and_the_most_used_follow(harness: FavoritesHarness) -> None:
    for number in range(10):
        await harness.called(f"w:used{number}", 5 + number)
    await harness.called("w:rare", 4)
    favorites = await harness.load()
    await favorites.add(["w:z", "w:a"])
    await favorites.recount()
    assert favorites.listed(everything) == ("w:z", "w:a", *(f"w:used{number}" for number in range(4, 10)))
    permitted = {"w:used0", "w:used9", "w:a", "w:rare"}.__contains__
    assert favorites.listed(permitted) == ("w:a", "w:used0", "w:used9")
    assert (favorites.uses["w:rare"], favorites.uses["w:used9"]) == (4, 14)
    again = await harness.load()
    assert (again.listed(everything), again.uses) == (favorites.listed(everything), favorites.uses)
    assert (again.counted_at, again.outdated) == (favorites.counted_at, False)


async def test_only_calls_of_servers_tools_in_the_last_days_count(harness: FavoritesHarness) -> None:
    await harness.called("w:old", 9, ago=31 * DAY)
    await harness.called("w:recent", 9, ago=29 * DAY)
    await harness.called("w:asked", 9, kind="intent")
    await harness.called("w:denied", 9, "denied")
    await harness.called("no_such_tool", 9, "unknown", server="")
    await harness.called("resource:w:file", 9, server="w")
    await harness.called("crib:find", 9)
    await harness.called("workspace:read_file", 9, "tool_error")
    favorites = await harness.load()
    await favorites.recount()
    assert favorites.uses == {"w:recent": 9, "workspace:read_file": 9}


async def test_calls_are_added_up_over_the_parts_of_a_long_audit_log(
    harness: FavoritesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW", 3)
    await harness.called("w:a", 4)
    await harness.called("w:b", 5, "invalid")
    favorites = await harness.load()
    await favorites.recount()
    assert favorites.uses == {"w:a": 4, "w:b": 5}
    assert favorites.levels == {"w:b": 1}


async def test_a_removed_tool_comes_back_only_if_it_is_chosen(harness: FavoritesHarness) -> None:
    await harness.called("w:used", 9)
    favorites = await harness.load()
    await favorites.recount()
    await favorites.add(["w:mine"])
    await favorites.remove(["w:used", "w:mine"])
    await favorites.recount()
    assert favorites.all == ()
    favorites = await harness.load()
    with pytest.raises(NotFound, match="w:used is not a favorite"):
        await favorites.remove(["w:used"])
    await favorites.add(["w:used"])
    assert favorites.listed(everything) == ("w:used",)


async def test_no_more_tools_can_be_chosen_than_are_listed(harness: FavoritesHarness) -> None:
    favorites = await harness.load()
    chosen = [f"w:{number}" for number in range(MOST_LISTED)]
    await favorites.add(chosen)
    with pytest.raises(UsageError, match="At most 8"):
        await favorites.add(["w:more"])
    await favorites.add([chosen[0], chosen[0]])
    assert favorites.listed(everything) == (*chosen[1:], chosen[0]), "a tool that is chosen again moves to the end"


async def test_a_tool_that_is_often_called_wrongly_gets_a_higher_level_and_keeps_it_while_it_helps(
    harness: FavoritesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now)
    favorites = await harness.load()
    await harness.called("w:good", 9)
    await harness.called("w:good", 1, "invalid")
    await harness.called("w:few", 4, "invalid")
    await harness.called("w:bad", 4)
    await harness.called("w:bad", 1, "invalid")
    now += 1
    await favorites.recount()
    assert favorites.levels == {"w:bad": 1}
    now += DAY
    await favorites.recount()
    assert favorites.levels == {"w:bad": 1}, "it is judged by the calls since then"
    for level in (MAX_LEVEL, MAX_LEVEL):
        await harness.called("w:bad", 5, "invalid")
        now += DAY
        await favorites.recount()
        assert favorites.levels == {"w:bad": level}
    for days, levels in ((29, {"w:bad": 2}), (2, {"w:bad": 1}), (29, {"w:bad": 1}), (2, {})):
        now += days * DAY
        await favorites.recount()
        assert favorites.levels == levels
        assert (await harness.load()).levels == levels


async def test_only_what_lists_show_is_announced(harness: FavoritesHarness) -> None:
    favorites = await harness.load()
    await favorites.recount()
    assert (favorites.version, harness.changes) == (0, 0)
    await harness.called("w:a", 5)
    await favorites.recount()
    assert (favorites.version, harness.changes) == (1, 1)
    await harness.called("w:a", 5)
    await harness.called("w:rare", 1)
    await favorites.recount()
    assert favorites.uses == {"w:a": 10, "w:rare": 1}
    assert (favorites.version, harness.changes) == (1, 1), "only the ranking of searches differs"
    await harness.called("w:rare", 3, "invalid")
    await harness.called("w:a", 10, "invalid")
    await favorites.recount()
    assert (favorites.levels, favorites.version, harness.changes) == ({"w:a": 1}, 2, 2)
    await favorites.add(["w:a"])
    await favorites.add(["w:a"])
    assert (favorites.version, harness.changes) == (3, 3)


async def test_the_daemon_counts_when_the_last_count_is_a_day_old_and_goes_on_after_a_failure(
    harness: FavoritesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NEXT_LOOK", 0.01)
    favorites = await harness.load()
    counts: list[float] = []
    counted = asyncio.Event()
    real = favorites.recount

    async def recount() -> None:
        counts.append(time.time())
        if len(counts) == 1:
            raise StoreError("The disk is full.")
        await real()
        counted.set()

    monkeypatch.setattr(favorites, "recount", recount)
    async with asyncio.timeout(60), counting_daily(favorites):
        await counted.wait()
        assert len(counts) == 2, "the failed one was repeated"
        counted.clear()
        favorites.counted_at = time.time() - DAY
        await counted.wait()
    assert len(counts) == 3
    for ago, outdated in ((DAY - 60, False), (-DAY + 60, False), (DAY, True), (-2 * DAY, True)):
        favorites.counted_at = time.time() - ago
        assert favorites.outdated is outdated
