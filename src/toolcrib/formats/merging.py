"""Merges two schemas that both apply into one.

In: two schemas. Out: one that accepts exactly the values that both accept, or None if that needs `allOf`.
`dialect_writer` and `writer` use it for dialects without `allOf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolcrib.formats.definition import Schema

MAX_BRANCHES = 32
"""In a union of two unions."""

_FIRST = frozenset(
    {"title", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"}
)
"""Annotations; the first one is kept."""


class _Contradiction(Exception):
    """No value fits both schemas, or the merged schema cannot be written."""


def merged_schemas(first: Mapping[str, Any], second: Mapping[str, Any]) -> Schema | None:
    if any("prefixItems" in one and "items" in other for one, other in ((first, second), (second, first))):
        return None
    result = dict(first)
    try:
        _properties(result, second)
        for key, value in second.items():
            if key not in result or result[key] == value:
                result[key] = value
            elif key in _JOINS:
                result[key] = _JOINS[key](result[key], value)
            elif key not in _FIRST:
                return None
    except _Contradiction:
        return None
    return result


def _properties(result: Schema, second: Mapping[str, Any]) -> None:
    """A property that only one schema names must also satisfy the other's `additionalProperties`.

    Except if that is false: servers that close both schemas mean the union of their properties."""
    mine, theirs = result.get("properties", {}), second.get("properties", {})
    if not mine and not theirs:
        return
    joined: Schema = {}
    for name in dict.fromkeys([*mine, *theirs]):
        if name in mine and name in theirs:
            joined[name] = _sub(mine[name], theirs[name])
        else:
            own, rule = (mine, second) if name in mine else (theirs, result)
            further = rule.get("additionalProperties", True)
            joined[name] = _sub(own[name], further) if isinstance(further, Mapping) else own[name]
    result["properties"] = joined


def _sub(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    if one == other or other is True or other == {}:
        return one
    return other if one is True or one == {} else {"allOf": [one, other]}


def _types(one: Any, other: Any) -> Any:
    mine, theirs = (kind if isinstance(kind, list) else [kind] for kind in (one, other))
    shared = [kind for kind in mine if kind in theirs or (kind == "integer" and "number" in theirs)]
    if "number" in mine and "integer" in theirs and "number" not in theirs and "integer" not in shared:
        shared.append("integer")
    if not shared:
        raise _Contradiction
    return shared[0] if len(shared) == 1 else shared


def _values(one: list[Any], other: list[Any]) -> list[Any]:
    shared = [value for value in one if any(value == also and type(value) is type(also) for also in other)]
    if not shared:
        raise _Contradiction
    return shared


def _unions(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > MAX_BRANCHES:
        raise _Contradiction
    return [_sub(mine, theirs) for mine in one for theirs in other]


_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "properties": lambda one, other: one,
    "patternProperties": lambda one, other: {**other, **{k: _sub(v, other.get(k, True)) for k, v in one.items()}},
    "additionalProperties": _sub,
    "items": _sub,
    "allOf": lambda one, other: [*one, *other],
    "anyOf": _unions,
    "description": lambda one, other: f"{one}\n{other}",
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "uniqueItems": lambda one, other: one or other,
    "$defs": lambda one, other: {**other, **one},
    "definitions": lambda one, other: {**other, **one},
}
