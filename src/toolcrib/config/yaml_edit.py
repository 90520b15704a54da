"""Changes the text of a YAML file with servers, and nothing else in it.

In: the text, a server's name, an entry or some of its keys. Out: the new text. Comments and layout stay. An unusual
layout may give a wrong text, so `edit` parses it and compares before it writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.config.keys import normalized_key
from toolcrib.config.parse import NodeKind, YamlNode, parse_nodes

NAME_KEYS = ("name", "server_name")

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_PLAIN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_STEP = 2


def with_server(text: str, name: str, entry: Mapping[str, Any]) -> str:
    section = _yaml_section(text)
    if section is None:
        return _inserted(text, len(text.splitlines()), [("servers:", 0), *_yaml_lines(name, entry, _STEP)])
    key, node = section
    if node.kind is NodeKind.SCALAR or (node.flow and not node.children):
        # An empty section: nothing after the colon, or `{}`.
        indent = key.start.column + _STEP
        head, tail = text[: key.end.offset].rstrip(), text[node.end.offset :]
        colon = "" if head.endswith(":") else ":"
        body = "".join(f"\n{' ' * depth}{line}" for line, depth in _yaml_lines(name, entry, indent))
        first, newline, rest = tail.removeprefix(":").partition("\n")
        return f"{head}{colon}{first}{body}{newline or chr(10)}{rest}"
    listed = {"name": name, **entry}
    if node.flow:
        addition = flow_yaml(listed) if node.kind is NodeKind.LIST else f"{flow_yaml(name)}: {flow_yaml(entry)}"
        last = node.children[-1].end.offset
        return f"{text[:last]}, {addition}{text[last:]}"
    column = node.start.column
    lines = [(f"- {flow_yaml(listed)}", column)] if node.kind is NodeKind.LIST else _yaml_lines(name, entry, column)
    return _inserted(text, _line_after(node), lines)


def without_server(text: str, name: str) -> str:
    """Deletes the lines of the entry; a comment above it stays."""
    section = _yaml_section(text)
    if section is None:
        return text
    key, node = section
    if node.kind is NodeKind.LIST:
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
        empty = "[]" if node.kind is NodeKind.LIST else "{}"
        lines[key.start.line] = re.sub(r":(\s*)(#.*)?$", rf": {empty}\1\2", lines[key.start.line], count=1)
    return "".join(lines)


def with_keys(text: str, name: str, values: Mapping[str, Any]) -> str:
    """Sets keys of the entry; None deletes the key."""
    for key, value in values.items():
        text = _with_key(text, name, key, value)
    return text


def _with_key(text: str, name: str, key: str, value: Any) -> str:
    entry = _entry(text, name)
    if entry is None:
        return text
    position = next((at for at, (one, _) in enumerate(entry.pairs) if one.text == key), None)
    written = f"{key}: {flow_yaml(value)}"
    if position is None:
        if entry.flow:
            last = entry.children[-1].end.offset
            return f"{text[:last]}, {written}{text[last:]}"
        return _inserted(text, _line_after(entry), [(written, entry.start.column)])
    first, last_node = entry.pairs[position]
    if value is not None:
        return f"{text[: first.start.offset]}{written}{text[last_node.end.offset :]}"
    if entry.flow:
        return _without_flow(text, entry.pairs, position)
    lines = text.splitlines(keepends=True)
    del lines[first.start.line : _line_after(last_node)]
    return "".join(lines)


def _entry(text: str, name: str) -> YamlNode | None:
    section = _yaml_section(text)
    if section is None:
        return None
    _, node = section
    if node.kind is NodeKind.LIST:
        return next((item for item in node.children if _name_in(item) == name), None)
    return next((value for key, value in node.pairs if key.text == name and value.kind is NodeKind.MAPPING), None)


def _without_flow(text: str, entries: Sequence[tuple[YamlNode, YamlNode]], position: int) -> str:
    """Deletes the entry and one comma beside it; returns the text unchanged if there is a comment between them."""
    start, end = entries[position][0].start.offset, entries[position][1].end.offset
    cut = start, end
    if position + 1 < len(entries):
        cut = start, entries[position + 1][0].start.offset
    elif position > 0:
        cut = entries[position - 1][1].end.offset, end
    if "#" in text[cut[0] : start] + text[end : cut[1]]:
        return text
    return text[: cut[0]] + text[cut[1] :]


def whole_yaml(data: Mapping[str, Any]) -> str:
    """The whole document as new YAML, only for a text without comments."""
    return "".join(
        f"{' ' * depth}{line}\n" for key, value in data.items() for line, depth in _yaml_lines(key, value, 0)
    )


def _yaml_section(text: str) -> tuple[YamlNode, YamlNode] | None:
    root = parse_nodes(text)
    found = (
        [pair for pair in root.pairs if pair[0].kind is NodeKind.SCALAR]
        if root and root.kind is NodeKind.MAPPING
        else []
    )
    for wanted in ("servers", "mcp_servers"):
        for key, value in found:
            if normalized_key(key.text) == wanted:
                return key, value
    return None


def _name_in(item: YamlNode) -> str | None:
    if item.kind is not NodeKind.MAPPING:
        return None
    return next((value.text for key, value in item.pairs if normalized_key(key.text) in NAME_KEYS), None)


def _line_after(node: YamlNode) -> int:
    return node.end.line if node.end.column == 0 and node.end.line > node.start.line else node.end.line + 1


def _inserted(text: str, at: int, lines: Sequence[tuple[str, int]]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    existing = text.splitlines(keepends=True)
    if existing and at >= len(existing) and not existing[-1].endswith("\n"):
        existing[-1] += newline
    existing[at:at] = [f"{' ' * depth}{line}{newline}" for line, depth in lines]
    return "".join(existing)


def _yaml_lines(key: str, value: Any, depth: int) -> list[tuple[str, int]]:
    """A key and its value as lines with their indentation: mappings as blocks, the rest on one line."""
    if isinstance(value, Mapping) and value:
        inner = [line for name, item in value.items() for line in _yaml_lines(name, item, depth + _STEP)]
        return [(f"{flow_yaml(key)}:", depth), *inner]
    return [(f"{flow_yaml(key)}: {flow_yaml(value)}", depth)]


def flow_yaml(value: Any) -> str:
    """A value on one line: plain words plain, everything else in quotes."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN else _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow_yaml(key)}: {flow_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_yaml(item) for item in value) + "]"
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
