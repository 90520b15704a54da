"""A YAML text with one server more or one less, everything else as the person wrote it.

In: the text, and the server. Out: the new text, a minimal change of the old one. Whether it says what
it should is checked by `edit`, which reads it again; so an odd layout ends in a clear refusal, never in a loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.config.keys import plain
from toolcrib.config.yaml_text import Kind, Node, parse_nodes

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_PLAIN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_STEP = 2


def with_server(text: str, name: str, entry: Mapping[str, Any]) -> str:
    section = _section(text)
    if section is None:
        return _appended(text, [("servers:", 0), *_lines(name, entry, _STEP)])
    key, node = section
    if node.kind is Kind.SCALAR or (node.flow and not node.children):
        # An empty section: nothing after the colon, or `{}`.
        indent = key.start.column + _STEP
        head, tail = text[: key.end.offset].rstrip(), text[node.end.offset :]
        colon = "" if head.endswith(":") else ":"
        body = "".join(f"\n{' ' * depth}{line}" for line, depth in _lines(name, entry, indent))
        first, newline, rest = tail.removeprefix(":").partition("\n")
        return f"{head}{colon}{first}{body}{newline or chr(10)}{rest}"
    listed = {"name": name, **entry}
    if node.flow:
        addition = flow(listed) if node.kind is Kind.LIST else f"{flow(name)}: {flow(entry)}"
        last = node.children[-1].end.offset
        return f"{text[:last]}, {addition}{text[last:]}"
    column = node.start.column
    lines = [(f"- {flow(listed)}", column)] if node.kind is Kind.LIST else _lines(name, entry, column)
    return _inserted(text, _line_after(node), lines)


def without_server(text: str, name: str) -> str:
    """Takes out the lines of the entry; a comment above it stays."""
    section = _section(text)
    if section is None:
        return text
    key, node = section
    if node.kind is Kind.LIST:
        entries = [(item, item) for item in node.children]
        position = next((at for at, (item, _) in enumerate(entries) if _name_in(item) == name), None)
    else:
        entries = node.pairs
        position = next((at for at, (item, _) in enumerate(entries) if item.text == name), None)
    if position is None:
        return text
    if node.flow:
        return _without_flow(text, entries, position)
    first, last = entries[position]
    lines = text.splitlines(keepends=True)
    del lines[first.start.line : _line_after(last)]
    if len(entries) == 1:
        empty = "[]" if node.kind is Kind.LIST else "{}"
        lines[key.start.line] = re.sub(r":(\s*)(#.*)?$", rf": {empty}\1\2", lines[key.start.line], count=1)
    return "".join(lines)


def _without_flow(text: str, entries: Sequence[tuple[Node, Node]], position: int) -> str:
    """The entry and one comma beside it; where a comment stands between the two, nothing is changed."""
    start, end = entries[position][0].start.offset, entries[position][1].end.offset
    cut = start, end
    if position + 1 < len(entries):
        cut = start, entries[position + 1][0].start.offset
    elif position > 0:
        cut = entries[position - 1][1].end.offset, end
    if "#" in text[cut[0] : start] + text[end : cut[1]]:
        return text
    return text[: cut[0]] + text[cut[1] :]


def whole(data: Mapping[str, Any]) -> str:
    """All of it anew: only for a text that has no comment to lose."""
    return "".join(f"{' ' * depth}{line}\n" for key, value in data.items() for line, depth in _lines(key, value, 0))


def _section(text: str) -> tuple[Node, Node] | None:
    root = parse_nodes(text)
    found = [pair for pair in root.pairs if pair[0].kind is Kind.SCALAR] if root and root.kind is Kind.MAPPING else []
    for wanted in ("servers", "mcp_servers"):
        for key, value in found:
            if plain(key.text) == wanted:
                return key, value
    return None


def _name_in(item: Node) -> str | None:
    if item.kind is not Kind.MAPPING:
        return None
    return next((value.text for key, value in item.pairs if plain(key.text) in ("name", "server_name")), None)


def _line_after(node: Node) -> int:
    return node.end.line if node.end.column == 0 and node.end.line > node.start.line else node.end.line + 1


def _appended(text: str, lines: Sequence[tuple[str, int]]) -> str:
    return _inserted(text, len(text.splitlines()), lines)


def _inserted(text: str, at: int, lines: Sequence[tuple[str, int]]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    existing = text.splitlines(keepends=True)
    if existing and at >= len(existing) and not existing[-1].endswith("\n"):
        existing[-1] += newline
    existing[at:at] = [f"{' ' * depth}{line}{newline}" for line, depth in lines]
    return "".join(existing)


def _lines(key: str, value: Any, depth: int) -> list[tuple[str, int]]:
    """A key and its value as lines with their indentation: mappings as blocks, the rest on one line."""
    if isinstance(value, Mapping) and value:
        inner = [line for name, item in value.items() for line in _lines(name, item, depth + _STEP)]
        return [(f"{flow(key)}:", depth), *inner]
    return [(f"{flow(key)}: {flow(value)}", depth)]


def flow(value: Any) -> str:
    """A value on one line: plain words plain, everything else in quotes."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN else _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
