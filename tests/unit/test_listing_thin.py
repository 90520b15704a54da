"""A thin definition costs little, and arguments made from it are right."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from parts import scripted_callers as callers
from toolcrib.catalog import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.listing import thin
from toolcrib.listing.thin import Level, level_of, thin_definition

LONG = "Finds what you ask for. " + "It has many more properties than anybody needs to know. " * 8

Schema = dict[str, Any]


def tool_of(schema: Any, **fields: Any) -> Tool:
    definition = {"name": "t", "description": LONG, "inputSchema": schema, **fields}
    return only(json.dumps(definition).encode())


def only(definition: bytes) -> Tool:
    return next(iter(Catalog.build({"s": (definition,)}, version=1).tools))


def shown(tool: Tool, *, at_least: Level = Level.BRIEF) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(thin_definition(tool, "s_t", at_least=at_least))
    return definition


def of(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def thin_schema(schema: Schema) -> Any:
    tool = tool_of(schema)
    assert level_of(tool) is Level.BRIEF
    return shown(tool)["inputSchema"]


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "integer"}}}
BIG = {"type": "object", "properties": {f"property{n}": {"type": "string"} for n in range(9)}}
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("property_", "expected"),
    [
        ({"type": "string", "title": "A", "examples": ["x"], "default": "y"}, {"type": "string"}),
        ({"type": ["string"]}, {"type": "string"}),
        ({"type": "string", "enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"const": {"description": "x"}}, {"const": {"description": "x"}}),
        ({"enum": [*range(500)]}, {"enum": [*range(500)]}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]}, {"type": ["number", "string"]}),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ({"oneOf": [{"const": 1, "title": "One"}, {"const": True}]}, {"enum": [1, True]}),
        (
            {"anyOf": [{"type": "string", "const": "a"}, {"type": "string", "enum": ["b"]}]},
            {"type": "string", "enum": ["a", "b"]},
        ),
        ({"allOf": [{"type": "string", "minLength": 2}]}, {"type": "string", "minLength": 2}),
        ({"type": "integer", "minimum": 1, "maximum": 100}, {"type": "integer", "minimum": 1, "maximum": 100}),
        ({"type": "integer", "minimum": -(2**53), "maximum": 2**53}, {"type": "integer"}),
        ({"type": "integer", "minimum": 2**40}, {"type": "integer", "minimum": 2**40}),
        (
            {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 9},
            {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 9},
        ),
        ({"type": "string", "format": "uuid", "pattern": "a" * 99}, {"type": "string", "format": "uuid"}),
        ({"type": "integer", "format": "int32"}, {"type": "integer"}),
        ({"type": "array", "items": {"type": "object", "title": "I"}}, {"type": "array", "items": {"type": "object"}}),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
        (CLOSED, {"type": "object", "properties": {"a": {"type": "string"}}}),
        ({"not": CLOSED}, {"not": CLOSED}),
        ({"oneOf": [CLOSED, {"type": "string"}]}, {"oneOf": [CLOSED, {"type": "string"}]}),
        ({"type": "string", "x-mcp-header": "Region"}, {"type": "string"}),
        (True, True),
        ({}, {}),
    ],
)
def test_a_parameter_keeps_its_type_values_and_limits(property_: Any, expected: Any) -> None:
    assert thin_schema(of(p=property_)) == of(p=expected)


def test_null_stays_where_it_can_mean_something() -> None:
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"a": nullable, "b": nullable | {"default": None}}}
    assert thin_schema(schema)["properties"] == {"a": {"type": ["string", "null"]}, "b": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (of(p={"$ref": "#/$defs/A"}) | {"$defs": {"A": BIG, "Unused": BIG}}, of(p=BIG)),
        (of(p={"$ref": "#/definitions/A~1B"}) | {"definitions": {"A/B": BIG}}, of(p=BIG)),
        (of(p={"$ref": "#/x/y"}) | {"x": {"y": BIG}}, of(p=BIG)),
        (
            of(p={"$ref": "#/$defs/A"}, q={"$ref": "#/$defs/A"}) | {"$defs": {"A": BIG}},
            of(p={"$ref": "#/$defs/A"}, q={"$ref": "#/$defs/A"}) | {"$defs": {"A": BIG}},
        ),
        (
            of(p={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": NODE}},
            of(p={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": NODE}},
        ),
        (
            {"type": "object", "properties": {"next": {"$ref": "#"}}},
            {"type": "object", "properties": {"next": {"$ref": "#"}}},
        ),
        ({"$ref": "#/$defs/A", "$defs": {"A": of(p={"type": "string"})}}, of(p={"type": "string"})),
        (
            {
                "$schema": DRAFT_7,
                **of(p={"$ref": "#/definitions/A", "minLength": 2}),
                "definitions": {"A": {"type": "string"}},
            },
            of(p={"type": "string"}),
        ),
    ],
)
def test_references_keep_their_target(schema: Schema, expected: Schema) -> None:
    assert thin_schema(schema) == expected


def test_an_old_dialect_is_named_where_it_matters() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
    assert thin_schema({"$schema": DRAFT_7, **of(p=pair)})["$schema"] == DRAFT_7
    assert "$schema" not in thin_schema({"$schema": DRAFT_7, **of(p={"type": "string"})})


def test_conditions_stay() -> None:
    schema = {
        **of(kind={"type": "string"}),
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"properties": {"size": {"type": "integer"}}, "required": ["size"]},
        "dependentRequired": {"size": ["unit"]},
    }
    assert thin_schema(schema) == schema


def test_only_what_calls_and_clients_need_is_left() -> None:
    tool = tool_of(
        of(),
        title="T",
        icons=[{"src": "data:,"}],
        outputSchema={"type": "object"},
        _meta={"own": LONG, "ui": {"resourceUri": "ui://app", "visibility": ["model"]}},
        annotations={"title": "T", "readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
        execution={"taskSupport": "required"},
    )
    assert shown(tool) == {
        "name": "s_t",
        "description": "Finds what you ask for. It has many more properties than anybody needs to know.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
        "execution": {"taskSupport": "optional"},
        "_meta": {"ui": {"resourceUri": "ui://app", "visibility": ["model"]}},
    }


def test_the_link_to_an_app_can_be_replaced() -> None:
    tool = tool_of(of(), _meta={"ui": {"resourceUri": "ui://app"}})
    definition = thin_definition(tool, "s_t")
    assert json.loads(tool.with_app(definition, "ui://other"))["_meta"] == {"ui": {"resourceUri": "ui://other"}}
    assert json.loads(tool.with_app(definition, ""))["_meta"] == {}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"destructiveHint": False, "idempotentHint": True}, {"destructiveHint": False, "idempotentHint": True}),
        ({"destructiveHint": True, "idempotentHint": False, "readOnlyHint": False, "openWorldHint": True}, None),
        ({"readOnlyHint": "yes"}, None),
    ],
)
def test_hints_that_differ_from_the_defaults_stay(annotations: Schema, expected: Schema | None) -> None:
    assert shown(tool_of(of(), annotations=annotations)).get("annotations") == expected


def test_what_a_caller_cannot_guess_is_described_first() -> None:
    schema = of(
        since={"type": "string", "description": "The first day. Use YYYY-MM-DD, such as 2026-01-31. " + LONG},
        name={"type": "string", "description": "The name."},
        colour={"type": "string", "description": "The paint that covers the wall."},
        **{f"number_{n}": {"type": "integer", "title": LONG} for n in range(4)},
    )
    properties = shown(tool_of(schema))["inputSchema"]["properties"]
    assert properties["since"]["description"] == "Use YYYY-MM-DD, such as 2026-01-31."
    assert "description" not in properties["name"]
    brief, described = (
        thin_definition(tool_of(schema), "x", at_least=level) for level in (Level.BRIEF, Level.DESCRIBED)
    )
    assert b"The paint that covers the wall." in described
    assert len(brief) < len(described) < len(tool_of(schema).render("x"))


def test_a_richer_level_has_defaults_and_closed_objects() -> None:
    schema = of(p={"type": "integer", "default": 3}) | {"additionalProperties": False}
    assert shown(tool_of(schema), at_least=Level.DESCRIBED)["inputSchema"] == schema
    assert shown(tool_of(schema), at_least=Level.FULL)["description"] == LONG


def deep(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


def chain(links: int, uses: int) -> Schema:
    """Each definition refers to the next one so many times."""
    defs = {
        f"D{n}": {"type": "object", "properties": {f"p{use}": {"$ref": f"#/$defs/D{n + 1}"} for use in range(uses)}}
        for n in range(links)
    }
    return of(p={"$ref": "#/$defs/D0"}) | {"$defs": defs | {f"D{links}": {"type": "string"}}}


HOSTILE: dict[str, Any] = {
    "nothing": None,
    "list": [],
    "text": "object",
    "not an object": {"type": "string"},
    "bad properties": {"type": "object", "properties": {"a": "string"}},
    "bad type": of(p={"type": "strange"}),
    "remote reference": of(p={"$ref": "https://example.com/schema"}),
    "dangling reference": of(p={"$ref": "#/$defs/None"}),
    "reference to itself": of(p={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/A"}}},
    "endless alternative": of(p={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
    "endless required": of(p={"$ref": "#/$defs/A"}) | {"$defs": {"A": of(p={"$ref": "#/$defs/A"})}},
    "own identifiers": of(p={"$id": "https://example.com/p", "$ref": "#/$defs/A"}) | {"$defs": {"A": {}}},
    "dynamic": of(p={"$dynamicRef": "#node"}),
    "reference in a condition": of(p={"not": {"$ref": "#/$defs/A"}}) | {"$defs": {"A": CLOSED}},
    "deep": of(p=deep(60)),
    "long chain": chain(200, 1),
    "doubling chain": chain(30, 2),
    "doubling chain out of sight": of(p={"$ref": "#/x/D0"})
    | {"x": json.loads(json.dumps(chain(30, 2)["$defs"]).replace("$defs", "x"))},
    "many properties": of(**{f"p{n}": {"type": "string"} for n in range(10_000)}),
    "many alternatives": of(p={"anyOf": [{"const": n} for n in range(2_500)]}),
    "many items": of(p={"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}}),
    "long string": of(p={"type": "string", "minLength": 10**12}),
    "slow pattern": of(p={"type": "string", "pattern": r"^(a|a)*(?=b)\1$"}),
    "bad pattern": of(p={"type": "string", "pattern": "("}),
    "huge numbers": of(p={"type": "integer", "minimum": 10**30}),
    "no value fits": of(p={"type": "integer", "minimum": 3, "maximum": 1}),
    "false": of(p=False),
    "empty enum": of(p={"enum": []}),
    "required without a property": {"type": "object", "required": ["p"]},
    "unknown dialect": {"$schema": "https://example.com/dialect", **of(p={"type": "string"})},
    "strange names": of(**{"a/b~c#%é\n": {"type": "string"}}),
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_schema_is_shown_correctly_or_in_full(schema: Any) -> None:
    tool = tool_of(schema)
    definition = thin_definition(tool, "s_t")
    assert len(definition) <= len(tool.render("s_t"))
    if level_of(tool) is Level.FULL:
        assert definition == tool.render("s_t")
        return
    made = json.loads(definition)["inputSchema"]
    validator_for(made)
    assert made.get("required", []) == schema.get("required", [])
    assert made.get("properties", {}).keys() == schema.get("properties", {}).keys()


def test_a_number_that_python_cannot_hold_is_passed_on() -> None:
    tool = only(b'{"name":"t","inputSchema":{"type":"object","properties":{"a":{"maximum":1e999}}}}')
    assert thin_definition(tool, "s_t") == tool.render("s_t")


def test_what_is_dropped_is_shown_in_full_if_callers_would_miss_it(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = of(p={"type": "integer", "minimum": 5})
    monkeypatch.setattr("toolcrib.listing.shrink._LIMITS", frozenset())
    assert level_of(tool_of(schema)) is Level.FULL


def test_a_definition_is_kept_as_long_as_its_tool() -> None:
    gc.collect()
    before = len(thin._kept)
    tool = tool_of(of(p={"type": "string"}))
    first = thin_definition(tool, "a")
    assert thin_definition(tool, "b") == first.replace(b'"a"', b'"b"', 1)
    assert len(thin._kept) == before + 1
    del tool
    gc.collect()
    assert len(thin._kept) == before


TEXTS = st.sampled_from(["", "a", "A day, such as 2026-01-31.", "Das Übliche. Mehr.", "\n\n# Title\n\nText: x", LONG])
NAMES = st.sampled_from(["a", "b", "c", "an id", "ü"])
NOTES = st.fixed_dictionaries({}, optional={"title": TEXTS, "description": TEXTS, "x-own": TEXTS})
REFERENCES = st.sampled_from(["A", "B"]).map(lambda name: {"$ref": f"#/$defs/{name}"})


def annotated(schemas: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(schemas, NOTES).map(lambda both: {**both[0], **both[1]})


def numbers(kind: str) -> st.SearchStrategy[Schema]:
    limits = st.integers(-50, 50)
    return st.fixed_dictionaries(
        {"type": st.just(kind)},
        optional={"minimum": limits, "maximum": limits, "exclusiveMinimum": limits, "multipleOf": st.integers(1, 4)},
    )


LEAVES = annotated(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={"minLength": st.integers(0, 3), "maxLength": st.integers(0, 9)}
        ),
        st.sampled_from(["^[a-z]+$", "^[A-Z]+-[0-9]+$", "x"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        ),
        st.sampled_from(["uuid", "date", "int32"]).map(lambda kind: {"type": "string", "format": kind}),
        numbers("integer"),
        numbers("number"),
        st.lists(st.one_of(TEXTS, st.none(), st.booleans(), st.integers()), min_size=1, unique_by=repr).map(
            lambda values: {"enum": values}
        ),
        st.one_of(TEXTS, st.none(), st.booleans()).map(lambda value: {"const": value}),
        st.sampled_from([{}, {"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}]),
        REFERENCES,
    )
)


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, parts, max_size=4)},
        optional={
            "required": st.lists(NAMES, unique=True, max_size=3),
            "additionalProperties": st.one_of(st.booleans(), parts),
            "minProperties": st.integers(0, 2),
        },
    )


def inner(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    several = st.lists(parts, min_size=1, max_size=3)
    nullable = parts.map(lambda part: {"anyOf": [part, {"type": "null"}], "default": None})
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": parts},
        optional={"minItems": st.integers(0, 2), "maxItems": st.integers(1, 3)},
    )
    unions = st.tuples(st.sampled_from(["anyOf", "oneOf", "allOf"]), several).map(lambda both: {both[0]: both[1]})
    return annotated(st.one_of(objects(parts), arrays, unions, nullable, parts.map(lambda part: {"not": part})))


PARTS = st.recursive(LEAVES, inner, max_leaves=8)
SCHEMAS = st.tuples(objects(PARTS), PARTS, PARTS).map(lambda made: {**made[0], "$defs": {"A": made[1], "B": made[2]}})
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "required", "enum", "anyOf", "$ref", "not", "minimum", "a"]
            ),
            parts,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_arguments_that_suit_what_is_shown_suit_the_whole_schema(schema: Schema) -> None:
    tool = tool_of(schema)
    made = shown(tool)["inputSchema"]
    assert made.get("required", []) == schema.get("required", [])
    assert made.get("properties", {}).keys() == schema["properties"].keys()
    if level_of(tool) is not Level.FULL:
        whole, brief = (validator_for(one, validate_formats=False) for one in (schema, made))
        for habit in callers.HABITS:
            for every in (False, True):
                arguments, others = (callers.made(one, habit, all_of_them=every) for one in (made, schema))
                assert whole.is_valid(arguments) or not (brief.is_valid(arguments) and whole.is_valid(others))
    assert thin_definition(tool_of(schema), "s_t") == thin_definition(tool, "s_t")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING)
def test_any_json_can_be_a_schema(schema: Any) -> None:
    tool = tool_of(schema)
    assert len(thin_definition(tool, "s_t")) <= len(tool.render("s_t"))
