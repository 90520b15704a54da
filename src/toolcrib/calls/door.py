"""The path of a call: resolve the name → decide → undo the configuration's changes → check the arguments → ask a
person if a rule requires it → write the intent → forward the raw bytes → write the outcome. `ResultCache` may answer
in place of the last three.

In: a `CallRequest` and its `RequestContext`: the caller, and the `ToolSource` (catalog and servers).
Out: the server's raw answer, or a Toolcrib error. Nothing else in Toolcrib may reach a server's tools.

A call that may change something is sent only after its intent is durable, and answered only after its outcome is. An
active call whose caller loses the permission is stopped, wherever it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.calls.outcome import outcome_of, outcome_of_error, outcome_of_look, refuse_unfinished
from toolcrib.calls.record import AGENT_ENDED, ActiveCalls, CallRecord, RecordedAsker
from toolcrib.calls.result_cache import ResultCache
from toolcrib.catalog.schema_check import ArgumentChecker, CallerView
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import NameStyle
from toolcrib.errors import (
    AuditUnwritable,
    Denied,
    InvalidArguments,
    NotFound,
    ServerFailure,
    ServerUnavailable,
    StoreError,
    ToolcribError,
)
from toolcrib.events import Bus, CallFailed, CallOutcome
from toolcrib.identity.principal import RequestContext
from toolcrib.identity.usage import TokenKind
from toolcrib.policy import Decision, Permission, Verdict
from toolcrib.servers import tasks
from toolcrib.servers.model import LogWish, OnProgress, ServerAnswer, TaskTerms, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from toolcrib.audit.log import AuditLog
    from toolcrib.identity.approvals import Approvals
    from toolcrib.identity.registry import AgentRegistry
    from toolcrib.identity.sessions import SessionRegistry
    from toolcrib.servers.account import Account
    from toolcrib.servers.questions import AskedQuestion, Asker

log = logging.getLogger(__name__)

PROCESS = f"{os.getpid():x}-{time.time_ns():x}"
"""The prefix of every call's id: identifies the process, even if a pid is reused."""
_MAX_UNKNOWN_NAME = 4096
"""Characters of an unknown tool's name that are recorded; the audit log masks secrets and then keeps fewer."""


class CallTarget(Protocol):
    """The destination of a call: a live server, or the daemon's commands."""

    @property
    def account(self) -> Account | None:
        """The account that it is used with."""
        ...

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> ServerAnswer: ...


class ToolSource(Protocol):
    """Resolves names: one project's catalog and its servers."""

    @property
    def root(self) -> Path:
        """The project's folder."""
        ...

    def find_offer(self, method: str, name: str, agent: str, shown: Callable[[Tool], bool] | None = None) -> Tool:
        """The resource or prompt that an agent's request other than tools/call names; an ambiguous address means one
        that is `shown`. Raises `UnknownOffer`."""
        ...

    def remember_links(self, agent: str, server: str, result: bytes) -> None:
        """The agent can read the resources that a tool's result links to, although no list has them."""
        ...

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        """Raises `UnknownTool`, which suggests only tools that are `shown`, by their names in this style."""
        ...

    def target(self, server: str, request: RequestContext[Any]) -> CallTarget: ...

    def instance(self, server: str, agent: str) -> CallTarget | None:
        """The agent's own instance of a server, or the one that all share; None without one."""
        ...


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its caller made it."""

    tool: str
    """A name in any style; the address of a resource."""
    method: str = "tools/call"
    style: NameStyle | None = None
    """The style of the caller's tool names; None: `server:tool`."""
    params: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    """`arguments` and all other params except `name` and `_meta`."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    task: str = ""
    """The server's id of the task that a request is about. It is decided like a call of the task's tool, except that
    the call's arguments and approval counted when the task was created."""
    takes_task: bool = False
    """Whether the caller takes a task as the answer."""
    task_wish: Raw | None = None
    """What a legacy caller wants of the task."""
    asker: Asker | None = None
    """Passes on what the server asks during the call; None: nobody can be asked."""
    takes_input: bool = False
    """Whether the caller answers a modern server's questions itself, in a call of its own."""
    answered: Sequence[tuple[AskedQuestion, str]] = ()
    """The questions that this call answers, and what the person did."""
    timeout: float | None = None
    on_progress: OnProgress | None = None
    logs: LogWish | None = None


class CallAnswer(msgspec.Struct, frozen=True):
    """The server's answer, and the tool that the name resolved to."""

    answer: ServerAnswer
    tool: Tool


