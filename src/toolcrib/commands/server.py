"""server:* — the servers behind Toolcrib: list, add, remove, restart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.config import IfExists, add_server, remove_server, trust_digest
from toolcrib.config.model import Layer
from toolcrib.config.paths import project_config
from toolcrib.errors import ConfigError, UnknownServer
from toolcrib.servers.model import ServerState


def describe_server(context: Context, name: str) -> dict[str, Any]:
    """A server as people and programs are shown it; nothing secret is in it."""
    config = context.project.config.servers[name]
    row: dict[str, Any] = {
        "name": name,
        "transport": config.transport,
        "state": "disabled",
        "source": str(config.source),
        "tools": 0,
        "last_error": "",
    }
    server = context.project.servers.get(name)
    if server is None:
        return row
    status = server.status
    return {
        **row,
        "state": status.state,
        "era": status.era,
        "protocol_version": status.protocol_version,
        "tools": status.tools,
        "pid": status.pid,
        "since": status.since,
        "uptime": time.time() - status.since if status.since and status.state is ServerState.READY else None,
        "last_seen": status.last_seen,
        "last_error": status.last_error,
        "attempts": status.attempts,
        "root": status.root,
        "server_info": dict(status.server_info),
    }


@registry.command("server:list", effect=Effect.READS, reach=Reach.EVERYWHERE)
async def list_servers(context: Context, _: Parameters) -> dict[str, Any]:
    """List the MCP servers behind Toolcrib with their state, protocol era, number of tools and last error."""
    return {"servers": [describe_server(context, name) for name in sorted(context.project.config.servers)]}


class Entry(Parameters):
    """A server's entry as it is written into the configuration; `${VAR}` stays as it is."""

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    transport: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)


class Add(Parameters):
    name: str
    entry: Entry
    scope: Literal["user", "project"] = "user"
    replace: bool = False


@registry.command("server:add", parameters=Add, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def add(context: Context, params: Add) -> dict[str, Any]:
    """Add an MCP server to the configuration and connect to it."""
    project = context.project
    before = await context.crib.read_config(project.root)
    file = context.crib.paths.user_config if params.scope == "user" else project_config(project.root)
    within = None if params.scope == "user" else project.root
    if any(waiting.file == file for waiting in before.waiting):
        raise ConfigError(
            f"{file} holds entries that you have not trusted.",
            remedy="Look at them with `toolcrib trust`, then add yours.",
        )
    entry = params.entry.model_dump(exclude_none=True, exclude_defaults=True)
    if_exists = IfExists.REPLACE if params.replace else IfExists.REFUSE
    add_server(file, {"name": params.name, **entry}, if_exists=if_exists, project=within)
    if within is not None:
        # All that stood there was trusted, and the owner wrote the rest here and now.
        await context.crib.trust(file, trust_digest(file))
    await context.crib.reload()
    problems = [str(p) for p in project.config.problems if params.name in p.key]
    if params.name not in project.config.servers:
        await _take_out(context, file, params.name)
        raise ConfigError(
            f"{params.name} was not added: {'; '.join(problems) or 'its entry cannot be used'}",
            remedy="Nothing was changed.",
        )
    await project.settled([params.name])
    return {"server": params.name, "file": str(file), **describe_server(context, params.name)}


class Named(Parameters):
    name: str


@registry.command("server:remove", parameters=Named, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def remove(context: Context, params: Named) -> dict[str, Any]:
    """Remove an MCP server from the configuration; its tools go with it."""
    config = context.project.config.servers.get(params.name)
    if config is None:
        known = ", ".join(sorted(context.project.config.servers)) or "none"
        raise UnknownServer(f"There is no server {params.name!r}.", remedy=f"Servers: {known}.")
    if config.source.file is None:
        where = "a variable" if config.source.layer is Layer.ENVIRONMENT else "a flag"
        raise ConfigError(f"{params.name} comes from {where}.", remedy="Start again without it.")
    await _take_out(context, config.source.file, params.name)
    return {"server": params.name, "file": str(config.source.file)}


async def _take_out(context: Context, file: Path, name: str) -> None:
    """Removes the entry; the trust in what else the file says goes on."""
    within = context.project.root if file.is_relative_to(context.project.root) else None
    remove_server(file, name, project=within)
    if within is not None:
        await context.crib.trust(file, trust_digest(file))
    await context.crib.reload()


@registry.command("server:restart", parameters=Named, effect=Effect.CHANGES, reach=Reach.EVERYWHERE)
async def restart(context: Context, params: Named) -> dict[str, Any]:
    """Disconnect from an MCP server and connect again."""
    server = context.project.servers.get(params.name)
    if server is None:
        known = ", ".join(sorted(context.project.servers)) or "none"
        raise UnknownServer(f"There is no server {params.name!r}.", remedy=f"Servers: {known}.")
    await server.restart()
    await server.settled()
    return describe_server(context, params.name)
