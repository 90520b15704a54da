"""A tool in the format of Anthropic's Messages API.

In: an `OfferedTool`. Out: its `Definition`. Only the root of the schema is changed. With `strict`, objects are closed
and limits move into descriptions; a recursive schema has no strict form.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.schema_refs import pointer_below
from toolcrib.formats import dialect_writer
from toolcrib.formats.definition import AdaptationLog, Definition, Schema, deep_merged, options_of, pop_strict
from toolcrib.formats.dialect_writer import DialectWriter
from toolcrib.formats.dialects import ANTHROPIC_STRICT
from toolcrib.formats.repair import repaired
from toolcrib.formats.restore import Restore, RestoreRenamed, undo_of
from toolcrib.formats.writer import TOO_DEEP, UnsupportedSchema, all_subschemas

PROVIDER = "anthropic"
_TITLE = "Anthropic"
_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "$ref"})
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.-]")
_MAX_KEY_LENGTH = 64
_MAX_OPTIONAL, _MAX_UNIONS = 24, 16


def definition(offer: OfferedTool) -> Definition:
    options = options_of(offer, PROVIDER)
    strict = pop_strict(offer, PROVIDER, options)
    log = AdaptationLog(offer, PROVIDER)
    restore: Restore | None
    if strict:
        try:
            schema, restore = _strict(offer, log)
        except (UnsupportedSchema, RecursionError) as reason:
            log = AdaptationLog(offer, PROVIDER)
            log.note("#", "strict was removed", str(reason) if isinstance(reason, UnsupportedSchema) else TOO_DEEP)
            strict = False
    if not strict:
        schema, restore = dialect_writer.plain_root(repaired(offer.schema, log), log, refused=_REFUSED, title=_TITLE)
    schema, restore = _with_legal_keys(schema, restore, log)
    wire: dict[str, Any] = {"name": offer.name}
    if offer.description:
        wire["description"] = offer.description
    wire["input_schema"] = schema
    if strict:
        wire["strict"] = True
    return Definition(deep_merged(wire, options), log.listed(), undo_of(restore))


def _strict(offer: OfferedTool, log: AdaptationLog) -> tuple[Schema, Restore | None]:
    root = dialect_writer.object_root(repaired(offer.schema, log), log)
    writer = DialectWriter(root, ANTHROPIC_STRICT, log)
    wire, restore = dialect_writer.written_root(writer, root, log)
    if writer.recursive:
        raise UnsupportedSchema(f"{ANTHROPIC_STRICT.title} does not accept a schema that refers to itself")
    if exceeded := _exceeded(wire):
        raise UnsupportedSchema(f"{ANTHROPIC_STRICT.title} accepts at most {exceeded}")
    return wire, restore


def _exceeded(wire: Schema) -> str | None:
    """The limits apply to all tools of a request together, so a single tool must not exceed them."""
    optional = unions = 0
    for node in all_subschemas({key: value for key, value in wire.items() if key != "$defs"}):
        for name, sub in node.get("properties", {}).items():
            optional += name not in node["required"]
            unions += "anyOf" in sub
    if optional > _MAX_OPTIONAL:
        return f"{_MAX_OPTIONAL} optional properties"
    return f"{_MAX_UNIONS} properties with anyOf" if unions > _MAX_UNIONS else None


def _with_legal_keys(schema: Schema, restore: Restore | None, log: AdaptationLog) -> tuple[Schema, Restore | None]:
    """Anthropic rejects the whole request for an argument named `filter[id]`."""
    properties: dict[str, Any] = schema.get("properties", {})
    renamed: dict[str, str] = {}
    for name in properties:
        if len(name) > _MAX_KEY_LENGTH or _ILLEGAL.search(name) or not name:
            legal = _ILLEGAL.sub("_", name)[:_MAX_KEY_LENGTH] or "_"
            if legal in properties or legal in renamed.values() or len(name) > _MAX_KEY_LENGTH:
                legal = f"{legal[: _MAX_KEY_LENGTH - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            renamed[name] = legal
            log.note(
                pointer_below("#", "properties", name),
                f"the argument was renamed to {legal}",
                f"{_TITLE} rejects its name",
            )
    if not renamed:
        return schema, restore
    schema = {**schema, "properties": {renamed.get(name, name): sub for name, sub in properties.items()}}
    if "required" in schema:
        schema["required"] = [renamed.get(name, name) for name in schema["required"]]
    return schema, RestoreRenamed({legal: name for name, legal in renamed.items()}, restore)