class Door:
    def __init__(
        self,
        bus: Bus,
        *,
        audit: AuditLog | None = None,
        registry: AgentRegistry | None = None,
        approvals: Approvals | None = None,
        sessions: SessionRegistry | None = None,
    ) -> None:
        """Without `audit` nothing is recorded; without `registry` permissions cannot change during a call; without
        `approvals` a call that needs approval is denied."""
        self._bus = bus
        self._audit = audit
        self._approvals = approvals
        self._sessions = sessions
        self._checker = ArgumentChecker()
        self._results = ResultCache()
        self._numbers = itertools.count(1)
        self._active = None if registry is None else ActiveCalls(bus, registry, approvals)
        self.in_flight = 0
        self.finished = 0

    async def call(self, context: RequestContext[ToolSource], request: CallRequest) -> CallAnswer:
        permission = context.principal.permission()
        call_id = f"{PROCESS}-{next(self._numbers)}"
        tool = self._found(call_id, context, request, permission)
        params = request.params
        arguments = params.get("arguments")
        if arguments is not None and _CLIENTS_OWN_BYTES in bytes(arguments):
            params = without_client_arguments(tool, params)
            arguments = params["arguments"]
        record = CallRecord(
            call_id,
            context,
            permission,
            tool,
            name=request.tool,
            arguments=None if arguments is None else bytes(arguments),
            meta=request.meta,
            bus=self._bus,
            audit=self._audit,
            sessions=self._sessions,
        )
        params = self._check(record, params, request)
        if self._active is not None:
            self._active.begin(record)
        try:
            if record.decision.verdict is Verdict.ASK and not request.task:
                await self._ask(record, _besides(request, params))
                _refuse_changed(record, request)
            if tool.cache_seconds or not tool.reads_only:
                answer = await self._results.call(self._forward, record, request, params)
            else:
                answer = await self._forward(record, request, params)
        except asyncio.CancelledError:
            if record.stopped is None:
                raise
            if record.task is not None:
                record.task.uncancel()
            stopped = _denied(record, record.stopped)
            if record.left:
                stopped.remedy = "It was stopped midway and may have run."
            raise stopped from None
        finally:
            if self._active is not None:
                self._active.end(record)
        return CallAnswer(answer, tool)

    def _finish(self, record: CallRecord, request: CallRequest, answer: ServerAnswer) -> None:
        size = answer.result or answer.error or b""
        if request.method == tasks.GET:
            # Looking at a task is not recorded, except when it brings the result.
            if (seen := outcome_of_look(answer)) is not None:
                record.finish(seen, size)
            return
        outcome, failure = outcome_of(answer)
        if request.takes_task and (created := tasks.created_task(record.tool.server, answer)) is not None:
            outcome = CallOutcome.TASK
            record.about = {"task": tasks.digest_of(record.tool.server, created.id)}
        record.finish(outcome, size, failure=failure)

    def _note_not_found(
        self, call_id: str, context: RequestContext[ToolSource], request: CallRequest, outcome: CallOutcome
    ) -> None:
        name = request.tool[:_MAX_UNKNOWN_NAME]
        agent = context.principal.name
        if outcome is CallOutcome.UNKNOWN and self._sessions is not None and context.session is not None:
            self._sessions.count_answer(context.session, TokenKind.REPAIRS)
        if self._audit is not None:
            self._audit.note(
                AuditEntry(
                    kind=EntryKind.OUTCOME,
                    at=time.time(),
                    agent=agent,
                    session="" if context.session is None else context.session.id,
                    conversation=context.conversation,
                    tool=name,
                    mode="full" if context.session is None else context.session.mode,
                    outcome=outcome,
                )
            )
        if CallFailed in self._bus.heard:
            arguments = request.params.get("arguments")
            self._bus.publish(
                CallFailed(
                    call_id=call_id,
                    caller=agent,
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

    def _found(
        self, call_id: str, context: RequestContext[ToolSource], request: CallRequest, permission: Permission
    ) -> Tool:
        try:
            if request.method == "tools/call" or request.task:
                return context.project.find(request.tool, permission.shows, request.style)
            caller = context.principal.name
            return context.project.find_offer(request.method, request.tool, caller, permission.shows)
        except (NotFound, ServerFailure) as error:
            outcome = CallOutcome.UNKNOWN if isinstance(error, NotFound) else CallOutcome.UNAVAILABLE
            self._note_not_found(call_id, context, request, outcome)
            raise

    def _check(self, record: CallRecord, params: Mapping[str, Raw], request: CallRequest) -> Mapping[str, Raw]:
        """Decides whether the caller may use the tool with these arguments. Returns the params as the server expects
        them."""
        # A caller that may not use the tool at all must not learn its schema from errors about the arguments.
        if record.decision.verdict is Verdict.DENY:
            raise _refused(record)
        if request.task:
            record.about = {"method": request.method, "task": tasks.digest_of(record.tool.server, request.task)}
            return params
        view: CallerView | None = None
        try:
            if record.tool.override is not None and record.tool.override.undo:
                params, view = self._undone(record, params)
            if record.tool.kind is OfferKind.TOOL:
                record.checked = self._checker.check(record.tool, params.get("arguments"), seen=view)
            else:
                record.checked = _arguments_of_offer(record.tool, params)
        except ToolcribError:
            record.finish(CallOutcome.INVALID)
            raise
        record.decision = record.permission.decide(record.tool, record.checked)
        if record.decision.verdict is Verdict.DENY:
            raise _refused(record)
        return params

    def _undone(self, record: CallRecord, params: Mapping[str, Raw]) -> tuple[Mapping[str, Raw], CallerView]:
        """Errors use the argument names and the schema that the caller sees."""
        tool = record.tool
        given = self._checker.check(tool.shown, params.get("arguments"))
        record.taken = msgspec.json.encode(tool.taken(given))
        view = CallerView(schema=tool.shown.input_schema, own=partial(tool.callers_own, given))
        return {**params, "arguments": Raw(record.taken)}, view

    async def _ask(self, record: CallRecord, besides: bytes) -> None:
        if self._approvals is None:
            record.finish(CallOutcome.DENIED)
            raise Denied(f"{record.tool_name} needs a person's approval, which is not available here.")
        try:
            answer = await self._approvals.ask(
                call=record.call_id,
                agent=record.agent,
                conversation=record.context.conversation,
                tool=record.tool_name,
                rule=record.decision.rule,
                arguments=record.taken or b"{}",
                besides=besides,
            )
        except BaseException:
            record.finish(CallOutcome.DENIED if record.stopped else CallOutcome.CANCELLED)
            raise
        record.decision = Decision(Verdict.ASK, f"{record.decision.rule}; {answer.why}")
        if not answer.approved:
            raise _refused(record, answer.remedy)

    async def _forward(self, record: CallRecord, request: CallRequest, params: Mapping[str, Raw]) -> ServerAnswer:
        tool, context = record.tool, record.context
        looks = request.method == tasks.GET
        audit = None if tool.reads_only or looks else self._audit
        call = ToolCall(
            name=request.task or tool.name,
            method=request.method,
            params=params,
            meta=request.meta,
            headers=tool.param_headers(record.checked),
            logs=request.logs,
            agent=record.agent,
            asker=RecordedAsker(record, request.asker, self._approvals),
            takes_input=request.takes_input,
            tasks=_task_terms(request, tool) if request.takes_task or "execution" in tool.fields else None,
        )
        if not looks:
            record.intend()
        for asked, action in request.answered:
            record.note_question(asked, action)
        if audit is not None:
            try:
                await audit.flush()
            except StoreError as error:
                raise _not_written(record, error) from error
            except BaseException:
                # Cancelled, or no longer permitted, before it was sent.
                record.finish(CallOutcome.DENIED if record.stopped else CallOutcome.CANCELLED)
                raise
            _refuse_changed(record, request)
        self.in_flight += 1
        record.left = True
        try:
            target: CallTarget = context.project.target(tool.server, context)
            record.account = target.account
            try:
                answer = await target.call(call, timeout=request.timeout, on_progress=request.on_progress)
            except ServerUnavailable as error:
                answer = await _repeated(record, request, call, error)
        except BaseException as error:
            record.finish(CallOutcome.DENIED if record.stopped else outcome_of_error(error))
            raise
        finally:
            self.in_flight -= 1
            self.finished += 1
        answer = refuse_unfinished(answer, tool, takes_task=request.takes_task)
        if answer.result is not None and b'"resource_link"' in answer.result:
            context.project.remember_links(record.agent, tool.server, answer.result)
        self._finish(record, request, answer)
        if audit is not None:
            # The call has run, so the answer is returned even if its outcome can only be written later.
            with contextlib.suppress(StoreError):
                await audit.flush()
        return answer


def _task_terms(request: CallRequest, tool: Tool) -> TaskTerms | None:
    support = tool.task_support
    if request.method != "tools/call" or not (request.takes_task or support == "required"):
        return None
    return TaskTerms(support=support, taken=request.takes_task, wish=request.task_wish)


async def _repeated(record: CallRecord, request: CallRequest, call: ToolCall, error: ServerUnavailable) -> ServerAnswer:
    """Sends a call again if it can do no harm and the error says that this may help; otherwise raises the error."""
    if error.repeat_after is None or not record.tool.is_harmless:
        raise error
    await asyncio.sleep(error.repeat_after)
    if not _is_unchanged(record, request):
        raise error
    record.decision = Decision(record.decision.verdict, f"{record.decision.rule}; sent twice")
    target: CallTarget = record.context.project.target(record.tool.server, record.context)
    try:
        return await target.call(call, timeout=request.timeout, on_progress=request.on_progress)
    except ServerUnavailable as again:
        # The caller must learn that the first attempt may have run.
        raise (error if error.may_have_run else again) from None


def _arguments_of_offer(tool: Tool, params: Mapping[str, Raw]) -> dict[str, Any]:
    """What conditions of rules are checked against. Servers check the arguments of prompts, which have no schema."""
    if tool.kind is OfferKind.RESOURCE:
        return {"uri": tool.name}
    try:
        return dict(msgspec.json.decode(params.get("arguments", b"{}"), type=dict[str, str]))
    except msgspec.MsgspecError as error:
        raise InvalidArguments(f"The arguments of {tool.display} must be an object of texts: {error}.") from None


_CLIENTS_OWN = "wait_for_previous"
"""Gemini CLI adds this parameter to every tool, for its model to say whether a call waits for the previous one, and
sends it to the server, which may refuse it."""
_CLIENTS_OWN_BYTES = _CLIENTS_OWN.encode()
_decode_arguments = msgspec.json.Decoder(dict[str, Raw]).decode


def without_client_arguments(tool: Tool, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The same object if there is nothing to remove; otherwise all other values keep their bytes."""
    declared = tool.shown.input_schema.get("properties")
    if isinstance(declared, dict) and _CLIENTS_OWN in declared:
        return params
    try:
        given = _decode_arguments(params["arguments"])
    except (KeyError, msgspec.MsgspecError):
        # Not an object: the next check reports it.
        return params
    if given.pop(_CLIENTS_OWN, None) is None:
        return params
    return {**params, "arguments": Raw(msgspec.json.encode(given))}


_ASK_THE_OWNER = "Ask the owner of this machine to allow it."


def _besides(request: CallRequest, params: Mapping[str, Raw]) -> bytes:
    """Everything from the caller besides the arguments: answers to a tool's questions, and `_meta`."""
    found: dict[str, Any] = {key: value for key, value in params.items() if key != "arguments"}
    if request.meta:
        found["_meta"] = request.meta
    return msgspec.json.encode(found) if found else b""


def _refuse_changed(record: CallRecord, request: CallRequest) -> None:
    """The decision or approval is for this tool, not for another that has taken its name in the meantime."""
    if not _is_unchanged(record, request):
        record.finish(CallOutcome.DENIED)
        raise Denied(f"{record.tool_name} changed while the call waited, so it did not run.", remedy="Call again.")


def _is_unchanged(record: CallRecord, request: CallRequest) -> bool:
    """The caller's name for the tool may be ambiguous by now; its `server:tool` name still means this tool."""
    if record.tool.kind is not OfferKind.TOOL:
        with contextlib.suppress(ToolcribError):
            found = record.context.project.find_offer(request.method, request.tool, record.agent)
            return (found.server, found.name) == (record.tool.server, record.tool.name)
        return False
    for name in (request.tool, record.tool_name):
        try:
            found = record.context.project.find(name, lambda _: False)
            if found is record.tool or found.is_still(record.tool):
                return True
        except ToolcribError as error:
            log.debug("%s no longer exists: %s", name, error.message)
    return False


def _refused(record: CallRecord, remedy: str = _ASK_THE_OWNER) -> Denied:
    record.finish(CallOutcome.DENIED)
    return _denied(record, record.decision, remedy)


def _denied(record: CallRecord, decision: Decision, remedy: str = _ASK_THE_OWNER) -> Denied:
    # If no rule can allow the call, the model must not ask the user to try.
    can_be_allowed = decision is not AGENT_ENDED and record.permission.fixed_denial(record.tool) is None
    return Denied(
        f"{record.agent} may not use {record.tool_name}: {decision.rule}.",
        remedy=remedy if can_be_allowed else "",
        data={"rule": decision.rule, "tool": record.tool_name},
    )


def _not_written(record: CallRecord, error: StoreError) -> AuditUnwritable:
    record.finish(CallOutcome.REFUSED)
    return AuditUnwritable(
        f"{record.tool_name} did not run: it may change something, and the audit log cannot be written. "
        f"{error.message}",
        remedy=error.remedy,
    )
