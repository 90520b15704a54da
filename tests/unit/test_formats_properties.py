"""Whatever a server lists, each provider gets something it takes, and what its model writes fits the tool again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parts.sizes import FULL
from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.formats import anthropic, google, openai
from toolcrib.formats.definition import Definition

STRICT = {"openai": {"strict": True}, "anthropic": {"strict": True}}
MODES: dict[str, tuple[Callable[[OfferedTool], Definition], dict[str, Any]]] = {
    "openai": (openai.definition, {}),
    "openai strict": (openai.definition, STRICT),
    "anthropic": (anthropic.definition, {}),
    "anthropic strict": (anthropic.definition, STRICT),
    "google": (google.definition, {}),
}
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
PATIENT = settings(max_examples=400 if FULL else 15, deadline=None, suppress_health_check=list(HealthCheck))
TOOL = Catalog.build({"s": (b'{"name": "t"}',)}, version=1).tools[0]


def define(mode: str, schema: dict[str, Any]) -> Definition:
    format_, options = MODES[mode]
    return format_(OfferedTool(tool=TOOL, name="t", description="", schema=schema, options=options))


def schema_of(definition: Definition) -> dict[str, Any]:
    wire = definition.wire.get("function", definition.wire)
    found = wire.get("parameters", wire.get("input_schema", wire.get("parametersJsonSchema")))
    assert isinstance(found, dict)
    return found


def fits(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, offline=True).is_valid(value)


# Schemas that values exist for

NAMES = st.sampled_from(["a", "b", "c d", "e/f", "$top", "filter[id]"])
TEXTS = st.sampled_from(["", "x", "long text", "[1]"])
SCALARS: st.SearchStrategy[Any] = st.one_of(TEXTS, st.integers(-5, 5), st.booleans(), st.none(), st.just(1.5))
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))
WORDS = st.fixed_dictionaries({}, optional={"description": TEXTS, "title": TEXTS, "default": SCALARS})


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Any:
    kinds = [scalar_schemas, choice_schemas, any_schemas, reference_schemas]
    if depth:
        kinds += [array_schemas, object_schemas, union_schemas, object_schemas, joined_schemas]
    made = draw(draw(st.sampled_from(kinds))(depth))
    return {**draw(WORDS), **made} if isinstance(made, dict) else made


def scalar_schemas(depth: int) -> st.SearchStrategy[Any]:
    bounds = st.fixed_dictionaries({}, optional={"minimum": st.integers(-5, 0), "maximum": st.integers(1, 5)})
    return st.one_of(
        st.just({"type": "string"}),
        st.builds(lambda kind, more: {"type": kind, **more}, st.sampled_from(["integer", "number"]), bounds),
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.lists(st.sampled_from(["string", "integer", "boolean", "null"]), min_size=1, max_size=3, unique=True).map(
            lambda kinds: {"type": kinds}
        ),
    )


def choice_schemas(depth: int) -> st.SearchStrategy[Any]:
    values = st.lists(ANYTHING, min_size=1, max_size=3)
    return st.one_of(
        st.just({"type": "string", "enum": ["p", "q"]}),
        st.just({"type": ["string", "null"], "enum": ["p", None]}),
        values.map(lambda given: {"enum": given}),
        ANYTHING.map(lambda given: {"const": given}),
    )


def any_schemas(depth: int) -> st.SearchStrategy[Any]:
    return st.sampled_from([{}, True, {"type": "object"}, {"type": "array"}, {"type": ["object", "string"]}])


def reference_schemas(depth: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(
        [{"$ref": "#/$defs/Node"}, {"$ref": "#/$defs/Mode"}, {"$ref": "#/definitions/Old"}, {"$ref": "#/$defs/a~1b"}]
    )


@st.composite
def array_schemas(draw: st.DrawFn, depth: int) -> Any:
    sizes = st.fixed_dictionaries({}, optional={"minItems": st.integers(0, 1), "maxItems": st.integers(2, 3)})
    return {"type": "array", "items": draw(schemas(depth - 1)), **draw(sizes)}


@st.composite
def object_schemas(draw: st.DrawFn, depth: int) -> Any:
    properties = draw(st.dictionaries(NAMES, schemas(depth - 1), max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    further = draw(st.sampled_from(["absent", False, True, "schema"]))
    if further != "absent":
        schema["additionalProperties"] = draw(schemas(depth - 1)) if further == "schema" else further
    return schema


@st.composite
def union_schemas(draw: st.DrawFn, depth: int) -> Any:
    return {"anyOf": draw(st.lists(schemas(depth - 1), min_size=1, max_size=3))}


@st.composite
def joined_schemas(draw: st.DrawFn, depth: int) -> Any:
    """Two objects that say nothing about each other's properties."""
    one, other = draw(schemas(depth - 1)), draw(schemas(depth - 1))
    return {
        "allOf": [
            {"type": "object", "properties": {"a": one}, "required": ["a"]},
            {"properties": {"b": other}},
        ]
    }


