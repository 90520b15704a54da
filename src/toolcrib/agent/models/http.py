"""The way to a provider: one HTTP client for one run.

In: a `Place`. Out: a client. It is closed with the run, so that no connection outlives it or is used in another event
loop. Redirects are not followed, as they would take the key along. `openai`, `anthropic` and `google` give it to their
SDKs.
"""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from toolcrib.agent.models.place import Place

CONNECT_LIMIT = 10.0
"""Seconds, whatever a request allows: one limit that is set for all of a request would hold here, too."""
SILENCE_LIMIT = 600.0
"""Seconds between two pieces of an answer. A model that thinks says nothing for minutes."""
NO_KEY = "no-key-is-sent"
"""The SDKs insist on a key; a header that holds this one never leaves."""
LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


def client(where: Place) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        verify=trusted(),
        timeout=httpx2.Timeout(SILENCE_LIMIT, connect=CONNECT_LIMIT, pool=CONNECT_LIMIT),
        mounts=dict.fromkeys(LOOPBACK),
        event_hooks={"request": [_limited, *([] if where.key else [_without_a_key])]},
    )


@functools.cache
def trusted() -> ssl.SSLContext:
    """Takes longer to read than a connection to make, and holds nothing of a run."""
    return httpx2.create_ssl_context()


async def _limited(request: httpx2.Request) -> None:
    given = request.extensions["timeout"]
    shorter = {phase: min(given[phase] or CONNECT_LIMIT, CONNECT_LIMIT) for phase in ("connect", "pool")}
    request.extensions = {**request.extensions, "timeout": {**given, **shorter}}


async def _without_a_key(request: httpx2.Request) -> None:
    for name, value in request.headers.multi_items():
        if NO_KEY in value:
            del request.headers[name]
