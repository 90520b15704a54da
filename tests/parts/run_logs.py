"""Logs of coding agents' runs: metadata, summaries, events and files for tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.process_alive import process_started_at
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_log import RunLog
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

SEALS = LogSeals(b"s" * 32)
OLD, NEW = "20261115-100000-00000a", "20261116-100000-00000b"
NO_PROCESS = 0.5
"""No process started then."""
CALL = AgentEvent(
    kind=AgentEventKind.TOOL,
    provider="claude",
    tool_name="read_file",
    server="workspace",
    tool_args={"path": "a.py"},
    tool_status=ToolStatus.OK,
    tool_duration_ms=12.0,
    call="1",
)


def metadata(run_id: str = "20261116-100000-00000a", **given: Any) -> RunMetadata:
    """The metadata of a run in this process."""
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
        "pid_began": process_started_at(os.getpid()) or 0.0,
        "program": "/bin/claude",
        "version": "2.1.325",
    }
    return RunMetadata(**(usual | given))


def summary(**given: Any) -> RunSummary:
    return RunSummary(
        **({"status": RunStatus.FINISHED, "program_exit_code": 0, "seconds": 2.5, "text": "done"} | given)
    )


def message(text: str, **given: Any) -> AgentEvent:
    return AgentEvent(kind=AgentEventKind.MESSAGE, provider="claude", role="assistant", text=text, **given)


def log_event(text: str, role: str = "system", **given: Any) -> AgentEvent:
    return AgentEvent(kind=AgentEventKind.LOG, provider="claude", role=role, text=text, **given)


def write_log(
    root: Path,
    about: RunMetadata,
    *events: AgentEvent,
    end: RunSummary | None = None,
    session: str = "",
    seals: LogSeals = SEALS,
) -> Path:
    """The log of a run; without `end`, of one that was killed."""
    root.mkdir(exist_ok=True)
    log = RunLog.open(root, about, seals=seals)
    if session:
        log.session(session)
    for event in events:
        log.event(event)
    if end is not None:
        log.end(end)
    return log.path
