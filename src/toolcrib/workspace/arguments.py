"""What a model gave to a tool, checked: a struct, or words that say what is wrong and where.

In: the arguments as JSON or decoded. Out: the tool's own parameters, or a `WorkspaceError` that names the place, what
is expected there, and the near name of a misspelt one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.schemas import Of, schema_of
from toolcrib.workspace.tool import Tool

_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(.*)`)?$")
_MISSING = re.compile(r"missing required field `(.*?)`(?: - at `(.*)`)?$")
_WRONG = re.compile(r"(Expected .*?|Invalid .*?) - at `(.*)`$")


def decode(tool: Tool, arguments: bytes | Mapping[str, Any]) -> Any:
    try:
        if isinstance(arguments, bytes):
            return msgspec.json.decode(arguments, type=tool.parameters)
        return msgspec.convert(arguments, type=tool.parameters)
    except msgspec.ValidationError as error:
        raise WorkspaceError(_what_is_wrong(tool, str(error)), remedy=f"{tool.name} takes: {_takes(tool)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "they are nested too deeply" if isinstance(error, RecursionError) else f"they are not JSON ({error})"
        raise WorkspaceError(f"The arguments of {tool.name} cannot be read: {why}.") from None


def _what_is_wrong(tool: Tool, told: str) -> str:
    if found := _UNKNOWN.search(told):
        name, place = found[1], found[2]
        known = schema_of(tool.parameters, Of.ARGUMENTS)["properties"] if place is None else {}
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{tool.name} has no argument {_at(place, name)!r}.{hint}"
    if found := _MISSING.search(told):
        return f"{tool.name} needs the argument {_at(found[2], found[1])!r}."
    if found := _WRONG.search(told):
        words = found[1].replace("`", "")
        return f"{tool.name}: {_at(found[2])!r} is wrong: {words[0].lower()}{words[1:]}."
    return f"The arguments of {tool.name} are wrong: {told.replace('`', '')}."


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
        return f"list of {part['items'].get('type', 'anything')}s"
    return str(part["type"])
