"""Arguments as a caller would make them from a tool's shown schema, and whether the whole schema accepts them.

In: the schema that is shown and the whole one, which may be hostile. Out: whether a caller who sees only the first is
right at least as often as one who sees the second. Used by `thin` to choose what is shown.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolcrib.catalog.schema_check import CompiledSchema, compile_schema
from toolcrib.catalog.schema_refs import SchemaDocument

MAX_STEPS = 5_000
"""Steps to make one example. More would keep a thread busy for long; the largest of 741 real tools takes 247."""
_MAX_VISITS = 1_000_000
"""Visits (`schema_cost`) to check one example: a few hundredths of a second."""
_MAX_LENGTH = 2_000
"""Characters of a string."""
_MAX_DEPTH = 6
"""Levels to which optional properties are filled in, so that recursive schemas end."""
_MAX_REQUIRED_DEPTH = 40


class CostlySchema(ValueError):
    """A schema whose examples take too long to make or to check."""


class Extent(enum.Enum):
    REQUIRED = enum.auto()
    ALL = enum.auto()


class Choice(enum.Enum):
    """Which of several possible values a caller takes."""

    USUAL = enum.auto()
    LEAST = enum.auto()
    """Empty strings, the lowest numbers, null, the first alternative."""
    GREATEST = enum.auto()
    """The highest numbers, the longest value of an enum, the last alternative."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    extent: Extent
    choice: Choice


CALLERS = tuple(Caller(extent=extent, choice=choice) for extent in Extent for choice in Choice)

