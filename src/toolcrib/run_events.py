"""The events of a run, in one form for all clients.

In: facts from a client's printed lines and from the gateway. Out: `AgentEvent`, the same in the stream, in
`ExecutionResult.raw_events` and in the run's log.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

FAILURE_KEY = "toolcrib/failure"
"""The key in a result's `_meta` for a short failure report from a tool: an exit code, failing tests. The call itself
succeeded, so MCP doesn't treat it as an error."""
_MAX_FAILURE_LENGTH = 200


def failure_in(meta: Any) -> str:
    """The failure in a result's `_meta`; empty if there is none or it has an unexpected type."""
    text = meta.get(FAILURE_KEY) if isinstance(meta, dict) else None
    return " ".join(text[:_MAX_FAILURE_LENGTH].split()) if isinstance(text, str) else ""


class AgentEventKind(enum.StrEnum):
    REASONING = "reasoning"
    MESSAGE = "message"
    TOOL = "tool"
    """A tool call: one event when it starts, one when it ends."""
    LOG = "log"
    """A message from the program or Toolcrib about the run itself."""
    RAW = "raw"
    """A printed line that is none of the above. It is kept so that nothing is lost."""


class ToolStatus(enum.StrEnum):
    STARTED = "started"
    OK = "ok"
    ERROR = "error"
    """The tool or its server reported a failure, or a command or test that the tool ran failed."""
    DENIED = "denied"
    """Refused by Toolcrib (see `rule`) or by the program itself."""
    INVALID = "invalid"
    """The arguments don't match the tool's schema."""
    UNKNOWN = "unknown"
    """No such tool exists."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    """Its server could not be reached."""


@dataclass(frozen=True, kw_only=True)
class AgentEvent:
    """One event of an agent's run: a message, a tool call, a log line."""

    kind: AgentEventKind
    provider: str
    role: str = ""
    """assistant, user, system, tool, or toolcrib."""
    text: str = ""
    raw: Any = None
    """The complete printed line, in the first event made from it."""
    time: float = field(default_factory=time.time)
    tool_name: str = ""
    """The name that the server uses."""
    tool_args: Mapping[str, Any] | None = None
    tool_status: ToolStatus | None = None
    tool_duration_ms: float | None = None
    server: str = ""
    """The tool's server, behind Toolcrib or configured in the program; empty for the program's built-in tools."""
    decision: str = ""
    """Toolcrib's decision: allow, ask or deny. Empty if the call didn't pass through Toolcrib."""
    rule: str = ""
    """The rule that decided, in words."""
    call: str = ""
    """Identical for a call's start and end."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without empty fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != ""}
