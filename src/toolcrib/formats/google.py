"""A tool in the format of Google's API: a function declaration.

In: an `OfferedTool`. Out: its `Definition`, with `parametersJsonSchema` instead of `parameters`, which accepts far
fewer keywords. Keywords that Google does not document for it move into descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any

from toolcrib.catalog.names import folded_name
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.schema_refs import pointer_below
from toolcrib.formats import dialect_writer
from toolcrib.formats.definition import AdaptationLog, Definition, Schema, deep_merged, options_of
from toolcrib.formats.dialect_writer import DialectWriter
from toolcrib.formats.dialects import GOOGLE
from toolcrib.formats.repair import repaired
from toolcrib.formats.restore import undo_of
from toolcrib.formats.writer import MAX_TEXT_LENGTH, TOO_DEEP, UnsupportedSchema

PROVIDER = "google"


def definition(offer: OfferedTool, taken: Container[str] = ()) -> Definition:
    """`taken` has the folded names of all tools in the request."""
    options = options_of(offer, PROVIDER)
    log = AdaptationLog(offer, PROVIDER)
    root = dialect_writer.object_root(repaired(offer.schema, log), log)
    try:
        schema, restore = dialect_writer.written_root(DialectWriter(root, GOOGLE, log), root, log)
        _cut_endless(schema, log)
    except (UnsupportedSchema, RecursionError) as reason:
        log = AdaptationLog(offer, PROVIDER)
        log.note(
            "#",
            "the whole schema was moved into the description",
            str(reason) if isinstance(reason, UnsupportedSchema) else TOO_DEEP,
        )
        text = json.dumps(offer.schema, ensure_ascii=False)
        text = text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
        schema, restore = {"type": "object", "description": f"As JSON Schema: {text}"}, None
    name = google_name(offer.name, taken)
    if name != offer.name:
        log.note("name", f"the tool was renamed to {name}", "Google requires a letter or _ at the start")
    wire = {"name": name, "description": offer.description, "parametersJsonSchema": schema}
    return Definition(deep_merged(wire, options), log.listed(), undo_of(restore))


def google_name(name: str, taken: Container[str]) -> str:
    """Prefixes the name with _ until Google accepts it and no other tool has it."""
    if name[:1].isalpha() or name.startswith("_"):
        return name
    name = f"_{name}"
    while folded_name(name) in taken:
        name = f"_{name}"
    return name


def _cut_endless(schema: Schema, log: AdaptationLog) -> None:
    """Google expands references to some depth and rejects infinite ones: every cycle needs an optional property."""
    definitions: dict[str, Schema] = schema.get("$defs", {})
    finished: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        for parent, other in list(_needed(definitions[name])):
            if other in (*above, name):
                kinds = definitions[other].get("type")
                parent.clear()
                if kinds:
                    parent["type"] = kinds
                parent["description"] = f"Same form as {other}."
                why = "Google does not accept a schema that must contain itself"
                log.note(
                    pointer_below("#/$defs", name), f"the reference to {other} was moved into the description", why
                )
            elif other not in finished:
                visit(other, (*above, name))
        finished.add(name)

    for name in definitions:
        visit(name, ())


def _needed(node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """References that every value of this schema contains, each with its parent schema."""
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        yield node, node["$ref"].rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
    for name in node.get("required", ()):
        yield from _needed(node.get("properties", {}).get(name))
    for key in ("items", "additionalProperties"):
        yield from _needed(node.get(key))
    for key in ("anyOf", "oneOf", "prefixItems"):
        for sub in node.get(key, ()):
            yield from _needed(sub)
