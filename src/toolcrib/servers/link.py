"""One live connection over any transport: the interface between a transport and `server`.

In: requests as method and params. Out: answers as raw bytes; progress; notice that the tools changed or the connection
is lost. A transport is an async context manager that yields a `ServerLink`: `stdio`, `websocket` and `sse` yield a
`PipeLink`, `http` an `HttpLink`. `server` uses it. `input_budget` limits what a server sends unasked.

A `PipeLink` receives whole messages (`receive`) and matches answers to our requests by id. Everything for the SDK's
half of the connection goes to `sdk.SdkSession`: answers to its requests, requests from the server, subscription events.
Other unrequested messages are dropped.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib import __version__
from toolcrib.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CallTimeout,
    ServerFailure,
    ServerUnavailable,
)
from toolcrib.servers import wire
from toolcrib.servers.input_budget import FORWARD_COST, InputBudget
from toolcrib.servers.link_questions import ELICITATION_COMPLETE, OpenCall, ServerQuestions
from toolcrib.servers.model import Era, LogWish, OnProgress, ServerAnswer, ToolCall
from toolcrib.servers.questions import CANCEL, ELICITATION, MAX_QUESTIONS, METHODS, QuestionRefused

if TYPE_CHECKING:
    from toolcrib.servers.account import Account
    from toolcrib.servers.reaper import Reaper
    from toolcrib.servers.resource_watch import ResourceWatch
    from toolcrib.servers.stdio import StderrLog

log = logging.getLogger(__name__)

CLIENT_INFO = {"name": "toolcrib", "version": __version__}

LISTS_CHANGED = frozenset(f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts"))
RESOURCE_UPDATED = "notifications/resources/updated"
LOG_MESSAGE = "notifications/message"
FORWARDED = frozenset({RESOURCE_UPDATED, LOG_MESSAGE, ELICITATION_COMPLETE})
"""Notifications for clients that asked for them."""
_STRAY = 0.25
"""Seconds after a call was abandoned in which a question may still be about it."""
PROGRESS = "notifications/progress"
CANCELLED = "notifications/cancelled"
TASK_STATUS = "notifications/tasks/status"


@dataclass(frozen=True, kw_only=True)
class LinkContext:
    """What a link needs in addition to its configuration."""

    root: Path | None
    reaper: Reaper
    stderr: StderrLog
    on_lists_changed: Callable[[], None]
    resources: ResourceWatch
    """The resources whose changes are wanted."""
    questions: ServerQuestions
    known_era: Era | None = None
    """The era negotiated last time; None to probe."""
    account: Account | None = None
    """Whose token is sent; None if the server can't have one."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The result of negotiating with a server."""

    era: Era
    version: str
    server_info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""
    announces: frozenset[str] = frozenset()
    """The lists whose changes it declared to announce: `tools`, `resources`, `prompts`."""
    capabilities: frozenset[str] = frozenset()
    """As in `Offers`."""


class EndedEarly(ServerUnavailable):
    """The server closed the connection during negotiation."""


class SessionExpired(ServerUnavailable):
    """The server no longer knows our session; the request did not run."""


