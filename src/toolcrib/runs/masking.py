"""Plain values without the secrets of a run, at any depth.

In: what is about to be written down, and the values that nobody may read there. Out: the same with stars in their
place, keys too, and of a form that JSON can hold. `log` writes nothing else. Unlike the book, which shows a line to
people, it leaves every other character as it is: a log is kept whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from toolcrib.config.masking import Masker
from toolcrib.config.redact import HIDDEN

_DEEPEST = 100


class Masking:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._text = Masker(secrets).known

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float):
            return HIDDEN if self._text(str(value)) == HIDDEN else number(value)
        if depth >= _DEEPEST:
            return self._text(_as_text(value))
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple):
            return [self(inner, depth + 1) for inner in value]
        return self._text(str(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for key, inner in value.items():
            name = self._text(str(key))
            while name in masked:
                # Two keys that look alike now: neither takes the other's place.
                name += "*"
            masked[name] = self(inner, depth + 1)
        return masked


def number(value: float) -> Any:
    """JSON knows no infinity; an integer has none, and may be too large for a float."""
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "(nested too deeply to be kept)"
