"""Real servers' tools reach every provider without loss, and each difference is listed.

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


def schema_of(definition: Definition) -> dict[str, Any]:
    wire = definition.wire.get("function", definition.wire)
    found = wire.get("parameters", wire.get("input_schema", wire.get("parametersJsonSchema")))
    assert isinstance(found, dict)
    return found


# The reader


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
            said, written = getattr(before[place], aspect), getattr(after[place], aspect)
            if said != written:
                found.append(f"{place}: {aspect} {said} became {written}")
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


# What is listed


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


# What providers refuse


REFUSED_BY_STRICT = {
    *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "default"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "prefixItems", "$schema"),
    *("$id", "examples", "definitions"),
}


def strict_faults(wire: dict[str, Any], *, all_required: bool) -> list[str]:
    found = [] if wire.get("type") == "object" else ["the root is no object"]
    for node in nodes(wire):
        if refused := REFUSED_BY_STRICT & set(node):
            found.append(f"{sorted(refused)} are refused")
        if not {"type", "$ref", "anyOf", "enum", "const"} & set(node):
            found.append(f"no type in {node}")
        if "$ref" in node and (set(node) != {"$ref"} or not node["$ref"].startswith("#/$defs/")):
            found.append(f"a reference with company, or not to $defs: {node}")
        if node.get("type") == "object":
            if node.get("additionalProperties") is not False:
                found.append(f"an open object: {node}")
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
