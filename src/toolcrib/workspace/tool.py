"""The definition of a workspace tool, its JSON schemas, and the validation of its arguments.

In: msgspec structs, and arguments as JSON or decoded. Out: lean schemas without references, titles or trivial defaults,
because every word costs tokens in every conversation; and the tool's parameters, or a `WorkspaceError` with the wrong
argument, the expected value, and a suggestion for a misspelt name. `tools` has the table of all tools, `workspace`
calls them.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from toolcrib.errors import WorkspaceError

if TYPE_CHECKING:
    from toolcrib.workspace.folder import Folder
    from toolcrib.workspace.sandbox import Sandbox
    from toolcrib.workspace.session import WorkspaceSession
    from toolcrib.workspace.settings.model import WorkspaceSettings


class ToolNeeds(enum.Enum):
    """Whether a tool only accesses files, or runs untrusted code in the sandbox."""

    FILES = enum.auto()
    SANDBOX = enum.auto()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool, as structured data and as text."""

    data: msgspec.Struct
    text: str
    failure: str = ""
    """Why the command failed, if it did: an exit code, failing tests. The call itself succeeded."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Everything that one call may use."""

    folder: Folder
    settings: WorkspaceSettings
    session: WorkspaceSession
    sandbox: Callable[[], Awaitable[Sandbox]]
    """Waits for the self-test; returns the sandbox even if it refuses to run anything."""
    environ: Mapping[str, str]
    """The server's own environment; commands get a scrubbed one."""
    progress: Callable[[str], None] | None = None
    """Sends progress to the caller; None if the caller doesn't want it. Thread-safe."""
    deadline: float = math.inf
    """By the monotonic clock. The caller gets an answer then, so a file tool must stop its loops."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceTool:
    name: str
    title: str
    description: str
    parameters: type[msgspec.Struct]
    """No unions except with None: some providers refuse them, others refuse a description next to them. msgspec needs
    constraints on the type itself: `Annotated[int, Meta(ge=1)] | None`, not `Annotated[int | None, Meta(ge=1)]`."""
    result: type[msgspec.Struct] | None
    """None: the result is only text."""
    do: Callable[[ToolContext, Any], ToolResult] | Callable[[ToolContext, Any], Awaitable[ToolResult]]
    needs: ToolNeeds = ToolNeeds.FILES
    reads_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """Whether it can use the network if the settings allow it."""
    like: str = ""
    """The tool of `TOOL_NAMES` whose limits and prohibitions also apply to it; by default the tool itself."""

    @property
    def ruled_as(self) -> str:
        return self.like or self.name


_LEFT_OUT = frozenset({"title", "description", "default", "additionalProperties"})
"""Schema keys that are rewritten or dropped."""


class SchemaFor(enum.Enum):
    ARGUMENTS = enum.auto()
    """No unknown properties; a missing value is left out, not null."""
    RESULT = enum.auto()
    """Values may be null, unknown properties are allowed, and there are no descriptions."""


def schema_of(struct: type[msgspec.Struct], of: SchemaFor) -> dict[str, Any]:
    (schema,), parts = msgspec.json.schema_components((struct,), ref_template="{name}")
    return _lean(schema, parts, of)


def _lean(schema: dict[str, Any], parts: dict[str, Any], of: SchemaFor) -> dict[str, Any]:
    if "$ref" in schema:
        found = _lean(parts[schema["$ref"]], parts, of)
    elif "anyOf" in schema:
        found = _union(schema["anyOf"], parts, of)
    elif "enum" in schema:
        # Some providers require the type next to the enum.
        found = {"type": "string", "enum": schema["enum"]}
    elif "properties" in schema:
        return _object(schema, parts, of)
    else:
        found = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                found[key] = _lean(schema[key], parts, of)
    return {**found, **_about(schema)} if of is SchemaFor.ARGUMENTS else found


def _object(schema: dict[str, Any], parts: dict[str, Any], of: SchemaFor) -> dict[str, Any]:
    """Drops the struct's description: it is a class docstring, not meant for a model."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _lean(part, parts, of) for name, part in schema["properties"].items()},
    }
    if schema.get("required"):
        found["required"] = schema["required"]
    if of is SchemaFor.ARGUMENTS:
        found["additionalProperties"] = False
    return found


def _about(schema: dict[str, Any]) -> dict[str, Any]:
    """The description and the default of a property."""
    about = {"description": schema["description"]} if "description" in schema else {}
    default = schema.get("default")
    # None, false and empty are the obvious defaults.
    if default is not None and default is not False and default not in ("", (), [], {}):
        about["default"] = default
    return about


def _union(choices: list[dict[str, Any]], parts: dict[str, Any], of: SchemaFor) -> dict[str, Any]:
    kinds = [_lean(choice, parts, of) for choice in choices if choice.get("type") != "null"]
    may_be_null = len(kinds) < len(choices) and of is SchemaFor.RESULT
    if len(kinds) > 1:
        return {"anyOf": [*kinds, {"type": "null"}] if may_be_null else kinds}
    (kind,) = kinds
    if not may_be_null:
        return kind
    return {**kind, "type": [kind["type"], "null"], **({"enum": [*kind["enum"], None]} if "enum" in kind else {})}


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
"""Names of other products' arguments, and ours; the first that the tool has is suggested."""

_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `(.*)`)?$")
_MISSING = re.compile(r"missing required field `(.*?)`(?: - at `(.*)`)?$")
_NUMBER = MappingProxyType(
    {"integer": re.compile(r"-?[0-9]{1,15}"), "number": re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")}
)
_WRONG = re.compile(r"(Expected .*?|Invalid .*?) - at `(.*)`$")


def decode_arguments(tool: WorkspaceTool, arguments: bytes | Mapping[str, Any]) -> Any:
    """Accepts a string for a list of strings, and a number in quotes."""
    try:
        given = msgspec.json.decode(arguments) if isinstance(arguments, bytes) else arguments
        try:
            return msgspec.convert(given, type=tool.parameters)
        except msgspec.ValidationError:
            return msgspec.convert(_meant(given, schema_of(tool.parameters, SchemaFor.ARGUMENTS)), type=tool.parameters)
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


def _what_is_wrong(tool: WorkspaceTool, message: str) -> str:
    if found := _UNKNOWN.search(message):
        name, place = found[1], found[2]
        near = _near(name, _known(tool, place))
        hint = f" Did you mean {near!r}?" if near else ""
        return f"{tool.name} has no argument {_at(place, name)!r}.{hint}"
    if found := _MISSING.search(message):
        return f"{tool.name} needs the argument {_at(found[2], found[1])!r}."
    if found := _WRONG.search(message):
        problem = found[1].replace("`", "").replace(" | null", "")
        return f"{tool.name}: {_at(found[2])!r} is wrong: {problem[0].lower()}{problem[1:]}."
    return f"The arguments of {tool.name} are wrong: {message.replace('`', '')}."


def _known(tool: WorkspaceTool, place: str | None) -> Mapping[str, Any]:
    """The arguments at a path such as `$.more[...]`."""
    schema = schema_of(tool.parameters, SchemaFor.ARGUMENTS)
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


def _takes(tool: WorkspaceTool) -> str:
    schema = schema_of(tool.parameters, SchemaFor.ARGUMENTS)
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
