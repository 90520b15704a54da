"""Calls of modern clients that wait for the client's answer to a question of the server.

In: a question in the middle of a call, and the client's retry with its answer. Out: `input_required`, whose
`requestState` is sealed for this agent and this request; then the call's result. The call itself goes on in the task of
the client's first request, so that a retry continues it and never repeats it. Questions of modern servers need no
parking: each of the client's requests is a call of its own, and the sealed state contains the server's. The HTTP
endpoint has one `Parking`, and all bridges share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from toolcrib.calls.door import PROCESS
from toolcrib.errors import INTERNAL_ERROR, InvalidHandle
from toolcrib.gateway.asking import declared_capabilities
from toolcrib.gateway.messages import ClientMessage, Reply, error_message, readdressed, result_message
from toolcrib.gateway.pending import PendingRequest
from toolcrib.gateway.protocol import CAPABILITIES_KEY, input_required
from toolcrib.identity.handles import Handles
from toolcrib.servers.model import Era
from toolcrib.servers.questions import (
    QUESTION_SECONDS,
    AskedQuestion,
    Asker,
    PassedQuestions,
    Question,
    QuestionRefused,
    QuestionUnanswered,
    action_in,
)
from toolcrib.servers.roots import roots_inside

log = logging.getLogger(__name__)

MAX_PARKED = 5_000
MAX_OF_AGENT = 1_000
MAX_KEPT = 64 * 1024 * 1024
"""Bytes of results that wait for their clients."""
_numbers = itertools.count(1)
_CLOSE_TIMEOUT = 2.0
_TOGETHER = 0.05
"""Seconds after a question, in which others reach the client together with it."""
STATE = "requestState"
OF_RETRIES = frozenset({"inputResponses", STATE})
_PASSED_LIVES = 3600.0
"""Seconds that a client has to answer a modern server, which forgets the call meanwhile."""
ASKED_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests that `input_required` may answer."""


class Exchange(Protocol):
    """One request of a client being answered."""

    def notify(self, message: bytes) -> None: ...

    async def finish(self, reply: Reply) -> None: ...


class RequestState(msgspec.Struct, array_like=True):
    """What a sealed `requestState` contains."""

    subject: bytes
    """Identifies the request: a retry must be the same."""
    parked: tuple[str, int] | None = None
    """The parked call, and how often the client was asked."""
    server_state: str | None = None
    answers: dict[str, Any] = {}
    """Our own answers for a modern server."""
    asked: dict[str, AskedQuestion] = {}
    """The questions that the client answers."""


class Asking(msgspec.Struct):
    """How the caller of one request is asked."""

    params: Mapping[str, Raw]
    """Of the request, for the server."""
    asker: Asker | None = None
    takes_input: bool = False
    """Whether the caller answers a modern server's questions with a request of its own."""
    answered: Sequence[tuple[AskedQuestion, str]] = ()
    """The questions that this request answers."""


def subject_of(message: ClientMessage) -> bytes:
    """A digest of the method and of what is called with which arguments, however they are spelled."""
    params = {key: value for key, value in message.params.items() if key not in OF_RETRIES}
    text = msgspec.json.encode([message.method, params])
    # A number out of range counts as it is spelled.
    with contextlib.suppress(msgspec.ValidationError):
        text = msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    return hashlib.sha256(text).digest()