DEFINITIONS = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"mode": {"$ref": "#/$defs/Mode"}, "next": {"$ref": "#/$defs/Node", "description": "More."}},
            "required": ["mode"],
        },
        "Mode": {"enum": ["r", "w"]},
        "a/b": {"type": ["integer", "null"]},
    },
    "definitions": {"Old": {"type": "object", "additionalProperties": {"type": "string"}}},
}


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    return {**draw(object_schemas(3)), **DEFINITIONS}


# Values of a schema


@st.composite
def values(draw: st.DrawFn, schema: Any, root: dict[str, Any], depth: int = 4) -> Any:
    if not isinstance(schema, dict):
        return draw(SCALARS)
    if "$ref" in schema:
        node: Any = root
        for part in schema["$ref"].split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return draw(values(node, root, depth - 1))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return draw(values(draw(st.sampled_from(schema[key])), root, depth))
    if "allOf" in schema:
        parts = [draw(values({"type": "object", **part}, root, depth)) for part in schema["allOf"]]
        return {name: item for part in reversed(parts) for name, item in part.items()}
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "const" in schema:
        return schema["const"]
    kinds = schema.get("type")
    kind = draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds
    if kind == "object":
        return draw(objects(schema, root, depth))
    if kind == "array":
        least = schema.get("minItems", 0)
        most = max(schema.get("maxItems", 2), least) if depth > 0 else least
        return draw(st.lists(values(schema.get("items", {}), root, depth - 1), min_size=least, max_size=most))
    number = st.integers(schema.get("minimum", -5), schema.get("maximum", 5))
    plain = {"string": TEXTS, "integer": number, "number": number, "boolean": st.booleans(), "null": st.none()}
    return draw(plain.get(kind, ANYTHING))


