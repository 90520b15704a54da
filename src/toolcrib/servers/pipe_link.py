"""A connection on which all messages share one stream: stdio, SSE and WebSocket.

In: received messages, and a function that sends one. Out: a `PipeLink`, which finds the request of each answer and
passes the SDK's share on. Below: `link`, `wire`. Used by `stdio`, `sse`, `websocket` and `transports`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import UNSET

from toolcrib.config.masking import printable
from toolcrib.errors import ProtocolViolation, ServerUnavailable
from toolcrib.servers import wire
from toolcrib.servers.input_budget import FORWARD_COST
from toolcrib.servers.link import CANCELLED, FORWARDED, LISTS_CHANGED, PROGRESS, Peer, ServerLink
from toolcrib.servers.model import ServerAnswer
from toolcrib.servers.wire import TooLarge

log = logging.getLogger(__name__)

_FOR_THE_SDK = ("notifications/subscriptions/", "notifications/cancelled")
_SHOWN_GARBAGE = 5
"""Invalid messages that are logged individually; more would let a chatty server fill the log."""


class MessageListener(Protocol):
    """The SDK's half of a connection."""

    def feed(self, message: bytes) -> None: ...

    def end(self) -> None: ...


class PipeLink(ServerLink):
    def __init__(
        self, name: str, *, send: Callable[[bytes], Awaitable[None]], on_lists_changed: Callable[[], None]
    ) -> None:
        super().__init__(name, on_lists_changed=on_lists_changed)
        self.send = send
        self._pending: dict[str, asyncio.Future[ServerAnswer]] = {}
        self._listener: MessageListener | None = None
        self._garbage = 0

    def listen(self, listener: MessageListener) -> None:
        self._listener = listener

    def negotiated(self, peer: Peer) -> None:
        self._peer = peer

    def receive(self, message: bytes) -> bool:
        """Takes one raw message. Returns whether it answers one of our requests.

        Never raises, whatever the server sends.
        """
        self.last_seen = time.time()
        try:
            if message.startswith(b"["):
                return sum(map(self._route, wire.split_batch(message))) > 0
            return self._route(message)
        except wire.NotAMessage as error:
            return self._odd(message, str(error))

    def refuse(self, edges: bytes, *, limit: int) -> None:
        """Handles an oversized message of which only the ends are left. If they show its id, that call fails."""
        why = str(TooLarge.message(limit))
        log.warning("%s: %s", self.name, why)
        request_id = wire.own_id_in(edges)
        future = self._pending.get(request_id) if request_id else None
        if self._peer is None:
            self.reject(why)
        elif future is None:
            self.last_error = why
        elif not future.done():
            future.set_exception(ProtocolViolation(f"Server '{self.name}': {why} The call may have run."))

    def lose(self, reason: str) -> None:
        super().lose(reason)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self.interrupted(reason))
                future.exception()  # marks it as retrieved: its caller may be gone
        if self._listener is not None:
            self._listener.end()

    def _route(self, message: bytes) -> bool:
        envelope = wire.decode(message)
        if envelope.method is not UNSET:
            self._hear(envelope, envelope.method, message)
            return False
        if isinstance(envelope.id, str) and envelope.id.startswith(wire.PREFIX):
            future = self._pending.get(envelope.id)
            if future is None or future.done():
                return False
            answer = envelope.answer()
            if answer is not None:
                future.set_result(answer)
            else:
                why = "it has neither a result nor an error, or one that is not an object"
                future.set_exception(_violation(self.name, why))
            return True
        if envelope.id is UNSET or (envelope.result is UNSET and envelope.error is UNSET):
            raise wire.NotAMessage("neither a request nor an answer")
        self._forward(message)
        return False

    def _forward(self, message: bytes) -> None:
        if self._listener is not None:
            self.budget.charge(FORWARD_COST)
            self._listener.feed(message)

    def _hear(self, envelope: wire.Envelope, method: str, message: bytes) -> None:
        if isinstance(envelope.id, str | int | float):
            if not self.asked(envelope.id, method, lambda: wire.question_params(envelope.params)):
                self._forward(message)
        elif method == CANCELLED and self.notice(method, wire.params_object(envelope.params)):
            return
        elif envelope.id is not UNSET or method.startswith(_FOR_THE_SDK):
            self._forward(message)
        elif method == PROGRESS or method in LISTS_CHANGED or method in FORWARDED:
            self.notice(method, wire.params_object(envelope.params))

    def _odd(self, message: bytes, why: str) -> bool:
        """Skips and logs an invalid message. If it was meant as an answer to a call, that call fails."""
        self._garbage += 1
        if self._garbage <= _SHOWN_GARBAGE:
            log.warning("%s: skipped %d bytes that are not a message: %s", self.name, len(message), printable(why))
        broken_id = wire.own_id_in(message)
        future = self._pending.get(broken_id) if broken_id else None
        if future is None or future.done():
            return False
        future.set_exception(_violation(self.name, why))
        return True

    async def _exchange(
        self, request_id: str, method: str, params: Mapping[str, Any], body: bytes, headers: Mapping[str, str]
    ) -> ServerAnswer:
        if self.lost.done():
            raise self.unavailable(f"{self.lost.result()} The call did not run.")
        future: asyncio.Future[ServerAnswer] = self._loop.create_future()
        self._pending[request_id] = future
        try:
            await self.send(body)
            return await future
        finally:
            del self._pending[request_id]

    async def _reply(self, message: bytes) -> None:
        try:
            await self.send(message)
        except ServerUnavailable as error:
            log.debug("%s: could not send an answer: %s", self.name, error)

    def _abandon(self, request_id: str, reason: str) -> None:
        if not self.lost.done():
            self._in_background(self._send_cancelled(request_id, reason))

    async def _send_cancelled(self, request_id: str, reason: str) -> None:
        try:
            await self.send(wire.cancelled(request_id, reason))
        except ServerUnavailable as error:
            log.debug("%s: could not send the cancellation: %s", self.name, error)


def _violation(name: str, why: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"Server '{name}' sent an invalid MCP answer: {why}. The call may have run.",
        remedy="Report it to the server's authors.",
    )
