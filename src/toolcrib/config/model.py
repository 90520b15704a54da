"""The types of the effective configuration: frozen values that every package above reads.

In: nothing (only types). Out: `Config` with its `ServerConfig`s, settings and problems.
`layers` creates them; `servers`, `core` and `daemon` read them. All variables are already expanded.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.job_settings import JobSettings
from toolcrib.config.tool_rule import ToolRule

COMMANDS = "crib"
WORKSPACE = "workspace"
RESERVED_SERVER_NAMES = frozenset({COMMANDS, WORKSPACE})
"""`crib` offers the daemon's commands as tools; `workspace` offers the tools for the caller's project folder."""

GATEWAY_TOOLS = ("find", "describe", "call", "batch", "result")
"""The tools of `crib` that the gateway itself answers: `crib_find` and so on."""

ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "read_only": "readOnlyHint",
        "destructive": "destructiveHint",
        "idempotent": "idempotentHint",
        "open_world": "openWorldHint",
    }
)
"""Toolcrib's name for each annotation of a tool, and MCP's."""

WORKSPACE_FOLDER = "${workspaceFolder}"
"""In a command line or a variable: the root of the project that the server works for."""

CONNECT_LIMIT = 10.0
"""The default `connect_timeout`, except for launchers."""
IDLE_MINUTES = 10.0
"""The default of `idle_minutes` for servers that start on demand."""

KeyPath = tuple[str | int, ...]
"""The path to a value inside a file: keys and list positions."""


class Transport(enum.StrEnum):
    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    WEBSOCKET = "websocket"


class Layer(enum.IntEnum):
    """The source of a value; a higher one wins."""

    USER = 1
    PROJECT = 2
    ENVIRONMENT = 3
    FLAGS = 4


class StartFolder(enum.StrEnum):
    """How the folder in which a server starts was chosen."""

    NAMED = "named"
    """The `cwd`, or else the project's root, for entries of a trusted project's file or of a program."""
    PROJECT = "project"
    """The project's root, because the user's own entry has `cwd: project`."""
    NEUTRAL = "neutral"
    """An empty folder of Toolcrib, which becomes the `cwd`, because the user's own entry has none."""


class StartMode(enum.StrEnum):
    """When a server whose tools are known starts. One whose tools are unknown starts at once, to be listed."""

    EAGER = "eager"
    """At once."""
    ON_DEMAND = "on_demand"
    """With its first call."""


class ShareMode(enum.StrEnum):
    """Who shares one instance of a server."""

    PROJECT = "project"
    """All clients of one project."""
    ALL = "all"
    """All clients of all projects."""
    AGENT = "agent"
    """Nobody: each agent has its own."""


class SamplingMode(enum.StrEnum):
    """Whether a server may ask the client's model. `ask`: the owner approves each request first."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class RootsMode(enum.StrEnum):
    """The folders that a server learns when it asks for roots."""

    NONE = "none"
    PROJECT = "project"
    """The root of the caller's project."""
    CLIENT = "client"
    """The client's roots inside that project."""


class NameStyle(enum.StrEnum):
    PLAIN = "plain"
    MCP = "mcp"
    SERVER = "server"


class ListingMode(enum.StrEnum):
    """How much of its tools an agent is shown."""

    AUTO = "auto"
    """Chosen by the size of the list and by the client."""
    FULL = "full"
    """Every definition, whole."""
    THIN = "thin"
    """Every tool, with the shortest definition that is enough to call it."""
    SEARCH = "search"
    """Tools that find, describe and call the others."""
    HANDSHAKE = "handshake"
    """Full for the first completion of a conversation, thin after that."""


class PinMode(enum.StrEnum):
    """What happens to tools whose definitions differ from the accepted ones."""

    WARN = "warn"
    """They are offered, without trust."""
    HOLD = "hold"
    """They are kept out until they are accepted."""


