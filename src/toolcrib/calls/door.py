"""A call's way: resolve the name → decide → undo what the configuration changed → check the arguments → ask a person,
where the rule says so → write the intent → forward raw → write the outcome.

In: a `CallRequest`, who makes it, and the `ToolSource` (catalog and servers) it is made at. Out: the server's raw
answer, or an error of ours. Nothing else in Toolcrib may reach a server's tools.

A call that may change something leaves only once its intent is durable, and its answer only once its outcome is. An
active call whose caller loses the permission is stopped, wherever it waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.calls.record import AGENT_ENDED, ActiveCalls, CallRecord
from toolcrib.catalog.schema_check import ArgumentChecker, CallerView
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle
from toolcrib.errors import AuditUnwritable, CallTimeout, Denied, ServerFailure, StoreError, ToolcribError, UnknownTool
from toolcrib.events import Bus, CallFailed
from toolcrib.policy import Caller, Decision, Verdict, decide
from toolcrib.run_events import failure_in
from toolcrib.servers.model import OnProgress, ServerAnswer, ToolCall
from toolcrib.servers.wire import result_type

if TYPE_CHECKING:
    from toolcrib.audit import AuditLog
    from toolcrib.identity.approvals import Approvals
    from toolcrib.identity.registry import AgentRegistry
    from toolcrib.identity.sessions import SessionRegistry


_ADDED = "wait_for_previous"
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def without_client_arguments(tool: Tool, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The very same params where there is nothing to take out; otherwise every other value keeps its bytes."""
    arguments = params.get("arguments")
    if arguments is None or _ADDED.encode() not in bytes(arguments) or _ADDED in _declared(tool):
        return params
    try:
        given = _decode(arguments)
    except msgspec.MsgspecError:
        # Not an object: the check that follows says so.
        return params
    given.pop(_ADDED, None)
    return {**params, "arguments": Raw(msgspec.json.encode(given))}


def _declared(tool: Tool) -> Mapping[str, object]:
    properties = tool.shown.input_schema.get("properties")
    return properties if isinstance(properties, dict) else {}


log = logging.getLogger(__name__)

PROCESS = f"{os.getpid():x}-{time.time_ns():x}"
"""The beginning of every call's id: which process, also where a later one has the same number."""
_LONGEST_UNKNOWN = 4096
"""Characters that are taken of a name that no tool has; the book keeps fewer, once it has masked them."""


class CallTarget(Protocol):
    """What a call is forwarded to: a live server, or the commands of the daemon."""

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer: ...


class ToolSource(Protocol):
    """Where names are resolved: one project's catalog and the servers behind it."""

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        """Raises `UnknownTool`, which suggests only tools that are `shown`, as they are called in this style."""
        ...

    def target(self, server: str, caller: Caller) -> CallTarget: ...


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its caller made it."""

    tool: str
    """A name in any style."""
    style: NameStyle | None = None
    """How its caller knows the tools; None: as `server:tool`."""
    params: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    """`arguments` and whatever else the params held, without `name` and `_meta`."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    takes_input: bool = False
    """Whether its caller can answer what a tool asks before it goes on (`input_required`)."""
    timeout: float | None = None
    on_progress: OnProgress | None = None


class CallOutcome(msgspec.Struct, frozen=True):
    """A call that reached its server: what the server said, and the tool that the name stood for."""

    answer: ServerAnswer
    tool: Tool


