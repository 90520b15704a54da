"""A client of either era over a pipe of lines: what `toolcrib stdio` passes on from a client's stdin.

In: JSON messages, one a line, from a stream. Out: answers and notices, one a line, on the same stream. The client's
first request decides its era, as over any stdio connection; `desk` makes the answers, as for HTTP.
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
from toolcrib.gateway.auth import Principal, bad_token
from toolcrib.gateway.dispatcher import LIST_CHANGED, Dispatcher, PendingRequests
from toolcrib.gateway.messages import ClientMessage, ReadLimiter, Rejected, Reply, error_reply, read_limited
from toolcrib.gateway.protocol import listen_acknowledged, listen_ended, listen_notice, wants_tool_changes
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
        guest: Principal,
        conversation: str,
        turns: ReadLimiter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._crib = crib
        self._desk = Dispatcher(crib)
        self._project = project
        self._guest = guest
        self._conversation = conversation
        self._turns = turns
        self._under_way = PendingRequests()
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
            self._project.subscribe(self._tell_of_change),
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
        if isinstance(event, PermissionChanged) and event.agent == self._guest.name:
            self._tell_of_change()
        elif isinstance(event, AgentEnded) and event.agent == self._guest.name and self._serving is not None:
            self._dismissed = True
            self._serving.cancel("the agent has ended")

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as rest:
            return rest.partial
        except asyncio.LimitOverrunError:
            self._say(Rejected(ErrorCase.MALFORMED, why="the message is too large").reply().body)
            raise ConnectionError("a message over the limit") from None

    async def _take(self, line: bytes) -> None:
        try:
            message = await read_limited(line, self._guest.name, self._turns)
            self._settle_era(message)
            if self._era is Era.MODERN and message.id is not None:
                protocol.check_modern(message, None)
            if message.id is None:
                self._hear(message)
            elif message.method == "subscriptions/listen" and self._era is Era.MODERN:
                self._listen(message, message.id)
            else:
                self._begin(message, message.id)
        except Rejected as rejected:
            self._say(rejected.reply().body)

    def _settle_era(self, message: ClientMessage) -> None:
        if message.id is None:
            return
        said = Era.MODERN if protocol.VERSION_KEY in message.meta and message.method != "initialize" else Era.LEGACY
        if self._era is None:
            self._era = said
        elif self._era is Era.MODERN and message.method == "initialize":
            raise protocol.unsupported_version(protocol.LEGACY_VERSIONS[-1], message.id)
        elif self._era is Era.LEGACY and said is Era.MODERN:
            raise Rejected(ErrorCase.ENVELOPE, why="This connection began with initialize", id=message.id)

    def _hear(self, message: ClientMessage) -> None:
        if message.method == "notifications/cancelled":
            self._under_way.cancel(message)
        elif message.method == "notifications/initialized":
            self._initialized = True

    def _begin(self, message: ClientMessage, request_id: bytes) -> None:
        key = message.key
        task = asyncio.create_task(self._answer(message, request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if key is not None:
            end = self._under_way.begin(key, lambda: _cancel(task))
            task.add_done_callback(lambda _: end())

    async def _answer(self, message: ClientMessage, request_id: bytes) -> None:
        era = self._era or Era.LEGACY
        try:
            reply = await self._made(message, era)
        except Rejected as rejected:
            reply = rejected.reply(era, request_id)
        except ToolcribError as error:
            reply = error_reply(error, era, request_id)
        except Exception:
            log.exception("%s failed", message.method)
            reply = Rejected(ErrorCase.FAILED).reply(era, request_id)
        self._say(reply.body)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _made(self, message: ClientMessage, era: Era) -> Reply:
        """The answer. A session that ends meanwhile takes the request along, as its client could."""
        client = await self._desk.welcome(self._guest, self._project, self._conversation)
        work = _Work()
        client.session.begin(work.interrupt)
        try:
            return await self._desk.answer(message, era, client, self._report)
        except asyncio.CancelledError:
            if not work.interrupted:
                raise
            work.go_on()
            raise Rejected(ErrorCase.ENDED) from None
        finally:
            client.session.over(work.interrupt)

    def _listen(self, message: ClientMessage, request_id: bytes) -> None:
        key = message.key
        honoured = wants_tool_changes(message)
        self._say(listen_acknowledged(request_id, tools=honoured))
        if key is None:
            return
        if honoured:
            self._listening[key] = listen_notice(request_id)

        def unlisten() -> None:
            self._listening.pop(key, None)
            end()
            self._say(listen_ended(request_id))

        end = self._under_way.begin(key, unlisten)

    def _tell_of_change(self) -> None:
        if self._initialized:
            self._say(LIST_CHANGED)
        for notice in self._listening.values():
            self._say(notice)

    def _report(self, message: bytes) -> None:
        """Progress. What a client does not read in time is not kept for it."""
        if self._writer.transport.get_write_buffer_size() < _UNREAD:
            self._say(message)

    def _say(self, message: bytes) -> None:
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
            self._say(bad_token().reply().body)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class _Work:
    """The task that answers a request, for whoever may cut it short."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.interrupted = False

    def interrupt(self) -> None:
        if self._task is not None and not self.interrupted:
            self.interrupted = True
            self._task.cancel("the session has ended")

    def go_on(self) -> None:
        if self._task is not None:
            self._task.uncancel()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel("taken back by the client")