class TaskTimeout:
    """A time limit for the current task, like `asyncio.timeout` at a third of the cost. It can be paused."""

    __slots__ = ("_cancelling", "_expired", "_left", "_loop", "_over", "_pauses", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a request must run in a task")
        self._loop = loop
        self._pauses = 0
        self._left = 0.0
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = loop.call_later(limit, self.expire)
        self._expired = self._over = False

    @property
    def ends(self) -> float:
        """When the limit is reached, by the event loop's clock; if it is paused, as if it went on now."""
        return self._loop.time() + self._left if self._pauses else self._timer.when()

    def expire(self) -> None:
        if not (self._over or self._expired):
            self._expired = True
            self._task.cancel()

    def pause(self) -> None:
        """Each `pause` needs one `resume`."""
        if not self._pauses:
            self._left = max(0.0, self.ends - self._loop.time())
            self._timer.cancel()
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not (self._pauses or self._over):
            self._timer = self._loop.call_later(self._left, self.expire)

    def caught(self) -> bool:
        """Whether the cancellation came from this clock alone."""
        return self._expired and self._task.uncancel() <= self._cancelling

    def stop(self) -> None:
        self._over = True
        self._timer.cancel()


class ServerLink(abc.ABC):
    """Sends our requests over one connection. A transport opens and closes it, in the supervisor's task."""

    pid: int | None = None
    transport: str = ""
    """The transport that was found if it is not the configured one."""

    def __init__(self, name: str, *, on_lists_changed: Callable[[], None]) -> None:
        self.name = name
        # Stored because get_running_loop() costs a system call in some Python versions.
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Set to the reason once the connection is unusable."""
        self.last_seen = time.time()
        self.last_error = ""
        self.session_expired = False
        """The server only lost our session: a new one can be opened at once."""
        self.silent = False
        """It was lost because the server did not answer; over the network, it may exist and still not answer."""
        self.misbehaved = False
        """We closed the connection because of the server's input: each retry waits longer."""
        self.excused_until = 0.0
        """Until then, by the event loop's clock, the server may be busy with a call that its caller has abandoned."""
        self.budget = InputBudget(self.reject)
        self._peer: Peer | None = None
        self._on_lists_changed = on_lists_changed
        self.on_notice: Callable[[str, Mapping[str, Any]], bool] = lambda method, params: False
        """Gets log messages and changes of resources. Returns whether anyone wants it."""
        self._numbers = itertools.count(1)
        self._progress: dict[str, OnProgress] = {}
        self._logs: dict[str, LogWish] = {}
        """By request in flight."""
        self.questions: ServerQuestions | None = None
        """Set before negotiation."""
        self._asked: dict[str | int | float, asyncio.Task[None]] = {}
        """The server's questions being answered, by their ids."""
        self._clocks: set[TaskTimeout] = set()
        self._ended = ""
        self._background: set[asyncio.Task[None]] = set()

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            raise RuntimeError("the link was used before negotiation")
        return self._peer

    @property
    def is_negotiated(self) -> bool:
        return self._peer is not None

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        meta: Mapping[str, Any],
        limit: float,
        setting: str = "the server's connect_timeout",
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        logs: LogWish | None = None,
        call: ToolCall | None = None,
        task: str = "",
        progress_token: str = "",
    ) -> ServerAnswer:
        """Raises ServerUnavailable, CallTimeout, ProtocolViolation. Cancels an abandoned request on the server.

        `setting` is where the limit comes from. `call` is the caller's, who may be asked; `task` is the server's id of
        the task that the request waits for. With a `progress_token`, progress is reported until `forget_progress`.
        """
        peer = self._peer or self.peer
        request_id = f"{wire.PREFIX}{next(self._numbers)}"
        token = None
        if on_progress is not None:
            token = progress_token or request_id
            self._progress[token] = on_progress
        if logs is not None:
            self._logs[request_id] = logs
        own_meta = wire.meta_for(peer.era, peer.version, CLIENT_INFO, meta, token)
        body = wire.request(request_id, method, {**params, "_meta": own_meta} if own_meta else params)
        clock = TaskTimeout(self._loop, limit)
        self._clocks.add(clock)
        asking, abandoned = None, False
        if call is not None and peer.era is Era.LEGACY and self.questions is not None:
            asking = self.questions.calls[request_id] = OpenCall(call.agent, call.asker, clock, task)
        try:
            return await self._exchange(request_id, method, params, body, headers or {})
        except asyncio.CancelledError:
            abandoned = True
            if not clock.caught():
                self._abandon(request_id, "cancelled by the caller")
                self.excused_until = max(self.excused_until, clock.ends)
                raise
            if self._ended:
                raise self.interrupted(self._ended) from None
            self._abandon(request_id, "time limit reached")
            raise CallTimeout(
                f"Server '{self.name}' did not answer within {limit:g} s. The call was cancelled; it may have run.",
                remedy=f"Raise {setting} if it needs longer.",
            ) from None
        finally:
            clock.stop()
            self._clocks.discard(clock)
            if token is not None and not progress_token:
                self._progress.pop(token, None)
            if logs is not None:
                self._logs.pop(request_id, None)
            if asking is not None and self.questions is not None:
                if abandoned:
                    self._loop.call_later(_STRAY, self.questions.calls.pop, request_id)
                else:
                    del self.questions.calls[request_id]
                asking.end()

    def forget_progress(self, token: str) -> None:
        self._progress.pop(token, None)

    def send_unawaited(self, method: str, params: Mapping[str, Any], *, meta: Mapping[str, Any], limit: float) -> None:
        """Sends a request whose answer doesn't matter."""

        async def send() -> None:
            with contextlib.suppress(ServerFailure):
                await self.request(method, params, meta=meta, limit=limit)

        if not self.lost.done():
            self._in_background(send())

    def asked(
        self, id: str | int | float, method: str, read: Callable[[], Mapping[str, Any] | None], request_id: str = ""
    ) -> bool:
        """Answers a request from the server, if it is one for the caller of a call. Returns whether it is.

        `read` gets its params; None if they are unacceptable. `request_id` is the request on whose stream it came;
        empty where that is unknown.
        """
        if method not in METHODS or self.questions is None:
            return False
        self.budget.charge(FORWARD_COST)
        if id in self._asked:
            # One answer for each id.
            return True
        params = read()
        if params is None:
            self._refuse_question(id, INVALID_PARAMS, "the params are invalid or too large")
        elif self._peer is not None and self._peer.era is Era.MODERN:
            self._refuse_question(id, METHOD_NOT_FOUND, "this protocol version has no requests from servers")
        elif len(self._asked) >= MAX_QUESTIONS * max(1, len(self.questions.calls)):
            self._refuse_question(id, INVALID_REQUEST, f"at most {MAX_QUESTIONS} questions of a call can be open")
        else:
            call = self.questions.call_of(method, params, request_id)
            asked = self._asked[id] = self._in_background(self._answered(id, method, params, call))
            # Not in the task: one that is cancelled before it starts never runs.
            asked.add_done_callback(lambda _: self._asked.pop(id, None))
            if call is not None:
                call.pending.add(asked)
                asked.add_done_callback(call.pending.discard)
        return True

    def _refuse_question(self, id: str | int | float, code: int, why: str) -> None:
        self._in_background(self._reply(wire.reply(id, error={"code": code, "message": why})))

    async def _answered(
        self, id: str | int | float, method: str, params: Mapping[str, Any], call: OpenCall | None
    ) -> None:
        if self.questions is None:
            return
        try:
            reply = wire.reply(id, result=await self.questions.answer(method, params, call, self.budget.charge))
        except QuestionRefused as refused:
            reply = wire.reply(id, error={"code": refused.json_code, "message": refused.text()})
        except asyncio.CancelledError:
            if call is not None and call.ended and method == ELICITATION:
                self._in_background(self._reply(wire.reply(id, result=CANCEL)))
            raise
        except Exception:
            log.exception("%s: a question could not be answered", self.name)
            reply = wire.reply(id, error={"code": INTERNAL_ERROR, "message": "the question could not be answered"})
        await self._reply(reply)

    @abc.abstractmethod
    async def _reply(self, message: bytes) -> None:
        """Sends an answer to a request from the server. Never raises for a lost connection."""

    @abc.abstractmethod
    async def _exchange(
        self, request_id: str, method: str, params: Mapping[str, Any], body: bytes, headers: Mapping[str, str]
    ) -> ServerAnswer:
        """Sends one request and waits for its answer."""

    @abc.abstractmethod
    def _abandon(self, request_id: str, reason: str) -> None:
        """Cancels a request on the server, as its era and transport require."""

    def notice(self, method: str, params: Mapping[str, Any], request_id: str = "") -> bool:
        """Handles a notification from the server. Returns whether it was for us.

        `request_id` is the request on whose stream it came; empty over a pipe, where it is unknown.
        """
        self.last_seen = time.time()
        if method == PROGRESS:
            token = params.get(wire.PROGRESS_TOKEN_KEY)
            on_progress = self._progress.get(token) if isinstance(token, str) else None
            if on_progress is None:
                return False
            self.budget.charge(FORWARD_COST, asked=True)
            try:
                on_progress({key: value for key, value in params.items() if key != wire.PROGRESS_TOKEN_KEY})
            except Exception:
                log.exception("%s: could not forward progress", self.name)
            return True
        if method in LISTS_CHANGED:
            self._on_lists_changed()
            return True
        if method == TASK_STATUS:
            # Tasks are looked at when their callers want to know.
            self.budget.charge(FORWARD_COST, asked=True)
            return True
        if method == CANCELLED:
            asked_id = params.get("requestId")
            asked = self._asked.get(asked_id) if isinstance(asked_id, str | int | float) else None
            if asked is not None:
                asked.cancel()
            return asked is not None
        if method in FORWARDED:
            if self._forward_notice(method, params, request_id):
                self.budget.charge(FORWARD_COST, asked=True)
            return True
        return False

    def _forward_notice(self, method: str, params: Mapping[str, Any], request_id: str) -> bool:
        """Whether anyone wants it."""
        if method != LOG_MESSAGE or not request_id:
            return self.on_notice(method, params)
        if (wish := self._logs.get(request_id)) is not None:
            wish.receive(params)
        return wish is not None

    def lose(self, reason: str) -> None:
        """Marks the connection as lost. The first reason is kept."""
        if not self.lost.done():
            self.last_error = reason
            self.lost.set_result(reason)

    def reject(self, reason: str) -> None:
        """Closes the connection because of unacceptable input."""
        self.misbehaved = self.misbehaved or not self.lost.done()
        self.lose(reason)

    def expire_session(self) -> None:
        """Marks the connection as lost because the server no longer knows our session."""
        self.session_expired = not self.lost.done()
        self.lose("The server no longer knows the session.")

    @property
    def is_over(self) -> bool:
        """Whether it is lost or about to be closed, so that a failed request says nothing about the server."""
        return self.lost.done() or bool(self._ended)

    def end_calls(self, reason: str) -> None:
        """Fails all calls in flight at once."""
        self._ended = reason
        for clock in tuple(self._clocks):
            clock.expire()

    @property
    def is_busy(self) -> bool:
        """Whether the server may be unable to answer because it runs a call within its time limit."""
        return bool(self._clocks) or self._loop.time() < self.excused_until

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a task that nothing awaits, and keeps a reference to it."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def stop(self, limit: float) -> None:
        """Closes the connection. Background tasks get `limit` seconds, then they are cancelled."""
        self.lose("It was stopped.")
        if self._background:
            await asyncio.wait(tuple(self._background), timeout=limit)
        for task in tuple(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(f"Server '{self.name}': {reason}")

    def interrupted(self, reason: str) -> ServerUnavailable:
        """The error of a call that was sent and will get no answer."""
        error = self.unavailable(f"{reason} The call may have run.")
        error.repeat_after = 0.0
        error.may_have_run = True
        return error

    def reason_in(self, error: ServerUnavailable) -> str:
        """The reason alone, without the server's name and what it means for a call."""
        text = error.message.removeprefix(f"Server '{self.name}': ")
        return text.removesuffix(" The call may have run.").removesuffix(" The call did not run.")


@contextlib.asynccontextmanager
async def running_beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Runs coroutines during the block, and cancels them at the end."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
