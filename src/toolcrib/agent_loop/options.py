"""What can be chosen for a run of `run_agent`.

In: the program's words. Out: `AgentOptions`, checked by `setup` when a run begins.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.config.from_code import DeclaredServer
from toolcrib.config.model import ServerConfig

if TYPE_CHECKING:
    from toolcrib.catalog.offered_tool import Filter
    from toolcrib.catalog.transforms import Transform
    from toolcrib.core.provider import ToolProvider

MAX_STEPS = 30
CONNECT_LIMIT = 10.0
"""Seconds that a server has to be there."""


class CodingAccess(enum.StrEnum):
    """Which of the coding tools a run has."""

    NONE = "none"
    READ_ONLY = "read-only"
    """Read, Glob, Grep."""
    ALL = "all"
    """And Write, Edit, Bash."""


@dataclass(frozen=True, kw_only=True)
class CodingTools:
    """The tools for files and commands, in one folder, which they cannot leave: `CodingTools.all("src")`,
    `CodingTools.read_only(".")`. Without a folder it is the current one."""

    allowed: CodingAccess
    root: Path
    """The folder they work in, and cannot leave."""

    @classmethod
    def read_only(cls, root: str | Path = ".") -> CodingTools:
        """Read, Glob and Grep."""
        return cls(allowed=CodingAccess.READ_ONLY, root=Path(root))

    @classmethod
    def all(cls, root: str | Path = ".") -> CodingTools:
        """Read, Glob, Grep, Write, Edit and Bash."""
        return cls(allowed=CodingAccess.ALL, root=Path(root))


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """A call that the program is asked to approve."""

    name: str
    """As the model has it."""
    server: str
    """Empty for the built-in tools."""
    arguments: Mapping[str, Any]
    """What the tool is called with: transforms undone, fixed arguments included. A copy: changes have no effect."""
    annotations: Mapping[str, Any]
    call: str


Approve = Callable[[ToolRequest], bool | str | Awaitable[bool | str]]
"""True: it may run. False, or a text with the reason: it does not, and the model is told so."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What `run_agent` shall do, by which model, and with which tools. Only `model` must be given:

        AgentOptions(model="anthropic:claude-sonnet-5-5", mcp_servers=[StdioServer("git", command="uvx", args=[…])])

    model: `provider:model`, of openai, openai-responses, anthropic, google, openrouter api_key, base_url, environ: the
    key, another address, and where the usual variable of the key is looked for instructions, settings: the system
    prompt; what the model is asked with, as {"temperature": 0} mcp_servers, crib: servers for this run alone; an open
    Crib, Kit or Crib.connect() besides keep, drop, transform: which of their tools are offered, and how coding_tools:
    "none", "read-only", "all", or CodingTools.all(FOLDER) approve: asked before a tool may change something history:
    the `messages` of an earlier run's last event max_steps, timeout, retries: answers of the model, seconds in all,
    repetitions of a request that failed
    """

    model: str
    """`provider:model`: openai, openai-responses, anthropic, google, openrouter."""
    api_key: str | None = field(default="", repr=False)
    """Unless given, the provider's usual variable; to a `base_url` no key is sent but this one."""
    base_url: str | None = ""
    """Another place that speaks the provider's API."""
    instructions: str = ""
    """The system prompt."""
    mcp_servers: Sequence[DeclaredServer | ServerConfig] = ()
    crib: ToolProvider | None = None
    """A crib whose tools are offered, too: a `Crib`, or `Crib.connect()`. The run does not close it."""
    keep: Filter | None = None
    drop: Filter | None = None
    transform: Sequence[Transform] | Transform = ()
    """What is offered of the servers' tools, and how; the built-in ones are not touched."""
    coding_tools: CodingTools | CodingAccess | str = CodingAccess.NONE
    """A text alone: in the current folder."""
    max_steps: int = MAX_STEPS
    """Answers of the model."""
    timeout: float | None = None
    """Seconds for the whole run."""
    history: Sequence[Mapping[str, Any]] = ()
    """The `messages` of a run's last event: this run goes on there."""
    approve: Approve | None = None
    """Asked before each call of a tool that may change something."""
    retries: int = 4
    """How often a request is made again that the provider failed, or refused for now."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the model is asked with: temperature, max_tokens …"""
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    """Where the provider's key is looked for: this process's environment, unless given."""
