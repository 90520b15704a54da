"""What configuration comes to: frozen values that every other room reads.

In: nothing (these are only shapes). Out: `Config` with its `ServerConfig`s, settings and problems.
`load` makes them; `servers`, `crib` and `daemon` read them. All variables are already expanded here.
"""

from __future__ import annotations

import enum
import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

COMMANDS = "crib"
WORKSPACE = "workspace"
RESERVED_SERVER_NAMES = frozenset({COMMANDS, WORKSPACE})
"""`crib` is the daemon's own commands, seen as a server; `workspace` the tools for the caller's own folder."""

CLAIMS: Mapping[str, str] = MappingProxyType(
    {
        "read_only": "readOnlyHint",
        "destructive": "destructiveHint",
        "idempotent": "idempotentHint",
        "open_world": "openWorldHint",
    }
)
"""What we call an annotation of a tool, and what the protocol calls it."""

KeyPath = tuple[str | int, ...]
"""The way to a value inside a file: keys and list positions."""


class Transport(enum.StrEnum):
    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    WEBSOCKET = "websocket"


class Layer(enum.IntEnum):
    """Where a value came from; a higher one wins."""

    USER = 1
    PROJECT = 2
    ENVIRONMENT = 3
    FLAGS = 4


class NameStyle(enum.StrEnum):
    PLAIN = "plain"
    MCP = "mcp"
    SERVER = "server"


def _frozen(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a server's entry stands: for messages, never for decisions."""

    layer: Layer
    file: Path | None = None
    key: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.file else self.layer.name.lower()


@dataclass(frozen=True, kw_only=True)
class Retry:
    max_attempts: int | None = None
    """None: never give up."""
    backoff: float = 0.5
    """Seconds before the first new attempt; doubled each time up to a minute."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server as the configuration has it. `server_config("NAME", {…})` makes one of an entry, `StdioServer` and the
    other classes are shorter in a program."""

    name: str
    transport: Transport
    source: Source
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    cwd: str | None = None
    """An absolute folder; with it, one instance serves every project."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    """Includes what `auth` of the kinds bearer, api_key and token_file came to."""
    verify_tls: bool = True
    enabled: bool = True
    connect_timeout: float = 10.0
    call_timeout: float = 300.0
    retry: Retry = Retry()
    spelled: Mapping[KeyPath, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    """Values that held `${VAR}`, as they were written: `("env", "TOKEN")` → `${GITHUB_TOKEN}`. For `mask`."""

    def works_in(self, root: Path | None) -> Path | None:
        """The folder that its process runs in, for the project at `root`. None: that is not ours to say."""
        if self.transport is not Transport.STDIO:
            return None
        return Path(self.cwd) if self.cwd else root

    @property
    def identity(self) -> str:
        """A digest of all that makes this server this server; the key of its instances and cache.

        Secrets take part, so the digest is keyed by nothing that is shown: it never leaves the machine.
        """
        parts = [
            self.name,
            self.transport,
            self.command,
            list(self.args),
            sorted(self.env.items()),
            self.cwd,
            self.url,
            sorted(self.headers.items()),
            self.verify_tls,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class Does(enum.StrEnum):
    KEEP = "keep"
    DROP = "drop"
    RENAME = "rename"
    PREFIX = "prefix"
    DESCRIBE = "describe"
    FIX = "fix"
    DEFAULT = "default"
    RENAME_ARGUMENTS = "rename_arguments"
    OPTIONS = "options"


@dataclass(frozen=True, kw_only=True)
class Which:
    """Tools: those of which any of this is so."""

    names: tuple[str, ...] = ()
    """Names and globs, of tools (`*_status`) or with their servers (`git:*`)."""
    annotations: tuple[str, ...] = ()
    """Of `CLAIMS`."""
    others: tuple[Which, ...] = ()
    """All that are not among these."""


@dataclass(frozen=True, kw_only=True)
class ToolRule:
    does: Does
    value: Any = field(repr=False)
    """What it is done with: `Which` to keep or drop, a text, a table of names, arguments, or options by provider."""
    only: tuple[Which, ...] = ()
    """The tools that it is about are all of these."""
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """As it stands in its file."""
    secrets: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Of its arguments, those that came from variables or have the name of a secret."""


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with one place of the configuration. It never hides the rest."""

    severity: Severity
    file: str
    key: str
    found: str
    """What stood there, secrets masked."""
    expected: str
    suggestion: str = ""
    """The nearest valid key, or what to do."""
    line: int | None = None
    """Counted from one; None where no line can be named."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        key = f" {self.key}:" if self.key else ""
        tail = f" {self.suggestion}" if self.suggestion else ""
        return f"{place}:{key} found {self.found}, expected {self.expected}.{tail}"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    for_agents: bool = False
    """Whether agents are offered jobs: where the person's file has `jobs:`, be it empty. The owner may always."""
    model: str = ""
    """`provider:model`, for jobs that name none."""
    models: tuple[str, ...] = ()
    """What agents may choose besides: names, or globs as `anthropic:*`."""
    programs: tuple[str, ...] = ()
    """Coding agents whose programs agents may have run as jobs. The owner may have any."""
    base_urls: Mapping[str, str] = field(default_factory=lambda: _frozen({}))
    """By provider: another place that speaks its API."""
    api_keys: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    """By provider: what is sent to it. Without one: the provider's usual variable, to its own address only."""
    spelled: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False, compare=False)
    """By provider: its key with `${VAR}` as it was written, where it has one."""
    max_running: int = 4
    max_waiting: int = 100
    max_per_agent: int = 20
    """Running and waiting, of one agent."""
    timeout: float = 3600
    """Seconds, for jobs that say nothing else."""
    max_timeout: float = 86_400
    keep_days: float = 30

    def allows(self, model: str) -> bool:
        """Whether an agent may choose it."""
        return model == self.model or any(fnmatch.fnmatchcase(model, glob) for glob in self.models)


