"""The outermost schema: always that of an object, whose properties are the arguments.

In: a tool's valid schema, or one that a `Writer` wrote. Out: one with a plain object at the root, and the way back.
Combinators at the root are refused by all providers; where they cannot be merged, the whole schema becomes the one
property of a new root, so that nothing of it is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.formats.back import Back, Wrapped
from toolcrib.catalog.formats.definition import Ledger, Schema
from toolcrib.catalog.formats.merging import both
from toolcrib.catalog.formats.words import ABOUT_VALUE
from toolcrib.catalog.formats.writer import Writer, parts
from toolcrib.catalog.pointers import Document

_KEY = "arguments"
_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "if"})
_SHARED = ("$defs", "definitions", "$schema", "$id")
_AN_OBJECT = "arguments are always an object"


def of_an_object(schema: Schema, ledger: Ledger, *, unless: frozenset[str] = _COMBINING) -> Schema:
    """With the type that arguments have, unless keywords say it in their way."""
    kinds = schema.get("type")
    if kinds == "object" or (kinds is None and not unless.isdisjoint(schema)):
        return schema
    ledger.note("#", f"type {json.dumps(kinds)} was made object" if kinds else "type object was added", _AN_OBJECT)
    return {**schema, "type": "object"}


def plain(schema: Schema, ledger: Ledger, *, refused: frozenset[str], title: str) -> tuple[Schema, Back | None]:
    """A root without the keywords that this provider refuses there; all else as it is."""
    why = f"{title} does not take it at the root"
    document = Document(schema)
    for _ in range(len(document.root)):
        pointer = document.pointer(schema.get("$ref"))
        target = document.at(pointer) if pointer else None
        if not isinstance(target, Mapping) or target is document.root:
            break
        joined = both({key: value for key, value in schema.items() if key != "$ref"}, target)
        if joined is None:
            break
        schema = joined
        ledger.note("#", "$ref was made what it refers to", why)
    if "allOf" in schema and "allOf" in refused:
        schema = _without_all_of(schema, document, ledger, why)
    if refused.isdisjoint(schema) and "$ref" not in schema:
        return of_an_object(schema, ledger, unless=frozenset()), None
    return _wrapped(schema, ledger, why)


def _without_all_of(schema: Schema, document: Document, ledger: Ledger, why: str) -> Schema:
    result: Schema = {key: value for key, value in schema.items() if key != "allOf"}
    for member in schema["allOf"]:
        part = member
        if isinstance(part, Mapping) and set(part) == {"$ref"}:
            part = document.at(document.pointer(part["$ref"]) or "#")
        joined = both(result, part) if isinstance(part, Mapping) else None
        if joined is None or "allOf" in joined or "$ref" in joined:
            return schema
        result = joined
    ledger.note("#", "allOf was merged into one schema", why)
    return result


def _wrapped(schema: Schema, ledger: Ledger, why: str) -> tuple[Schema, Back]:
    key = _unused(schema)
    inner = _moved({name: value for name, value in schema.items() if name not in _SHARED}, key)
    root: Schema = {"type": "object", "properties": {key: inner}, "required": [key]}
    for name in _SHARED:
        if name in schema:
            root[name] = _moved(schema[name], key)
    ledger.note("#", f"the whole schema was made the property {key}", why)
    return root, Wrapped(key, None)


def _unused(schema: Mapping[str, Any]) -> str:
    """A name that the schema has for nothing else, so that a call that is not wrapped is known as such."""
    text, key = json.dumps(schema), _KEY
    while json.dumps(key) in text:
        key += "_"
    return key


def _moved(value: Any, key: str) -> Any:
    """References into what lies under the new property now."""
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


def written(writer: Writer, root: Schema, ledger: Ledger) -> tuple[Schema, Back | None]:
    """The root as its dialect has it, definitions included."""
    wire, back = writer.node(root, "#")
    for _ in range(len(writer.definitions) + 1):
        inner = wire["anyOf"][0] if set(wire) - ABOUT_VALUE == {"anyOf"} and len(wire["anyOf"]) == 1 else wire
        if "$ref" not in inner:
            break
        target = writer.definitions[inner["$ref"].rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")]
        wire = {**target, **{key: value for key, value in wire.items() if key in ABOUT_VALUE}}
        ledger.note("#", "$ref was made what it refers to", f"{writer.dialect.title} does not take it at the root")
    undone = writer.undone
    if wire.get("type") != "object":
        key = _unused(root)
        ledger.note("#", f"the whole schema was made the property {key}", f"{writer.dialect.title} needs an object")
        wire = {"type": "object", "properties": {key: wire}, "required": [key], "additionalProperties": False}
        back, undone = Wrapped(key, back if undone else None), True
    definitions = _reached(wire, writer.definitions)
    if {name for holder in ("$defs", "definitions") for name in root.get(holder, ())} - set(definitions):
        ledger.note("#", "definitions that nothing refers to were left out", "they say nothing about the arguments")
    if definitions:
        wire = {**wire, "$defs": definitions}
    return wire, back if undone else None


def _reached(wire: Schema, definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    reached: dict[str, Schema] = {}
    waiting: list[Mapping[str, Any]] = [wire]
    while waiting:
        for node in parts(waiting.pop()):
            name = str(node.get("$ref", "")).rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
            if name in definitions and name not in reached:
                reached[name] = definitions[name]
                waiting.append(definitions[name])
    return {name: definitions[name] for name in definitions if name in reached}
