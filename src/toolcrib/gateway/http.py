"""The endpoint `/mcp`: HTTP requests of both protocol generations in, answers out.

In: ASGI. Out: ASGI. Every request passes `auth` before anything is read of it; then the body decides the
generation. `dispatcher` makes the answers, `streams` carries the long ones, and what a client has open ends with
its agent or session. What legacy clients have open now is held by their session id; the session itself, which
outlives connections and restarts, is in `identity.sessions`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.core.crib import Crib
from toolcrib.errors import ErrorCase, ToolcribError
from toolcrib.events import Event, PermissionChanged
from toolcrib.gateway import protocol
from toolcrib.gateway.auth import (
    DEFAULT_CONVERSATION,
    AdmittedRequest,
    Authenticator,
    HttpAuth,
    check_legacy_method,
    check_post,
    check_stream,
    is_large,
    method_not_allowed,
    read_body,
)
from toolcrib.gateway.dispatcher import LIST_CHANGED, Dispatcher, PendingRequests, RequestContext
from toolcrib.gateway.messages import ClientMessage, Rejected, Reply, error_reply, read_message
from toolcrib.gateway.protocol import listen_acknowledged, listen_ended, listen_notice, wants_tool_changes
from toolcrib.gateway.streams import PostExchange, Receive, Send, SseResponse, send_json, until_disconnected
from toolcrib.servers.model import MODERN_VERSION, Era


class LegacyConnection:
    __slots__ = ("id", "streams", "under_way")

    def __init__(self, id: str) -> None:
        self.id = id
        self.under_way = PendingRequests()
        self.streams: set[SseResponse] = set()

    def end(self) -> None:
        self.under_way.cancel_all()
        for stream in tuple(self.streams):
            stream.close()


class LegacyConnections:
    def __init__(self) -> None:
        self._by_id: dict[str, LegacyConnection] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def at(self, id: str) -> LegacyConnection:
        found = self._by_id.get(id)
        if found is None:
            found = self._by_id[id] = LegacyConnection(id)
        return found

    def let_go(self, connection: LegacyConnection) -> None:
        """Forgets it, unless something is still open in it."""
        if not connection.under_way and not connection.streams:
            self._by_id.pop(connection.id, None)

    def end(self, id: str) -> None:
        found = self._by_id.get(id)
        if found is not None:
            found.end()


log = logging.getLogger(__name__)


class _Open(msgspec.Struct, frozen=True, eq=False):
    """A stream of notices that a client holds open."""

    agent: str
    notice: bytes | None
    hang_up: Callable[[], None]


class HttpGateway:
    def __init__(self, crib: Crib, *, token: str, port: int) -> None:
        self._crib = crib
        self._desk = Dispatcher(crib)
        self._reception = Authenticator(crib, owner_token=token)
        self._gate = HttpAuth(self._reception, port=port)
        # Kept, because asking for it costs a system call in some versions of Python.
        self._loop = asyncio.get_running_loop()
        self._legacy = LegacyConnections()
        self._streams: dict[SseResponse, _Open] = {}
        self._unsubscribe = crib.bus.subscribe(self._permission_changed, PermissionChanged)

    def close(self) -> None:
        """Ends every stream of notices and takes no more requests."""
        self._gate.closed = True
        self._unsubscribe()
        for held in tuple(self._streams.values()):
            held.hang_up()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served here, not {scope['type']}")
        try:
            visitor = self._gate.admit(scope)
        except Rejected as rejected:
            # Nobody whom we do not know keeps a connection.
            reply = rejected.reply()
            await send_json(send, msgspec.structs.replace(reply, extra=(*reply.extra, (b"connection", b"close"))))
            return
        try:
            match scope["method"]:
                case "POST":
                    await self._post(visitor, receive, send)
                case "GET":
                    await self._get(visitor, receive, send)
                case "DELETE":
                    await self._delete(visitor, send)
                case _:
                    raise method_not_allowed()
        except Rejected as rejected:
            await send_json(send, rejected.reply())
        except ToolcribError as error:
            await send_json(send, error_reply(error))

    async def _post(self, visitor: AdmittedRequest, receive: Receive, send: Send) -> None:
        check_post(visitor.headers)
        message = await self._read(visitor, receive)
        if protocol.era_of(message, visitor.headers.get("mcp-protocol-version")) is Era.MODERN:
            await self._modern_request(message, visitor, receive, send)
        elif message.method == "initialize" and message.id is not None:
            await self._initialize(message, visitor, send)
        else:
            await self._legacy_request(message, visitor, receive, send)

    async def _read(self, visitor: AdmittedRequest, receive: Receive) -> ClientMessage:
        """A large body is not even taken in before the agent's last one is read."""
        if not is_large(visitor.headers):
            return read_message(await read_body(visitor, receive))
        async with self._reception.turns.of(visitor.guest.name) as turn:
            return await turn.read(await read_body(visitor, receive))

    async def _modern_request(
        self, message: ClientMessage, visitor: AdmittedRequest, receive: Receive, send: Send
    ) -> None:
        if message.id is None:
            version = visitor.headers.get("mcp-protocol-version", "")
            if version != MODERN_VERSION:
                raise protocol.unsupported_version(version)
            await _done(send, 202)
            return
        protocol.check_modern(message, visitor.headers)
        client = await self._client(visitor, visitor.label or DEFAULT_CONVERSATION)
        if message.method == "subscriptions/listen":
            await self._listen(message, message.id, client, receive, send)
        else:
            await self._answer(message, Era.MODERN, client, PostExchange(self._loop, receive, send), None)

    async def _initialize(self, message: ClientMessage, visitor: AdmittedRequest, send: Send) -> None:
        reply = self._desk.initialize(message)
        if reply.accepted:
            # Where the guest cannot work, it must not get a session either.
            await self._reception.project(visitor.guest)
            visitor.guest.permission()
            session_id, _ = await self._crib.sessions.begin_legacy(visitor.guest.name, visitor.label)
            reply = msgspec.structs.replace(reply, extra=((b"mcp-session-id", session_id.encode()),))
        await send_json(send, reply)

    async def _legacy_request(
        self, message: ClientMessage, visitor: AdmittedRequest, receive: Receive, send: Send
    ) -> None:
        session_id, conversation = self._legacy_session(visitor)
        if message.id is None:
            if message.method == "notifications/cancelled":
                connection = self._legacy.at(session_id)
                connection.under_way.cancel(message)
                self._legacy.let_go(connection)
            await _done(send, 202)
            return
        client = await self._client(visitor, conversation)
        connection = self._legacy.at(session_id)
        try:
            await self._answer(
                message, Era.LEGACY, client, PostExchange(self._loop, receive, send), connection.under_way
            )
        finally:
            self._legacy.let_go(connection)

    def _legacy_session(self, visitor: AdmittedRequest) -> tuple[str, str]:
        """The session id that the request carries, and the conversation it belongs to."""
        session_id = visitor.headers.get("mcp-session-id")
        if session_id is None:
            raise Rejected(ErrorCase.SESSION_MISSING)
        session = self._crib.sessions.legacy(session_id, visitor.guest.name)
        if session is None:
            # Who lost the token on the way here lost the session with it, and is told of the token.
            visitor.guest.permission()
            raise Rejected(ErrorCase.SESSION_UNKNOWN)
        return session_id, visitor.label or session.conversation

    async def _client(self, visitor: AdmittedRequest, conversation: str) -> RequestContext:
        project = await self._reception.project(visitor.guest)
        return await self._desk.welcome(visitor.guest, project, conversation, visitor.reader)

    async def _answer(
        self,
        message: ClientMessage,
        era: Era,
        client: RequestContext,
        exchange: PostExchange,
        under_way: PendingRequests | None,
    ) -> None:
        """`under_way` is where the client can take the request back; a modern one cancels by going away."""
        key = message.key
        if message.id is None or key is None:
            raise ValueError("only requests are answered")
        exchange.watch(gone_means_cancel=era is Era.MODERN)
        end = None if under_way is None else under_way.begin(key, exchange.take_back)
        interrupt = exchange.interrupt
        client.session.begin(interrupt)
        reply: Reply | None = None
        try:
            with client.project.in_use():
                reply = await self._desk.answer(message, era, client, exchange.notify)
        except asyncio.CancelledError:
            if exchange.stopped is None and not exchange.gone:
                raise
            task = asyncio.current_task(self._loop)
            if task is not None:
                task.uncancel()
            reply = Rejected(exchange.stopped or ErrorCase.TAKEN_BACK).reply(era, message.id)
        except Exception:
            log.exception("%s failed", message.method)
            reply = Rejected(ErrorCase.FAILED).reply(era, message.id)
        finally:
            client.session.over(interrupt)
            if end is not None:
                end()
        await exchange.finish(reply)

    async def _get(self, visitor: AdmittedRequest, receive: Receive, send: Send) -> None:
        check_legacy_method(visitor.headers)
        check_stream(visitor.headers)
        session_id, conversation = self._legacy_session(visitor)
        client = await self._client(visitor, conversation)
        connection = self._legacy.at(session_id)
        stream = SseResponse(send, [(b"mcp-session-id", session_id.encode())])
        connection.streams.add(stream)
        try:
            await self._carry(stream, client, LIST_CHANGED, None, receive)
        finally:
            connection.streams.discard(stream)
            self._legacy.let_go(connection)

    async def _delete(self, visitor: AdmittedRequest, send: Send) -> None:
        check_legacy_method(visitor.headers)
        session_id, _ = self._legacy_session(visitor)
        self._legacy.end(session_id)
        await self._crib.sessions.end_legacy(session_id)
        await _done(send, 200)

    async def _listen(
        self, message: ClientMessage, request_id: bytes, client: RequestContext, receive: Receive, send: Send
    ) -> None:
        honoured = wants_tool_changes(message)
        stream = SseResponse(send)
        stream.put(listen_acknowledged(request_id, tools=honoured))
        notice = listen_notice(request_id) if honoured else None
        await self._carry(stream, client, notice, listen_ended(request_id), receive)

    async def _carry(
        self,
        stream: SseResponse,
        client: RequestContext,
        notice: bytes | None,
        last_word: bytes | None,
        receive: Receive,
    ) -> None:
        """Sends the notice on the stream whenever the client's tools changed, until either side ends it."""

        def hang_up() -> None:
            if last_word is not None:
                stream.put(last_word)
            stream.close()

        unsubscribe = client.project.subscribe(lambda: stream.offer(notice)) if notice is not None else lambda: None
        self._streams[stream] = _Open(client.guest.name, notice, hang_up)
        client.session.begin(hang_up)
        writer = asyncio.create_task(stream.run())
        watcher = asyncio.create_task(until_disconnected(receive))
        try:
            with client.project.in_use():
                await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unsubscribe()
            client.session.over(hang_up)
            del self._streams[stream]
            for task in (writer, watcher):
                task.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)

    def _permission_changed(self, event: Event) -> None:
        """What the agent may use is what it sees: for its clients that is a change of the tools."""
        if isinstance(event, PermissionChanged):
            for stream, held in self._streams.items():
                if held.agent == event.agent and held.notice is not None:
                    stream.offer(held.notice)


async def _done(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
