"""What servers ask, put to the client whose call it is about.

In: the capabilities that a client declares, and the question of a server. Out: for a legacy client, our own request on
the stream of its call, matched with the answer that it sends in a message of its own. `parking` does the same for
modern clients, which are asked in the result of their request. Used by `http` and `pipe`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.errors import INTERNAL_ERROR
from toolcrib.gateway.messages import ClientMessage, notification
from toolcrib.gateway.pending import PendingRequest
from toolcrib.servers.questions import QUESTION_SECONDS, Question, QuestionRefused, QuestionUnanswered
from toolcrib.servers.wire import request

_numbers = itertools.count(1)
_DECLARED = {"elicitation": ("form", "url"), "sampling": ("tools", "context"), "roots": ()}


def declared_capabilities(claimed: Any) -> dict[str, dict[str, Any]]:
    """What the client says that it can be asked, without anything else that it claims."""
    if not isinstance(claimed, Mapping):
        return {}
    return {
        name: {key: {} for key in keys if isinstance(claimed[name].get(key), Mapping)}
        for name, keys in _DECLARED.items()
        if isinstance(claimed.get(name), Mapping)
    }


def initialized_capabilities(message: ClientMessage) -> dict[str, dict[str, Any]]:
    """Those of a legacy client, from its `initialize`."""
    try:
        return declared_capabilities(msgspec.json.decode(message.params.get("capabilities", b"{}")))
    except (msgspec.MsgspecError, RecursionError):
        return {}


class _ClientError(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = ""


class ClientAnswers:
    """The questions that one legacy client has not answered yet, by the ids of our requests."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[ClientMessage | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self) -> tuple[str, asyncio.Future[ClientMessage | None]]:
        # Unique in this process, so that an answer on the wrong connection is never taken for another.
        id = f"crib-{next(_numbers)}-{secrets.token_hex(4)}"
        self._open[id] = asyncio.get_running_loop().create_future()
        return id, self._open[id]

    def end(self, id: str) -> None:
        self._open.pop(id, None)

    def receive(self, message: ClientMessage) -> None:
        """Takes a client's response. One that answers no open question is dropped."""
        waiting = self._open.get(str(message.key))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


class LegacyAsker:
    """Asks a legacy client, for one of its requests."""

    def __init__(
        self,
        capabilities: Mapping[str, Any],
        answers: ClientAnswers,
        pending: PendingRequest,
        send: Callable[[bytes], None],
    ) -> None:
        """`send` writes to the stream of the request."""
        self.capabilities = capabilities
        self._answers = answers
        self._pending = pending
        self._send = send

    async def ask(self, question: Question) -> Mapping[str, Any]:
        id, answer = self._answers.begin()
        leave = self._pending.on_disconnect(lambda: None if answer.done() else answer.set_result(None))
        try:
            self._send(request(id, question.method, _params(question)))
            async with asyncio.timeout(QUESTION_SECONDS):
                message = await answer
        except TimeoutError:
            message = None
        finally:
            leave()
            self._answers.end(id)
            if not (answer.done() and not answer.cancelled()):
                self._send(notification("notifications/cancelled", {"requestId": id, "reason": "no longer needed"}))
        if message is None:
            raise QuestionUnanswered
        return _result(message)


def _params(question: Question) -> Mapping[str, Any]:
    """For a legacy client, whose protocol requires an id for addresses to open."""
    params = question.client_params
    if question.mode == "url":
        params.setdefault("elicitationId", secrets.token_hex(8))
    return params


def _result(message: ClientMessage) -> Mapping[str, Any]:
    try:
        if message.error:
            error = msgspec.json.decode(message.error, type=_ClientError)
            raise QuestionRefused(f"The client did not answer: {error.message}", json_code=error.code)
        result: dict[str, Any] = msgspec.json.decode(message.result, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise QuestionRefused("The client's answer is not valid.", json_code=INTERNAL_ERROR) from None
    return result
