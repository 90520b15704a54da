"""One table in a TOML file of somebody else's, put in or taken out without touching the rest.

In: the file's text, the way to a table, a name and a value. Out: the new text. The standard library reads TOML but does
not write it, so the edit is textual; the reader then checks that the entry is right and that nothing else changed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.errors import ConfigError

_HEADER = re.compile(r"^[ \t]*\[")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def get_entry(text: str, keys: Sequence[str], name: str) -> Any:
    """The entry's value, or None."""
    found: Any = _parsed(text)
    for key in (*keys, name):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def put_entry(text: str, keys: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    """The text with the table added at its end, or with the one that is there replaced."""
    newline = "\r\n" if "\r\n" in text else "\n"
    table = newline.join(_table((*keys, name), value)) + newline
    span = _span(text, keys, name)
    if span is not None:
        begin, end, blank = span
        new = text[:begin] + table + blank + text[end:]
    elif not text.strip():
        new = text + table
    else:
        gap = newline if text.endswith("\n") else newline * 2
        new = text + gap + table
    _verify(text, new, keys, name, value)
    return new


def drop_entry(text: str, keys: Sequence[str], name: str) -> str:
    """The text without the table; unchanged where it has none."""
    if get_entry(text, keys, name) is None:
        return text
    span = _span(text, keys, name)
    if span is None:
        raise ConfigError(f"{'.'.join((*keys, name))} is not a table of its own in the file.")
    begin, end, _ = span
    before, after = text[:begin], text[end:]
    if not after and before.endswith("\n"):
        # The empty line that was put before the table goes with it.
        before = re.sub(r"(\r?\n)\r?\n$", r"\1", before)
    new = before + after
    _verify(text, new, keys, name, None)
    return new


def _span(text: str, keys: Sequence[str], name: str) -> tuple[int, int, str] | None:
    """Where the table stands with the tables below it, without the blank lines after it, which are returned too."""
    way = r"[ \t]*\.[ \t]*".join(_spelled(key) for key in (*keys, name))
    own = re.compile(rf"^[ \t]*\[[ \t]*{way}[ \t]*(\]|\.)")
    begin = end = None
    place = 0
    for line in text.splitlines(keepends=True):
        if begin is None:
            if own.match(line):
                begin = place
        elif _HEADER.match(line) and not own.match(line):
            end = place
            break
        place += len(line)
    if begin is None:
        return None
    block = text[begin : end if end is not None else len(text)]
    kept = _without_tail(block)
    return begin, begin + len(block), block[len(kept) :]


def _without_tail(block: str) -> str:
    """Blank lines and comments at the end of a table belong to what follows."""
    lines = block.splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return "".join(lines)


def _spelled(key: str) -> str:
    plain = re.escape(key)
    return rf"(?:{plain}|\"{plain}\"|'{plain}')"


def _table(way: Sequence[str], value: Mapping[str, Any]) -> list[str]:
    return [f"[{'.'.join(map(_key, way))}]", *(f"{_key(key)} = {as_toml(part)}" for key, part in value.items())]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else as_toml(key)


def as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {as_toml(part)}" for key, part in value.items()) + " }"
    return "[" + ", ".join(as_toml(part) for part in value) + "]"


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The file is not TOML: {error}.") from error


def _verify(old: str, new: str, keys: Sequence[str], name: str, value: Mapping[str, Any] | None) -> None:
    try:
        after = tomllib.loads(new)
    except ValueError as error:
        raise ConfigError("The file's way of writing its servers cannot be edited safely.") from error
    if get_entry(new, keys, name) != value or _without(_parsed(old), keys, name) != _without(after, keys, name):
        raise ConfigError("The file's way of writing its servers cannot be edited safely.")


def _without(data: dict[str, Any], keys: Sequence[str], name: str) -> dict[str, Any]:
    """The data as it is without the entry, and without tables that only held it."""
    if not keys:
        return {key: value for key, value in data.items() if key != name}
    inner = data.get(keys[0])
    if not isinstance(inner, dict):
        return data
    rest = _without(inner, keys[1:], name)
    return {**{key: value for key, value in data.items() if key != keys[0]}, **({keys[0]: rest} if rest else {})}
