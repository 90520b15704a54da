"""One account of a tool call from two: the line that the program prints, and what passed the gateway's door.

In: events as an `OutputParser` makes them, and `CallSeen` notes of the lease, in any order. Out: one event when a call
starts and one when it is over, with the gateway's arguments, outcome, time and decision wherever it saw the call. The
decision is in the second event alone: whether the gateway's note comes before the program's line is chance. What the
other side has not reported after a moment is not waited for; what the program printed meanwhile comes after it, so that
events keep the order of its lines. `run_lifecycle` is the only neighbour.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolcrib.coding_agents.client_spec import SERVER_NAME
from toolcrib.config.masking import HIDDEN
from toolcrib.daemon_client.lease import CallSeen
from toolcrib.events import CallOutcome
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

PATIENCE = 1.0
"""Seconds for which one side's word on a call waits for the other's."""

_STATUS: Mapping[str, ToolStatus] = {
    CallOutcome.OK: ToolStatus.OK,
    CallOutcome.DENIED: ToolStatus.DENIED,
    CallOutcome.INVALID: ToolStatus.INVALID,
    CallOutcome.UNKNOWN: ToolStatus.UNKNOWN,
    CallOutcome.TIMEOUT: ToolStatus.TIMEOUT,
    CallOutcome.CANCELLED: ToolStatus.CANCELLED,
    CallOutcome.UNAVAILABLE: ToolStatus.UNAVAILABLE,
}
"""By the audit log's word for an outcome; every other is an error."""


@dataclass(kw_only=True, eq=False)
class _Call:
    """What is known of a call that is not over yet, or not emitted."""

    name: str
    """As the program calls it."""
    start: AgentEvent | None = None
    """The program's word, as it was given on."""
    end: AgentEvent | None = None
    intent: CallSeen | None = None
    outcome: CallSeen | None = None
    id: str = ""
    """Given on with its start; empty: its start was not emitted yet."""
    due: float | None = None
    """When waiting for the other side ends."""

    @property
    def seen(self) -> CallSeen | None:
        return self.outcome or self.intent