@st.composite
def objects(draw: st.DrawFn, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    properties: dict[str, Any] = schema.get("properties", {})
    if set(properties) == {"json"} and "JSON" in properties["json"].get("description", ""):
        given_ = draw(ANYTHING if "value" in properties["json"]["description"] else st.dictionaries(NAMES, ANYTHING))
        return {"json": json.dumps(given_)}
    result = {}
    for name, sub in properties.items():
        if name in schema.get("required", ()) or (depth > 0 and draw(st.booleans())):
            result[name] = draw(values(sub, root, depth - 1))
    further = schema.get("additionalProperties", {})
    if further is not False and depth > 0 and draw(st.booleans()):
        result.setdefault("z", draw(values(further, root, depth - 1)))
    return result


@pytest.mark.req("ENG-8")
@EVERY_MODE
@PATIENT
@given(data=st.data())
def test_what_a_model_writes_for_the_wire_schema_fits_the_tool_once_it_is_undone(
    mode: str, data: st.DataObject
) -> None:
    schema = data.draw(tools())
    definition = define(mode, schema)
    wire = schema_of(definition)
    assume(not limits_in_words(definition))
    arguments = data.draw(values(wire, wire))
    assume(fits(wire, arguments))
    undone = definition.undo(arguments)
    assert fits(schema, undone), (wire, arguments, undone)


@EVERY_MODE
@PATIENT
@given(data=st.data())
def test_arguments_that_fit_already_are_left_as_they_are(mode: str, data: st.DataObject) -> None:
    schema = data.draw(tools())
    arguments = data.draw(values(schema, schema).filter(unambiguous))
    assume(fits(schema, arguments))
    assert define(mode, schema).undo(arguments) == arguments


def limits_in_words(definition: Definition) -> bool:
    """Whether the model was told a limit only in words, which a random writer does not read."""
    moved = [adaptation.what for adaptation in definition.adaptations if "into the description" in adaptation.what]
    return any(not what.startswith("default ") for what in moved)


def unambiguous(value: Any) -> bool:
    """Strict schemas also encode an absent property as null, and an object without entries as an empty list."""
    if isinstance(value, dict | list):
        return value != [] and all(map(unambiguous, value.values() if isinstance(value, dict) else value))
    return value is not None


# Whatever stands in a definition

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "string", "object", "any", "#", "a", "x#y"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "type", "$ref"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "const",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "$ref",
            "$defs",
        ),
        *("additionalProperties", "patternProperties", "propertyNames", "prefixItems", "minimum"),
        *("exclusiveMinimum", "maxLength", "pattern", "format", "description", "default", "examples", "if", "then"),
        *(
            "dependentRequired",
            "$id",
            "$schema",
            "$anchor",
            "$comment",
            "nullable",
            "x-own",
            "definitions",
            "uniqueItems",
            "contains",
        ),
        *("dependencies", "$dynamicRef", "additionalItems", "title", "multipleOf", "discriminator", "minItems"),
    ]
)


def soup() -> st.SearchStrategy[Any]:
    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        named = st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
        references = st.sampled_from(
            ["#", "#/$defs/a", "#/properties/a", "#/definitions/b", "#a", "https://else/where"]
        )
        kinds = st.sampled_from(["string", "object", "array", "integer", ["object", "null"], "null"])
        value = st.one_of(inner, st.lists(inner, max_size=3), named, references, kinds, JUNK)
        return st.dictionaries(KEYWORDS, value, max_size=5)

    return st.recursive(st.booleans() | st.just({}), more, max_leaves=12).filter(lambda made: isinstance(made, dict))


@EVERY_MODE
@PATIENT
@given(schema=soup())
def test_any_definition_makes_a_valid_schema_of_an_object(mode: str, schema: dict[str, Any]) -> None:
    definition = define(mode, schema)
    wire = {key: value for key, value in schema_of(definition).items() if key != "$schema"}
    assert wire["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(wire)
    assert jsonschema_rs.meta.is_valid(wire), wire
    assert json.loads(json.dumps(definition.wire)) == definition.wire
    assert definition.adaptations or schema_of(definition) == schema
    assert definition.undo({"a": 1}) == {"a": 1} or definition.adaptations


@pytest.mark.parametrize("mode", ["openai strict", "anthropic strict"])
@PATIENT
@given(schema=soup() | tools())
def test_a_strict_schema_says_everything_that_strict_modes_ask_for(mode: str, schema: dict[str, Any]) -> None:
    definition = define(mode, schema)
    if not definition.wire.get("function", definition.wire).get("strict"):
        assert any("strict was" in adaptation.what for adaptation in definition.adaptations)
        return
    waiting: list[Any] = [schema_of(definition)]
    while waiting:
        node = waiting.pop()
        assert {"type", "$ref", "anyOf"} & set(node), node
        assert not {"allOf", "oneOf", "not", "if", "default", "patternProperties", "prefixItems", "definitions"} & set(
            node
        )
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert set(node["required"]) <= set(node["properties"])
            assert mode != "openai strict" or node["required"] == list(node["properties"])
        waiting += [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
        waiting += [node["items"]] if "items" in node else []
