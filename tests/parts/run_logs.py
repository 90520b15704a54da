"""Runs of coding agents as their logs have them: metadata and summaries for tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from toolcrib.agent_events import AgentEvent, Kind
from toolcrib.runs.alive import began
from toolcrib.runs.log import RunLog
from toolcrib.runs.result import Metadata, Status, Summary
from toolcrib.runs.seal import Seals

SEALS = Seals(b"s" * 32)
NOBODY = 0.5
"""No process began then."""


def metadata(run_id: str = "20261116-100000-00000a", **given: Any) -> Metadata:
    """Of a run in this very process, unless said otherwise."""
    usual: dict[str, Any] = {
        "run_id": run_id,
        "provider": "claude",
        "conversation": "c0ffee",
        "agent": "claude-c0ffee",
        "profile": "developer",
        "own_tools": "edit",
        "workdir": "/project",
        "prompt": "fix the failing test",
        "started_at": time.time(),
        "pid": os.getpid(),
        "pid_began": began(os.getpid()) or 0.0,
        "program": "/bin/claude",
        "version": "2.1.325",
    }
    return Metadata(**(usual | given))


def summary(**given: Any) -> Summary:
    return Summary(**({"status": Status.FINISHED, "program_exit_code": 0, "seconds": 2.5, "text": "done"} | given))


def message(text: str, **given: Any) -> AgentEvent:
    return AgentEvent(kind=Kind.MESSAGE, provider="claude", role="assistant", text=text, **given)


def written(
    root: Path,
    about: Metadata,
    *events: AgentEvent,
    end: Summary | None = None,
    session: str = "",
    seals: Seals = SEALS,
) -> Path:
    """A log as a run leaves it; without an end, as a run that was cut off does."""
    log = RunLog.open(root, about, seals=seals)
    if session:
        log.session(session)
    for event in events:
        log.event(event)
    if end is not None:
        log.end(end)
    return log.path
