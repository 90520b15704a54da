"""All that touches the MCP SDK, its provisional parts above all. Nothing else in this room imports it.

In: a way to send bytes, and bytes that came (`open_session`); or an address (`open_http_session`). Out: a
`SdkSession`: the
SDK's `ClientSession` for negotiation in both eras, answers to what a server asks (ping is answered; sampling,
elicitation and roots are declined), legacy GET streams, and modern subscriptions. Calls and lists do not pass here.

The SDK takes seconds to import: `load` does it once, in a thread, when the first server connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from toolcrib.config.masking import printable
from toolcrib.errors import ServerUnavailable
from toolcrib.servers.link import CLIENT_INFO, EndedEarly, InputBudget, Peer, pieces
from toolcrib.servers.model import Era
from toolcrib.servers.post_client import LARGEST_HEAD
from toolcrib.servers.web import KEEPALIVE

if TYPE_CHECKING:
    import httpx2
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client.session import ClientSession
    from mcp.shared.message import SessionMessage

log = logging.getLogger(__name__)

_INBOX = 1000
"""Messages that may wait for the SDK. A server that sends more than this unread loses the rest."""
LARGEST = 1024 * 1024
"""Bytes of a message that the SDK gets: openings, and what a server says unasked. It decodes one in a single step, at
many times its size in memory."""
_METHOD_NOT_FOUND = -32601
_LISTEN_AGAIN = 1.0
_LISTEN_AGAIN_AT_MOST = 60.0
_LASTED = 60.0
"""Seconds after which a subscription that ends is not taken for one that cannot be held."""
_LINE = 0.00005
"""Seconds that the SDK spends on a line of a stream of events."""
_importing = threading.Lock()
_ENDS_OF_EVENTS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_TOO_LARGE = f"It introduced itself, or said something unasked, with more than {LARGEST // 1024} KB."
_TOO_MANY_HEADERS = f"It sent more than {LARGEST_HEAD // 1024} KB of headers."
_COMPRESSED = "It compresses its answers, though nobody asked for that."


def _import() -> SimpleNamespace:
    with _importing:
        return _parts()


@functools.cache
def _parts() -> SimpleNamespace:
    # ruff: noqa: PLC0415 - importing late is what this function is for
    import anyio
    import httpx2
    import mcp_types
    from mcp.client import _probe, session, streamable_http, subscriptions
    from mcp.shared import exceptions, inbound, message
    from pydantic import ValidationError

    class Session(session.ClientSession):
        """Its probe gives up early: a legacy server may never answer a method that it does not know."""

        probe_limit = 10.0
        check: Callable[[], None] = staticmethod(lambda: None)

        async def send_discover(self, version: str) -> dict[str, Any]:
            try:
                with anyio.fail_after(self.probe_limit):
                    return await super().send_discover(version)
            except TimeoutError:
                raise exceptions.MCPError(mcp_types.REQUEST_TIMEOUT, "no answer to server/discover") from None
            except exceptions.MCPError:
                self.check()
                raise

    # They write session ids and whole addresses, keys included, at the level of our own log.
    for name in ("mcp.client.streamable_http", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)

    return SimpleNamespace(
        anyio=anyio,
        httpx2=httpx2,
        Session=Session,
        Implementation=mcp_types.Implementation,
        CONNECTION_CLOSED=mcp_types.CONNECTION_CLOSED,
        UNSUPPORTED=mcp_types.UNSUPPORTED_PROTOCOL_VERSION,
        JSONRPCNotification=mcp_types.JSONRPCNotification,
        parse=mcp_types.jsonrpc_message_adapter,
        negotiate_auto=_probe.negotiate_auto,
        streamable_http_client=streamable_http.streamable_http_client,
        listen=subscriptions.listen,
        SubscriptionLost=subscriptions.SubscriptionLost,
        MCPError=exceptions.MCPError,
        SessionMessage=message.SessionMessage,
        encode_header_value=inbound.encode_header_value,
        find_invalid_x_mcp_header=inbound.find_invalid_x_mcp_header,
        ValidationError=ValidationError,
    )


async def load() -> SimpleNamespace:
    """The SDK's parts. The first call imports them in a thread, so that the loop goes on."""
    return await asyncio.to_thread(_import)


def header_value(text: str) -> str:
    """A name as it may stand in an HTTP header. Only after `load`."""
    return str(_import().encode_header_value(text))


def fault_in_headers(schema: Any) -> str | None:
    """What is wrong with a schema's `x-mcp-header` marks, if anything. Only after `load`."""
    fault: str | None = _import().find_invalid_x_mcp_header(schema)
    return fault


