"""`resources`, `read`, `prompts`, `prompt`: what servers offer besides tools.

In: command-line arguments. Out: an exit code; a resource's bytes, unchanged unless stdout is a terminal; the messages
of a prompt.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcrib.cli.approval_commands import answer_at_terminal
from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import hint, printed, result_text, say, size_of, table
from toolcrib.cli.perform import perform
from toolcrib.cli.server_commands import hint_problems
from toolcrib.cli.tool_commands import arguments_from, first_line
from toolcrib.errors import ToolError, UsageError

commands = typer.Typer(rich_markup_mode=None)

TimeLimit = Annotated[float | None, typer.Option("--timeout", help="Time limit, in seconds.", min=0.001)]


@commands.command()
def resources(
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="List only this server's resources.")] = None,
    *,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """List the resources and resource templates of all servers, or of one."""
    found = _listed("resource:list", server, mcp_server, as_json=as_json)
    rows = [(one["uri"], one["server"], _kind(one), _described(one["definition"])) for one in found["resources"]]
    return _show(("uri", "server", "type", "description"), rows, found, "resources")


def _kind(resource: Mapping[str, Any]) -> str:
    kind = str(resource["definition"].get("mimeType") or "")
    return " ".join(filter(None, ("template", kind))) if resource["template"] else kind


def _described(definition: Mapping[str, Any]) -> str:
    return first_line(definition.get("description") or definition.get("title") or definition.get("name"))


@commands.command()
def prompts(
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="List only this server's prompts.")] = None,
    *,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """List the prompts of all servers, or of one."""
    found = _listed("prompt:list", server, mcp_server, as_json=as_json)
    rows = [
        (one["name"], one["server"], _arguments(one["definition"]), _described(one["definition"]))
        for one in found["prompts"]
    ]
    return _show(("prompt", "server", "arguments", "description"), rows, found, "prompts")


def _arguments(definition: Mapping[str, Any]) -> str:
    described = definition.get("arguments")
    arguments = [one for one in described if isinstance(one, dict)] if isinstance(described, list) else []
    return ", ".join(f"{one.get('name')}{'' if one.get('required') is True else '?'}" for one in arguments)


def _listed(command: str, server: str | None, servers: Sequence[str] | None, *, as_json: bool) -> dict[str, Any]:
    params = {"server": server} if server is not None else {}
    return printed(perform(command, params, servers=servers or ()), as_json=as_json)


def _show(columns: Sequence[str], rows: Sequence[Sequence[Any]], found: dict[str, Any], what: str) -> int:
    if rows:
        table(columns, rows)
    else:
        say(f"No {what}.")
        hint("`toolcrib servers` shows the servers and their state.")
    hint_problems(found)
    return 0


@commands.command()
def read(
    uri: Annotated[str, typer.Argument(metavar="URI", help="The resource's address.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the contents to this file.")
    ] = None,
    timeout: TimeLimit = None,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """Read a resource and print its contents unchanged."""
    result = _result("resource:read", {"uri": uri}, timeout, mcp_server)
    contents = printed(result, as_json=as_json).get("contents")
    parts = [one for one in contents if isinstance(one, dict)] if isinstance(contents, list) else []
    if any("blob" in one for one in parts) and len(parts) > 1:
        raise UsageError(f"{uri} has {len(parts)} parts, and not all are text.", remedy="Add --json to get them all.")
    if output is None and sys.stdout.isatty():
        for one in parts:
            _print_part(uri, one)
        return 0
    _write(b"\n".join(_bytes(uri, one) for one in parts), output)
    return 0


def _print_part(uri: str, part: Mapping[str, Any]) -> None:
    if "blob" in part:
        size = size_of(len(_bytes(uri, part)))
        raise UsageError(
            f"{uri} is binary ({part.get('mimeType') or 'of unknown type'}, {size}).",
            remedy="Write it to a file with --output FILE, or add --json.",
        )
    say(str(part.get("text", "")).removesuffix("\n"))


def _bytes(uri: str, part: Mapping[str, Any]) -> bytes:
    match part:
        case {"text": str(text)}:
            return text.encode(errors="surrogatepass")
        case {"blob": str(blob)}:
            try:
                return base64.b64decode(blob, validate=True)
            except binascii.Error as error:
                raise ToolError(
                    f"The contents of {uri} are not valid base64: {error}.", remedy="Add --json to see them."
                ) from error
    raise ToolError(f"The contents of {uri} are neither text nor binary.", remedy="Add --json to see them.")


def _write(data: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.", remedy="Choose another file.") from error
    hint(f"Wrote {size_of(len(data))} to {output}.")


@commands.command()
def prompt(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The prompt's name, as `toolcrib prompts` shows it.")],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="An argument: KEY=VALUE or KEY=@FILE.")
    ] = None,
    *,
    timeout: TimeLimit = None,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """Print the messages that a prompt becomes with its arguments."""
    params = {"prompt": name, "arguments": arguments_from(pairs or [], None, {})}
    result = printed(_result("prompt:get", params, timeout, mcp_server), as_json=as_json)
    messages = result.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else ("", message)
        say(f"{chr(10) * bool(number)}{role}:")
        say(result_text({"content": [content]}))
    return 0


def _result(
    command: str, params: dict[str, Any], timeout: float | None, servers: Sequence[str] | None
) -> dict[str, Any]:
    # The daemon enforces the server's limit; ours only has to be longer.
    limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    wait = None if timeout is None else timeout + 15.0
    asked = answer_at_terminal
    return dict(perform(command, params | limits, servers=servers or (), timeout=wait, on_event=asked)["result"])
