"""Callers that see thin definitions succeed as often as those that see the whole ones.

With tools like those of everyday servers, and with real ones where they are at hand. It proves that the definitions are
enough to call, not that a model chooses well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from parts import scripted_callers as callers
from toolcrib.audit.row import count_tokens
from toolcrib.catalog import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.listing.thin import thin_definition

pytestmark = pytest.mark.req("KSI-4")

CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))
LONG = "Finds what you ask for. " + "It has many more properties than anybody needs to know. " * 8


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


EVERYDAY: list[dict[str, Any]] = [
    {
        "name": "create_issue",
        "description": LONG,
        "inputSchema": of(owner={"type": "string"}, title={"type": "string", "minLength": 1})
        | {"additionalProperties": False},
    },
    {
        "name": "list_events",
        "inputSchema": {
            "type": "object",
            "properties": {
                "calendar": {"type": "string", "format": "uuid", "description": LONG},
                "limit": {
                    "anyOf": [{"type": "integer", "minimum": 1, "maximum": 50}, {"type": "null"}],
                    "default": None,
                },
                "order": {"$ref": "#/$defs/Order"},
            },
            "required": ["calendar"],
            "$defs": {"Order": {"title": "Order", "enum": ["newest", "oldest"], "type": "string"}},
        },
    },
    {
        "name": "write_rows",
        "inputSchema": of(
            rows={
                "type": "array",
                "minItems": 1,
                "items": of(key={"type": "string"}, value={"type": ["string", "number"]}),
            },
            mode={"oneOf": [{"const": "append", "description": "At the end."}, {"const": "replace"}]},
        ),
    },
]


@cache
def tools() -> dict[str, Tool]:
    catalogs = {"everyday": EVERYDAY} | {path.stem: json.loads(path.read_text())["tools"] for path in CATALOGS}
    raw = {server: tuple(json.dumps(tool).encode() for tool in tools) for server, tools in catalogs.items()}
    return dict(Catalog.build(raw, version=1).by_public(NameStyle.SERVER))


@cache
def call() -> callers.Call:
    return callers.checking(tools())


Attempt = Callable[[Mapping[str, Any], callers.Habit], int | None]
ATTEMPTS: dict[str, Attempt] = {
    "required only": lambda definition, habit: callers.required_only(definition, call(), habit),
    "all arguments": lambda definition, habit: callers.all_arguments(definition, call(), habit),
    "wrong first": lambda definition, habit: callers.wrong_first(definition, call(), habit),
    "search then call": lambda definition, habit: callers.search_then_call(
        "any", definition["name"], lambda _: ["other", definition["name"]], lambda _: definition, call(), habit
    ),
    "without searching": lambda definition, habit: callers.without_searching(
        definition["name"], lambda _: definition, call(), habit
    ),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_callers_succeed_within_two_calls_as_with_full_definitions(attempt: Attempt) -> None:
    failed = []
    for name, tool in tools().items():
        full, brief = json.loads(tool.render(name)), json.loads(thin_definition(tool, name))
        failed += [
            (name, habit)
            for habit in callers.HABITS
            if attempt(brief, habit) is None and attempt(full, habit) is not None
        ]
    assert failed == []


def first_calls(definition: Mapping[str, Any], tool: Tool) -> Iterator[bool]:
    check = validator_for(json.loads(tool.render("x"))["inputSchema"], validate_formats=False)
    for habit in callers.HABITS:
        for all_of_them in (False, True):
            yield check.is_valid(callers.made(definition["inputSchema"], habit, all_of_them=all_of_them))


@pytest.mark.skipif(not CATALOGS, reason="needs the catalogs of real servers")
def test_real_tools_cost_less_than_a_third_and_lose_no_call() -> None:
    full = brief = 0
    right, possible, lost = 0, 0, []
    for name, tool in tools().items():
        whole, definition = tool.render(name), thin_definition(tool, name)
        full += count_tokens(whole).tokens  # type: ignore[union-attr]
        brief += count_tokens(definition).tokens  # type: ignore[union-attr]
        outcomes = [*first_calls(json.loads(definition), tool)]
        expected = [*first_calls(json.loads(whole), tool)]
        right += sum(outcomes)
        possible += sum(expected)
        lost += [name for made, wanted in zip(outcomes, expected, strict=True) if wanted and not made]
    assert brief <= 0.30 * full
    assert right >= 0.999 * possible
    assert lost == []
