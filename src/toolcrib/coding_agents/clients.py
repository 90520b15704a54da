"""The clients we know, as data.

In: nothing. Out: `Client` values: where each keeps its servers, in which form, and how an entry of each kind looks
there. `connect` puts an entry into the person's own file, `generated` into an agent's private one. A new client is a
new value in `CLIENTS`, no new code.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.errors import NotFound

SERVER_NAME = "toolcrib"
TOKEN_VARIABLE = "TOOLCRIB_TOKEN"  # noqa: S105 - a name, not a secret


class Scope(enum.StrEnum):
    USER = "user"
    PROJECT = "project"


class Format(enum.StrEnum):
    JSON = "json"
    TOML = "toml"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A file, from a folder that a variable may move."""

    file: str
    folder: str = ""
    """Below the home folder (or the project's root)."""
    variable: str = ""
    """Where it is set, it is the folder."""

    def under(self, base: Path, environ: Mapping[str, str]) -> Path:
        moved = environ.get(self.variable, "") if self.variable else ""
        return (Path(moved) if moved else base / self.folder) / self.file


COMMAND, ARGS, ENV, URL, HEADERS = "{command}", "{args}", "{env}", "{url}", "{headers}"
"""Stand in an entry's shape for what is filled in; what is empty is left out."""


def labels(agent: str, conversation: str = "") -> dict[str, str]:
    """The headers that say who is meant and which conversation; the token proves it."""
    named = {"X-Toolcrib-Agent": agent, "X-Toolcrib-Conversation": conversation}
    return {header: value for header, value in named.items() if value}


