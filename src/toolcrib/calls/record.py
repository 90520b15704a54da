"""One call from start to end, and all active calls.

In: the caller, the tool and the outcome of a call; events about agents. Out: entries for the audit log, events, counts
for the session. When an agent's permission changes, its active calls are decided again: a call that is no longer
permitted is stopped, wherever it waits; a call that no longer needs approval continues. This happens before the change
is acknowledged. Used only by `door`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.catalog.tool import Tool
from toolcrib.errors import NotFound
from toolcrib.events import (
    AgentEnded,
    Bus,
    CallFailed,
    CallFinished,
    CallIntended,
    CallOutcome,
    Event,
    PermissionChanged,
)
from toolcrib.identity.principal import RequestContext
from toolcrib.identity.usage import KIND_BY_TOOL, TokenKind
from toolcrib.policy import Decision, Permission, Verdict
from toolcrib.servers.questions import CANCEL, REFUSED_BY_PERSON, AskedQuestion, Asker, Question, QuestionRefused

if TYPE_CHECKING:
    from toolcrib.audit.log import AuditLog
    from toolcrib.identity.approvals import Approvals
    from toolcrib.identity.registry import AgentRegistry
    from toolcrib.identity.sessions import SessionRegistry
    from toolcrib.servers.account import Account


class CallRecord:
    """Without an audit log (the library's `Client`), only publishes events."""

    __slots__ = (
        "_audit",
        "_began",
        "_bus",
        "_noted",
        "_sessions",
        "about",
        "account",
        "agent",
        "arguments",
        "asked",
        "call_id",
        "checked",
        "context",
        "decision",
        "left",
        "meta",
        "name",
        "permission",
        "stopped",
        "taken",
        "task",
        "tool",
        "tool_name",
    )

    def __init__(
        self,
        call_id: str,
        context: RequestContext[Any],
        permission: Permission,
        tool: Tool,
        *,
        name: str,
        arguments: bytes | None,
        meta: Mapping[str, Any],
        bus: Bus,
        audit: AuditLog | None,
        sessions: SessionRegistry | None,
    ) -> None:
        self.call_id = call_id
        self.context = context
        self.agent = context.principal.name
        self.permission = permission
        """The permission at the start of the call; `ActiveCalls` stops the call if a later one denies it."""
        self.tool = tool
        self.tool_name = tool.names.display
        self.decision = permission.decide(tool, None)
        self.name = name
        """The caller's name for the tool."""
        self.meta = meta
        self.checked: dict[str, Any] = {}
        """The arguments, decoded."""
        self.stopped: Decision | None = None
        """The decision that ended the call while it was active."""
        self.left = False
        """Whether it was sent to its server: from then on it may have run."""
        self.asked = False
        """Whether the server asked something."""
        self.task: asyncio.Task[object] | None = None
        self.account: Account | None = None
        """The account of the server that it was sent to."""
        self.arguments = arguments
        """As the caller gave them."""
        self.taken = arguments
        """As the server expects them: these are recorded, and shown for approval."""
        self.about: Mapping[str, str] = {}
        """The request and its task, if it is not a call itself."""
        self._noted = False
        """Whether they are in the intent, so the outcome doesn't repeat them."""
        self._bus = bus
        self._audit = audit
        self._sessions = sessions
        self._began = time.monotonic()

    def intend(self) -> None:
        """The call is about to be sent: from here on it may have run."""
        if self._audit is not None:
            self._audit.note(self._entry(EntryKind.INTENT))
            self._noted = True
        if CallIntended in self._bus.heard:
            self._bus.publish(CallIntended(**self._event_fields()))

    def note_question(self, asked: AskedQuestion, action: str) -> None:
        """What became of a server's question, not what was said."""
        self.asked = True
        if self._audit is not None:
            entry = self._entry(EntryKind.QUESTION)
            entry.arguments, entry.outcome = None, action
            entry.detail = {**self.about, "asks": asked.mode, "digest": asked.digest}
            self._audit.note(entry)

    def finish(self, outcome: CallOutcome, result: bytes = b"", *, failure: str = "") -> None:
        duration = time.monotonic() - self._began
        session = self.context.session
        if self._audit is not None:
            entry = self._entry(EntryKind.OUTCOME)
            entry.outcome = outcome
            entry.duration = duration
            entry.size = len(result)
            entry.result = result or None
            if self.account is not None:
                entry.detail = {**self.about, **(self.account.described or {})} or None
            if session is not None:
                entry.counted = partial(session.add_tokens, KIND_BY_TOOL.get(self.tool_name, TokenKind.RESULTS))
            self._audit.note(entry)
        if self._sessions is not None and session is not None:
            if (answer := KIND_BY_TOOL.get(self.tool_name)) is not None:
                self._sessions.count_answer(session, answer)
            else:
                self._sessions.count(session, outcome, len(result), tool=self.tool_name)
        kind = CallFinished if outcome in (CallOutcome.OK, CallOutcome.ASKED, CallOutcome.TASK) else CallFailed
        if kind in self._bus.heard:
            fields = self._event_fields()
            self._bus.publish(
                kind(**fields, outcome=outcome, duration=duration, result_size=len(result), failure=failure)
            )

    def _event_fields(self) -> dict[str, Any]:
        return {
            "call_id": self.call_id,
            "caller": self.agent,
            "name": self.name,
            "tool": self.tool_name,
            "server": self.tool.server,
            "decision": self.decision.verdict,
            "rule": self.decision.rule,
            "arguments": self.arguments,
            "meta": self.meta,
        }

    def _entry(self, kind: EntryKind) -> AuditEntry:
        session = self.context.session
        return AuditEntry(
            kind=kind,
            at=time.time(),
            call=self.call_id,
            agent=self.agent,
            session="" if session is None else session.id,
            conversation=self.context.conversation,
            tool=self.tool_name,
            server=self.tool.server,
            decision=self.decision.verdict,
            rule=self.decision.rule,
            mode="full" if session is None else session.mode,
            arguments=None if self._noted else self.taken,
            arguments_counted=None if session is None else partial(session.add_tokens, TokenKind.ARGUMENTS),
            detail=self.about or None,
        )


class RecordedAsker:
    """Passes a server's questions on, and records what became of them."""

    def __init__(self, record: CallRecord, asker: Asker | None, approvals: Approvals | None) -> None:
        self._record = record
        self._asker = asker
        self._approvals = approvals
        self.capabilities: Mapping[str, Any] = {} if asker is None else asker.capabilities

    @property
    def root(self) -> Path | None:
        root: Path | None = self._record.context.project.root
        return root

    async def ask(self, question: Question) -> Mapping[str, Any]:
        if self._asker is None:
            return CANCEL
        return await self._asker.ask(self._of_this_call(question))

    async def permit(self, question: Question) -> None:
        if self._approvals is None:
            raise QuestionRefused(
                f"Server '{question.server}' needs a person's approval to ask for a model's answer, which is not "
                "available here.",
                json_code=REFUSED_BY_PERSON,
            )
        record = self._record
        await self._approvals.ask_permission(
            self._of_this_call(question), agent=record.agent, conversation=record.context.conversation
        )

    def _of_this_call(self, question: Question) -> Question:
        return msgspec.structs.replace(question, tool=self._record.tool_name)

    def note(self, question: Question, action: str) -> None:
        self._record.note_question(question.asked, action)


AGENT_ENDED = Decision(Verdict.DENY, "the agent has ended or its token was replaced")


class ActiveCalls:
    def __init__(self, bus: Bus, registry: AgentRegistry, approvals: Approvals | None) -> None:
        self._registry = registry
        self._approvals = approvals
        self._by_agent: dict[str, set[CallRecord]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        bus.subscribe(self._decide_again, PermissionChanged, AgentEnded)

    def begin(self, call: CallRecord) -> None:
        if self._loop is None:
            # Cached: getting the loop costs a system call in some versions of Python.
            self._loop = asyncio.get_running_loop()
        call.task = asyncio.current_task(self._loop)
        active = self._by_agent.get(call.agent)
        if active is None:
            active = self._by_agent[call.agent] = set()
        active.add(call)

    def end(self, call: CallRecord) -> None:
        active = self._by_agent.get(call.agent)
        if active is not None:
            active.discard(call)
            if not active:
                del self._by_agent[call.agent]

    def _decide_again(self, event: Event) -> None:
        if not isinstance(event, PermissionChanged | AgentEnded):
            return
        stopped: set[asyncio.Task[object]] = set()
        for call in tuple(self._by_agent.get(event.agent, ())):
            decision = self._decide_now(call) if isinstance(event, PermissionChanged) else AGENT_ENDED
            if decision.verdict is Verdict.DENY and call.task is not None:
                call.stopped = decision
                stopped.add(call.task)
            elif decision.verdict is Verdict.ALLOW and self._approvals is not None:
                self._approvals.release(call.call_id, why=decision.rule)
        # A command that calls another has two calls in one task, which is cancelled only once.
        for task in stopped:
            task.cancel("no longer permitted")

    def _decide_now(self, call: CallRecord) -> Decision:
        try:
            agent = self._registry.find(call.agent)
        except NotFound:
            return AGENT_ENDED
        return agent.permission.decide(call.tool, call.checked)
