"""Servers that a program declares: with a class per transport, an entry, a file or a mapping.

In: a program's values; `StdioServer` and the other classes don't expand `$`. Out: a `ServerConfig`, after the same
checks as for a file's entry, or a `ConfigError` that names the problem; for a file or mapping (`OwnSource`), the user's
configuration with only that source's servers and tool rules. `Kit`, `Crib` and `run_agent` use it; `layers` reads the
user's own files, environment and flags.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

from toolcrib.config.contribution import Contribution, ServerEntry, contribution_of, take_entry
from toolcrib.config.masking import mask_args, mask_text
from toolcrib.config.model import Config, Layer, ServerConfig, Severity, Transport
from toolcrib.config.paths import home_of
from toolcrib.config.problems import ProblemReport
from toolcrib.config.read import ConfigDocument, parse_document, read_document
from toolcrib.config.values import INPUT, EntryContext, Interpolation, Secrets
from toolcrib.errors import ConfigError, UsageError


def server_config(name: str, entry: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """One server from an entry in the format of a file: `server_config("git", {"command": "uvx", "args": […]})`.

    `${VAR}` is expanded from `environ`. Raises `ConfigError`, which names the problem.
    """
    return read_server_entry(name, entry, EntryContext(layer=Layer.FLAGS, environ=environ or {}, home=Path.home()))


def read_server_entry(name: str, entry: Mapping[str, Any], context: EntryContext) -> ServerConfig:
    report = ProblemReport("the entry")
    result = Contribution(report=report)
    take_entry(ServerEntry(name=name, entry=entry, path=(name,)), result, context)
    wrong = [problem for problem in report.problems if problem.severity is Severity.ERROR]
    if wrong or name not in result.servers:
        missing = [problem.variable.removeprefix(INPUT) for problem in report.unset]
        raise ConfigError(
            " ".join(map(str, wrong)) or _left_out(name, result),
            remedy="" if wrong and wrong[-1].suggestion else "Correct the entry.",
            data={"missing": missing} if missing else None,
        )
    return result.servers[name]


def _left_out(name: str, result: Contribution) -> str:
    """Why a valid entry results in no server."""
    if name in result.switched_off:
        return f"{name} is switched off."
    return " ".join(map(str, result.report.problems))


@dataclass(frozen=True)
class _DeclaredServer(ABC):
    """Validates itself when created, so that the traceback points to the mistake."""

    transport: ClassVar[Transport]

    name: str
    _: KW_ONLY
    connect_timeout: float | None = None
    """Seconds to wait for the server to connect: 10, or 180 for a launcher such as `npx`, which may fetch it first."""
    call_timeout: float = 300.0
    """Seconds that a call may take."""
    call_timeouts: Mapping[str, float] = field(default_factory=dict)
    """Seconds for tools with another limit, by the tool's name."""
    max_waiting_calls: int = 1000
    """Calls that run or wait for the connection; more are refused."""
    max_message_mb: float = 64.0
    """The largest message that is accepted from the server."""
    sampling: Literal["deny", "ask", "allow"] = "deny"
    """Whether the server may ask the caller's model; `ask`: each request needs approval first."""
    roots: Literal["none", "project", "client"] | None = None
    """The folders that the server learns when it asks for roots. None: `none` if an argument is a path, else
    `project`."""

    def __post_init__(self) -> None:
        self.config()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._place()})"

    def config(self) -> ServerConfig:
        """Raises `ConfigError`, which names the field."""
        if not isinstance(self.name, str):
            raise ConfigError("name: found no text, expected the server's name.", remedy="Correct the server.")
        entry = {key: _plain(value) for key, value in vars(self).items() if key != "name" and value is not None}
        for key, value in entry.items():
            if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
                raise ConfigError(
                    f"{self.name}.{key}: found a name that is not a string, expected strings.",
                    remedy="Correct the server.",
                )
        # Relative paths start at the working directory, as usual in Python.
        context = EntryContext(
            layer=Layer.FLAGS, environ={}, home=Path.home(), root=Path.cwd(), spelling=Interpolation.LITERAL
        )
        config = read_server_entry(self.name, {**entry, "transport": self.transport.value}, context)
        if config.transport is not self.transport:
            raise ConfigError(
                f"{self.name}.url: found a {config.transport} URL, expected one for {self.transport}.",
                remedy="Correct the url, or use the class of the other transport.",
            )
        return config

    @abstractmethod
    def _place(self) -> str:
        """The command or URL for `repr`, without secrets."""


