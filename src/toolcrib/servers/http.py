"""Streamable HTTP: our own pooled POSTs for calls and lists; the SDK for negotiation and long-lived streams.

In: a server's address and headers. Out: `open_http`, an `HttpLink`. Each request is one POST, answered with JSON or an
event stream. A broken stream is resumed if its events have ids. Legacy servers identify us by a session id; modern ones
by each request's headers. Neighbours: `web` (connections), `wire` (events), `sdk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import UNSET

from toolcrib.config.auth import has_new_token
from toolcrib.config.model import ServerConfig
from toolcrib.errors import ProtocolViolation, ServerUnavailable
from toolcrib.servers import post_client, web, wire
from toolcrib.servers.account import Account, AccountUnusable
from toolcrib.servers.address import Address
from toolcrib.servers.input_budget import FORWARD_COST
from toolcrib.servers.link import LinkContext, Peer, ServerLink, SessionExpired
from toolcrib.servers.model import NAMED_BY, Era, ServerAnswer
from toolcrib.servers.param_headers import encode_header_value
from toolcrib.servers.sdk import HttpObserver, SdkSession, open_http_session
from toolcrib.servers.web import Refused, explain_network
from toolcrib.servers.wire import SseEvent, SseParser, TooLarge

log = logging.getLogger(__name__)

_JSON_AND_EVENTS = b"Accept: application/json, text/event-stream\r\n"
_OF_MCP = frozenset({"application/json", "text/event-stream"})
_OURS = frozenset({"accept", "content-type", "content-length", "mcp-protocol-version", "mcp-session-id", "mcp-method"})
"""Headers that we set; a configured value would appear twice."""
_RESUMES = 10
_RESUME_AFTER = 1.0
_DRAIN = 1.0
_STREAM_OPENS = 1.0
"""Seconds that a legacy server has to open its stream before it is called anyway."""
_GOODBYE = 1.0
_CANCEL = 10.0
_FORGOTTEN_CODES = frozenset({-32000, -32001, -32600})
_FORGOTTEN = re.compile(
    r"(?i)(?:bad request: ?)?(?:no valid session id(?: provided)?|(?:missing|invalid|unknown) session(?: id)?"
    r"|invalid or (?:missing|expired) session(?: id)?|session not found|server not initialized"
    r"|mcp-session-id header is required)\.?"
)
"""How SDKs reject an unknown session before running anything. Must match the whole text: tools may mention sessions."""
_OLDER = frozenset({400, 404, 405})
"""How servers of the older transport answer a POST to the address of their stream."""
_RELIST_AFTER = 2.0
"""Seconds until the tools are listed again, for changes before the notification stream was open."""


class HttpLink(ServerLink):
    def __init__(
        self,
        config: ServerConfig,
        lease: web.SharedPostClient,
        *,
        proxy: str | None,
        account: Account | None,
        on_lists_changed: Callable[[], None],
    ) -> None:
        super().__init__(config.name, on_lists_changed=on_lists_changed)
        self._account = account
        self._config = config
        self._url = config.url
        self._limit = config.max_message
        self._lease = lease
        self._client = lease.client
        self._proxy = proxy
        self._address = Address.of(config.url, proxy)
        self._own_headers = {name: value for name, value in config.headers.items() if name.lower() not in _OURS}
        self._head = b""
        self._session_id: str | None = None
        self._sdk_session: SdkSession | None = None
        self._in_flight = 0

    def negotiated(self, peer: Peer, session_id: str | None, session: SdkSession) -> None:
        """Stores the result of negotiation. Requests are possible from now on."""
        self._peer = peer
        self._sdk_session = session
        self._session_id = session_id if peer.era is Era.LEGACY else None
        headers = {
            **self._own_headers,
            "Content-Type": "application/json",
            "MCP-Protocol-Version": peer.version,
        }
        if self._session_id:
            headers["Mcp-Session-Id"] = self._session_id
        self._head = web.head_lines(headers)

    async def say_goodbye(self) -> None:
        """Ends a legacy session on the server, unless calls still run in it."""
        if self._session_id is None or self._in_flight or self.lost.done():
            return
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_GOODBYE):
                token = self._account.header if self._account else b""
                with await self._client.request(b"DELETE", self._address, self._head + token + _JSON_AND_EVENTS):
                    pass

    async def _exchange(
        self, request_id: str, method: str, params: Mapping[str, Any], body: bytes, headers: Mapping[str, str]
    ) -> ServerAnswer:
        self._in_flight += 1
        # Each call holds the lease too, because a call can outlive its link.
        self._lease.hold()
        try:
            return await self._ask(request_id, body, self._request_head(method, params, headers))
        finally:
            self._lease.let_go()
            self._in_flight -= 1

    async def _ask(self, request_id: str, body: bytes, head: bytes) -> ServerAnswer:
        try:
            response = await self._post(body, head)
            try:
                answer = await self._read(request_id, response)
            except BaseException:
                # Closing the stream cancels the request on a modern server.
                response.close()
                raise
            self._let_go(response)
        except (post_client.ConnectFailed, ssl.SSLError) as error:
            reason = explain_network(error, self._url)
            self.lose(reason)
            raise self.unavailable(f"{reason} The call did not run.") from None
        except TooLarge as error:
            raise ProtocolViolation(f"Server '{self.name}': {error} The call may have run.") from None
        except OSError as error:
            self.last_error = explain_network(error, self._url)
            raise self.interrupted(self.last_error) from None
        self.last_seen = time.time()
        self.last_error = ""
        return answer

    def _request_head(self, method: str, params: Mapping[str, Any], extra: Mapping[str, str]) -> bytes:
        if self.peer.era is Era.LEGACY:
            return self._head + _JSON_AND_EVENTS
        key = NAMED_BY.get(method)
        name = f"Mcp-Name: {encode_header_value(params[key])}\r\n" if key else ""
        marked = web.head_lines(extra) if extra else b""
        return b"%b%bMcp-Method: %b\r\n%b%b" % (self._head, _JSON_AND_EVENTS, method.encode(), name.encode(), marked)

    async def _post(self, body: bytes, head: bytes) -> post_client.PostResponse:
        if self._account is None:
            return await self._redirected(body, head)
        try:
            return await self._account.authorized(lambda token: self._redirected(body, head + token))
        except AccountUnusable as error:
            self.last_error = error.message
            raise ServerUnavailable(f"{error.message} The call did not run.") from None

    async def _redirected(self, body: bytes, head: bytes) -> post_client.PostResponse:
        for _ in range(web.MAX_REDIRECTS):
            response = await self._client.request(b"POST", self._address, head, body, limit=self._limit)
            if response.status not in web.REDIRECTS:
                return response
            response.close()
            target = web.redirect_target(self._url, response.headers.get("location", ""))
            if target is None:
                raise Refused(self.name, response.status, self._url, response.headers)
            self._url = target
            self._address = Address.of(target, self._proxy)
        raise self.unavailable(f"{web.shown_url(self._url)} redirects again and again. The call did not run.")

    async def _read(self, request_id: str, response: post_client.PostResponse) -> ServerAnswer:
        kind = response.content_type
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise self._violation("it is compressed, which was not requested")
        if response.status >= 300:
            return await self._refused(response)
        if kind == "application/json":
            return self._whole(request_id, await response.read())
        if kind == "text/event-stream":
            return await self._streamed(request_id, response)
        raise self._violation(f"HTTP {response.status} with content of type '{kind}'")

    def _whole(self, request_id: str, body: bytes) -> ServerAnswer:
        try:
            envelope = wire.decode(body)
        except wire.NotAMessage as error:
            raise self._violation(str(error)) from None
        answer = envelope.answer()
        if answer is None or envelope.id not in (request_id, None, UNSET):
            raise self._violation("it does not match a request")
        return answer

    async def _streamed(self, request_id: str, response: post_client.PostResponse) -> ServerAnswer:
        """Reads events until the answer. Resumes a stream that ends early, if possible."""
        last = _Position()
        answer = await self._listen(request_id, response, last)
        for _ in range(_RESUMES):
            if answer is not None:
                return answer
            if not last.id:
                break
            await asyncio.sleep(last.pause)
            async with self._resumed(last.id) as resumed:
                answer = await self._listen(request_id, resumed, last)
        if answer is not None:
            return answer
        raise self.interrupted("It ended its stream without an answer.")

    async def _listen(
        self, request_id: str, response: post_client.PostResponse, last: _Position
    ) -> ServerAnswer | None:
        """Reads one stream until the answer or its end."""
        stream = SseParser(limit=self._limit)
        answer: ServerAnswer | None = None

        def read(piece: bytes) -> bool:
            nonlocal answer
            for event in stream.feed(piece):
                last.note(event)
                if event.kind == "message" and event.data:
                    answer = self._heard(request_id, event.data)
                    if answer is not None:
                        return True
            return False

        try:
            async for chunk in response.chunks():
                if await self.budget.take(chunk, read):
                    return answer
                if self.misbehaved:
                    raise self.unavailable(f"{self.last_error} The call may have run.")
        except OSError as error:
            if not last.id or isinstance(error, TooLarge):
                raise
        return None

    @contextlib.asynccontextmanager
    async def _resumed(self, last_id: str) -> AsyncIterator[post_client.PostResponse]:
        head = self._head + b"Accept: text/event-stream\r\nLast-Event-ID: %b\r\n" % last_id.encode()
        ask = functools.partial(self._client.request, b"GET", self._address)
        try:
            opening = self._account.authorized(lambda token: ask(head + token)) if self._account else ask(head)
            resumed = await opening
        except AccountUnusable as error:
            raise self.interrupted(f"It ended its stream without an answer. {error.message}") from None
        with resumed as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                raise self.interrupted("It ended its stream without an answer.")
            yield response

    def _heard(self, request_id: str, message: bytes) -> ServerAnswer | None:
        """Handles one message of a request's stream. Returns the answer if it is one."""
        self.last_seen = time.time()
        try:
            envelope = wire.decode(message)
        except wire.NotAMessage as error:
            raise self._violation(str(error)) from None
        if envelope.method is UNSET:
            return envelope.answer() if envelope.id in (request_id, None, UNSET) else None
        read = functools.partial(wire.question_params, envelope.params)
        if not isinstance(envelope.id, str | int | float):
            self.notice(envelope.method, wire.params_object(envelope.params), request_id)
        elif not self.asked(envelope.id, envelope.method, read, request_id) and self._sdk_session is not None:
            self.budget.charge(FORWARD_COST)
            self._sdk_session.feed(message)
        return None

    async def _refused(self, response: post_client.PostResponse) -> ServerAnswer:
        """Handles an error status, whose body may hold a JSON-RPC error."""
        status = response.status
        error = _protocol_error(await response.read())
        if self._session_id and _forgot_session(status, error):
            self.expire_session()
            raise SessionExpired(f"Server '{self.name}': it no longer knows the session. The call did not run.")
        if status == 401 and await asyncio.to_thread(has_new_token, self._config):
            self.expire_session()
            raise SessionExpired(f"Server '{self.name}': its token has been replaced. The call did not run.")
        if error is not None and status != 401:
            return ServerAnswer(error=error)
        refused = Refused(self.name, status, self._url, response.headers)
        self.last_error = refused.reason
        raise refused

    def _let_go(self, response: post_client.PostResponse) -> None:
        """Releases the connection. The caller does not wait for a stream's last bytes."""
        if response.complete:
            response.release()
        else:
            self._in_background(_drain(response))

    def _abandon(self, request_id: str, reason: str) -> None:
        """Notifies a legacy server; closing the stream is enough for a modern one."""
        if self.peer.era is Era.LEGACY and not self.lost.done():
            self._in_background(self._send_cancelled(request_id, reason))

    async def _send_cancelled(self, request_id: str, reason: str) -> None:
        await self._reply(wire.cancelled(request_id, reason))

    async def _reply(self, message: bytes) -> None:
        try:
            async with asyncio.timeout(_CANCEL):
                with await self._post(message, self._head + _JSON_AND_EVENTS) as response:
                    await response.read()
        except (OSError, ServerUnavailable) as error:
            log.debug("%s: could not send a message: %s", self.name, type(error).__name__)

    def _violation(self, why: str) -> ProtocolViolation:
        return ProtocolViolation(
            f"Server '{self.name}' sent an invalid MCP answer: {why}. The call may have run.",
            remedy="Check that the server's address is its MCP endpoint.",
        )


