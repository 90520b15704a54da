"""Links over a two-way stream of messages: stdio, WebSocket, legacy SSE.

In: whole messages from the far side (`receive`), a function that sends one. Out: answers to our requests by their id.
What is not ours goes to the SDK's half of the connection (`sdk.Conversation`): answers to its own requests, requests
of the server, news about subscriptions. All else that a server says unasked is dropped here.
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
from toolcrib.servers.link import HANDED_ON, PROGRESS, TOOLS_CHANGED, Peer, ServerLink
from toolcrib.servers.model import ServerAnswer
from toolcrib.servers.wire import TooLarge

log = logging.getLogger(__name__)

_FOR_THE_SDK = ("notifications/subscriptions/", "notifications/cancelled")
_SHOWN_GARBAGE = 5
"""How many lines that are no messages are logged one by one; a chatty server would fill the log."""


class MessageListener(Protocol):
    """The SDK's half of a connection."""

    def feed(self, message: bytes) -> None: ...

    def end(self) -> None: ...


class PipeLink(ServerLink):
    def __init__(
        self, name: str, *, send: Callable[[bytes], Awaitable[None]], on_tools_changed: Callable[[], None]
    ) -> None:
        super().__init__(name, on_tools_changed=on_tools_changed)
        self.send = send
        self._pending: dict[str, asyncio.Future[ServerAnswer]] = {}
        self._listener: MessageListener | None = None
        self._garbage = 0

    def listen(self, listener: MessageListener) -> None:
        self._listener = listener

    def negotiated(self, peer: Peer) -> None:
        self._peer = peer

    def receive(self, message: bytes) -> bool:
        """One message as it came; whether it answers a request of ours.

        Never raises: whatever the far side sends must not harm the reader.
        """
        self.last_seen = time.time()
        try:
            if message.startswith(b"["):
                return sum(map(self._route, wire.split_batch(message))) > 0
            return self._route(message)
        except wire.NotAMessage as error:
            return self._odd(message, str(error))

    def refuse(self, edges: bytes, *, limit: int) -> None:
        """A message was too large and is gone but for its ends. If they show whose it was, that call is told."""
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
                future.set_exception(self.unavailable(f"{reason} The call may have run."))
                future.exception()  # nobody may be waiting for it any more, and that is no fault
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
                why = "it has neither a result nor an error, or one that is no object"
                future.set_exception(_violation(self.name, why))
            return True
        if envelope.id is UNSET or (envelope.result is UNSET and envelope.error is UNSET):
            raise wire.NotAMessage("neither a request nor an answer")
        self._hand_on(message)
        return False

    def _hand_on(self, message: bytes) -> None:
        if self._listener is not None:
            self.budget.charge(HANDED_ON)
            self._listener.feed(message)

    def _hear(self, envelope: wire.Envelope, method: str, message: bytes) -> None:
        if envelope.id is not UNSET or method.startswith(_FOR_THE_SDK):
            self._hand_on(message)
        elif method in {PROGRESS, TOOLS_CHANGED}:
            self.notice(method, wire.params_object(envelope.params))

    def _odd(self, message: bytes, why: str) -> bool:
        """Not a message: skipped, and said so. If it was meant as an answer to a call, that call is told."""
        self._garbage += 1
        if self._garbage <= _SHOWN_GARBAGE:
            log.warning("%s: skipped %d bytes that are no message: %s", self.name, len(message), printable(why))
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

    def _abandon(self, request_id: str, reason: str) -> None:
        if not self.lost.done():
            self._in_background(self._tell_cancelled(request_id, reason))

    async def _tell_cancelled(self, request_id: str, reason: str) -> None:
        try:
            await self.send(wire.cancelled(request_id, reason))
        except ServerUnavailable as error:
            log.debug("%s: the cancellation did not get through: %s", self.name, error)


def _violation(name: str, why: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"Server '{name}' gave an answer that is not MCP: {why}. The call may have run.",
        remedy="Report it to the server's makers.",
    )
