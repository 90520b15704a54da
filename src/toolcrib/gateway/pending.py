"""Requests of clients that are being answered, and how they are cancelled.

In: a client's cancellation or disconnection, the end of its session. Out: the cancellation of the task that answers.
Used by all modules of the gateway that receive requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.errors import ErrorCase
from toolcrib.gateway.messages import ClientMessage


class PendingRequest:
    """A request without an answer yet. Its client may cancel it or disconnect, and its session may end."""

    __slots__ = ("_leaving", "cancelled_by_leaving", "disconnected", "over", "progress_token", "stopped", "task")

    def __init__(
        self,
        task: asyncio.Task[Any] | None = None,
        *,
        cancelled_by_leaving: bool = False,
        progress_token: str | int | None = None,
    ) -> None:
        self.task = task
        """The task that answers it."""
        self.cancelled_by_leaving = cancelled_by_leaving
        """Whether disconnecting cancels it."""
        self.stopped: ErrorCase | None = None
        """Why it was stopped early."""
        self.disconnected = False
        self.over = False
        """Whether its answer is known, so that nothing can stop it."""
        self.progress_token = progress_token
        """With which its client wants progress reported."""
        self._leaving: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Cancelled by its client."""
        self._stop(ErrorCase.CANCELLED)

    def interrupt(self) -> None:
        """Its session has ended."""
        self._stop(ErrorCase.ENDED)

    def disconnect(self) -> None:
        if not self.over:
            self.disconnected = True
            for leave in tuple(self._leaving):
                leave()
            if self.cancelled_by_leaving:
                self._stop(ErrorCase.CANCELLED)

    def reconnect(self, progress_token: str | int | None) -> None:
        """Its client waits for it again, with another request."""
        self.disconnected, self.cancelled_by_leaving = False, True
        self.progress_token = progress_token

    def on_disconnect(self, leave: Callable[[], object]) -> Callable[[], None]:
        """Calls `leave` when the client disconnects, or now if it has. Returns the function that prevents that."""
        self._leaving.append(leave)
        if self.disconnected:
            leave()
        return lambda: self._leaving.remove(leave)

    def _stop(self, case: ErrorCase) -> None:
        if not self.over and self.stopped is None:
            self.stopped = case
            if self.task is not None:
                self.task.cancel(case)


class PendingRequests:
    """A connection's unanswered requests, by the id that its client can cancel them with."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str | int, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def begin(self, key: str | int, cancel: Callable[[], None]) -> Callable[[], None]:
        """Adds a request and returns the function that removes it."""
        self._by_id[key] = cancel

        def end() -> None:
            # If the client has reused the id, it means the newer request.
            if self._by_id.get(key) is cancel:
                del self._by_id[key]

        return end

    def cancel(self, message: ClientMessage) -> None:
        """Cancels the request named by `notifications/cancelled`, if it is still pending."""
        try:
            key = msgspec.json.decode(message.params["requestId"], type=str | int)
        except (KeyError, msgspec.ValidationError):
            return
        cancel = self._by_id.get(key)
        if cancel is not None:
            cancel()

    def cancel_all(self) -> None:
        for cancel in tuple(self._by_id.values()):
            cancel()
