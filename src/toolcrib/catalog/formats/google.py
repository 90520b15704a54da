"""A tool as Google's interface wants it: one function declaration.

In: an `Offer`. Out: its `Definition`, with `parametersJsonSchema` and not `parameters`, which takes much less. What
Google does not document for it becomes words.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any

from toolcrib.catalog.formats import roots
from toolcrib.catalog.formats.back import undoing
from toolcrib.catalog.formats.definition import Definition, Ledger, Schema
from toolcrib.catalog.formats.dialects import GOOGLE
from toolcrib.catalog.formats.options import merged, options_of
from toolcrib.catalog.formats.repair import repaired
from toolcrib.catalog.formats.shapes import DialectWriter
from toolcrib.catalog.formats.writer import LONGEST_WORDS, TOO_DEEP, Unwritable
from toolcrib.catalog.names import fold
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.pointers import step

PROVIDER = "google"


def definition(offer: Offer, taken: Container[str] = ()) -> Definition:
    """`taken` are the folded names of all tools of the request."""
    options = options_of(offer, PROVIDER)
    ledger = Ledger(offer, PROVIDER)
    root = roots.of_an_object(repaired(offer.schema, ledger), ledger)
    try:
        schema, back = roots.written(DialectWriter(root, GOOGLE, ledger), root, ledger)
        _cut_endless(schema, ledger)
    except (Unwritable, RecursionError) as reason:
        ledger = Ledger(offer, PROVIDER)
        ledger.note(
            "#",
            "the whole schema was moved into the description",
            str(reason) if isinstance(reason, Unwritable) else TOO_DEEP,
        )
        words = json.dumps(offer.schema, ensure_ascii=False)
        words = words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 1] + "…"
        schema, back = {"type": "object", "description": f"As JSON Schema: {words}"}, None
    name = named(offer.name, taken)
    if name != offer.name:
        ledger.note("name", f"it is called {name}", "Google's names begin with a letter or _")
    wire = {"name": name, "description": offer.description, "parametersJsonSchema": schema}
    return Definition(merged(wire, options), ledger.listed(), undoing(back))


def named(name: str, taken: Container[str]) -> str:
    """The name with as many _ before it as make it one that Google takes and no other tool has."""
    if name[:1].isalpha() or name.startswith("_"):
        return name
    name = f"_{name}"
    while fold(name) in taken:
        name = f"_{name}"
    return name


def _cut_endless(schema: Schema, ledger: Ledger) -> None:
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
                ledger.note(step("#/$defs", name), f"the reference to {other} was made words", why)
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
