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
from toolcrib.commands.registry import Command, CommandContext, JobService, ServersNeeded, Via
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import DaemonNotRunning
from toolcrib.identity.principal import OWNER, RequestContext

RunLocal = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class NoDaemon:
    """The host of a one-shot command: there is no endpoint and nothing to stop."""

    def __init__(self) -> None:
        self.leases = ActiveLeases()

    @property
    def jobs(self) -> JobService:
        raise DaemonNotRunning("Only a daemon runs jobs.", remedy="`toolcrib up --detach` starts one.")

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
    command = registry.find(name)
    host = NoDaemon()
    crib = Crib(
        paths=Paths.of_user(os.environ),
        root=root,
        environ=os.environ,
        flags=flags,
        builtins=builtins(registry, host),
        only=_needed(command, params),
    )
    async with crib:
        if command.servers is ServersNeeded.SETTLED or _calls_a_command(command, params):
            await crib.projects.home.settled()
        context = CommandContext(
            crib=crib, request=RequestContext(OWNER, crib.projects.home), host=host, via=Via.SOCKET, emit=emit
        )
        yield lambda name, params: registry.run(name, params, context)


def excludes_daemon(name: str) -> bool:
    """Whether no daemon may start meanwhile: it would not know of the change, having read all this before."""
    return registry.find(name).cached


def _needed(command: Command, params: dict[str, Any]) -> frozenset[str] | None:
    """The servers a command needs, so that one call does not start them all. None: all of them."""
    if command.servers is ServersNeeded.NONE:
        return frozenset()
    if command.servers is not ServersNeeded.NAMED or _calls_a_command(command, params):
        return None
    of_tool, colon, _ = str(params.get("tool", "")).partition(":")
    server = params.get("name") or params.get("server") or (of_tool if colon else "")
    return frozenset({str(server)}) if server else None


def _calls_a_command(command: Command, params: dict[str, Any]) -> bool:
    """Whether the tool to be called is a command of ours: its answer is about all servers."""
    return command.name == "tool:call" and str(params.get("tool", "")).startswith(("crib:", "crib_", "mcp_crib_"))
