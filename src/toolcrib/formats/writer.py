"""A schema in a dialect that takes only a part of JSON Schema.

In: a valid schema (`repair` made it) and a `Dialect`. Out: the schema as the dialect has it and the way back for values
of it. What has an equal in the dialect is written so; what has none goes into the description as words; both are
listed. `dialect_writer` writes objects, arrays and scalars; here are references, unions and choices.
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

MOST_NODES = 10_000
"""References and unions multiply when they are written out."""
LONGEST_WORDS = 2_000
_UNIONS = ("anyOf", "oneOf")
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_WHOLE: Mapping[str, tuple[str, int, Callable[[Any, Any], Any]]] = {
    "exclusiveMinimum": ("minimum", 1, max),
    "exclusiveMaximum": ("maximum", -1, min),
}
"""For whole numbers these have an equal."""


class UnsupportedSchema(Exception):
    """The dialect has no form for this schema at all."""


TOO_DEEP = "it nests too deep"


class SchemaWriter(ABC):
    def __init__(self, root: Schema, dialect: Dialect, log: AdaptationLog) -> None:
        self.document = SchemaDocument(root)
        self.dialect = dialect
        self.note = log.note
        self.definitions: dict[str, Schema] = {}
        self.recursive = False
        self.undone = False
        """Whether anything was written in a form that values must be brought back from."""
        self._backs: dict[str, Restore | None] = {}
        self._names: dict[str, str] = {}
        self._merging: list[set[str]] = []
        """What was merged into the schemas around the one being written: once more would never end."""
        self._nodes = 0

    def node(self, schema: Any, path: str) -> Written:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise UnsupportedSchema(f"it has more than {MOST_NODES} parts when it is written out")
        if schema is False:
            self.note(path, "false was made any value", f"{self.dialect.title} has no schema that takes nothing")
            schema = {"description": "No value fits here: leave it out."}
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
        """Writes a schema of these kinds that is no reference, union or choice."""

    # Many schemas for one value

    def _flat(self, schema: Schema, seen: set[str], path: str) -> Schema:
        """Without `allOf`, and a reference only where nothing but words stands beside it."""
        while True:
            for other in ("$dynamicRef", "$recursiveRef"):
                if other in schema:
                    schema = {**schema, "$ref": schema.get("$ref", schema[other])}
                    del schema[other]
                    self.note(path, f"{other} was made $ref", f"{self.dialect.title} does not take {other}")
            members = list(schema.get("allOf", ()))
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            limits = LIMITING.intersection(rest)
            if not members and (limits <= {"$ref"} or "$ref" not in rest):
                return rest
            if not members and self._is_merged(self.document.pointer(rest["$ref"])):
                left = {key: rest.pop(key) for key in list(rest) if key in limits - {"$ref"}}
                return self.put_into_words(rest, left, path)
            if len(members) == 1 and not limits and isinstance(members[0], Mapping) and set(members[0]) == {"$ref"}:
                self.note(path, "allOf with one reference was made that reference", self._refused("allOf"))
                return {**rest, **members[0]}
            if "$ref" in rest:
                members.insert(0, {"$ref": rest.pop("$ref")})
                self.note(path, "$ref was merged with what stands beside it", self._refused("keywords beside $ref"))
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
        if self._nodes > MOST_NODES:
            raise UnsupportedSchema(f"it has more than {MOST_NODES} parts when it is written out")
        self.note(path, "allOf was merged into one schema", self._refused("allOf"))
        if left:
            schema = self.put_into_words(schema, {"allOf": left}, path)
        return schema

    def _reference(self, flat: Schema, path: str) -> Written:
        pointer = self.document.pointer(flat["$ref"]) or "#"
        if pointer not in self._names:
            stem = pointer.rsplit("/", 1)[-1].replace("~1", "_").replace("~0", "_").replace("#", "root") or "root"
            name = stem
            while name in self._backs:
                name += "_"
            self._names[pointer] = name
            self._backs[name] = RestoreReference(self._backs, name)
            self.definitions[name], restore = self.node(self.document.at(pointer), pointer)
            self._backs[name] = restore
        elif self._names[pointer] not in self.definitions:
            self.recursive = True
        name = self._names[pointer]
        target = {"$ref": pointer_below("#/$defs", name)}
        if target["$ref"] != flat["$ref"]:
            self.note(path, f"$ref {flat['$ref']} was made {target['$ref']}", "definitions stand in $defs")
        words = self.finished({}, flat, [], {"$ref"}, path)
        if words:
            self.note(path, "$ref was put into anyOf", self._refused("words beside $ref"))
        return {"anyOf": [target], **words} if words else target, RestoreReference(self._backs, name)

    def _union(self, flat: Schema, path: str) -> Written:
        key = next(key for key in _UNIONS if key in flat)
        branches = [(branch, pointer_below(path, key, index)) for index, branch in enumerate(flat[key])]
        rest = {name: value for name, value in flat.items() if name != key}
        limits = {name: rest.pop(name) for name in [name for name in rest if name in LIMITING]}
        if limits:
            self.note(
                path, f"what stands beside {key} was put into each of its forms", self._refused(f"it beside {key}")
            )
            branches = [({"allOf": [limits, branch]}, place) for branch, place in branches]
        if len(fitting := [branch for branch in branches if branch[0] is not False]) < len(branches) and fitting:
            self.note(path, "forms that take nothing were left out", f"{self.dialect.title} has no schema for them")
            branches = fitting
        word = key if key in self.dialect.unions else "anyOf"
        if word != key:
            self.note(path, f"{key} was made {word}", self._refused(key))
        written = [self.node(branch, place) for branch, place in branches]
        return self.finished({word: [wire for wire, _ in written]}, rest, [], {key}, path), self.back_of(written)

    def back_of(self, branches: list[Written]) -> Restore | None:
        if all(restore is None for _, restore in branches):
            return None
        return RestoreUnion(list(branches), self.definitions)

    def _split(self, flat: Schema, kinds: list[str], path: str) -> Written:
        """One form for each type in a list of them."""
        rest = {key: value for key, value in flat.items() if key != "type"}
        branches: list[Written] = []
        for kind in kinds:
            own = {key: rest[key] for key in rest if key in KEYWORDS_OF_TYPE[kind]}
            branches.append(self.node({"type": kind, **own}, path))
        told = {key: value for key, value in rest.items() if not any(key in KEYWORDS_OF_TYPE[kind] for kind in kinds)}
        self.note(path, f"type {json.dumps(kinds)} was made anyOf", self._refused("such a list of types"))
        return self.finished({"anyOf": [wire for wire, _ in branches]}, told, [], set(), path), self.back_of(branches)

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
            self.note(path, "values that are not of the type were left out of enum", "they could never be given")
        rest = {key: value for key, value in flat.items() if key not in ("enum", "const", "type")}
        groups = _grouped(values, kinds)
        written = [self._choice(kind, group, flat, path) for kind, group in groups.items()]
        if len(written) == 1:
            wire, restore = written[0]
            return self.finished(wire, rest, [next(iter(groups))], set(), path), restore
        self.note(path, "enum was made anyOf with one form for each type", self._refused("an enum of several types"))
        return self.finished({"anyOf": [wire for wire, _ in written]}, rest, [], set(), path), self.back_of(written)

    def _choice(self, kind: str, values: list[Any], flat: Schema, path: str) -> Written:
        if kind == "null":
            return {"type": "null"}, None
        if kind == "object":
            self.note(path, "the values of enum were made texts", self._refused("lists and objects in enum"))
            self.undone = True
            texts = {json.dumps(value, ensure_ascii=False): value for value in values}
            return {"type": "string", "enum": list(texts)}, RestoreChoice(texts)
        if "type" not in flat:
            self.note(path, f"type {kind} was added", f"{self.dialect.title} needs the type")
        if "const" in flat and self.dialect.const:
            return {"type": kind, "const": values[0]}, None
        if "const" in flat:
            self.note(path, "const was made enum", self._refused("const"))
        return {"type": kind, "enum": values}, None

    # Words

    def finished(self, wire: Schema, flat: Schema, kinds: list[str], used: set[str], path: str) -> Schema:
        """With the keywords that the dialect takes for these kinds of values; the others as words."""
        wire = dict(wire)
        left: Schema = {}
        for key, value in flat.items():
            if key in used or key in wire or key == "type":
                continue
            if key in ABOUT_ITSELF:
                if key not in ("$defs", "definitions"):
                    self.note(path, f"{key} was left out", f"{self.dialect.title} does not take it; it limits nothing")
            elif self._takes(key, value, kinds):
                wire[key] = value
            elif (
                key in _WHOLE
                and kinds == ["integer"]
                and isinstance(value, int)
                and _WHOLE[key][0] in self.dialect.words
            ):
                limit, shift, tighter = _WHOLE[key]
                wire[limit] = tighter(value + shift, flat.get(limit, value + shift))
                self.note(path, f"{key} {value} was made {limit} {wire[limit]}", self._refused(key))
            else:
                left[key] = value
        return self.put_into_words(wire, left, path) if left else wire

    def _takes(self, key: str, value: Any, kinds: list[str]) -> bool:
        if key not in ABOUT_VALUE and not any(key in KEYWORDS_OF_TYPE[kind] for kind in kinds):
            return False
        if key == "format":
            return value in self.dialect.formats
        if key == "pattern" and not self._reads(value):
            return False
        return key in self.dialect.words

    def _reads(self, pattern: str) -> bool:
        engine = FancyRegexOptions() if self.dialect.lookaround else RegexOptions()
        try:
            validator_for({"pattern": pattern}, pattern_options=engine)
        except ValueError:
            return False
        return True

    def put_into_words(self, wire: Schema, left: Schema, path: str) -> Schema:
        for key in left:
            self.note(path, f"{key} was moved into the description", self._refused(key))
        told = {key: value for key, value in left.items() if not (key == "default" and value is None)}
        if not told:
            return wire
        text = json.dumps(self._without_references(told, 0), ensure_ascii=False)
        text = text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + "…"
        known = wire.get("description")
        return {**wire, "description": f"{known}\nAlso, as JSON Schema: {text}" if known else f"As JSON Schema: {text}"}

    def _without_references(self, value: Any, depth: int) -> Any:
        """Definitions are not there any more for one who reads only the words."""
        if isinstance(value, list):
            return [self._without_references(item, depth) for item in value]
        if not isinstance(value, Mapping):
            return value
        pointer = self.document.pointer(value.get("$ref")) if "$ref" in value else None
        if pointer is not None and depth < 3:
            return self._without_references(self.document.at(pointer), depth + 1)
        return {key: self._without_references(item, depth) for key, item in value.items()}

    def _refused(self, what: str) -> str:
        return f"{self.dialect.title} does not take {what}"


def _grouped(values: list[Any], kinds: list[str]) -> dict[str, list[Any]]:
    """By the type that they are given as; lists are in one group with objects."""
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
    """All schemas in a schema, itself included."""
    found: list[Mapping[str, Any]] = []
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            found.append(node)
            waiting += [sub for _, sub in subschemas(node)]
    return found
