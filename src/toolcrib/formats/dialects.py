"""The keywords of JSON Schema by purpose, and those that each provider accepts, as data.

In: nothing. Out: one `Dialect` for each mode that accepts only some keywords. The non-strict modes of OpenAI and
Anthropic have none, because they accept everything below the root. Based on the providers' documentation and on schemas
that their APIs reject.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from toolcrib.catalog.schema_refs import SchemaDocument

ABOUT_ITSELF = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor"}
    | {"$defs", "definitions", "discriminator", "x-mcp-header"}
)
"""Not about values, or (discriminator) redundant."""

ABOUT_VALUE = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Annotations, which don't limit values."""

_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"})
KEYWORDS_OF_TYPE: Mapping[str, frozenset[str]] = {
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
LIMITING = frozenset().union(*KEYWORDS_OF_TYPE.values()) | {
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref"),
}
_IMPLIED = ("object", "array", "string", "number")
"""Types that can be inferred from their keywords."""


def implied_type(schema: Mapping[str, Any]) -> str | None:
    """The likely type of a schema without one."""
    return next((kind for kind in _IMPLIED if not KEYWORDS_OF_TYPE[kind].isdisjoint(set(schema) - {"format"})), None)


def type_of(value: Any) -> str:
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


def is_type(value: Any, kind: str) -> bool:
    own = type_of(value)
    if kind == "number":
        return own in ("integer", "number")
    return own == kind or (kind == "integer" and own == "number" and value == int(value))


def accepts_null(schema: Any, document: SchemaDocument, seen: frozenset[str] = frozenset()) -> bool:
    """`seen` has the references that led here."""
    if not isinstance(schema, Mapping):
        return schema is not False
    kinds = schema.get("type", "null")
    if "null" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if None not in schema.get("enum", [None]) or schema.get("const") is not None:
        return False
    if "$ref" in schema:
        pointer = document.pointer(schema["$ref"])
        if pointer is None or pointer in seen or not accepts_null(document.at(pointer), document, seen | {pointer}):
            return False
    for key, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if key in schema and not enough(accepts_null(sub, document, seen) for sub in schema[key]):
            return False
    return True


class OptionalProperties(Enum):
    """How optional properties are written."""

    KEPT = "kept"
    NULL = "null"
    """Required; null means that the property is absent."""


class OpenObjects(Enum):
    """How objects with unknown property names, and schemas for any value, are written."""

    KEPT = "kept"
    SPELLED = "spelled out"
    """As a list of entries, or as JSON text."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    title: str
    """Used in reasons: "<title> does not accept …"."""
    keywords: frozenset[str]
    """Accepted keywords besides the structural ones."""
    formats: frozenset[str]
    unions: frozenset[str]
    optional: OptionalProperties
    openness: OpenObjects
    const: bool
    type_lists: bool
    tuples: bool
    lookaround: bool
    """Whether patterns may use lookahead, lookbehind and backreferences."""


_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})

OPENAI_STRICT = Dialect(
    title="OpenAI's strict mode",
    keywords=_BOUNDS | {"title", "description", "pattern", "minLength", "maxLength", "minItems", "maxItems"},
    formats=_FORMATS,
    unions=frozenset({"anyOf"}),
    optional=OptionalProperties.NULL,
    openness=OpenObjects.SPELLED,
    const=True,
    type_lists=True,
    tuples=False,
    lookaround=False,
)
ANTHROPIC_STRICT = Dialect(
    title="Anthropic's strict mode",
    keywords=frozenset({"title", "description"}),
    formats=_FORMATS | {"uri"},
    unions=frozenset({"anyOf"}),
    optional=OptionalProperties.KEPT,
    openness=OpenObjects.SPELLED,
    const=True,
    type_lists=False,
    tuples=False,
    lookaround=False,
)
GOOGLE = Dialect(
    title="Google's function declaration",
    keywords=frozenset(
        {"title", "description", "default", "minimum", "maximum", "minItems", "maxItems"}
        | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties"}
    ),
    formats=frozenset({"date-time", "date", "time", "duration", "int32", "int64", "float", "double"}),
    unions=frozenset({"anyOf", "oneOf"}),
    optional=OptionalProperties.KEPT,
    openness=OpenObjects.KEPT,
    const=False,
    type_lists=True,
    tuples=True,
    lookaround=True,
)
