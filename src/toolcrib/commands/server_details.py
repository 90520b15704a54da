"""server:show — one server in detail: its health, past errors, limits, users, processes, and what its tools cost.

In: a server's name. Out: the row of `server:list`, and more. The system's view of its processes comes from
`servers.health`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolcrib.audit.row import MAX_COUNTED_BYTES, count_tokens, estimate_tokens
from toolcrib.commands.account import account_of
from toolcrib.commands.problems import describe_problems
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, ServersNeeded, registry
from toolcrib.commands.server import ServerName, configured_server, describe_server
from toolcrib.config.masking import mask_tree
from toolcrib.config.model import ServerConfig
from toolcrib.config.show import mask_server, visible
from toolcrib.errors import NotFound
from toolcrib.servers.health import processes_of
from toolcrib.servers.server import Server


@registry.command("server:show", CommandEffect.REVEALS, Availability.EVERYWHERE, servers=ServersNeeded.NAMED)
async def show(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Show a server's health, past errors, restarts, limits, users, memory, and what its tools cost in tokens."""
    config = configured_server(context, params.name)
    server = context.project.servers.get(params.name)
    row = {**describe_server(context, params.name), "limits": _limits(config), **await _cost(server)}
    row |= {"entry": mask_tree(mask_server(config), visible), **await describe_problems(context, server=params.name)}
    row["account"] = await account_of(context, config)
    if server is None:
        return row
    instances = (server, *context.project.agent_servers.by_agent(params.name).values())
    pids = [pid for one in instances if (pid := one.status.pid)]
    processes = [process for pid in pids for process in await asyncio.to_thread(processes_of, pid)]
    return {
        **row,
        "resources": len(server.offers.resources),
        "templates": len(server.offers.templates),
        "prompts": len(server.offers.prompts),
        "errors": [past._asdict() for past in server.errors],
        "restarts": server.restarts,
        "calls": sum(one.calls for one in instances),
        "per_agent": server.is_per_agent,
        "used_by": _users(context, server),
        "processes": len(processes),
        "memory": sum(one.resident for one in processes),
    }


def _limits(config: ServerConfig) -> dict[str, Any]:
    return {
        "connect_timeout": config.connect_timeout,
        "call_timeout": config.call_timeout,
        "call_timeouts": dict(config.call_timeouts),
        "max_waiting_calls": config.max_waiting_calls,
        "max_attempts": config.retry.max_attempts,
    }


async def _cost(server: Server | None) -> dict[str, Any]:
    """The tokens of all its definitions, as a client without Toolcrib would list them."""
    if server is None or not server.tools:
        return {"tokens": 0, "tokens_estimated": False}
    text = b"[" + b",".join(server.tools) + b"]"
    counted = await asyncio.to_thread(count_tokens, text) if len(text) <= MAX_COUNTED_BYTES else None
    if counted is None:
        return {"tokens": estimate_tokens(text), "tokens_estimated": True}
    return {"tokens": counted.tokens, "tokens_estimated": counted.estimated}


def _users(context: CommandContext, server: Server) -> dict[str, list[str]]:
    """The open projects that share this instance, and the agents with a session that may use its tools."""
    projects = [project for project in context.crib.projects if server in project.servers.values()]
    tools = context.project.catalog.of_server(server.name)
    agents = set()
    for name in {session.agent for session in context.services.sessions}:
        try:
            permission = context.services.agents.find(name).permission
        except NotFound:
            # The owner, or an agent that has just ended.
            continue
        if any(map(permission.shows, tools)):
            agents.add(name)
    return {"projects": sorted(str(project.root) for project in projects), "agents": sorted(agents)}
