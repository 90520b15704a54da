"""Callers that see thin definitions succeed as often as those that see the whole ones.

With tools like those of everyday servers, and with real ones where they are at hand. It proves that the definitions are
enough to call, not that a model chooses well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

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
def attempts() -> Mapping[str, callers.Attempt]:
    return callers.attempts(callers.checking(tools()))


@pytest.mark.parametrize(
    "caller", ["required only", "all arguments", "wrong first", "search then call", "without searching"]
)
def test_callers_succeed_within_two_calls_as_with_full_definitions(caller: str) -> None:
    attempt, failed = attempts()[caller], []
    for name, tool in tools().items():
        full, brief = json.loads(tool.render(name)), json.loads(thin_definition(tool, name))
        failed += [
            (name, habit)
            for habit in callers.HABITS
            if attempt(brief, habit) is None and attempt(full, habit) is not None
        ]
    assert failed == []


@pytest.mark.skipif(not CATALOGS, reason="needs the catalogs of real servers")
def test_real_tools_cost_less_than_a_third_and_lose_no_call() -> None:
    full = brief = 0
    right, possible, lost = 0, 0, []
    for name, tool in tools().items():
        whole, definition = tool.render(name), thin_definition(tool, name)
        full += count_tokens(whole).tokens  # type: ignore[union-attr]
        brief += count_tokens(definition).tokens  # type: ignore[union-attr]
        outcomes = [*callers.first_calls(json.loads(definition), tool)]
        expected = [*callers.first_calls(json.loads(whole), tool)]
        right += sum(outcomes)
        possible += sum(expected)
        lost += [name for made, wanted in zip(outcomes, expected, strict=True) if wanted and not made]
    assert brief <= 0.30 * full
    assert right >= 0.999 * possible
    assert lost == []