def responses_in(message: ClientMessage) -> dict[str, dict[str, Any]]:
    try:
        return msgspec.json.decode(message.params.get("inputResponses", b"{}"), type=dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidHandle(f"params.inputResponses must be an object of objects: {error}") from None


def actions_in(
    asked: Mapping[str, AskedQuestion], answers: Mapping[str, Mapping[str, Any]]
) -> list[tuple[AskedQuestion, str]]:
    """What a person did about each question that is answered. Raises `InvalidHandle`."""
    try:
        return [(asked[key], action_in(asked[key].mode, answer)) for key, answer in answers.items()]
    except QuestionRefused as error:
        raise InvalidHandle(error.message) from None


class ParkedCall:
    """A modern client's request, while its server may ask. Between a question and the retry that answers it, the client
    has no open request."""

    def __init__(
        self, parking: Parking, message: ClientMessage, agent: str, pending: PendingRequest, exchange: Exchange
    ) -> None:
        self.capabilities: Mapping[str, Any] = declared_capabilities(message.meta.get(CAPABILITIES_KEY))
        self.agent = agent
        self.id = f"{PROCESS}-{next(_numbers)}"
        self.round = 0
        self.pending = pending
        self._parking = parking
        self._message = message
        self.first_id = self._request_id = message.id or b"null"
        self._exchange: Exchange | None = exchange
        self._answered: asyncio.Future[None] | None = None
        """Done when the current request has its answer; None during the first one."""
        self._questions: dict[str, tuple[Question, asyncio.Future[Mapping[str, Any]]]] = {}
        self._numbers = itertools.count(1)
        self._asking: asyncio.TimerHandle | None = None
        self._reply: Reply | None = None
        """The result, until the client fetches it."""
        self.forgetting: asyncio.TimerHandle | None = None
        self.kept_bytes = 0

    def notify(self, message: bytes) -> None:
        if self._exchange is not None:
            self._exchange.notify(message)

    async def ask(self, question: Question) -> Mapping[str, Any]:
        if not self._parking.hold(self):
            raise QuestionUnanswered
        loop = asyncio.get_running_loop()
        key = f"question_{next(self._numbers)}"
        answer: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._questions[key] = question, answer
        self._ask_soon()
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                return await answer
        except TimeoutError:
            # Ends the call too, which the server is told.
            self.pending.cancel()
            raise QuestionUnanswered from None
        finally:
            del self._questions[key]

    def _ask_soon(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().call_later(_TOGETHER, self._put_questions)

    def _put_questions(self) -> None:
        self._asking = None
        exchange = self._exchange
        if exchange is None or not self._questions or self._reply is not None:
            return
        self._exchange = None
        self.round += 1
        # From now on the client has no request whose end could mean anything.
        self.pending.cancelled_by_leaving = False
        state = RequestState(subject=subject_of(self._message), parked=(self.id, self.round))
        asked = {key: question for key, (question, _) in self._questions.items()}
        result = input_required(asked, self._parking.seal(self.agent, state, QUESTION_SECONDS))
        self._parking.spawn(self._send(exchange, Reply(result_message(self._request_id, result))))

    async def _send(self, exchange: Exchange, reply: Reply) -> None:
        answered = self._answered
        try:
            await exchange.finish(reply)
        finally:
            if answered is not None and not answered.done():
                answered.set_result(None)

    def resume(self, message: ClientMessage, exchange: Exchange) -> asyncio.Future[None]:
        """Continues with the client's answers. What it did not answer is asked again. The returned future is done when
        the request has its answer."""
        responses = responses_in(message)
        self.round += 1
        self._answered = asyncio.get_running_loop().create_future()
        self._request_id, self._exchange = message.id or b"null", exchange
        self.pending.reconnect(message.meta.get("progressToken"))
        for key, (_, answer) in self._questions.items():
            if key in responses and not answer.done():
                answer.set_result(responses[key])
        if self._reply is not None:
            self._parking.spawn(self.finish(self._reply))
        elif not all(answer.done() for _, answer in self._questions.values()):
            self._ask_soon()
        return self._answered

    async def finish(self, reply: Reply) -> None:
        """Sends the result. A client that has to answer first gets it with its next request."""
        exchange, self._exchange = self._exchange, None
        if exchange is None and self.pending.stopped is None:
            self._reply = self._parking.kept(self, reply)
            return
        self._parking.forget(self)
        if exchange is not None:
            await self._send(exchange, readdressed(reply, self.first_id, self._request_id))


class Parking:
    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._calls: dict[str, ParkedCall] = {}
        self._of_agent: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def interrupt(self) -> None:
        """Cancels all parked calls, and parks no others."""
        self._closed = True
        for call in tuple(self._calls.values()):
            call.pending.interrupt()

    async def close(self) -> None:
        """Cancels all parked calls, and waits until that is recorded."""
        running = [call.pending.task for call in self._calls.values() if call.pending.task is not None]
        self.interrupt()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_TIMEOUT)

    def hold(self, call: ParkedCall) -> bool:
        """False if too many calls wait, or the gateway is stopping."""
        if call.id in self._calls:
            return True
        if self._closed:
            return False
        if len(self._calls) >= MAX_PARKED or self._of_agent[call.agent] >= MAX_OF_AGENT:
            log.warning("%s has too many calls that wait for an answer; its server gets none", call.agent)
            return False
        self._calls[call.id] = call
        self._of_agent[call.agent] += 1
        return True

    def forget(self, call: ParkedCall) -> None:
        if call.forgetting is not None:
            call.forgetting.cancel()
        if self._calls.pop(call.id, None) is not None:
            self._kept_bytes -= call.kept_bytes
            self._of_agent[call.agent] -= 1
            self._of_agent += Counter()

    def kept(self, call: ParkedCall, reply: Reply) -> Reply:
        """Keeps the result for a while, or an error in its place if it needs too much memory."""
        call.forgetting = asyncio.get_running_loop().call_later(QUESTION_SECONDS, self.forget, call)
        if self._kept_bytes + len(reply.body) > MAX_KEPT:
            text = f"The call ended, but its result of {len(reply.body)} bytes could not be kept for you."
            reply = Reply(error_message(call.first_id, INTERNAL_ERROR, text), accepted=False)
        call.kept_bytes = len(reply.body)
        self._kept_bytes += call.kept_bytes
        return reply

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def seal(self, agent: str, state: RequestState, lives: float) -> str:
        return self._handles.seal(STATE, agent, state, lives=lives)

    def pass_on(self, message: ClientMessage, agent: str, passed: PassedQuestions) -> bytes:
        """The `input_required` with which a modern server's questions reach a modern client."""
        state = RequestState(
            subject=subject_of(message),
            server_state=passed.state,
            answers=dict(passed.answers),
            asked={key: question.asked for key, question in passed.questions.items()},
        )
        return input_required(passed.questions, self.seal(agent, state, _PASSED_LIVES))

    def resumed(self, message: ClientMessage, agent: str) -> ParkedCall | None:
        """The parked call that this request continues, at most once: `resume` must follow at once. Raises
        `InvalidHandle`."""
        state = self._state_of(message, agent)
        if state.parked is None:
            return None
        id, asked = state.parked
        call = self._calls.get(id)
        if not id.startswith(f"{PROCESS}-"):
            raise InvalidHandle(
                "Toolcrib was restarted while this call waited for an answer, so it was not continued. It may have "
                "run in part.",
                remedy="Check what it did before you call again.",
            )
        if call is None or call.round != asked:
            raise InvalidHandle(
                "This call no longer waits for an answer: it was continued already, or it ended. It may have run.",
                remedy="Check what it did before you call again.",
            )
        responses_in(message)
        return call

    async def retry(self, message: ClientMessage, era: Era, agent: str, asking: Asking, root: Path) -> Asking:
        """The client's answers and ours, for the modern server. Answers to nothing that was asked are left out. Raises
        `InvalidHandle`."""
        params = {key: value for key, value in message.params.items() if key not in OF_RETRIES}
        if era is Era.LEGACY or STATE not in message.params:
            return msgspec.structs.replace(asking, params=params)
        state = self._state_of(message, agent)
        given = responses_in(message)
        answers: dict[str, Any] = {key: given[key] for key in state.asked if key in given}
        answered = actions_in(state.asked, answers)
        for key, answer in answers.items():
            if state.asked[key].mode == "roots":
                answers[key] = await asyncio.to_thread(roots_inside, answer, root)
        params["inputResponses"] = Raw(msgspec.json.encode({**answers, **state.answers}))
        if state.server_state is not None:
            params[STATE] = Raw(msgspec.json.encode(state.server_state))
        return msgspec.structs.replace(asking, params=params, answered=answered)

    def _state_of(self, message: ClientMessage, agent: str) -> RequestState:
        """What the client sends back of an earlier answer. Raises `InvalidHandle`."""
        try:
            handle = msgspec.json.decode(message.params[STATE], type=str)
        except msgspec.MsgspecError:
            raise InvalidHandle("params.requestState must be the text that Toolcrib sent.") from None
        state = self._handles.open(STATE, agent, handle, RequestState)
        if state.subject != subject_of(message):
            raise InvalidHandle("This requestState is from another request.")
        return state
