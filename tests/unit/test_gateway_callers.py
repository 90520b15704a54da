"""Callers without a model succeed through the gateway in every mode as with full definitions.

It proves that what is listed, found and described is enough to call, not that a model chooses well. Success is a call
that has reached its server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from parts import scripted_callers as callers
from parts.desk import Client, Desk, Json, text_of
from parts.gateway_harness import LIMIT, opened
from parts.scripted_callers import HABITS, Answer, Habit
from parts.sizes import sized

T = TypeVar("T")
CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))
MOST = sized(12, 100_000)
LONG = "It has many more properties than anybody needs to know, and this is one of them. " * 6
TEXT = {"type": "string", "description": LONG}
SCHEMAS: dict[str, tuple[str, Json]] = {
    "create_issue": (
        "Creates an issue in a repository. ",
        {
            "properties": {"owner": TEXT, "title": {"type": "string", "minLength": 1}, "labels": {"items": TEXT}},
            "required": ["owner", "title"],
            "additionalProperties": False,
        },
    ),
    "list_events": (
        "Lists the events of a calendar. ",
        {
            "properties": {
                "calendar": {"type": "string", "format": "uuid"},
                "limit": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 50}, {"type": "null"}]},
                "order": {"$ref": "#/$defs/Order"},
            },
            "required": ["calendar", "order"],
            "$defs": {"Order": {"enum": ["newest", "oldest"], "type": "string"}},
        },
    ),
    "write_rows": (
        "Writes rows into a spreadsheet. ",
        {
            "properties": {
                "rows": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"key": TEXT, "value": {"type": ["string", "number"]}},
                        "required": ["key", "value"],
                    },
                },
                "mode": {"oneOf": [{"const": "append", "description": LONG}, {"const": "replace"}]},
            },
            "required": ["rows", "mode"],
        },
    ),
}
EVERYDAY = [
    {"name": name, "description": about + LONG, "inputSchema": {"type": "object", **schema}}
    for name, (about, schema) in SCHEMAS.items()
]

pytestmark = pytest.mark.req("KSI-4")


def desks() -> list[Desk]:
    found = [Desk("everyday", *EVERYDAY)]
    for path in CATALOGS:
        tools = [one for one in json.loads(path.read_text())["tools"] if len(one["name"]) < 40]
        found.append(Desk(f"c{len(found)}", *tools[: max(1, MOST // len(CATALOGS))]))
    return found


class World:
    """What one caller sees in one mode."""

    def __init__(self, client: Client, servers: list[Desk], mode: str, listed: list[Json]) -> None:
        self._client, self._servers, self._mode = client, servers, mode
        self._listed = {one["name"]: one for one in listed}
        self._loop = asyncio.get_running_loop()

    def _now(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)

    @property
    def _reached(self) -> int:
        return sum(len(one.seen) for one in self._servers)

    def call(self, name: str, arguments: Json) -> Answer:
        before = self._reached
        if self._mode == "search":
            result = self._now(self._client.call("crib_call", tool=name, arguments=arguments))
        else:
            result = self._now(self._client.call(name, **arguments))
        _, _, schema = text_of(result).partition("The tool's schema: ")
        return Answer(succeeded=self._reached > before, schema=json.loads(schema) if schema else None)

    def find(self, query: str) -> list[str]:
        if self._mode != "search":
            return [name for name, one in self._listed.items() if query in one.get("description", "")] or [
                *self._listed
            ]
        return [line.partition("(")[0] for line in self._now(self._client.found(query)).splitlines()]

    def describe(self, name: str) -> Json:
        if self._mode != "search":
            return self._listed[name]
        found: Json = json.loads(text_of(self._now(self._client.call("crib_describe", tools=[name]))))
        return found


Caller = Callable[[World, str, str, Habit], int | None]
CALLERS: dict[str, Caller] = {
    "required only": lambda world, name, _, habit: callers.required_only(world.describe(name), world.call, habit),
    "all arguments": lambda world, name, _, habit: callers.all_arguments(world.describe(name), world.call, habit),
    "wrong first": lambda world, name, _, habit: callers.wrong_first(world.describe(name), world.call, habit),
    "search then call": lambda world, name, query, habit: callers.search_then_call(
        query, name, world.find, world.describe, world.call, habit
    ),
    "without searching": lambda world, name, _, habit: callers.without_searching(
        name, world.describe, world.call, habit
    ),
}


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
async def test_callers_succeed_in_every_mode_as_with_full_definitions(tmp_path: Path, caller: Caller) -> None:
    servers = desks()
    async with opened(tmp_path, *servers) as harness:
        client = Client(harness, await harness.agent("a"))
        full = {one["name"]: one for one in await client.listed("full")}
        names = [name for name in full if name.startswith(tuple(f"{one.name}_" for one in servers))]
        succeeded: dict[str, set[tuple[str, int]]] = {}
        for mode in ("full", "thin", "search"):
            world = World(client, servers, mode, await client.listed(mode))

            def attempts(world: World = world) -> set[tuple[str, int]]:
                return {
                    (name, at)
                    for name in names
                    for at, habit in enumerate(HABITS)
                    if caller(world, name, full[name].get("description", name)[:80], habit)
                }

            succeeded[mode] = await asyncio.to_thread(attempts)
        assert len(succeeded["full"]) > len(HABITS)
        assert succeeded["full"] - succeeded["thin"] == set()
        assert succeeded["full"] - succeeded["search"] == set()
