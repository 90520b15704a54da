"""A tool as Google's interface wants it: one function declaration.

In: an `OfferedTool`. Out: its `Definition`, with `parametersJsonSchema` and not `parameters`, which takes much less.
What Google does not document for it becomes words.
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
from toolcrib.formats.writer import LONGEST_WORDS, TOO_DEEP, UnsupportedSchema

PROVIDER = "google"


def definition(offer: OfferedTool, taken: Container[str] = ()) -> Definition:
    """`taken` are the folded names of all tools of the request."""
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
        words = json.dumps(offer.schema, ensure_ascii=False)
        words = words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 1] + "…"
        schema, restore = {"type": "object", "description": f"As JSON Schema: {words}"}, None
    name = google_name(offer.name, taken)
    if name != offer.name:
        log.note("name", f"it is called {name}", "Google's names begin with a letter or _")
    wire = {"name": name, "description": offer.description, "parametersJsonSchema": schema}
    return Definition(deep_merged(wire, options), log.listed(), undo_of(restore))


def google_name(name: str, taken: Container[str]) -> str:
    """The name with as many _ before it as make it one that Google takes and no other tool has."""
    if name[:1].isalpha() or name.startswith("_"):
        return name
    name = f"_{name}"
    while folded_name(name) in taken:
        name = f"_{name}"
    return name


def _cut_endless(schema: Schema, log: AdaptationLog) -> None:
    """Google writes references out to some depth, and refuses those that never end: each way round must lead through
    a property that may be left out."""
    definitions: dict[str, Schema] = schema.get("$defs", {})
    finished: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        for place, other in list(_needed(definitions[name])):
            if other in (*above, name):
                kinds = definitions[other].get("type")
                place.clear()
                if kinds:
                    place["type"] = kinds
                place["description"] = f"Of the same form as {other}."
                why = "Google does not take a schema that must hold itself"
                log.note(pointer_below("#/$defs", name), f"the reference to {other} was made words", why)
            elif other not in finished:
                visit(other, (*above, name))
        finished.add(name)

    for name in definitions:
        visit(name, ())


def _needed(node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """References that a value of this schema cannot do without, each with the schema that it stands in."""
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
