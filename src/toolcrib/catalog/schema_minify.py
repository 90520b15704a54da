"""Shortens a large schema for a model that has to correct its arguments.

In: a server's schema, which may be hostile, and the text of the errors. Out: JSON that is short enough for a model's
context. The validator always uses the full schema. Used by `gateway/messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.catalog.schema_refs import SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS

MAX_WHOLE = 4 * 1024
"""Bytes of JSON up to which a schema is shown as it is."""
MAX_MINIFIED = 20 * 1024
"""Above that, only the parameters with errors are shown in full."""
_MAX_READ = 256 * 1024
"""A larger schema is not shown: shortening it would block the event loop for more than a few milliseconds."""

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "example", "examples", "$comment"}
    | {"deprecated", "readOnly", "writeOnly", "markdownDescription", "enumDescriptions"}
)
_REFERENCES = ("#/$defs/", "#/definitions/")


def minified(schema: Any) -> Any:
    """The schema without annotations. It accepts exactly the same arguments.

    Only keywords are removed: a property may be named `title`, and an `enum` may contain anything."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, dict):
            made[key] = {name: minified(sub) for name, sub in value.items()}
        elif key in SCHEMA_LISTS | SINGLE_SCHEMAS and isinstance(value, list):
            made[key] = [minified(sub) for sub in value]
        elif key in SINGLE_SCHEMAS:
            made[key] = minified(value)
        elif key not in _ANNOTATIONS:
            made[key] = value
    return made


def schema_for_model(schema: Mapping[str, Any], errors: str) -> bytes:
    """The schema as JSON, minified if it is large; of a very large one, the parameters that occur in `errors`, and the
    types of the others."""
    whole = msgspec.json.encode(schema)
    if len(whole) <= MAX_WHOLE:
        return whole
    if len(whole) <= _MAX_READ:
        short = minified(schema)
        for smaller in (short, _around(short, errors), _around(short, "")):
            text = msgspec.json.encode(smaller)
            if len(text) <= MAX_MINIFIED:
                return text
    return msgspec.json.encode({"$comment": f"The schema is too large to show: {len(whole):,} bytes."})


def _around(schema: dict[str, Any], errors: str) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    kept = {name: sub for name, sub in properties.items() if f"arguments.{name}" in errors or f'"{name}"' in errors}
    others = {name: _type_of(sub) for name, sub in properties.items() if name not in kept}
    rest = {key: value for key, value in schema.items() if key not in SCHEMA_MAPS}
    note = "Shortened: most parameters have only their types."
    return {"$comment": note, **rest, "properties": kept | others, **_definitions(schema, [kept, rest])}


def _type_of(schema: Any) -> Any:
    return {"type": schema["type"]} if isinstance(schema, dict) and "type" in schema else {}


def _definitions(schema: Mapping[str, Any], parts: list[Any]) -> dict[str, dict[str, Any]]:
    """The definitions that these parts refer to, directly or through others."""
    found: dict[str, dict[str, Any]] = {}
    waiting = list(parts)
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith(_REFERENCES):
                _, group, name, *_ = reference.split("/")
                known = schema.get(group)
                if isinstance(known, dict) and name in known and name not in found.setdefault(group, {}):
                    found[group][name] = known[name]
                    waiting.append(known[name])
    return found
