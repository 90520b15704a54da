"""The way to a provider: one HTTP client for one run.

In: a `ModelEndpoint`. Out: a `ModelHttpClient`. It is closed with the run, so that no connection outlives it or is
used in another event loop. Redirects are not followed, as they would take the key along. `openai`, `anthropic` and
`google` give it to their SDKs; `retrying` hangs up.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import httpx2

from toolcrib.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.agent_loop.models.endpoint import ModelEndpoint

CONNECT_LIMIT = 10.0
"""Seconds, whatever a request allows: one limit that is set for all of a request would hold here, too."""
SILENCE_LIMIT = 600.0
"""Seconds between two pieces of an answer. A model that thinks says nothing for minutes."""
NO_KEY = "no-key-is-sent"
"""The SDKs insist on a key; a header that holds this one never leaves."""
LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class ModelHttpClient(httpx2.AsyncClient):
    """A client that knows the answer under way: a run asks for one after the other."""

    def __init__(self, where: ModelEndpoint) -> None:
        self._current: httpx2.Response | None = None
        self._read: AsyncGenerator[bytes] | None = None
        super().__init__(
            verify=trusted(),
            timeout=httpx2.Timeout(SILENCE_LIMIT, connect=CONNECT_LIMIT, pool=CONNECT_LIMIT),
            mounts=dict.fromkeys(LOOPBACK),
            event_hooks={
                "request": [_limited, *([] if where.key else [_without_a_key])],
                "response": [_refuse_no_answer, self._note],
            },
        )

    async def hang_up(self) -> None:
        """Whoever reads the answer still finds the line dead."""
        if self._current is not None:
            await self._current.aclose()

    async def __aexit__(self, *what: Any) -> None:
        await self._let_go()
        await super().__aexit__(*what)

    async def _let_go(self) -> None:
        """Closes what reads an answer that broke within an SDK: the garbage collector would close all that it reads
        from at the same time, each in a task of its own."""
        if self._read is not None:
            await self._read.aclose()

    async def _note(self, response: httpx2.Response) -> None:
        await self._let_go()
        self._current, self._read = response, None
        read = response.aiter_bytes

        def noted(chunk_size: int | None = None) -> AsyncGenerator[bytes]:
            self._read = read(chunk_size)
            return self._read

        response.aiter_bytes = noted  # type: ignore[method-assign]


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


async def _refuse_no_answer(response: httpx2.Response) -> None:
    host = response.request.url.host
    if response.is_redirect or response.status_code in range(300, 400):
        raise UsageError(
            f"{host} answers with {response.status_code}: it wants to be asked elsewhere.",
            remedy="Nobody is followed, since the key would go along. Give the address itself as `base_url`.",
        )
    if response.is_success and "html" in response.headers.get("content-type", ""):
        raise UsageError(
            f"{host} answers with a web page, and not as a model.",
            remedy="Check `base_url`: for OpenAI's interface it mostly ends in /v1. A proxy may want you to log in.",
        )