def _frozen(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """The location of a server's entry, for messages."""

    layer: Layer
    file: Path | None = None
    key: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.file else self.layer.name.lower()


@dataclass(frozen=True, kw_only=True)
class Retry:
    max_attempts: int | None = None
    """None means no limit."""
    backoff: float = 0.5
    """Seconds before the first retry; doubled each time, up to a minute."""


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """The file of a header's value, read again for each connection."""

    path: Path
    header: str
    before: str = ""
    """The text before the token in the header: `Bearer `."""


class Grant(enum.StrEnum):
    """How an account gets its tokens."""

    SIGN_IN = "sign_in"
    """A person signs in with a browser."""
    CLIENT_CREDENTIALS = "client_credentials"
    """The client's own id and secret are enough."""


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """How to sign in at a server. Whatever is empty is discovered or registered."""

    grant: Grant = Grant.SIGN_IN
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    """In PEM form, for a client that signs its requests instead of sending a secret."""
    issuer: str = ""
    """The authorization server that the client belongs to; no other gets its secret."""
    client_metadata_url: str = ""
    """The address of a client-id metadata document, for servers that accept one in place of a registration."""
    scopes: tuple[str, ...] = ()
    auth_url: str = ""
    token_url: str = ""
    redirect_port: int | None = None
    """The loopback port of the redirect address. None: any free port."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A configured server. `server_config("NAME", {…})` creates one from an entry; in a program, `StdioServer` and the
    other classes are shorter."""

    name: str
    transport: Transport
    source: ConfigSource
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    cwd: str | None = None
    """An absolute folder; None means the project's root."""
    start_folder: StartFolder = StartFolder.NAMED
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    """Includes the header from `auth`."""
    token_file: TokenFile | None = None
    oauth: OAuthSettings | None = None
    """How to sign in. None for a process, for a server with an Authorization header or another `auth`, and for one
    that tokens may not be sent to, because its address has no TLS."""
    verify_tls: bool = True
    enabled: bool = True
    disabled_tools: tuple[str, ...] = ()
    """By the server's own names: these are neither listed nor called."""
    connect_timeout: float = CONNECT_LIMIT
    call_timeout: float = 300.0
    call_timeouts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """For tools with another limit, by the server's own name."""
    cache: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds that results are kept, by the server's own name for the tool; `*`: all others."""
    max_waiting_calls: int = 1000
    """Calls that run or wait for the connection; more are refused."""
    max_message_mb: float = 64.0
    """The largest message that is accepted from it, over any transport."""
    retry: Retry = Retry()
    pins: PinMode | None = None
    """None means the setting for all servers."""
    start: StartMode | None = None
    """None: on demand if it is a process, at once if it is remote."""
    idle_minutes: float | None = None
    """Minutes without a call after which it stops until the next one; 0 means never. None: see `idle_seconds`."""
    share: ShareMode | None = None
    """None: one instance per project if it depends on the project, otherwise one for all."""
    sampling: SamplingMode = SamplingMode.DENY
    roots: RootsMode | None = None
    """None: `project`, without a process of its own for each project."""
    spelled: Mapping[KeyPath, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    """Values with `${VAR}`, as written: `("env", "TOKEN")` → `${GITHUB_TOKEN}`. For `mask`."""
    supplied: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False, compare=False)
    """The values of these variables in the user's environment, and of the user's secrets."""
    secrets: frozenset[str] = field(default=frozenset(), compare=False)
    """The names of the user's secrets that it uses."""

    def works_in(self, root: Path | None) -> Path | None:
        """The folder that its process runs in, for the project at `root`. None for a remote server."""
        if self.transport is not Transport.STDIO:
            return None
        return Path(self.cwd) if self.cwd else root

    def reads_from(self, root: Path | None) -> Path | None:
        """The folder that relative paths in its calls start at. None if unknown, as for a server in an empty folder."""
        return None if self.start_folder is StartFolder.NEUTRAL else self.works_in(root)

    @property
    def depends_on_project(self) -> bool:
        """Whether its process differs between projects."""
        return self.transport is Transport.STDIO and (self.cwd is None or self.names_project)

    @property
    def is_per_project(self) -> bool:
        """Whether each project has its own instance, instead of one for all projects."""
        if self.share is not None:
            return self.share is not ShareMode.ALL
        # Many servers ask for roots only once, before any call. Over HTTP, each question belongs to a call.
        chosen = self.roots in (RootsMode.PROJECT, RootsMode.CLIENT) and self.transport is not Transport.HTTP
        return self.depends_on_project or chosen

    @property
    def roots_mode(self) -> RootsMode:
        return self.roots or RootsMode.PROJECT

    @property
    def starts_on_demand(self) -> bool:
        """Whether it starts with its first call if its tools are known."""
        chosen = self.start or (StartMode.ON_DEMAND if self.transport is Transport.STDIO else StartMode.EAGER)
        return chosen is StartMode.ON_DEMAND

    @property
    def idle_seconds(self) -> float:
        """Seconds without a call after which it stops until the next one; 0 means never."""
        if self.idle_minutes is None:
            return IDLE_MINUTES * 60 if self.starts_on_demand else 0.0
        return self.idle_minutes * 60

    @property
    def names_project(self) -> bool:
        """Whether it uses `${workspaceFolder}`, which is expanded when it starts."""
        return any(WORKSPACE_FOLDER in written for written in self.spelled.values())

    def launched(self, root: Path | None) -> tuple[list[str], dict[str, str]]:
        """The command line and the entry's variables, for the project at `root`."""
        words, env = [self.command, *self.args], dict(self.env)
        if root is not None and self.names_project:
            words = [word.replace(WORKSPACE_FOLDER, str(root)) for word in words]
            env = {name: value.replace(WORKSPACE_FOLDER, str(root)) for name, value in env.items()}
        return words, env

    def _lasting_headers(self) -> dict[str, str]:
        """The headers with a token file's path in place of its token, so that a new token doesn't change `identity`."""
        file = self.token_file
        return dict(self.headers) if file is None else {**self.headers, file.header: f"{file.before}{file.path}"}

    @property
    def limits(self) -> tuple[object, ...]:
        """If two projects use the same server with different limits, each has its own connection."""
        of_calls = self.call_timeout, tuple(sorted(self.call_timeouts.items())), self.max_waiting_calls
        rest = self.retry, self.start, self.idle_minutes, self.share, self.sampling, self.roots
        return self.connect_timeout, *of_calls, self.max_message_mb, *rest

    @property
    def max_message(self) -> int:
        """`max_message_mb` in bytes."""
        return int(self.max_message_mb * 1024 * 1024)

    @property
    def identity(self) -> str:
        """A digest of everything that defines the server: the key of its instances, its trust and its pins.

        It covers secrets, so it must never leave the machine.
        """
        parts: list[object] = [
            self.name,
            self.transport,
            self.command,
            list(self.args),
            sorted(self.env.items()),
            self.cwd,
            self.start_folder,
            self.url,
            sorted(self._lasting_headers().items()),
            self.verify_tls,
        ]
        if self.oauth not in (None, OAuthSettings()):
            parts.append(dataclasses.astuple(self.oauth))
        return _digest(parts)

    @property
    def listing_identity(self) -> str:
        """`identity`, and what the server is told that it may ask: many list other tools for it."""
        asks = [self.sampling is not SamplingMode.DENY, self.roots_mode]
        return self.identity if asks == [False, RootsMode.PROJECT] else _digest([self.identity, *asks])


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A mistake in one place of the configuration. The rest of the configuration still applies."""

    severity: Severity
    file: str
    key: str
    found: str
    """The value found, with secrets masked."""
    expected: str
    suggestion: str = ""
    """The nearest valid key, or what to do."""
    line: int | None = None
    """Counted from one; None if there is no line."""
    server: str = ""
    """The name of the server whose entry it is in."""
    variable: str = ""
    """What is not set, as written: `NAME` or `input:NAME`."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        key = f" {self.key}:" if self.key else ""
        tail = f" {self.suggestion}" if self.suggestion else ""
        return f"{place}:{key} found {self.found}, expected {self.expected}.{tail}"


@dataclass(frozen=True, kw_only=True)
class ListingSettings:
    """How tools are listed for agents without a mode of their own."""

    mode: ListingMode = ListingMode.AUTO
    clients: Mapping[str, ListingMode] = field(default_factory=lambda: MappingProxyType({}))
    """By how the name begins with which a client introduces itself, in any case."""


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    port: int = 8665
    """0 means any free port."""
    names: NameStyle = NameStyle.SERVER
    """The style of tool names at the gateway."""
    log_level: str = "info"
    store: str = ""
    """A PostgreSQL URL or an absolute path; empty means the file in the state folder."""
    audit_values: bool = False
    """Whether the audit log records the arguments, and not only their shape."""
    audit_keep_days: float = 90
    audit_keep_mb: float = 1024
    session_idle_hours: float = 168
    result_tokens: int | None = None
    """Above which a tool's result is shortened. 0: never; None: what the client takes."""
    workspace: bool = True
    """Whether the workspace tools are offered."""
    pins: PinMode = PinMode.WARN
    listing: ListingSettings = ListingSettings()
    jobs: JobSettings = field(default_factory=JobSettings)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Settings from the command line, as typed."""

    mcp_servers: tuple[str, ...] = ()
    """Each is `NAME=URL` or `NAME=COMMAND`."""
    port: int | None = None
    store: str | None = None
    unsafe_no_sandbox: bool = False
    """Workspace commands run without a sandbox, with all of the user's rights."""


@dataclass(frozen=True, kw_only=True)
class UntrustedFile:
    """A project's file that has no effect until the user trusts exactly this content."""

    file: Path
    digest: str
    """Covers the file's path and content; stored when the user trusts it."""
    effects: tuple[str, ...]
    """The whole content as written, in lines that are safe to print. Not for logs, because it may contain a token."""


@dataclass(frozen=True, kw_only=True)
class Config:
    servers: Mapping[str, ServerConfig] = field(default_factory=lambda: MappingProxyType({}))
    settings: DaemonSettings = DaemonSettings()
    unusable: Mapping[str, Problem] = field(default_factory=lambda: MappingProxyType({}))
    """Settings with an invalid value, which are not in effect, and the problem with each."""
    tools: tuple[ToolRule, ...] = ()
    """Applied to the servers' tools, in this order, before they are offered."""
    problems: tuple[Problem, ...] = ()
    """Errors first."""
    waiting: tuple[UntrustedFile, ...] = ()
    """Project files that are not trusted, and what each would do."""
    secrets: Mapping[str, str] = field(default_factory=lambda: _frozen({}), repr=False)
    """The user's secrets that it uses, by name."""
    inputs: Mapping[str, str] = field(default_factory=lambda: _frozen({}))
    """By name of an `${input:NAME}`: what to ask for, as its file says."""
    root: Path | None = None
    """The project that this configuration was read for."""

    def pins_of(self, server: ServerConfig) -> PinMode:
        """What happens to the server's new and changed tools. A project's entry can only tighten the setting."""
        if "pins" in self.unusable:
            # Someone meant to restrict them.
            return PinMode.HOLD
        if server.pins is None or (server.source.layer is Layer.PROJECT and self.settings.pins is PinMode.HOLD):
            return self.settings.pins
        return server.pins

    @property
    def untrusted(self) -> tuple[Path, ...]:
        """Project files that are not trusted."""
        return tuple(waiting.file for waiting in self.waiting)
