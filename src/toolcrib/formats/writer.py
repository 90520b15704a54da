"""Writes a schema in a dialect that accepts only part of JSON Schema.

In: a valid schema (from `repair`) and a `Dialect`. Out: the schema in the dialect and a `Restore` for its values. A
keyword with an equivalent in the dialect is translated, any other moves into the description; both are recorded.
`dialect_writer` writes objects, arrays and scalars; this module writes references, unions and enums.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from jsonschema_rs import FancyRegexOptions, RegexOptions, validator_for

from toolcrib.catalog.schema_refs import SchemaDocument, pointer_below, subschemas
from toolcrib.formats.definition import AdaptationLog, Schema
from toolcrib.formats.dialects import (
    ABOUT_ITSELF,
    ABOUT_VALUE,
    KEYWORDS_OF_TYPE,
    LIMITING,
    Dialect,
    implied_type,
    is_type,
    type_of,
)
from toolcrib.formats.merging import merged_schemas
from toolcrib.formats.restore import Restore, RestoreChoice, RestoreReference, RestoreUnion

Written = tuple[Schema, Restore | None]

MAX_NODES = 10_000
"""Expanding references and unions multiplies them."""
MAX_TEXT_LENGTH = 2_000
_UNIONS = ("anyOf", "oneOf")
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_WHOLE: Mapping[str, tuple[str, int, Callable[[Any, Any], Any]]] = {
    "exclusiveMinimum": ("minimum", 1, max),
    "exclusiveMaximum": ("maximum", -1, min),
}
"""Equivalents for integers."""


class UnsupportedSchema(Exception):
    """The dialect cannot express this schema."""


TOO_DEEP = "the schema is nested too deeply"


class SchemaWriter(ABC):
    def __init__(self, root: Schema, dialect: Dialect, log: AdaptationLog) -> None:
        self.document = SchemaDocument(root)
        self.dialect = dialect
        self.note = log.note
        self.definitions: dict[str, Schema] = {}
        self.recursive = False
        self.undone = False
        """Whether any value needs a `Restore`."""
        self._restores: dict[str, Restore | None] = {}
        self._names: dict[str, str] = {}
        self._merging: list[set[str]] = []
        """References merged into the enclosing schemas. Merging one again would never end."""
        self._nodes = 0

    def node(self, schema: Any, path: str) -> Written:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnsupportedSchema(f"the expanded schema has more than {MAX_NODES} parts")
        if schema is False:
            self.note(path, "false became any value", f"{self.dialect.title} has no schema that accepts nothing")
            schema = {"description": "No value fits: omit it."}
        merged: set[str] = set()
        flat = self._flat({} if schema is True else dict(schema), merged, path)
        self._merging.append(merged)
        try:
            return self._one(flat, path)
        finally:
            self._merging.pop()

    def _one(self, flat: Schema, path: str) -> Written:
        if "$ref" in flat:
            return self._reference(flat, path)
        if any(key in flat for key in _UNIONS):
            return self._union(flat, path)
        kinds = self._kinds(flat, path)
        if "enum" in flat or "const" in flat:
            return self._choices(flat, kinds, path)
        if len(kinds) > 1 and not (self.dialect.type_lists and _SCALARS.issuperset(kinds)):
            return self._split(flat, kinds, path)
        return self.shape(flat, kinds, path)

    @abstractmethod
    def shape(self, flat: Schema, kinds: list[str], path: str) -> Written:
        """Writes a schema of these types that is not a reference, union or enum."""

    # Many schemas for one value

    def _flat(self, schema: Schema, seen: set[str], path: str) -> Schema:
        """Without `allOf`, and with a reference only if all other keywords are annotations."""
        while True:
            for other in ("$dynamicRef", "$recursiveRef"):
                if other in schema:
                    schema = {**schema, "$ref": schema.get("$ref", schema[other])}
                    del schema[other]
                    self.note(path, f"{other} became $ref", self._refused(other))
            members = list(schema.get("allOf", ()))
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            limits = LIMITING.intersection(rest)
            if not members and (limits <= {"$ref"} or "$ref" not in rest):
                return rest
            if not members and self._is_merged(self.document.pointer(rest["$ref"])):
                left = {key: rest.pop(key) for key in list(rest) if key in limits - {"$ref"}}
                return self.moved_into_description(rest, left, path)
            if len(members) == 1 and not limits and isinstance(members[0], Mapping) and set(members[0]) == {"$ref"}:
                self.note(path, "allOf with one reference became that reference", self._refused("allOf"))
                return {**rest, **members[0]}
            if "$ref" in rest:
                members.insert(0, {"$ref": rest.pop("$ref")})
                self.note(path, "$ref was merged with its sibling keywords", self._refused("keywords beside $ref"))
            schema = self._merged(rest, members, seen, path)

    def _is_merged(self, pointer: str | None) -> bool:
        return any(pointer in merged for merged in self._merging)

    def _merged(self, schema: Schema, members: list[Any], seen: set[str], path: str) -> Schema:
        left = []
        for member in members:
            part = {} if member is True else member
            if isinstance(part, Mapping) and "$ref" in part:
                pointer = self.document.pointer(part["$ref"])
                known = pointer is None or pointer in seen or self._is_merged(pointer)
                target = None if known or pointer is None else self.document.at(pointer)
                seen.add(pointer or "")
                beside = {key: value for key, value in part.items() if key != "$ref"}
                part = merged_schemas(target, beside) if isinstance(target, Mapping) else target
            joined = merged_schemas(schema, part) if isinstance(part, Mapping) else None
            if joined is None:
                left.append(member)
            else:
                schema = joined
        self._nodes += len(members)
        if self._nodes > MAX_NODES:
            raise UnsupportedSchema(f"the expanded schema has more than {MAX_NODES} parts")
        self.note(path, "allOf was merged into one schema", self._refused("allOf"))
        if left:
            schema = self.moved_into_description(schema, {"allOf": left}, path)
        return schema

    def _reference(self, flat: Schema, path: str) -> Written:
        pointer = self.document.pointer(flat["$ref"]) or "#"
        if pointer not in self._names:
            stem = pointer.rsplit("/", 1)[-1].replace("~1", "_").replace("~0", "_").replace("#", "root") or "root"
            name = stem
            while name in self._restores:
                name += "_"
            self._names[pointer] = name
            self._restores[name] = RestoreReference(self._restores, name)
            self.definitions[name], restore = self.node(self.document.at(pointer), pointer)
            self._restores[name] = restore
        elif self._names[pointer] not in self.definitions:
            self.recursive = True
        name = self._names[pointer]
        target = {"$ref": pointer_below("#/$defs", name)}
        if target["$ref"] != flat["$ref"]:
            self.note(path, f"$ref {flat['$ref']} became {target['$ref']}", "definitions are in $defs")
        annotations = self.finished({}, flat, [], {"$ref"}, path)
        if annotations:
            self.note(path, "$ref was put into anyOf", self._refused("annotations beside $ref"))
        return {"anyOf": [target], **annotations} if annotations else target, RestoreReference(self._restores, name)

    def _union(self, flat: Schema, path: str) -> Written:
        key = next(key for key in _UNIONS if key in flat)
        branches = [(branch, pointer_below(path, key, index)) for index, branch in enumerate(flat[key])]
        rest = {name: value for name, value in flat.items() if name != key}
        limits = {name: rest.pop(name) for name in [name for name in rest if name in LIMITING]}
        if limits:
            self.note(path, f"keywords beside {key} were moved into each branch", self._refused(f"them beside {key}"))
            branches = [({"allOf": [limits, branch]}, place) for branch, place in branches]
        if len(fitting := [branch for branch in branches if branch[0] is not False]) < len(branches) and fitting:
            self.note(path, "branches that accept nothing were removed", f"{self.dialect.title} has no schema for them")
            branches = fitting
        keyword = key if key in self.dialect.unions else "anyOf"
        if keyword != key:
            self.note(path, f"{key} became {keyword}", self._refused(key))
        written = [self.node(branch, place) for branch, place in branches]
        return self.finished({keyword: [wire for wire, _ in written]}, rest, [], {key}, path), self.union_restore(
            written
        )

    def union_restore(self, branches: list[Written]) -> Restore | None:
        if all(restore is None for _, restore in branches):
            return None
        return RestoreUnion(list(branches), self.definitions)

    def _split(self, flat: Schema, kinds: list[str], path: str) -> Written:
        """Writes a list of types as one branch per type."""
        rest = {key: value for key, value in flat.items() if key != "type"}
        branches: list[Written] = []
        for kind in kinds:
            own = {key: rest[key] for key in rest if key in KEYWORDS_OF_TYPE[kind]}
            branches.append(self.node({"type": kind, **own}, path))
        other = {key: value for key, value in rest.items() if not any(key in KEYWORDS_OF_TYPE[kind] for kind in kinds)}
        self.note(path, f"type {json.dumps(kinds)} became anyOf", self._refused("such a list of types"))
        return self.finished({"anyOf": [wire for wire, _ in branches]}, other, [], set(), path), self.union_restore(
            branches
        )

    # One schema

    def _kinds(self, flat: Schema, path: str) -> list[str]:
        kinds = flat.get("type")
        if kinds is not None:
            return list(kinds) if isinstance(kinds, list) else [kinds]
        if "enum" in flat or "const" in flat:
            return []
        implied = implied_type(flat)
        if implied is None:
            return []
        self.note(path, f"type {implied} was added", f"{self.dialect.title} needs the type")
        return [implied]

    def _choices(self, flat: Schema, kinds: list[str], path: str) -> Written:
        listed = [flat["const"]] if "const" in flat else flat["enum"]
        values = [value for value in listed if not kinds or any(is_type(value, kind) for kind in kinds)] or listed
        if len(values) < len(listed):
            self.note(path, "values of another type were removed from enum", "they can never be given")
        rest = {key: value for key, value in flat.items() if key not in ("enum", "const", "type")}
        groups = _grouped(values, kinds)
        written = [self._choice(kind, group, flat, path) for kind, group in groups.items()]
        if len(written) == 1:
            wire, restore = written[0]
            return self.finished(wire, rest, [next(iter(groups))], set(), path), restore
        self.note(path, "enum became anyOf with one branch for each type", self._refused("an enum of several types"))
        return self.finished({"anyOf": [wire for wire, _ in written]}, rest, [], set(), path), self.union_restore(
            written
        )

    def _choice(self, kind: str, values: list[Any], flat: Schema, path: str) -> Written:
        if kind == "null":
            return {"type": "null"}, None
        if kind == "object":
            self.note(path, "the values of enum became strings", self._refused("lists and objects in enum"))
            self.undone = True
            texts = {json.dumps(value, ensure_ascii=False): value for value in values}
            return {"type": "string", "enum": list(texts)}, RestoreChoice(texts)
        if "type" not in flat:
            self.note(path, f"type {kind} was added", f"{self.dialect.title} needs the type")
        if "const" in flat and self.dialect.const:
            return {"type": kind, "const": values[0]}, None
        if "const" in flat:
            self.note(path, "const became enum", self._refused("const"))
        return {"type": kind, "enum": values}, None

    # Other keywords

    def finished(self, wire: Schema, flat: Schema, kinds: list[str], used: set[str], path: str) -> Schema:
        """Adds the keywords that the dialect accepts for these types; the others move into the description."""
        wire = dict(wire)
        left: Schema = {}
        for key, value in flat.items():
            if key in used or key in wire or key == "type":
                continue
            if key in ABOUT_ITSELF:
                if key not in ("$defs", "definitions"):
                    self.note(
                        path, f"{key} was removed", f"{self.dialect.title} does not accept it, and it limits no value"
                    )
            elif self._accepts(key, value, kinds):
                wire[key] = value
            elif (
                key in _WHOLE
                and kinds == ["integer"]
                and isinstance(value, int)
                and _WHOLE[key][0] in self.dialect.keywords
            ):
                limit, shift, tighter = _WHOLE[key]
                wire[limit] = tighter(value + shift, flat.get(limit, value + shift))
                self.note(path, f"{key} {value} became {limit} {wire[limit]}", self._refused(key))
            else:
                left[key] = value
        return self.moved_into_description(wire, left, path) if left else wire

    def _accepts(self, key: str, value: Any, kinds: list[str]) -> bool:
        if key not in ABOUT_VALUE and not any(key in KEYWORDS_OF_TYPE[kind] for kind in kinds):
            return False
        if key == "format":
            return value in self.dialect.formats
        if key == "pattern" and not self._accepts_pattern(value):
            return False
        return key in self.dialect.keywords

    def _accepts_pattern(self, pattern: str) -> bool:
        engine = FancyRegexOptions() if self.dialect.lookaround else RegexOptions()
        try:
            validator_for({"pattern": pattern}, pattern_options=engine)
        except ValueError:
            return False
        return True

    def moved_into_description(self, wire: Schema, left: Schema, path: str) -> Schema:
        for key in left:
            self.note(path, f"{key} was moved into the description", self._refused(key))
        limits = {key: value for key, value in left.items() if not (key == "default" and value is None)}
        if not limits:
            return wire
        text = json.dumps(self._without_references(limits, 0), ensure_ascii=False)
        text = text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
        known = wire.get("description")
        return {**wire, "description": f"{known}\nAlso, as JSON Schema: {text}" if known else f"As JSON Schema: {text}"}

    def _without_references(self, value: Any, depth: int) -> Any:
        """Replaces references by their targets, because the description cannot refer to definitions."""
        if isinstance(value, list):
            return [self._without_references(item, depth) for item in value]
        if not isinstance(value, Mapping):
            return value
        pointer = self.document.pointer(value.get("$ref")) if "$ref" in value else None
        if pointer is not None and depth < 3:
            return self._without_references(self.document.at(pointer), depth + 1)
        return {key: self._without_references(item, depth) for key, item in value.items()}

    def _refused(self, what: str) -> str:
        return f"{self.dialect.title} does not accept {what}"


def _grouped(values: list[Any], kinds: list[str]) -> dict[str, list[Any]]:
    """By type. Arrays are in one group with objects."""
    groups: dict[str, list[Any]] = {}
    broken = "number" in kinds or any(isinstance(value, float) for value in values)
    for value in values:
        kind = type_of(value)
        if kind == "array":
            kind = "object"
        elif kind == "integer" and broken:
            kind = "number"
        groups.setdefault(kind, []).append(value)
    return groups


def all_subschemas(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schema and all its subschemas."""
    found: list[Mapping[str, Any]] = []
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            found.append(node)
            waiting += [sub for _, sub in subschemas(node)]
    return found
