"""A client over a pipe of lines: what `toolcrib stdio` passes on from a client's stdin.

In: JSON messages, one a line, from a stream. Out: answers and notices, one a line, on the same stream. The client's
first request decides which generation of MCP it speaks, as over any stdio connection; `dispatcher` makes the answers,
as for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import ErrorCase, ToolcribError
from toolcrib.events import AgentEnded, Event, PermissionChanged
from toolcrib.gateway import protocol
from toolcrib.gateway.auth import bad_token
from toolcrib.gateway.dispatcher import LIST_CHANGED, Dispatcher, PendingRequest, PendingRequests
from toolcrib.gateway.messages import ClientMessage, ReadLimiter, Rejected, error_reply, read_limited
from toolcrib.gateway.protocol import listen_acknowledged, listen_ended, listen_notice, wants_tool_changes
from toolcrib.identity.principal import Principal
from toolcrib.servers.model import Era
from toolcrib.servers.wire import on_one_line

log = logging.getLogger(__name__)

_UNREAD = 1024 * 1024
_LAST_ANSWERS = 5.0
"""Seconds that calls may still take after their client closed its end."""


class PipeConnection:
    """One connection, from its first line to its last, or to the end of its agent."""

    def __init__(
        self,
        crib: Crib,
        project: Project,
        principal: Principal,
        conversation: str,
        reads: ReadLimiter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._crib = crib
        self._dispatcher = Dispatcher(crib)
        self._project = project
        self._principal = principal
        self._conversation = conversation
        self._reads = reads
        self._pending = PendingRequests()
        self._reader = reader
        self._writer = writer
        self._era: Era | None = None
        self._initialized = False
        """A legacy client wants to hear nothing unasked before it said so."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: dict[str | int, bytes] = {}
        """Modern subscriptions by the id of their request: the notice that each gets."""
        self._serving: asyncio.Task[None] | None = None
        self._dismissed = False
        """Whether the agent has ended; then nothing more is read."""

    async def serve(self) -> None:
        self._serving = asyncio.current_task()
        quiet = [
            self._project.subscribe(self._announce_change),
            self._crib.bus.subscribe(self._agent_changed, PermissionChanged, AgentEnded),
        ]
        try:
            while line := await self._line():
                if line.strip():
                    await self._take(line)
                await self._writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            log.info("the bridge of %s went away", self._conversation)
        except asyncio.CancelledError:
            if not self._dismissed or self._serving is None:
                # The daemon stops: it waits neither for answers nor for a client that does not read.
                self._abort()
                raise
            self._serving.uncancel()
        finally:
            for unsubscribe in quiet:
                unsubscribe()
            await self._end()

    def _agent_changed(self, event: Event) -> None:
        if isinstance(event, PermissionChanged) and event.agent == self._principal.name:
            self._announce_change()
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
            raise ConnectionError("a message over the limit") from None

    async def _take(self, line: bytes) -> None:
        try:
            message = await read_limited(line, self._principal.name, self._reads)
            self._decide_era(message)
            if self._era is Era.MODERN and message.id is not None:
                protocol.check_modern(message, None)
            if message.id is None:
                self._notified(message)
            elif message.method == "subscriptions/listen" and self._era is Era.MODERN:
                self._listen(message, message.id)
            else:
                self._begin(message, message.id)
        except Rejected as rejected:
            self._send(rejected.reply().body)

    def _decide_era(self, message: ClientMessage) -> None:
        if message.id is None:
            return
        said = Era.MODERN if protocol.VERSION_KEY in message.meta and message.method != "initialize" else Era.LEGACY
        if self._era is None:
            self._era = said
        elif self._era is Era.MODERN and message.method == "initialize":
            raise protocol.unsupported_version(protocol.LEGACY_VERSIONS[-1], message.id)
        elif self._era is Era.LEGACY and said is Era.MODERN:
            raise Rejected(ErrorCase.ENVELOPE, why="This connection began with initialize", id=message.id)

    def _notified(self, message: ClientMessage) -> None:
        if message.method == "notifications/cancelled":
            self._pending.cancel(message)
        elif message.method == "notifications/initialized":
            self._initialized = True

    def _begin(self, message: ClientMessage, request_id: bytes) -> None:
        request = PendingRequest()
        task = request.task = asyncio.create_task(self._answer(message, request_id, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        end = self._pending.begin(message.key, request.cancel)
        task.add_done_callback(lambda _: end())

    async def _answer(self, message: ClientMessage, request_id: bytes, request: PendingRequest) -> None:
        era = self._era or Era.LEGACY
        try:
            context = await self._dispatcher.context(self._principal, self._project, self._conversation)
            reply = await self._dispatcher.answer(message, era, context, request, self._report)
        except Rejected as rejected:
            reply = rejected.reply(era, request_id)
        except ToolcribError as error:
            reply = error_reply(error, era, request_id)
        except Exception:
            log.exception("%s failed", message.method)
            reply = Rejected(ErrorCase.FAILED).reply(era, request_id)
        if request.stopped is ErrorCase.CANCELLED:
            # Over a pipe nobody waits for the answer to a request that was cancelled.
            return
        request.over = True
        self._send(reply.body)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _listen(self, message: ClientMessage, request_id: bytes) -> None:
        key = message.key
        honoured = wants_tool_changes(message)
        self._send(listen_acknowledged(request_id, tools=honoured))
        if honoured:
            self._listening[key] = listen_notice(request_id)

        def unlisten() -> None:
            self._listening.pop(key, None)
            end()
            self._send(listen_ended(request_id))

        end = self._pending.begin(key, unlisten)

    def _announce_change(self) -> None:
        if self._initialized:
            self._send(LIST_CHANGED)
        for notice in self._listening.values():
            self._send(notice)

    def _report(self, message: bytes) -> None:
        """Progress. What a client does not read in time is not kept for it."""
        if self._writer.transport.get_write_buffer_size() < _UNREAD:
            self._send(message)

    def _send(self, message: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(on_one_line(message) + b"\n")

    def _abort(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        self._writer.transport.abort()

    async def _end(self) -> None:
        """The client closed its end: what it asked for may still be answered for a moment, then all is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_ANSWERS)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dismissed:
            self._send(bad_token().reply().body)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
