"""What happens in a run of `run_agent`: one small class per fact.

In: nothing. Out: the classes, and `AnyRunEvent`, one of them. Each is an `AgentEvent` too (kind, role, text, provider,
tool_name …), so whoever reads the events of coding agents can read these; `type` names the fact, and `to_json` gives
all of it as plain JSON.
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
    """Tokens as the provider counted them: of one step, or of all."""

    input_tokens: int = 0
    """Read in all, those from the cache included."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    """Answers of the model."""


class RunEnd(enum.StrEnum):
    """Why a run is over that did not fail."""

    DONE = "done"
    """The model had nothing more to do."""
    MAX_STEPS = "max_steps"
    """It had its last step and wanted more."""
    TIMEOUT = "timeout"
    """Its time was up."""
    LENGTH = "length"
    """The model was cut off: its provider's, or your, limit of tokens for one answer."""
    REFUSED = "refused"
    """The provider's filter, or the model itself, declined to go on."""


@dataclass(frozen=True, kw_only=True)
class RunEvent(AgentEvent):
    """The base of all. `type` names the fact, `run_id` the run; `to_json()` is all of it, `print(event)` a line."""

    type: ClassVar[str]
    kind: AgentEventKind = AgentEventKind.LOG
    role: str = "toolcrib"
    run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **{name: _plain(value) for name, value in super().to_json().items()}}

    def __str__(self) -> str:
        """The fact in one line, for a person; without what is the same in every event of a run."""
        shown = {name: value for name, value in self.to_json().items() if name not in _SAME}
        return f"{self.type} {' '.join(f'{name}={json.dumps(value)}' for name, value in shown.items())}".rstrip()


_SAME = frozenset({"type", "kind", "role", "provider", "time", "run_id", "call", "messages", "blocks", "structured"})


def _plain(value: Any) -> Any:
    """What lies deeper came as JSON."""
    if isinstance(value, ModelUsage):
        return asdict(value)
    if isinstance(value, enum.StrEnum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """The first event: the options can work, and now the servers are connected."""

    type: ClassVar[Literal["run_started"]] = "run_started"
    model: str
    max_steps: int


@dataclass(frozen=True, kw_only=True)
class McpConnected(RunEvent):
    """All servers were tried; the model has not been asked yet. Without servers there is no such event."""

    type: ClassVar[Literal["mcp_connected"]] = "mcp_connected"
    servers: tuple[str, ...]
    """Those that are there."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """How many tools of each are offered."""


@dataclass(frozen=True, kw_only=True)
class McpWarning(RunEvent):
    """A server is not there, or not as it should be; the run goes on without it."""

    type: ClassVar[Literal["mcp_warning"]] = "mcp_warning"
    server: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NameConflict(RunEvent):
    """Two tools have one name: the one is offered, the other is not."""

    type: ClassVar[Literal["name_conflict"]] = "name_conflict"
    name: str
    kept: str
    """`server:tool`, or the name of a built-in tool."""
    left_out: str


@dataclass(frozen=True, kw_only=True)
class TextDelta(RunEvent):
    """`text` is a piece of what the model says; the pieces of a step add up to it."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    kind: AgentEventKind = AgentEventKind.MESSAGE
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ReasoningDelta(RunEvent):
    """`text` is a piece of what the model thinks, as far as its provider shows it."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    kind: AgentEventKind = AgentEventKind.REASONING
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ToolCalled(RunEvent):
    """The model calls a tool: `tool_name` (as the model has it), `server`, `tool_args`, `call`."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    kind: AgentEventKind = AgentEventKind.TOOL
    role: str = "assistant"


@dataclass(frozen=True, kw_only=True)
class ToolFinished(RunEvent):
    """A call is over: `tool_status`, `tool_duration_ms`, `call` and the rest as in its `ToolCalled`.

    `text` is what the model is told, as far as it is text."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    kind: AgentEventKind = AgentEventKind.TOOL
    role: str = "tool"
    blocks: Sequence[Mapping[str, Any]] = ()
    """The content blocks of the result, as MCP has them."""
    structured: Any = None


@dataclass(frozen=True, kw_only=True)
class Retrying(RunEvent):
    """The provider failed, or wants us to go slower: the same request is made again after `delay` seconds."""

    type: ClassVar[Literal["retrying"]] = "retrying"
    reason: str
    delay: float
    attempt: int
    """1 is the first repetition."""


@dataclass(frozen=True, kw_only=True)
class StepFinished(RunEvent):
    """The model has answered once, and its calls are done."""

    type: ClassVar[Literal["step_finished"]] = "step_finished"
    step: int
    """Counted from one."""
    usage: ModelUsage


@dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """The end. `text` is what the model said last."""

    type: ClassVar[Literal["run_finished"]] = "run_finished"
    kind: AgentEventKind = AgentEventKind.MESSAGE
    role: str = "assistant"
    ended: RunEnd
    usage: ModelUsage
    steps: int
    messages: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The whole conversation, as plain JSON: `AgentOptions.history` of a run that goes on."""


@dataclass(frozen=True, kw_only=True)
class RunFailed(RunEvent):
    """The end, where the run could not go on: the provider refused, or was not to be reached. `text` is what the model
    said last, if anything."""

    type: ClassVar[Literal["run_failed"]] = "run_failed"
    error: str
    remedy: str = ""
    usage: ModelUsage
    steps: int
    messages: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """As in `RunFinished`, as far as it came."""


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
"""Every event of a run. A type checker knows which it is after `event.type == "run_finished"`, too."""
