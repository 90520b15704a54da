"""system:*, clock:* and log:* — the daemon's health and status, its end, its log and its servers' logs."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from toolcrib.commands.problems import current_config, describe_problems
from toolcrib.commands.registry import (
    Availability,
    CommandContext,
    CommandEffect,
    CommandScope,
    Parameters,
    ServersNeeded,
    registry,
)
from toolcrib.commands.secret import key_store
from toolcrib.commands.server import describe_for_agent, describe_server, usable_servers
from toolcrib.config.model import Severity
from toolcrib.errors import UnknownServer
from toolcrib.events import AuditedChange
from toolcrib.identity.principal import OWNER
from toolcrib.servers.model import ServerState
from toolcrib.store.clock import keep

_USABLE = frozenset({ServerState.READY, ServerState.IDLE})


@registry.command(
    "system:health",
    CommandEffect.READS,
    Availability.EVERYWHERE,
    scope=CommandScope.DAEMON,
    servers=ServersNeeded.SETTLED,
)
async def health(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Show the health of Toolcrib and its servers, with errors."""
    if context.principal.profile != OWNER.profile:
        return _health_for_agent(context)
    states = [server.status for server in context.project.servers.values()]
    unavailable = [
        {"server": status.name, "state": status.state, "reason": status.last_error}
        for status in states
        if status.state not in _USABLE
    ]
    config = await current_config(context)
    wrong = [str(problem) for problem in config.problems if problem.severity is Severity.ERROR]
    writable = context.services.audit.failure is None
    return {
        "healthy": not unavailable and not wrong and writable,
        "servers": {"ready": len(states) - len(unavailable), "all": len(states)},
        "unavailable": unavailable,
        "problems": wrong,
        "audit": {"writable": writable},
    }


def _health_for_agent(context: CommandContext) -> dict[str, Any]:
    """Covers the servers that the caller can use. Leaves out reasons, which may show what other agents did."""
    servers = [describe_for_agent(context, name) for name in usable_servers(context)]
    unavailable = [{"server": one["name"], "state": one["state"]} for one in servers if one["state"] not in _USABLE]
    writable = context.services.audit.failure is None
    return {
        "healthy": not unavailable and writable,
        "servers": {"ready": len(servers) - len(unavailable), "all": len(servers)},
        "unavailable": unavailable,
        "audit": {"writable": writable},
    }


@registry.command(
    "system:stats", CommandEffect.READS, Availability.EVERYWHERE, scope=CommandScope.DAEMON, servers=ServersNeeded.ALL
)
async def stats(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Show statistics: calls, servers, tools, projects, memory, time."""
    catalog = context.project.catalog
    # Linux counts in KiB, macOS in bytes.
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "calls": {"finished": context.services.door.finished, "in_flight": context.services.door.in_flight},
        "catalog": {"version": catalog.version, "tools": len(catalog.tools)},
        "servers": len(context.project.servers),
        "projects": len(context.crib.projects),
        "uptime": context.host.describe().get("uptime"),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
        "cpu_seconds": time.process_time(),
    }


@registry.command(
    "system:status", CommandEffect.READS, Availability.SOCKET, scope=CommandScope.DAEMON, servers=ServersNeeded.SETTLED
)
async def status(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Describe the daemon: endpoint, token file, process, servers and configuration problems."""
    config = context.project.config
    return {
        **context.host.describe(),
        "project": str(context.project.root),
        "store": {"engine": context.services.store.engine, "place": context.services.store.place},
        "audit": await context.services.audit.describe(),
        "secrets": {"key_store": await key_store(context)},
        "clock": {"ahead": round(context.services.clock.ahead)},
        "agents": len(context.services.agents.agents),
        "sessions": len(context.services.sessions),
        "approvals": len(context.services.approvals.waiting()),
        "servers": [describe_server(context, name) for name in sorted(config.servers)],
        **await describe_problems(context),
    }


@registry.command("clock:confirm", CommandEffect.CHANGES, Availability.SOCKET, scope=CommandScope.DAEMON)
async def confirm(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Confirm that the system clock is correct, so that expired data is deleted again."""
    clock = context.services.clock
    ahead = round(clock.ahead)
    clock.confirm()
    await context.services.store.write(keep, clock.row())
    await context.services.record(AuditedChange(what="clock confirmed", detail={"seconds": ahead}))
    return {"seconds": ahead}


@registry.command("system:stop", CommandEffect.CHANGES, Availability.SOCKET, scope=CommandScope.DAEMON)
async def stop(context: CommandContext, _: Parameters) -> dict[str, Any]:
    """Stop the daemon and every server it started."""
    context.host.stop()
    return {"stopping": True}


_LOG_POLL = 0.25
_READ_AT_MOST = 1 << 20


class TailLog(Parameters):
    server: str | None = None
    lines: int = Field(default=50, ge=0, le=10_000)
    follow: bool = False


@registry.command("log:tail", CommandEffect.READS, Availability.SOCKET)
async def tail(context: CommandContext, params: TailLog) -> dict[str, Any]:
    """Show the end of the daemon's log, or of a server's standard error."""
    paths = context.crib.environment.paths
    if params.server is not None and params.server not in context.project.config.servers:
        raise UnknownServer(f"There is no server {params.server!r}.", remedy="Run `toolcrib servers` to see them.")
    if params.server is None:
        file = paths.log
    else:
        per_project = context.project.config.servers[params.server].is_per_project
        root = context.project.root if per_project else None
        file = paths.server_log(params.server, root)
    lines, place = await asyncio.to_thread(_last_lines, file, params.lines)
    if not params.follow:
        return {"file": str(file), "lines": lines}
    for line in lines:
        await context.emit({"line": line})
    while True:
        await asyncio.sleep(_LOG_POLL)
        lines, place = await asyncio.to_thread(_lines_after, file, place)
        for line in lines:
            await context.emit({"line": line})


def _last_lines(file: Path, count: int) -> tuple[list[str], int]:
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(0, end - _READ_AT_MOST))
            text = stream.read(_READ_AT_MOST).decode(errors="replace")
    except FileNotFoundError:
        return [], 0
    return (text.splitlines()[-count:] if count else []), end


def _lines_after(file: Path, place: int) -> tuple[list[str], int]:
    """The complete lines after `place`; from the beginning if the file was replaced."""
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(place if place <= end else 0)
            begin = stream.tell()
            data = stream.read(_READ_AT_MOST)
    except FileNotFoundError:
        return [], 0
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode(errors="replace").splitlines(), begin + whole
