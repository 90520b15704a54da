"""raw:command — any command by its name, for callers that are trusted with it. Over MCP it is `crib_raw_command`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, Via, registry
from toolcrib.errors import UsageError

_ITSELF = "raw:command"


class Raw(Parameters):
    command: str
    """Its name, as in `system:health`."""
    parameters: dict[str, Any] = Field(default_factory=dict)


@registry.command(_ITSELF, parameters=Raw, effect=Effect.CARRIES, reach=Reach.EVERYWHERE)
async def raw(context: Context, params: Raw) -> dict[str, Any]:
    """Run a command of the daemon by its name, e.g. `system:health`; only what the caller may use anyway."""
    if params.command == _ITSELF:
        raise UsageError(f"{_ITSELF} does not run itself.", remedy="Name the command that you mean.")
    if registry.find(params.command).reach is Reach.SOCKET and context.via is Via.MCP:
        raise UsageError(f"{params.command} is for the command line.", remedy="Commands over MCP are listed as tools.")
    return await registry.run(params.command, params.parameters, context)
