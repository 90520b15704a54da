"""What configuration comes to: frozen values that every package above reads.

In: nothing (only types). Out: `Config` with its `ServerConfig`s, settings and problems.
`layers` makes them; `servers`, `core` and `daemon` read them. All variables are already expanded here.
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

ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "read_only": "readOnlyHint",
        "destructive": "destructiveHint",
        "idempotent": "idempotentHint",
        "open_world": "openWorldHint",
    }
)
"""What we call an annotation of a tool, and what the protocol calls it."""

WORKSPACE_FOLDER = "${workspaceFolder}"
"""In a command line or a variable: the root of the project that the server works for."""

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


class StartFolder(enum.StrEnum):
    """How it was chosen where a server's program starts."""

    NAMED = "named"
    """In its `cwd`; without one in the project's root, as entries of a trusted project's file and of a program do."""
    PROJECT = "project"
    """In the project's root, since the user's own entry says `cwd: project`."""
    NEUTRAL = "neutral"
    """In an empty folder of Toolcrib's, which is its `cwd` then, since the user's own entry names none."""


class NameStyle(enum.StrEnum):
    PLAIN = "plain"
    MCP = "mcp"
    SERVER = "server"


def _frozen(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True, kw_only=True)
class ConfigSource:
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
class TokenFile:
    """Where a header's value is read from, anew for each connection."""

    path: Path
    header: str
    before: str = ""
    """What stands before the token in the header: `Bearer `."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server as the configuration has it. `server_config("NAME", {…})` makes one of an entry, `StdioServer` and the
    other classes are shorter in a program."""

    name: str
    transport: Transport
    source: ConfigSource
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    cwd: str | None = None
    """An absolute folder; None: the project's root."""
    start: StartFolder = StartFolder.NAMED
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    """Includes what `auth` of the kinds bearer, api_key and token_file came to."""
    token_file: TokenFile | None = None
    verify_tls: bool = True
    enabled: bool = True
    connect_timeout: float = 10.0
    call_timeout: float = 300.0
    max_message_mb: float = 64.0
    """The largest message that is taken from it, whatever carries it."""
    retry: Retry = Retry()
    spelled: Mapping[KeyPath, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    """Values that held `${VAR}`, as they were written: `("env", "TOKEN")` → `${GITHUB_TOKEN}`. For `mask`."""
    supplied: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False, compare=False)
    """What the user's environment holds for these variables."""

    def works_in(self, root: Path | None) -> Path | None:
        """The folder that its process runs in, for the project at `root`. None: that is not ours to say."""
        if self.transport is not Transport.STDIO:
            return None
        return Path(self.cwd) if self.cwd else root

    def reads_from(self, root: Path | None) -> Path | None:
        """The folder that relative paths in its calls start at. None: nobody knows, as in a folder where nothing is."""
        return None if self.start is StartFolder.NEUTRAL else self.works_in(root)

    @property
    def is_per_project(self) -> bool:
        """Whether each project has a process of its own; else one is for all."""
        return self.transport is Transport.STDIO and (self.cwd is None or self.names_project)

    @property
    def names_project(self) -> bool:
        """Whether `${workspaceFolder}` is to be filled in when it starts."""
        return any(WORKSPACE_FOLDER in written for written in self.spelled.values())

    def launched(self, root: Path | None) -> tuple[list[str], dict[str, str]]:
        """The command line and the variables of its own, for the project at `root`."""
        words, env = [self.command, *self.args], dict(self.env)
        if root is not None and self.names_project:
            words = [word.replace(WORKSPACE_FOLDER, str(root)) for word in words]
            env = {name: value.replace(WORKSPACE_FOLDER, str(root)) for name, value in env.items()}
        return words, env

    def _lasting_headers(self) -> dict[str, str]:
        """With a token file's path in place of its token: a new token makes no other server of it."""
        file = self.token_file
        return dict(self.headers) if file is None else {**self.headers, file.header: f"{file.before}{file.path}"}

    @property
    def limits(self) -> tuple[object, ...]:
        """What may differ between two projects that name the same server; then each has a connection of its own."""
        return self.connect_timeout, self.call_timeout, self.max_message_mb, self.retry

    @property
    def max_message(self) -> int:
        """`max_message_mb` in bytes."""
        return int(self.max_message_mb * 1024 * 1024)

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
            self.start,
            self.url,
            sorted(self._lasting_headers().items()),
            self.verify_tls,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class RuleAction(enum.StrEnum):
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
class ToolSelector:
    """Tools: those of which any of this is so."""

    names: tuple[str, ...] = ()
    """Names and globs, of tools (`*_status`) or with their servers (`git:*`)."""
    annotations: tuple[str, ...] = ()
    """Of `ANNOTATIONS`."""
    others: tuple[ToolSelector, ...] = ()
    """All that are not among these."""


@dataclass(frozen=True, kw_only=True)
class ToolRule:
    action: RuleAction
    value: Any = field(repr=False)
    """What it is done with: `ToolSelector` to keep or drop, a text, a table of names, arguments, or options by
    provider.
    """
    only: tuple[ToolSelector, ...] = ()
    """The tools that it is about are all of these."""
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """As it stands in its file."""
    secrets: Mapping[str, str] = field(default_factory=lambda: _frozen({}), compare=False, repr=False)
    """Of its arguments, those that came from variables or have the name of a secret, and whose they are. What a
    project's file says itself is not the user's secret, and nobody's."""


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
class DaemonSettings:
    port: int = 8665
    """0: any free port."""
    names: NameStyle = NameStyle.SERVER
    """How tools are called at the gateway."""
    log_level: str = "info"
    store: str = ""
    """A URL of PostgreSQL or an absolute path; nothing: the file in the state folder."""
    audit_values: bool = False
    """Whether the audit log keeps the arguments themselves, and not only their shape."""
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
class UntrustedFile:
    """A project's file that does nothing until a person trusts exactly these bytes."""

    file: Path
    digest: str
    """What to keep when the person says yes: it covers the file's place and content."""
    effects: tuple[str, ...]
    """All that it says, as it is written, in lines that are safe to print. Not for logs: a token may stand there."""


@dataclass(frozen=True, kw_only=True)
class Config:
    servers: Mapping[str, ServerConfig] = field(default_factory=lambda: MappingProxyType({}))
    settings: DaemonSettings = DaemonSettings()
    unusable: Mapping[str, Problem] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that somebody gave and that are not in force, and why."""
    tools: tuple[ToolRule, ...] = ()
    """What is done to the servers' tools before they are offered, in this order."""
    problems: tuple[Problem, ...] = ()
    """Errors first."""
    waiting: tuple[UntrustedFile, ...] = ()
    """Project files that want trust, and what each would do."""
    root: Path | None = None
    """The project this configuration was read for."""

    @property
    def untrusted(self) -> tuple[Path, ...]:
        """Project files that want trust before they may do anything."""
        return tuple(waiting.file for waiting in self.waiting)
