"""What a run was and how it ended.

In: nothing. Out: the classes that `CodeAgent` gives back, the log begins and ends with, and `toolcrib runs` shows.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.run_events import AgentEvent


class OnMcpFailure(enum.StrEnum):
    """What happens when Toolcrib's tools cannot be had, at the start or later."""

    STOP = "stop"
    CONTINUE = "continue"


class RunStatus(enum.StrEnum):
    RUNNING = "running"
    """Only in what is shown of a log that has no end yet."""
    FINISHED = "finished"
    FAILED = "failed"
    """The program says that it failed, ended with another code than 0, or without the line that ends its run."""
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    """A person or the calling program ended it."""
    REVOKED = "revoked"
    """Its identity was revoked while it ran."""
    NO_TOOLS = "no_tools"
    """Toolcrib's tools could not be had, and the run was not to go on without."""
    KILLED = "killed"
    """Only in what is shown of a log that has no end and no living process."""


REMEDIES: Mapping[RunStatus, str] = {
    RunStatus.TIMEOUT: "It may take longer with --timeout, for instance --timeout=4h.",
    RunStatus.REVOKED: "Its identity was revoked while it ran: `toolcrib audit` shows when. A new run has a new one.",
    RunStatus.NO_TOOLS: "`toolcrib status` shows whether the daemon runs, `toolcrib up` starts it; "
    "--on-mcp-failure continue goes on without these tools.",
}


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """The first line of a log."""

    run_id: str
    provider: str
    conversation: str
    agent: str
    profile: str
    own_tools: str
    workdir: str
    prompt: str
    prompt_bytes: int = 0
    """How long it was: a log keeps the beginning of a long one."""
    started_at: float
    pid: int
    """Of the process that runs the run."""
    pid_began: float
    """Tells it from another that has its number later."""
    program: str
    version: str
    session_before: str = ""
    """The program's own session that this run went on in."""
    governed: tuple[str, ...] = ()
    ungoverned: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ToolListSize:
    """The largest list of tools that was handed to the program."""

    tools: int = 0
    bytes: int = 0
    tokens: int = 0
    tokens_estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The last line of a log."""

    status: RunStatus
    program_exit_code: int | None = None
    """None where the program was never started. `toolcrib run` has an exit code of its own, by the status."""
    seconds: float
    text: str
    error: str = ""
    """Why the run did not finish."""
    remedy: str = ""
    """What can be done about it."""
    session: str = ""
    """The program's own session, by which a later run goes on."""
    model: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    session_usage: TokenUsage = field(default_factory=TokenUsage)
    """Of the program's whole session so far, from programs that count so; then `usage` is this run's part."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """How often each was called: `workspace:read_file`, or the program's own by their names alone."""
    denials: int = 0
    failures: int = 0
    """Calls that did not end well, without those that were denied."""
    listing: ToolListSize = field(default_factory=ToolListSize)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Servers whose tools the run never had, and why."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ExecutionResult:
    """How a coding agent's run ended: what it said last, all its events, what it cost."""

    text: str
    raw_events: tuple[AgentEvent, ...]
    """All of them, in order."""
    usage: TokenUsage
    status: RunStatus
    program_exit_code: int | None
    error: str
    metadata: Mapping[str, Any]
    """run_id, log (its path), conversation, agent, profile, provider, workdir, seconds, tools, denials …"""

    @property
    def ok(self) -> bool:
        return self.status is RunStatus.FINISHED

    @property
    def run_id(self) -> str:
        return str(self.metadata["run_id"])

    @property
    def log(self) -> Path:
        return Path(str(self.metadata["log"]))
