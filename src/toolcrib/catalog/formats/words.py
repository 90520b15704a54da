"""Keywords by what they speak of.

In: a schema. Out: which of its keywords are about which kind of value, and whether null fits.
`writer` and `shapes` ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.pointers import Document

ABOUT_ITSELF = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor"}
    | {"$defs", "definitions", "discriminator", "x-mcp-header"}
)
"""They say nothing about values, or (discriminator) nothing that the schema does not say besides."""

ABOUT_VALUE = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""They explain, and limit nothing."""

_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"})
OF_KIND: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"}),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(
        {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"}
        | {"maxContains", "unevaluatedItems"}
    ),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
        | {"maxProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"}
    ),
}
LIMITING = frozenset().union(*OF_KIND.values()) | {
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref"),
}
_TELLING = ("object", "array", "string", "number")
"""Kinds that their keywords give away."""


def implied_kind(schema: Mapping[str, Any]) -> str | None:
    """What a schema without a type most likely is about."""
    return next((kind for kind in _TELLING if not OF_KIND[kind].isdisjoint(set(schema) - {"format"})), None)


def kind_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
    return "object"


def is_kind(value: Any, kind: str) -> bool:
    own = kind_of(value)
    if kind == "number":
        return own in ("integer", "number")
    return own == kind or (kind == "integer" and own == "number" and value == int(value))


def takes_null(schema: Any, document: Document) -> bool:
    return _takes_null(schema, document, frozenset())


def _takes_null(schema: Any, document: Document, seen: frozenset[str]) -> bool:
    if not isinstance(schema, Mapping):
        return schema is not False
    kinds = schema.get("type", "null")
    if "null" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if None not in schema.get("enum", [None]) or schema.get("const") is not None:
        return False
    if "$ref" in schema:
        pointer = document.pointer(schema["$ref"])
        if pointer is None or pointer in seen or not _takes_null(document.at(pointer), document, seen | {pointer}):
            return False
    for key, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if key in schema and not enough(_takes_null(sub, document, seen) for sub in schema[key]):
            return False
    return True
