"""What happens in a run, in one form for all clients.

In: facts from a client's printed lines and from the gateway. Out: `AgentEvent`: the same in the stream, in
`ExecutionResult.raw_events` and in the run's log.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

FAILURE_KEY = "toolcrib/failure"
"""The key in a result's `_meta` under which a tool says, in a few words, that what it ran failed: an exit code, failing
tests. The call itself went well, so for MCP it is no error."""
_LONGEST_FAILURE = 200


def failure_in(meta: Any) -> str:
    """What stands there in a result's `_meta`, whatever that holds."""
    said = meta.get(FAILURE_KEY) if isinstance(meta, dict) else None
    return " ".join(said[:_LONGEST_FAILURE].split()) if isinstance(said, str) else ""


class AgentEventKind(enum.StrEnum):
    REASONING = "reasoning"
    MESSAGE = "message"
    TOOL = "tool"
    """A tool call: once when it starts, once when it is over."""
    LOG = "log"
    """What the program or Toolcrib has to say about the run itself."""
    RAW = "raw"
    """A printed line that is none of the above: kept, so that nothing is lost."""


class ToolStatus(enum.StrEnum):
    STARTED = "started"
    OK = "ok"
    ERROR = "error"
    """The tool, or its server, says that it failed; or that what it ran did: a command, tests."""
    DENIED = "denied"
    """Not permitted: by Toolcrib, which then gives its rule, or by the program itself."""
    INVALID = "invalid"
    """The arguments do not fit."""
    UNKNOWN = "unknown"
    """There is no such tool."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    """Its server could not be reached."""


@dataclass(frozen=True, kw_only=True)
class AgentEvent:
    """Something that happened in an agent's run: a message, a tool's call, a line of its log."""

    kind: AgentEventKind
    provider: str
    role: str = ""
    """assistant, user, system, tool, or toolcrib."""
    text: str = ""
    raw: Any = None
    """What the program printed, whole: in the first event that a line became."""
    time: float = field(default_factory=time.time)
    tool_name: str = ""
    """As its server calls it."""
    tool_args: Mapping[str, Any] | None = None
    tool_status: ToolStatus | None = None
    tool_duration_ms: float | None = None
    server: str = ""
    """Whose tool it is: a server behind Toolcrib, or another that the program has; empty for the program's own."""
    decision: str = ""
    """allow, ask or deny, as Toolcrib decided; empty where it was not asked."""
    rule: str = ""
    """The rule that decided, in words."""
    call: str = ""
    """The same for a call's start and its end."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without what is empty."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in given.items() if value is not None and value != ""}
