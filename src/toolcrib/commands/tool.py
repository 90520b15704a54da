"""tool:* and raw:command — list and call tools from the command line, and run any command by its name.

Clients call tools over MCP instead; there, `raw:command` is `crib_raw_command`, for callers with the right profile.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from toolcrib.calls import CallRequest
from toolcrib.commands.approval import command_events
from toolcrib.commands.problems import describe_problems
from toolcrib.commands.registry import (
    VERBATIM,
    Availability,
    CommandContext,
    CommandEffect,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.commands.server import configured_server
from toolcrib.config.model import RESERVED_SERVER_NAMES
from toolcrib.core.results import read_answer
from toolcrib.errors import ToolError, UsageError


class ListTools(Parameters):
    server: str | None = None


@registry.command("tool:list", CommandEffect.READS, Availability.SOCKET, servers=ServersNeeded.NAMED)
async def list_tools(context: CommandContext, params: ListTools) -> dict[str, Any]:
    """List the tools of all servers, or of one."""
    project = context.project
    if params.server is not None and params.server not in RESERVED_SERVER_NAMES:
        configured_server(context, params.server)
    asked = [name for name in project.servers if params.server in (None, name)]
    await project.settled(asked)
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
        ],
        "installing": [
            {"server": name, "since": status.since}
            for name in asked
            if (status := project.servers[name].status).installing
        ],
        **await describe_problems(context),
    }


class CallToolParameters(Parameters):
    tool: str
    arguments: Annotated[dict[str, Any], VERBATIM] = Field(default_factory=dict)
    timeout: float | None = None


@registry.command("tool:call", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.NAMED)
async def call(context: CommandContext, params: CallToolParameters) -> dict[str, Any]:
    """Call a tool by any of its names."""
    context.project.seen(context.principal.name)
    if not context.project.knows(params.tool):
        # Its server may still be connecting.
        await context.project.settled()
    with command_events(context) as events:
        outcome = await context.services.door.call(
            context.request,
            CallRequest(
                tool=params.tool,
                params={"arguments": msgspec.Raw(msgspec.json.encode(params.arguments))},
                timeout=params.timeout,
                on_progress=events.progress,
                asker=events.asker(),
            ),
        )
    return {"result": read_answer(outcome.answer).raw}


_RAW_COMMAND = "raw:command"


class RawCommand(Parameters):
    command: str
    """Its name, as in `system:health`."""
    parameters: Annotated[dict[str, Any], VERBATIM] = Field(default_factory=dict)


@registry.command(_RAW_COMMAND, CommandEffect.CARRIES, Availability.EVERYWHERE, servers=ServersNeeded.ALL)
async def raw(context: CommandContext, params: RawCommand) -> dict[str, Any]:
    """Run a command of the daemon by its name, e.g. `system:health`, if the caller may use it."""
    if params.command == _RAW_COMMAND:
        raise UsageError(f"{_RAW_COMMAND} does not run itself.", remedy="Give the name of another command.")
    command = registry.find(params.command)
    if command.availability is Availability.SOCKET:
        raise UsageError(
            f"{params.command} is only for the command line.", remedy="Commands over MCP are listed as tools."
        )
    # Through the door, so that it is checked and audited like any other call.
    arguments = msgspec.Raw(msgspec.json.encode(params.parameters))
    request = CallRequest(tool=f"crib:{command.tool}", params={"arguments": arguments})
    outcome = await context.services.door.call(context.request, request)
    result = read_answer(outcome.answer)
    if result.is_error or not isinstance(result.structured, dict):
        raise ToolError(result.text)
    return result.structured
