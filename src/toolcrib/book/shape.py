"""What arguments look like, without what they say.

In: arguments as plain JSON. Out: the same tree with a type for each value: `{"path": "string(12)", "deep": "boolean"}`,
as JSON of a bounded size. Keys stand as they are, but for secrets; a list shows its first members and counts the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

MOST_BYTES = 2048

_DEPTHS = (6, 3, 1, 0)
"""Tried in turn until the shape is small enough."""
_MOST_KEYS = 32
_MOST_MEMBERS = 3
_KEY_LENGTH = 64
_REST = "…"


def shape_of(arguments: Any, redact: Callable[[str], str]) -> str:
    for depth in _DEPTHS:
        text = msgspec.json.encode(_shape(arguments, depth, redact))
        if len(text) <= MOST_BYTES:
            break
    return text.decode()


def _shape(value: Any, depth: int, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return f"string({len(value)})"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case None:
            return "null"
        case dict():
            return _object(value, depth, redact) if depth else f"object({len(value)})"
        case _:
            return _array(value, depth, redact) if depth else f"array({len(value)})"


def _object(value: dict[str, Any], depth: int, redact: Callable[[str], str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, inner in value.items():
        if len(shown) == _MOST_KEYS:
            shown[_REST] = f"+{len(value) - _MOST_KEYS}"
            break
        shown[redact(key)[:_KEY_LENGTH]] = _shape(inner, depth - 1, redact)
    return shown


def _array(value: list[Any], depth: int, redact: Callable[[str], str]) -> list[Any]:
    shown = [_shape(inner, depth - 1, redact) for inner in value[:_MOST_MEMBERS]]
    return [*shown, f"+{len(value) - _MOST_MEMBERS}"] if len(value) > _MOST_MEMBERS else shown
