"""The workspace over Streamable HTTP, on loopback or a unix socket.

In: the SDK's server and listening sockets. Out: its end when told to stop, in bounded time. `gate` looks at every
request before anything is read of it, `listeners` makes the sockets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from mcp.server.lowlevel.server import Server

from toolcrib.arrival import HttpServer
from toolcrib.workspace.serving.gate import LARGEST_BODY, Gate

ENDING = 2.0
"""Seconds that requests under way have at the end; then they are cut."""
MOST_SESSIONS = 256


async def serve_http(server: Server[Any], gate: Gate, listeners: Sequence[socket.socket]) -> None:
    """Until it is cancelled; then what is under way has a moment, and is cut."""
    # The gate has looked at Host and Origin already, and has the whole body.
    app = server.streamable_http_app(max_request_body_size=LARGEST_BODY, max_sessions=MOST_SESSIONS, host="")
    gate.app = app
    http = HttpServer(gate)
    async with app.router.lifespan_context(app):
        await http.start(*listeners)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await http.stop(ENDING)
