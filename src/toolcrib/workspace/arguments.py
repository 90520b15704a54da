"""What a model gave to a tool, checked: a struct, or words that say what is wrong and where.

In: the arguments as JSON or decoded. Out: the tool's own parameters, or a `WorkspaceError` that names the place, what
is expected there, and the near name of a misspelt one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.schemas import Of, schema_of
from toolcrib.workspace.tool import Tool

_ELSEWHERE = MappingProxyType(
    {
        "file_path": ("path",),
        "filepath": ("path",),
        "filename": ("path",),
        "file": ("path",),
        "dir": ("path", "cwd"),
        "directory": ("path", "cwd"),
        "folder": ("path", "cwd"),
        "workdir": ("cwd",),
        "working_directory": ("cwd",),
        "old_string": ("old",),
        "old_text": ("old",),
        "old_str": ("old",),
        "new_string": ("new",),
        "new_text": ("new",),
        "new_str": ("new",),
        "replace_all": ("all",),
        "expected_replacements": ("expected",),
        "edits": ("more",),
        "text": ("content", "pattern"),
        "contents": ("content",),
        "file_text": ("content",),
        "content": ("new",),
        "pattern": ("glob", "select"),
        "include": ("glob",),
        "query": ("pattern", "glob"),
        "regex": ("pattern",),
        "limit": ("lines",),
        "end_line": ("lines",),
        "max_results": ("limit",),
        "head_limit": ("limit",),
        "timeout": ("seconds",),
        "cmd": ("command", "argv"),
        "args": ("argv",),
        "input": ("stdin",),
        "path": ("paths", "cwd"),
        "keyword": ("select",),
        "test": ("paths",),
        "tests": ("paths",),
        "files": ("paths",),
        "tool": ("tools",),
        "linters": ("tools",),
    }
)
"""What other tools of this field call it, and what it may be called here; the first that the tool has is meant."""

_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(.*)`)?$")
_MISSING = re.compile(r"missing required field `(.*?)`(?: - at `(.*)`)?$")
_NUMBER = MappingProxyType(
    {"integer": re.compile(r"-?[0-9]{1,15}"), "number": re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")}
)
_WRONG = re.compile(r"(Expected .*?|Invalid .*?) - at `(.*)`$")


def decode(tool: Tool, arguments: bytes | Mapping[str, Any]) -> Any:
    """One word where a list of them belongs, and a number in quotes, are taken for what they mean."""
    try:
        given = msgspec.json.decode(arguments) if isinstance(arguments, bytes) else arguments
        try:
            return msgspec.convert(given, type=tool.parameters)
        except msgspec.ValidationError:
            return msgspec.convert(_meant(given, schema_of(tool.parameters, Of.ARGUMENTS)), type=tool.parameters)
    except msgspec.ValidationError as error:
        raise WorkspaceError(_what_is_wrong(tool, str(error)), remedy=f"{tool.name} takes: {_takes(tool)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "they are nested too deeply" if isinstance(error, RecursionError) else f"they are not JSON ({error})"
        raise WorkspaceError(f"The arguments of {tool.name} cannot be read: {why}.") from None


def _meant(given: Any, schema: Mapping[str, Any]) -> Any:
    kind, items = schema.get("type", ""), schema.get("items", {})
    if isinstance(given, Mapping) and "properties" in schema:
        parts = schema["properties"]
        return {name: _meant(value, parts[name]) if name in parts else value for name, value in given.items()}
    if isinstance(given, list) and items:
        return [_meant(value, items) for value in given]
    if isinstance(given, str) and kind == "array" and items.get("type") == "string":
        return [given]
    if isinstance(given, str) and kind in _NUMBER and _NUMBER[kind].fullmatch(given):
        return float(given) if kind == "number" else int(given)
    return given


def _what_is_wrong(tool: Tool, told: str) -> str:
    if found := _UNKNOWN.search(told):
        name, place = found[1], found[2]
        near = _near(name, _known(tool, place))
        hint = f" Did you mean {near!r}?" if near else ""
        return f"{tool.name} has no argument {_at(place, name)!r}.{hint}"
    if found := _MISSING.search(told):
        return f"{tool.name} needs the argument {_at(found[2], found[1])!r}."
    if found := _WRONG.search(told):
        words = found[1].replace("`", "").replace(" | null", "")
        return f"{tool.name}: {_at(found[2])!r} is wrong: {words[0].lower()}{words[1:]}."
    return f"The arguments of {tool.name} are wrong: {told.replace('`', '')}."


def _known(tool: Tool, place: str | None) -> Mapping[str, Any]:
    """The arguments at a place such as `$.more[...]`."""
    schema = schema_of(tool.parameters, Of.ARGUMENTS)
    for name in re.findall(r"[a-z]\w*", place or ""):
        schema = schema.get("properties", {}).get(name, {})
        schema = schema.get("items", schema)
    known: Mapping[str, Any] = schema.get("properties", {})
    return known


def _near(name: str, known: Mapping[str, Any]) -> str:
    elsewhere = [meant for meant in _ELSEWHERE.get(name, ()) if meant in known]
    return next(iter([*elsewhere, *difflib.get_close_matches(name, known, n=1, cutoff=0.5)]), "")


def _at(place: str | None, name: str = "") -> str:
    """msgspec's `$.edits[0].old` as a model would write it."""
    return ".".join(part for part in ((place or "").removeprefix("$").removeprefix("."), name) if part)


def _takes(tool: Tool) -> str:
    schema = schema_of(tool.parameters, Of.ARGUMENTS)
    needed = schema.get("required", ())
    return ", ".join(
        f"{name} ({_kind(part)}{', required' if name in needed else ''})" for name, part in schema["properties"].items()
    )


def _kind(part: dict[str, Any]) -> str:
    if "anyOf" in part:
        return " or ".join(map(_kind, part["anyOf"]))
    if "enum" in part:
        return "one of " + ", ".join(map(repr, part["enum"]))
    if part["type"] == "array":
        items = part["items"]
        return f"list, each {_kind(items)}" if "enum" in items else f"list of {items.get('type', 'anything')}s"
    return str(part["type"])
