"""Schemas shortened for a model that has to correct its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from toolcrib.catalog.schema_minify import MAX_MINIFIED, MAX_WHOLE, minified, schema_for_model
from toolcrib.errors import InvalidArguments
from toolcrib.gateway.messages import error_as_tool_result

CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))
TEXT = "A long explanation of this parameter. "


def shown(schema: Any, errors: str = "") -> Any:
    return json.loads(schema_for_model(schema, errors))


def test_annotations_are_removed_wherever_they_are_keywords() -> None:
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "d", "enum": ["title", "default"]},
            "default": {"const": {"description": "kept", "title": 1}},
            "examples": {"items": [{"$comment": "c", "type": "null"}, True], "x-mcp-header": "K"},
            "description": {"anyOf": [{"default": 1, "maximum": 3}, {"$ref": "#/$defs/title"}]},
        },
        "required": ["title", "description"],
        "$defs": {"title": {"examples": [1], "not": {"deprecated": True, "minLength": 2}}},
        "dependencies": {"title": ["description"]},
        "additionalProperties": False,
    }
    assert minified(schema) == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "enum": ["title", "default"]},
            "default": {"const": {"description": "kept", "title": 1}},
            "examples": {"items": [{"type": "null"}, True], "x-mcp-header": "K"},
            "description": {"anyOf": [{"maximum": 3}, {"$ref": "#/$defs/title"}]},
        },
        "required": ["title", "description"],
        "$defs": {"title": {"not": {"minLength": 2}}},
        "dependencies": {"title": ["description"]},
        "additionalProperties": False,
    }


@pytest.mark.parametrize("schema", [True, False, None, 3, [], {}, {"properties": 3, "anyOf": {}, "items": "x"}])
def test_what_is_not_a_schema_stays_as_it_is(schema: Any) -> None:
    assert minified(schema) == schema


@pytest.mark.req("BNS-5")
def test_a_small_schema_is_shown_whole_and_a_large_one_minified() -> None:
    small = {"type": "object", "properties": {"path": {"type": "string", "description": TEXT}}}
    assert shown(small) == small
    large = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": TEXT} for n in range(99)}}
    assert len(json.dumps(large)) > MAX_WHOLE
    assert shown(large) == minified(large)


def very_large(**more: Any) -> dict[str, Any]:
    wide = {f"p{n}": {"type": "string", "enum": [f"{n}-{m}" for m in range(20)]} for n in range(150)}
    return {"type": "object", "required": ["filter"], "properties": {**wide, **more}}


@pytest.mark.req("BNS-5")
def test_of_a_very_large_schema_the_failing_parameters_are_shown_with_their_definitions() -> None:
    schema = very_large(filter={"items": {"$ref": "#/$defs/A"}}, other={"$ref": "#/$defs/B"})
    schema["$defs"] = {"A": {"properties": {"a": {"$ref": "#/$defs/A"}, "c": {"$ref": "#/definitions/C"}}}, "B": {}}
    schema["definitions"] = {"C": {"type": "null"}, "D": {}}
    found = shown(schema, 'arguments.filter[0].a must be …; arguments must have "p7"')
    assert found["required"] == ["filter"]
    assert found["properties"]["filter"] == schema["properties"]["filter"]
    assert found["properties"]["p7"] == schema["properties"]["p7"]
    assert found["properties"]["p8"] == {"type": "string"}
    assert found["properties"]["other"] == {}
    assert found["properties"].keys() == schema["properties"].keys()
    assert found["$defs"] == {"A": schema["$defs"]["A"]}
    assert found["definitions"] == {"C": {"type": "null"}}


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"enum": ["x" * 5000]}
    for _ in range(levels):
        made = {"items": made}
    return made


@pytest.mark.parametrize(
    "schema",
    [
        very_large(filter={"enum": [f"value {n}" for n in range(5000)]}),
        {"anyOf": [{"const": "x" * 100} for _ in range(500)]},
        {"properties": {f"arguments.filter{n}": {"type": "string"} for n in range(9999)}},
        very_large(filter={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/A", "x": "x" * 30_000}}},
        very_large(filter={"$ref": "#/$defs"}) | {"$defs": 3},
        {"properties": {"filter": nested(60)}},
    ],
)
def test_what_is_shown_of_a_hostile_schema_is_short(schema: dict[str, Any]) -> None:
    text = schema_for_model(schema, "arguments.filter must be …")
    assert len(text) <= MAX_MINIFIED
    assert json.loads(text)


@pytest.mark.req("BNS-5")
def test_a_model_gets_the_paths_and_the_shortened_schema() -> None:
    schema = very_large(filter={"type": "integer"})
    error = InvalidArguments(
        "The arguments do not match s:t: arguments.filter must be of type integer.",
        remedy="Correct these and call again.",
        data={"schema": schema},
    )
    (block,) = json.loads(error_as_tool_result(error))["content"]
    first, _, given = block["text"].partition("\nThe tool's schema: ")
    assert first == error.text()
    assert json.loads(given)["properties"]["filter"] == {"type": "integer"}


@pytest.mark.parametrize("catalog", [None, *CATALOGS], ids=lambda path: path.stem if path else "own")
def test_minified_schemas_of_real_servers_reject_the_same_arguments(catalog: Path | None) -> None:
    for tool in json.loads(catalog.read_text())["tools"] if catalog else [{"inputSchema": very_large()}]:
        schema = tool["inputSchema"]
        short = minified(schema)
        assert len(schema_for_model(schema, "")) <= max(MAX_WHOLE, len(json.dumps(short)))
        for arguments in ({}, {name: {"x": [None]} for name in schema.get("properties", {})}, {"unknown": 1}):
            found = [
                [(error.message, error.instance_path) for error in validator_for(one).iter_errors(arguments)]
                for one in (schema, short)
            ]
            assert found[0] == found[1]
