"""resource:* and prompt:* — list and read resources, list and get prompts from the command line.

Clients use MCP instead, which has its own methods for them.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from toolcrib.core.offer_source import PROMPT_METHOD, READ_METHOD
from toolcrib.core.resources import Prompt, Resource
from toolcrib.core.results import decoded_result


class ListOffers(Parameters):
    server: str | None = None


@registry.command("resource:list", CommandEffect.READS, Availability.SOCKET, servers=ServersNeeded.NAMED)
async def list_resources(context: CommandContext, params: ListOffers) -> dict[str, Any]:
    """List the resources and resource templates of all servers, or of one."""
    await _settle(context, params.server)
    offers = context.project.offers
    found = [(one, Resource.of(one)) for one in (*offers.resources, *offers.templates)]
    return {
        "resources": [
            {
                "uri": one.uri,
                "display": offer.tool.display,
                "server": one.server,
                "template": one.is_template,
                "definition": one.raw,
            }
            for offer, one in found
            if params.server in (None, one.server)
        ],
        **await describe_problems(context),
    }


@registry.command("prompt:list", CommandEffect.READS, Availability.SOCKET, servers=ServersNeeded.NAMED)
async def list_prompts(context: CommandContext, params: ListOffers) -> dict[str, Any]:
    """List the prompts of all servers, or of one."""
    await _settle(context, params.server)
    found = [(one, Prompt.of(one)) for one in context.project.offers.prompts]
    return {
        "prompts": [
            {
                "name": offer.shown_as,
                "display": offer.tool.display,
                "server": one.server,
                "prompt": offer.tool.name,
                "definition": one.raw,
            }
            for offer, one in found
            if params.server in (None, one.server)
        ],
        **await describe_problems(context),
    }


class ReadResource(Parameters):
    uri: str
    timeout: float | None = None


@registry.command("resource:read", CommandEffect.REVEALS, Availability.SOCKET, servers=ServersNeeded.ALL)
async def read(context: CommandContext, params: ReadResource) -> dict[str, Any]:
    """Read a resource by its address."""
    return await _requested(context, READ_METHOD, params.uri, {}, params.timeout)


class GetPrompt(Parameters):
    prompt: str
    arguments: Annotated[dict[str, str], VERBATIM] = Field(default_factory=dict)
    timeout: float | None = None


@registry.command("prompt:get", CommandEffect.REVEALS, Availability.SOCKET, servers=ServersNeeded.ALL)
async def get(context: CommandContext, params: GetPrompt) -> dict[str, Any]:
    """Get the messages of a prompt, by any of its names."""
    arguments = msgspec.Raw(msgspec.json.encode(params.arguments))
    return await _requested(context, PROMPT_METHOD, params.prompt, {"arguments": arguments}, params.timeout)


async def _settle(context: CommandContext, server: str | None) -> None:
    """Waits for the servers to be listed."""
    project = context.project
    if server is not None and server not in RESERVED_SERVER_NAMES:
        configured_server(context, server)
    await project.settled([name for name in project.servers if server in (None, name)])


async def _requested(
    context: CommandContext, method: str, name: str, params: Mapping[str, msgspec.Raw], timeout: float | None
) -> dict[str, Any]:
    project = context.project
    project.seen(context.principal.name)
    if not project.offers.lists(name):
        # Its server may still be connecting.
        await project.settled()
    with command_events(context) as events:
        request = CallRequest(tool=name, method=method, params=params, timeout=timeout, asker=events.asker())
        made = await context.services.door.call(context.request, request)
    return {"result": decoded_result(project.public_answer(request, made))}