class Door:
    def __init__(
        self,
        bus: Bus,
        *,
        book: AuditLog | None = None,
        roster: AgentRegistry | None = None,
        approvals: Approvals | None = None,
        sessions: SessionRegistry | None = None,
    ) -> None:
        """Without them: nothing is recorded, nobody is known whose permission could change, nobody can be asked."""
        self._bus = bus
        self._book = book
        self._approvals = approvals
        self._sessions = sessions
        self._checker = ArgumentChecker()
        self._numbers = itertools.count(1)
        self._under_way = None if roster is None else ActiveCalls(bus, roster, approvals)
        self.in_flight = 0
        self.finished = 0

    async def call(self, shelf: ToolSource, caller: Caller, request: CallRequest) -> CallOutcome:
        tool = self._found(shelf, caller, request)
        params = without_client_arguments(tool, request.params)
        arguments = params.get("arguments")
        line = CallRecord(
            self._next_id(),
            caller,
            tool,
            decide(caller, tool),
            name=request.tool,
            arguments=None if arguments is None else bytes(arguments),
            meta=request.meta,
            bus=self._bus,
            book=self._book,
            sessions=self._sessions,
        )
        params = self._check(line, params)
        if self._under_way is not None:
            self._under_way.begin(line)
        try:
            if line.decision.verdict is Verdict.ASK:
                await self._ask(line, _besides(request, params))
                _refuse_changed(shelf, line, request)
            answer = await self._forward(shelf, line, request, params)
        except asyncio.CancelledError:
            if line.stopped is None:
                raise
            if line.task is not None:
                line.task.uncancel()
            stopped = _denied(line.caller, tool, line.stopped)
            if line.left:
                stopped.remedy = "It was stopped while under way and may have run."
            raise stopped from None
        finally:
            if self._under_way is not None:
                self._under_way.end(line)
        return CallOutcome(answer, tool)

    def _found(self, shelf: ToolSource, caller: Caller, request: CallRequest) -> Tool:
        try:
            return shelf.find(
                request.tool, lambda tool: decide(caller, tool).verdict is not Verdict.DENY, request.style
            )
        except (UnknownTool, ServerFailure) as error:
            self._note_not_found(caller, request, "unknown" if isinstance(error, UnknownTool) else "away")
            raise

    def _note_not_found(self, caller: Caller, request: CallRequest, outcome: str) -> None:
        name = request.tool[:_LONGEST_UNKNOWN]
        if self._book is not None:
            self._book.note(
                AuditEntry(
                    kind=EntryKind.OUTCOME,
                    at=time.time(),
                    agent=caller.agent,
                    session="" if caller.session is None else caller.session.id,
                    conversation=caller.conversation,
                    tool=name,
                    outcome=outcome,
                )
            )
        if self._bus.hears(CallFailed):
            arguments = request.params.get("arguments")
            self._bus.publish(
                CallFailed(
                    call_id=self._next_id(),
                    caller=caller.agent,
                    name=name,
                    tool=name,
                    server="",
                    decision="",
                    rule="",
                    arguments=None if arguments is None else bytes(arguments),
                    meta=request.meta,
                    outcome=outcome,
                    duration=0.0,
                )
            )

    def _next_id(self) -> str:
        return f"{PROCESS}-{next(self._numbers)}"

    def _check(self, line: CallRecord, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Whether the caller may use the tool, and may do so with these arguments; the params as its server takes
        them."""
        # Who may not use a tool at all does not learn its schema from what is said of the arguments.
        self._refuse_denied(line)
        seen: CallerView | None = None
        try:
            if line.tool.shape is not None and line.tool.shape.undo:
                params, seen = self._undone(line, params)
            line.checked = self._checker.check(line.tool, params.get("arguments"), seen=seen)
        except ToolcribError:
            line.finish("invalid")
            raise
        line.decision = decide(line.caller, line.tool, line.checked)
        self._refuse_denied(line)
        return params

    def _undone(self, line: CallRecord, params: Mapping[str, Raw]) -> tuple[Mapping[str, Raw], CallerView]:
        """What is wrong is told in the words that the caller was shown."""
        tool = line.tool
        given = self._checker.check(tool.shown, params.get("arguments"))
        line.taken = msgspec.json.encode(tool.taken(given))
        seen = CallerView(schema=tool.shown.input_schema, own=partial(tool.callers_own, given))
        return {**params, "arguments": Raw(line.taken)}, seen

    @staticmethod
    def _refuse_denied(line: CallRecord) -> None:
        if line.decision.verdict is Verdict.DENY:
            line.finish("denied")
            raise _denied(line.caller, line.tool, line.decision)

    async def _ask(self, line: CallRecord, besides: bytes) -> None:
        if self._approvals is None:
            line.finish("denied")
            raise Denied(f"{line.tool.display} needs a person's word, and nobody can be asked here.")
        try:
            answer = await self._approvals.ask(
                call=line.call_id,
                agent=line.caller.agent,
                conversation=line.caller.conversation,
                tool=line.tool.display,
                rule=line.decision.rule,
                arguments=line.taken or b"{}",
                besides=besides,
            )
        except BaseException:
            line.finish("denied" if line.stopped else "cancelled")
            raise
        line.decision = Decision(Verdict.ASK, f"{line.decision.rule}; {answer.why}")
        if not answer.approved:
            line.finish("denied")
            raise _denied(line.caller, line.tool, line.decision, answer.remedy)

    async def _forward(
        self, shelf: ToolSource, line: CallRecord, request: CallRequest, params: Mapping[str, Raw]
    ) -> ServerAnswer:
        tool = line.tool
        may_change = not tool.reads_only
        headers = tool.param_headers(line.checked)
        call = ToolCall(name=tool.name, params=params, meta=request.meta, headers=headers)
        line.intend()
        if may_change and self._book is not None:
            await self._written_down(line, self._book)
            _refuse_changed(shelf, line, request)
        self.in_flight += 1
        line.left = True
        try:
            answer = await shelf.target(tool.server, line.caller).call(
                call, timeout=request.timeout, on_progress=request.on_progress
            )
        except BaseException as error:
            line.finish("denied" if line.stopped else _failure(error))
            raise
        finally:
            self.in_flight -= 1
            self.finished += 1
        if not request.takes_input:
            answer = _refuse_unfinished(answer, tool)
        outcome, failure = _ended(answer)
        line.finish(outcome, answer.result or answer.error or b"", failure=failure)
        if may_change and self._book is not None:
            await self._outcome_kept(self._book)
        return answer

    @staticmethod
    async def _written_down(line: CallRecord, book: AuditLog) -> None:
        try:
            await book.kept()
        except StoreError as error:
            line.finish("refused")
            raise AuditUnwritable(
                f"{line.tool.display} did not run: it may change something, and the book cannot be written. "
                f"{error.message}",
                remedy=error.remedy,
            ) from error
        except BaseException:
            # Taken back, or no longer permitted, before it left.
            line.finish("denied" if line.stopped else "cancelled")
            raise

    @staticmethod
    async def _outcome_kept(book: AuditLog) -> None:
        """The call has run: its answer is given also if its outcome can only be written later."""
        try:
            await book.kept()
        except StoreError:
            return


_ASK_THE_OWNER = "Ask the owner of this machine to allow it."


def _besides(request: CallRequest, params: Mapping[str, Raw]) -> bytes:
    """What the server gets of the caller besides the arguments: answers to what a tool asked, and `_meta`."""
    found: dict[str, Any] = {key: value for key, value in params.items() if key != "arguments"}
    if request.meta:
        found["_meta"] = request.meta
    return msgspec.json.encode(found) if found else b""


def _refuse_changed(shelf: ToolSource, line: CallRecord, request: CallRequest) -> None:
    """What was decided, or approved by a person, was this very tool: not another that took its name meanwhile.

    The name that it was called by may mean several tools by now; its own still means this one.
    """
    for name in (request.tool, line.tool.display):
        try:
            if shelf.find(name, lambda _: False).is_still(line.tool):
                return
        except ToolcribError as error:
            log.debug("%s is not there any more: %s", name, error.message)
    line.finish("denied")
    raise Denied(f"{line.tool.display} changed while the call waited, so it did not run.", remedy="Call again.")


def _denied(caller: Caller, tool: Tool, decision: Decision, remedy: str = _ASK_THE_OWNER) -> Denied:
    # Where nothing can be allowed, a model must not send its person to try.
    can_be_allowed = decision is not AGENT_ENDED and caller.permission.floor(tool) is None
    return Denied(
        f"{caller.agent} may not use {tool.display}: {decision.rule}.",
        remedy=remedy if can_be_allowed else "",
        data={"rule": decision.rule, "tool": tool.display},
    )


def _failure(error: BaseException) -> str:
    match error:
        case asyncio.CancelledError():
            return "cancelled"
        case CallTimeout():
            return "timeout"
        case ServerFailure():
            return "away"
        case _:
            return "error"


def _refuse_unfinished(answer: ServerAnswer, tool: Tool) -> ServerAnswer:
    """An answer that is not the call's result yet (`input_required`, a task) as a failure: its caller would take it for
    the result."""
    kind = None if answer.result is None else result_type(answer.result)
    if kind in (None, "complete"):
        return answer
    why = "it asks for input first" if kind == "input_required" else f"its answer is of the type {kind!r:.80}"
    text = f"{tool.display} gave no result: {why}, and this client cannot give or take that."
    return ServerAnswer(result=msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True}))


class _Flagged(msgspec.Struct):
    failed: Any = msgspec.field(name="isError", default=False)
    meta: Any = msgspec.field(name="_meta", default=None)


_flagged = msgspec.json.Decoder(_Flagged).decode
_LOOKED_INTO = 4 * 1024 * 1024
"""A result above this is not read through once more for its flag: no tool explains its failure at such length."""


def _ended(answer: ServerAnswer) -> tuple[str, str]:
    """The outcome; and what the tool says of it, where what it ran failed."""
    if answer.result is None:
        return "error", ""
    if len(answer.result) > _LOOKED_INTO:
        return "ok", ""
    try:
        flagged = _flagged(answer.result)
    except (msgspec.MsgspecError, RecursionError):
        return "ok", ""
    if flagged.failed is True:
        return "tool_error", ""
    failure = failure_in(flagged.meta)
    return ("failed", failure) if failure else ("ok", "")
