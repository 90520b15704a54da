"""One job that waits or runs, as the daemon has it in memory.

In: its row, its prompt, and what its worker says. Out: the row as it is now, and what is kept of it at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolcrib.daemon.jobs.worker import Worker
from toolcrib.store.jobs import JobRow, JobStatus

LONGEST_RESULT = 256 * 1024
"""Characters of a result that are kept."""
_LONGEST_ERROR = 4000


@dataclass(kw_only=True, eq=False)
class Job:
    row: JobRow
    prompt: str
    """Whole, where the row's is masked."""
    held: contextlib.ExitStack
    """Closed with it: the daemon is needed for so long."""
    worker: Worker | None = None
    stopped: str = ""
    """Why it was ended from here."""
    stopped_as: JobStatus = JobStatus.CANCELLED
    end: Mapping[str, Any] | None = None
    """What its worker said last."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, told: Mapping[str, Any]) -> None:
        """A line of its worker."""
        match told:
            case {"agent": str(agent)}:
                self.row = replace(self.row, agent=agent)
            case {"event": str(kind)}:
                steps = self.row.steps + (kind == "step_finished")
                self.row = replace(self.row, events=self.row.events + 1, steps=steps)
            case {"end": dict(end)}:
                self.end = end

    def outcome(self, how: str) -> tuple[JobStatus, dict[str, Any]]:
        """What is to be kept of it; `how` its process ended."""
        row = {"agent": self.row.agent, "steps": self.row.steps, "events": self.row.events}
        end = self.end
        if end is None:
            status = self.stopped_as if self.stopped else JobStatus.FAILED
            return status, {**row, "error": _cut(self.stopped or how, _LONGEST_ERROR)}
        kept = {**row, "text": _cut(str(end["text"]), LONGEST_RESULT), "usage": json.dumps(end["usage"])}
        if end["status"] == JobStatus.DONE:
            return JobStatus.DONE, kept
        status = self.stopped_as if self.stopped else JobStatus.FAILED
        return status, {**kept, "error": _cut(self.stopped or str(end["error"]), _LONGEST_ERROR)}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters were not kept]"
