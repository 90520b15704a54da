"""Picks parts of a decoded JSON value by a path: `$.items[0:20].name`.

In: a value and a path. Out: the values that the path leads to, or `InvalidArguments` with the place where it ends.
A small part of JSONPath (RFC 9535): names, positions, ranges and `*`. Filters and descendants are left out, because
their work has no limit; without them every value is visited once at most. `gateway.large_results` uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from toolcrib.errors import InvalidArguments

_MAX_LENGTH = 1000
_STEP = re.compile(
    r"\.(?P<plain>[^\W\d][\w-]*)|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]|\[(?P<single>'[^'\\]*')\]"
    r"|\[(?P<position>-?\d{1,15})\]|\[(?P<first>-?\d{1,15})?:(?P<last>-?\d{1,15})?\]|(?P<all>\[\*\]|\.\*)"
)
_NAMED = 10
"""Keys that an error names."""
_Step = str | int | slice
_ALL = slice(None)


def find(value: Any, path: str) -> list[Any]:
    """Members that only some of several values have are taken from those. Raises if there is nothing at the path."""
    found, done = [value], "$"
    for text, step in _steps(path):
        further = [inner for one in found for inner in _taken(one, step)]
        if not further:
            raise _nothing(done, found, text)
        found, done = further, done + text
    return found


def pick(value: Any, path: str) -> Any:
    """The value at a path; a list of them for a path with ranges."""
    found = find(value, path)
    return found if any(isinstance(step, slice) for _, step in _steps(path)) else found[0]


def _steps(path: str) -> Iterator[tuple[str, _Step]]:
    if len(path) > _MAX_LENGTH:
        raise InvalidArguments(f"The path has more than {_MAX_LENGTH} characters.")
    if path and not path.startswith("$"):
        # Models leave the root out: `items[0]` is `$.items[0]`.
        path = f"${path}" if path.startswith(("[", ".")) else f"$.{path}"
    at = 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise InvalidArguments(
                f"The path cannot be read from {path[at : at + 40]!r} on.",
                remedy='Use $, .name, ["name"], [0], [0:20] and [*].',
            )
        yield step[0], _read(step)
        at = step.end()


def _read(step: re.Match[str]) -> _Step:
    if step["plain"]:
        return step["plain"]
    if step["single"]:
        return step["single"][1:-1]
    if step["quoted"]:
        try:
            return msgspec.json.decode(step["quoted"], type=str)
        except msgspec.MsgspecError as error:
            raise InvalidArguments(f"The path has an invalid name: {step['quoted'][:40]}.") from error
    if step["position"]:
        return int(step["position"])
    if step["all"]:
        return _ALL
    return slice(*(int(end) if end else None for end in (step["first"], step["last"])))


def _taken(value: Any, step: _Step) -> list[Any]:
    if isinstance(value, dict):
        if step == _ALL:
            return list(value.values())
        return [value[step]] if isinstance(step, str) and step in value else []
    if isinstance(value, list) and not isinstance(step, str):
        if isinstance(step, slice):
            return value[step]
        return [value[step]] if -len(value) <= step < len(value) else []
    return []


def _nothing(done: str, found: list[Any], text: str) -> InvalidArguments:
    one = found[0]
    if isinstance(one, dict):
        names = ", ".join(name[:40] for name in list(one)[:_NAMED])
        there = f"an object with {names}{', …' if len(one) > _NAMED else ''}" if one else "an empty object"
    elif isinstance(one, list):
        there = f"a list of {len(one)}"
    else:
        there = "a single value"
    return InvalidArguments(f"There is nothing at {done}{text[:80]}: {done} is {there}.")
