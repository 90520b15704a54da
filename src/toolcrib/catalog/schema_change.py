"""A schema of arguments, changed: an argument that is always given, has another name, or need not be given.

In: a JSON Schema of an object. Out: another one that says the same of what is left for the model to give; what was
given is never changed, only shared. `transforms` asks.

What is said of an argument is looked for at the root and in all that speaks of the same object: `allOf`, `anyOf`,
`oneOf`, `not`, `if`, `then`, `else`, `dependentSchemas`, and definitions of the schema that these refer to. What
cannot be put into other words (`propertyNames`, `patternProperties`) stays; the tool's own schema is checked anyway
when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema_rs import validator_for

Schema = Mapping[str, Any]
Node = dict[str, Any]
_Change = Callable[[Node], Any]

_ONE = ("not", "if", "then", "else")
_MANY = ("allOf", "anyOf", "oneOf")
_DEPENDING = ("dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_ANNOTATIONS = frozenset({*_DEFINITIONS, "$schema", "$id", "$comment", "title", "description"})
_NEVER: Node = {"not": {}}
_DEEPEST = 12
"""References to one another are followed no further; nobody nests the forms of one object so deep."""


def declared(schema: Schema) -> frozenset[str]:
    """The arguments that the schema names."""
    names: set[str] = set()
    for node in _nodes(schema, schema, 0):
        names.update(_table(node, "properties"), _texts(node.get("required")))
    return frozenset(names)


def takes(schema: Schema, name: str, value: Any) -> bool:
    """Whether the root's own word on this argument allows the value. What cannot be judged is allowed."""
    properties = _table(schema, "properties")
    return name not in properties or _fits(schema, properties[name], value)


def with_given(schema: Schema, given: Mapping[str, Any]) -> Node:
    """What is left of the schema where these arguments are always given."""

    def change(node: Node) -> Any:
        properties = _table(node, "properties")
        if any(name in properties and not _fits(schema, properties[name], value) for name, value in given.items()):
            return _NEVER
        node = _always_there(node, given)
        if properties.keys() & given.keys():
            node["properties"] = {name: one for name, one in properties.items() if name not in given}
        for limit in ("minProperties", "maxProperties"):
            if isinstance(node.get(limit), int):
                node[limit] = max(node[limit] - len(given), 0)
        return node

    return _changed(schema, change)


def with_defaults(schema: Schema, defaults: Mapping[str, Any]) -> Node:
    """These arguments need not be given."""

    def change(node: Node) -> Node:
        node = _always_there(node, defaults)
        properties = _table(node, "properties")
        if properties.keys() & defaults.keys():
            node["properties"] = {
                name: {**one, "default": defaults[name]} if name in defaults and isinstance(one, dict) else one
                for name, one in properties.items()
            }
        return node

    return _changed(schema, change)


def with_names(schema: Schema, names: Mapping[str, str]) -> Node:
    """Arguments under other names."""

    def renamed(words: Iterable[Any]) -> list[Any]:
        return [names.get(word, word) if isinstance(word, str) else word for word in words]

    def change(node: Node) -> Node:
        for key in ("properties", "dependentRequired", *_DEPENDING):
            if table := _table(node, key):
                node[key] = {
                    names.get(name, name): renamed(one) if isinstance(one, list) else one for name, one in table.items()
                }
        if isinstance(node.get("required"), list):
            node["required"] = renamed(node["required"])
        return node

    return _changed(schema, change)


def _always_there(node: Node, names: Mapping[str, Any]) -> Node:
    """Nobody has to be told to give these, and what must come with them must always come."""
    required = _texts(node.get("required"))
    branches: list[Any] = []
    for key in ("dependentRequired", *_DEPENDING):
        if table := _table(node, key):
            for name in names:
                one = table.get(name)
                required += _texts(one)
                branches += [one] if isinstance(one, (dict, bool)) else []
            node[key] = {
                name: [word for word in one if word not in names] if isinstance(one, list) else one
                for name, one in table.items()
                if name not in names
            }
    if branches:
        node["allOf"] = [*_list(node.get("allOf")), *branches]
    required = [name for name in dict.fromkeys(required) if name not in names]
    node.pop("required", None)
    return node | ({"required": required} if required else {})


def _changed(schema: Schema, change: _Change) -> Node:
    made = _walked(dict(schema), schema, change, 0)
    # The root stays a schema that providers take for one of an object.
    return made if made is not _NEVER else {"type": "object", **made}


def _walked(node: Node, root: Schema, change: _Change, depth: int) -> Any:
    """The node, changed, and all in it that speaks of the same object. `node` is ours."""
    node = change(_unfolded(node, root, change, depth))
    for key in _ONE:
        if isinstance(node.get(key), dict):
            node[key] = _walked(dict(node[key]), root, change, depth + 1)
    for key in _MANY:
        if isinstance(node.get(key), list):
            node[key] = [
                _walked(dict(one), root, change, depth + 1) if isinstance(one, dict) else one for one in node[key]
            ]
    for key in _DEPENDING:
        if table := _table(node, key):
            node[key] = {
                name: _walked(dict(one), root, change, depth + 1) if isinstance(one, dict) else one
                for name, one in table.items()
            }
    return node


def _unfolded(node: Node, root: Schema, change: _Change, depth: int) -> Node:
    """In place of a reference, what it refers to, if the change is about something in there."""
    target = _target(node, root)
    if target is None or depth >= _DEEPEST:
        return node
    if _walked(dict(target), root, change, depth + 1) == target:
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    if rest.keys() <= _ANNOTATIONS:
        return {**target, **rest}
    return {**rest, "allOf": [*_list(rest.get("allOf")), dict(target)]}


def _nodes(node: Schema, root: Schema, depth: int) -> Iterator[Schema]:
    if depth > _DEEPEST:
        return
    yield node
    inner: list[Any] = [node.get(key) for key in _ONE]
    inner += [one for key in _MANY for one in _list(node.get(key))]
    inner += [one for key in _DEPENDING for one in _table(node, key).values()]
    inner.append(_target(node, root))
    for one in inner:
        if isinstance(one, dict):
            yield from _nodes(one, root, depth + 1)


def _target(node: Schema, root: Schema) -> Node | None:
    """The definition of the schema that a node refers to."""
    reference = node.get("$ref")
    if isinstance(reference, str):
        for place in _DEFINITIONS:
            found = _table(root, place).get(reference.removeprefix(f"#/{place}/"))
            if isinstance(found, dict) and reference.startswith(f"#/{place}/"):
                return found
    return None


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
    return [word for word in _list(value) if isinstance(word, str)]
