"""Real and generated schemas reach every provider without loss, and each difference is listed.

`Reader` finds every place a value can have in a schema, with its types, its enum values, and whether it is required.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
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

CATALOGS = sorted((Path(__file__).parents[3] / "shared" / "data" / "catalogs").glob("*.json"))
NESTED = {
    "type": "object",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"mode": {"enum": ["a", "b"]}, "next": {"$ref": "#/$defs/Node"}},
            "required": ["mode"],
        }
    },
    "properties": {
        "nodes": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "enum": ["x", "y"]}},
        "either": {"oneOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "object", "required": ["n"]}]},
        "kind": {"const": "k", "description": "Always so."},
    },
    "required": ["nodes", "kind"],
}
OWN = {"own": [{"name": "nested", "inputSchema": NESTED}, {"name": "bare", "inputSchema": {}}]}


ALL = OWN | {catalog["server"]: catalog["tools"] for catalog in (json.loads(path.read_text()) for path in CATALOGS)}


def offers(**options: dict[str, Any]) -> Iterator[OfferedTool]:
    for server, tools in ALL.items():
        raw = tuple(json.dumps(tool).encode() for tool in tools)
        for tool in Catalog.build({server: raw}, version=1).tools:
            yield replace(OfferedTool.of(tool), name=tool.names.plain, options=options)


@dataclass
class Mode:
    define: Callable[[OfferedTool], Definition]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    null_is_absent: bool = False

    @cached_property
    def all(self) -> list[tuple[OfferedTool, Definition]]:
        return [(offer, self.define(offer)) for offer in offers(**self.options)]


MODES = {
    "openai chat": Mode(openai.definition),
    "openai responses": Mode(lambda offer: openai.definition(offer, "responses")),
    "openai strict": Mode(openai.definition, {"openai": {"strict": True}}, null_is_absent=True),
    "anthropic": Mode(anthropic.definition),
    "anthropic strict": Mode(anthropic.definition, {"anthropic": {"strict": True}}),
    "google": Mode(google.definition),
}
EVERY_MODE = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
PATIENT = settings(max_examples=400 if FULL else 15, deadline=None, suppress_health_check=list(HealthCheck))
TOOL = Catalog.build({"s": (b'{"name": "t"}',)}, version=1).tools[0]


def define(mode: Mode, schema: dict[str, Any]) -> Definition:
    return mode.define(OfferedTool(tool=TOOL, name="t", description="", schema=schema, options=mode.options))


def schema_of(definition: Definition) -> dict[str, Any]:
    wire = definition.wire.get("function", definition.wire)
    found = wire.get("parameters", wire.get("input_schema", wire.get("parametersJsonSchema")))
    assert isinstance(found, dict)
    return found


@dataclass
class Place:
    types: set[str] = field(default_factory=set)
    choices: set[frozenset[str]] = field(default_factory=set)
    needed: set[bool] = field(default_factory=set)


class Reader:
    """All places of a schema. Knows the documented forms of unnamed properties in strict schemas."""

    def __init__(self, root: dict[str, Any], *, null_is_absent: bool) -> None:
        self.root = root
        self.null_is_absent = null_is_absent
        self.places: dict[str, Place] = {}
        self.read(root, "", ())
        self.places[""].types = {"object"}

    def read(self, node: Any, place: str, above: tuple[str, ...]) -> None:
        found = self.places.setdefault(place, Place())
        if not isinstance(node, dict) or self._is_text(node):
            is_object = isinstance(node, dict) and "value" not in node["properties"]["json"]["description"]
            found.types.add("object" if is_object else "any")
            return
        if "$ref" in node:
            if node["$ref"] in above:
                return
            self.read(self.resolve(node["$ref"]), place, (*above, node["$ref"]))
        for branch in [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]:
            self.read(branch, place, above)
        if self._is_entries(node):
            found.types.add("object")
            self.read(node["items"]["properties"]["value"], f"{place}{{}}", above)
            return
        self._own(node, found)
        for name, sub in node.get("properties", {}).items():
            if name == "further_properties" and node.get("additionalProperties") is False:
                self.read(sub["items"]["properties"]["value"], f"{place}{{}}", above)
                continue
            inner = f"{place}.{name}"
            self.read(sub, inner, above)
            given = name in node.get("required", ()) and not (self.null_is_absent and self._takes_null(sub))
            self.places[inner].needed.add(given)
        for name in set(node.get("required", ())) - set(node.get("properties", {})):
            self.places.setdefault(f"{place}.{name}", Place(types={"any"})).needed.add(True)
        if isinstance(node.get("items"), dict):
            self.read(node["items"], f"{place}[]", above)
        further = node.get("additionalProperties")
        if (isinstance(further, dict) and further) or (further in (True, {}) and node.get("properties")):
            self.read(node["additionalProperties"], f"{place}{{}}", above)

    def _own(self, node: dict[str, Any], found: Place) -> None:
        kinds = node.get("type")
        values = [value for value in node.get("enum", [node["const"]] if "const" in node else []) if value is not None]
        if kinds is not None:
            found.types |= set(kinds if isinstance(kinds, list) else [kinds]) - {"null"}
        elif values:
            found.types |= {"string" if isinstance(value, str) else "number" for value in values}
        elif "properties" in node or "required" in node:
            found.types.add("object")
        elif not {"$ref", "anyOf", "oneOf", "allOf"} & set(node):
            found.types.add("any")
        if values:
            found.choices.add(frozenset(json.dumps(value) for value in values))

    def resolve(self, reference: str) -> Any:
        node: Any = self.root
        for part in reference.split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node

    def _takes_null(self, node: dict[str, Any]) -> bool:
        return bool(jsonschema_rs.is_valid({**{k: self.root[k] for k in ("$defs",) if k in self.root}, **node}, None))

    @staticmethod
    def _is_text(node: dict[str, Any]) -> bool:
        return set(properties := node.get("properties", {})) == {"json"} and "JSON" in str(properties["json"])

    @staticmethod
    def _is_entries(node: dict[str, Any]) -> bool:
        items = node.get("items") or {}
        return set(items.get("properties", ())) == {"name", "value"} and items.get("additionalProperties") is False


def lost(original: dict[str, Any], wire: dict[str, Any], *, null_is_absent: bool) -> list[str]:
    """How the wire schema differs from the original."""
    before = Reader(original, null_is_absent=null_is_absent).places
    after = Reader(wire, null_is_absent=null_is_absent).places
    found = [f"{place} is in one schema only" for place in set(before) ^ set(after)]
    for place in set(before) & set(after):
        for aspect in ("types", "choices", "needed"):
            expected, written = getattr(before[place], aspect), getattr(after[place], aspect)
            if expected != written:
                found.append(f"{place}: {aspect} {expected} became {written}")
    return sorted(found)


@pytest.mark.req("ENG-8")
@EVERY_MODE
def test_no_place_type_enum_or_requirement_is_lost(mode: Mode) -> None:
    for offer, definition in mode.all:
        problems = lost(dict(offer.schema), schema_of(definition), null_is_absent=mode.null_is_absent)
        assert not problems, (offer.name, problems)


def keyword_changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], bool]:
    def damage(node: dict[str, Any]) -> bool:
        if not node.get(key):
            return False
        node[key] = change(node[key])
        return True

    return damage


def without_an_enum(node: dict[str, Any]) -> bool:
    return node.pop("enum", None) is not None or node.pop("const", None) is not None


def with_another_type(node: dict[str, Any]) -> bool:
    if node.get("type") not in ("string", "integer", "boolean") or "properties" in node:
        return False
    node["type"] = "array"
    return True


DAMAGES = [
    without_an_enum,
    with_another_type,
    keyword_changed("enum", lambda values: values[1:]),
    keyword_changed("required", lambda names: names[1:]),
    keyword_changed("properties", lambda subs: dict(list(subs.items())[:-1])),
]


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """The schemas within a schema that its reader visits."""
    if isinstance(node, dict):
        yield node
        for name in ("properties", "$defs"):
            for sub in node.get(name, {}).values():
                yield from nodes(sub)
        for name in ("anyOf", "oneOf"):
            for sub in node.get(name, ()):
                yield from nodes(sub)
        yield from nodes(node.get("items"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_comparison_sees_every_kind_of_loss(damage: Callable[[dict[str, Any]], bool]) -> None:
    done = 0
    for offer, definition in MODES["google"].all[::10]:
        whole = schema_of(definition)
        for index in range(len(list(nodes(whole)))):
            wire = copy.deepcopy(whole)
            if damage(list(nodes(wire))[index]) and wire != whole:
                assert lost(dict(offer.schema), wire, null_is_absent=False), (offer.name, index)
                done += 1
                break
    assert done


def differences(before: Any, after: Any, path: str) -> Iterator[str]:
    """Paths of the original at which the wire says something else, or says it in another form."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        if before != after or type(before) is not type(after):
            yield path
        return
    if isinstance(branches := after.get("anyOf"), list) and "anyOf" not in before and "oneOf" not in before:
        yield path
        after = branches[0]
    if _kind(before) != _kind(after):
        yield path
        return
    holders = {"properties", "$defs", "anyOf", "oneOf", "items", "additionalProperties"}
    own, written = ({k: v for k, v in node.items() if k not in holders} for node in (before, after))
    for name in set(written.pop("required", ())) ^ set(own.pop("required", ())):
        yield _step(path, "properties", name) if name in before.get("properties", ()) else path
    after = {"properties": {}, **after} if "properties" in before else after
    if own != written or (set(before) & holders) != (set(after) & holders):
        yield path
    for holder in holders & set(before) & set(after):
        one, other = before[holder], after[holder]
        if holder in ("properties", "$defs"):
            if set(one) != set(other):
                yield path
            inner = [(one[name], other[name], _step(path, holder, name)) for name in set(one) & set(other)]
        elif isinstance(one, list):
            inner = [(*both, f"{path}/{holder}/{index}") for index, both in enumerate(zip(one, other, strict=False))]
        else:
            inner = [(one, other, f"{path}/{holder}")]
        for sub, written_sub, place in inner:
            yield from differences(sub, written_sub, place)