_TEXTS = {Choice.USUAL: "example", Choice.LEAST: "", Choice.GREATEST: "x"}
_FORMATS = {
    "uuid": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:30:00Z",
    "time": "12:30:00Z",
    "duration": "P1D",
    "email": "name@example.com",
    "uri": "https://example.com/page",
    "url": "https://example.com/page",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
_MATCHING = ("a", "A", "1", "Ab1", "abc-1", "ABC-1", "/a", "a:b", "a=1", "=A1", "00ff00", *_FORMATS.values())
"""Tried in turn for a pattern."""
_PATTERN_STEPS = 100
_LENGTHS = (("minLength", 0), ("maxLength", _MAX_LENGTH))


def suffices(shown: Mapping[str, Any], whole: Mapping[str, Any], check: CompiledSchema) -> bool:
    """Whether each caller's arguments are right. A caller that the whole schema misleads as well proves nothing."""
    return all(check.accepts(example(shown, caller)) or not check.accepts(example(whole, caller)) for caller in CALLERS)


def example(schema: Mapping[str, Any], caller: Caller) -> Any:
    """Raises `CostlySchema`."""
    return _Maker(schema, caller).value(schema, 0)


class _Maker:
    def __init__(self, root: Mapping[str, Any], caller: Caller) -> None:
        self._document = SchemaDocument(root)
        self._choice = caller.choice
        self._all = caller.extent is Extent.ALL
        self._steps = 0
        self._patterns: dict[str, str] = {}

    def value(self, schema: Any, depth: int) -> Any:
        self._step(depth)
        if not isinstance(schema, Mapping):
            return _TEXTS[self._choice]
        node = self._whole(schema, 0)
        if "const" in node:
            return node["const"]
        if isinstance(values := node.get("enum"), list) and values:
            return self._of(values)
        kind = self._kind(node)
        match kind:
            case "object":
                return self._object(node, depth)
            case "array":
                return self._array(node, depth)
            case "integer" | "number":
                return self._number(node)
            case "boolean":
                return self._choice is not Choice.LEAST
            case "null":
                return None
            case _:
                return self._string(node)

    def _step(self, depth: int, cost: int = 1) -> None:
        self._steps += cost
        if self._steps > MAX_STEPS or depth > _MAX_REQUIRED_DEPTH:
            raise CostlySchema("its examples are too large, or nest too deeply")

    def _whole(self, node: Mapping[str, Any], merged: int) -> dict[str, Any]:
        """The schema with its reference, its `allOf` and one alternative merged into it."""
        self._step(merged, 1 + len(node.get("properties", ())) // 10)
        parts = []
        if "$ref" in node and (pointer := self._document.pointer(node["$ref"])) is not None:
            parts.append(self._document.at(pointer))
        parts += node["allOf"] if isinstance(node.get("allOf"), list) else []
        for key in ("anyOf", "oneOf"):
            if isinstance(node.get(key), list) and node[key]:
                parts.append(self._alternative(node[key]))
        rest = {key: value for key, value in node.items() if key not in {"$ref", "allOf", "anyOf", "oneOf"}}
        for part in parts:
            if isinstance(part, Mapping):
                rest = _both(rest, self._whole(part, merged + 1))
        return rest

    def _alternative(self, branches: list[Any]) -> Any:
        if self._choice is Choice.LEAST and {"type": "null"} in branches:
            return {"type": "null"}
        real = [branch for branch in branches if branch != {"type": "null"}] or branches
        return real[-1 if self._choice is Choice.GREATEST else 0]

    def _of(self, values: list[Any]) -> Any:
        self._step(0, len(values) // 100)
        if self._choice is Choice.LEAST and None in values:
            return None
        real = [value for value in values if value is not None] or values
        return max(real, key=lambda value: len(str(value))) if self._choice is Choice.GREATEST else real[0]

    def _kind(self, node: Mapping[str, Any]) -> Any:
        kinds = node.get("type")
        if isinstance(kinds, list) and kinds:
            return "null" if self._choice is Choice.LEAST and "null" in kinds else self._alternative(kinds)
        guessed = (kind for kind, keys in _TELLING.items() if keys & node.keys())
        return kinds if isinstance(kinds, str) else next(guessed, "string")

    def _object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = [name for name in _list(node.get("required")) if isinstance(name, str)]
        further = node.get("additionalProperties")
        names = [*properties, *required] if self._fills(depth) else required
        made = {name: self.value(properties.get(name, further), depth + 1) for name in dict.fromkeys(names)}
        if not properties and isinstance(further, Mapping) and self._fills(depth):
            made["key"] = self.value(further, depth + 1)
        return {name: value for name, value in made.items() if properties.get(name) is not False}

    def _fills(self, depth: int) -> bool:
        """Whether optional parts are filled in."""
        return self._all and depth < _MAX_DEPTH and self._steps < MAX_STEPS // 2

    def _array(self, node: Mapping[str, Any], depth: int) -> list[Any]:
        first = _list(node.get("prefixItems")) or _list(node.get("items"))
        count = max(int(_limit(node, "minItems", 0)), 1 if self._fills(depth) else 0)
        count = int(min(max(count, len(first)), _limit(node, "maxItems", count), MAX_STEPS + 1))
        made = [self.value(sub, depth + 1) for sub in first[:count]]
        return made + [self.value(node.get("items", {}), depth + 1) for _ in range(count - len(made))]

    def _number(self, node: Mapping[str, Any]) -> int | float:
        least, greatest = _limit(node, "minimum", None), _limit(node, "maximum", None)
        above, below = _limit(node, "exclusiveMinimum", None), _limit(node, "exclusiveMaximum", None)
        step = _limit(node, "multipleOf", 1)
        least = above + step if above is not None and (least is None or least <= above) else least
        greatest = below - step if below is not None and (greatest is None or greatest >= below) else greatest
        wanted = {Choice.USUAL: step, Choice.LEAST: 0 if least is None else least, Choice.GREATEST: greatest or step}
        value = wanted[self._choice]
        value = value if least is None or value >= least else least
        value = value if greatest is None or value <= greatest else greatest
        if step != 1 and step > 0:
            value = -(-value // step) * step
        whole = node.get("type") == "integer" and isinstance(value, float) and value.is_integer()
        return int(value) if whole else value

    def _string(self, node: Mapping[str, Any]) -> str:
        kind = node.get("format")
        text = _FORMATS.get(kind, _TEXTS[self._choice]) if isinstance(kind, str) else _TEXTS[self._choice]
        if isinstance(pattern := node.get("pattern"), str):
            if pattern not in self._patterns:
                self._step(0, _PATTERN_STEPS)
                self._patterns[pattern] = _matching(pattern, text)
            text = self._patterns[pattern]
        least, most = (int(min(_limit(node, key, usual), _MAX_LENGTH)) for key, usual in _LENGTHS)
        return text.ljust(least, "x")[: max(most, 0)]


_TELLING = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
"""Keywords that reveal the type of a schema without one."""


def _matching(pattern: str, text: str) -> str:
    try:
        check = compile_schema({"pattern": pattern})
    except (ValueError, RecursionError):
        return text
    return next((one for one in (text, *_MATCHING) if check.accepts(one)), text)


def _both(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {**other, **one}
    for key, kind in (("properties", Mapping), ("required", list)):
        first, second = one.get(key), other.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            both[key] = {**second, **first}
        elif kind is list and isinstance(first, list) and isinstance(second, list):
            both[key] = [*first, *second]
    return both


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _limit(node: Mapping[str, Any], key: str, usual: Any) -> Any:
    value = node.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 53 else usual
