"""server:* — the servers behind Toolcrib: list, add, remove, restart, trust."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from toolcrib.catalog.tool import decode_definition
from toolcrib.commands.installing import wait_for_installations
from toolcrib.commands.pins import describe_pins
from toolcrib.commands.problems import describe_problems
from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    Parameters,
    PathText,
    ServersNeeded,
    Via,
    registry,
)
from toolcrib.config.edit import (
    ConfigEdit,
    IfExists,
    ProjectEdit,
    ServerSwitch,
    add_server,
    remove_server,
    switch_server,
)
from toolcrib.config.from_code import read_server_entry
from toolcrib.config.masking import mask_args, mask_tree
from toolcrib.config.model import Layer, ServerConfig
from toolcrib.config.paths import PROJECT_FOLDER, SHARED_PROJECT_FILE, home_of, project_config
from toolcrib.config.values import EntryContext
from toolcrib.errors import ConfigError, Denied, StoreError, UnknownServer, UnknownTool, UsageError
from toolcrib.events import AuditedChange
from toolcrib.identity.principal import OWNER
from toolcrib.identity.state import nothing_changed
from toolcrib.servers.account import asks_for_sign_in
from toolcrib.servers.model import ServerState
from toolcrib.servers.server import Server

_STATUS_FIELDS = (
    "state",
    "transport",
    "protocol_version",
    "tools",
    "pid",
    "since",
    "last_seen",
    "last_error",
    "waits_for_installation",
    "attempts",
    "next_attempt",
    "root",
)


def describe_server(context: CommandContext, name: str) -> dict[str, Any]:
    """A server for display, without secrets."""
    config = context.project.config.servers[name]
    row: dict[str, Any] = {
        "name": name,
        "transport": config.transport,
        "state": "disabled",
        "source": str(config.source),
        "trusted": context.crib.trust.trusted(config) is not None,
        "pins": describe_pins(context.project, name),
        "tools": 0,
        "last_error": "",
    }
    server = context.project.servers.get(name)
    if server is None:
        return row
    status, waits = server.status, server.status.waits_for_installation
    if own := context.project.agent_servers.by_agent(name):
        row["agents"] = {agent: {"state": one.status.state, "pid": one.status.pid} for agent, one in own.items()}
    return {
        **row,
        **{name: getattr(status, name) for name in _STATUS_FIELDS},
        "uptime": time.time() - status.since if status.since and status.state is ServerState.READY else None,
        "installing": time.time() - status.since if status.since and status.installing and not waits else None,
        "needs_sign_in": asks_for_sign_in(name, status.last_error),
        "server_info": mask_tree(status.server_info, context.crib.environment.mask.line),
        "stderr": server.stderr_tail(5),
    }


@registry.command("server:list", CommandEffect.READS, Availability.EVERYWHERE, servers=ServersNeeded.SETTLED)
async def list_servers(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """List the MCP servers behind Toolcrib with their state, protocol version, number of tools and last error."""
    if context.principal.profile != OWNER.profile:
        return {"servers": [describe_for_agent(context, name) for name in usable_servers(context)]}
    return {
        "servers": [describe_server(context, name) for name in sorted(context.project.config.servers)],
        **await describe_problems(context),
    }


def usable_servers(context: CommandContext) -> list[str]:
    """The servers with at least one tool that the caller may use; it learns nothing about the others."""
    project, permission = context.project, context.principal.permission()
    return [
        name for name in sorted(project.config.servers) if any(map(permission.shows, project.catalog.of_server(name)))
    ]


def describe_for_agent(context: CommandContext, name: str) -> dict[str, Any]:
    """Leaves out the server's output and errors, which may show what other agents did."""
    tools = context.project.catalog.of_server(name)
    server = context.project.servers.get(name)
    return {
        "name": name,
        "state": None if server is None else server.status.state,
        "tools": sum(map(context.principal.permission().shows, tools)),
    }


class NewServerEntry(Parameters):
    """A server's entry for the configuration file; `${VAR}` is not expanded."""

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: PathText | None = None
    url: str | None = None
    transport: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    connect_timeout: float | None = None


class AddServer(Parameters):
    name: str
    entry: NewServerEntry
    scope: Literal["user", "project"] = "user"
    replace: bool = False


