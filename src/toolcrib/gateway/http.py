"""The endpoint `/mcp`: HTTP requests of both protocol generations in, answers out.

In: ASGI. Out: ASGI. `auth` checks every request before its body is read; then the body decides the generation.
`dispatcher` answers, and `streams` carries long answers. A client's open requests and streams end with its agent or
session. For legacy clients they are kept here by session id; the session, which outlives connections and restarts, is
in `identity.sessions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.core.crib import Crib
from toolcrib.errors import ErrorCase, ToolcribError
from toolcrib.events import AgentEnded, Event, PermissionChanged
from toolcrib.gateway import protocol
from toolcrib.gateway.asking import ClientAnswers, LegacyAsker, initialized_capabilities
from toolcrib.gateway.auth import (
    DEFAULT_CONVERSATION,
    AdmittedRequest,
    Authenticator,
    check_legacy_method,
    check_post,
    check_stream,
    is_large,
    method_not_allowed,
    read_body,
)
from toolcrib.gateway.dispatcher import Dispatcher, ProjectRequest
from toolcrib.gateway.messages import ClientMessage, Rejected, Reply, batched, error_reply, read_message
from toolcrib.gateway.offer_requests import WATCHED
from toolcrib.gateway.parking import Parking
from toolcrib.gateway.pending import PendingRequest, PendingRequests
from toolcrib.gateway.protocol import listen_acknowledged, listen_ended, listen_request
from toolcrib.gateway.streams import PostExchange, Receive, Send, SseResponse, send_json, until_disconnected
from toolcrib.gateway.watching import Watching
from toolcrib.servers.model import MODERN_VERSION, Era

_RETURNS_WITHIN = 60.0
"""Seconds that the subscriptions of a legacy client outlive its last stream or request."""
BATCH_VERSION = "2025-03-26"
"""The only version with batches. A request without a version header has it."""


class LegacyConnection:
    """Open requests and streams of one legacy session id."""

    __slots__ = ("answers", "id", "leaving", "pending", "streams", "watching")

    def __init__(self, id: str) -> None:
        self.id = id
        self.pending = PendingRequests()
        self.answers = ClientAnswers()
        self.streams: set[SseResponse] = set()
        self.watching: Watching | None = None
        """Its subscriptions to resources and log messages."""
        self.leaving: asyncio.TimerHandle | None = None
        """Forgets them, because its client has neither a stream nor a request."""

    def watch(self, context: ProjectRequest) -> Watching:
        if self.watching is None:
            self.watching = Watching(context, self.send, kinds=frozenset())
        return self.watching

    def send(self, message: bytes) -> None:
        """Sends a notification on one of its streams; without one, the client can't be reached."""
        for stream in self.streams:
            stream.offer(message)
            return

    def stop_watching(self) -> None:
        if self.watching is not None:
            self.watching.close()
            self.watching = None

    def end(self) -> None:
        if self.leaving is not None:
            self.leaving.cancel()
        self.stop_watching()
        self.pending.cancel_all()
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
        elif found.leaving is not None:
            found.leaving.cancel()
            found.leaving = None
        return found

    def release(self, connection: LegacyConnection) -> None:
        """Forgets the connection unless it still has open requests or streams: at once if it watches nothing, otherwise
        after some time, because clients reconnect, and many leave without ending their session."""
        if (
            connection.pending
            or connection.answers
            or connection.streams
            or self._by_id.get(connection.id) is not connection
        ):
            return
        if connection.watching is not None and connection.watching.is_idle:
            connection.stop_watching()
        if connection.watching is None:
            self._by_id.pop(connection.id, None)
        else:
            connection.leaving = asyncio.get_running_loop().call_later(_RETURNS_WITHIN, self.end, connection.id)

    def permission_changed(self, agent: str) -> None:
        for one in self._of(agent):
            if one.watching is not None:
                one.watching.permission_changed()

    def agent_ended(self, agent: str) -> None:
        for one in self._of(agent):
            one.stop_watching()

    def _of(self, agent: str) -> list[LegacyConnection]:
        return [one for one in self._by_id.values() if one.watching is not None and one.watching.agent == agent]

    def end(self, id: str) -> None:
        found = self._by_id.pop(id, None)
        if found is not None:
            found.end()


class _OpenStream(msgspec.Struct, frozen=True, eq=False):
    """A notification stream that a client keeps open."""

    agent: str
    watching: Watching
    hang_up: Callable[[], None]


