"""Writes a schema in a dialect: objects, arrays and scalars, and the root.

In: a tool's valid schema. Out: one with a plain object at the root, whose properties are the arguments, and a
`Restore`. The base class is in `writer`. All providers reject combinators at the root; if they cannot be merged, the
whole schema becomes the only property of a new root, so that nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.schema_refs import SchemaDocument, pointer_below
from toolcrib.formats.definition import AdaptationLog, Schema
from toolcrib.formats.dialects import ABOUT_VALUE, OpenObjects, OptionalProperties, accepts_null
from toolcrib.formats.merging import merged_schemas
from toolcrib.formats.restore import (
    NAME,
    TEXT,
    VALUE,
    Restore,
    RestoreEntries,
    RestoreItems,
    RestoreProperties,
    RestoreWrapped,
    restore_json_text,
)
from toolcrib.formats.writer import SchemaWriter, Written, all_subschemas

FURTHER = "further_properties"


class DialectWriter(SchemaWriter):
    def shape(self, flat: Schema, kinds: list[str], path: str) -> Written:
        match kinds:
            case []:
                return self._anything(flat, path)
            case ["object"]:
                return self._object(flat, path)
            case ["array"]:
                return self._array(flat, path)
        return self.finished({"type": kinds[0] if len(kinds) == 1 else kinds}, flat, kinds, set(), path), None

    def _anything(self, flat: Schema, path: str, what: str = "value") -> Written:
        if self.dialect.openness is OpenObjects.KEPT:
            return self.finished({}, flat, [], set(), path), None
        self.note(path, f"any {what} became JSON text", f"{self.dialect.title} needs every type and property named")
        text = {"type": "string", "description": f"The {what} as JSON."}
        self.undone = True
        return self.finished(_closed({TEXT: text}), flat, [], set(), path), restore_json_text

    # Arrays

    def _array(self, flat: Schema, path: str) -> Written:
        wire: Schema = {"type": "array"}
        items: Any = flat.get("items")
        first: list[Any] = flat.get("prefixItems", [])
        used = {"items", "prefixItems"}
        if items is False:
            wire["maxItems"] = min(len(first), flat.get("maxItems", len(first)))
            self.note(
                path, f"items false became maxItems {wire['maxItems']}", f"{self.dialect.title} does not accept false"
            )
        if first and self.dialect.tuples:
            written = [self.node(sub, pointer_below(path, "prefixItems", index)) for index, sub in enumerate(first)]
            wire["prefixItems"] = [sub for sub, _ in written]
            if isinstance(items, Mapping):
                written.append(self.node(items, pointer_below(path, "items")))
                wire["items"] = written[-1][0]
            positions = self.union_restore(written)
            return self.finished(wire, flat, ["array"], used, path), RestoreItems(positions) if positions else None
        restore: Restore | None = None
        if first:
            forms = [*first, *([] if items is False else [{} if items in (None, True) else items])]
            distinct = [form for index, form in enumerate(forms) if form not in forms[:index]]
            self.note(path, "prefixItems became one schema for all items", self._refused("prefixItems"))
            wire["items"], restore = self.node({"anyOf": distinct}, pointer_below(path, "prefixItems"))
            flat = self.moved_into_description(flat, {"prefixItems": first}, path)
        elif items is not None or self.dialect.openness is OpenObjects.SPELLED:
            wire["items"], restore = self.node(True if items in (None, False) else items, pointer_below(path, "items"))
        return self.finished(wire, flat, ["array"], used, path), RestoreItems(restore) if restore else None

    # Objects

    def _object(self, flat: Schema, path: str) -> Written:
        properties: dict[str, Any] = dict(flat.get("properties", {}))
        required = list(flat.get("required", ()))
        for name in required:
            if name not in properties:
                properties[name] = {}
                self.note(path, f"the property {name} was added", "it is required, but has no schema")
        for name in [name for name, sub in properties.items() if sub is False]:
            del properties[name]
            self.note(pointer_below(path, "properties", name), "the property was removed", "no value fits it")
        if flat.get("propertyNames") in (True, {}, {"type": "string"}):
            flat = {key: value for key, value in flat.items() if key != "propertyNames"}
            self.note(path, "propertyNames was removed", "it has no effect: names are always strings")
        spelled = {**flat, "properties": properties, "required": [name for name in required if name in properties]}
        if self.dialect.openness is OpenObjects.SPELLED:
            if "required" not in flat and (not properties or self.dialect.optional is OptionalProperties.KEPT):
                self.note(path, "required [] was added", f"{self.dialect.title} needs it")
            return self._closed_object(spelled, path)
        return self._open_object({key: spelled[key] for key in spelled if key in flat or spelled[key]}, path)

    def _open_object(self, flat: Schema, path: str) -> Written:
        wire: Schema = {"type": "object"}
        wires, members = self._members(flat, path)
        others = None
        if "properties" in flat:
            wire["properties"] = wires
        if "required" in flat:
            wire["required"] = flat["required"]
        further = flat.get("additionalProperties")
        if patterns := flat.get("patternProperties"):
            forms = [*patterns.values(), *([further] if isinstance(further, Mapping) else [])]
            further = {"anyOf": forms} if further is False or isinstance(further, Mapping) else further
            flat = {**self.moved_into_description(flat, {"patternProperties": patterns}, path)}
        if isinstance(further, Mapping):
            wire["additionalProperties"], others = self.node(further, pointer_below(path, "additionalProperties"))
        elif further is not None:
            wire["additionalProperties"] = further
        used = {"properties", "required", "additionalProperties", "patternProperties"}
        restore = RestoreProperties(**(members or {"properties": {}}), others=others) if members or others else None
        return self.finished(wire, flat, ["object"], used, path), restore

    def _closed_object(self, flat: Schema, path: str) -> Written:
        used = {"properties", "required", "additionalProperties"}
        further = self._further(flat, path)
        if further is not None:
            used |= {"propertyNames", "patternProperties"}
        if not flat["properties"] and further is not None:
            if further == {} and "propertyNames" not in flat:
                rest = {key: value for key, value in flat.items() if key not in {*used, "type"}}
                return self._anything(rest, path, "object")
            wire, restore = self._entries(flat, further, path)
            return self.finished(wire, flat, ["object"], used, path), restore
        wires, members = self._members(flat, path)
        key, entries = "", None
        if further is not None:
            key = FURTHER
            while key in wires:
                key += "_"
            wires[key], entries = self._entries(flat, further, path)
            wires[key]["description"] = "Properties not named here."
        elif flat.get("additionalProperties") is not False:
            self.note(path, "additionalProperties false was added", f"{self.dialect.title} needs it")
        wire = _closed(
            wires,
            None if self.dialect.optional is OptionalProperties.NULL else [*flat["required"], *filter(None, [key])],
        )
        restored = members or entries
        restore = (
            RestoreProperties(**(members or {"properties": {}}), further=key, entries=entries) if restored else None
        )
        return self.finished(wire, flat, ["object"], used, path), restore

    def _further(self, flat: Schema, path: str) -> Any:
        """The schema of properties that the schema does not name, or None if there are none."""
        further = flat.get("additionalProperties")
        if patterns := flat.get("patternProperties"):
            return {"anyOf": [*patterns.values(), *([further] if isinstance(further, Mapping) else [])]}
        if further is None:
            # An object without keywords may hold anything, except at the root: a model cannot guess argument names.
            return {} if not flat["properties"] and path != "#" else None
        return {} if further is True else None if further is False else further

    def _entries(self, flat: Schema, further: Any, path: str) -> Written:
        names = flat.get("propertyNames", True)
        name, _ = self.node(merged_schemas({"type": "string"}, names if isinstance(names, Mapping) else {}) or {}, path)
        if patterns := flat.get("patternProperties"):
            name = self.moved_into_description(name, {"patternProperties": patterns}, path)
        value, restore = self.node(further, pointer_below(path, "additionalProperties"))
        self.note(
            path, "an object became a list of names and values", f"{self.dialect.title} needs every property named"
        )
        self.undone = True
        return {"type": "array", "items": _closed({NAME: name, VALUE: value})}, RestoreEntries(restore)

    def _members(self, flat: Schema, path: str) -> tuple[dict[str, Schema], dict[str, Any]]:
        """The written properties, and the arguments of `RestoreProperties`, if any."""
        wires: dict[str, Schema] = {}
        restores: dict[str, Restore] = {}
        absent_if_null = set()
        for name, sub in flat.get("properties", {}).items():
            place = pointer_below(path, "properties", name)
            wire, restore = self.node(sub, place)
            if self.dialect.optional is OptionalProperties.NULL and name not in flat["required"]:
                if not self._null_fits(wire):
                    wire = _nullable(wire)
                    absent_if_null.add(name)
                    self.undone = True
                self.note(place, "it became required, null if absent", f"{self.dialect.title} needs every property")
            wires[name] = wire
            if restore is not None:
                restores[name] = restore
        return wires, {
            "properties": restores,
            "absent_if_null": frozenset(absent_if_null),
        } if restores or absent_if_null else {}

    def _null_fits(self, wire: Schema) -> bool:
        name = str(wire.get("$ref", "")).rsplit("/", 1)[-1]
        if name and name not in self.definitions:
            return False
        return accepts_null(wire, SchemaDocument({"$defs": self.definitions}))


def _closed(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _nullable(wire: Schema) -> Schema:
    kinds = wire.get("type")
    if isinstance(kinds, list) or (
        kinds in ("string", "number", "integer", "boolean") and not {"enum", "const"} & set(wire)
    ):
        return {**wire, "type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}
    if "anyOf" in wire:
        return {**wire, "anyOf": [*wire["anyOf"], {"type": "null"}]}
    annotations = {key: value for key, value in wire.items() if key in ("title", "description")}
    bare = {key: value for key, value in wire.items() if key not in annotations}
    return {"anyOf": [bare, {"type": "null"}], **annotations}


_KEY = "arguments"
_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "if"})
_SHARED = ("$defs", "definitions", "$schema", "$id")
_AN_OBJECT = "arguments are always an object"


def object_root(schema: Schema, log: AdaptationLog, *, unless: frozenset[str] = _COMBINING) -> Schema:
    """Sets the type to object, unless one of the keywords in `unless` determines it."""
    kinds = schema.get("type")
    if kinds == "object" or (kinds is None and not unless.isdisjoint(schema)):
        return schema
    log.note("#", f"type {json.dumps(kinds)} became object" if kinds else "type object was added", _AN_OBJECT)
    return {**schema, "type": "object"}


def plain_root(
    schema: Schema, log: AdaptationLog, *, refused: frozenset[str], title: str
) -> tuple[Schema, Restore | None]:
    """Removes the keywords that the provider rejects at the root, and changes nothing else."""
    why = f"{title} does not accept it at the root"
    document = SchemaDocument(schema)
    for _ in range(len(document.root)):
        pointer = document.pointer(schema.get("$ref"))
        target = document.at(pointer) if pointer else None
        if not isinstance(target, Mapping) or target is document.root:
            break
        joined = merged_schemas({key: value for key, value in schema.items() if key != "$ref"}, target)
        if joined is None:
            break
        schema = joined
        log.note("#", "$ref was replaced by its target", why)
    if "allOf" in schema and "allOf" in refused:
        schema = _without_all_of(schema, document, log, why)
    if refused.isdisjoint(schema) and "$ref" not in schema:
        return object_root(schema, log, unless=frozenset()), None
    return _wrapped(schema, log, why)


def _without_all_of(schema: Schema, document: SchemaDocument, log: AdaptationLog, why: str) -> Schema:
    result: Schema = {key: value for key, value in schema.items() if key != "allOf"}
    for member in schema["allOf"]:
        part = member
        if isinstance(part, Mapping) and set(part) == {"$ref"}:
            part = document.at(document.pointer(part["$ref"]) or "#")
        joined = merged_schemas(result, part) if isinstance(part, Mapping) else None
        if joined is None or "allOf" in joined or "$ref" in joined:
            return schema
        result = joined
    log.note("#", "allOf was merged into one schema", why)
    return result


def _wrapped(schema: Schema, log: AdaptationLog, why: str) -> tuple[Schema, Restore]:
    key = _unused(schema)
    inner = _moved({name: value for name, value in schema.items() if name not in _SHARED}, key)
    root: Schema = {"type": "object", "properties": {key: inner}, "required": [key]}
    for name in _SHARED:
        if name in schema:
            root[name] = _moved(schema[name], key)
    log.note("#", f"the whole schema became the property {key}", why)
    return root, RestoreWrapped(key, None)


def _unused(schema: Mapping[str, Any]) -> str:
    """A name that the schema does not use, so that unwrapped arguments can be recognized."""
    text, key = json.dumps(schema), _KEY
    while json.dumps(key) in text:
        key += "_"
    return key


def _moved(value: Any, key: str) -> Any:
    """Updates references to parts that are now below the new property."""
    if isinstance(value, list):
        return [_moved(item, key) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {name: _moved(item, key) for name, item in value.items()}
    reference = value.get("$ref")
    if (
        isinstance(reference, str)
        and reference.startswith("#")
        and not reference.startswith(("#/$defs/", "#/definitions/"))
    ):
        moved["$ref"] = f"#/properties/{key}{reference[1:]}"
    return moved


def written_root(writer: SchemaWriter, root: Schema, log: AdaptationLog) -> tuple[Schema, Restore | None]:
    """The root in its dialect, with definitions."""
    wire, restore = writer.node(root, "#")
    for _ in range(len(writer.definitions) + 1):
        inner = wire["anyOf"][0] if set(wire) - ABOUT_VALUE == {"anyOf"} and len(wire["anyOf"]) == 1 else wire
        if "$ref" not in inner:
            break
        target = writer.definitions[inner["$ref"].rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")]
        wire = {**target, **{key: value for key, value in wire.items() if key in ABOUT_VALUE}}
        log.note("#", "$ref was replaced by its target", f"{writer.dialect.title} does not accept it at the root")
    undone = writer.undone
    if wire.get("type") != "object":
        key = _unused(root)
        log.note("#", f"the whole schema became the property {key}", f"{writer.dialect.title} needs an object")
        wire = {"type": "object", "properties": {key: wire}, "required": [key], "additionalProperties": False}
        restore, undone = RestoreWrapped(key, restore if undone else None), True
    definitions = _reached(wire, writer.definitions)
    if {name for holder in ("$defs", "definitions") for name in root.get(holder, ())} - set(definitions):
        log.note("#", "unused definitions were removed", "nothing refers to them")
    if definitions:
        wire = {**wire, "$defs": definitions}
    return wire, restore if undone else None


def _reached(wire: Schema, definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    reached: dict[str, Schema] = {}
    waiting: list[Mapping[str, Any]] = [wire]
    while waiting:
        for node in all_subschemas(waiting.pop()):
            name = str(node.get("$ref", "")).rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
            if name in definitions and name not in reached:
                reached[name] = definitions[name]
                waiting.append(definitions[name])
    return {name: definitions[name] for name in definitions if name in reached}
