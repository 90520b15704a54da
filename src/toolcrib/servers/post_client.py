"""A minimal HTTP/1.1 client with pooled connections.

In: an address, a head and a body as bytes. Out: a `PostResponse` whose body is read whole or as a stream. One
`PostClient` per TLS setting serves the whole process. `http` uses it for calls, the hot path: a general client costs
several times as much, and its other features (cookies, compression, redirects) are not needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

from toolcrib.servers.address import Address, proxy_authorization
from toolcrib.servers.wire import TooLarge

IDLE_SECONDS = 4.0
"""Seconds a connection is kept for the next call. Common servers close theirs after 5 s, and a call that races with
that could not be distinguished from one that ran."""
_CONNECT = 10.0
_MAX_HEADERS = 256
LARGEST_HEAD = 64 * 1024
"""Bytes of a response's head, including interim responses and trailers."""
DEFAULT_LIMIT = 1024 * 1024
"""Default limit of a response in bytes."""
_SCATTERED = 4096
_MAX_WASTE = 1024 * 1024
"""Limits bodies in tiny chunks: each chunk costs a call, however small."""
_AHEAD = 256 * 1024
"""Bytes of a stream that may be buffered for its reader; beyond this, reading pauses."""
_FULL_READ = 64 * 1024
"""After a read of this size, the rest waits for the next loop iteration, so that others get their turn."""


class ConnectFailed(OSError):
    """Connecting failed: the request was not sent."""


class ProxyRefused(ConnectFailed):
    """The proxy refused the connection; the text names it."""


class ConnectionBroken(ConnectionResetError):
    """The connection closed or sent invalid HTTP after the request was sent. The text follows the server's address."""


