"""`x-mcp-header` marks in a tool's schema, and the `Mcp-Param-*` headers they ask for.

In: an input schema and a call's arguments. Out: headers for a modern HTTP server, and the schema without its marks for
clients. `calls` makes the headers, `tool` removes the marks.

A mark is valid on a string, integer or boolean property that is reached through `properties` alone. As the
specification demands, one invalid or duplicate mark makes all of them void.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

MARK = "x-mcp-header"
PREFIX = "Mcp-Param-"

Path = tuple[str, ...]

_MARKABLE_TYPES = frozenset({"string", "integer", "boolean"})
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")

# Keywords that hold schemas, grouped by the shape of their value. Keywords that hold data (`default`, `enum`,
# `const`, `examples`) are left out, so that data is never mistaken for a mark.
_ONE_SCHEMA = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"}
    | {"unevaluatedProperties", "not", "if", "then", "else", "contentSchema"}
)
_SCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})

_MAX_DEPTH = 100
"""Marks below this depth are kept; no real schema nests this deep."""


def headers_of(marked: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """A header for each marked property, unless its argument is absent, null or not a scalar."""
    headers = {}
    for path, token in marked.items():
        rendered = _rendered(_value_at(arguments, path))
        if rendered is not None:
            headers[f"{PREFIX}{token}"] = encode_header_value(rendered)
    return headers


def marked_properties(schema: Mapping[str, Any]) -> dict[Path, str]:
    """The marks by path; empty if any of them is invalid."""
    try:
        return _marks(schema)
    except ValueError:
        return {}


def header_fault(schema: Any) -> str | None:
    """Why a schema's marks are invalid, or None. The specification demands that such a tool is left out."""
    try:
        _marks(schema)
    except ValueError as error:
        return str(error)
    return None


def _marks(schema: Any) -> dict[Path, str]:
    marked: dict[Path, str] = {}
    for path, node in _positions(schema):
        if MARK not in node:
            continue
        token, where = node[MARK], ".".join(path)
        if not path:
            raise ValueError(f"{MARK} is not on a property reached through `properties` alone")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ValueError(f"{MARK} of {where!r} is not a valid header name")
        if not isinstance(kind := node.get("type"), str) or kind not in _MARKABLE_TYPES:
            raise ValueError(f"{MARK} of {where!r} is not on a string, integer or boolean")
        if token.lower() in map(str.lower, marked.values()):
            raise ValueError(f"{MARK} of {where!r} is already used by another property")
        marked[path] = token
    return marked


def encode_header_value(value: str) -> str:
    """The value itself if a header can carry it unchanged, else its UTF-8 bytes as `=?base64?…?=`."""
    if _PRINTABLE.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'surrogatepass')).decode('ascii')}?="


def _positions(root: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every schema inside `root`; the path is empty if a keyword other than `properties` led there."""
    waiting: list[tuple[Path, bool, Any]] = [((), True, root)]
    while waiting:
        path, direct, node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        yield (path if direct else ()), node
        for keyword, value in node.items():
            if keyword in _SCHEMA_MAP and isinstance(value, Mapping):
                reachable = direct and keyword == "properties"
                waiting.extend(((*path, key) if reachable else (), reachable, sub) for key, sub in value.items())
            elif keyword in _SCHEMA_LIST and isinstance(value, list):
                waiting.extend(((), False, sub) for sub in value)
            elif keyword in _ONE_SCHEMA:
                waiting.append(((), False, value))


def _value_at(arguments: Mapping[str, Any], path: Path) -> Any:
    node: Any = arguments
    for key in path:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node


def _rendered(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # an integer with more digits than Python prints
        return None


def without_annotations(raw: bytes, depth: int = 0) -> bytes:
    """The schema without its marks. A schema without marks is returned unchanged."""
    # An escape could hide the keyword, so only bytes without either are known to be free of marks.
    if depth > _MAX_DEPTH or (MARK.encode() not in raw and b"\\u" not in raw):
        return raw
    if not raw.lstrip().startswith(b"{"):
        return raw
    fields = msgspec.json.decode(raw, type=dict[str, Raw])
    changed = fields.pop(MARK, None) is not None
    for keyword, value in fields.items():
        held = bytes(value)
        new = _stripped_value(keyword, held, depth + 1)
        if new != held:
            fields[keyword] = Raw(new)
            changed = True
    return msgspec.json.encode(fields) if changed else raw


def _stripped_value(keyword: str, raw: bytes, depth: int) -> bytes:
    def strip(held: Raw) -> Raw:
        return Raw(without_annotations(bytes(held), depth))

    start = raw.lstrip()[:1]
    if keyword in _SCHEMA_MAP and start == b"{":
        return _each(raw, dict[str, Raw], lambda held: {k: strip(v) for k, v in held.items()})
    if keyword in _SCHEMA_LIST and start == b"[":
        return _each(raw, list[Raw], lambda held: list(map(strip, held)))
    return without_annotations(raw, depth) if keyword in _ONE_SCHEMA else raw


def _each(raw: bytes, shape: Any, strip: Callable[[Any], Any]) -> bytes:
    held = msgspec.json.decode(raw, type=shape)
    stripped = strip(held)
    return raw if stripped == held else msgspec.json.encode(stripped)