@dataclass(frozen=True, kw_only=True)
class Client:
    name: str
    title: str
    format: Format
    keys: tuple[str, ...]
    """The way from the top of the file to the object that holds the servers."""
    places: Mapping[Scope, Place]
    """Empty for a client whose file only the person knows."""
    stdio_shape: Mapping[str, Any]
    http_shape: Mapping[str, Any]
    """In the person's own file: the token stays in a variable."""
    authorization: str = f"Bearer ${{{TOKEN_VARIABLE}}}"
    """How a header there refers to the variable; empty where the shape names it by a key of its own."""
    private_shape: Mapping[str, Any]
    """In an agent's private file, which holds the token. Nobody watches such runs: Toolcrib's rules decide alone."""
    private_use: str
    """How to run the client with that file, {file}."""
    stdio_notes: tuple[str, ...] = ()
    http_notes: tuple[str, ...] = ()
    project_notes: tuple[str, ...] = ()

    def stdio(self, *, command: str, args: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        return _filled(self.stdio_shape, {COMMAND: command, ARGS: list(args), ENV: dict(env)})

    def http(self, *, url: str, labels: Mapping[str, str]) -> dict[str, Any]:
        proof = {"Authorization": self.authorization} if self.authorization else {}
        return _filled(self.http_shape, {URL: url, HEADERS: {**proof, **labels}})

    def private(self, *, url: str, token: str, labels: Mapping[str, str]) -> dict[str, Any]:
        return _filled(self.private_shape, {URL: url, HEADERS: {"Authorization": f"Bearer {token}", **labels}})

    @property
    def private_file(self) -> str:
        return f"{self.name}.{self.format}"


def _filled(shape: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    filled = {key: values.get(value, value) if isinstance(value, str) else value for key, value in shape.items()}
    return {key: value for key, value in filled.items() if value != {}}


CLIENTS: tuple[Client, ...] = (
    Client(
        name="claude",
        title="Claude Code",
        format=Format.JSON,
        keys=("mcpServers",),
        places={
            Scope.USER: Place(file=".claude.json", variable="CLAUDE_CONFIG_DIR"),
            Scope.PROJECT: Place(file=".mcp.json"),
        },
        stdio_shape={"type": "stdio", "command": COMMAND, "args": ARGS, "env": ENV},
        http_shape={"type": "http", "url": URL, "headers": HEADERS},
        private_shape={"type": "http", "url": URL, "headers": HEADERS},
        private_use="claude --mcp-config {file} --strict-mcp-config --allowedTools mcp__toolcrib",
        project_notes=("Claude Code asks you once before it uses a server of a project's file.",),
    ),
    Client(
        name="codex",
        title="Codex",
        format=Format.TOML,
        keys=("mcp_servers",),
        places={
            Scope.USER: Place(folder=".codex", file="config.toml", variable="CODEX_HOME"),
            Scope.PROJECT: Place(folder=".codex", file="config.toml"),
        },
        # Without `required` Codex waits one second and then goes on without the tools; a cold start of the daemon may
        # take longer, hence also the limit. Codex hands a server few variables: these say where our files are.
        stdio_shape={
            "command": COMMAND,
            "args": ARGS,
            "env": ENV,
            "env_vars": ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"],
            "required": True,
            "startup_timeout_sec": 20,
        },
        http_shape={
            "url": URL,
            "bearer_token_env_var": TOKEN_VARIABLE,
            "http_headers": HEADERS,
            "required": True,
            "startup_timeout_sec": 20,
        },
        authorization="",
        private_shape={
            "url": URL,
            "http_headers": HEADERS,
            "default_tools_approval_mode": "approve",
            "required": True,
            "startup_timeout_sec": 20,
        },
        private_use="ln -s {file} ~/.codex/toolcrib.config.toml, then codex --profile toolcrib",
        stdio_notes=(
            "`required`: without it Codex waits one second for a server and then works without its tools.",
            'For runs that nobody watches (`codex exec`), add default_tools_approval_mode = "approve" yourself.',
        ),
        http_notes=('For runs that nobody watches, add default_tools_approval_mode = "approve" yourself.',),
        project_notes=("Codex reads a project's file only in a project that it trusts.",),
    ),
    Client(
        name="gemini",
        title="Gemini CLI",
        format=Format.JSON,
        keys=("mcpServers",),
        places={
            Scope.USER: Place(folder=".gemini", file="settings.json"),
            Scope.PROJECT: Place(folder=".gemini", file="settings.json"),
        },
        stdio_shape={"command": COMMAND, "args": ARGS, "env": ENV},
        # `url` would mean the old SSE transport.
        http_shape={"httpUrl": URL, "headers": HEADERS},
        private_shape={"httpUrl": URL, "headers": HEADERS, "trust": True},
        private_use="put what {file} holds into FOLDER/.gemini/settings.json, then GEMINI_CLI_HOME=FOLDER gemini",
        stdio_notes=(
            'Gemini CLI leaves the tools out of runs that nobody watches unless the entry has "trust": true, '
            "which also ends its questions before each call: add it yourself if you want that.",
        ),
        http_notes=('For runs that nobody watches, add "trust": true to the entry yourself.',),
    ),
    Client(
        name="generic",
        title="any other MCP client",
        format=Format.JSON,
        keys=("mcpServers",),
        places={},
        stdio_shape={"command": COMMAND, "args": ARGS, "env": ENV},
        http_shape={"type": "http", "url": URL, "headers": HEADERS},
        # The endpoint is plain HTTP on loopback, so there is nothing to verify now; an address put there later is.
        private_shape={
            "type": "streamable-http",
            "url": URL,
            "headers": HEADERS,
            "verifySsl": True,
            "retry": {"maxAttempts": 3, "backoffMs": 1000},
        },
        private_use="give {file} to the client as its file of servers",
        http_notes=("Many clients replace ${…} by a variable's value; look up how yours does it.",),
    ),
)


def client_named(name: str) -> Client:
    for client in CLIENTS:
        if client.name == name:
            return client
    names = [client.name for client in CLIENTS]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise NotFound(f"No client {name!r} is known.", remedy=f"{hint}Known: {', '.join(names)}.")
