"""raw:command — any command by its name, for callers that are trusted with it. Over MCP it is `crib_raw_command`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from toolcrib.calls import Request
from toolcrib.commands.registry import VERBATIM, Context, Effect, Parameters, Reach, registry
from toolcrib.crib.results import read_answer
from toolcrib.errors import ToolError, UsageError

_ITSELF = "raw:command"


class Raw(Parameters):
    command: str
    """Its name, as in `system:health`."""
    parameters: Annotated[dict[str, Any], VERBATIM] = Field(default_factory=dict)


@registry.command(_ITSELF, parameters=Raw, effect=Effect.CARRIES, reach=Reach.EVERYWHERE)
async def raw(context: Context, params: Raw) -> dict[str, Any]:
    """Run a command of the daemon by its name, e.g. `system:health`; only what the caller may use anyway."""
    if params.command == _ITSELF:
        raise UsageError(f"{_ITSELF} does not run itself.", remedy="Name the command that you mean.")
    command = registry.find(params.command)
    if command.reach is Reach.SOCKET:
        raise UsageError(f"{params.command} is for the command line.", remedy="Commands over MCP are listed as tools.")
    # Through the door, like any other call: it is judged and written down for what it is.
    arguments = msgspec.Raw(msgspec.json.encode(params.parameters))
    request = Request(tool=f"crib:{command.tool}", params={"arguments": arguments})
    outcome = await context.crib.door.call(context.project, context.caller, request)
    result = read_answer(outcome.answer)
    if result.is_error or not isinstance(result.structured, dict):
        raise ToolError(result.text)
    return result.structured