@registry.command("server:add", CommandEffect.CHANGES, Availability.EVERYWHERE, servers=ServersNeeded.NAMED)
async def add(context: CommandContext, params: AddServer) -> dict[str, Any]:
    """Add an MCP server to the configuration and connect to it."""
    project = context.project
    entry = params.entry.model_dump(exclude_none=True, exclude_defaults=True)
    crib, is_users = context.crib, params.scope == "user"
    # The entry is checked as it will be read, including variables, before anything is written.
    around = EntryContext(
        layer=Layer.USER if is_users else Layer.PROJECT,
        environ=crib.environment.variables,
        secrets=crib.environment.secrets(),
        home=home_of(crib.environment.variables),
        root=None if is_users else project.root,
        neutral=crib.environment.paths.start_folder if is_users else None,
    )
    await asyncio.to_thread(read_server_entry, params.name, entry, around)
    file = crib.environment.paths.user_config if is_users else project_config(project.root)
    if_exists = IfExists.REPLACE if params.replace else IfExists.REFUSE
    async with crib.projects.editing:
        within = await _in_project(context, file)
        edited = add_server(file, {"name": params.name, **entry}, if_exists=if_exists, project=within)
        try:
            await _trust_edited(context, file, edited)
            runs = [entry["url"]] if "url" in entry else [entry["command"], *entry.get("args", ())]
            await _record(context, "server added", params.name, file, runs=" ".join(mask_args(runs)))
        except StoreError as error:
            edited.undo()
            raise nothing_changed(error) from error
        await crib.projects.reload(by=context.principal.name, besides=params.name)
    if params.name not in project.config.servers:
        problems = [str(problem) for problem in project.config.problems if problem.server == params.name]
        raise ConfigError(
            f"{params.name} is in {file}, but not in use: {' '.join(problems) or 'another entry replaces it.'}",
            remedy="Run `toolcrib config check` for details.",
        )
    await _connect(context, params.name)
    if params.name not in project.config.servers:
        raise UnknownServer(f"{params.name} was removed while it was connecting.", remedy="Add it again.")
    return {"server": params.name, "file": str(file), **describe_server(context, params.name)}


async def _connect(context: CommandContext, name: str) -> None:
    server = context.project.servers.get(name)
    if server is None:
        return
    server.start_if_idle()
    if context.via is Via.MCP:
        # Clients limit the time of a call.
        await server.settled()
    else:
        await wait_for_installations([server], context.emit)


async def _in_project(context: CommandContext, file: Path) -> ProjectEdit | None:
    """The conditions for changing the file; None for the user's own."""
    root = context.project.root
    if not file.is_relative_to(root / PROJECT_FOLDER) and file != root / SHARED_PROJECT_FILE:
        return None
    if context.via is Via.MCP:
        raise Denied(
            "A project's file can't be changed over MCP, because the change would be trusted without a review.",
            remedy="Use the command line: `toolcrib add --project`, `remove`, `enable` or `disable`.",
        )
    return ProjectEdit(root=root, trusted=await context.crib.trust.files())


async def _trust_edited(context: CommandContext, file: Path, edited: ConfigEdit) -> None:
    """Trusts the changed file: its old content was trusted, and the owner made the change."""
    if file != context.crib.environment.paths.user_config:
        await context.crib.trust.add_file(file, edited.digest)


async def _record(context: CommandContext, what: str, name: str, file: Path, **more: str) -> None:
    detail = {"server": name, "file": str(file), **more, "via": str(context.via)}
    await context.services.record(AuditedChange(what=what, agent=context.principal.name, detail=detail))


class ServerName(Parameters):
    name: str


