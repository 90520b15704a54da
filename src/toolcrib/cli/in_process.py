"""Runs a command in this process, if no daemon is running or --mcp-server is given.

In: a command's name and parameters, the servers of --mcp-server. Out: a function that runs commands on one set of
connections. `perform` imports it lazily, because it needs the store, the servers and an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.cli.flags import well_formed_servers
from toolcrib.commands.local import excludes_daemon, local_commands
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths
from toolcrib.daemon_client.lifetime import daemon_lock
from toolcrib.errors import AlreadyRunning

if TYPE_CHECKING:
    from toolcrib.cli.perform import AskCommand, OnEvent

_SERVERS_REMEDY = (
    "The daemon can't use servers given for one command. Add the server with `toolcrib add`, stop the daemon with "
    "`toolcrib down`, or use a separate database: `TOOLCRIB_STORE=FILE toolcrib …`."
)


@contextlib.contextmanager
def opened(
    name: str,
    params: dict[str, Any],
    *,
    servers: Sequence[str],
    on_event: OnEvent | None,
    paths: Paths,
    root: Path,
) -> Iterator[AskCommand]:
    async def emit(event: dict[str, Any]) -> None:
        if on_event is not None:
            on_event(event)

    flags = Flags(mcp_servers=well_formed_servers(servers))
    alone = daemon_lock(paths) if excludes_daemon(name) else contextlib.nullcontext()
    with alone, asyncio.Runner() as runner:
        local = local_commands(name, params, flags=flags, root=root, emit=emit)
        try:
            asked = runner.run(local.__aenter__())
        except AlreadyRunning as other:
            raise AlreadyRunning(
                other.message, remedy=_SERVERS_REMEDY if servers else other.remedy, data=other.data
            ) from None

        def ask_here(name: str, params: dict[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
            async def answered() -> dict[str, Any]:
                return await asked(name, params)

            return runner.run(answered())

        try:
            yield ask_here
        finally:
            runner.run(local.__aexit__(None, None, None))
