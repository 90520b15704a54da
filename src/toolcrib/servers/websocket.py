"""WebSocket (`ws://`, `wss://`): one text frame is one message, subprotocol `mcp`.

In: the address. Out: `open_websocket`, a `PipeLink`. Neighbours: `web` (connections, TLS, proxies).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from toolcrib.config.model import ServerConfig
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import web
from toolcrib.servers.framing import TooLarge
from toolcrib.servers.pipe import PipeLink
from toolcrib.servers.web import explain_network, explain_status

log = logging.getLogger(__name__)

_HEARTBEAT = 120.0
"""Half of it is what a busy server has for its answer; a shorter one would cut off servers that block while working."""
_CLOSE = 1.0
_FRAME = 0.00005
"""Seconds that aiohttp spends on a frame before we see it."""

Socket = aiohttp.ClientWebSocketResponse[bool]


@contextlib.asynccontextmanager
async def open_websocket(config: ServerConfig, on_tools_changed: Callable[[], None]) -> AsyncIterator[PipeLink]:
    async with _connected(config) as socket:

        async def send(message: bytes) -> None:
            try:
                await socket.send_frame(message, aiohttp.WSMsgType.TEXT)
            except (aiohttp.ClientError, OSError) as error:
                reason = explain_network(error, config.url)
                raise ServerUnavailable(f"Server '{config.name}': {reason} The call did not run.") from None

        link = PipeLink(config.name, send=send, on_tools_changed=on_tools_changed)
        reading = asyncio.create_task(_read(socket, link, config))
        try:
            yield link
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            link.lose("It was stopped.")
            await link.end_errands(limit=0)


async def _read(socket: Socket, link: PipeLink, config: ServerConfig) -> None:
    while True:
        frame = await socket.receive()
        began = time.thread_time()
        if frame.type is aiohttp.WSMsgType.TEXT:
            if link.receive(frame.data):
                continue
        elif frame.type is aiohttp.WSMsgType.PING:
            await socket.pong(frame.data)
        elif frame.type is aiohttp.WSMsgType.PONG:
            pass
        elif frame.type is aiohttp.WSMsgType.BINARY:
            log.warning("%s: skipped a binary frame of %d bytes", link.name, len(frame.data))
        elif frame.type is aiohttp.WSMsgType.ERROR:
            if socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                link.condemn(str(TooLarge.message(config.max_message)))
            link.lose(explain_network(frame.data, config.url))
            return
        else:
            code = f" (code {socket.close_code})" if socket.close_code else ""
            link.lose(f"The server has closed the connection{code}.")
            return
        link.intake.charge(time.thread_time() - began + _FRAME)
        await link.intake.rest()


@contextlib.asynccontextmanager
async def _connected(config: ServerConfig) -> AsyncIterator[Socket]:
    context = await asyncio.to_thread(web.tls_context, verify=config.verify_tls)
    # aiohttp follows redirects of a handshake unasked; our headers must not travel to where they lead.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_stay_here,),
    ) as session:
        try:
            socket = await session.ws_connect(
                config.url,
                protocols=("mcp",),
                headers=dict(config.headers),
                proxy=web.proxy_for(config.url),
                heartbeat=_HEARTBEAT,
                # Answered here, where a flood of them is noticed.
                autoping=False,
                max_msg_size=config.max_message,
                decode_text=False,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ServerUnavailable(explain_status(error.status, config.url)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnavailable(explain_network(error, config.url)) from None
        try:
            yield socket
        finally:
            await socket.close()


async def _stay_here(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    response = await handler(request)
    if 300 <= response.status < 400:
        response.close()
        raise ServerUnavailable(f"{web.shown_url(str(request.url))} sends us elsewhere; give the final address.")
    return response