@dataclass(frozen=True, kw_only=True)
class Settings:
    port: int = 8665
    """0: any free port."""
    names: NameStyle = NameStyle.SERVER
    """How tools are called at the gateway."""
    log_level: str = "info"
    store: str = ""
    """A URL of PostgreSQL or an absolute path; nothing: the file in the state folder."""
    audit_values: bool = False
    """Whether the book keeps the arguments themselves, and not only their shape."""
    audit_keep_days: float = 90
    audit_keep_mb: float = 1024
    session_idle_hours: float = 168
    workspace: bool = True
    """Whether the tools for the caller's own folder are offered."""
    jobs: JobSettings = JobSettings()


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line adds, as the person typed it."""

    mcp_servers: tuple[str, ...] = ()
    """Each `NAME=URL` or `NAME=COMMAND`."""
    port: int | None = None
    store: str | None = None
    unsafe_no_sandbox: bool = False
    """Commands of the workspace run as the user does, confined by nothing."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A project's file that does nothing until a person trusts exactly these bytes."""

    file: Path
    digest: str
    """What to keep when the person says yes: it covers the file's place and content."""
    effects: tuple[str, ...]
    """What it would do, one line each, secrets masked, safe to print."""


@dataclass(frozen=True, kw_only=True)
class Config:
    servers: Mapping[str, ServerConfig] = field(default_factory=lambda: MappingProxyType({}))
    settings: Settings = Settings()
    unusable: Mapping[str, Problem] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that somebody gave and that are not in force, and why."""
    tools: tuple[ToolRule, ...] = ()
    """What is done to the servers' tools before they are offered, in this order."""
    problems: tuple[Problem, ...] = ()
    """Errors first."""
    waiting: tuple[Waiting, ...] = ()
    """Project files that want trust, and what each would do."""
    root: Path | None = None
    """The project this configuration was read for."""

    @property
    def untrusted(self) -> tuple[Path, ...]:
        """Project files that want trust before they may do anything."""
        return tuple(waiting.file for waiting in self.waiting)
