"""JSON text → data, with the line of every key and every key that stands twice.

In: text from outside. Out: `Parsed`, or `Unreadable` with the line. The standard parser decides what is
JSON; a second walk over its tokens, which are known to be sound by then, finds lines and duplicates.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from toolcrib.config.model import KeyPath

DEPTH_LIMIT = 64


@dataclass(kw_only=True)
class Parsed:
    """What both formats come to. Of a key that stands twice, the first value is kept."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    duplicates: list[tuple[KeyPath, int]] = field(default_factory=list)
    """With the line where each stands again."""


class Unreadable(Exception):
    """The text as a whole cannot be used."""

    def __init__(self, *, found: str, expected: str, line: int | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.line = line


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def parse_json(text: str) -> Parsed:
    try:
        data = json.loads(text, object_pairs_hook=_first_wins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Unreadable(
            found=f"a mistake in column {error.colno}: {error.msg}", expected="JSON", line=error.lineno
        ) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError:
        # The interpreter refuses to turn thousands of digits into a number.
        raise Unreadable(found="a number that is far too long", expected="JSON") from None
    parsed = Parsed(data=data)
    _walk(text, parsed)
    return parsed


def too_deep(line: int | None = None) -> Unreadable:
    return Unreadable(
        found=f"more than {DEPTH_LIMIT} levels of nesting", expected=f"at most {DEPTH_LIMIT} levels", line=line
    )


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        result.setdefault(key, value)
    return result


def _no_constant(word: str) -> NoReturn:
    raise Unreadable(found=f"{word}, which is no JSON number", expected="JSON")


@dataclass(kw_only=True)
class _Open:
    """An object or list that the walk is inside of."""

    path: KeyPath
    keys: set[str] | None
    """None for a list."""
    position: int = 0
    key: str | None = None


def _walk(text: str, parsed: Parsed) -> None:
    stack: list[_Open] = []
    line, counted = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        word = token[0]
        top = stack[-1] if stack else None
        if word in "]}":
            stack.pop()
        elif word == ",":
            if top and top.keys is None:
                top.position += 1
            elif top:
                top.key = None
        elif word != ":":
            if top and top.keys is not None and top.key is None:
                _enter_key(top, json.loads(word), line, parsed)
                continue
            path = _path_of(top)
            parsed.lines.setdefault(path, line)
            if word in "{[":
                if len(stack) >= DEPTH_LIMIT:
                    raise too_deep(line)
                stack.append(_Open(path=path, keys=set() if word == "{" else None))


def _enter_key(top: _Open, key: str, line: int, parsed: Parsed) -> None:
    path = (*top.path, key)
    if top.keys is not None:
        if key in top.keys:
            parsed.duplicates.append((path, line))
        top.keys.add(key)
    top.key = key
    parsed.lines.setdefault(path, line)


def _path_of(top: _Open | None) -> KeyPath:
    if top is None:
        return ()
    return (*top.path, top.position if top.key is None else top.key)
