"""The only module in `servers` that imports the MCP SDK, including its provisional parts.

In: a function that sends bytes, and received bytes (`open_session`); or an address (`open_http_session`). Out: an
`SdkSession`: the SDK's `ClientSession` for negotiation in both eras, answers to pings, legacy GET streams, and modern
subscriptions. Calls, lists and servers' questions don't pass through here.

The SDK takes half a second to import. Only `http` and `transports` import this module, and `server` imports those
late: in a thread, when the first server connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client._probe import negotiate_auto
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    ClientCapabilities,
    Implementation,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from toolcrib.config.masking import printable
from toolcrib.errors import ServerUnavailable
from toolcrib.servers.account import Account, AccountUnusable
from toolcrib.servers.input_budget import InputBudget, pieces
from toolcrib.servers.link import CLIENT_INFO, EndedEarly, Peer, ServerLink, running_beside
from toolcrib.servers.model import Era
from toolcrib.servers.post_client import LARGEST_HEAD
from toolcrib.servers.resource_watch import ResourceWatch
from toolcrib.servers.tasks import EXTENSION as TASKS
from toolcrib.servers.web import KEEPALIVE

log = logging.getLogger(__name__)

_INBOX = 1000
"""Messages that may wait for the SDK; more are dropped."""
MAX_MESSAGE = 1024 * 1024
"""Maximum bytes of a message for the SDK: negotiation and unrequested messages. The SDK decodes a message in one step
and needs many times its size in memory."""
_LISTEN_AGAIN = 1.0
_MAX_LISTEN_PAUSE = 60.0
_LASTED = 60.0
"""A subscription that lasted this many seconds resets the retry delay."""
_LINE = 0.00005
"""Seconds that the SDK spends on a line of an event stream."""
_ENDS_OF_EVENTS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_TOO_LARGE = f"It sent more than {MAX_MESSAGE // 1024} KB during negotiation or without being asked."
_TOO_MANY_HEADERS = f"It sent more than {LARGEST_HEAD // 1024} KB of headers."
_CLIENT_INFO = Implementation.model_validate(CLIENT_INFO)
_COMPRESSED = "It compresses its answers, which was not requested."

# At our log level they write session ids and whole URLs, including keys.
for _name in ("mcp.client.streamable_http", "httpx2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class _ProbingSession(ClientSession):
    """Limits the probe's time: a legacy server may never answer an unknown method."""

    probe_limit: float | None = 10.0
    """None for a second probe: the server has named the modern version by then."""
    check: Callable[[], None] = staticmethod(lambda: None)
    """Raises if continuing is pointless."""
    offered: Mapping[str, Any] = {}
    """The capabilities that a server is told."""

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        return ClientCapabilities.model_validate(self.offered)

    async def send_discover(self, version: str) -> dict[str, Any]:
        try:
            limit, self.probe_limit = self.probe_limit, None
            with anyio.fail_after(limit):
                return await super().send_discover(version)
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, "no answer to server/discover") from None
        except MCPError:
            self.check()
            raise