class PostResponse:
    """A response whose head is complete. It holds its connection; leaving a `with` block releases it.

    Raises `TooLarge` for more than `limit` bytes, or that many unread bytes of a stream.
    """

    def __init__(self, connection: _Connection, limit: int) -> None:
        self._connection = connection
        self.limit = limit
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._body = bytearray()
        self._failed: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        while not self.complete:
            await self._more()
            if len(self._body) > self.limit:
                self._body.clear()
                raise TooLarge.message(self.limit)
        body, self._body = bytes(self._body), bytearray()
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        while self._body or not self.complete:
            if not self._body:
                await self._more()
                continue
            ready, self._body = bytes(self._body), bytearray()
            yield ready

    @property
    def full(self) -> bool:
        """Whether this is a stream whose reader lags behind."""
        return len(self._body) > _AHEAD and self._waiter is None and self.is_stream

    @property
    def is_stream(self) -> bool:
        return self.content_type == "text/event-stream"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Keeps the connection for the next request if the response was read to its end, else closes it."""
        self._connection.let_go_of(self, reusable=self.complete)

    def close(self) -> None:
        self._connection.let_go_of(self, reusable=False)

    async def _more(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._waiter = self._connection.loop.create_future()
        self._connection.read_on()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self, chunk: bytes) -> bool:
        """Returns False if the chunk exceeds the limit."""
        self._body += chunk
        return len(self._body) <= self.limit or self.is_stream

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: OSError) -> None:
        self._failed = error
        # The error, and everything it references, may live for a while.
        self._body.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class _Connection(asyncio.Protocol):
    """One connection: one request at a time, its response parsed as it arrives."""

    def __init__(self, poster: PostClient, address: Address) -> None:
        self._client = poster
        self.address = address
        self.loop = poster.loop
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._response: PostResponse | None = None
        self._head_waiter: asyncio.Future[PostResponse] | None = None
        self._head_done = False
        self._head_size = 0
        self._between = 0
        """Bytes since the body last grew: chunk sizes and trailers."""
        self._taken = 0
        self._waste = 0
        """Bytes of reads that held mostly chunk framing."""
        self._refusal: TooLarge | None = None
        self._paused = False
        self._may_stay = False
        self._lost = False
        self.idle_since = 0.0
        self.tunnel: asyncio.StreamWriter | None = None
        """The tunnel through a proxy. Referenced here because a collected writer closes its transport."""

    @property
    def usable(self) -> bool:
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, limit: int) -> PostResponse:
        """Raises `ConnectFailed`, `ConnectionBroken`. The connection is closed if this fails or is cancelled."""
        if self._transport is None or self._lost:
            raise ConnectFailed("The connection was closed.") from ConnectionResetError()
        self._parser = httptools.HttpResponseParser(self)
        self._response = PostResponse(self, limit)
        self._head_done = self._may_stay = False
        self._head_size = self._between = self._taken = self._waste = 0
        self._head_waiter = self.loop.create_future()
        try:
            self._transport.write(request)
            return await self._head_waiter
        except BaseException:
            self.let_go(reusable=False)
            raise
        finally:
            self._head_waiter = None

    def let_go_of(self, response: PostResponse, *, reusable: bool) -> None:
        """Does nothing if the response was already released: the connection may serve another by now."""
        if response is self._response:
            self.let_go(reusable=reusable)

    def let_go(self, *, reusable: bool) -> None:
        keep = reusable and self.usable and self._may_stay
        self._response = None
        self._parser = None
        if keep:
            self.read_on()
            self._client.keep(self)
        elif self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._client.hold(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            # Data without a request: the connection cannot be trusted.
            self._lost = True
            if self._transport is not None:
                self._transport.abort()
            return
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, TooLarge) as error:
            self._may_stay = False
            # Data after a complete response does not invalidate it.
            if self._response is None or not self._response.complete:
                refusal = self._refusal or (error if isinstance(error, TooLarge) else None)
                self._end(
                    refusal or ConnectionBroken(f"answered with something that is not HTTP ({type(error).__name__}).")
                )
                return
        full = self._response is not None and self._response.full
        if (full or len(data) >= _FULL_READ) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
            self.loop.call_soon(self.read_on)
        response, waiter = self._response, self._head_waiter
        if response is None or not self._head_done:
            return
        if waiter is not None and not waiter.done():
            waiter.set_result(response)
        else:
            response._wake()

    def _parse(self, data: bytes) -> None:
        """Raises `TooLarge`, and the parser's errors."""
        if not self._head_done:
            head, data = data[: LARGEST_HEAD - self._head_size], data[LARGEST_HEAD - self._head_size :]
            self._head_size += len(head)
            self._parser.feed_data(head)
            if not data:
                return
            if not self._head_done:
                raise _too_many_headers()
        self._between += len(data)
        before = self._taken
        self._parser.feed_data(data)
        if len(data) >= _SCATTERED and self._taken - before < len(data) * 3 // 4:
            self._waste += len(data)
            if self._waste > _MAX_WASTE:
                raise TooLarge("It sent its answer in too many tiny chunks.")
        if self._between > LARGEST_HEAD and not (self._response and self._response.complete):
            raise _too_many_headers()

    def read_on(self) -> None:
        """Resumes reading, unless the reader of a stream lags behind."""
        if self._paused and self.usable and self._transport and not (self._response and self._response.full):
            self._paused = False
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        # A response without a length ends with the connection.
        response = self._response
        if response is not None and self._head_done and not response.complete:
            chunked = "chunked" in response.headers.get("transfer-encoding", "").lower()
            if not chunked and "content-length" not in response.headers:
                response.complete = True
                response._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        middle = "in the middle of" if self._head_size else "without"
        self._end(ConnectionBroken(f"closed the connection {middle} an answer."))
        self._client.forget(self)

    def _end(self, error: OSError) -> None:
        waiter, response = self._head_waiter, self._response
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        elif response is not None and not response.complete:
            response._fail(error)
        if self._transport is not None and not self._lost:
            self._transport.abort()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._response is not None and self._response.complete:
            raise httptools.HttpParserError("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None:
            return
        if len(response.headers) >= _MAX_HEADERS:
            self._refusal = TooLarge(f"It sent more than {_MAX_HEADERS} headers.")
            raise self._refusal
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        # A server may offer several ways to authenticate, each in a header of its own.
        several = key == "www-authenticate" and key in response.headers
        response.headers[key] = f"{response.headers[key]}, {text}" if several else text

    def on_headers_complete(self) -> None:
        if self._response is None:
            return
        self._response.status = self._parser.get_status_code()
        if 100 <= self._response.status < 200:
            # An interim response: the final one follows.
            self._response.headers.clear()
            return
        self._head_done = True
        length = self._response.headers.get("content-length", "")
        limit = self._response.limit
        if length.isdigit() and int(length) > limit and not self._response.is_stream:
            self._refuse(limit)

    def on_body(self, body: bytes) -> None:
        self._between = 0
        self._taken += len(body)
        if self._response is not None and not self._response._take(body):
            self._refuse(self._response.limit)

    def _refuse(self, limit: int) -> None:
        # The parser replaces this error by its own, so it is stored.
        self._refusal = TooLarge.message(limit)
        raise self._refusal

    def on_message_complete(self) -> None:
        if self._response is not None and self._head_done:
            # The parser knows this only during this callback.
            self._may_stay = self._parser.should_keep_alive()
            self._response.complete = True


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host and a port → the addresses to try. Raises `OSError`."""


class PostClient:
    """Sends requests and pools connections."""

    def __init__(self, tls: ssl.SSLContext, *, resolve: Resolve | None = None) -> None:
        """`resolve` replaces the system's resolver, for connections without a proxy."""
        self._tls = tls
        self._resolve = resolve
        # Stored because get_running_loop() costs a system call in some Python versions.
        self.loop = asyncio.get_running_loop()
        self._idle: dict[tuple[bool, str, int, str | None], list[_Connection]] = {}
        self._all: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def request(
        self, method: bytes, address: Address, head: bytes, body: bytes = b"", *, limit: int = DEFAULT_LIMIT
    ) -> PostResponse:
        """`head` holds header lines, each with its line end. Raises `ConnectFailed`, `ConnectionBroken`, `TooLarge`."""
        connection = self._take(address) or await self._connect(address)
        request = b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%bContent-Length: %d\r\n\r\n%b" % (
            method,
            address.target,
            address.authority,
            address.head,
            head,
            len(body),
            body,
        )
        return await connection.ask(request, limit)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._all):
            connection.let_go(reusable=False)
        self._idle.clear()

    def keep(self, connection: _Connection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.setdefault(connection.address.key, []).append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(IDLE_SECONDS, self._sweep_idle)

    def hold(self, connection: _Connection) -> None:
        self._all.add(connection)

    def forget(self, connection: _Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(connection.address.key)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def _take(self, address: Address) -> _Connection | None:
        """The most recently used connection: the longest idle ones are most likely to be closed by the server."""
        idle = self._idle.get(address.key)
        now = self.loop.time()
        while idle:
            connection = idle.pop()
            if connection.usable and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.let_go(reusable=False)
        return None

    def _sweep_idle(self) -> None:
        self._sweep = None
        now = self.loop.time()
        for idle in self._idle.values():
            for connection in [c for c in idle if now - c.idle_since >= IDLE_SECONDS]:
                idle.remove(connection)
                connection.let_go(reusable=False)
        self._idle = {key: idle for key, idle in self._idle.items() if idle}
        if self._idle:
            self._sweep = self.loop.call_later(IDLE_SECONDS, self._sweep_idle)

    async def _connect(self, address: Address) -> _Connection:
        connection = _Connection(self, address)
        try:
            async with asyncio.timeout(_CONNECT):
                if address.proxy is not None:
                    await self._connect_by_proxy(connection, address, address.proxy)
                elif self._resolve is None:
                    await self._connect_to(connection, address, address.host)
                else:
                    await self._connect_to_first(connection, address, await self._resolve(address.host, address.port))
        except (ssl.SSLError, ConnectFailed):
            raise
        except OSError as error:
            raise ConnectFailed(*error.args) from error
        return connection

    async def _connect_to(self, connection: _Connection, address: Address, host: str) -> None:
        tls, name = (self._tls, address.host) if address.tls else (None, None)
        await self.loop.create_connection(lambda: connection, host, address.port, ssl=tls, server_hostname=name)

    async def _connect_to_first(self, connection: _Connection, address: Address, hosts: Sequence[str]) -> None:
        for host in hosts[:-1]:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_CONNECT / len(hosts)):
                    await self._connect_to(connection, address, host)
                    return
        await self._connect_to(connection, address, hosts[-1])

    async def _connect_by_proxy(self, connection: _Connection, address: Address, proxy: str) -> None:
        loop = self.loop
        parts = urlsplit(proxy)
        host, port = parts.hostname or "", parts.port or 80
        if not address.tls:
            await loop.create_connection(lambda: connection, host, port)
            return
        reader, writer = await asyncio.open_connection(host, port, limit=LARGEST_HEAD)
        try:
            where = address.tunnel
            writer.write(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (where, where, proxy_authorization(proxy)))
            head = await reader.readuntil(b"\r\n\r\n")
            status = head.split(b" ", 2)[1:2]
            if status != [b"200"]:
                raise ProxyRefused(f"The proxy {host}:{port} refused the connection.")
            secured = await loop.start_tls(writer.transport, connection, self._tls, server_hostname=address.host)
        except BaseException as error:
            # Not awaited: once TLS has begun, the stream never learns that it is closed.
            writer.transport.abort()
            if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError | IndexError):
                raise ProxyRefused(f"The proxy {host}:{port} sent an invalid answer.") from None
            raise
        if secured is None:
            raise ProxyRefused(f"The proxy {host}:{port} closed the connection.")
        connection.tunnel = writer
        connection.connection_made(secured)


def _too_many_headers() -> TooLarge:
    return TooLarge(f"It sent more than {LARGEST_HEAD // 1024} KB of headers.")
