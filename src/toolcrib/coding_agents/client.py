"""What is known of a client: where it keeps its servers, how an entry looks there, and how it is run.

In: nothing. Out: the class that `known/` has a value of for each client. `connect` puts an entry into the person's own
file, `generated` into an agent's private one, `headless` says how a client is run by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.headless import Headless

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
    headless: Headless | None = None
    """How `toolcrib run` runs it; None: it cannot."""
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