class CallMatcher:
    def __init__(self, provider: str, *, mark: str = "") -> None:
        """`mark` is the key in a call's `_meta` under which the gateway gets the program's own id of it."""
        self.names: Mapping[str, tuple[str, str]] = {}
        """Server and tool by the name that the program was offered."""
        self._provider = provider
        self._mark = mark
        self._open: list[_Call] = []
        self._starts: dict[str, AgentEvent] = {}
        """The starts of calls of tools that are not ours and go on, by the program's id."""
        self._settled: set[str] = set()
        """Calls that ended by one side's report alone, by the other's id: its report may still come."""
        self._behind: deque[tuple[AgentEvent, float]] = deque()
        """What was printed, and when, after the end of a call that the gateway has not reported yet."""

    def printed(self, event: AgentEvent, now: float) -> Iterator[AgentEvent]:
        """An event of the program's."""
        self._behind.append((event, now))
        yield from self._released()

    def passed(self, seen: CallSeen, now: float) -> Iterator[AgentEvent]:
        """A call at the gateway: about to leave, or over."""
        if seen.call in self._settled:
            return
        call = self._of_seen(seen)
        if not seen.over:
            call.intent = seen
            if not call.id:
                # The program's own line usually comes at once; then its start is emitted with that.
                call.due = now + PATIENCE
            return
        call.outcome = seen
        if call.end is not None:
            yield from self._over(call)
            yield from self._released()
        else:
            call.due = now + PATIENCE

    def next_due(self) -> float | None:
        return min((call.due for call in self._open if call.due is not None), default=None)

    def overdue(self, now: float) -> Iterator[AgentEvent]:
        """What waited long enough for the other side's word."""
        for call in [one for one in self._open if one.due is not None and one.due <= now]:
            yield from self._without_waiting(call)
        yield from self._released()

    def finish(self) -> Iterator[AgentEvent]:
        """The run is over: whatever is still open is emitted now, and ends with it."""
        while self._behind:
            for call in self._awaited():
                yield from self._over(call)
            yield from self._released()
        for call in tuple(self._open):
            yield from self._without_waiting(call)
            if call in self._open:
                yield from self._over(call)
        for start in self._starts.values():
            yield replace(start, role="tool", raw=None, time=time.time(), tool_status=ToolStatus.CANCELLED)

    def _awaited(self) -> list[_Call]:
        return [call for call in self._open if call.end is not None]

    def _released(self) -> Iterator[AgentEvent]:
        while self._behind and not self._awaited():
            yield from self._emitted(*self._behind.popleft())

    def _emitted(self, event: AgentEvent, now: float) -> Iterator[AgentEvent]:
        if event.kind is not AgentEventKind.TOOL:
            yield event
        elif event.server != SERVER_NAME:
            yield self._timed(event)
        elif event.tool_status is ToolStatus.STARTED:
            yield from self._printed_start(event)
        else:
            yield from self._printed_end(event, now)

    def _printed_start(self, event: AgentEvent) -> Iterator[AgentEvent]:
        call = self._unprinted(event) or self._opened(event.tool_name)
        call.start = event
        if call.id:
            # The gateway's report came so much earlier that the start is out: the line is kept, and no more.
            yield _kept(event)
        else:
            call.due = call.due if call.outcome is not None else None
            yield self._started(call)

    def _printed_end(self, event: AgentEvent, now: float) -> Iterator[AgentEvent]:
        if event.call in self._settled:
            self._settled.discard(event.call)
            yield _kept(event)
            return
        call = next((one for one in self._open if one.start is not None and one.start.call == event.call), None)
        call = call or self._unprinted(event) or self._opened(event.tool_name)
        call.end = event
        if call.outcome is not None:
            yield from self._over(call)
        else:
            call.due = now + PATIENCE

    def _without_waiting(self, call: _Call) -> Iterator[AgentEvent]:
        call.due = None
        if call.end is not None or call.outcome is not None:
            yield from self._over(call)
        elif not call.id:
            yield self._started(call)

    def _started(self, call: _Call) -> AgentEvent:
        call.id = _id(call)
        seen, start = call.seen, call.start or call.end
        server, tool = self._named(call)
        return AgentEvent(
            kind=AgentEventKind.TOOL,
            provider=self._provider,
            role="assistant",
            raw=None if call.start is None else call.start.raw,
            time=start.time if start is not None else seen.at if seen is not None else 0.0,
            tool_name=tool,
            tool_args=start.tool_args if seen is None and start is not None else seen.arguments if seen else None,
            tool_status=ToolStatus.STARTED,
            server=server,
            call=call.id,
        )

    def _over(self, call: _Call) -> Iterator[AgentEvent]:
        if not call.id:
            yield self._started(call)
        self._open.remove(call)
        end, outcome, start = call.end, call.outcome, call.start
        if end is None and start is not None:
            self._settled.add(start.call)
        if outcome is None and call.intent is not None:
            self._settled.add(call.intent.call)
        server, tool = self._named(call)
        base = end or AgentEvent(
            kind=AgentEventKind.TOOL,
            provider=self._provider,
            role="tool",
            tool_status=ToolStatus.CANCELLED,
            server=SERVER_NAME,
        )
        base = replace(base, tool_name=tool, server=server, call=call.id)
        if base.tool_args is None and start is not None:
            base = replace(base, tool_args=start.tool_args)
        if outcome is None:
            intent = call.intent
            yield base if intent is None else replace(base, decision=intent.decision, rule=intent.rule)
            return
        yield replace(
            base,
            time=base.time if end is not None else outcome.at,
            text=base.text if outcome.failure in base.text else f"{outcome.failure}\n{base.text}".rstrip(),
            tool_args=base.tool_args if outcome.arguments is None else outcome.arguments,
            tool_status=_STATUS.get(outcome.outcome, ToolStatus.ERROR),
            tool_duration_ms=outcome.duration_ms,
            decision=outcome.decision,
            rule=outcome.rule,
        )

    def _of_seen(self, seen: CallSeen) -> _Call:
        for call in self._open:
            if call.intent is not None and call.intent.call == seen.call:
                return call
        mark = seen.meta.get(self._mark) if self._mark else None
        printed = [one for one in self._open if one.seen is None]
        found = next((one for one in printed if mark is not None and _id(one) == mark), None)
        if found is None and mark is None:
            found = _alike(printed, seen)
        return found or self._opened(seen.name)

    def _opened(self, name: str) -> _Call:
        self._open.append(_Call(name=name))
        return self._open[-1]

    def _unprinted(self, event: AgentEvent) -> _Call | None:
        """A call that the gateway saw, and that the program has not printed yet."""
        waiting = [
            one
            for one in self._open
            if one.start is None and one.end is None and one.seen is not None and one.name == event.tool_name
        ]
        if self._mark:
            marked = [one for one in waiting if one.seen is not None and one.seen.meta.get(self._mark) == event.call]
            return marked[0] if marked else None
        same = [one for one in waiting if one.seen is not None and one.seen.arguments == event.tool_args]
        near = [one for one in waiting if one.seen is not None and _may_be(event.tool_args, one.seen)]
        return next(iter(same or near), None)

    def _named(self, call: _Call) -> tuple[str, str]:
        if call.seen is not None and call.seen.server:
            return call.seen.server, call.seen.tool
        return self.names.get(call.name, (SERVER_NAME, call.name))

    def _timed(self, event: AgentEvent) -> AgentEvent:
        """A tool that is not ours: its time is between its lines, unless the program says it."""
        if event.tool_status is ToolStatus.STARTED:
            self._starts[event.call] = event
            return event
        began = self._starts.pop(event.call, None)
        if event.tool_duration_ms is not None or began is None:
            return event
        return replace(event, tool_duration_ms=round(max(0.0, event.time - began.time) * 1000, 1))


def _kept(event: AgentEvent) -> AgentEvent:
    """A line whose call was emitted already."""
    return AgentEvent(kind=AgentEventKind.RAW, provider=event.provider, role=event.role, raw=event.raw, time=event.time)


def _id(call: _Call) -> str:
    known = call.start or call.end or call.seen
    return "" if known is None else known.call


def _args(call: _Call) -> Mapping[str, Any] | None:
    event = call.start or call.end
    return None if event is None else event.tool_args


def _alike(calls: Iterable[_Call], seen: CallSeen) -> _Call | None:
    named = [one for one in calls if one.name == seen.name]
    same = [one for one in named if _args(one) == seen.arguments]
    near = [one for one in named if _may_be(_args(one), seen)]
    return next(iter(same or near), None)


def _may_be(printed: Mapping[str, Any] | None, seen: CallSeen) -> bool:
    """Whether the gateway's arguments may be those that the program printed.

    It masks secrets, leaves out what a client adds for itself, and leaves out large ones.
    """
    if printed is None:
        return True
    if seen.arguments is None:
        return seen.arguments_size == 0 if not printed else len(json.dumps(printed)) * 2 > seen.arguments_size
    sent = seen.arguments.items()
    return all(name in printed and (printed[name] == value or HIDDEN in json.dumps(value)) for name, value in sent)