class NotStreamable(ServerUnavailable):
    """The server rejects our messages as one of an older transport does."""


class _Position:
    """The position in an event stream, and how long to wait before resuming."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.pause = _RESUME_AFTER

    def note(self, event: SseEvent) -> None:
        self.id = event.id or self.id
        if event.retry is not None:
            self.pause = event.retry


async def _drain(response: post_client.PostResponse) -> None:
    with response, contextlib.suppress(OSError):
        async with asyncio.timeout(_DRAIN):
            await response.read()


def _protocol_error(body: bytes) -> bytes | None:
    try:
        answer = wire.decode(body).answer()
    except wire.NotAMessage:
        return None
    return answer.error if answer else None


def _forgot_session(status: int, error: bytes | None) -> bool:
    """404 by the specification. Many servers based on the TypeScript SDK's example send 400 with one of these texts.

    The call is repeated after this, so any other error counts as an answer: the call may have run.
    """
    if error is None:
        return status == 404
    fault = wire.error_in(error)
    if fault.code not in _FORGOTTEN_CODES:
        return False
    return status == 404 or (status == 400 and _FORGOTTEN.fullmatch(fault.message) is not None)


@contextlib.asynccontextmanager
async def open_http(
    config: ServerConfig, context: LinkContext, probe_limit: float
) -> AsyncIterator[tuple[HttpLink, SdkSession]]:
    proxy, on_lists_changed = web.proxy_for(config.url), context.on_lists_changed
    observer = HttpObserver(context.account)
    late: asyncio.TimerHandle | None = None

    def check() -> None:
        if observer.refusal:
            raise ServerUnavailable(observer.refusal)
        if observer.failure is not None:
            raise ServerUnavailable(explain_network(observer.failure, config.url))
        if observer.status in {401, 403, 429}:
            raise web.not_admitted(observer.status, config.url, observer.headers)

    async with web.shared_post_client(verify=config.verify_tls) as lease:
        link = HttpLink(config, lease, proxy=proxy, account=context.account, on_lists_changed=on_lists_changed)
        link.questions = context.questions
        try:
            async with open_http_session(
                config.url,
                headers=config.headers,
                tls=web.tls_context(verify=config.verify_tls),
                proxy=proxy,
                observer=observer,
                check=check,
                link=link,
                capabilities=context.questions.capabilities,
            ) as session:
                peer = await _negotiate(session, context.known_era, probe_limit, observer, check, config)
                link.negotiated(peer, observer.session_id, session)
                observer.on_unreachable = link.lose
                if observer.session_id and link.peer.era is Era.LEGACY:
                    # A question that the server asks there before it is open would be lost.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(observer.stream_answered.wait(), _STREAM_OPENS)
                # A legacy server announces changes on a stream that opens some time after our first list.
                if link.peer.era is Era.LEGACY and link.peer.announces:
                    late = asyncio.get_running_loop().call_later(_RELIST_AFTER, on_lists_changed)
                yield link, session
        finally:
            if late is not None:
                late.cancel()
            await link.say_goodbye()
            await link.stop(limit=0.2)


async def _negotiate(
    session: SdkSession,
    known: Era | None,
    probe_limit: float,
    observer: HttpObserver,
    check: Callable[[], None],
    config: ServerConfig,
) -> Peer:
    """Replaces the SDK's vague HTTP errors by what the observer saw."""
    try:
        return await session.negotiate(known=known, probe_limit=probe_limit)
    except ServerUnavailable:
        check()
        if observer.status is not None and observer.status >= 300:
            kind = NotStreamable if observer.status in _OLDER else ServerUnavailable
            raise web.not_admitted(observer.status, config.url, observer.headers, kind) from None
        if observer.status == 200 and (found := web.content_type(observer.headers)) not in _OF_MCP:
            raise ServerUnavailable(web.explain_content(found, config.url)) from None
        raise
