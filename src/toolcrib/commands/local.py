"""Runs commands without a daemon, in a `Crib` that is open only for them.

In: the command's name and parameters from the CLI. Out: its result. The servers that the command needs are connected
for it and closed afterwards.
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
from toolcrib.commands.installing import wait_for_installations
from toolcrib.commands.registry import Command, CommandContext, JobService, ServersNeeded, Via
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.core.offer_source import PROMPT_METHOD, READ_METHOD
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import DaemonNotRunning, NotFound, ServerUnavailable
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.policy.rule import kind_and_glob

_CALL = "tool:call"
_METHODS = {"resource:read": READ_METHOD, "prompt:get": PROMPT_METHOD}
_NAMES = {_CALL: "tool", "resource:read": "uri", "prompt:get": "prompt"}
"""The parameter that names the server's tool, resource or prompt."""
RunLocal = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class NoDaemon:
    """The host of commands without a daemon: it has no endpoint and nothing to stop."""

    def __init__(self) -> None:
        self.leases = ActiveLeases()

    @property
    def jobs(self) -> JobService:
        raise DaemonNotRunning("Jobs need a daemon.", remedy="Run `toolcrib up --detach` to start one.")

    def describe(self) -> dict[str, Any]:
        return {"running": False, "endpoint": None, "token_file": None, "pid": None, "version": __version__}

    def stop(self) -> None:
        raise DaemonNotRunning("No daemon is running.", remedy="Run `toolcrib up` to start one.")


@contextlib.asynccontextmanager
async def local_commands(
    name: str,
    params: dict[str, Any],
    *,
    flags: Flags,
    root: Path,
    emit: Callable[[dict[str, Any]], Awaitable[None]],
) -> AsyncIterator[RunLocal]:
    """Opens a crib with the servers that this command needs, which runs it and similar ones until the block ends."""
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
        # They end with this process, so an installation that is not waited for would begin again each time.
        await wait_for_installations([one for one in crib.projects.pool.servers if one.installing], emit)
        if command.servers is ServersNeeded.SETTLED or _calls_a_command(command, params):
            await crib.projects.home.settled()
        context = CommandContext(
            crib=crib, request=RequestContext(OWNER, crib.projects.home), host=host, via=Via.SOCKET, emit=emit
        )

        async def run(name: str, params: dict[str, Any]) -> dict[str, Any]:
            if (key := _NAMES.get(name)) is not None:
                await _started(context, name, str(params.get(key, "")))
            return await registry.run(name, params, context)

        yield run


async def _started(context: CommandContext, command: str, name: str) -> None:
    """Starts the server if it is idle, and waits for it as above: a call alone would wait for a shorter time."""
    project = context.crib.projects.home
    with contextlib.suppress(NotFound, ServerUnavailable):
        found = project.find(name) if command == _CALL else project.find_offer(_METHODS[command], name, OWNER.name)
        server = project.servers.get(found.server)
        if server is not None:
            server.start_if_idle()
            await wait_for_installations([server], context.emit)


def excludes_daemon(name: str) -> bool:
    """Whether no daemon may start meanwhile, because it could have read its state before the change."""
    return registry.find(name).cached


def _needed(command: Command, params: dict[str, Any]) -> frozenset[str] | None:
    """The servers that a command needs, so that one call does not start them all. None means all."""
    if command.servers is ServersNeeded.NONE:
        return frozenset()
    if command.servers is not ServersNeeded.NAMED or _calls_a_command(command, params):
        return None
    of_tool, colon, _ = kind_and_glob(str(params.get("tool", "")))[1].partition(":")
    server = params.get("name") or params.get("server") or (of_tool if colon else "")
    return frozenset({str(server)}) if server else None


def _calls_a_command(command: Command, params: dict[str, Any]) -> bool:
    """Whether the tool to call is one of Toolcrib's commands, whose result covers all servers."""
    return command.name == _CALL and str(params.get("tool", "")).startswith(("crib:", "crib_", "mcp_crib_"))
