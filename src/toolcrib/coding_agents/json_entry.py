"""Adds or removes one entry in another program's JSON file without touching the rest.

In: the file's text, the path to an object in it, a name and a value. Out: the new text. Everything but the entry keeps
its bytes: indentation, order, spacing, line endings. Anything but plain JSON (comments, trailing commas) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolcrib.errors import ConfigError

_BLANK = " \t\r\n"


@dataclass(frozen=True, kw_only=True)
class _Member:
    key: str
    start: int
    """The position of the key's opening quote."""
    value_start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class _Object:
    start: int
    end: int
    """One past the closing brace."""
    members: tuple[_Member, ...]

    def member(self, key: str) -> _Member | None:
        # If a key occurs twice, readers take the last.
        return next((member for member in reversed(self.members) if member.key == key), None)


def get_entry(text: str, keys: Sequence[str], name: str) -> Any:
    """The entry's value, or None."""
    found = _parsed(text) if text.strip() else {}
    for key in (*keys, name):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def put_entry(text: str, keys: Sequence[str], name: str, value: Any) -> str:
    """The text with the entry added, or with its value replaced."""
    if not text.strip():
        nested: Any = {name: value}
        for key in reversed(keys):
            nested = {key: nested}
        return json.dumps(nested, indent=2, ensure_ascii=False) + "\n"
    _parsed(text)
    step = _indentation(text)
    place = _skip(text, 0)
    for depth, key in enumerate(keys):
        here = _object(text, place, keys[:depth])
        member = here.member(key)
        if member is None:
            nested = {name: value}
            for inner in reversed(keys[depth + 1 :]):
                nested = {inner: nested}
            return _insert(text, here, key, nested, step, depth)
        place = member.value_start
    here = _object(text, place, keys)
    member = here.member(name)
    if member is None:
        return _insert(text, here, name, value, step, len(keys))
    written = _written(value, step, len(keys) + 1, _newline(text))
    return text[: member.value_start] + written + text[member.end :]


def drop_entry(text: str, keys: Sequence[str], name: str) -> str:
    """The text without the entry; unchanged if it has none."""
    if get_entry(text, keys, name) is None:
        return text
    place = _skip(text, 0)
    for depth, key in enumerate(keys):
        member = _object(text, place, keys[:depth]).member(key)
        if member is None:
            return text
        place = member.value_start
    here = _object(text, place, keys)
    index = next(i for i in range(len(here.members) - 1, -1, -1) if here.members[i].key == name)
    member = here.members[index]
    if index + 1 < len(here.members):
        return text[: member.start] + text[here.members[index + 1].start :]
    if index > 0:
        return text[: here.members[index - 1].end] + text[member.end :]
    return text[: here.start + 1] + text[here.end - 1 :]


def _insert(text: str, here: _Object, key: str, value: Any, step: str | None, depth: int) -> str:
    newline = _newline(text)
    written = f"{json.dumps(key, ensure_ascii=False)}: {_written(value, step, depth + 1, newline)}"
    lead = "" if step is None else newline + step * (depth + 1)
    if here.members:
        end = here.members[-1].end
        return f"{text[:end]},{lead or ' '}{written}{text[end:]}"
    tail = "" if step is None else newline + step * depth
    return f"{text[: here.start + 1]}{lead}{written}{tail}{text[here.end - 1 :]}"


def _written(value: Any, step: str | None, depth: int, newline: str) -> str:
    """The value in the file's style: indented like its neighbours, or on one line."""
    if step is None:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, indent=step, ensure_ascii=False).split("\n")
    return (newline + step * depth).join(lines)


def _indentation(text: str) -> str | None:
    """The indentation of one level; None for a file on a single line."""
    top = _object(text, _skip(text, 0), ())
    if not top.members:
        return "  "
    before = text[top.start + 1 : top.members[0].start]
    if "\n" not in before:
        return None
    return before.rpartition("\n")[2] or "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        comments = "//" in text or "/*" in text
        why = "it may contain comments, which plain JSON does not allow" if comments else str(error)
        raise ConfigError(f"The file is not plain JSON: {why}.") from error


def _object(text: str, start: int, keys: Sequence[str]) -> _Object:
    """The object that begins at `start`. The text must be valid JSON."""
    if text[start] != "{":
        where = ".".join(keys) or "the top of the file"
        raise ConfigError(f"{where} is not an object, so no server can be added to it.")
    decoder = json.JSONDecoder()
    members: list[_Member] = []
    place = _skip(text, start + 1)
    while text[place] != "}":
        key, after = decoder.raw_decode(text, place)
        value_start = _skip(text, _skip(text, after) + 1)
        _, end = decoder.raw_decode(text, value_start)
        members.append(_Member(key=key, start=place, value_start=value_start, end=end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return _Object(start=start, end=place + 1, members=tuple(members))


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANK:
        place += 1
    return place
