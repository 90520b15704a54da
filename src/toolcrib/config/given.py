"""Servers as a program writes them down: one small class per transport.

In: a program's values, taken as they are (`$` is a `$`). Out: a `ServerConfig`, after the same checks that a file's
entry gets. `Kit` and `run_agent` take them; files go through `layers`.
"""

from __future__ import annotations

import os
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from toolcrib.config.model import Layer, ServerConfig, Transport
from toolcrib.config.one import read_one
from toolcrib.config.redact import mask_args, mask_text
from toolcrib.config.values import Spelling, Surroundings
from toolcrib.errors import ConfigError, UsageError


@dataclass(frozen=True)
class _Given(ABC):
    """What all have. Checked when it is made, so that a mistake is told where it stands."""

    transport: ClassVar[Transport]

    name: str
    _: KW_ONLY
    connect_timeout: float = 10.0
    """Seconds that the server has to be there."""
    call_timeout: float = 300.0
    """Seconds that a call may take."""
    max_message_mb: float = 64.0
    """The largest message that is taken from the server."""

    def __post_init__(self) -> None:
        self.config()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._place()})"

    def config(self) -> ServerConfig:
        """Raises `ConfigError`, which names the field."""
        if not isinstance(self.name, str):
            raise ConfigError("name: found no text, expected the server's name.", remedy="Correct the server.")
        entry = {key: _plain(value) for key, value in self._fields()}
        for key, value in entry.items():
            if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
                raise ConfigError(
                    f"{self.name}.{key}: found a name that is no text, expected names and texts.",
                    remedy="Correct the server.",
                )
        # Relative paths start where the program is, as everywhere in Python.
        around = Surroundings(
            layer=Layer.FLAGS, environ={}, home=Path.home(), root=Path.cwd(), spelling=Spelling.LITERAL
        )
        config = read_one(self.name, {**entry, "transport": self.transport.value}, around)
        if config.transport is not self.transport:
            raise ConfigError(
                f"{self.name}.url: found an address of {config.transport}, expected one of {self.transport}.",
                remedy="Correct the url, or take the class of the other transport.",
            )
        return config

    def _fields(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in vars(self).items() if name != "name" and value is not None)

    @abstractmethod
    def _place(self) -> str:
        """What `repr` shows of where it is, without what may be secret."""


@dataclass(frozen=True, repr=False)
class StdioServer(_Given):
    """A program that is started, and spoken to over its standard input and output."""

    transport = Transport.STDIO

    _: KW_ONLY
    command: str | os.PathLike[str]
    args: Sequence[str | os.PathLike[str]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Besides the few variables that every server gets."""
    cwd: str | os.PathLike[str] | None = None

    def config(self) -> ServerConfig:
        config = super().config()
        if len(words := _command_line(config)) > 1:
            raise ConfigError(
                f"{self.name}.command: found a command line, expected a program alone.",
                remedy=f"Write command={words[0]!r}, args={list(words[1:])!r}.",
            )
        return config

    def _place(self) -> str:
        words = mask_args([str(_plain(self.command)), *map(str, _plain(self.args))])
        return f"command={words[0]!r}, args={list(words[1:])!r}"


@dataclass(frozen=True, repr=False)
class _Far(_Given):
    _: KW_ONLY
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True

    def _place(self) -> str:
        return f"url={mask_text(str(self.url))!r}"


@dataclass(frozen=True, repr=False)
class HttpServer(_Far):
    """Streamable HTTP, what most servers over the network speak."""

    transport = Transport.HTTP


@dataclass(frozen=True, repr=False)
class SseServer(_Far):
    """HTTP with server-sent events: the older of MCP's transports over the network."""

    transport = Transport.SSE


@dataclass(frozen=True, repr=False)
class WebSocketServer(_Far):
    """Its url starts with `ws://` or `wss://`."""

    transport = Transport.WEBSOCKET


GivenServer: TypeAlias = StdioServer | HttpServer | SseServer | WebSocketServer


def config_of(server: GivenServer | ServerConfig) -> ServerConfig:
    """Raises `UsageError` for anything else."""
    if isinstance(server, ServerConfig):
        return server
    if isinstance(server, _Given):
        return server.config()
    raise UsageError(
        f"A server cannot be a {type(server).__name__}.",
        remedy='Give a StdioServer or HttpServer, or `server_config("NAME", {…})` of an entry as a file has it.',
    )


def configs_of(servers: Iterable[GivenServer | ServerConfig]) -> tuple[ServerConfig, ...]:
    if isinstance(servers, str | Mapping | ServerConfig | _Given) or not isinstance(servers, Iterable):
        raise UsageError(
            f"The servers cannot be a {type(servers).__name__}.",
            remedy="Give a list of StdioServer, HttpServer, or what `server_config` makes.",
        )
    return tuple(map(config_of, servers))


def _command_line(config: ServerConfig) -> Sequence[str]:
    """The words of a command that is no program but holds them all; its secrets are masked."""
    command = config.command or ""
    if len(command.split()) < 2 or shutil.which(command) or Path(config.cwd or "", command).exists():
        return ()
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return mask_args([*words, *config.args])


def _plain(value: Any) -> Any:
    """As a file would have it: paths as texts, sequences as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
