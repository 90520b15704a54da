"""The events of a `run_agent` run: one small class each.

In: nothing. Out: the classes, and `AnyRunEvent`, their union. Each is also an `AgentEvent` (kind, role, text, provider,
tool_name …), so code that reads coding agents' events can read these too. `type` names the event, and `to_json` returns
it as plain JSON.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from toolcrib.run_events import AgentEvent, AgentEventKind


@dataclass(frozen=True, kw_only=True)
class ModelUsage:
    """Tokens as counted by the provider, for one step or the whole run."""

    input_tokens: int = 0
    """Includes tokens read from the cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    """Number of model answers."""


class RunEnd(enum.StrEnum):
    """Why a run ended without failing."""

    DONE = "done"
    """The model had nothing more to do."""
    MAX_STEPS = "max_steps"
    """The step limit was reached while the model still called tools."""
    TIMEOUT = "timeout"
    """The time limit was reached."""
    LENGTH = "length"
    """The answer was cut off at the provider's or your token limit."""
    REFUSED = "refused"
    """The provider's filter, or the model itself, declined to continue."""


@dataclass(frozen=True, kw_only=True)
class RunEvent(AgentEvent):
    """The base class. `type` names the event, `run_id` the run; `to_json()` has all fields, `print(event)` one line."""

    type: ClassVar[str]
    kind: AgentEventKind = AgentEventKind.LOG
    role: str = "toolcrib"
    run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **{name: _plain(value) for name, value in super().to_json().items()}}

    def __str__(self) -> str:
        """The event on one line, without the fields that all events of a run share."""
        shown = {name: value for name, value in self.to_json().items() if name not in _SHARED_FIELDS}
        return f"{self.type} {' '.join(f'{name}={json.dumps(value)}' for name, value in shown.items())}".rstrip()


_SHARED_FIELDS = frozenset(
    {"type", "kind", "role", "provider", "time", "run_id", "call", "messages", "blocks", "structured"}
)


def _plain(value: Any) -> Any:
    """Nested values are JSON already."""
    if isinstance(value, ModelUsage):
        return asdict(value)
    if isinstance(value, enum.StrEnum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """The first event: the options are valid, and the servers are about to be connected."""

    type: ClassVar[Literal["run_started"]] = "run_started"
    model: str
    max_steps: int


@dataclass(frozen=True, kw_only=True)
class McpConnected(RunEvent):
    """All servers connected or failed, before the first model request. Not emitted without servers."""

    type: ClassVar[Literal["mcp_connected"]] = "mcp_connected"
    servers: tuple[str, ...]
    """The connected servers."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """Number of offered tools by server."""


@dataclass(frozen=True, kw_only=True)
class McpWarning(RunEvent):
    """A server is missing or has a problem; the run continues without it."""

    type: ClassVar[Literal["mcp_warning"]] = "mcp_warning"
    server: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NameConflict(RunEvent):
    """Two tools have the same name: one is offered, the other is not."""

    type: ClassVar[Literal["name_conflict"]] = "name_conflict"
    name: str
    kept: str
    """`server:tool`, or the name of a built-in tool."""
    left_out: str


@dataclass(frozen=True, kw_only=True)
class TextDelta(RunEvent):
    """`text` is the next piece of the model's message in this step."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    kind: AgentEventKind = AgentEventKind.MESSAGE
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ReasoningDelta(RunEvent):
    """`text` is the next piece of the model's reasoning, if its provider shows it."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    kind: AgentEventKind = AgentEventKind.REASONING
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ToolCalled(RunEvent):
    """The model calls a tool: `tool_name` (as the model sees it), `server`, `tool_args`, `call`."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    kind: AgentEventKind = AgentEventKind.TOOL
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ToolFinished(RunEvent):
    """A call ended: `tool_status`, `tool_duration_ms`, `call` and the other fields as in its `ToolCalled`.

    `text` is the text part of the result as the model sees it."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    kind: AgentEventKind = AgentEventKind.TOOL
    role: str = "tool"
    blocks: Sequence[Mapping[str, Any]] = ()
    """The result's MCP content blocks."""
    structured: Any = None


@dataclass(frozen=True, kw_only=True)
class Retrying(RunEvent):
    """The provider failed or limits the rate: the request is repeated after `delay` seconds."""

    type: ClassVar[Literal["retrying"]] = "retrying"
    reason: str
    delay: float
    attempt: int
    """1 for the first repetition."""


@dataclass(frozen=True, kw_only=True)
class StepFinished(RunEvent):
    """The model answered, and its calls are done."""

    type: ClassVar[Literal["step_finished"]] = "step_finished"
    step: int
    """Starts at 1."""
    usage: ModelUsage


@dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """The last event of a run that did not fail. `text` is the model's last message."""

    type: ClassVar[Literal["run_finished"]] = "run_finished"
    kind: AgentEventKind = AgentEventKind.MESSAGE
    role: str = "assistant"
    ended: RunEnd
    usage: ModelUsage
    steps: int
    messages: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The whole conversation as plain JSON. Pass it as `AgentOptions.history` to continue."""


@dataclass(frozen=True, kw_only=True)
class RunFailed(RunEvent):
    """The last event of a run that failed, for example because the provider was not reachable. `text` is the model's
    last message, if any."""

    type: ClassVar[Literal["run_failed"]] = "run_failed"
    error: str
    remedy: str = ""
    usage: ModelUsage
    steps: int
    messages: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """As in `RunFinished`, up to the failure."""


AnyRunEvent: TypeAlias = (
    RunStarted
    | McpConnected
    | McpWarning
    | NameConflict
    | TextDelta
    | ReasoningDelta
    | ToolCalled
    | ToolFinished
    | Retrying
    | StepFinished
    | RunFinished
    | RunFailed
)
"""Any event of a run. Type checkers also narrow it by `event.type == "run_finished"`."""
