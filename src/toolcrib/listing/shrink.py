"""Rewrites a tool's schema so that it costs fewer tokens but still allows correct calls.

In: an input schema, which may be hostile. Out: `ShrunkSchema`, which is a schema without descriptions and the `Note`s
that could be added to it; or `Unshrinkable`. Arguments that are made from the new schema suit the original. Used by
`thin`, which checks this.

Types, structure, enums, limits and required properties always stay. Null is dropped where leaving the property out
means the same. A definition that is small or used once replaces the references to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from toolcrib.catalog.schema_refs import SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS, SchemaDocument, subschemas

MAX_NODES = 3_000
"""Schemas in a schema. More would keep a thread busy for long; the largest of 741 real tools has 122."""
_MAX_NESTED = 60
"""Levels of schemas, which clients can read and Python can recurse into."""

_OLD_DIALECTS = re.compile(r"draft-0[3-7]")
_DIALECT_DEPENDENT = frozenset({"dependencies", "additionalItems"})
_IDENTIFIED = frozenset({"$dynamicRef", "$recursiveRef", "$id", "id", "$dynamicAnchor"})

_ORDER = ("type", "enum", "const")
"""Where a reader looks first."""
_LIMITS = frozenset(
    {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
    | {"dependentRequired", "dependencies", "minContains", "maxContains"}
)
_FORMATS = frozenset(
    {"uuid", "date", "date-time", "time", "duration", "email", "uri", "url", "hostname", "ipv4", "ipv6", "regex"}
)
"""Formats that say more than the type does."""
_USUAL_LIMIT = 1 << 31
"""No caller exceeds it by accident; schema generators add such limits to every integer."""
_LONG_TEXT = 1_000
"""Characters. A longer `maxLength` is rarely reached."""
_LONG_PATTERN = 80
"""Characters. Schema generators add such patterns to formats."""

Schema = dict[str, Any]


class Unshrinkable(ValueError):
    """A schema that is shown in full, because its meaning could change."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """The description of a property."""

    name: str
    text: str
    required: bool
    depth: int
    place: Schema
    """The property in the shrunk schema."""


@dataclass(frozen=True, kw_only=True)
class ShrunkSchema:
    schema: Schema
    notes: tuple[Note, ...]
    """In the schema's order."""


def shrunk(root: Mapping[str, Any], *, rich: bool = False) -> ShrunkSchema:
    """`rich` keeps defaults and every `additionalProperties: false`."""
    shrinker = _Shrinker(root, rich=rich)
    schema = shrinker.run()
    return ShrunkSchema(schema=schema, notes=tuple(shrinker.notes))


