"""Merges two reports of a tool call: the line that the program prints and the call that the gateway saw.

In: events from an `OutputParser` and `CallSeen` notes from the lease, in any order. Out: one event when a call starts
and one when it ends, with the gateway's arguments, outcome, time and decision if it saw the call. Only the second event
has the decision, because either report may arrive first. If the second report doesn't arrive within a moment, the event
is emitted without it. Lines printed in the meantime are emitted afterwards, so events keep the order of the lines. Used
by `run_lifecycle` only.
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
from toolcrib.listing import NAMED_GATEWAY_TOOLS, GatewayTool
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

PATIENCE = 1.0
"""Seconds that one side's report of a call waits for the other's."""

_STATUS: Mapping[str, ToolStatus] = {
    CallOutcome.OK: ToolStatus.OK,
    CallOutcome.DENIED: ToolStatus.DENIED,
    CallOutcome.INVALID: ToolStatus.INVALID,
    CallOutcome.UNKNOWN: ToolStatus.UNKNOWN,
    CallOutcome.TIMEOUT: ToolStatus.TIMEOUT,
    CallOutcome.CANCELLED: ToolStatus.CANCELLED,
    CallOutcome.UNAVAILABLE: ToolStatus.UNAVAILABLE,
}
"""By the audit log's outcome; all others are errors."""


@dataclass(kw_only=True, eq=False)
class _Call:
    """A call that has not ended or has not been emitted."""

    name: str
    """The name that the program uses."""
    start: AgentEvent | None = None
    """The program's report, as received."""
    end: AgentEvent | None = None
    intent: CallSeen | None = None
    outcome: CallSeen | None = None
    id: str = ""
    """Set when the start is emitted."""
    due: float | None = None
    """When to stop waiting for the other side."""

    @property
    def seen(self) -> CallSeen | None:
        return self.outcome or self.intent


class CallMatcher:
    def __init__(self, provider: str, *, mark: str = "") -> None:
        """`mark` is the key in a call's `_meta` that holds the program's id of the call."""
        self.names: Mapping[str, tuple[str, str]] = {}
        """Server and tool by the name that was offered to the program."""
        self._provider = provider
        self._mark = mark
        self._open: list[_Call] = []
        self._starts: dict[str, AgentEvent] = {}
        """Open calls of tools that are not Toolcrib's, by the program's id."""
        self._settled: set[str] = set()
        """Calls that ended after one side's report, by the id of the other side, whose report may still arrive."""
        self._behind: deque[tuple[AgentEvent, float]] = deque()
        """Lines, with their times, printed after the end of a call that the gateway has not reported yet."""

    def printed(self, event: AgentEvent, now: float) -> Iterator[AgentEvent]:
        """Handles an event from the program."""
        self._behind.append((_unwrapped(event), now))
        yield from self._released()

    def passed(self, seen: CallSeen, now: float) -> Iterator[AgentEvent]:
        """Handles a call at the gateway: about to be forwarded, or ended."""
        if seen.call in self._settled:
            return
        call = self._of_seen(seen)
        if not seen.over:
            call.intent = seen
            if not call.id:
                # The program's line usually follows at once; the start is then emitted with it.
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
        """Emits the calls that have waited long enough for the other side."""
        for call in [call for call in self._open if call.due is not None and call.due <= now]:
            yield from self._without_waiting(call)
        yield from self._released()

    def finish(self) -> Iterator[AgentEvent]:
        """Emits and ends all open calls at the end of the run."""
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
            # The gateway's report came so much earlier that the start was already emitted. Keep the line only.
            yield _kept(event)
        else:
            call.due = call.due if call.outcome is not None else None
            yield self._started(call)

    def _printed_end(self, event: AgentEvent, now: float) -> Iterator[AgentEvent]:
        if event.call in self._settled:
            self._settled.discard(event.call)
            yield _kept(event)
            return
        call = next((call for call in self._open if call.start is not None and call.start.call == event.call), None)
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
        printed = [call for call in self._open if call.seen is None]
        found = next((call for call in printed if mark is not None and _id(call) == mark), None)
        if found is None and mark is None:
            found = _alike(printed, seen)
        return found or self._opened(seen.name)

    def _opened(self, name: str) -> _Call:
        self._open.append(_Call(name=name))
        return self._open[-1]

    def _unprinted(self, event: AgentEvent) -> _Call | None:
        """A call that the gateway saw and the program has not printed yet."""
        waiting = [
            call
            for call in self._open
            if call.start is None and call.end is None and call.seen is not None and call.name == event.tool_name
        ]
        if self._mark:
            marked = [
                call for call in waiting if call.seen is not None and call.seen.meta.get(self._mark) == event.call
            ]
            return marked[0] if marked else None
        same = [call for call in waiting if call.seen is not None and call.seen.arguments == event.tool_args]
        near = [call for call in waiting if call.seen is not None and _may_match(event.tool_args, call.seen)]
        return next(iter(same or near), None)

    def _named(self, call: _Call) -> tuple[str, str]:
        if call.seen is not None and call.seen.server:
            return call.seen.server, call.seen.tool
        return self.names.get(call.name, (SERVER_NAME, call.name))

    def _timed(self, event: AgentEvent) -> AgentEvent:
        """For tools that are not Toolcrib's: the time between the two lines, unless the program reports a duration."""
        if event.tool_status is ToolStatus.STARTED:
            self._starts[event.call] = event
            return event
        began = self._starts.pop(event.call, None)
        if event.tool_duration_ms is not None or began is None:
            return event
        return replace(event, tool_duration_ms=round(max(0.0, event.time - began.time) * 1000, 1))


def _unwrapped(event: AgentEvent) -> AgentEvent:
    """The call that `crib_call` makes: the gateway reports only that one."""
    given = event.tool_args
    if event.server != SERVER_NAME or given is None or not isinstance(given.get("tool"), str):
        return event
    if NAMED_GATEWAY_TOOLS.get(event.tool_name) is not GatewayTool.CALL:
        return event
    inner = given.get("arguments")
    return replace(event, tool_name=given["tool"], tool_args=inner if isinstance(inner, Mapping) else {})


def _kept(event: AgentEvent) -> AgentEvent:
    """A line whose call was already emitted."""
    return AgentEvent(kind=AgentEventKind.RAW, provider=event.provider, role=event.role, raw=event.raw, time=event.time)


def _id(call: _Call) -> str:
    known = call.start or call.end or call.seen
    return "" if known is None else known.call


def _args(call: _Call) -> Mapping[str, Any] | None:
    event = call.start or call.end
    return None if event is None else event.tool_args


def _alike(calls: Iterable[_Call], seen: CallSeen) -> _Call | None:
    named = [call for call in calls if call.name == seen.name]
    same = [call for call in named if _args(call) == seen.arguments]
    near = [call for call in named if _may_match(_args(call), seen)]
    return next(iter(same or near), None)


def _may_match(printed: Mapping[str, Any] | None, seen: CallSeen) -> bool:
    """Whether the gateway's arguments can be those that the program printed.

    The gateway masks secrets, drops a client's private arguments and omits large ones.
    """
    if printed is None:
        return True
    if seen.arguments is None:
        return seen.arguments_size == 0 if not printed else len(json.dumps(printed)) * 2 > seen.arguments_size
    sent = seen.arguments.items()
    return all(name in printed and (printed[name] == value or HIDDEN in json.dumps(value)) for name, value in sent)