class SdkSession:
    """The SDK's half of one connection."""

    def __init__(self, session: ClientSession, inbox: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        self._sdk = _import()
        self._session = session
        self._inbox = inbox
        self._overflowed = False

    def feed(self, message: bytes) -> None:
        """One message that is not for us."""
        if len(message) > LARGEST:
            log.warning("a message of %d bytes that is not an answer to a call was dropped", len(message))
            return
        try:
            parsed = self._sdk.parse.validate_json(message, by_name=False)
            self._inbox.send_nowait(self._sdk.SessionMessage(parsed))
        except self._sdk.ValidationError:
            log.debug("a message was not understood and dropped")
        except self._sdk.anyio.WouldBlock:
            if not self._overflowed:
                self._overflowed = True
                log.warning("a server sends more requests than can be answered; the rest is dropped")
        except (self._sdk.anyio.ClosedResourceError, self._sdk.anyio.BrokenResourceError):
            log.debug("a message came after the end and was dropped")

    def end(self) -> None:
        """The far side is gone: whoever waits in the SDK learns it."""
        self._inbox.close()

    async def negotiate(self, *, known: Era | None, probe_limit: float) -> Peer:
        """Finds out which era the far side speaks, and opens in it. Raises ServerAway."""
        self._session.probe_limit = probe_limit  # type: ignore[attr-defined]
        try:
            if known is Era.LEGACY:
                await self._open_legacy()
            else:
                await self._sdk.negotiate_auto(self._session)
        except self._sdk.MCPError as error:
            if error.code == self._sdk.CONNECTION_CLOSED:
                raise EndedEarly("The connection was closed before the server introduced itself.") from None
            raise ServerUnavailable(f"The server refused to begin: {error.message} (code {error.code}).") from None
        except self._sdk.ValidationError as error:
            raise ServerUnavailable(
                f"The server introduced itself with something that is not MCP ({error.error_count()} faults)."
            ) from None
        return self._peer()

    async def _open_legacy(self) -> None:
        try:
            await self._session.initialize()
        except self._sdk.MCPError as error:
            if error.code != self._sdk.UNSUPPORTED:
                raise
            await self._sdk.negotiate_auto(self._session)

    def _peer(self) -> Peer:
        session = self._session
        info = session.server_info
        capabilities = session.server_capabilities
        tools = capabilities.tools if capabilities else None
        return Peer(
            era=Era.MODERN if session.discover_result is not None else Era.LEGACY,
            version=session.protocol_version or "",
            server_info=info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else {},
            instructions=session.instructions or "",
            has_tools=tools is not None,
            tells_changes=bool(tools and tools.list_changed),
        )

    async def hold_subscription(self, *, acknowledged: asyncio.Event, on_gap: Callable[[], None]) -> None:
        """Keeps a modern `subscriptions/listen` open. What it brings is heard where all messages pass.

        After an interruption `on_gap` is called: changes in between were not told.
        """
        delay = _LISTEN_AGAIN
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                async with self._sdk.listen(self._session, tools_list_changed=True) as subscription:
                    if acknowledged.is_set():
                        on_gap()
                    acknowledged.set()
                    async for _ in subscription:
                        pass
            except self._sdk.MCPError as error:
                if error.code in {_METHOD_NOT_FOUND, self._sdk.CONNECTION_CLOSED}:
                    log.debug("no subscription: %s", printable(error.message))
                    return
                log.debug("the subscription failed: %s", printable(error.message))
            except self._sdk.SubscriptionLost as error:
                log.debug("the subscription was lost: %s", printable(str(error)))
            finally:
                acknowledged.set()
            delay = min(delay * 2, _LISTEN_AGAIN_AT_MOST) if loop.time() - began < _LASTED else _LISTEN_AGAIN
            await asyncio.sleep(delay)


class _Outbox:
    """The SDK's write stream: each message becomes bytes at once."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send

    async def send(self, item: SessionMessage, /) -> None:
        try:
            await self._send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        except ServerUnavailable:
            raise _import().anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """The transport owns the pipe and closes it."""

    async def __aenter__(self) -> _Outbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@contextlib.asynccontextmanager
async def open_session(send: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[SdkSession]:
    """The SDK's half of a connection whose messages pass through our hands."""
    sdk = await load()
    inbox, unread = sdk.anyio.create_memory_object_stream(_INBOX)
    with contextlib.closing(inbox), contextlib.closing(unread):
        async with sdk.Session(unread, _Outbox(send), client_info=sdk.Implementation(**CLIENT_INFO)) as session:
            yield SdkSession(session, inbox)


class HttpObserver:
    """What the SDK's HTTP client met: the session id, the last status, the last failure to reach the server."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        self.status: int | None = None
        self.failure: Exception | None = None
        self.refusal = ""
        """What it sent that is not taken, where it did."""
        self.on_unreachable: Callable[[str], None] = lambda reason: None
        """Set once the connection stands: told when nothing listens there any more."""

    def answered(self, response: httpx2.Response) -> None:
        self.failure = None
        if response.request.method == "POST":
            self.status = response.status_code
            if response.status_code < 400 and (session_id := response.headers.get("mcp-session-id")):
                self.session_id = session_id

    def failed(self, error: Exception) -> None:
        self.failure = error
        # Other failures may be of one request only: some servers drop the GET for a stream that they do not offer.
        if isinstance(error, _import().httpx2.ConnectError):
            self.on_unreachable("Nothing listens there any more.")


@contextlib.asynccontextmanager
async def open_http_session(
    url: str,
    *,
    headers: Mapping[str, str],
    tls: ssl.SSLContext,
    proxy: str | None,
    watch: HttpObserver,
    check: Callable[[], None],
    notice: Callable[[str, Mapping[str, Any]], bool],
    intake: InputBudget,
) -> AsyncIterator[SdkSession]:
    """The SDK's half of a Streamable HTTP connection. `check` raises where what came shows that going on is useless."""
    sdk = await load()
    client = sdk.httpx2.AsyncClient(
        transport=_forgiving(
            sdk,
            watch,
            intake,
            sdk.httpx2.AsyncHTTPTransport(verify=tls, proxy=proxy, socket_options=KEEPALIVE, trust_env=False),
        ),
        # Inflating is work without a limit; who compresses all the same is refused.
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=sdk.httpx2.Timeout(10.0, read=None),
        trust_env=False,
    )
    inbox, unread = sdk.anyio.create_memory_object_stream(_INBOX)

    async def pump(read: Any) -> None:
        async for item in read:
            message = getattr(item, "message", None)
            if isinstance(message, sdk.JSONRPCNotification) and notice(message.method, message.params or {}):
                continue
            await inbox.send(item)
        inbox.close()

    async with (
        client,
        sdk.streamable_http_client(
            url, http_client=client, terminate_on_close=False, max_sse_event_size=LARGEST
        ) as streams,
    ):
        with contextlib.closing(inbox), contextlib.closing(unread):
            read, write = streams
            async with sdk.Session(unread, write, client_info=sdk.Implementation(**CLIENT_INFO)) as session:
                session.check = check
                pumping = asyncio.create_task(pump(read))
                try:
                    yield SdkSession(session, inbox)
                finally:
                    pumping.cancel()
                    await asyncio.gather(pumping, return_exceptions=True)


def _forgiving(
    sdk: SimpleNamespace, watch: HttpObserver, intake: InputBudget, inner: httpx2.AsyncBaseTransport
) -> httpx2.AsyncBaseTransport:
    """A transport that answers 503 instead of raising: one failed request must not end the SDK's whole client.

    What is larger than the SDK may get does not reach it.
    """

    class Bounded(sdk.httpx2.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, kind: str) -> None:
            self._stream = stream
            self._events = kind.lower().startswith("text/event-stream")
            # The errors of either that the SDK answers its request with.
            self._error = sdk.httpx2.SSEError if self._events else sdk.httpx2.StreamError

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                ended = max(map(chunk.rfind, _ENDS_OF_EVENTS)) if self._events else -1
                size = len(chunk) - ended if ended >= 0 else size + len(chunk)
                if size > LARGEST:
                    watch.refusal = _TOO_LARGE
                    raise self._error(_TOO_LARGE)
                for piece in pieces(chunk):
                    yield piece
                    if self._events:
                        # What the SDK spends on a line is not seen here; it is close to this.
                        intake.charge(_LINE * (piece.count(b"\n") + piece.count(b"\r")))
                        await intake.rest()

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Forgiving(sdk.httpx2.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                response: httpx2.Response = await inner.handle_async_request(request)
            except sdk.httpx2.TransportError as error:
                watch.failed(error)
                return cast("httpx2.Response", sdk.httpx2.Response(503, request=request))
            response.request = request
            watch.answered(response)
            head = sum(len(name) + len(value) for name, value in response.headers.raw)
            if head > LARGEST_HEAD or response.headers.get("content-encoding", "identity").lower() != "identity":
                watch.refusal = _TOO_MANY_HEADERS if head > LARGEST_HEAD else _COMPRESSED
                await response.aclose()
                return cast("httpx2.Response", sdk.httpx2.Response(503, request=request))
            response.stream = Bounded(response.stream, response.headers.get("content-type", ""))
            return response

        async def aclose(self) -> None:
            await inner.aclose()

    return Forgiving()