class _Shrinker:
    def __init__(self, root: Mapping[str, Any], *, rich: bool) -> None:
        self.notes: list[Note] = []
        self._root = root
        self._document = SchemaDocument(root)
        self._rich = rich
        self._old = bool(_OLD_DIALECTS.search(str(root.get("$schema", ""))))
        self._depth = 0
        self._nested = self._visited = self._alternatives = 0
        self._uses: Counter[str] = Counter()
        self._active: set[str] = set()
        self._done: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._kept: dict[str, str] = {}
        """The names of the definitions that are not replaced, by pointer."""

    def run(self) -> Schema:
        dialect_matters = self._survey()
        made = self._schema(self._root, exact=False)
        if not isinstance(made, dict):
            raise Unshrinkable("its root is not an object")
        made = {"type": "object", **made}
        if made["type"] != "object":
            raise Unshrinkable("its root is not of type object")
        if self._kept:
            made["$defs"] = {name: self._done[pointer] for pointer, name in self._kept.items()}
        if dialect_matters:
            made["$schema"] = self._root["$schema"]
        return made

    def _survey(self) -> bool:
        """Counts references. Whether the meaning depends on `$schema`."""
        waiting: list[Any] = [self._root]
        seen: set[int] = set()
        dialect_matters = False
        while waiting:
            node = waiting.pop()
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            if len(seen) > MAX_NODES:
                raise Unshrinkable("it has too many parts")
            if node is not self._root and any(isinstance(node.get(key), str) for key in _IDENTIFIED):
                raise Unshrinkable("it has parts with their own identifiers")
            if "$ref" in node:
                pointer = self._pointer(node["$ref"])
                self._uses[pointer] += 1
                waiting.append(self._document.at(pointer))
            items = node.get("items")
            if "$schema" in self._root:
                dialect_matters |= not _DIALECT_DEPENDENT.isdisjoint(node) or isinstance(items, list)
                dialect_matters |= any(isinstance(node.get(key), bool) for key in _EXCLUSIVE)
            if isinstance(items, list):
                waiting += items
            waiting += [sub for _, sub in subschemas(node)]
        return dialect_matters

    def _pointer(self, reference: Any) -> str:
        pointer = self._document.pointer(reference)
        if pointer is None or not self._document.ends(reference):
            raise Unshrinkable("it has references that cannot be followed")
        return pointer

    def _schema(self, node: Any, *, exact: bool) -> Any:
        """`exact` inside `not` and `if`, where accepting fewer values means accepting more."""
        if isinstance(node, bool):
            return node
        self._visited += 1
        if not isinstance(node, Mapping) or self._nested == _MAX_NESTED or self._visited > MAX_NODES:
            raise Unshrinkable("a part of it is not a schema, or it has too many parts")
        made: Schema = {}
        self._nested += 1
        for key, value in node.items():
            if key != "$ref":
                self._keyword(made, key, value, node, exact=exact)
        if "$ref" in node:
            made = self._referred(node["$ref"], {} if self._old else made, exact=exact)
        self._nested -= 1
        if exact:
            return made
        _flatten(made)
        return {key: made[key] for key in [*(k for k in _ORDER if k in made), *(k for k in made if k not in _ORDER)]}

    def _keyword(self, made: Schema, key: str, value: Any, node: Mapping[str, Any], *, exact: bool) -> None:
        if key == "properties" and isinstance(value, Mapping):
            required = node.get("required")
            names = set(map(str, required)) if isinstance(required, list) else set()
            made[key] = {
                name: self._schema(sub, exact=True) if exact else self._property(name, sub, required=name in names)
                for name, sub in value.items()
            }
        elif key in {"$defs", "definitions"}:
            pass  # Only what is used, in `run`.
        elif key in SCHEMA_MAPS and isinstance(value, Mapping):
            made[key] = {name: self._schema(sub, exact=exact) for name, sub in value.items()}
        elif key in SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise Unshrinkable(f"its {key} is not a list")
            self._alternatives += key == "oneOf"
            made[key] = [self._schema(sub, exact=exact) for sub in value]
            self._alternatives -= key == "oneOf"
        elif key == "additionalProperties" and not exact and self._is_open_anyway(value, node):
            pass
        elif key in SINGLE_SCHEMAS:
            made[key] = self._schema(value, exact=exact or key in {"not", "if"})
        elif key in {"type", "enum", "const", "required"}:
            if (key, value) != ("required", []):
                made[key] = value[0] if key == "type" and isinstance(value, list) and len(value) == 1 else value
        elif key == "default":
            if self._rich and value is not None:
                made[key] = value
        elif key in _LIMITS and (exact or _tells(key, value, node)):
            made[key] = value

    def _is_open_anyway(self, value: Any, node: Mapping[str, Any]) -> bool:
        """A caller that keeps to the properties shown needs no word about others."""
        if value is True or value == {}:
            return True
        # In `oneOf`, it can be all that tells two alternatives apart, and some clients check arguments themselves.
        if (
            value is not False
            or self._rich
            or self._alternatives
            or not node.get("properties")
            or not _COMPOSING.isdisjoint(node)
        ):
            return False
        return bool(set(node.get("required", ())) <= node["properties"].keys())

    def _property(self, name: str, node: Any, *, required: bool) -> Any:
        self._depth += 1
        made = self._schema(node, exact=False)
        self._depth -= 1
        if not isinstance(made, dict) or not isinstance(node, Mapping):
            return made
        if not required and "default" in node and node["default"] is None:
            made = without_null(made)
        text = node.get("description")
        if isinstance(text, str) and text and "$ref" not in made:
            self.notes.append(Note(name=name, text=text, required=required, depth=self._depth, place=made))
        return made

    def _referred(self, reference: Any, beside: Schema, *, exact: bool) -> Schema:
        pointer = self._pointer(reference)
        if exact:
            raise Unshrinkable("it has references inside a condition")
        if pointer == "#":
            return {"$ref": "#", **beside}
        if pointer not in self._done and pointer not in self._active:
            self._active.add(pointer)
            self._done[pointer] = self._schema(self._document.at(pointer), exact=False)
            self._sizes[pointer] = len(msgspec.json.encode(self._done[pointer]))
            self._active.discard(pointer)
        target = self._done.get(pointer)
        if pointer not in self._kept and isinstance(target, dict) and target.keys().isdisjoint(beside):
            uses, size = self._uses[pointer], self._sizes[pointer]
            if uses * size <= size + (uses + 1) * 30:
                return {**target, **beside}
        if pointer not in self._kept:
            base = re.sub(r"[^\w.-]", "_", pointer.rpartition("/")[2], flags=re.ASCII)[:40] or "def"
            taken = set(self._kept.values())
            self._kept[pointer] = next(name for name in _numbered(base) if name not in taken)
        return {"$ref": f"#/$defs/{self._kept[pointer]}", **beside}


