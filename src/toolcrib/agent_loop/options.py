"""The options of `run_agent`.

In: the program's values. Out: `AgentOptions`, which `setup` checks when a run starts.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.config.from_code import DeclaredServer
from toolcrib.config.model import ServerConfig
from toolcrib.core.answers import Answer

if TYPE_CHECKING:
    from toolcrib.catalog.offered_tool import Filter
    from toolcrib.catalog.transforms import Transform
    from toolcrib.core.provider import ToolProvider

MAX_STEPS = 30
CONNECT_LIMIT = 10.0
"""Seconds that a server has to connect."""


class CodingAccess(enum.StrEnum):
    """Which of the coding tools a run has."""

    NONE = "none"
    READ_ONLY = "read-only"
    """Read, Glob, Grep."""
    ALL = "all"
    """Also Write, Edit, Bash."""


@dataclass(frozen=True, kw_only=True)
class CodingTools:
    """Tools for files and commands, confined to one folder: `CodingTools.all("src")`, `CodingTools.read_only(".")`. The
    default is the current folder."""

    allowed: CodingAccess
    root: Path
    """The folder to which they are confined."""

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
    """A call that needs the program's approval."""

    name: str
    """As the model sees it."""
    server: str
    """Empty for the built-in tools."""
    arguments: Mapping[str, Any]
    """The real arguments: transforms undone, fixed arguments included. A copy: changes have no effect."""
    annotations: Mapping[str, Any]
    call: str


Approve = Callable[[ToolRequest], bool | str | Awaitable[bool | str]]
"""Returns True to allow the call. False, or a reason as text, refuses it, and the model gets the reason."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The model, tools and limits of a `run_agent` run. Only `model` is required:

        AgentOptions(model="anthropic:claude-sonnet-5-5", mcp_servers=[StdioServer("git", command="uvx", args=[…])])

    - model: `provider:model`; providers are openai, openai-responses, anthropic, google and openrouter
    - api_key, base_url, environ: the key, another address, and the environment with the key's usual variable
    - instructions, settings: the system prompt, and model settings such as {"temperature": 0}
    - mcp_servers, crib: servers for this run only, and an open Crib, Kit or Crib.connect()
    - keep, drop, transform: which of their tools are offered, and how
    - coding_tools: "none", "read-only", "all", or CodingTools.all(FOLDER)
    - approve: called before a tool may change something
    - answer: called when a server asks something during a call
    - history: the `messages` of an earlier run's last event
    - max_steps, timeout, retries: limits for model answers, seconds in total, and repetitions of a failed request
    """

    model: str
    """`provider:model`: openai, openai-responses, anthropic, google, openrouter."""
    api_key: str | None = field(default="", repr=False)
    """Defaults to the provider's usual variable. Only this key is sent to a `base_url`."""
    base_url: str | None = ""
    """Another address with the provider's API."""
    instructions: str = ""
    """The system prompt."""
    mcp_servers: Sequence[DeclaredServer | ServerConfig] = ()
    crib: ToolProvider | None = None
    """A `Crib` or `Crib.connect()` whose tools are also offered. The run does not close it."""
    keep: Filter | None = None
    drop: Filter | None = None
    transform: Sequence[Transform] | Transform = ()
    """Which of the servers' tools are offered, and how. Built-in tools are not affected."""
    coding_tools: CodingTools | CodingAccess | str = CodingAccess.NONE
    """A plain string uses the current folder."""
    max_steps: int = MAX_STEPS
    """Maximum number of model answers."""
    timeout: float | None = None
    """Seconds for the whole run."""
    history: Sequence[Mapping[str, Any]] = ()
    """The `messages` of a run's last event, to continue from there."""
    approve: Approve | None = None
    """Called before each call of a tool that may change something."""
    answer: Answer | None = None
    """Called when a server asks something during a call. Without it, the `crib` answers, and other servers' questions
    are cancelled."""
    retries: int = 4
    """How often a failed or rate-limited request is repeated."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Model settings: temperature, max_tokens …"""
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables to search for the provider's key. Defaults to this process's environment."""
