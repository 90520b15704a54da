"""How a client is run by itself, without a person in front of it.

In: an `Order`: the prompt, where Toolcrib answers, what the program may do by its own hands. Out: a `Launch`: words,
variables and files. A `Reader` makes events of the lines that it prints. Each client in `known/` has one of both;
`runs` does the running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from toolcrib.agent_events import AgentEvent
from toolcrib.policy.own_tools import OwnTools


@dataclass(frozen=True, kw_only=True)
class Order:
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
    """How the program is started for an order."""

    words: tuple[str, ...]
    """What follows the program's name."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to what it is given."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into `Order.folder` before it starts: name → text."""
    links: Mapping[str, Path] = field(default_factory=dict)
    """Made there as well: name → where it leads. What is not there yet is made, as a folder."""
    stdin: str = ""
    """What it reads: the prompt, where it can come this way, for a command line can be read by every user."""
    governed: tuple[str, ...] = ()
    """For the person, one line each: what is governed of what the program can do by itself."""
    ungoverned: tuple[str, ...] = ()
    """And what is not."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens as the provider told them; None where it told nothing."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    """All that it told, as it came."""

    def since(self, before: Usage) -> Usage:
        """What was used after `before`, where both count from the same beginning."""
        return Usage(
            input=_less(self.input, before.input),
            output=_less(self.output, before.output),
            cached=_less(self.cached, before.cached),
            told=self.told,
        )


def _less(now: int | None, before: int | None) -> int | None:
    # A session that was cut, or a log that somebody changed, must not make less than nothing.
    return None if now is None else max(0, now - (before or 0))


@dataclass(kw_only=True)
class Told:
    """What a program has told of its run so far."""

    session: str = ""
    """Its own session, to go on in later."""
    model: str = ""
    text: str = ""
    """Its last words to the person."""
    usage: Usage = field(default_factory=Usage)
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


class Reader(Protocol):
    """Makes events of what a program prints, one line after the other. It never raises, whatever the line holds."""

    told: Told

    def read(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        """The events of one printed JSON object; the first holds it as `raw`. At least one, of kind `raw` if need be.

        Our own tools are named as the program was offered them, without its prefix: `workspace_read_file`, with
        `server` = SERVER_NAME; whoever matches them with what the gateway saw knows the real ones.
        """
        ...

    def said(self, line: str) -> Iterable[AgentEvent]:
        """The events of a line on standard error; the first holds it as `raw`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Headless:
    program: str
    oldest: tuple[int, ...]
    """The oldest version that this was tried with."""
    install: str
    """The line that installs it."""
    keeps: tuple[str, ...]
    """Beginnings of the variables that are the program's own: they are passed on whatever our configuration says."""
    launch: Callable[[Order], Launch]
    reader: Callable[[], Reader]
    counts_session: bool = False
    """Whether the tokens that it tells are those of its whole session, earlier runs included."""
    call_mark: str = ""
    """The key in a call's `_meta` under which the program gives the id that it prints; empty: it gives none."""
    is_session: Callable[[str], bool]
    """Whether a text can be a session of the program's own: it becomes a word of its command line."""
