"""WebSocket (`ws://`, `wss://`): one frame is one message, subprotocol `mcp`.

In: the address. Out: `open_websocket`, a `PipeLink`. Neighbours: `web` (TLS, proxies, explained failures).

We override the library's defaults: messages have our own size limit and are never compressed, pings are rare, and
redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers, HeadersLike
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    ProxyError,
    TooManyFragments,
)
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from toolcrib.config.masking import printable
from toolcrib.config.model import ServerConfig
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import web
from toolcrib.servers.account import Account
from toolcrib.servers.input_budget import InputBudget
from toolcrib.servers.link import running_beside
from toolcrib.servers.pipe_link import PipeLink
from toolcrib.servers.web import explain_network
from toolcrib.servers.wire import TooLarge

_PING_INTERVAL = 120.0
_PING_TIMEOUT = 60.0
"""Long, because some servers block while they run a tool."""
_CLOSE_TIMEOUT = 1.0
_WAITING_FRAMES = 4
"""Received frames waiting to be processed, each up to the size of a message. Beyond this, reading pauses."""
_FRAME_COST = 0.00005
"""Seconds that the library spends on a frame before we see it."""
_TOO_MANY_FRAGMENTS = "It sent a message in too many fragments."

_quiet = logging.getLogger(f"{__name__}.protocol")
# At debug level the library logs whole requests, including keys.
_quiet.setLevel(logging.WARNING)


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception:
        """Follows no redirect: our headers are for this address only."""
        return exc


class _Connection(ClientConnection):
    """Closes in time, and charges the server for pings and pongs, which the library handles on its own."""

    budget: InputBudget | None = None
    _resting = False
    _closing = False

    async def handshake(
        self, additional_headers: HeadersLike | None = None, user_agent_header: str | None = None
    ) -> None:
        """A configured header, such as Host, replaces the library's; the library would send both."""
        original = self.protocol.connect
        configured = Headers(additional_headers or {})

        def without_configured() -> Request:
            request = original()
            for name in configured:
                request.headers.pop(name, None)
            return request

        self.protocol.connect = without_configured  # type: ignore[method-assign]
        await super().handshake(configured, user_agent_header)

    def data_received(self, data: bytes) -> None:
        """Enforces the close timeout. The library would wait until the server closes the connection."""
        super().data_received(data)
        if self.close_deadline is not None and not self._closing:
            self._closing = True
            self.loop.call_at(self.close_deadline, self.transport.abort)

    def process_event(self, event: Response | Frame) -> None:  # type: ignore[override]
        super().process_event(event)
        if self.budget is None or not isinstance(event, Frame) or event.opcode not in (Opcode.PING, Opcode.PONG):
            return
        self.budget.charge(_FRAME_COST)
        if (pause := self.budget.pause) and not self._resting:
            self._resting = True
            self.transport.pause_reading()
            self.loop.call_later(pause, self._read_on)

    def _read_on(self) -> None:
        self._resting = False
        if not self.transport.is_closing():
            self.transport.resume_reading()


@contextlib.asynccontextmanager
async def open_websocket(
    config: ServerConfig, on_lists_changed: Callable[[], None], account: Account | None = None
) -> AsyncIterator[PipeLink]:
    async with _connected(config, account) as socket:

        async def send(message: bytes) -> None:
            try:
                await socket.send(message, text=True)
            except ConnectionClosed as closed:
                why = _why(closed, config.url)
                raise ServerUnavailable(f"Server '{config.name}': {why} The call did not run.") from None

        link = PipeLink(config.name, send=send, on_lists_changed=on_lists_changed)
        socket.budget = link.budget
        try:
            async with running_beside(_read(socket, link, config)):
                yield link
        finally:
            await link.stop(limit=0)


async def _read(socket: _Connection, link: PipeLink, config: ServerConfig) -> None:
    try:
        while True:
            message = await socket.recv(decode=False)
            began = time.thread_time()
            if not link.receive(message):
                link.budget.charge(time.thread_time() - began + _FRAME_COST)
                await link.budget.rest()
    except ConnectionClosed as closed:
        if closed.sent is not None and closed.sent.code == CloseCode.MESSAGE_TOO_BIG and not closed.rcvd_then_sent:
            in_pieces = isinstance(closed.__cause__, TooManyFragments)
            link.reject(_TOO_MANY_FRAGMENTS if in_pieces else str(TooLarge.message(config.max_message)))
        link.lose(_why(closed, config.url))


def _why(closed: ConnectionClosed, url: str) -> str:
    if closed.rcvd is None and isinstance(closed.__cause__, OSError):
        return explain_network(closed.__cause__, url)
    if closed.sent is not None and not closed.rcvd_then_sent:
        return f"The connection to {web.shown_url(url)} failed ({printable(closed.sent.reason)})."
    if closed.rcvd is None:
        return f"{web.shown_url(url)} ended the connection without a closing message."
    return f"The server closed the connection (code {int(closed.rcvd.code)})."


async def _opened(config: ServerConfig, authorization: str) -> _Connection:
    tls = config.url.lower().startswith("wss:")
    return cast(
        "_Connection",
        await _Connect(
            config.url,
            subprotocols=[Subprotocol("mcp")],
            additional_headers={**config.headers, **({"Authorization": authorization} if authorization else {})},
            user_agent_header=None,
            proxy=web.proxy_for(config.url),
            compression=None,
            # The supervisor limits the time to connect.
            open_timeout=None,
            ping_interval=_PING_INTERVAL,
            ping_timeout=_PING_TIMEOUT,
            close_timeout=_CLOSE_TIMEOUT,
            max_size=config.max_message,
            max_queue=_WAITING_FRAMES,
            logger=_quiet,
            create_connection=_Connection,
            ssl=await asyncio.to_thread(web.tls_context, verify=config.verify_tls) if tls else None,
        ),
    )


async def _authorized(config: ServerConfig, account: Account | None) -> _Connection:
    if account is None:
        return await _opened(config, "")
    header = await account.current()
    try:
        try:
            return await _opened(config, account.authorization)
        except InvalidStatus as error:
            if error.response.status_code != HTTPStatus.UNAUTHORIZED or not await account.rejected(header):
                raise
        socket = await _opened(config, account.authorization)
    except InvalidStatus as error:
        headers = {"www-authenticate": ", ".join(error.response.headers.get_all("www-authenticate"))}
        if (refusal := await account.refusal(error.response.status_code, headers)) is not None:
            raise refusal from None
        raise
    account.repeated(HTTPStatus.SWITCHING_PROTOCOLS)
    return socket


@contextlib.asynccontextmanager
async def _connected(config: ServerConfig, account: Account | None) -> AsyncIterator[_Connection]:
    try:
        socket = await _authorized(config, account)
    except InvalidStatus as error:
        answer = error.response
        if answer.status_code == 200:
            kind = web.content_type(answer.headers)
            raise ServerUnavailable(web.explain_content(kind, config.url)) from None
        raise web.not_admitted(answer.status_code, config.url, answer.headers) from None
    except (ProxyError, InvalidProxy, ImportError):
        raise ServerUnavailable(f"The proxy for {web.shown_url(config.url)} failed or refused.") from None
    except (InvalidHandshake, OSError) as error:
        raise ServerUnavailable(explain_network(error, config.url)) from None
    try:
        yield socket
    finally:
        # Closing waits until our last frame is written, which a peer that does not read can block for ever.
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * _CLOSE_TIMEOUT):
                    await socket.close()
        finally:
            socket.transport.abort()
