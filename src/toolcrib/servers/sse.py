"""The older HTTP+SSE transport: one long-lived stream delivers all messages, and we send each of ours as a POST.

In: the address of the stream. Out: `open_sse`, a `PipeLink`. Uses our own limit on an event's size instead of the
SDK's. Neighbours: `web` (connections), `wire` (events).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from urllib.parse import urljoin

from toolcrib.config.auth import has_new_token
from toolcrib.config.model import ServerConfig
from toolcrib.errors import ServerUnavailable
from toolcrib.servers import web
from toolcrib.servers.account import Account, AccountUnusable
from toolcrib.servers.address import Address
from toolcrib.servers.input_budget import pieces
from toolcrib.servers.link import SessionExpired, running_beside
from toolcrib.servers.pipe_link import PipeLink
from toolcrib.servers.post_client import ConnectFailed, PostClient, PostResponse
from toolcrib.servers.web import Refused, explain_network
from toolcrib.servers.wire import SseParser, TooLarge


class _Stream:
    """The stream, and the endpoint it names for our messages."""

    def __init__(self, config: ServerConfig, poster: PostClient, account: Account | None) -> None:
        self._config = config
        self._account = account
        self._url = config.url
        self._client = poster
        self._head = web.head_lines(config.headers)
        self._proxy = web.proxy_for(config.url)
        self.on_expired: Callable[[], None] = lambda: None
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self) -> PostResponse:
        head = self._head + b"Accept: text/event-stream\r\nCache-Control: no-store\r\n"
        try:
            response = await self._request(b"GET", self._url, head)
        except OSError as error:
            raise ServerUnavailable(explain_network(error, self._url)) from None
        if response.status != 200:
            response.close()
            raise web.not_admitted(response.status, self._url, response.headers)
        if response.content_type != "text/event-stream":
            response.close()
            raise ServerUnavailable(web.explain_content(response.content_type, self._url, wanted="an event stream"))
        return response

    async def _request(self, method: bytes, url: str, head: bytes, body: bytes = b"") -> PostResponse:
        where = Address.of(url, self._proxy)
        if self._account is None:
            return await self._client.request(method, where, head, body, limit=self._config.max_message)
        return await self._account.authorized(
            lambda token: self._client.request(method, where, head + token, body, limit=self._config.max_message)
        )

    async def read(self, response: PostResponse, link: PipeLink) -> None:
        events = SseParser(limit=self._config.max_message)
        reason = "The server closed its stream."

        def read(piece: bytes) -> bool:
            answered = False
            for event in events.feed(piece):
                if event.kind == "message" and event.data:
                    answered = link.receive(event.data) or answered
                elif event.kind == "endpoint":
                    self._name_endpoint(event.data.decode(errors="replace"))
            return answered

        try:
            async for chunk in response.chunks():
                for piece in pieces(chunk):
                    await link.budget.take(piece, read)
        except TooLarge as error:
            link.reject(str(error))
        except OSError as error:
            reason = explain_network(error, self._url)
        link.lose(reason)
        if not self.endpoint.done():
            self.endpoint.set_exception(ServerUnavailable("The stream ended before it named an endpoint for messages."))

    def _name_endpoint(self, path: str) -> None:
        if self.endpoint.done():
            return
        endpoint = urljoin(self._url, path)
        if web.same_origin(self._url, endpoint):
            self.endpoint.set_result(endpoint)
        else:
            self.endpoint.set_exception(
                ServerUnavailable(f"The server names an endpoint on another origin ({web.shown_url(endpoint)}).")
            )

    async def send(self, message: bytes) -> None:
        endpoint = await self.endpoint
        try:
            head = self._head + b"Content-Type: application/json\r\n"
            with await self._request(b"POST", endpoint, head, message) as response:
                await response.read()
        except AccountUnusable as error:
            raise ServerUnavailable(f"{error.message} The call did not run.") from None
        except OSError as error:
            reason = explain_network(error, endpoint)
            unsent = isinstance(error, ConnectFailed | ssl.SSLError)
            ran = "did not run" if unsent else "may have run"
            failure = ServerUnavailable(f"Server '{self._config.name}': {reason} The call {ran}.")
            failure.repeat_after = None if unsent else 0.0
            failure.may_have_run = not unsent
            raise failure from None
        status = response.status
        if status == 404 or (status == 401 and await asyncio.to_thread(has_new_token, self._config)):
            self.on_expired()
            why = "it no longer knows the session" if status == 404 else "its token has been replaced"
            raise SessionExpired(f"Server '{self._config.name}': {why}. The call did not run.")
        if status >= 300:
            raise Refused(self._config.name, status, endpoint, response.headers)


@contextlib.asynccontextmanager
async def open_sse(
    config: ServerConfig, on_lists_changed: Callable[[], None], account: Account | None = None
) -> AsyncIterator[PipeLink]:
    async with web.shared_post_client(verify=config.verify_tls) as lease:
        stream = _Stream(config, lease.client, account)
        link = PipeLink(config.name, send=stream.send, on_lists_changed=on_lists_changed)
        stream.on_expired = link.expire_session
        with await stream.open() as response:
            try:
                async with running_beside(stream.read(response, link)):
                    await stream.endpoint
                    yield link
            finally:
                response.close()
                await link.stop(limit=0.2)
