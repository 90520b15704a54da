"""The description of a client: where it keeps its servers, the format of an entry, and how to run it.

In: a `LaunchRequest` (the prompt, Toolcrib's endpoint, the built-in tools that the program may use). Out: a `Launch`:
arguments, variables and files. An `OutputParser` turns the lines that the program prints into events. `known/` has one
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
    """The request for one run of a client."""

    prompt: str
    session: str = ""
    """The program's session to continue; empty for a new one."""
    new_session: str = ""
    """A UUID for the new session, for programs that accept one."""
    own_tools: OwnTools
    own_shell: bool = True
    """Whether the program may run commands, if its level of own tools includes a shell."""
    guarded: tuple[str, ...] = ()
    """Names and `*.ending`s of files that configure other programs; it may not write them below `all`."""
    url: str
    """Toolcrib's endpoint; empty for a run without Toolcrib's tools."""
    token: str
    """Must not appear on the command line."""
    headers: Mapping[str, str]
    """See `labels`."""
    folder: Path
    """Private folder for `Launch.files`, removed with the run."""
    workdir: Path
    environ: Mapping[str, str]
    """The program's environment as known so far, to find the user's files."""
    private: tuple[Path, ...] = ()
    """Toolcrib's folders, which hold keys and tokens, and the project's run logs."""
    extra: tuple[str, ...] = ()
    """The user's arguments for the program. They come last, before a prompt."""


def without_command(prompt: str) -> str:
    """The prompt, changed so that no program reads its first word as a slash command."""
    return f" {prompt}" if prompt.startswith("/") else prompt


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start the program for a request."""

    args: tuple[str, ...]
    """The command line after the program's name."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables to add."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into `LaunchRequest.folder` before the program starts: name → text."""
    links: Mapping[str, Path] = field(default_factory=dict)
    """Also created there: name → target. A missing target is created as a folder."""
    stdin: str = ""
    """Standard input: the prompt if possible, because every user can read a command line."""
    governed: tuple[str, ...] = ()
    """For the user, one line each: limits on the program's built-in tools."""
    ungoverned: tuple[str, ...] = ()
    """Likewise: what stays unlimited."""


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens as the provider reported them; None if it reported nothing."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    """Tokens that the provider charged for writing its cache."""
    reported: Mapping[str, Any] = field(default_factory=dict)
    """Everything the provider reported, unchanged."""

    def since(self, before: TokenUsage) -> TokenUsage:
        """The tokens used after `before`; both must count from the same start."""
        return TokenUsage(
            input=_less(self.input, before.input),
            output=_less(self.output, before.output),
            cached=_less(self.cached, before.cached),
            cache_write=_less(self.cache_write, before.cache_write),
            reported=self.reported,
        )


def _less(now: int | None, before: int | None) -> int | None:
    # A truncated session or an edited log must not make this negative.
    return None if now is None else max(0, now - (before or 0))


@dataclass(kw_only=True)
class RunReport:
    """The program's reports on its run so far."""

    session: str = ""
    """The program's session, which a later run can continue."""
    model: str = ""
    text: str = ""
    """The last message to the user."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    ended: bool = False
    """Whether it printed its final line. Without it the answer may be incomplete, whatever the exit code."""
    failure: str = ""
    """The reported reason for a failure."""
    remedy: str = ""
    """How to fix the failure, if known."""
    last_trouble: str = ""
    """The problem that it is retrying, such as an unreachable model. Cleared when it makes progress."""
    mcp_failure: str = ""
    """The reported reason why Toolcrib's tools are missing; empty if none was reported."""


class OutputParser(Protocol):
    """Turns the lines that a program prints into events. It never raises, whatever the line contains."""

    report: RunReport

    def parse(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        """The events of one printed JSON object: at least one, of kind `raw` if necessary. The first has it as `raw`.

        Toolcrib's tools have the offered name without the program's prefix (`workspace_read_file`) and `server` =
        SERVER_NAME; `call_matching` finds the real names.
        """
        ...

    def parse_stderr(self, line: str) -> Iterable[AgentEvent]:
        """The events of a line on standard error; the first has it as `raw`."""
        ...


@dataclass(frozen=True, kw_only=True)
class HeadlessSpec:
    program: str
    oldest: tuple[int, ...]
    """The oldest supported version."""
    install: str
    """The command that installs it."""
    keeps: tuple[str, ...]
    """Prefixes of the program's variables, which are always passed on, whatever Toolcrib's configuration uses."""
    launch: Callable[[LaunchRequest], Launch]
    parser: Callable[[], OutputParser]
    counts_session: bool = False
    """Whether it reports the tokens of its whole session, including earlier runs."""
    call_mark: str = ""
    """The key in a call's `_meta` that holds the id that the program prints; empty if it sends none."""
    is_session: Callable[[str], bool]
    """Whether a text is a valid session id of the program. It is used on the command line."""


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
    """A file in a folder that an environment variable can move."""

    file: str
    folder: str = ""
    """Relative to the home folder or the project's root."""
    variable: str = ""
    """Replaces the folder if it is set."""

    def under(self, base: Path, environ: Mapping[str, str]) -> Path:
        moved = environ.get(self.variable, "") if self.variable else ""
        return (Path(moved) if moved else base / self.folder) / self.file


COMMAND, ARGS, ENV, URL, HEADERS = "{command}", "{args}", "{env}", "{url}", "{headers}"
"""Placeholders in an entry's template; empty values are omitted."""


def labels(agent: str, conversation: str = "", *, listing: str = "", without: Iterable[str] = ()) -> dict[str, str]:
    """The headers that name the agent and the conversation (the token authenticates) and say how tools are listed."""
    named = {
        "X-Toolcrib-Agent": agent,
        "X-Toolcrib-Conversation": conversation,
        "X-Toolcrib-Listing": listing,
        "X-Toolcrib-Without": ",".join(sorted(without)),
    }
    return {header: value for header, value in named.items() if value}


@dataclass(frozen=True, kw_only=True)
class ClientSpec:
    name: str
    title: str
    format: ClientFileFormat
    keys: tuple[str, ...]
    """The path from the top of the file to the object that holds the servers."""
    places: Mapping[ClientScope, ClientFilePlace]
    """Empty if Toolcrib does not know the client's file."""
    stdio_template: Mapping[str, Any]
    http_template: Mapping[str, Any]
    """For the user's file: the token stays in a variable."""
    authorization: str = f"Bearer ${{{TOKEN_VARIABLE}}}"
    """How a header refers to the variable; empty if the template has a separate key for it."""
    private_template: Mapping[str, Any]
    """For an agent's private file, which holds the token. Such runs are unattended, so only Toolcrib's rules decide."""
    private_use: str
    """How to run the client with that file, {file}."""
    headless: HeadlessSpec | None = None
    """How `toolcrib run` runs it; None if it cannot."""
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
