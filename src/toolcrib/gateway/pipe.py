"""The bridge's pipe: the messages that `toolcrib stdio` forwards from a client's stdin.

In: JSON messages, one per line. Out: answers and notifications, one per line, on the same stream. As on any stdio
connection, the client's first request decides the protocol generation. `dispatcher` answers, as it does for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import ErrorCase, ToolcribError
from toolcrib.events import AgentEnded, Event, PermissionChanged
from toolcrib.gateway import protocol
from toolcrib.gateway.asking import ClientAnswers, LegacyAsker, initialized_capabilities
from toolcrib.gateway.auth import bad_token
from toolcrib.gateway.dispatcher import Dispatcher, ProjectRequest
from toolcrib.gateway.messages import ClientMessage, ReadLimiter, Rejected, Reply, batched, error_reply, read_limited
from toolcrib.gateway.parking import Parking
from toolcrib.gateway.pending import PendingRequest, PendingRequests
from toolcrib.gateway.protocol import listen_acknowledged, listen_ended, listen_request
from toolcrib.gateway.watching import Watching
from toolcrib.identity.principal import Principal
from toolcrib.servers.model import Era
from toolcrib.servers.wire import on_one_line

log = logging.getLogger(__name__)

_MAX_UNREAD_BYTES = 1024 * 1024
_CLOSE_TIMEOUT = 5.0
"""Seconds that pending calls get after the client has closed its end."""


class PipeConnection:
    """One connection, until the client closes it or its agent ends."""

    def __init__(
        self,
        crib: Crib,
        parking: Parking,
        project: Project,
        principal: Principal,
        conversation: str,
        reads: ReadLimiter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        listing: str = "",
        without: frozenset[str] = frozenset(),
        handshake: str = "",
    ) -> None:
        """`listing`, `without` and `handshake`: as in `RequestContext`, for all requests."""
        self._crib = crib
        self._dispatcher = Dispatcher(crib, parking)
        self._project = project
        self._principal = principal
        self._conversation = conversation
        self._listing = listing
        self._without = without
        self._handshake = handshake
        self._reads = reads
        self._pending = PendingRequests()
        self._reader = reader
        self._writer = writer
        self._era: Era | None = None
        self._initialized = False
        """A legacy client must not get notifications before it has sent `notifications/initialized`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: dict[str | int, Watching] = {}
        """Modern subscriptions, by the request's id."""
        self._watching: Watching | None = None
        """A legacy client's."""
        self._capabilities: dict[str, dict[str, Any]] = {}
        self._client = ""
        """A legacy client's name."""
        self._answers = ClientAnswers()
        """What a legacy client can be asked, and its answers."""
        self._serving: asyncio.Task[None] | None = None
        self._dismissed = False
        """Whether the agent has ended, so reading stops."""

    async def serve(self) -> None:
        self._serving = asyncio.current_task()
        unsubscribe = self._crib.bus.subscribe(self._agent_changed, PermissionChanged, AgentEnded)
        try:
            while line := await self._line():
                if line.strip():
                    await self._take_all(line)
                await self._writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            log.info("the bridge of %s disconnected", self._conversation)
        except asyncio.CancelledError:
            if not self._dismissed or self._serving is None:
                # The daemon is stopping. It doesn't wait for answers or for a client that doesn't read.
                self._abort()
                raise
            self._serving.uncancel()
        finally:
            unsubscribe()
            for watching in self._all_watching():
                watching.close()
            await self._end()

    def _agent_changed(self, event: Event) -> None:
        if isinstance(event, PermissionChanged) and event.agent == self._principal.name:
            for watching in self._all_watching():
                watching.permission_changed()
        elif isinstance(event, AgentEnded) and event.agent == self._principal.name and self._serving is not None:
            self._dismissed = True
            self._serving.cancel("the agent has ended")

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as rest:
            return rest.partial
        except asyncio.LimitOverrunError:
            self._send(Rejected(ErrorCase.MALFORMED, why="the message is too large").reply().body)
            raise ConnectionError("message too large") from None

    async def _take_all(self, line: bytes) -> None:
        """A legacy client may send a batch. Each of its requests gets its own answer."""
        try:
            batch = await batched(line) if self._era is Era.LEGACY else None
        except Rejected as rejected:
            self._send(rejected.reply().body)
            return
        for message in batch or [line]:
            await self._take(message)

    async def _take(self, line: bytes) -> None:
        try:
            message = await read_limited(line, self._principal.name, self._reads)
            self._decide_era(message)
            if self._era is Era.MODERN and message.id is not None:
                protocol.check_modern(message, None)
            if message.id is None or message.is_response:
                self._notified(message)
            elif message.method == "subscriptions/listen" and self._era is Era.MODERN:
                self._in_background(self._listen(message, message.id))
            else:
                self._begin(message, message.id)
        except Rejected as rejected:
            self._send(rejected.reply().body)

    def _decide_era(self, message: ClientMessage) -> None:
        if message.id is None:
            return
        claimed = Era.MODERN if protocol.VERSION_KEY in message.meta and message.method != "initialize" else Era.LEGACY
        if self._era is None:
            self._era = claimed
        elif self._era is Era.MODERN and message.method == "initialize":
            raise protocol.unsupported_version(protocol.LEGACY_VERSIONS[-1], message.id)
        elif self._era is Era.LEGACY and claimed is Era.MODERN:
            raise Rejected(ErrorCase.ENVELOPE, why="This connection began with initialize", id=message.id)

    def _notified(self, message: ClientMessage) -> None:
        if message.is_response:
            self._answers.receive(message)
        elif message.method == "notifications/cancelled":
            self._pending.cancel(message)
        elif message.method == "notifications/initialized":
            self._initialized = True

    def _begin(self, message: ClientMessage, request_id: bytes) -> None:
        if message.method == "initialize":
            self._capabilities = initialized_capabilities(message)
            self._client = protocol.client_name(message)
        answer = self._answer_modern if self._era is Era.MODERN else self._answer_legacy
        request = PendingRequest(progress_token=message.meta.get("progressToken"))
        task = request.task = self._in_background(answer(message, request_id, request))
        end = self._pending.begin(message.key, request.cancel)
        task.add_done_callback(lambda _: end())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer_legacy(self, message: ClientMessage, request_id: bytes, request: PendingRequest) -> None:
        try:
            context = await self._context(self._client)
            if self._watching is None:
                self._watching = Watching(context, self._tell)
            asker = LegacyAsker(self._capabilities, self._answers, request, self._send)
            reply = await self._dispatcher.answer(
                message, Era.LEGACY, context, request, self.report, self._watching, asker
            )
        except Exception as error:
            reply = _failed(error, Era.LEGACY, message.method, request_id)
        await self.send_reply(request, reply)

    async def _answer_modern(self, message: ClientMessage, request_id: bytes, request: PendingRequest) -> None:
        try:
            context = await self._context(protocol.client_name(message))
            await self._dispatcher.answer_modern(message, context, lambda pending: _Exchange(self, message, pending))
        except asyncio.CancelledError:
            if request.stopped is None or request.task is None:
                raise
            request.task.uncancel()
        except Exception as error:
            await self.send_reply(request, _failed(error, Era.MODERN, message.method, request_id))

    async def _context(self, client: str) -> ProjectRequest:
        return await self._dispatcher.context(
            self._principal,
            self._project,
            self._conversation,
            client=client,
            listing=self._listing,
            without=self._without,
            handshake=self._handshake,
        )

    async def send_reply(self, request: PendingRequest, reply: Reply) -> None:
        if request.stopped is ErrorCase.CANCELLED:
            # Over a pipe, a cancelled request gets no answer.
            return
        self._send(reply.body)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def take(self, key: str | int, request: PendingRequest) -> Callable[[], None]:
        """The client can cancel the request by this id from now on. Returns the function that ends that."""
        end = self._pending.begin(key, request.cancel)

        def leave() -> None:
            end()
            if request.task is not asyncio.current_task() and request.task is not None:
                # It is parked, and outlives this connection.
                self._tasks.discard(request.task)

        return leave

    async def _listen(self, message: ClientMessage, request_id: bytes) -> None:
        try:
            key, wanted = message.key, listen_request(message)
            context = await self._context(protocol.client_name(message))
        except Rejected as rejected:
            self._send(rejected.reply(Era.MODERN, request_id).body)
            return
        except ToolcribError as error:
            self._send(error_reply(error, Era.MODERN, request_id).body)
            return
        watching = self._listening[key] = Watching(context, self.report, kinds=wanted.kinds, tag=request_id)

        def unlisten() -> None:
            if self._listening.get(key) is watching:
                del self._listening[key]
            watching.close()
            end()
            self._send(listen_ended(request_id))

        end = self._pending.begin(key, unlisten)
        watched = await watching.watch_all(self._dispatcher.door, wanted.resource_subscriptions)
        if self._listening.get(key) is watching:
            self._send(listen_acknowledged(request_id, wanted.kinds, watched))

    def _all_watching(self) -> tuple[Watching, ...]:
        return (*self._listening.values(), *((self._watching,) if self._watching else ()))

    def _tell(self, message: bytes) -> None:
        if self._initialized:
            self.report(message)

    def report(self, message: bytes) -> None:
        """Sends a notification, or drops it if the client reads too slowly."""
        if self._writer.transport.get_write_buffer_size() < _MAX_UNREAD_BYTES:
            self._send(message)

    def _send(self, message: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(on_one_line(message) + b"\n")

    def _abort(self) -> None:
        self._pending.cancel_all()
        for task in tuple(self._tasks):
            task.cancel()
        self._writer.transport.abort()

    async def _end(self) -> None:
        """Gives pending requests a moment to finish, then closes the connection."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        self._pending.cancel_all()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dismissed:
            self._send(bad_token().reply().body)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class _Exchange:
    """A modern client's request over the pipe."""

    def __init__(self, connection: PipeConnection, message: ClientMessage, request: PendingRequest) -> None:
        self._connection = connection
        self._request = request
        self._leave = connection.take(message.key, request)

    def notify(self, message: bytes) -> None:
        self._connection.report(message)

    async def finish(self, reply: Reply) -> None:
        self._leave()
        await self._connection.send_reply(self._request, reply)


def _failed(error: Exception, era: Era, method: str, request_id: bytes) -> Reply:
    if isinstance(error, Rejected):
        return error.reply(era, request_id)
    if isinstance(error, ToolcribError):
        return error_reply(error, era, request_id)
    log.error("%s failed", method, exc_info=error)
    return Rejected(ErrorCase.FAILED).reply(era, request_id)
