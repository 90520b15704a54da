"""The metadata, status and result of a run.

In: nothing. Out: the classes that `CodeAgent` returns, the run log starts and ends with, and `toolcrib runs` shows.
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
    """What to do when Toolcrib's tools are unavailable, at the start or later."""

    STOP = "stop"
    CONTINUE = "continue"


class RunStatus(enum.StrEnum):
    RUNNING = "running"
    """Shown for a log without a summary whose process is alive."""
    FINISHED = "finished"
    FAILED = "failed"
    """The program reported a failure, exited with a nonzero code, or did not print its final line."""
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    """The user or the calling program ended it."""
    REVOKED = "revoked"
    """Its identity was revoked while it ran."""
    NO_TOOLS = "no_tools"
    """Toolcrib's tools were unavailable, and the run was not allowed to continue without them."""
    KILLED = "killed"
    """Shown for a log without a summary whose process is gone."""


REMEDIES: Mapping[RunStatus, str] = {
    RunStatus.TIMEOUT: "Set a longer limit with --timeout, for example --timeout=4h.",
    RunStatus.REVOKED: "`toolcrib audit` shows when its identity was revoked. A new run gets a new one.",
    RunStatus.NO_TOOLS: "`toolcrib status` shows whether the daemon is running, `toolcrib up` starts it. "
    "Use --on-mcp-failure continue to run without these tools.",
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
    """The full length: a log keeps only the beginning of a long prompt."""
    started_at: float
    pid: int
    """The process that executes the run."""
    pid_began: float
    """Distinguishes it from a later process with the same pid."""
    program: str
    version: str
    session_before: str = ""
    """The program's session that this run continued."""
    governed: tuple[str, ...] = ()
    ungoverned: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ToolListSize:
    """The largest tool list that was sent to the program."""

    mode: str = ""
    """How much of each tool it showed; empty if none was sent."""
    tools: int = 0
    bytes: int = 0
    tokens: int = 0
    tokens_estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The last line of a log."""

    status: RunStatus
    program_exit_code: int | None = None
    """None if the program was never started. The exit code of `toolcrib run` depends on the status."""
    seconds: float
    text: str
    error: str = ""
    """Why the run did not finish."""
    remedy: str = ""
    """How to fix it."""
    session: str = ""
    """The program's session, which a later run can continue."""
    model: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    session_usage: TokenUsage = field(default_factory=TokenUsage)
    """For programs that count per session: the whole session so far. `usage` is then this run's part."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """Calls per tool: `workspace:read_file`, or just the name for the program's built-in tools."""
    denials: int = 0
    failures: int = 0
    """Unsuccessful calls, except denied ones."""
    listing: ToolListSize = field(default_factory=ToolListSize)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Servers whose tools the run never got, and why."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def token_usage(self) -> dict[str, Any] | None:
        """What the tool list cost, next to the tokens that the provider reported; None if there is neither."""
        if (self.usage, self.listing) == (TokenUsage(), ToolListSize()):
            return None
        return {
            "input_tokens": self.usage.input,
            "cache_creation_tokens": self.usage.cache_write,
            "cache_read_tokens": self.usage.cached,
            "output_tokens": self.usage.output,
            "mode": self.listing.mode,
            "tools": self.listing.tools,
            "list_tokens": self.listing.tokens,
            "list_tokens_estimated": self.listing.tokens_estimated,
        }


@dataclass(frozen=True, kw_only=True)
class ExecutionResult:
    """The result of a coding agent's run: its last message, all events, token usage."""

    text: str
    raw_events: tuple[AgentEvent, ...]
    """All events, in order."""
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