def _kind(node: dict[str, Any]) -> Any:
    """An object that became a list of entries or JSON text is not compared any deeper."""
    kinds = node.get("type")
    return "json" if set(node.get("properties", ())) == {"json"} else kinds if kinds in ("object", "array") else None


def _step(path: str, holder: str, name: str) -> str:
    return f"{path}/{holder}/{name.replace('~', '~0').replace('/', '~1')}"


@pytest.mark.req("ENG-8")
@EVERY_MODE
def test_each_difference_is_listed_at_its_place(mode: Mode) -> None:
    for offer, definition in mode.all:
        made = [adaptation for adaptation in definition.adaptations if not adaptation.what.startswith("strict was")]
        listed = {adaptation.path for adaptation in made}
        for path in differences(dict(offer.schema), schema_of(definition), "#"):
            assert path in listed, (offer.name, path, sorted(listed))
        assert bool(listed) == (schema_of(definition) != offer.schema), offer.name
        for adaptation in definition.adaptations:
            assert (adaptation.tool, adaptation.provider) == (offer.name, next(iter(mode.options), adaptation.provider))
            assert adaptation.what and adaptation.why


@pytest.mark.parametrize("mode", [MODES["openai chat"], MODES["anthropic"]], ids=["openai", "anthropic"])
def test_a_schema_that_the_provider_accepts_stays_unchanged(mode: Mode) -> None:
    changed = [offer.name for offer, definition in mode.all if schema_of(definition) is not offer.schema]
    empty = [offer.name for offer in offers() if "type" not in offer.schema or '"enum": []' in json.dumps(offer.schema)]
    assert changed == empty