class SdkSession:
    """The SDK's half of one connection."""

    def __init__(self, session: _ProbingSession, inbox: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        self._session = session
        self._inbox = inbox
        self._overflowed = False

    def feed(self, message: bytes) -> None:
        """Passes one message to the SDK."""
        if len(message) > MAX_MESSAGE:
            log.warning("dropped a message of %d bytes that is not an answer to a call", len(message))
            return
        try:
            parsed = jsonrpc_message_adapter.validate_json(message, by_name=False)
            self._inbox.send_nowait(SessionMessage(parsed))
        except ValidationError:
            log.debug("dropped an invalid message")
        except anyio.WouldBlock:
            if not self._overflowed:
                self._overflowed = True
                log.warning("a server sends more requests than can be answered; dropping the rest")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            log.debug("dropped a message that arrived after the end")

    def end(self) -> None:
        """Signals to the SDK that the server is gone."""
        self._inbox.close()

    async def negotiate(self, *, known: Era | None, probe_limit: float) -> Peer:
        """Negotiates the server's era and opens the session. Raises ServerUnavailable."""
        self._session.probe_limit = probe_limit
        try:
            if known is Era.LEGACY:
                await self._open_legacy()
            else:
                await negotiate_auto(self._session)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise EndedEarly("The server closed the connection during negotiation.") from None
            raise ServerUnavailable(f"The server refused to start: {error.message} (code {error.code}).") from None
        except ValidationError as error:
            raise ServerUnavailable(
                f"The server sent an invalid MCP answer during negotiation ({error.error_count()} errors)."
            ) from None
        return self._peer()

    async def _open_legacy(self) -> None:
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await negotiate_auto(self._session)

    def _peer(self) -> Peer:
        session = self._session
        info = session.server_info
        capabilities = session.server_capabilities
        offered = capabilities.model_dump(by_alias=True, exclude_none=True) if capabilities else {}
        return Peer(
            era=Era.MODERN if session.discover_result is not None else Era.LEGACY,
            version=session.protocol_version or "",
            server_info=info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else {},
            instructions=session.instructions or "",
            announces=frozenset(kind for kind in _LISTED if _claims(offered.get(kind), "listChanged")),
            capabilities=frozenset(
                {kind for kind in ("resources", "prompts", "completions", "logging") if kind in offered}
                | ({"subscribe"} if _claims(offered.get("resources"), "subscribe") else set())
                | ({"tasks"} if _makes_tasks(offered) else set())
            ),
        )

    async def hold_subscription(
        self,
        announced: frozenset[str],
        resources: ResourceWatch,
        *,
        acknowledged: asyncio.Event,
        on_gap: Callable[[], None],
    ) -> None:
        """Keeps a modern `subscriptions/listen` open, for the lists that are announced and the resources that are
        watched. Its events arrive with all other messages. When other resources are watched, the next one begins
        before the last one ends, so that no change is missed.

        Calls `on_gap` after an interruption, because changes in between were not announced.
        """
        delay = _LISTEN_AGAIN
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._follow(announced, resources, acknowledged, on_gap)
            except MCPError as error:
                if error.code in {METHOD_NOT_FOUND, CONNECTION_CLOSED}:
                    log.debug("no subscription: %s", printable(error.message))
                    return
                log.debug("the subscription failed: %s", printable(error.message))
            except SubscriptionLost as error:
                log.debug("the subscription was lost: %s", printable(str(error)))
            finally:
                acknowledged.set()
            delay = min(delay * 2, _MAX_LISTEN_PAUSE) if loop.time() - began < _LASTED else _LISTEN_AGAIN
            await asyncio.sleep(delay)

    async def _follow(
        self,
        announced: frozenset[str],
        resources: ResourceWatch,
        acknowledged: asyncio.Event,
        on_gap: Callable[[], None],
    ) -> None:
        """Returns when the server ends the subscription."""
        held: contextlib.AsyncExitStack | None = None
        try:
            while True:
                changed, uris = resources.changed, resources.uris
                coming = contextlib.AsyncExitStack()
                subscription = await coming.enter_async_context(self._listen(announced, uris))
                if held is not None:
                    await held.aclose()
                elif acknowledged.is_set():
                    on_gap()
                held = coming
                resources.acknowledged(uris)
                acknowledged.set()
                async with running_beside(_all_of(subscription)) as (events,):
                    await asyncio.wait({events, changed}, return_when=asyncio.FIRST_COMPLETED)
                if not changed.done():
                    events.result()
                    return
        finally:
            if held is not None:
                await held.aclose()

    def _listen(
        self, announced: frozenset[str], uris: Sequence[str]
    ) -> contextlib.AbstractAsyncContextManager[Subscription]:
        return listen(
            self._session,
            tools_list_changed="tools" in announced,
            prompts_list_changed="prompts" in announced,
            resources_list_changed="resources" in announced,
            resource_subscriptions=uris,
        )


_LISTED = ("tools", "resources", "prompts")


def _claims(capability: Any, name: str) -> bool:
    return isinstance(capability, dict) and capability.get(name) is True


def _makes_tasks(offered: Mapping[str, Any]) -> bool:
    """Whether calls can become tasks, in either generation's form."""
    requests = (offered.get("tasks") or {}).get("requests") or {}
    return "call" in (requests.get("tools") or {}) or TASKS in (offered.get("extensions") or {})


async def _all_of(subscription: Subscription) -> None:
    async for _ in subscription:
        pass


class _Outbox:
    """The SDK's write stream: encodes and sends each message at once."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send

    async def send(self, item: SessionMessage, /) -> None:
        try:
            await self._send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        except ServerUnavailable:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """The transport owns the pipe and closes it."""

    async def __aenter__(self) -> _Outbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@contextlib.asynccontextmanager
async def open_session(
    send: Callable[[bytes], Awaitable[None]], capabilities: Mapping[str, Any]
) -> AsyncIterator[SdkSession]:
    """The SDK's half of a connection whose messages we read and write."""
    inbox, unread = anyio.create_memory_object_stream[SessionMessage | Exception](_INBOX)
    with contextlib.closing(inbox), contextlib.closing(unread):
        async with _ProbingSession(unread, _Outbox(send), client_info=_CLIENT_INFO) as session:
            session.offered = capabilities
            yield SdkSession(session, inbox)


class HttpObserver:
    """Records what the SDK's HTTP client saw: session id, last status, last connection failure."""

    def __init__(self, account: Account | None = None) -> None:
        self.account = account
        self.session_id: str | None = None
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        """Of the last answer."""
        self.failure: Exception | None = None
        self.refusal = ""
        """Why the server's response was rejected; empty if it was not."""
        self.stream_answered = asyncio.Event()
        """Set once the server has answered the request for the stream of a legacy session."""
        self.on_unreachable: Callable[[str], None] = lambda reason: None
        """Set once connected; called when the server stops listening."""

    def answered(self, response: httpx2.Response) -> None:
        self.failure = None
        if response.request.method == "GET":
            self.stream_answered.set()
        if response.request.method == "POST":
            self.status, self.headers = response.status_code, response.headers
            if response.status_code < 400 and (session_id := response.headers.get("mcp-session-id")):
                self.session_id = session_id

    def failed(self, error: Exception) -> None:
        self.failure = error
        # Other failures may affect only one request: some servers drop the GET for a stream they don't offer.
        if isinstance(error, httpx2.ConnectError):
            self.on_unreachable("Nothing is listening there any more.")


@contextlib.asynccontextmanager
async def open_http_session(
    url: str,
    *,
    headers: Mapping[str, str],
    tls: ssl.SSLContext,
    proxy: str | None,
    observer: HttpObserver,
    check: Callable[[], None],
    link: ServerLink,
    capabilities: Mapping[str, Any],
) -> AsyncIterator[SdkSession]:
    """The SDK's half of a Streamable HTTP connection. `check` raises if continuing is pointless; `link` gets what it
    handles itself."""
    client = httpx2.AsyncClient(
        transport=_ForgivingTransport(
            httpx2.AsyncHTTPTransport(verify=tls, proxy=proxy, socket_options=KEEPALIVE, trust_env=False),
            observer,
            link.budget,
        ),
        # Decompression has no size limit, so servers that compress anyway are refused.
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(10.0, read=None),
        trust_env=False,
    )
    inbox, unread = anyio.create_memory_object_stream[SessionMessage | Exception](_INBOX)

    async def pump(read: Any) -> None:
        async for item in read:
            message = getattr(item, "message", None)
            if isinstance(message, JSONRPCNotification) and link.notice(message.method, message.params or {}):
                continue
            if isinstance(message, JSONRPCRequest):
                read = functools.partial(dict, message.params or {})
                if link.asked(message.id, message.method, read):
                    continue
            await inbox.send(item)
        inbox.close()

    async with (
        client,
        streamable_http_client(
            url, http_client=client, terminate_on_close=False, max_sse_event_size=MAX_MESSAGE
        ) as streams,
    ):
        with contextlib.closing(inbox), contextlib.closing(unread):
            read, write = streams
            async with _ProbingSession(unread, write, client_info=_CLIENT_INFO) as session:
                session.check, session.offered = check, capabilities
                async with running_beside(pump(read)):
                    yield SdkSession(session, inbox)


class _BoundedStream(httpx2.AsyncByteStream):
    """Keeps oversized messages from the SDK."""

    def __init__(self, response: httpx2.Response, observer: HttpObserver, budget: InputBudget) -> None:
        self._stream = cast("httpx2.AsyncByteStream", response.stream)
        self._events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        # The error types that the SDK turns into an answer to its request.
        self._error = httpx2.SSEError if self._events else httpx2.StreamError
        self._observer = observer
        self._budget = budget

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            ended = max(map(chunk.rfind, _ENDS_OF_EVENTS)) if self._events else -1
            size = len(chunk) - ended if ended >= 0 else size + len(chunk)
            if size > MAX_MESSAGE:
                self._observer.refusal = _TOO_LARGE
                raise self._error(_TOO_LARGE)
            for piece in pieces(chunk):
                yield piece
                if self._events:
                    # The SDK's time per line cannot be measured here; this is close.
                    self._budget.charge(_LINE * (piece.count(b"\n") + piece.count(b"\r")))
                    await self._budget.rest()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ForgivingTransport(httpx2.AsyncBaseTransport):
    """Answers 503 instead of raising: one failed request must not end the SDK's whole client."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, observer: HttpObserver, budget: InputBudget) -> None:
        self._inner = inner
        self._observer = observer
        self._budget = budget

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._authorized(request)
        except httpx2.TransportError as error:
            self._observer.failed(error)
            return httpx2.Response(503, request=request)
        except AccountUnusable as error:
            self._observer.refusal = error.message
            return httpx2.Response(503, request=request)
        response.request = request
        self._observer.answered(response)
        head = sum(len(name) + len(value) for name, value in response.headers.raw)
        if head > LARGEST_HEAD or response.headers.get("content-encoding", "identity").lower() != "identity":
            self._observer.refusal = _TOO_MANY_HEADERS if head > LARGEST_HEAD else _COMPRESSED
            await response.aclose()
            return httpx2.Response(503, request=request)
        response.stream = _BoundedStream(response, self._observer, self._budget)
        return response

    async def _authorized(self, request: httpx2.Request) -> httpx2.Response:
        """Like `Account.authorized`, for the SDK's requests. A refusal is noted, and answered as it is."""
        account = self._observer.account
        if account is None:
            return await self._inner.handle_async_request(request)
        header = await account.current()
        response = await self._with_token(request, account)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            try:
                again = await account.rejected(header)
            except AccountUnusable:
                await response.aclose()
                raise
            if again:
                await response.aclose()
                response = await self._with_token(request, account)
                account.repeated(response.status_code)
        if (refusal := await account.refusal(response.status_code, response.headers)) is not None:
            self._observer.refusal = refusal.message
        return response

    async def _with_token(self, request: httpx2.Request, account: Account) -> httpx2.Response:
        if account.authorization:
            request.headers["Authorization"] = account.authorization
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()
