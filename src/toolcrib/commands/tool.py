"""tool:* — the tools themselves, for a person at the command line. Over MCP they are simply tools."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from toolcrib.calls import Request
from toolcrib.commands.registry import VERBATIM, Context, Effect, Parameters, Reach, registry
from toolcrib.config.model import RESERVED_SERVER_NAMES
from toolcrib.crib.results import read_answer
from toolcrib.errors import UnknownServer


class Listed(Parameters):
    server: str | None = None


@registry.command("tool:list", parameters=Listed, effect=Effect.READS, reach=Reach.SOCKET)
async def list_tools(context: Context, params: Listed) -> dict[str, Any]:
    """List the tools of all servers, or of one."""
    project = context.project
    if params.server is not None and params.server not in {*project.config.servers, *RESERVED_SERVER_NAMES}:
        known = ", ".join(sorted(project.config.servers)) or "none"
        raise UnknownServer(f"There is no server {params.server!r}.", remedy=f"Servers: {known}.")
    await project.settled(None if params.server is None else [params.server])
    style = project.config.settings.names
    return {
        "tools": [
            {
                "name": name,
                "names": sorted({tool.names.plain, tool.names.server, tool.names.mcp, *tool.names.also}),
                "display": tool.display,
                "server": tool.server,
                "tool": tool.name,
                "description": tool.shown.description,
                "input_schema": tool.shown.input_schema,
                "annotations": tool.annotations,
            }
            for name, tool in project.catalog.by_public(style).items()
            if params.server in (None, tool.server)
        ]
    }


class Called(Parameters):
    tool: str
    arguments: Annotated[dict[str, Any], VERBATIM] = Field(default_factory=dict)
    timeout: float | None = None


@registry.command("tool:call", parameters=Called, effect=Effect.CHANGES, reach=Reach.SOCKET)
async def call(context: Context, params: Called) -> dict[str, Any]:
    """Call a tool by any of its names."""
    if not context.project.knows(params.tool):
        # It may be the tool of a server that is still on its way.
        await context.project.settled()
    outcome = await context.crib.door.call(
        context.project,
        context.caller,
        Request(
            tool=params.tool,
            params={"arguments": msgspec.Raw(msgspec.json.encode(params.arguments))},
            timeout=params.timeout,
        ),
    )
    return {"result": read_answer(outcome.answer).raw}
