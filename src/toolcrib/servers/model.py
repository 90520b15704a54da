"""Types that `servers` shares with the packages above it.

They describe a call to a server, its answer, and a server's state. Types created for every call are msgspec structs:
frozen like a dataclass, and created in a tenth of the time.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from toolcrib.servers.questions import CallAsker, PassedQuestions

MODERN_VERSION = "2026-07-28"


class Era(enum.StrEnum):
    """A generation of the MCP protocol."""

    MODERN = "modern"
    LEGACY = "legacy"


class ServerState(enum.StrEnum):
    IDLE = "idle"
    """Not running; it starts with its next call."""
    CONNECTING = "connecting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """Not connected; the supervisor keeps retrying."""
    FAILED = "failed"
    """Not connected; no retries until a restart."""
    STOPPED = "stopped"


OnProgress = Callable[[dict[str, Any]], None]
"""Receives a progress notification's params without the token, which differs between client and server."""


class LogWish(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The log messages that the caller of one request wants."""

    level: str
    """The least important ones."""
    receive: Callable[[Mapping[str, Any]], None]
    """Gets their params."""
    untagged: bool
    """Whether it also gets messages that name no request, as those over a pipe. Legacy clients get these for their
    connection."""


LONGEST_ADDRESS = 4096
"""Characters of a resource's address. Rules compare many spellings of each."""
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "resources/subscribe": "uri"}
NAMED_BY |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
"""The requests that concern one of a server's offers or tasks, and the member of their params that names it."""


class TaskTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a call of a tool becomes a task, whose result is fetched later."""

    support: str = ""
    """The tool's `execution.taskSupport`: `required`, `optional` or empty."""
    taken: bool = False
    """Whether the caller takes a task as the answer; otherwise its result is waited for."""
    wish: Raw | None = None
    """`params.task` of a legacy caller."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request as sent to the server: a call, or another that the door lets through. Raw JSON stays raw."""

    name: str
    """The server's own name for the tool or prompt, or the resource's URI."""
    method: str = "tools/call"
    params: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    """The caller's params, unchanged (`arguments` and any others), without `name` and `_meta`."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The caller's `_meta` without the keys that belong to the caller's connection."""
    logs: LogWish | None = None
    agent: str = ""
    """The caller's name."""
    asker: CallAsker | None = None
    """Passes on what the server asks."""
    takes_input: bool = False
    """Whether the caller answers a modern server's questions itself (`input_required`), in a call of its own."""
    tasks: TaskTerms | None = None
    """None: an ordinary call."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """`Mcp-Param-*` headers made from the tool's schema; only modern HTTP servers get them."""


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server offers besides tools: raw definitions, in its order."""

    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    prompts: tuple[bytes, ...] = ()
    capabilities: frozenset[str] = frozenset()
    """Of `resources`, `subscribe` (to resources), `prompts`, `completions` and `logging`."""
    instructions: str = ""

    @property
    def count(self) -> int:
        return len(self.resources) + len(self.templates) + len(self.prompts)


class ServerAnswer(msgspec.Struct, frozen=True):
    """The server's answer: exactly one of the three is set. The first two are raw JSON."""

    result: bytes | None = None
    error: bytes | None = None
    questions: PassedQuestions | None = None
    """What the caller must answer first, if it takes input itself."""


class PastError(NamedTuple):
    """The same error, once or several times in a row."""

    at: float
    """When it occurred last, in seconds since the epoch."""
    error: str
    times: int = 1
    first_at: float = 0.0


def remember_error(errors: deque[PastError], error: str) -> None:
    """Adds the error as the newest one."""
    now = time.time()
    if errors and errors[-1].error == error:
        errors[-1] = PastError(now, error, errors[-1].times + 1, errors[-1].first_at)
    else:
        errors.append(PastError(now, error, first_at=now))


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    name: str
    state: ServerState
    transport: str
    root: str | None = None
    protocol_version: str | None = None
    pid: int | None = None
    tools: int = 0
    installing: bool = False
    """Connecting through a launcher that may be fetching the server."""
    waits_for_installation: bool = False
    """Its launcher has not started, because another one is fetching the same package."""
    since: float | None = None
    """When the current state began (seconds since the epoch)."""
    last_seen: float | None = None
    """When the server last answered anything."""
    last_error: str = ""
    next_attempt: float | None = None
    """In how many seconds it is tried again, if it is unavailable."""
    attempts: int = 0
    server_info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerHealth:
    """The result of one exchange with a server, made to see whether it answers."""

    ok: bool
    seconds: float = 0.0
    """How long the answer took; 0 without an answer."""
    error: str = ""
    """Why there was no answer."""
