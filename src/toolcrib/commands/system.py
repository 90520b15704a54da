"""system:* — how the daemon is, and its end."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from toolcrib.commands.registry import Context, Effect, Parameters, Reach, registry
from toolcrib.commands.server import current_config, describe_faults, describe_server, seen_from_outside, usable_servers
from toolcrib.config.model import Severity
from toolcrib.events import Change
from toolcrib.policy import OWNER
from toolcrib.servers.model import ServerState
from toolcrib.store.clock import keep


@registry.command("system:health", effect=Effect.READS, reach=Reach.EVERYWHERE)
async def health(context: Context, _: Parameters) -> dict[str, Any]:
    """Say whether Toolcrib and the servers behind it work, and what is wrong with those that do not."""
    if context.caller.profile != OWNER.profile:
        return _health_from_outside(context)
    states = [server.status for server in context.project.servers.values()]
    away = [
        {"server": status.name, "state": status.state, "reason": status.last_error}
        for status in states
        if status.state is not ServerState.READY
    ]
    config = await current_config(context)
    wrong = [str(problem) for problem in config.problems if problem.severity is Severity.ERROR]
    writable = context.crib.book.failure is None
    return {
        "healthy": not away and not wrong and writable,
        "servers": {"ready": len(states) - len(away), "all": len(states)},
        "away": away,
        "problems": wrong,
        "book": {"writable": writable},
    }


def _health_from_outside(context: Context) -> dict[str, Any]:
    """Of the servers that the caller can use, without reasons: those may tell what others did."""
    servers = [seen_from_outside(context, name) for name in usable_servers(context)]
    away = [{"server": one["name"], "state": one["state"]} for one in servers if one["state"] != ServerState.READY]
    writable = context.crib.book.failure is None
    return {
        "healthy": not away and writable,
        "servers": {"ready": len(servers) - len(away), "all": len(servers)},
        "away": away,
        "book": {"writable": writable},
    }


@registry.command("system:stats", effect=Effect.READS, reach=Reach.EVERYWHERE)
async def stats(context: Context, _: Parameters) -> dict[str, Any]:
    """Count what Toolcrib does: calls, servers, tools, projects, memory, time."""
    catalog = context.project.catalog
    # Linux counts in KiB, macOS in bytes.
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "calls": {"finished": context.crib.door.finished, "in_flight": context.crib.door.in_flight},
        "catalog": {"version": catalog.version, "tools": len(catalog.tools)},
        "servers": len(context.project.servers),
        "projects": len(context.crib.projects),
        "uptime": context.host.describe().get("uptime"),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
        "cpu_seconds": time.process_time(),
    }


@registry.command("system:status", effect=Effect.READS, reach=Reach.SOCKET)
async def status(context: Context, _: Parameters) -> dict[str, Any]:
    """Describe the daemon: endpoint, token file, process, servers and what is wrong with the configuration."""
    config = context.project.config
    return {
        **context.host.describe(),
        "project": str(context.project.root),
        "store": {"engine": context.crib.store.engine, "place": context.crib.store.place},
        "book": await context.crib.book.describe(),
        "clock": {"ahead": round(context.crib.attendant.clock.ahead)},
        "agents": len(context.crib.roster.agents),
        "sessions": len(context.crib.sessions),
        "approvals": len(context.crib.approvals.waiting()),
        "servers": [describe_server(context, name) for name in sorted(config.servers)],
        **await describe_faults(context),
    }


@registry.command("clock:confirm", effect=Effect.CHANGES, reach=Reach.SOCKET)
async def confirm(context: Context, _: Parameters) -> dict[str, Any]:
    """Confirm that the system's clock is right: what is too old by it is deleted from now on."""
    clock = context.crib.attendant.clock
    ahead = round(clock.ahead)
    clock.confirm()
    await context.crib.store.write(keep, clock.row())
    await context.crib.note(Change(what="clock confirmed", detail={"seconds": ahead}))
    return {"seconds": ahead}


@registry.command("system:stop", effect=Effect.CHANGES, reach=Reach.SOCKET)
async def stop(context: Context, _: Parameters) -> dict[str, Any]:
    """End the daemon and every server it started."""
    context.host.stop()
    return {"stopping": True}
