"""Commands without a daemon: a `Crib` is wired, asked and closed.

In: the command's name and parameters as the CLI has them. Out: its result. Servers that the command needs are
connected for it and gone afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from toolcrib import __version__
from toolcrib.commands.all import registry
from toolcrib.commands.builtin import builtins
from toolcrib.commands.registry import CommandContext, CommandEffect, NoJobs, Via
from toolcrib.config import Flags, Paths
from toolcrib.core.crib import Crib
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import DaemonNotRunning
from toolcrib.identity.principal import OWNER, RequestContext

_WAITS_FOR_ALL = frozenset({"server:list", "system:health", "system:status"})
_NEEDS_NONE = frozenset(
    {
        "agent:add",
        "agent:list",
        "agent:remove",
        "agent:rotate",
        "agent:show",
        "audit:query",
        "audit:verify",
        "clock:confirm",
        "config:check",
        "config:show",
        "job:cancel",
        "job:list",
        "job:result",
        "job:submit",
        "log:tail",
        "permission:allow",
        "permission:deny",
        "profile:list",
        "profile:put",
        "profile:remove",
        "profile:show",
        "server:remove",
        "server:trust",
        "server:untrust",
        "session:end",
        "session:list",
        "trust:add",
        "trust:remove",
        "workspace:check",
    }
)

_HELD_IN_MEMORY = ("agent:", "permission:", "profile:", "server:trust", "server:untrust", "session:", "trust:")

RunLocal = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class NoDaemon:
    """The host of a one-shot command: there is no endpoint and nothing to stop."""

    def __init__(self) -> None:
        self.leases = ActiveLeases()
        self.jobs = NoJobs()

    def describe(self) -> dict[str, Any]:
        return {"running": False, "endpoint": None, "token_file": None, "pid": None, "version": __version__}

    def stop(self) -> None:
        raise DaemonNotRunning("No daemon runs.", remedy="`toolcrib up` starts one.")


@contextlib.asynccontextmanager
async def local_commands(
    name: str,
    params: dict[str, Any],
    *,
    flags: Flags,
    root: Path,
    emit: Callable[[dict[str, Any]], Awaitable[None]],
) -> AsyncIterator[RunLocal]:
    """Wires what this command needs, and runs it and others like it until the block ends."""
    registry.find(name)
    host = NoDaemon()
    crib = Crib(
        paths=Paths.of_user(os.environ),
        root=root,
        environ=os.environ,
        flags=flags,
        builtins=builtins(registry, host),
        only=_needed(name, params),
    )
    async with crib:
        if name in _WAITS_FOR_ALL or _is_a_command(name, params):
            await crib.projects.home.settled()
        context = CommandContext(
            crib=crib, request=RequestContext(OWNER, crib.projects.home), host=host, via=Via.SOCKET, emit=emit
        )
        yield lambda name, params: registry.run(name, params, context)


def excludes_daemon(name: str) -> bool:
    """Whether no daemon may start meanwhile: it would not know of the change, having read all this before."""
    return registry.find(name).effect is CommandEffect.CHANGES and name.startswith(_HELD_IN_MEMORY)


def _needed(name: str, params: dict[str, Any]) -> frozenset[str] | None:
    """The servers a command needs, so that one call does not start them all. None: all of them."""
    if name in _NEEDS_NONE:
        return frozenset()
    if name in ("server:add", "server:restart"):
        return frozenset({str(params.get("name"))})
    if name == "tool:list" and params.get("server"):
        return frozenset({str(params["server"])})
    if name in ("tool:call", "permission:why") and not _is_a_command(name, params):
        server, colon, _ = str(params.get("tool", "")).partition(":")
        return frozenset({server}) if colon else None
    return None


def _is_a_command(name: str, params: dict[str, Any]) -> bool:
    """Whether the tool to be called is a command of ours: what it says is about all servers."""
    return name == "tool:call" and str(params.get("tool", "")).startswith(("crib:", "crib_", "mcp_crib_"))