_COMPOSING = SCHEMA_LISTS | {"$ref", "patternProperties", "minProperties", "if", "dependentSchemas"}
"""Keywords that can ask for properties that are not named beside them."""
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def _numbered(base: str) -> Iterator[str]:
    yield base
    number = 2
    while True:
        yield f"{base}{number}"
        number += 1


def _tells(key: str, value: Any, node: Mapping[str, Any]) -> bool:
    """Whether a limit is one that a caller could miss."""
    if key == "format":
        return value in _FORMATS
    if key == "pattern":
        return not (len(str(value)) > _LONG_PATTERN and node.get("format") in _FORMATS)
    if key == "maxLength":
        return not isinstance(value, int | float) or bool(value < _LONG_TEXT)
    if key in {"minLength", "minItems", "minProperties"}:
        return bool(value != 0)
    if key in {"minimum", "exclusiveMinimum"} and isinstance(value, int | float):
        return value > -_USUAL_LIMIT
    if key in {"maximum", "exclusiveMaximum"} and isinstance(value, int | float):
        return value < _USUAL_LIMIT - 1
    return True


def _flatten(made: Schema) -> None:
    """Replaces unions by cheaper spellings."""
    for key in ("anyOf", "oneOf", "allOf"):
        branches = made.get(key)
        if not isinstance(branches, list):
            continue
        unique = _unique(branches)
        if key != "allOf" and (joined := _joined(unique, key)) and joined.keys().isdisjoint(made):
            unique = [joined]
        made[key] = unique
        if len(unique) == 1 and isinstance(unique[0], dict) and unique[0].keys().isdisjoint(made.keys() - {key}):
            del made[key]
            made.update(unique[0])
    if made.get("propertyNames") == {"type": "string"}:
        del made["propertyNames"]


def _joined(branches: list[Any], key: str) -> Schema | None:
    """One schema for a union of constants, of plain types, or of null and a schema with a type; otherwise None."""
    if not all(isinstance(branch, dict) and isinstance(branch.get("type", ""), str) for branch in branches):
        return None
    if all(branch.keys() <= {"type", "const", "enum"} and branch.keys() & {"const", "enum"} for branch in branches):
        values = [value for branch in branches for value in branch.get("enum", [branch.get("const")])]
        kinds = list(dict.fromkeys(branch.get("type") for branch in branches))
        kind = {"type": kinds[0] if len(kinds) == 1 else kinds} if None not in kinds else {}
        return {**kind, "enum": _unique(values)}
    kinds = [branch.get("type") for branch in branches]
    if key == "anyOf" and {"type": "number"} in branches and "integer" in kinds:
        return _joined([branch for branch in branches if branch.get("type") != "integer"], key)
    rich = [branch for branch in branches if branch.keys() != {"type"}]
    if None in kinds or len(set(kinds)) < len(kinds) or {"integer", "number"} <= set(kinds) or len(rich) > 1:
        return None
    if rich and (set(kinds) - {rich[0]["type"]} != {"null"} or not _VALUES_OR_PARTS.isdisjoint(rich[0])):
        return None
    return {**(rich[0] if rich else {}), "type": kinds[0] if len(kinds) == 1 else kinds}


_VALUES_OR_PARTS = SCHEMA_LISTS | {"enum", "const", "not", "if", "$ref"}
"""Keywords that would also apply to null."""


def _unique(values: list[Any]) -> list[Any]:
    """By their JSON, because Python takes 1 and true for the same."""
    return list({msgspec.json.encode(value): value for value in values}.values())


def without_null(made: Schema) -> Schema:
    """The schema for a value that is not null, where that leaves anything."""
    made = dict(made)
    kinds = made.get("type")
    if isinstance(kinds, list) and "null" in kinds and len(kinds) > 1:
        rest = [kind for kind in kinds if kind != "null"]
        made["type"] = rest[0] if len(rest) == 1 else rest
    if isinstance(values := made.get("enum"), list) and None in values and len(values) > 1:
        made["enum"] = [value for value in values if value is not None]
    for key in ("anyOf", "oneOf"):
        branches = made.get(key)
        if isinstance(branches, list) and (rest := [one for one in branches if one != {"type": "null"}]):
            made[key] = rest
    _flatten(made)
    return made
