"""A tool as Anthropic's Messages interface wants it.

In: an `Offer`. Out: its `Definition`. The schema goes out whole below its root. With `strict`, objects are closed and
limits become words; a schema that refers to itself has no strict form.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from toolcrib.catalog.formats import roots
from toolcrib.catalog.formats.back import Back, Renamed, undoing
from toolcrib.catalog.formats.definition import Definition, Ledger, Schema
from toolcrib.catalog.formats.dialects import ANTHROPIC_STRICT
from toolcrib.catalog.formats.options import asked_strict, merged, options_of
from toolcrib.catalog.formats.repair import repaired
from toolcrib.catalog.formats.shapes import DialectWriter
from toolcrib.catalog.formats.writer import TOO_DEEP, Unwritable, parts
from toolcrib.catalog.offer import Offer
from toolcrib.catalog.pointers import step

PROVIDER = "anthropic"
_TITLE = "Anthropic"
_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "$ref"})
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.-]")
_LONGEST_KEY = 64
_MOST_OPTIONAL, _MOST_UNIONS = 24, 16


def definition(offer: Offer) -> Definition:
    options = options_of(offer, PROVIDER)
    strict = asked_strict(offer, PROVIDER, options)
    ledger = Ledger(offer, PROVIDER)
    back: Back | None
    if strict:
        try:
            schema, back = _strict(offer, ledger)
        except (Unwritable, RecursionError) as reason:
            ledger = Ledger(offer, PROVIDER)
            ledger.note("#", "strict was left out", str(reason) if isinstance(reason, Unwritable) else TOO_DEEP)
            strict = False
    if not strict:
        schema, back = roots.plain(repaired(offer.schema, ledger), ledger, refused=_REFUSED, title=_TITLE)
    schema, back = _with_legal_keys(schema, back, ledger)
    wire: dict[str, Any] = {"name": offer.name}
    if offer.description:
        wire["description"] = offer.description
    wire["input_schema"] = schema
    if strict:
        wire["strict"] = True
    return Definition(merged(wire, options), ledger.listed(), undoing(back))


def _strict(offer: Offer, ledger: Ledger) -> tuple[Schema, Back | None]:
    root = roots.of_an_object(repaired(offer.schema, ledger), ledger)
    writer = DialectWriter(root, ANTHROPIC_STRICT, ledger)
    wire, back = roots.written(writer, root, ledger)
    if writer.recursive:
        raise Unwritable(f"{ANTHROPIC_STRICT.title} does not take a schema that refers to itself")
    if exceeded := _exceeded(wire):
        raise Unwritable(f"{ANTHROPIC_STRICT.title} takes at most {exceeded}")
    return wire, back


def _exceeded(wire: Schema) -> str | None:
    """The limits hold for all tools of a request together; one tool alone must not break them."""
    optional = unions = 0
    for node in parts({key: value for key, value in wire.items() if key != "$defs"}):
        for name, sub in node.get("properties", {}).items():
            optional += name not in node["required"]
            unions += "anyOf" in sub
    if optional > _MOST_OPTIONAL:
        return f"{_MOST_OPTIONAL} properties that may be left out"
    return f"{_MOST_UNIONS} properties of several forms" if unions > _MOST_UNIONS else None


def _with_legal_keys(schema: Schema, back: Back | None, ledger: Ledger) -> tuple[Schema, Back | None]:
    """It refuses the whole request for an argument called `filter[id]`."""
    properties: dict[str, Any] = schema.get("properties", {})
    renamed: dict[str, str] = {}
    for name in properties:
        if len(name) > _LONGEST_KEY or _ILLEGAL.search(name) or not name:
            legal = _ILLEGAL.sub("_", name)[:_LONGEST_KEY] or "_"
            if legal in properties or legal in renamed.values() or len(name) > _LONGEST_KEY:
                legal = f"{legal[: _LONGEST_KEY - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            renamed[name] = legal
            ledger.note(
                step("#", "properties", name), f"the argument was renamed to {legal}", f"{_TITLE} refuses its name"
            )
    if not renamed:
        return schema, back
    schema = {**schema, "properties": {renamed.get(name, name): sub for name, sub in properties.items()}}
    if "required" in schema:
        schema["required"] = [renamed.get(name, name) for name in schema["required"]]
    return schema, Renamed({legal: name for name, legal in renamed.items()}, back)
