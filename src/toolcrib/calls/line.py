"""A call's line in the book: the intent before it is forwarded, the outcome in any case.

In: who calls what, and what became of it. Out: entries for the book, events for whoever listens, counts for the
caller's session. `door` writes; where there is no book (a library's `Client`) only the events remain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolcrib.book.entry import Entry, Kind
from toolcrib.catalog.tool import Tool
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended
from toolcrib.policy import Caller, Decision

if TYPE_CHECKING:
    from toolcrib.agents.sessions import Sessions
    from toolcrib.book import Book


class Line:
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
        book: Book | None,
        sessions: Sessions | None,
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
            self._book.note(self._entry(Kind.INTENT))
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
            entry = self._entry(Kind.OUTCOME)
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

    def _entry(self, kind: Kind) -> Entry:
        caller = self.caller
        session = caller.session
        return Entry(
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
