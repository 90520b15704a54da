"""`tools` and `call`: lists the servers' tools and calls them.

In: command-line arguments; `key=value`, `key:=json` and `key=@file` are converted by the tool's JSON Schema. Out: an
exit code; `call` returns 10 if the tool, or the program it ran, failed. The door validates the arguments.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.approval_commands import answer_at_terminal
from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import TOOL_ERROR, hint, moment, printed, result_text, say, shortened, table
from toolcrib.cli.perform import ANSWER_WITHIN, AskCommand, asking, perform
from toolcrib.cli.server_commands import hint_problems
from toolcrib.errors import InvalidArguments
from toolcrib.run_events import failure_in

_INTEGER = re.compile(r"[+-]?\d{1,4000}")
_LONGEST_DESCRIPTION = 100
_MAX_DEPTH = 16
"""How far references and alternatives are followed, because a schema may be circular."""


def arguments_from(pairs: Sequence[str], whole: str | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """`whole` is the value of --args; `pairs` override it."""
    arguments = _object(whole) if whole is not None else {}
    given: set[str] = set()
    for pair in pairs:
        key, value = _read(pair, schema)
        if key in given:
            if not isinstance(value, list) or not isinstance(arguments[key], list):
                raise InvalidArguments(
                    f"{key} is set twice.", remedy="Pass it once; only list arguments can be repeated."
                )
            value = arguments[key] + value
        given.add(key)
        arguments[key] = value
    return arguments


def _object(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        text = _file("--args", text[1:])
    value = _json("--args", text)
    if not isinstance(value, dict):
        raise InvalidArguments("--args is not a JSON object.", remedy="""Write --args '{"key": "value"}'.""")
    return value


def _read(pair: str, schema: Mapping[str, Any]) -> tuple[str, Any]:
    key, sign, text = pair.partition("=")
    if not sign or not key.rstrip(":"):
        raise InvalidArguments(
            f"{pair!r} is not key=value.", remedy="Write key=value, key:=json or key=@file, or --args with one object."
        )
    if key.endswith(":"):
        return key[:-1], _json(key[:-1], text)
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@"):
        text = _file(key, text[1:])
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return key, _convert(key, text, described, schema)


def _convert(key: str, text: str, described: Any, schema: Mapping[str, Any]) -> Any:
    kinds = _kinds(described, schema)
    if not kinds or "string" in kinds:
        return text
    if "null" in kinds and text == "null":
        return None
    if "boolean" in kinds and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if kinds & {"integer", "number"} and (number := _number(text, kinds)) is not None:
        return number
    if "array" in kinds and not text.lstrip().startswith("["):
        return [_convert(key, text, _items(described, schema), schema)]
    if kinds & {"array", "object"}:
        return _json(key, text)
    expected = " or ".join(sorted(kinds))
    raise InvalidArguments(
        f"{key}: found {text[:80]!r}, expected {expected}.", remedy=f"`{key}:=JSON` sends any JSON value unchanged."
    )


def _number(text: str, kinds: set[str]) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    if "number" not in kinds:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _kinds(described: Any, schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that the value may have; empty if the schema doesn't restrict them."""
    if not isinstance(described, Mapping) or depth > _MAX_DEPTH:
        return set()
    if isinstance(reference := described.get("$ref"), str):
        return _kinds(_resolve(reference, schema), schema, depth + 1)
    kind = described.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in kind if isinstance(name, str)}
    values = described.get("enum", [described["const"]] if "const" in described else [])
    if isinstance(values, list) and values:
        return {_kind_of(value) for value in values}
    found: set[str] = set()
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = described.get(keyword)
        for part in parts if isinstance(parts, list) else []:
            found |= _kinds(part, schema, depth + 1)
    return found


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for python, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, python):
            return name
    return "object"


def _items(described: Any, schema: Mapping[str, Any], depth: int = 0) -> Any:
    """The schema of an array's items, through references and alternatives."""
    if not isinstance(described, Mapping) or depth > _MAX_DEPTH:
        return None
    if isinstance(reference := described.get("$ref"), str):
        return _items(_resolve(reference, schema), schema, depth + 1)
    if "items" in described:
        return described["items"]
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = described.get(keyword)
        for part in parts if isinstance(parts, list) else []:
            if "array" in _kinds(part, schema):
                return _items(part, schema, depth + 1)
    return None


def _resolve(reference: str, schema: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        return None
    found: Any = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _json(key: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"{key}: found {text[:80]!r}, expected JSON ({error}).", remedy="Put it in single quotes for the shell."
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _file(key: str, name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArguments(
            f"{key}: the file {name!r} cannot be read: {error.strerror}.",
            remedy=f"To send a value that begins with @, write `{key}=@@…`.",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArguments(f"{key}: the file {name!r} is not UTF-8 text.") from error


commands = typer.Typer(rich_markup_mode=None)

JsonArguments = Annotated[
    str | None, typer.Option(metavar="JSON", help="The arguments as one JSON object, or @FILE to read it from a file.")
]


@commands.command()
def tools(
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="List only this server's tools.")] = None,
    *,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """List the tools of all servers, or of one."""
    params = {"server": server} if server is not None else {}
    found = printed(perform("tool:list", params, servers=mcp_server or ()), as_json=as_json)
    if found["tools"]:
        rows = [(tool["display"], tool["name"], first_line(tool.get("description"))) for tool in found["tools"]]
        table(("tool", "full name", "description"), rows)
    else:
        say("No tools yet." if found.get("installing") else "No tools.")
        hint("`toolcrib servers` shows the servers and their state.")
    for one in found.get("installing", []):
        hint(f"{one['server']} is being installed, since {moment(one['since'])}.")
    hint_problems(found)
    return 0


def first_line(text: Any) -> str:
    lines = str(text or "").strip().splitlines()
    return shortened(lines[0], _LONGEST_DESCRIPTION) if lines else ""


@commands.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool: `server:tool` or its full name.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="An argument: KEY=VALUE (converted by the tool's schema), KEY:=JSON or KEY=@FILE."
        ),
    ] = None,
    *,
    args: JsonArguments = None,
    timeout: Annotated[float | None, typer.Option(help="Time limit for the call, in seconds.", min=0.001)] = None,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """Call a tool and print its result. Exit code 10: the tool, or the program it ran, failed."""
    servers = mcp_server or ()
    params: dict[str, Any] = {"tool": tool}
    if timeout is not None:
        params["timeout"] = timeout
    with asking("tool:call", params, servers, answer_at_terminal) as ask:
        params["arguments"] = arguments_from(pairs or [], args, schema_of(tool, ask) if pairs else {})
        # The daemon enforces the tool's limit; ours only has to be longer.
        result = ask("tool:call", params, timeout=None if timeout is None else timeout + 15.0)["result"]
    code = TOOL_ERROR if result.get("isError") is True or failure_in(result.get("_meta")) else 0
    if text := result_text(printed(result, as_json=as_json, exit_code=code)):
        say(text)
    return code


def schema_of(tool: str, ask: AskCommand) -> Mapping[str, Any]:
    """The tool's input schema; empty if the name isn't found, which the call itself reports."""
    server, sign, _ = tool.partition(":")
    found = ask("tool:list", {"server": server} if sign else {}, timeout=ANSWER_WITHIN)["tools"]
    matching = [row for row in found if tool in (row["display"], *row["names"])]
    schema = matching[0].get("input_schema") if len(matching) == 1 else None
    return schema if isinstance(schema, Mapping) else {}
