"""What is known of a client: where it keeps its servers, how an entry looks there, and how it is run.

In: a `LaunchRequest` (the prompt, Toolcrib's endpoint, which of its own tools the program may use). Out: a `Launch`:
words, variables and files. An `OutputParser` makes events of the lines that the program prints. `known/` has one
`ClientSpec` for each client.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from toolcrib.policy.profile import OwnTools
from toolcrib.run_events import AgentEvent


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What one run wants of a client."""

    prompt: str
    session: str = ""
    """The program's own session to go on in; empty for a new one."""
    new_session: str = ""
    """A UUID for the new session, for programs that let one choose."""
    own_tools: OwnTools
    own_shell: bool = True
    """Whether it may run commands at its level; none does where this is not so."""
    guarded: tuple[str, ...] = ()
    """Names and `*.ending`s of files that it may not write below `all`: other programs obey them."""
    url: str
    """Toolcrib's endpoint; empty: the run goes without Toolcrib's tools."""
    token: str
    """Must not become a word of the command line."""
    headers: Mapping[str, str]
    """The labels that say who is meant; the token proves it."""
    folder: Path
    """Private, and gone with the run: where `Launch.files` will lie."""
    workdir: Path
    environ: Mapping[str, str]
    """What the program will be given, as far as it is settled: to find the person's own files."""
    private: tuple[Path, ...] = ()
    """Toolcrib's own folders, which hold keys and tokens, and the project's logs of runs."""
    extra: tuple[str, ...] = ()
    """Words of the person's for the program itself; they come last, but before a prompt."""


def without_command(prompt: str) -> str:
    """A prompt of which no program takes the first word for a command of its own: they look for a slash there."""
    return f" {prompt}" if prompt.startswith("/") else prompt


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the program is started for a request."""

    words: tuple[str, ...]
    """What follows the program's name."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to what it is given."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into `LaunchRequest.folder` before it starts: name → text."""
    links: Mapping[str, Path] = field(default_factory=dict)
    """Made there as well: name → where it leads. What is not there yet is made, as a folder."""
    stdin: str = ""
    """What it reads: the prompt, where it can come this way, for a command line can be read by every user."""
    governed: tuple[str, ...] = ()
    """For the person, one line each: what is governed of what the program can do by itself."""
    ungoverned: tuple[str, ...] = ()
    """And what is not."""


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens as the provider reported them; None where it reported nothing."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reported: Mapping[str, Any] = field(default_factory=dict)
    """Everything the provider reported, unchanged."""

    def since(self, before: TokenUsage) -> TokenUsage:
        """What was used after `before`, where both count from the same beginning."""
        return TokenUsage(
            input=_less(self.input, before.input),
            output=_less(self.output, before.output),
            cached=_less(self.cached, before.cached),
            reported=self.reported,
        )


def _less(now: int | None, before: int | None) -> int | None:
    # A session that was cut, or a log that somebody changed, must not make less than nothing.
    return None if now is None else max(0, now - (before or 0))


@dataclass(kw_only=True)
class RunReport:
    """What a program has reported of its run so far."""

    session: str = ""
    """Its own session, to go on in later."""
    model: str = ""
    text: str = ""
    """Its last words to the person."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    ended: bool = False
    """Whether it has printed the line that ends a run. Without it the answer may be lost, whatever the exit code."""
    failure: str = ""
    """Why it says that it failed."""
    remedy: str = ""
    """What a person can do about the failure, where that is known."""
    last_trouble: str = ""
    """What it last could not do, trying on: a model that it does not reach. Empty again when it gets on."""
    mcp_failure: str = ""
    """Why it says that Toolcrib's tools are not there; empty while it has not said so."""


