"""Objects, arrays and scalars in a dialect.

In: one schema without references and unions. Out: it as the dialect has it. The lower half of `writer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.catalog.formats.back import NAME, TEXT, VALUE, Back, Entries, Items, Members, from_text
from toolcrib.catalog.formats.definition import Schema
from toolcrib.catalog.formats.dialects import Openness, Optional
from toolcrib.catalog.formats.merging import both
from toolcrib.catalog.formats.words import takes_null
from toolcrib.catalog.formats.writer import Writer, Written
from toolcrib.catalog.pointers import Document, step

FURTHER = "further_properties"


class DialectWriter(Writer):
    def shape(self, flat: Schema, kinds: list[str], path: str) -> Written:
        match kinds:
            case []:
                return self._anything(flat, path)
            case ["object"]:
                return self._object(flat, path)
            case ["array"]:
                return self._array(flat, path)
        return self.finished({"type": kinds[0] if len(kinds) == 1 else kinds}, flat, kinds, set(), path), None

    def _anything(self, flat: Schema, path: str, what: str = "value") -> Written:
        if self.dialect.openness is Openness.KEPT:
            return self.finished({}, flat, [], set(), path), None
        self.note(path, f"any {what} was made JSON text", f"{self.dialect.title} needs every type and property named")
        text = {"type": "string", "description": f"The {what}, written as JSON."}
        self.undone = True
        return self.finished(_closed({TEXT: text}), flat, [], set(), path), from_text

    # Arrays

    def _array(self, flat: Schema, path: str) -> Written:
        wire: Schema = {"type": "array"}
        items: Any = flat.get("items")
        first: list[Any] = flat.get("prefixItems", [])
        used = {"items", "prefixItems"}
        if items is False:
            wire["maxItems"] = min(len(first), flat.get("maxItems", len(first)))
            self.note(path, f"items false was made maxItems {wire['maxItems']}", f"{self.dialect.title} has no false")
        if first and self.dialect.tuples:
            written = [self.node(sub, step(path, "prefixItems", index)) for index, sub in enumerate(first)]
            wire["prefixItems"] = [sub for sub, _ in written]
            if isinstance(items, Mapping):
                written.append(self.node(items, step(path, "items")))
                wire["items"] = written[-1][0]
            positions = self.back_of(written)
            return self.finished(wire, flat, ["array"], used, path), Items(positions) if positions else None
        back: Back | None = None
        if first:
            forms = [*first, *([] if items is False else [{} if items in (None, True) else items])]
            distinct = [form for index, form in enumerate(forms) if form not in forms[:index]]
            self.note(path, "prefixItems was made one schema for all items", f"{self.dialect.title} knows no tuples")
            wire["items"], back = self.node({"anyOf": distinct}, step(path, "prefixItems"))
            flat = self.put_into_words(flat, {"prefixItems": first}, path)
        elif items is not None or self.dialect.openness is Openness.SPELLED:
            wire["items"], back = self.node(True if items in (None, False) else items, step(path, "items"))
        return self.finished(wire, flat, ["array"], used, path), Items(back) if back else None

    # Objects

    def _object(self, flat: Schema, path: str) -> Written:
        properties: dict[str, Any] = dict(flat.get("properties", {}))
        required = list(flat.get("required", ()))
        for name in required:
            if name not in properties:
                properties[name] = {}
                self.note(
                    path, f"the property {name} was added", "it is required, but the schema does not say what it is"
                )
        for name in [name for name, sub in properties.items() if sub is False]:
            del properties[name]
            self.note(step(path, "properties", name), "the property was left out", "it may not be given at all")
        if flat.get("propertyNames") in (True, {}, {"type": "string"}):
            flat = {key: value for key, value in flat.items() if key != "propertyNames"}
            self.note(path, "propertyNames was left out", "it says nothing: names are always texts")
        spelled = {**flat, "properties": properties, "required": [name for name in required if name in properties]}
        if self.dialect.openness is Openness.SPELLED:
            if "required" not in flat and (not properties or self.dialect.optional is Optional.KEPT):
                self.note(path, "required [] was added", f"{self.dialect.title} needs it")
            return self._closed_object(spelled, path)
        return self._open_object({key: spelled[key] for key in spelled if key in flat or spelled[key]}, path)

    def _open_object(self, flat: Schema, path: str) -> Written:
        wire: Schema = {"type": "object"}
        wires, members = self._members(flat, path)
        others = None
        if "properties" in flat:
            wire["properties"] = wires
        if "required" in flat:
            wire["required"] = flat["required"]
        further = flat.get("additionalProperties")
        if patterns := flat.get("patternProperties"):
            forms = [*patterns.values(), *([further] if isinstance(further, Mapping) else [])]
            further = {"anyOf": forms} if further is False or isinstance(further, Mapping) else further
            flat = {**self.put_into_words(flat, {"patternProperties": patterns}, path)}
        if isinstance(further, Mapping):
            wire["additionalProperties"], others = self.node(further, step(path, "additionalProperties"))
        elif further is not None:
            wire["additionalProperties"] = further
        used = {"properties", "required", "additionalProperties", "patternProperties"}
        back = Members(**(members or {"properties": {}}), others=others) if members or others else None
        return self.finished(wire, flat, ["object"], used, path), back

    def _closed_object(self, flat: Schema, path: str) -> Written:
        used = {"properties", "required", "additionalProperties"}
        further = self._further(flat, path)
        if further is not None:
            used |= {"propertyNames", "patternProperties"}
        if not flat["properties"] and further is not None:
            if further == {} and "propertyNames" not in flat:
                rest = {key: value for key, value in flat.items() if key not in {*used, "type"}}
                return self._anything(rest, path, "object")
            wire, back = self._entries(flat, further, path)
            return self.finished(wire, flat, ["object"], used, path), back
        wires, members = self._members(flat, path)
        key, entries = "", None
        if further is not None:
            key = FURTHER
            while key in wires:
                key += "_"
            wires[key], entries = self._entries(flat, further, path)
            wires[key]["description"] = "Properties besides those named here."
        elif flat.get("additionalProperties") is not False:
            self.note(path, "additionalProperties false was added", f"{self.dialect.title} needs it")
        wire = _closed(
            wires, None if self.dialect.optional is Optional.NULL else [*flat["required"], *filter(None, [key])]
        )
        backs = members or entries
        back = Members(**(members or {"properties": {}}), further=key, entries=entries) if backs else None
        return self.finished(wire, flat, ["object"], used, path), back

    def _further(self, flat: Schema, path: str) -> Any:
        """The schema of properties that have no name in the schema, or None where there are none to give."""
        further = flat.get("additionalProperties")
        if patterns := flat.get("patternProperties"):
            return {"anyOf": [*patterns.values(), *([further] if isinstance(further, Mapping) else [])]}
        if further is None:
            # An object of which nothing is said holds anything; the arguments themselves do not: nobody could name any.
            return {} if not flat["properties"] and path != "#" else None
        return {} if further is True else None if further is False else further

    def _entries(self, flat: Schema, further: Any, path: str) -> Written:
        names = flat.get("propertyNames", True)
        name, _ = self.node(both({"type": "string"}, names if isinstance(names, Mapping) else {}) or {}, path)
        if patterns := flat.get("patternProperties"):
            name = self.put_into_words(name, {"patternProperties": patterns}, path)
        value, back = self.node(further, step(path, "additionalProperties"))
        self.note(
            path, "an object was made a list of names and values", f"{self.dialect.title} needs every property named"
        )
        self.undone = True
        return {"type": "array", "items": _closed({NAME: name, VALUE: value})}, Entries(back)

    def _members(self, flat: Schema, path: str) -> tuple[dict[str, Schema], dict[str, Any]]:
        """The written properties, and what `Members` needs to undo them, if anything."""
        wires: dict[str, Schema] = {}
        backs: dict[str, Back] = {}
        left_out = set()
        for name, sub in flat.get("properties", {}).items():
            place = step(path, "properties", name)
            wire, back = self.node(sub, place)
            if self.dialect.optional is Optional.NULL and name not in flat["required"]:
                if not self._null_fits(wire):
                    wire = _nullable(wire)
                    left_out.add(name)
                    self.undone = True
                self.note(place, "it was made required, null if left out", f"{self.dialect.title} needs every property")
            wires[name] = wire
            if back is not None:
                backs[name] = back
        return wires, {"properties": backs, "left_out": frozenset(left_out)} if backs or left_out else {}

    def _null_fits(self, wire: Schema) -> bool:
        name = str(wire.get("$ref", "")).rsplit("/", 1)[-1]
        if name and name not in self.definitions:
            return False
        return takes_null(wire, Document({"$defs": self.definitions}))


def _closed(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _nullable(wire: Schema) -> Schema:
    kinds = wire.get("type")
    if isinstance(kinds, list) or (
        kinds in ("string", "number", "integer", "boolean") and not {"enum", "const"} & set(wire)
    ):
        return {**wire, "type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}
    if "anyOf" in wire:
        return {**wire, "anyOf": [*wire["anyOf"], {"type": "null"}]}
    words = {key: value for key, value in wire.items() if key in ("title", "description")}
    bare = {key: value for key, value in wire.items() if key not in words}
    return {"anyOf": [bare, {"type": "null"}], **words}
