"""The health of a connected server, found by a real exchange with it.

In: a link and a time limit. Out: the seconds that the server needed to answer, or why it did not. Used by `server`.
"""

from __future__ import annotations

import time

from toolcrib.errors import CallTimeout, ServerFailure, ServerUnavailable
from toolcrib.servers.link import ServerLink
from toolcrib.servers.model import Era, ServerHealth


async def ping(link: ServerLink, limit: float) -> float:
    """Exchanges one small message that changes nothing: `server/discover` in the modern era, `ping` in the legacy one.

    Any valid answer counts, also an error: servers need not know `ping`. Raises ServerUnavailable, ProtocolViolation.
    """
    began = time.monotonic()
    method = "server/discover" if link.peer.era is Era.MODERN else "ping"
    try:
        await link.request(method, {}, meta={}, limit=limit)
    except CallTimeout:
        raise ServerUnavailable(f"Server '{link.name}' did not answer {method} within {limit:g} s.") from None
    return time.monotonic() - began


async def examine(link: ServerLink, limit: float) -> ServerHealth:
    """The same, as a result that never raises."""
    try:
        return ServerHealth(ok=True, seconds=await ping(link, limit))
    except ServerFailure as error:
        return ServerHealth(ok=False, error=error.message)
