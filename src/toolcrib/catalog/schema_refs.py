"""Resolves references inside a schema.

In: a schema and a reference in it. Out: the reference's target. Nothing is ever fetched: only targets in the same
document are found. Used by the schema modules of `catalog` and `formats`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that hold schemas by name."""
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLE_SCHEMAS = frozenset(
    {"items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contains"}
    | {"propertyNames", "not", "if", "then", "else", "contentSchema"}
)


def pointer_below(path: str, *parts: str | int) -> str:
    return "/".join([path, *(str(part).replace("~", "~0").replace("/", "~1") for part in parts)])


def subschemas(node: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The direct subschemas, each with its path."""
    for key, value in node.items():
        if key in SCHEMA_MAPS and isinstance(value, Mapping):
            yield from (((key, name), sub) for name, sub in value.items())
        elif key in SCHEMA_LISTS and isinstance(value, list):
            yield from (((key, index), sub) for index, sub in enumerate(value))
        elif key in SINGLE_SCHEMAS:
            yield (key,), value


class SchemaDocument:
    """A schema whose references can be followed."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._id = root.get("$id")
        self._anchors: dict[str, str] | None = None

    def pointer(self, reference: Any) -> str | None:
        """A reference as a JSON pointer from the root (`#/$defs/Node`). None if it leaves the document or has no
        target in it."""
        if not isinstance(reference, str):
            return None
        before, _, fragment = reference.partition("#")
        if before and before != self._id:
            return None
        pointer: str | None = f"#{unquote(fragment)}"
        if fragment and not fragment.startswith("/"):
            pointer = self._anchored(unquote(fragment))
        return pointer if pointer is not None and self.at(pointer) is not None else None

    def ends(self, reference: Any) -> bool:
        """Whether it leads to a schema rather than back to itself."""
        seen: set[str] = set()
        while (pointer := self.pointer(reference)) is not None and pointer not in seen:
            seen.add(pointer)
            target = self.at(pointer)
            if not isinstance(target, Mapping) or "$ref" not in target:
                return True
            reference = target["$ref"]
        return False

    def at(self, pointer: str) -> Mapping[str, Any] | bool | None:
        node: Any = self.root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
            else:
                node = node.get(key) if isinstance(node, Mapping) else None
        return node if isinstance(node, Mapping | bool) else None

    def _anchored(self, name: str) -> str | None:
        if self._anchors is None:
            self._anchors = {}
            waiting: list[tuple[str, Any]] = [("#", self.root)]
            while waiting:
                path, node = waiting.pop()
                if isinstance(node, Mapping):
                    if isinstance(anchor := node.get("$anchor"), str):
                        self._anchors.setdefault(anchor, path)
                    waiting += [(pointer_below(path, *parts), sub) for parts, sub in subschemas(node)]
        return self._anchors.get(name)
