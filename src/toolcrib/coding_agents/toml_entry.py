"""Adds, replaces or removes one table in another program's TOML file without touching the rest.

In: the file's text, the path to a table, a name and a value. Out: the new text, with the user's comments and formatting
kept. `tomlkit` edits; the standard library's parser then checks that only the entry changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Comment, InlineTable, Item, Table, Whitespace

from toolcrib.errors import ConfigError

_REMOVED = "toolcrib: removed"
_TABLE_BEFORE_COMMENT = re.compile(rf"[^\n]*\n# {_REMOVED}\r?\n")


def get_entry(text: str, keys: Sequence[str], name: str) -> Any:
    """The entry's value, or None."""
    found: Any = _parsed(text)
    for key in (*keys, name):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def put_entry(text: str, keys: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    """The text with the table appended, or with the existing one updated."""
    _parsed(text)
    document, holder = _opened(text, keys)
    if holder is None or (name not in holder and not isinstance(holder, InlineTable)):
        gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        new = text + _with_line_ends(gap + _table_text((*keys, name), value), text)
    else:
        present = holder.get(name)
        if isinstance(present, Table):
            _update(present, value)
        else:
            holder[name] = _item(value)
        new = _with_line_ends(document.as_string(), text)
    return _verified(text, new, keys, name, value)


def drop_entry(text: str, keys: Sequence[str], name: str) -> str:
    """The text without the table; unchanged if it has none."""
    if get_entry(text, keys, name) is None:
        return text
    document, holder = _opened(text, keys)
    if holder is None:
        raise _unsafe()
    if isinstance(present := holder[name], Table):
        # Replace it with a marker first: the comments at its end belong to the next table and must stay.
        holder[name] = _table({}, [tomlkit.comment(_REMOVED), *_take_tail(present)])
        before, after = _TABLE_BEFORE_COMMENT.split(_with_line_ends(document.as_string(), text), maxsplit=1)
        # Also remove the blank line that was added before the table.
        new = re.sub(r"(\r?\n)\r?\n\Z", r"\1", before) if not after else before + after
    else:
        del holder[name]
        new = document.as_string()
    return _verified(text, new, keys, name, None)


def as_toml(value: Any) -> str:
    return _item(value).as_string()


def _opened(text: str, keys: Sequence[str]) -> tuple[tomlkit.TOMLDocument, MutableMapping[str, Any] | None]:
    """The document, and the table that holds the entries, or None if it does not exist yet."""
    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, RecursionError) as error:
        raise _unsafe() from error
    holder: Any = document
    for key in keys:
        holder = holder.get(key) if isinstance(holder, MutableMapping) else None
    return document, holder if isinstance(holder, MutableMapping) else None


def _update(table: Table, value: Mapping[str, Any]) -> None:
    """Sets the table's values; existing keys keep their position and comments."""
    tail = _take_tail(table)
    for key in [key for key in table if key not in value]:
        del table[key]
    for key, part in value.items():
        if key not in table or table[key] != part:
            table[key] = _item(part)
    for item in tail:
        table.add(item)


def _table(value: Mapping[str, Any], tail: Sequence[Comment | Whitespace] = ()) -> Table:
    table = tomlkit.table()
    for key, part in value.items():
        table.append(key, _item(part))
    for item in tail:
        table.add(item)
    return table


def _take_tail(table: Table) -> list[Comment | Whitespace]:
    """Blank lines and comments at the end of a table belong to the next one."""
    body = table.value.body
    tail: list[Comment | Whitespace] = []
    while body and body[-1][0] is None and isinstance(item := body[-1][1], Comment | Whitespace):
        tail.insert(0, item)
        body.pop()
    if not tail and body and isinstance(last := body[-1][1], Table):
        return _take_tail(last)
    return tail


def _item(value: Any) -> Item:
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        for key, part in value.items():
            table.append(key, _item(part))
        return table
    item: Item = tomlkit.item([_item(part) for part in value] if isinstance(value, list | tuple) else value)
    return item


def _table_text(keys: Sequence[str], value: Mapping[str, Any]) -> str:
    document = tomlkit.document()
    holder: Any = document
    for key in keys[:-1]:
        holder[key] = tomlkit.table(is_super_table=True)
        holder = holder[key]
    holder[keys[-1]] = _table(value)
    return document.as_string()


def _with_line_ends(new: str, text: str) -> str:
    return re.sub(r"(?<!\r)\n", "\r\n", new) if "\r\n" in text and not re.search(r"(?<!\r)\n", text) else new


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The file is not TOML: {error}.") from error


def _verified(old: str, new: str, keys: Sequence[str], name: str, value: Mapping[str, Any] | None) -> str:
    try:
        after = tomllib.loads(new)
    except ValueError as error:
        raise _unsafe() from error
    if get_entry(new, keys, name) != value or _without(_parsed(old), keys, name) != _without(after, keys, name):
        raise _unsafe()
    return new


def _unsafe() -> ConfigError:
    return ConfigError("The servers in this file are written in a form that cannot be edited safely.")


def _without(data: dict[str, Any], keys: Sequence[str], name: str) -> dict[str, Any]:
    """The data without the entry, and without tables that contained nothing else."""
    if not keys:
        return {key: value for key, value in data.items() if key != name}
    inner = data.get(keys[0])
    if not isinstance(inner, dict):
        return data
    rest = _without(inner, keys[1:], name)
    return {**{key: value for key, value in data.items() if key != keys[0]}, **({keys[0]: rest} if rest else {})}
