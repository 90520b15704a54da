"""Changes to a schema of arguments: fix an argument's value, rename it, or give it a default.

In: a JSON Schema of an object. Out: an equivalent schema for the remaining arguments. The input is never modified, but
parts of it are shared. Used by `transforms`.

Arguments are changed at the root and in every subschema for the same object: `allOf`, `anyOf`, `oneOf`, `not`, `if`,
`then`, `else`, `dependentSchemas`, and the definitions they refer to. Keywords that cannot be translated
(`propertyNames`, `patternProperties`) stay; a call is checked against the tool's own schema anyway.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema_rs import validator_for

from toolcrib.catalog.schema_refs import SchemaDocument

Schema = Mapping[str, Any]
Node = dict[str, Any]
_Change = Callable[[Node], Any]

_ONE = ("not", "if", "then", "else")
_MANY = ("allOf", "anyOf", "oneOf")
_DEPENDING = ("dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MARKS = ("$anchor", "$dynamicAnchor", "$id", "id")
_OF_ONE = ("properties", "patternProperties", "additionalProperties")
_ANNOTATIONS = frozenset({*_DEFINITIONS, "$schema", "$id", "$comment", "title", "description"})
_NEVER: Node = {"not": {}}
_MAX_NODES = 2000
"""Subschemas to visit: more than any real schema has for one object. References can produce any number."""


def declared_arguments(schema: Schema) -> frozenset[str]:
    """The arguments that the schema names where they can be changed."""
    return _named(itertools.islice(_nodes(schema, SchemaDocument(schema)), _MAX_NODES))


def mentioned_arguments(schema: Schema) -> frozenset[str]:
    """All arguments that the schema names, including through references that cannot be resolved exactly."""
    return _named(_nodes(schema, SchemaDocument(schema), follow=_Follow.ALL))


def says_nothing(schema: Schema) -> bool:
    """Whether the schema leaves the arguments open: it names none, or allows others by rules."""
    rules = (schema.get(key, False) for key in ("additionalProperties", "patternProperties"))
    return any(rule is not False for rule in rules) or ("properties" not in schema and not mentioned_arguments(schema))


def accepts(schema: Schema, name: str, value: Any) -> bool:
    """Whether the root's own keywords allow the value for this argument. True if that cannot be determined."""
    if schema.get("unevaluatedProperties") is False and name not in mentioned_arguments(schema):
        return False
    return _fits(schema, {key: schema[key] for key in _OF_ONE if key in schema}, {name: value})


def with_fixed(schema: Schema, given: Mapping[str, Any]) -> Node:
    """The schema of the remaining arguments if these are always given."""

    def change(node: Node) -> Any:
        properties = _table(node, "properties")
        if any(name in properties and not _fits(schema, properties[name], value) for name, value in given.items()):
            return _NEVER
        node = _always_given(node, given)
        if properties.keys() & given.keys():
            node["properties"] = {name: one for name, one in properties.items() if name not in given}
        for limit in ("minProperties", "maxProperties"):
            if isinstance(node.get(limit), int):
                left = node[limit] - len(given)
                if left < 0 and limit == "maxProperties":
                    return _NEVER
                node[limit] = max(left, 0)
        return node

    return _Walk(schema, change, given).changed()


def with_defaults(schema: Schema, defaults: Mapping[str, Any]) -> Node:
    """Makes these arguments optional."""

    def change(node: Node) -> Node:
        node = _always_given(node, defaults)
        properties = dict(_table(node, "properties"))
        for name in [name for name in defaults if name in properties]:
            if not _fits(schema, properties[name], defaults[name]):
                # A branch that rejects the default applies only if another value is given.
                node["required"] = [*_list(node.get("required")), name]
            elif isinstance(properties[name], dict):
                properties[name] = {**properties[name], "default": defaults[name]}
        return node | ({"properties": properties} if properties else {})

    return _Walk(schema, change, defaults).changed()


def with_names(schema: Schema, names: Mapping[str, str]) -> Node:
    """Renames arguments."""

    def renamed(items: Iterable[Any]) -> list[Any]:
        return [names.get(item, item) if isinstance(item, str) else item for item in items]

    def change(node: Node) -> Node:
        for key in ("properties", "dependentRequired", *_DEPENDING):
            if table := _table(node, key):
                node[key] = {
                    names.get(name, name): renamed(one) if isinstance(one, list) else one for name, one in table.items()
                }
        if isinstance(node.get("required"), list):
            node["required"] = renamed(node["required"])
        return node

    return _Walk(schema, change, names).changed()


