"""A server's configuration → an open link, negotiated and ready for calls.

In: `ServerConfig`, root, and the server's era if known. Out: `open_link`, an async context manager that yields a
`ServerLink`. Each transport has its own context manager (`stdio`, `http`, `sse`, `websocket`); this module chooses.
`server` enters and leaves it, always in its supervisor's task, and imports this module when the first server connects,
because it loads the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from toolcrib.config.launchers import launch_of
from toolcrib.config.model import ServerConfig, Transport
from toolcrib.errors import ServerUnavailable
from toolcrib.servers.http import NotStreamable, open_http
from toolcrib.servers.link import EndedEarly, LinkContext, ServerLink, running_beside
from toolcrib.servers.model import Era
from toolcrib.servers.pipe_link import PipeLink
from toolcrib.servers.sdk import SdkSession, open_session
from toolcrib.servers.sse import open_sse
from toolcrib.servers.stdio import open_stdio
from toolcrib.servers.web import root_cause
from toolcrib.servers.websocket import open_websocket

_PROBE_SHARE = 0.4
"""The share of connect_timeout that a server gets to answer the modern probe before we try legacy."""
_LAUNCHER_PROBE = 4.0
"""Its limit in seconds for a launcher, which has more time to connect. Then the program gets `initialize` too. While it
installs, both messages wait in its stdin: a legacy server rejects the first, a modern one the second."""
_SUBSCRIBE_LIMIT = 2.0
"""Seconds to wait until a subscription is acknowledged, so that no change before the first list is missed."""

_LAST_WORDS = 1.0


def effective_transport(config: ServerConfig) -> Transport:
    """`websocket` with an http address means Streamable HTTP."""
    if config.transport is Transport.WEBSOCKET and config.url.lower().startswith("http"):
        return Transport.HTTP
    return config.transport


@contextlib.asynccontextmanager
async def open_link(config: ServerConfig, context: LinkContext) -> AsyncIterator[ServerLink]:
    """Raises ServerUnavailable, possibly inside an exception group from the SDK."""
    if context.account is not None:
        await context.account.open()
    async with _opened(config, context) as (link, session), _subscribed(link, session, context):
        yield link


@contextlib.asynccontextmanager
async def _opened(config: ServerConfig, context: LinkContext) -> AsyncIterator[tuple[ServerLink, SdkSession]]:
    probe_limit = config.connect_timeout * _PROBE_SHARE
    if launch_of(config.command, config.args):
        probe_limit = min(probe_limit, _LAUNCHER_PROBE)
    transport = effective_transport(config)
    if transport is Transport.HTTP:
        async with _over_http(config, context, probe_limit) as opened:
            yield opened
        return
    # The modern era has no SSE transport.
    known = Era.LEGACY if transport is Transport.SSE else context.known_era
    async with _pipe(config, transport, context) as link, _negotiated(link, known, probe_limit, context) as session:
        yield link, session


@contextlib.asynccontextmanager
async def _over_http(
    config: ServerConfig, context: LinkContext, probe_limit: float
) -> AsyncIterator[tuple[ServerLink, SdkSession]]:
    """A server that rejects our messages gets a GET, as the specification requires: it may offer only the older SSE."""
    async with contextlib.AsyncExitStack() as stack:
        rejection: NotStreamable | None = None
        link: ServerLink
        try:
            link, session = await stack.enter_async_context(open_http(config, context, probe_limit))
        except Exception as error:
            cause = root_cause(error)
            if not isinstance(cause, NotStreamable) or config.transport is not Transport.HTTP:
                raise
            rejection = cause
        if rejection is not None:
            try:
                async with asyncio.timeout(probe_limit):
                    pipe = await stack.enter_async_context(open_sse(config, context.on_lists_changed, context.account))
            except (ServerUnavailable, TimeoutError):
                raise rejection from None
            pipe.transport = Transport.SSE.value
            link = pipe
            session = await stack.enter_async_context(_negotiated(pipe, Era.LEGACY, probe_limit, context))
        yield link, session


def _pipe(
    config: ServerConfig, transport: Transport, context: LinkContext
) -> contextlib.AbstractAsyncContextManager[PipeLink]:
    if transport is Transport.STDIO:
        return open_stdio(
            config,
            root=context.root,
            reaper=context.reaper,
            stderr=context.stderr,
            on_lists_changed=context.on_lists_changed,
        )
    if transport is Transport.SSE:
        return open_sse(config, context.on_lists_changed, context.account)
    return open_websocket(config, context.on_lists_changed, context.account)


@contextlib.asynccontextmanager
async def _negotiated(
    link: PipeLink, known: Era | None, probe_limit: float, context: LinkContext
) -> AsyncIterator[SdkSession]:
    link.questions = context.questions
    async with open_session(link.send, context.questions.capabilities) as session:
        link.listen(session)
        try:
            link.negotiated(await session.negotiate(known=known, probe_limit=probe_limit))
        except EndedEarly as early:
            # Prefer the reason why the server exited.
            await asyncio.wait({link.lost}, timeout=_LAST_WORDS)
            if not link.lost.done():
                raise early from None
            raise (ServerUnavailable if link.misbehaved else EndedEarly)(link.lost.result()) from None
        yield session


@contextlib.asynccontextmanager
async def _subscribed(link: ServerLink, session: SdkSession, context: LinkContext) -> AsyncIterator[None]:
    """Subscribes to changes, which modern servers send only to subscribers."""
    can_change = link.peer.announces or "subscribe" in link.peer.capabilities
    if link.peer.era is not Era.MODERN or not can_change:
        yield
        return
    acknowledged = asyncio.Event()
    held = session.hold_subscription(
        link.peer.announces, context.resources, acknowledged=acknowledged, on_gap=context.on_lists_changed
    )
    async with running_beside(held):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_LIMIT):
                await acknowledged.wait()
        yield