REFUSED_BY_STRICT = {
    *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "default"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "prefixItems", "$schema"),
    *("$id", "examples", "definitions"),
}


def strict_faults(wire: dict[str, Any], *, all_required: bool) -> list[str]:
    found = [] if wire.get("type") == "object" else ["the root is not an object"]
    for node in nodes(wire):
        if refused := REFUSED_BY_STRICT & set(node):
            found.append(f"{sorted(refused)} are refused")
        if not {"type", "$ref", "anyOf"} & set(node):
            found.append(f"no type in {node}")
        if "$ref" in node and (set(node) != {"$ref"} or not node["$ref"].startswith("#/$defs/")):
            found.append(f"a reference with other keywords, or not to $defs: {node}")
        if node.get("type") == "object":
            if node.get("additionalProperties") is not False:
                found.append(f"an open object: {node}")
            if not set(node["required"]) <= set(node["properties"]):
                found.append(f"a required property is missing: {node}")
            if all_required and list(node.get("required", ())) != list(node.get("properties", {})):
                found.append(f"not all properties are required: {node}")
        if node.get("type") == "array" and "items" not in node:
            found.append("a list without items")
    return found


def test_strict_schemas_keep_the_providers_rules() -> None:
    for offer, definition in MODES["openai strict"].all:
        assert definition.wire["function"]["strict"] is True, (offer.name, definition.adaptations)
        assert not strict_faults(schema_of(definition), all_required=True), offer.name
    for offer, definition in MODES["anthropic strict"].all:
        if definition.wire.get("strict"):
            assert not strict_faults(schema_of(definition), all_required=False), offer.name
        else:
            reasons = ("refers to itself", "accepts at most")
            assert any(reason in definition.adaptations[0].why for reason in reasons), offer.name