def _always_given(node: Node, names: Mapping[str, Any]) -> Node:
    """These arguments are no longer required, and anything that depends on them always applies."""
    required = _texts(node.get("required"))
    branches: list[Any] = []
    for key in ("dependentRequired", *_DEPENDING):
        if table := _table(node, key):
            for name in names:
                one = table.get(name)
                required += _texts(one)
                branches += [one] if isinstance(one, (dict, bool)) else []
            node[key] = {
                name: [item for item in one if not isinstance(item, str) or item not in names]
                if isinstance(one, list)
                else one
                for name, one in table.items()
                if name not in names
            }
    if branches:
        node["allOf"] = [*_list(node.get("allOf")), *branches]
    required = [name for name in dict.fromkeys(required) if name not in names]
    node.pop("required", None)
    return node | ({"required": required} if required else {})


class _Walk:
    """Changes a schema and all its subschemas for the same object."""

    def __init__(self, root: Schema, change: _Change, names: Iterable[str]) -> None:
        self._root = root
        self._document = SchemaDocument(root)
        self._change = change
        self._names = frozenset(names)
        self._left = _MAX_NODES
        self._unfolds: dict[str, bool] = {}

    def changed(self) -> Node:
        made = self._node(dict(self._root), frozenset())
        # The root must remain an object schema that providers accept.
        return {"type": "object", **_NEVER} if made is _NEVER else made

    def _any(self, one: Any, within: frozenset[str]) -> Any:
        return self._node(dict(one), within) if isinstance(one, dict) else one

    def _node(self, node: Node, within: frozenset[str]) -> Any:
        """`node` is a copy; `within` has the references that led here."""
        self._left -= 1
        if self._left < 0:
            return node
        target = _target(node, self._document)
        if target is not None and node["$ref"] not in within and self._concerns(node["$ref"], target):
            within |= {node["$ref"]}
            node = _unfolded(node, target)
        node = self._change(node)
        if node is _NEVER:
            return node
        for key in _ONE:
            if key in node:
                node[key] = self._any(node[key], within)
        for key in _MANY:
            if isinstance(node.get(key), list):
                node[key] = [self._any(one, within) for one in node[key]]
        for key in _DEPENDING:
            if table := _table(node, key):
                node[key] = {name: self._any(one, within) for name, one in table.items()}
        return node

    def _concerns(self, reference: str, target: Node) -> bool:
        """Whether the target mentions one of the changed arguments."""
        if reference not in self._unfolds:
            mentioned = (_mentioned(node) for node in itertools.islice(_nodes(target, self._document), _MAX_NODES))
            self._unfolds[reference] = any(not self._names.isdisjoint(names) for names in mentioned)
        return self._unfolds[reference]


def _unfolded(node: Node, target: Node) -> Node:
    """The reference replaced by its target."""
    rest = {key: value for key, value in node.items() if key != "$ref"}
    if rest.keys() <= _ANNOTATIONS:
        return {**target, **rest}
    return {**rest, "allOf": [*_list(rest.get("allOf")), target]}


def _mentioned(node: Schema) -> Iterator[str]:
    yield from _table(node, "properties")
    yield from _texts(node.get("required"))
    for key in ("dependentRequired", *_DEPENDING):
        for name, one in _table(node, key).items():
            yield from (name, *_texts(one))


class _Follow(enum.Enum):
    """Which references are followed."""

    PLAIN = "plain"
    """Those that can be replaced by their target."""
    ALL = "all"
    """Also references by anchor or identifier: to every node that has one."""


def _named(nodes: Iterable[Schema]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in (*_table(node, "properties"), *_texts(node.get("required"))))


def _nodes(start: Schema, document: SchemaDocument, *, follow: _Follow = _Follow.PLAIN) -> Iterator[Schema]:
    """All subschemas for the same object, each once."""
    waiting: list[Any] = [start]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting += [node.get(key) for key in _ONE]
        waiting += [one for key in _MANY for one in _list(node.get(key))]
        waiting += [one for key in _DEPENDING for one in _table(node, key).values()]
        waiting += [_target(node, document)] if follow is _Follow.PLAIN else _targets(node, document)


def _target(node: Schema, document: SchemaDocument) -> Node | None:
    """The target of a node's reference, if it means the same when copied elsewhere."""
    reference = node.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    pointer = document.pointer(reference)
    found = None if pointer is None else document.at(pointer)
    return found if isinstance(found, dict) and not any(mark in found for mark in _MARKS) else None


def _targets(node: Schema, document: SchemaDocument) -> Iterator[Any]:
    """Every possible target of a node's references."""
    for reference in (node[key] for key in _REFERENCES if key in node):
        pointer = document.pointer(reference)
        if pointer is not None:
            yield document.at(pointer)
        else:
            yield from _marked(document.root)


def _marked(root: Any) -> Iterator[Schema]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if any(isinstance(node.get(mark), str) for mark in _MARKS):
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _fits(root: Schema, schema: Any, value: Any) -> bool:
    around = {key: root[key] for key in ("$schema", *_DEFINITIONS) if key in root}
    try:
        return validator_for({**around, "allOf": [schema]}, offline=True, validate_formats=False).is_valid(value)
    except (ValueError, RecursionError):
        return True


def _table(node: Schema, key: str) -> Mapping[str, Any]:
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [item for item in _list(value) if isinstance(item, str)]
