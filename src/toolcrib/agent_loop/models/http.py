"""The HTTP client of one run, for its provider.

In: a `ModelEndpoint`. Out: a `ModelHttpClient`. It is closed with the run, so no connection outlives it or is used in
another event loop. It does not follow redirects, which would leak the key. `openai`, `anthropic` and `google` pass it
to their SDKs; `retrying` calls `hang_up`.
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
"""Seconds. A longer timeout of a whole request does not raise it."""
SILENCE_LIMIT = 600.0
"""Seconds between two chunks of an answer. A model that is thinking may send nothing for minutes."""
NO_KEY = "no-key-is-sent"
"""The SDKs require a key. Headers that contain this one are removed before sending."""
LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class ModelHttpClient(httpx2.AsyncClient):
    """A client that keeps the current response. A run makes one request at a time."""

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
        """Closes the current response; a pending read of it fails."""
        if self._current is not None:
            await self._current.aclose()

    async def __aexit__(self, *what: Any) -> None:
        await self._let_go()
        await super().__aexit__(*what)

    async def _let_go(self) -> None:
        """Closes the reader of an answer that failed inside an SDK. The garbage collector would close its nested
        generators concurrently, each in its own task."""
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
    """Cached, because loading it takes longer than connecting, and it has no state of a run."""
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
            f"{host} answers with a redirect ({response.status_code}).",
            remedy="Redirects are not followed, to protect the key. Set `base_url` to the final URL.",
        )
    if response.is_success and "html" in response.headers.get("content-type", ""):
        raise UsageError(
            f"{host} answers with a web page instead of a model's answer.",
            remedy="Check `base_url`: for OpenAI's interface it usually ends in /v1. A proxy may require a login.",
        )
