"""Calls that passed the door and are not over yet: judged again whenever their caller's permission changes.

In: lines as calls begin and end, and what the bus tells of agents. Out: a call that is no longer permitted is stopped,
wherever it waits; one that waits for a person and needs no asking any more goes on. All of it happens before whoever
changed the permission hears that it is done. `door` is the only neighbour.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolcrib.calls.line import Line
from toolcrib.errors import NotFound
from toolcrib.events import AgentEnded, Bus, Event, PermissionChanged
from toolcrib.policy import Decision, Verdict

if TYPE_CHECKING:
    from toolcrib.agents.approvals import Approvals
    from toolcrib.agents.roster import Roster

ENDED = Decision(Verdict.DENY, "the agent has ended or its token was replaced")


class UnderWay:
    def __init__(self, bus: Bus, roster: Roster, approvals: Approvals | None) -> None:
        self._roster = roster
        self._approvals = approvals
        self._lines: dict[str, set[Line]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        bus.subscribe(self._judge_again, PermissionChanged, AgentEnded)

    def begin(self, line: Line) -> None:
        if self._loop is None:
            # Kept, because asking for it costs a system call in some versions of Python.
            self._loop = asyncio.get_running_loop()
        line.task = asyncio.current_task(self._loop)
        lines = self._lines.get(line.caller.agent)
        if lines is None:
            lines = self._lines[line.caller.agent] = set()
        lines.add(line)

    def end(self, line: Line) -> None:
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
            decision = self._today(line) if isinstance(event, PermissionChanged) else ENDED
            if decision.verdict is Verdict.DENY and line.task is not None:
                line.stopped = decision
                stopped.add(line.task)
            elif decision.verdict is Verdict.ALLOW and self._approvals is not None:
                self._approvals.release(line.call_id, why=decision.rule)
        # A command that calls another has two lines in one task: once is enough for both.
        for task in stopped:
            task.cancel("no longer permitted")

    def _today(self, line: Line) -> Decision:
        try:
            agent = self._roster.find(line.caller.agent)
        except NotFound:
            return ENDED
        return agent.permission.decide(line.tool, line.checked)
