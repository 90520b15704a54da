"""Repairs a server's schema.

In: a server's schema, of any draft and possibly invalid. Out: an equivalent valid JSON Schema 2020-12, or the same
object if nothing was wrong. All formats begin here, because providers reject a whole request for one invalid keyword.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from toolcrib.catalog.schema_refs import SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS, SchemaDocument, pointer_below
from toolcrib.formats.definition import AdaptationLog, Schema

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_INVALID = "it is not valid JSON Schema"
_OLD = "the provider expects JSON Schema 2020-12"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_strings(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _is_strings(value) and bool(value) and set(value) <= set(TYPES)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "required": _is_strings,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_is_strings, value.values())),
    "dependencies": lambda value: isinstance(value, dict),
    "examples": lambda value: isinstance(value, list),
    "$id": lambda value: isinstance(value, str) and "#" not in value[:-1],
    "$anchor": lambda value: isinstance(value, str) and value.replace("_", "a").replace("-", "0").isalnum(),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _is_count,
    ),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(
        ("title", "description", "$comment", "pattern", "format", "$ref", "$schema", "contentEncoding"), _is_text
    ),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "contentMediaType"), _is_text),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly", "$recursiveAnchor"), _is_flag),
    **dict.fromkeys(SCHEMA_MAPS, lambda value: isinstance(value, dict)),
    **dict.fromkeys(SCHEMA_LISTS, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(SINGLE_SCHEMAS, lambda value: isinstance(value, dict | bool)),
}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def repaired(schema: Mapping[str, Any], log: AdaptationLog) -> Schema:
    found = _Repair(schema, log).node(schema, "#")
    return found if isinstance(found, dict) else dict(schema)


class _Repair:
    def __init__(self, root: Mapping[str, Any], log: AdaptationLog) -> None:
        self._document = SchemaDocument(root)
        self._note = log.note

    def node(self, node: Any, path: str) -> Any:
        if not isinstance(node, Mapping):
            if not isinstance(node, bool):
                self._note(path, f"{_shown(node)} became any value", _INVALID)
                return {}
            return node
        fixed = self._own_keywords(dict(node), path)
        for key, value in fixed.items():
            if key in SCHEMA_MAPS:
                fixed[key] = _same(
                    value, {name: self.node(sub, pointer_below(path, key, name)) for name, sub in value.items()}
                )
            elif key in SCHEMA_LISTS:
                fixed[key] = _same(value, [self.node(sub, pointer_below(path, key, i)) for i, sub in enumerate(value)])
            elif key in SINGLE_SCHEMAS:
                fixed[key] = self.node(value, pointer_below(path, key))
        return _same(node, fixed)

    def _own_keywords(self, node: Schema, path: str) -> Schema:
        self._old_forms(node, path)
        self._marked_required(node, path)
        for key in [key for key, value in node.items() if key in _SHAPES and not _SHAPES[key](value)]:
            self._mend(node, key, path)
        for key in _REFERENCES:
            if key in node and not self._document.ends(node[key]):
                reference = node.pop(key)
                text = f"See {reference}."
                node["description"] = f"{node.get('description', '')}\n{text}".strip()
                self._note(
                    path,
                    f"{key} {_shown(reference)} was moved into the description",
                    "the schema has no such definition",
                )
        return node

    def _old_forms(self, node: Schema, path: str) -> None:
        if isinstance(node.get("items"), list) and "prefixItems" not in node:
            node["prefixItems"] = node.pop("items")
            if "additionalItems" in node:
                node["items"] = node.pop("additionalItems")
            self._note(path, "items was renamed to prefixItems", _OLD)
        if isinstance(dependencies := node.get("dependencies"), Mapping):
            del node["dependencies"]
            for name, needed in dependencies.items():
                key = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
                known = node.get(key)
                node[key] = {**(known if isinstance(known, Mapping) else {}), name: needed}
            self._note(path, "dependencies became dependentRequired and dependentSchemas", _OLD)
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(node.get(exclusive), bool):
                if node.pop(exclusive) and limit in node:
                    node[exclusive] = node.pop(limit)
                self._note(path, f"{exclusive} became a number", _OLD)

    def _marked_required(self, node: Schema, path: str) -> None:
        """Draft 3 marks each property. The mark itself is removed later, as invalid."""
        properties = node.get("properties")
        if not isinstance(properties, Mapping):
            return
        marked = [name for name, sub in properties.items() if isinstance(sub, Mapping) and sub.get("required") is True]
        if marked:
            known = node.get("required")
            node["required"] = list(dict.fromkeys([*(known if _is_strings(known) else ()), *marked]))
            self._note(path, f"{', '.join(marked)} added to required", _OLD)

    def _mend(self, node: Schema, key: str, path: str) -> None:
        """Corrects the keyword if the intent is clear, otherwise removes it."""
        value = node.pop(key)
        what = f"{key} {_shown(value)} was removed"
        if key in ("required", "type") and isinstance(value, list):
            known = [item for item in value if isinstance(item, str) and (key == "required" or item in TYPES)]
            if known:
                node[key] = list(dict.fromkeys(known))
                what = f"{key} {_shown(value)} became {_shown(node[key])}"
        elif key == "type" and isinstance(value, str) and value.lower() in TYPES:
            node[key] = value.lower()
            what = f"type {_shown(value)} became {_shown(node[key])}"
        elif key in ("title", "description") and value is not None:
            node[key] = _shown(value)
            what = f"{key} became a string"
        self._note(path, what, _INVALID)


def _same(before: Any, after: Any) -> Any:
    """The original object if nothing in it changed."""
    if len(before) != len(after):
        return after
    if isinstance(before, Mapping):
        kept = all(key in before and before[key] is value for key, value in after.items())
    else:
        kept = all(one is other for one, other in zip(before, after, strict=True))
    return before if kept else after


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:79] + "…"
