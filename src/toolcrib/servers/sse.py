"""The older HTTP+SSE transport: one standing stream brings all messages, each of ours is a POST.

In: the address of the stream. Out: `open_sse`, a `PipeLink`. Raw, and without a limit on an event's size, which the
SDK's own client has. Neighbours: `web` (connections), `framing` (events).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urljoin

import aiohttp

from toolcrib.config.model import ServerConfig
from toolcrib.errors import ServerAway
from toolcrib.servers import web
from toolcrib.servers.explain import explain_network, explain_status
from toolcrib.servers.framing import EventStream
from toolcrib.servers.link import SessionGone
from toolcrib.servers.pipe import PipeLink


class _Stream:
    """The standing stream and the address that it named for our messages."""

    def __init__(self, config: ServerConfig, session: aiohttp.ClientSession) -> None:
        self._name = config.name
        self._url = config.url
        self._session = session
        self._headers = dict(config.headers)
        self._proxy = web.proxy_for(config.url)
        self.on_forgotten: Callable[[], None] = lambda: None
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self) -> aiohttp.ClientResponse:
        headers = {**self._headers, "Accept": "text/event-stream", "Cache-Control": "no-store"}
        try:
            response = await self._session.get(self._url, headers=headers, proxy=self._proxy, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerAway(explain_network(error, self._url)) from None
        if 300 <= response.status < 400:
            response.close()
            raise ServerAway(f"{web.shown(self._url)} sends us elsewhere; give the final address.")
        if response.status != 200:
            response.close()
            raise ServerAway(explain_status(response.status, self._url))
        return response

    async def read(self, response: aiohttp.ClientResponse, link: PipeLink) -> None:
        events = EventStream()
        reason = "The server has ended its stream."
        try:
            async for chunk in response.content.iter_any():
                for event in events.feed(chunk):
                    if event.kind == "message" and event.data:
                        link.receive(event.data)
                    elif event.kind == "endpoint":
                        self._name_endpoint(event.data.decode(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = explain_network(error, self._url)
        link.lose(reason)
        if not self.endpoint.done():
            self.endpoint.set_exception(ServerAway("The stream ended before it named an address for messages."))

    def _name_endpoint(self, path: str) -> None:
        if self.endpoint.done():
            return
        endpoint = urljoin(self._url, path)
        if web.same_origin(self._url, endpoint):
            self.endpoint.set_result(endpoint)
        else:
            self.endpoint.set_exception(
                ServerAway(f"The server wants our messages sent to another origin ({web.shown(endpoint)}).")
            )

    async def send(self, message: bytes) -> None:
        endpoint = await self.endpoint
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            async with self._session.post(
                endpoint, data=message, headers=headers, proxy=self._proxy, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = explain_network(error, endpoint)
            ran = "did not run" if isinstance(error, aiohttp.ClientConnectorError) else "may have run"
            raise ServerAway(f"Server '{self._name}': {reason} The call {ran}.") from None
        if status == 404:
            self.on_forgotten()
            raise SessionGone(f"Server '{self._name}': it has forgotten our session. The call did not run.")
        if status >= 300:
            reason = explain_status(status, endpoint)
            raise ServerAway(f"Server '{self._name}': {reason} The call did not run.")


@contextlib.asynccontextmanager
async def open_sse(config: ServerConfig, on_tools_changed: Callable[[], None]) -> AsyncIterator[PipeLink]:
    async with web.shared_session(verify=config.verify_tls) as session:
        stream = _Stream(config, session)
        response = await stream.open()
        link = PipeLink(config.name, send=stream.send, on_tools_changed=on_tools_changed)
        stream.on_forgotten = link.forget
        reading = asyncio.create_task(stream.read(response, link))
        try:
            await stream.endpoint
            yield link
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            response.close()
            link.lose("It was stopped.")
            await link.end_errands(limit=0.2)