GOOGLE_ACCEPTS = {
    *("$defs", "$ref", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems"),
    *("maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required"),
    *("default", "minLength", "maxLength", "pattern", "minProperties", "maxProperties"),
}


def test_google_gets_only_keywords_that_it_knows() -> None:
    for offer, definition in MODES["google"].all:
        for node in nodes(schema_of(definition)):
            assert set(node) <= GOOGLE_ACCEPTS, (offer.name, node)
            assert "$ref" not in node or set(node) == {"$ref"}, offer.name
            assert all(isinstance(value, str | int | float) for value in node.get("enum", ())), offer.name


@EVERY_MODE
def test_every_schema_is_valid_and_safe_to_send(mode: Mode) -> None:
    for offer, definition in mode.all:
        wire = {**schema_of(definition)}
        wire.pop("$schema", None)
        assert jsonschema_rs.meta.is_valid(wire), offer.name
        assert json.loads(json.dumps(definition.wire)) == definition.wire


def fits(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, offline=True).is_valid(value)


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
    return {"allOf": [{"type": "object", "properties": {"a": one}, "required": ["a"]}, {"properties": {"b": other}}]}


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
def test_arguments_for_the_wire_schema_fit_the_tool_after_undo(mode: Mode, data: st.DataObject) -> None:
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
def test_undo_keeps_arguments_that_already_fit(mode: Mode, data: st.DataObject) -> None:
    schema = data.draw(tools())
    arguments = data.draw(values(schema, schema).filter(unambiguous))
    assume(fits(schema, arguments))
    assert define(mode, schema).undo(arguments) == arguments


def limits_in_words(definition: Definition) -> bool:
    """Whether a limit is only in a description, which a random generator ignores."""
    moved = [adaptation.what for adaptation in definition.adaptations if "into the description" in adaptation.what]
    return any(not what.startswith("default ") for what in moved)


def unambiguous(value: Any) -> bool:
    """Strict schemas also encode an absent property as null, and an object without entries as an empty list."""
    if isinstance(value, dict | list):
        return value != [] and all(map(unambiguous, value.values() if isinstance(value, dict) else value))
    return value is not None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "string", "object", "any", "#", "a", "x#y"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "type", "$ref"]), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES_OF_KEYWORDS = """
    type properties required items enum const anyOf oneOf allOf not $ref $defs additionalProperties if then
    patternProperties propertyNames prefixItems minimum exclusiveMinimum maxLength pattern format description
    default examples dependentRequired $id $schema $anchor $comment nullable x-own definitions uniqueItems
    contains dependencies $dynamicRef additionalItems title multipleOf discriminator minItems
"""
KEYWORDS = st.sampled_from(NAMES_OF_KEYWORDS.split())


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
def test_any_definition_becomes_a_valid_schema_of_an_object(mode: Mode, schema: dict[str, Any]) -> None:
    definition = define(mode, schema)
    wire = {key: value for key, value in schema_of(definition).items() if key != "$schema"}
    assert wire["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(wire)
    assert jsonschema_rs.meta.is_valid(wire), wire
    assert json.loads(json.dumps(definition.wire)) == definition.wire
    assert definition.adaptations or schema_of(definition) == schema
    assert definition.undo({"a": 1}) == {"a": 1} or definition.adaptations


@pytest.mark.parametrize("name", ["openai strict", "anthropic strict"])
@PATIENT
@given(schema=soup() | tools())
def test_any_strict_schema_keeps_the_providers_rules(name: str, schema: dict[str, Any]) -> None:
    definition = define(MODES[name], schema)
    if definition.wire.get("function", definition.wire).get("strict"):
        assert not strict_faults(schema_of(definition), all_required=name == "openai strict")
    else:
        assert any("strict was" in adaptation.what for adaptation in definition.adaptations)