class HttpGateway:
    def __init__(self, crib: Crib, *, token: str, port: int) -> None:
        self._sessions = crib.services.sessions
        self._parking = Parking(crib.services.handles)
        self._dispatcher = Dispatcher(crib, self._parking)
        self._auth = Authenticator(crib, owner_token=token, port=port)
        # Cached: getting the loop costs a system call in some versions of Python.
        self._loop = asyncio.get_running_loop()
        self._legacy = LegacyConnections()
        self._streams: dict[SseResponse, _OpenStream] = {}
        self._unsubscribe = crib.bus.subscribe(self._agent_changed, PermissionChanged, AgentEnded)

    @property
    def parked(self) -> int:
        """How many calls wait for their clients' answers."""
        return len(self._parking)

    def close(self) -> None:
        """Ends every notification stream and every call that waits for an answer; refuses new requests."""
        self._auth.closed = True
        self._parking.interrupt()
        self._unsubscribe()
        for held in tuple(self._streams.values()):
            held.hang_up()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served here, not {scope['type']}")
        try:
            admitted = self._auth.admit(scope)
        except Rejected as rejected:
            # An unauthenticated client doesn't keep its connection.
            reply = rejected.reply()
            await send_json(send, msgspec.structs.replace(reply, extra=(*reply.extra, (b"connection", b"close"))))
            return
        try:
            match scope["method"]:
                case "POST":
                    await self._post(admitted, receive, send)
                case "GET":
                    await self._get(admitted, receive, send)
                case "DELETE":
                    await self._delete(admitted, send)
                case _:
                    raise method_not_allowed()
        except Rejected as rejected:
            await send_json(send, rejected.reply())
        except ToolcribError as error:
            await send_json(send, error_reply(error))

    async def _post(self, admitted: AdmittedRequest, receive: Receive, send: Send) -> None:
        check_post(admitted.headers)
        batches = admitted.headers.get("mcp-protocol-version") in (None, BATCH_VERSION)
        if is_large(admitted.headers):
            # The body isn't even received until the agent's previous one has been read.
            async with self._auth.reads.of(admitted.principal.name) as turn:
                body = await read_body(admitted, receive, large=True)
                batch = await batched(body) if batches else None
                messages = [await turn.read(one) for one in batch or [body]]
        else:
            body = await read_body(admitted, receive, large=False)
            batch = await batched(body) if batches else None
            messages = list(map(read_message, batch or [body]))
        if batch is not None:
            await self._batch(messages, admitted, send)
            return
        message = messages[0]
        if protocol.era_of(message, admitted.headers.get("mcp-protocol-version")) is Era.LEGACY:
            await self._legacy_post(message, admitted, receive, send)
            return
        if message.id is None:
            version = admitted.headers.get("mcp-protocol-version", "")
            if version != MODERN_VERSION:
                raise protocol.unsupported_version(version)
            await _done(send, 202)
            return
        protocol.check_modern(message, admitted.headers)
        context = await self._context(admitted, admitted.label or DEFAULT_CONVERSATION, protocol.client_name(message))
        if message.method == "subscriptions/listen":
            await self._listen(message, message.id, context, receive, send)
            return
        await self._dispatcher.answer_modern(
            message, context, lambda pending: PostExchange(self._loop, receive, send, pending)
        )

    async def _batch(self, messages: list[ClientMessage], admitted: AdmittedRequest, send: Send) -> None:
        """Answers the requests of a batch with one JSON array, in their order."""
        if any(one.method == "initialize" or protocol.VERSION_KEY in one.meta for one in messages):
            raise Rejected(ErrorCase.ENVELOPE, why="A batch can't have initialize or requests of protocol 2026-07-28")
        requests = [one for one in messages if one.id is not None and not one.is_response]
        session_id, conversation = self._legacy_session(admitted)
        connection = self._legacy.at(session_id)
        for one in messages:
            if one.method == "notifications/cancelled":
                connection.pending.cancel(one)
        if not requests:
            self._legacy.release(connection)
            await _done(send, 202)
            return
        context = await self._context(admitted, conversation, self._sessions.client(session_id))
        watching = connection.watch(context)

        async def answered(message: ClientMessage) -> bytes:
            request = _pending(message, self._loop)
            end = connection.pending.begin(message.key, request.cancel)
            try:
                found = await self._dispatcher.answer(message, Era.LEGACY, context, request, connection.send, watching)
                return found.body
            finally:
                end()

        try:
            bodies = await asyncio.gather(*map(answered, requests))
        finally:
            self._legacy.release(connection)
        await send_json(send, Reply(b"[" + b",".join(bodies) + b"]"))

    async def _legacy_post(
        self, message: ClientMessage, admitted: AdmittedRequest, receive: Receive, send: Send
    ) -> None:
        if message.method == "initialize" and message.id is not None:
            await self._initialize(message, admitted, send)
            return
        session_id, conversation = self._legacy_session(admitted)
        if message.id is None or message.is_response:
            connection = self._legacy.at(session_id)
            if message.is_response:
                connection.answers.receive(message)
            elif message.method == "notifications/cancelled":
                connection.pending.cancel(message)
            self._legacy.release(connection)
            await _done(send, 202)
            return
        context = await self._context(admitted, conversation, self._sessions.client(session_id))
        connection = self._legacy.at(session_id)
        request = _pending(message, self._loop)
        exchange = PostExchange(self._loop, receive, send, request)
        asker = LegacyAsker(self._sessions.capabilities(session_id), connection.answers, request, exchange.ask)
        end = connection.pending.begin(message.key, request.cancel)
        try:
            watching = connection.watch(context) if message.method in WATCHED else connection.watching
            await exchange.finish(
                await self._dispatcher.answer(message, Era.LEGACY, context, request, exchange.notify, watching, asker)
            )
        finally:
            end()
            self._legacy.release(connection)

    async def _initialize(self, message: ClientMessage, admitted: AdmittedRequest, send: Send) -> None:
        # No session for an agent whose folder is missing or whose token was revoked.
        project = await self._auth.project(admitted.principal)
        reply = self._dispatcher.initialize(message, admitted.principal, project)
        if reply.accepted:
            session_id, _ = await self._sessions.begin_legacy(
                admitted.principal.name,
                admitted.label,
                initialized_capabilities(message),
                client=protocol.client_name(message),
            )
            reply = msgspec.structs.replace(reply, extra=((b"mcp-session-id", session_id.encode()),))
        await send_json(send, reply)

    def _legacy_session(self, admitted: AdmittedRequest) -> tuple[str, str]:
        """The request's session id and the conversation it belongs to."""
        session_id = admitted.headers.get("mcp-session-id")
        if session_id is None:
            raise Rejected(ErrorCase.SESSION_MISSING)
        session = self._sessions.legacy(session_id, admitted.principal.name)
        if session is None:
            # A token revoked in the meantime ends the session too: report the token, not the session.
            admitted.principal.permission()
            raise Rejected(ErrorCase.SESSION_UNKNOWN)
        return session_id, admitted.label or session.conversation

    async def _context(self, admitted: AdmittedRequest, conversation: str, client: str) -> ProjectRequest:
        project = await self._auth.project(admitted.principal)
        return await self._dispatcher.context(
            admitted.principal,
            project,
            conversation,
            admitted.reader,
            client,
            admitted.listing,
            admitted.without,
        )

    async def _get(self, admitted: AdmittedRequest, receive: Receive, send: Send) -> None:
        check_legacy_method(admitted.headers)
        check_stream(admitted.headers)
        session_id, conversation = self._legacy_session(admitted)
        context = await self._context(admitted, conversation, self._sessions.client(session_id))
        connection = self._legacy.at(session_id)
        stream = SseResponse(send, [(b"mcp-session-id", session_id.encode())])
        connection.streams.add(stream)
        try:
            await self._carry(stream, context, Watching(context, stream.offer), None, receive)
        finally:
            connection.streams.discard(stream)
            self._legacy.release(connection)

    async def _delete(self, admitted: AdmittedRequest, send: Send) -> None:
        check_legacy_method(admitted.headers)
        session_id, _ = self._legacy_session(admitted)
        self._legacy.end(session_id)
        await self._sessions.end_legacy(session_id)
        await _done(send, 200)

    async def _listen(
        self, message: ClientMessage, request_id: bytes, context: ProjectRequest, receive: Receive, send: Send
    ) -> None:
        wanted = listen_request(message)
        stream = SseResponse(send)
        watching = Watching(context, stream.offer, kinds=wanted.kinds, tag=request_id)
        try:
            watched = await watching.watch_all(self._dispatcher.door, wanted.resource_subscriptions)
        except BaseException:
            watching.close()
            raise
        stream.put(listen_acknowledged(request_id, wanted.kinds, watched))
        await self._carry(stream, context, watching, listen_ended(request_id), receive)

    async def _carry(
        self,
        stream: SseResponse,
        context: ProjectRequest,
        watching: Watching,
        final_message: bytes | None,
        receive: Receive,
    ) -> None:
        """Sends notifications until either side ends the stream."""

        def hang_up() -> None:
            if final_message is not None:
                stream.put(final_message)
            stream.close()

        self._streams[stream] = _OpenStream(context.principal.name, watching, hang_up)
        session = context.session
        if session is not None:
            session.begin(hang_up)
        writer = asyncio.create_task(stream.run())
        watcher = asyncio.create_task(until_disconnected(receive))
        try:
            with context.project.in_use():
                await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.close()
            if session is not None:
                session.over(hang_up)
            del self._streams[stream]
            for task in (writer, watcher):
                task.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)

    def _agent_changed(self, event: Event) -> None:
        """A changed permission changes the agent's tool list, so its clients get the notice."""
        if isinstance(event, AgentEnded):
            self._legacy.agent_ended(event.agent)
        elif isinstance(event, PermissionChanged):
            for held in self._streams.values():
                if held.agent == event.agent:
                    held.watching.permission_changed()
            self._legacy.permission_changed(event.agent)


def _pending(message: ClientMessage, loop: asyncio.AbstractEventLoop) -> PendingRequest:
    return PendingRequest(asyncio.current_task(loop), progress_token=message.meta.get("progressToken"))


async def _done(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
