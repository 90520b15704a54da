"""What a program printed, as what it should be: anything else counts as not there.

In: a value out of a printed line, which may be anything. Out: a text, a number, a list or an object, for
the readers.
"""

from __future__ import annotations

from typing import Any


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
