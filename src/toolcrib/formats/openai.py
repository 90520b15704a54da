"""A tool in the format of OpenAI's APIs and compatible ones.

In: an `OfferedTool`. Out: its `Definition` for Chat Completions or for Responses. Without `strict` the schema is sent
whole, and `strict` is explicitly false, because Responses makes tools strict by default. With `strict`, an optional
property becomes required, and null means that it is absent; `undo` removes such a null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.schema_refs import SCHEMA_LISTS, SCHEMA_MAPS, pointer_below
from toolcrib.formats import dialect_writer
from toolcrib.formats.definition import AdaptationLog, Api, Definition, Schema, deep_merged, options_of, pop_strict
from toolcrib.formats.dialect_writer import DialectWriter
from toolcrib.formats.dialects import OPENAI_STRICT
from toolcrib.formats.repair import repaired
from toolcrib.formats.restore import Restore, undo_of
from toolcrib.formats.writer import TOO_DEEP, UnsupportedSchema, all_subschemas

PROVIDER = "openai"
_TITLE = "OpenAI"
_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not", "$ref"})
_MAX_PROPERTIES, _MAX_DEPTH, _MAX_CHOICES, _MAX_NAME_CHARACTERS = 5_000, 10, 1_000, 120_000
"""Limits of a strict schema: properties, nested objects, enum values, characters in names and values."""


def definition(offer: OfferedTool, api: Api = "chat") -> Definition:
    options = options_of(offer, PROVIDER)
    inner = dict(options.pop("function", {}))
    strict = pop_strict(offer, PROVIDER, inner) | pop_strict(offer, PROVIDER, options)
    log = AdaptationLog(offer, PROVIDER)
    restore: Restore | None
    if strict:
        try:
            parameters, restore = _strict(offer, log)
        except (UnsupportedSchema, RecursionError) as reason:
            log = AdaptationLog(offer, PROVIDER)
            log.note("#", "strict was set to false", str(reason) if isinstance(reason, UnsupportedSchema) else TOO_DEEP)
            strict = False
    if not strict:
        parameters, restore = _loose(offer, log)
    function: dict[str, Any] = {"name": offer.name}
    if offer.description:
        function["description"] = offer.description
    function |= {"parameters": parameters, "strict": strict}
    if api == "chat":
        wire = deep_merged({"type": "function", "function": deep_merged(function, inner)}, options)
    else:
        wire = deep_merged({"type": "function", **deep_merged(function, inner)}, options)
    return Definition(wire, log.listed(), undo_of(restore))


def _loose(offer: OfferedTool, log: AdaptationLog) -> tuple[Schema, Restore | None]:
    root, restore = dialect_writer.plain_root(repaired(offer.schema, log), log, refused=_REFUSED, title=_TITLE)
    if "properties" not in root:
        log.note("#", "properties {} was added", f"{_TITLE} rejects an object without it")
        root = {**root, "properties": {}}
    return _complete(root, "#", log), restore


def _complete(node: Any, path: str, log: AdaptationLog) -> Any:
    """Adds `items` to every array, which OpenAI requires, and writes true and false as objects."""
    if isinstance(node, bool):
        log.note(path, f"{str(node).lower()} was written as an object", f"{_TITLE} requires schemas to be objects")
        return {} if node else {"not": {}}
    changed: Schema = {}
    kinds = node.get("type", ())
    if ("array" in kinds if isinstance(kinds, list) else kinds == "array") and not {"items", "prefixItems"} & set(node):
        log.note(path, "items {} was added", f"{_TITLE} rejects an array without it")
        changed["items"] = {}
    for key, value in node.items():
        fixed = value
        if key in SCHEMA_MAPS:
            fixed = {name: _complete(sub, pointer_below(path, key, name), log) for name, sub in value.items()}
        elif key in SCHEMA_LISTS:
            fixed = [_complete(sub, pointer_below(path, key, index), log) for index, sub in enumerate(value)]
        elif key in ("items", "not", "contains") or (key == "additionalProperties" and isinstance(value, Mapping)):
            fixed = _complete(value, pointer_below(path, key), log)
        if fixed != value or type(fixed) is not type(value):
            changed[key] = fixed
    return {**node, **changed} if changed else node


def _strict(offer: OfferedTool, log: AdaptationLog) -> tuple[Schema, Restore | None]:
    root = dialect_writer.object_root(repaired(offer.schema, log), log)
    wire, restore = dialect_writer.written_root(DialectWriter(root, OPENAI_STRICT, log), root, log)
    if exceeded := _exceeded(wire):
        raise UnsupportedSchema(f"{OPENAI_STRICT.title} accepts at most {exceeded}")
    return wire, restore


def _exceeded(wire: Schema) -> str | None:
    nodes = all_subschemas(wire)
    names = [name for node in nodes for name in node.get("properties", ())] + list(wire.get("$defs", ()))
    values = [
        value for node in nodes for value in [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
    ]
    if len(names) > _MAX_PROPERTIES:
        return f"{_MAX_PROPERTIES} properties"
    if sum(len(node.get("enum", ())) for node in nodes) > _MAX_CHOICES:
        return f"{_MAX_CHOICES} values in enums"
    if sum(map(len, names)) + sum(len(value) for value in values if isinstance(value, str)) > _MAX_NAME_CHARACTERS:
        return f"{_MAX_NAME_CHARACTERS} characters in names and values"
    root = {key: value for key, value in wire.items() if key != "$defs"}
    if max(map(_depth, [root, *wire.get("$defs", {}).values()])) > _MAX_DEPTH:
        return f"{_MAX_DEPTH} nested objects"
    return None


def _depth(node: Any) -> int:
    """How deep objects nest. References are not followed; definitions count separately."""
    below = [_depth(sub) for key in ("properties",) for sub in node.get(key, {}).values()]
    below += [_depth(sub) for sub in node.get("anyOf", ())]
    below += [_depth(node["items"])] if "items" in node else []
    return max(below, default=0) + ("properties" in node)
