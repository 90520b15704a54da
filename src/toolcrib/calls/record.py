"""One call from its beginning to its end, and all calls that are not over yet.

In: who calls what and what became of it, and what the bus reports of agents. Out: entries for the audit log, events,
counts for the caller's session. Whenever a caller's permission changes, its active calls are judged again: one that
is no longer permitted is stopped, wherever it waits; one that waits for a person and needs no asking any more goes
on. All of it happens before whoever changed the permission hears that it is done. `door` is the only neighbour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.catalog.tool import Tool
from toolcrib.errors import NotFound
from toolcrib.events import AgentEnded, Bus, CallFailed, CallFinished, CallIntended, Event, PermissionChanged
from toolcrib.policy import Caller, Decision, Verdict

if TYPE_CHECKING:
    from toolcrib.audit import AuditLog
    from toolcrib.identity.approvals import Approvals
    from toolcrib.identity.registry import AgentRegistry
    from toolcrib.identity.sessions import SessionRegistry


class CallRecord:
    __slots__ = (
        "_began",
        "_book",
        "_bus",
        "_noted",
        "_sessions",
        "arguments",
        "call_id",
        "caller",
        "checked",
        "decision",
        "left",
        "meta",
        "name",
        "stopped",
        "taken",
        "task",
        "tool",
    )

    def __init__(
        self,
        call_id: str,
        caller: Caller,
        tool: Tool,
        decision: Decision,
        *,
        name: str,
        arguments: bytes | None,
        meta: Mapping[str, Any],
        bus: Bus,
        book: AuditLog | None,
        sessions: SessionRegistry | None,
    ) -> None:
        self.call_id = call_id
        self.caller = caller
        self.tool = tool
        self.decision = decision
        self.name = name
        """As the caller called the tool."""
        self.meta = meta
        self.checked: dict[str, Any] = {}
        """The arguments, decoded."""
        self.stopped: Decision | None = None
        """The decision that ended the call while it was under way."""
        self.left = False
        """Whether it was handed to its server: from then on it may have run."""
        self.task: asyncio.Task[object] | None = None
        self.arguments = arguments
        """As the caller gave them."""
        self.taken = arguments
        """As the tool takes them: this is what is kept, and shown to who is asked."""
        self._noted = False
        """Whether they stand in the intent: then the outcome does not repeat them."""
        self._bus = bus
        self._book = book
        self._sessions = sessions
        self._began = time.monotonic()

    def intend(self) -> None:
        """The call is about to leave: from here on it may have run."""
        if self._book is not None:
            self._book.note(self._entry(EntryKind.INTENT))
            self._noted = True
        if self._bus.hears(CallIntended):
            self._bus.publish(
                CallIntended(
                    call_id=self.call_id,
                    caller=self.caller.agent,
                    name=self.name,
                    tool=self.tool.display,
                    server=self.tool.server,
                    decision=self.decision.verdict,
                    rule=self.decision.rule,
                    arguments=self.arguments,
                    meta=self.meta,
                )
            )

    def finish(self, outcome: str, result: bytes = b"", *, failure: str = "") -> None:
        duration = time.monotonic() - self._began
        session = self.caller.session
        if self._book is not None:
            entry = self._entry(EntryKind.OUTCOME)
            entry.outcome = outcome
            entry.duration = duration
            entry.size = len(result)
            entry.result = result or None
            if session is not None:
                entry.counted = session.add_tokens
            self._book.note(entry)
        if self._sessions is not None and session is not None:
            self._sessions.count(session, outcome, len(result))
        kind = CallFinished if outcome == "ok" else CallFailed
        if self._bus.hears(kind):
            self._bus.publish(
                kind(
                    call_id=self.call_id,
                    caller=self.caller.agent,
                    name=self.name,
                    tool=self.tool.display,
                    server=self.tool.server,
                    decision=self.decision.verdict,
                    rule=self.decision.rule,
                    arguments=self.arguments,
                    meta=self.meta,
                    outcome=outcome,
                    duration=duration,
                    result_size=len(result),
                    failure=failure,
                )
            )

    def _entry(self, kind: EntryKind) -> AuditEntry:
        caller = self.caller
        session = caller.session
        return AuditEntry(
            kind=kind,
            at=time.time(),
            call=self.call_id,
            agent=caller.agent,
            session="" if session is None else session.id,
            conversation=caller.conversation,
            tool=self.tool.display,
            server=self.tool.server,
            decision=self.decision.verdict,
            rule=self.decision.rule,
            mode="full" if session is None else session.mode,
            arguments=None if self._noted else self.taken,
        )


AGENT_ENDED = Decision(Verdict.DENY, "the agent has ended or its token was replaced")


class ActiveCalls:
    def __init__(self, bus: Bus, roster: AgentRegistry, approvals: Approvals | None) -> None:
        self._roster = roster
        self._approvals = approvals
        self._lines: dict[str, set[CallRecord]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        bus.subscribe(self._judge_again, PermissionChanged, AgentEnded)

    def begin(self, line: CallRecord) -> None:
        if self._loop is None:
            # Kept, because asking for it costs a system call in some versions of Python.
            self._loop = asyncio.get_running_loop()
        line.task = asyncio.current_task(self._loop)
        lines = self._lines.get(line.caller.agent)
        if lines is None:
            lines = self._lines[line.caller.agent] = set()
        lines.add(line)

    def end(self, line: CallRecord) -> None:
        lines = self._lines.get(line.caller.agent)
        if lines is not None:
            lines.discard(line)
            if not lines:
                del self._lines[line.caller.agent]

    def _judge_again(self, event: Event) -> None:
        if not isinstance(event, PermissionChanged | AgentEnded):
            return
        stopped: set[asyncio.Task[object]] = set()
        for line in tuple(self._lines.get(event.agent, ())):
            decision = self._today(line) if isinstance(event, PermissionChanged) else AGENT_ENDED
            if decision.verdict is Verdict.DENY and line.task is not None:
                line.stopped = decision
                stopped.add(line.task)
            elif decision.verdict is Verdict.ALLOW and self._approvals is not None:
                self._approvals.release(line.call_id, why=decision.rule)
        # A command that calls another has two lines in one task: once is enough for both.
        for task in stopped:
            task.cancel("no longer permitted")

    def _today(self, line: CallRecord) -> Decision:
        try:
            agent = self._roster.find(line.caller.agent)
        except NotFound:
            return AGENT_ENDED
        return agent.permission.decide(line.tool, line.checked)
