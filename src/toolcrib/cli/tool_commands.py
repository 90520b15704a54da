"""`tools` and `call`: what the servers offer, and its use.

In: words of the command line. Out: an exit code; `call` returns 10 where the tool answered that it, or what it ran,
failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolcrib.agent_events import failure_in
from toolcrib.cli.arguments import arguments_from
from toolcrib.cli.options import AsJson, McpServers
from toolcrib.cli.output import TOOL_ERROR, hint, say, say_json, table
from toolcrib.cli.reach import ANSWER_WITHIN, Ask, asking, perform
from toolcrib.cli.results import shown


def tools(
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="Only this server's.")] = None,
    *,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """List the tools of all servers, or of one."""
    params = {"server": server} if server is not None else {}
    found = perform("tool:list", params, servers=mcp_server or ())
    if as_json:
        say_json(found)
    elif found["tools"]:
        rows = [(tool["display"], tool["name"], _first_line(tool.get("description"))) for tool in found["tools"]]
        table(("tool", "full name", "description"), rows)
    else:
        say("No tools.")
        hint("`toolcrib servers` says which servers answer.")
    return 0


def _first_line(text: Any) -> str:
    lines = str(text or "").strip().splitlines()
    return lines[0][:100] if lines else ""


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="`server:tool`, or any full name of it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="KEY=VALUE by the tool's schema, KEY:=JSON, KEY=@FILE."),
    ] = None,
    *,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="All arguments as one object; @FILE reads it.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the call may take.", min=0.001)] = None,
    mcp_server: McpServers = None,
    as_json: AsJson = False,
) -> int:
    """Call a tool and print what it answers. Exit code 10: the tool says that it, or what it ran, failed."""
    servers = mcp_server or ()
    params: dict[str, Any] = {"tool": tool}
    if timeout is not None:
        params["timeout"] = timeout
    with asking("tool:call", params, servers) as ask:
        params["arguments"] = arguments_from(words or [], args, schema_of(tool, ask) if words else {})
        # The tool's own limit is the daemon's business; ours only has to be longer.
        result = ask("tool:call", params, timeout=None if timeout is None else timeout + 15.0)["result"]
    if as_json:
        say_json(result)
    elif text := shown(result):
        say(text)
    return TOOL_ERROR if result.get("isError") is True or failure_in(result.get("_meta")) else 0


def schema_of(tool: str, ask: Ask) -> Mapping[str, Any]:
    """The input schema of the tool; nothing where the name is not found, which the call itself will report."""
    server, sign, _ = tool.partition(":")
    found = ask("tool:list", {"server": server} if sign else {}, timeout=ANSWER_WITHIN)["tools"]
    matching = [row for row in found if tool in (row["display"], *row["names"])]
    schema = matching[0].get("input_schema") if len(matching) == 1 else None
    return schema if isinstance(schema, Mapping) else {}
