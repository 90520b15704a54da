"""Waits for servers that launchers are installing, and reports the seconds as events.

In: servers, and a function for events. Out: nothing; the servers' states have changed. `server:add` uses it, and
`local`, because commands without a daemon end the servers when they are done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toolcrib.servers.installing import PATIENCE
from toolcrib.servers.server import Server

_TELL_AGAIN = 1.0
"""Seconds between two events."""


async def wait_for_installations(servers: Iterable[Server], emit: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Waits until the servers have finished their first attempt to connect, however long an installation takes."""
    settling = [asyncio.create_task(server.settled(server.config.connect_timeout + PATIENCE + 1)) for server in servers]
    try:
        while settling and (await asyncio.wait(settling, timeout=_TELL_AGAIN))[1]:
            begun = [status.since for server in servers if (status := server.status).installing and status.since]
            if begun:
                await emit({"progress": f"installing… {time.time() - min(begun):.0f} s"})
    finally:
        for task in settling:
            task.cancel()