@registry.command("server:remove", CommandEffect.CHANGES, Availability.EVERYWHERE)
async def remove(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Remove an MCP server and its tools from the configuration."""
    file, config = _file_of(context, params.name), context.project.config.servers.get(params.name)
    async with context.crib.projects.editing:
        try:
            edited = remove_server(file, params.name, project=await _in_project(context, file))
        except UnknownServer:
            configured_server(context, params.name)
            raise
        await _trust_edited(context, file, edited)
        await context.crib.projects.reload(by=context.principal.name, besides=params.name)
    if config is not None:
        await context.services.last_known.forget(config)
    await _record(context, "server removed", params.name, file)
    return {"server": params.name, "file": str(file)}


class SwitchServer(Parameters):
    name: str
    """NAME or NAME:TOOL."""
    scope: Literal["user", "project"] = "user"


@registry.command("server:enable", CommandEffect.CHANGES, Availability.EVERYWHERE)
async def enable(context: CommandContext, params: SwitchServer) -> dict[str, Any]:
    """Enable an MCP server, or one of its tools (NAME:TOOL), that was disabled."""
    return await _switch(context, params, ServerSwitch.ON)


@registry.command("server:disable", CommandEffect.CHANGES, Availability.EVERYWHERE)
async def disable(context: CommandContext, params: SwitchServer) -> dict[str, Any]:
    """Disable an MCP server, or one of its tools (NAME:TOOL), until it is enabled again."""
    return await _switch(context, params, ServerSwitch.OFF)


async def _switch(context: CommandContext, params: SwitchServer, switch: ServerSwitch) -> dict[str, Any]:
    project = context.project
    known = params.name in project.config.servers
    name, colon, tool = (params.name, "", "") if known else params.name.partition(":")
    if colon and not tool:
        raise UsageError(f"{params.name} names no tool.", remedy=f"Write {name}, or {name}:TOOL.")
    _refuse_unknown_tool(context, name, tool)
    config = project.config.servers.get(name)
    in_project = config is not None and config.source.layer is Layer.PROJECT
    file = project_config(project.root) if params.scope == "project" and not in_project else _file_of(context, name)
    below = config is not None and file != context.crib.environment.paths.user_config
    async with context.crib.projects.editing:
        within = await _in_project(context, file)
        edited = switch_server(file, name, switch, tool=tool, below=below, project=within)
        if edited.changed:
            what = f"{'tool' if tool else 'server'} {'enabled' if switch is ServerSwitch.ON else 'disabled'}"
            try:
                await _trust_edited(context, file, edited)
                await _record(context, what, name, file, **({"tool": tool} if tool else {}))
            except StoreError as error:
                edited.undo()
                raise nothing_changed(error) from error
            await context.crib.projects.reload(by=context.principal.name, besides=name)
    now = project.config.servers.get(name)
    enabled = now is not None and now.enabled and tool not in now.disabled_tools
    return {"server": name, "tool": tool, "enabled": enabled, "changed": edited.changed, "file": str(file)}


def _refuse_unknown_tool(context: CommandContext, name: str, tool: str) -> None:
    """Raises only if the server's tools are known."""
    server = context.project.servers.get(name)
    listed = None if server is None or not tool else server.tools
    if listed is not None and all(decode_definition(raw)[0] != tool for raw in listed):
        raise UnknownTool(f"{name} has no tool {tool!r}.", remedy=f"`toolcrib tools {name}` lists its tools.")


def _file_of(context: CommandContext, name: str) -> Path:
    """The file with the server's entry. Without an effective entry, it is the user's file: the entry may have a
    mistake, or may have been added by hand."""
    config = context.project.config.servers.get(name)
    if config is None:
        return context.crib.environment.paths.user_config
    if config.source.file is None:
        where = "a variable" if config.source.layer is Layer.ENVIRONMENT else "a flag"
        raise ConfigError(f"{name} comes from {where}.", remedy="Restart without it.")
    return config.source.file


@registry.command("server:refresh", CommandEffect.CHANGES, Availability.EVERYWHERE, servers=ServersNeeded.NAMED)
async def refresh(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """List an MCP server's tools again, for servers that do not announce changes."""
    await _server_in_use(context, params.name).refresh()
    return describe_server(context, params.name) | await describe_problems(context)


@registry.command("server:restart", CommandEffect.CHANGES, Availability.EVERYWHERE, servers=ServersNeeded.NAMED)
async def restart(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Disconnect from an MCP server and connect again; also the instances that agents have for themselves."""
    server = _server_in_use(context, params.name)
    await asyncio.gather(server.restart(), context.project.agent_servers.restart(params.name))
    return describe_server(context, params.name) | await describe_problems(context)


def _server_in_use(context: CommandContext, name: str) -> Server:
    server = context.project.servers.get(name)
    if server is None:
        config = configured_server(context, name)
        raise UsageError(f"{name} is disabled in {config.source}.", remedy=f"Enable it with: toolcrib enable {name}")
    return server


def configured_server(context: CommandContext, name: str) -> ServerConfig:
    config = context.project.config.servers.get(name)
    if config is None:
        for problem in context.project.config.problems:
            if problem.server == name:
                raise ConfigError(str(problem), remedy="" if problem.suggestion else "Correct the entry.")
        known = ", ".join(sorted(context.project.config.servers)) or "none"
        raise UnknownServer(f"There is no server {name!r}.", remedy=f"Servers: {known}.")
    return config


@registry.command("server:trust", CommandEffect.CHANGES, Availability.SOCKET, servers=ServersNeeded.NAMED, cached=True)
async def trust(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Trust an MCP server's annotations of its current tools, but not of those that it adds or changes later."""
    config = configured_server(context, params.name)
    server = context.project.servers.get(params.name)
    if server is not None:
        await server.settled()
    if server is None or not server.tools:
        # Otherwise the trust would cover any tools that it lists later.
        raise UsageError(
            f"Server {params.name!r} lists no tools, so there is nothing to trust.",
            remedy="Trust it when `toolcrib servers` shows that it has tools.",
        )
    flagged = describe_pins(context.project, params.name).get("flagged", {})
    held = context.project.holds(server)
    offered = context.crib.trust.offered(config, server.root, server.tools, hold=held)
    if not offered:
        raise UsageError(
            f"All tools of server {params.name!r} are kept out, so there is nothing to trust.",
            remedy=f"Review them with `toolcrib pins {params.name}`, then run `toolcrib pins accept {params.name}`.",
        )
    changed = await context.crib.trust.add_server(config, offered, by=context.principal.name)
    tools = context.project.catalog.of_server(params.name)
    return {
        "server": params.name,
        "trusted": True,
        "changed": changed,
        "tools": len(tools),
        "read_only": sum(tool.reads_only for tool in tools),
        "flagged": flagged,
    }


@registry.command("server:untrust", CommandEffect.CHANGES, Availability.SOCKET, cached=True)
async def untrust(context: CommandContext, params: ServerName) -> dict[str, Any]:
    """Stop trusting an MCP server: each of its tools counts as one that may change something."""
    config = configured_server(context, params.name)
    return {"server": params.name, "trusted": False, "changed": await context.crib.trust.remove_server(config)}
