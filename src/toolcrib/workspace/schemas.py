"""JSON schemas of the tools' arguments and results, as lean as models and their providers like them.

In: msgspec structs. Out: schemas without references, titles, unions with null or defaults that say nothing. Every word
of them is paid for in every conversation. `tools` makes the definitions of them.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

_LEFT_OUT = frozenset({"title", "description", "default", "additionalProperties"})
"""What is written anew, or not at all."""


class Of(enum.Enum):
    ARGUMENTS = enum.auto()
    """Nothing but what is named; a thing is left out instead of being null."""
    RESULT = enum.auto()
    """Null may stand in it; what is not named is not forbidden. The names have to say enough."""


def schema_of(struct: type[msgspec.Struct], of: Of) -> dict[str, Any]:
    (schema,), parts = msgspec.json.schema_components((struct,), ref_template="{name}")
    return _lean(schema, parts, of)


def _lean(schema: dict[str, Any], parts: dict[str, Any], of: Of) -> dict[str, Any]:
    if "$ref" in schema:
        found = _lean(parts[schema["$ref"]], parts, of)
    elif "anyOf" in schema:
        found = _union(schema["anyOf"], parts, of)
    elif "enum" in schema:
        # Some providers want the type said beside it.
        found = {"type": "string", "enum": schema["enum"]}
    elif "properties" in schema:
        return _object(schema, parts, of)
    else:
        found = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                found[key] = _lean(schema[key], parts, of)
    return {**found, **_about(schema)} if of is Of.ARGUMENTS else found


def _object(schema: dict[str, Any], parts: dict[str, Any], of: Of) -> dict[str, Any]:
    """Without the struct's description, which is the docstring of a class: for us, not for a model."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _lean(part, parts, of) for name, part in schema["properties"].items()},
    }
    if schema.get("required"):
        found["required"] = schema["required"]
    if of is Of.ARGUMENTS:
        found["additionalProperties"] = False
    return found


def _about(schema: dict[str, Any]) -> dict[str, Any]:
    """What a place says of itself, beside what may stand there."""
    about = {"description": schema["description"]} if "description" in schema else {}
    default = schema.get("default")
    # Nothing, no, and empty are what everybody assumes of a thing that was left out.
    if default is not None and default is not False and default not in ("", (), [], {}):
        about["default"] = default
    return about


def _union(choices: list[dict[str, Any]], parts: dict[str, Any], of: Of) -> dict[str, Any]:
    kinds = [_lean(choice, parts, of) for choice in choices if choice.get("type") != "null"]
    may_be_null = len(kinds) < len(choices) and of is Of.RESULT
    if len(kinds) > 1:
        return {"anyOf": [*kinds, {"type": "null"}] if may_be_null else kinds}
    (kind,) = kinds
    if not may_be_null:
        return kind
    return {**kind, "type": [kind["type"], "null"], **({"enum": [*kind["enum"], None]} if "enum" in kind else {})}