@dataclass(frozen=True, repr=False)
class StdioServer(_DeclaredServer):
    """A program that Toolcrib starts and talks to over its standard input and output."""

    transport = Transport.STDIO

    _: KW_ONLY
    command: str | os.PathLike[str]
    args: Sequence[str | os.PathLike[str]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """In addition to the few variables that every server gets."""
    cwd: str | os.PathLike[str] | None = None

    def config(self) -> ServerConfig:
        config = super().config()
        if len(words := _command_line(config)) > 1:
            raise ConfigError(
                f"{self.name}.command: found a command line, expected only a program.",
                remedy=f"Write command={words[0]!r}, args={list(words[1:])!r}.",
            )
        return config

    def _place(self) -> str:
        words = mask_args([str(_plain(self.command)), *map(str, _plain(self.args))])
        return f"command={words[0]!r}, args={list(words[1:])!r}"


@dataclass(frozen=True, repr=False)
class _RemoteServer(_DeclaredServer):
    _: KW_ONLY
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True

    def _place(self) -> str:
        return f"url={mask_text(str(self.url))!r}"


@dataclass(frozen=True, repr=False)
class HttpServer(_RemoteServer):
    """Streamable HTTP, the transport of most remote servers."""

    transport = Transport.HTTP


@dataclass(frozen=True, repr=False)
class SseServer(_RemoteServer):
    """HTTP with server-sent events, MCP's older remote transport."""

    transport = Transport.SSE


@dataclass(frozen=True, repr=False)
class WebSocketServer(_RemoteServer):
    """Its url starts with `ws://` or `wss://`."""

    transport = Transport.WEBSOCKET


DeclaredServer: TypeAlias = StdioServer | HttpServer | SseServer | WebSocketServer


def config_of(server: DeclaredServer | ServerConfig) -> ServerConfig:
    """Raises `UsageError` for anything else."""
    if isinstance(server, ServerConfig):
        return server
    if isinstance(server, _DeclaredServer):
        return server.config()
    raise UsageError(
        f"A server cannot be a {type(server).__name__}.",
        remedy='Pass a StdioServer or HttpServer, or `server_config("NAME", {…})` for an entry in a file\'s format.',
    )


def configs_of(servers: Iterable[DeclaredServer | ServerConfig]) -> tuple[ServerConfig, ...]:
    if isinstance(servers, str | Mapping | ServerConfig | _DeclaredServer) or not isinstance(servers, Iterable):
        raise UsageError(
            f"The servers cannot be a {type(servers).__name__}.",
            remedy="Pass a list of StdioServer, HttpServer or results of `server_config`.",
        )
    return tuple(map(config_of, servers))


def _command_line(config: ServerConfig) -> Sequence[str]:
    """The masked words of a `command` that is a whole command line; empty if it is a program."""
    command = config.command or ""
    if len(command.split()) < 2 or shutil.which(command) or Path(config.cwd or "", command).exists():
        return ()
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return mask_args([*words, *config.args])


def _plain(value: Any) -> Any:
    """In a file's format: paths as strings, sequences as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value


OwnSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A file's path, or `{"servers": {…}}` (also `mcpServers`) in a file's format, including `${VAR}`."""


def check_source(source: object) -> None:
    if source is not None and not isinstance(source, str | os.PathLike | Mapping):
        raise UsageError(
            f"A configuration cannot be a {type(source).__name__}.",
            remedy="Pass a file's path, or a mapping in a file's format: {\"servers\": {…}}.",
        )


def with_servers_of(
    source: OwnSource, config: Config, *, environ: Mapping[str, str], secrets: Secrets | None = None
) -> Config:
    """Raises `ConfigError` for a file that cannot be read, and for any mistake in a mapping.

    In a file, an entry with a mistake is ignored and listed in `problems`, as in any configuration file.
    """
    document = _document(source)
    file = None if isinstance(source, Mapping) else Path(source).absolute()
    context = EntryContext(
        layer=Layer.FLAGS,
        environ=environ,
        secrets=secrets or Secrets(),
        home=home_of(environ),
        file=file,
        root=file.parent if file else Path.cwd(),
    )
    found = contribution_of(document, context)
    wrong = [str(problem) for problem in document.report.problems if problem.severity is Severity.ERROR]
    if wrong and (file is None or not document.data):
        raise ConfigError(" ".join(wrong), remedy="Correct the configuration.")
    return dataclasses.replace(
        config,
        servers=MappingProxyType(found.servers),
        tools=found.tools,
        inputs=found.inputs,
        problems=tuple(document.report.problems),
        waiting=(),
    )


def _document(source: OwnSource) -> ConfigDocument:
    if isinstance(source, Mapping):
        try:
            text = json.dumps(source, default=_json_value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"The configuration cannot be used: {error}.") from error
        made = parse_document("the configuration", text.encode())
        # A mapping has no line numbers.
        made.report.lines = {}
        return made
    document = read_document(Path(source))
    if document is None:
        raise ConfigError(f"There is no file {os.fspath(source)}.", remedy="Correct the path, or create the file.")
    return document


def _json_value(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a configuration cannot contain a {type(value).__name__}")