class OutputParser(Protocol):
    """Makes events of what a program prints, one line after the other. It never raises, whatever the line holds."""

    report: RunReport

    def parse(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        """The events of one printed JSON object; the first holds it as `raw`. At least one, of kind `raw` if need be.

        Our own tools are named as the program was offered them, without its prefix: `workspace_read_file`, with
        `server` = SERVER_NAME; whoever matches them with what the gateway saw knows the real ones.
        """
        ...

    def parse_stderr(self, line: str) -> Iterable[AgentEvent]:
        """The events of a line on standard error; the first holds it as `raw`."""
        ...


@dataclass(frozen=True, kw_only=True)
class HeadlessSpec:
    program: str
    oldest: tuple[int, ...]
    """The oldest version that this was tried with."""
    install: str
    """The line that installs it."""
    keeps: tuple[str, ...]
    """Beginnings of the variables that are the program's own: they are passed on whatever our configuration says."""
    launch: Callable[[LaunchRequest], Launch]
    parser: Callable[[], OutputParser]
    counts_session: bool = False
    """Whether the tokens that it reports are those of its whole session, earlier runs included."""
    call_mark: str = ""
    """The key in a call's `_meta` under which the program gives the id that it prints; empty: it gives none."""
    is_session: Callable[[str], bool]
    """Whether a text can be a session of the program's own: it becomes a word of its command line."""


SERVER_NAME = "toolcrib"
TOKEN_VARIABLE = "TOOLCRIB_TOKEN"  # noqa: S105 - a name, not a secret


class ClientScope(enum.StrEnum):
    USER = "user"
    PROJECT = "project"


class ClientFileFormat(enum.StrEnum):
    JSON = "json"
    TOML = "toml"


@dataclass(frozen=True, kw_only=True)
class ClientFilePlace:
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
"""Placeholders in an entry's template; what is empty is left out."""


def labels(agent: str, conversation: str = "") -> dict[str, str]:
    """The headers that say who is meant and which conversation; the token proves it."""
    named = {"X-Toolcrib-Agent": agent, "X-Toolcrib-Conversation": conversation}
    return {header: value for header, value in named.items() if value}


@dataclass(frozen=True, kw_only=True)
class ClientSpec:
    name: str
    title: str
    format: ClientFileFormat
    keys: tuple[str, ...]
    """The way from the top of the file to the object that holds the servers."""
    places: Mapping[ClientScope, ClientFilePlace]
    """Empty for a client whose file only the person knows."""
    stdio_template: Mapping[str, Any]
    http_template: Mapping[str, Any]
    """In the person's own file: the token stays in a variable."""
    authorization: str = f"Bearer ${{{TOKEN_VARIABLE}}}"
    """How a header there refers to the variable; empty where the template names it by a key of its own."""
    private_template: Mapping[str, Any]
    """In an agent's private file, which holds the token. Nobody watches such runs: Toolcrib's rules decide alone."""
    private_use: str
    """How to run the client with that file, {file}."""
    headless: HeadlessSpec | None = None
    """How `toolcrib run` runs it; None: it cannot."""
    stdio_notes: tuple[str, ...] = ()
    http_notes: tuple[str, ...] = ()
    project_notes: tuple[str, ...] = ()

    def stdio(self, *, command: str, args: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        return _filled(self.stdio_template, {COMMAND: command, ARGS: list(args), ENV: dict(env)})

    def http(self, *, url: str, labels: Mapping[str, str]) -> dict[str, Any]:
        proof = {"Authorization": self.authorization} if self.authorization else {}
        return _filled(self.http_template, {URL: url, HEADERS: {**proof, **labels}})

    def private(self, *, url: str, token: str, labels: Mapping[str, str]) -> dict[str, Any]:
        return _filled(self.private_template, {URL: url, HEADERS: {"Authorization": f"Bearer {token}", **labels}})

    @property
    def private_file(self) -> str:
        return f"{self.name}.{self.format}"


def _filled(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    filled = {key: values.get(value, value) if isinstance(value, str) else value for key, value in template.items()}
    return {key: value for key, value in filled.items() if value != {}}
