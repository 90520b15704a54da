"""The cost of checking arguments against a schema.

In: a server's schema, which may be hostile. Out: `SchemaCost`, which determines whether given arguments can be checked
in bounded time. `schema_check` uses it before it runs a validator.

A schema without references costs at most its size times the size of the arguments. References multiply: with twenty
definitions that each name the next one twice, one value is checked a million times, and a schema that names itself
twice doubles the cost with each level of the arguments. This module counts these checks without running any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from toolcrib.catalog.schema_refs import SchemaDocument

MAX_VISITS_PER_VALUE = 20_000
"""Visits of one value by parts of the schema: about a millisecond."""

MAX_VISITS = 10_000_000
"""Visits of all values together: a few tenths of a second."""

# Keywords grouped by whether their schemas apply to the same value or to parts of it, and by how they hold them.
_SAME = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_SAME_BY_NAME = frozenset({"dependentSchemas", "dependencies"})
_PARTS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties", "propertyNames"}
)
_PARTS_BY_NAME = frozenset({"properties", "patternProperties"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class SchemaCost:
    """Counts visits per level of the arguments. Raises ValueError if the cost has no bound."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        graph = _Graph(schema)
        self.multiplies = graph.references > 0
        """Whether the cost can grow faster than the arguments; otherwise any arguments are affordable."""
        self._same = graph.same
        self._parts = graph.parts
        self._root = id(schema)
        self._order = graph.children_first()
        self._levels: list[dict[int, int]] = []

    def affordable(self, arguments: Any) -> bool:
        return not self.multiplies or self.visits(arguments) <= MAX_VISITS

    def visits(self, arguments: Any) -> int:
        """An upper bound on how often a part of the schema visits a part of the arguments."""
        depth, size = _measure(arguments)
        while len(self._levels) < depth and (not self._levels or self._levels[-1][self._root] <= MAX_VISITS_PER_VALUE):
            self._levels.append(self._next_level())
        visits = self._levels[min(depth, len(self._levels)) - 1][self._root]
        return visits * size if visits <= MAX_VISITS_PER_VALUE else MAX_VISITS + 1

    def _next_level(self) -> dict[int, int]:
        """Visits by each node for a value one level deeper than the last one counted."""
        below = self._levels[-1] if self._levels else {}
        visits: dict[int, int] = {}
        for node in self._order:
            count = 1 + sum(visits[other] for other in self._same[node])
            count += sum(below.get(other, 0) for other in self._parts[node])
            visits[node] = min(count, MAX_VISITS_PER_VALUE + 1)
        return visits


class _Graph:
    """The schema's nodes (dictionaries, by identity) and the nodes that each one uses."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.same: dict[int, list[int]] = {}
        self.parts: dict[int, list[int]] = {}
        self.references = 0
        self._document = SchemaDocument(root)
        identified = 0
        waiting: list[Mapping[str, Any]] = [root]
        while waiting:
            node = waiting.pop()
            if id(node) in self.same:
                continue
            same, parts = self._used_by(node)
            self.same[id(node)] = [id(sub) for sub in same]
            self.parts[id(node)] = [id(sub) for sub in parts]
            waiting += same + parts
            identified += node is not root and any(isinstance(node.get(key), str) for key in ("$id", "id"))
        if identified and self.references:
            raise ValueError("it has references between schemas with their own identifiers")

    def _used_by(self, node: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        same: list[Mapping[str, Any]] = []
        parts: list[Mapping[str, Any]] = []
        for keyword, value in node.items():
            if keyword in _REFERENCES:
                self.references += 1
                same.append(self._resolve(value))
            elif keyword in _SAME:
                same += _schemas(value)
            elif keyword in _PARTS:
                parts += _schemas(value)
            elif keyword in _SAME_BY_NAME and isinstance(value, Mapping):
                same += _schemas(list(value.values()))
            elif keyword in _PARTS_BY_NAME and isinstance(value, Mapping):
                parts += _schemas(list(value.values()))
        return same, parts

    def children_first(self) -> list[int]:
        """Nodes ordered so that those for the same value come before their users."""
        order: list[int] = []
        state: dict[int, bool] = {}
        for start in self.same:
            stack = [(start, iter(self.same[start]))] if start not in state else []
            state.setdefault(start, False)
            while stack:
                node, rest = stack[-1]
                following = next(rest, None)
                if following is None:
                    stack.pop()
                    state[node] = True
                    order.append(node)
                elif following not in state:
                    state[following] = False
                    stack.append((following, iter(self.same[following])))
                elif not state[following]:
                    raise ValueError("it refers to itself without end")
        return order

    def _resolve(self, reference: Any) -> Mapping[str, Any]:
        """The target of a reference. Only paths are followed; hardly any tool uses other references."""
        by_path = isinstance(reference, str) and reference.partition("/")[0] == "#"
        found = self._document.at(unquote(reference)) if by_path else None
        if found is None:
            raise ValueError("it has references that cannot be followed")
        return found if isinstance(found, Mapping) else {}


def _schemas(value: Any) -> list[Mapping[str, Any]]:
    """The schemas in a keyword's value (one, or a list); `true` and `false` cost nothing."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Mapping)]


def _measure(arguments: Any) -> tuple[int, int]:
    """The number of levels and of values in the arguments."""
    deepest = size = 0
    waiting = [(arguments, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        size += 1
        if isinstance(node, Mapping):
            waiting += [(sub, depth + 1) for sub in node.values()]
        elif isinstance(node, list):
            waiting += [(sub, depth + 1) for sub in node]
    return deepest, size
