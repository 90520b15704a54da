"""A person with a coding agent at `toolcrib run`.

In: one of the three programs, a model to ask. Out: a `Desk`: a home folder with the person's own settings for the
program (login, model), the program on PATH, and `toolcrib run` as a process with nothing else in its environment. A
run ends by itself or is ended; what it said, its log, and whether it left the person's settings alone can be asked.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import coding_agents, fleet, leftovers
from parts.coding_agents import KEY, CodingAgent
from parts.daemon import PROGRAM, Home
from parts.waiting import wait_for
from toolcrib.testing.conversation import ToolOffering, TurnUsage
from toolcrib.testing.script import CallByName

LIMIT = 60.0
"""Seconds that any run of a test may take."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """What somebody who uses one of the programs has at home, as data."""

    agent: CodingAgent
    offerings: tuple[ToolOffering, ...]
    """The ways in which the program can be made to offer tools; the first is what it does by itself."""
    files: Callable[[str, ToolOffering], Mapping[str, str]]
    """Their own files, below the home folder, for the model at this URL."""
    keeps: Mapping[str, tuple[str, ...]]
    """Further files that the program itself writes into, and the parts of them that are nevertheless the person's."""
    writes: Callable[[Path], Mapping[str, CallByName]]
    """Ways to write a file of this name into a folder with the program's own tools."""
    counted: Callable[[Sequence[TurnUsage]], tuple[int, int, int]]
    """The tokens that went in, came out and were cached, as the program tells them of these turns."""
    reaches: str
    """Under which name the program knows Toolcrib's `workspace_write_file`."""
    namespace: str = ""

    def write_file(self, arguments: Mapping[str, Any]) -> CallByName:
        """A call of Toolcrib's tool, also where it is not offered."""
        return CallByName(self.reaches, arguments, self.namespace)


def _claude_files(url: str, offering: ToolOffering) -> dict[str, str]:
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **({"ENABLE_TOOL_SEARCH": "false"} if offering is ToolOffering.PLAIN else {}),
    }
    return {".claude/settings.json": json.dumps({"model": "claude-sonnet-4-5", "env": variables})}


CODEX_MODELS = {ToolOffering.PLAIN: "gpt-4.1", ToolOffering.DEFERRED: "gpt-5.5", ToolOffering.CODE: "gpt-6-luna"}
"""Codex goes by what it knows of a model: of the first it knows nothing."""


def _codex_files(url: str, offering: ToolOffering) -> dict[str, str]:
    settings = coding_agents.CODEX_SETTINGS.replace("@URL@", url)
    settings = settings.replace("gpt-4.1", CODEX_MODELS[offering])
    return {".codex/config.toml": settings.replace('env_key = "SCRIPTED_KEY"', f'experimental_bearer_token = "{KEY}"')}


def _gemini_files(url: str, offering: ToolOffering) -> dict[str, str]:
    settings = {**coding_agents.GEMINI_SETTINGS, "model": {"name": "gemini-2.5-flash"}}
    return {
        ".gemini/settings.json": json.dumps(settings),
        ".gemini/.env": f"GEMINI_API_KEY={KEY}\nGOOGLE_GEMINI_BASE_URL={url}\n",
    }


def _echo(file: Path) -> str:
    return f"echo by its own tools > {file}"


def _patch(file: Path) -> str:
    return f"*** Begin Patch\n*** Add File: {file}\n+by its own tools\n*** End Patch\n"


def _without_cached(turns: Sequence[TurnUsage]) -> tuple[int, int, int]:
    return sum(turn.fresh for turn in turns), sum(turn.output for turn in turns), sum(turn.cached for turn in turns)


def _with_cached(turns: Sequence[TurnUsage]) -> tuple[int, int, int]:
    return sum(turn.read for turn in turns), sum(turn.output for turn in turns), sum(turn.cached for turn in turns)


def _without_thoughts(turns: Sequence[TurnUsage]) -> tuple[int, int, int]:
    into, out, cached = _with_cached(turns)
    return into, out - sum(turn.thought for turn in turns), cached


CLAUDE = Person(
    agent=coding_agents.CLAUDE,
    offerings=(ToolOffering.DEFERRED, ToolOffering.PLAIN),
    files=_claude_files,
    keeps={".claude.json": ("mcpServers", "hooks", "env")},
    writes=lambda folder: {
        "written": CallByName("Write", {"file_path": str(folder / "written"), "content": "by its own tools"}),
        "shell": CallByName("Bash", {"command": _echo(folder / "shell"), "description": "Write it."}),
    },
    counted=_without_cached,
    reaches="mcp__toolcrib__workspace_write_file",
)
CODEX = Person(
    agent=coding_agents.CODEX,
    offerings=(ToolOffering.CODE, ToolOffering.DEFERRED, ToolOffering.PLAIN),
    files=_codex_files,
    keeps={},
    writes=lambda folder: {
        "shell": CallByName("exec_command", {"cmd": _echo(folder / "shell")}),
        "patched": CallByName("apply_patch", _patch(folder / "patched")),
    },
    counted=_with_cached,
    reaches="workspace_write_file",
    namespace="mcp__toolcrib",
)
GEMINI = Person(
    agent=coding_agents.GEMINI,
    offerings=(ToolOffering.PLAIN,),
    files=_gemini_files,
    keeps={},
    writes=lambda folder: {
        "written": CallByName("write_file", {"file_path": str(folder / "written"), "content": "by its own tools"}),
        "shell": CallByName("run_shell_command", {"command": _echo(folder / "shell")}),
    },
    counted=_without_thoughts,
    reaches="mcp_toolcrib_workspace_write_file",
)
ALL = {person.agent.name: person for person in (CLAUDE, CODEX, GEMINI)}


@dataclass(frozen=True, kw_only=True)
class Told:
    """A run that is over, as whoever started it saw it."""

    exit_code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """What `--json` ended with."""
        try:
            result: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit {self.exit_code}, no JSON: {self.out!r}; {self.err!r}") from None
        return result

    def ok(self) -> Told:
        assert self.exit_code == 0, f"exit {self.exit_code}: {self.out}{self.err}"
        return self

    @property
    def log(self) -> Log:
        return Log.read(Path(self.result["log"]))


@dataclass(frozen=True, kw_only=True)
class Log:
    """A run's log, line by line."""

    path: Path
    metadata: dict[str, Any]
    events: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None where the run was not ended in order."""

    @classmethod
    def read(cls, path: Path) -> Log:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first, rest = lines[0], lines[1:]
        summary = rest.pop()["summary"] if rest and "summary" in rest[-1] else None
        events = [line["event"] for line in rest if "session" not in line]
        return cls(path=path, metadata=first["metadata"], events=events, summary=summary)

    def told(self, kind: str, role: str) -> list[str]:
        return [event["text"] for event in self.events if (event["kind"], event.get("role")) == (kind, role)]


@dataclass(kw_only=True)
class Begun:
    """A run that goes on."""

    process: subprocess.Popen[str]

    def wait(self, limit: float = LIMIT) -> Told:
        out, err = self.process.communicate(timeout=limit)
        return Told(exit_code=self.process.returncode, out=out, err=err)

    def kill(self) -> None:
        """As the kernel does it when memory is short: no chance to clean up."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT)

    def interrupt(self) -> Told:
        """As Ctrl-C does it."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()


@dataclass(frozen=True, kw_only=True)
class Desk:
    person: Person
    home: Home
    """Where Toolcrib's own files are."""
    project: Path

    @property
    def folder(self) -> Path:
        """The person's home folder."""
        return self.home.path / "h"

    @property
    def environ(self) -> dict[str, str]:
        """All there is in it: what the person set up for the program is in files."""
        programs, tmp = self.home.path / "bin", self.home.path / "run-tmp"
        return {
            "TOOLCRIB_HOME": str(self.home.toolcrib),
            "HOME": str(self.folder),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "TMPDIR": str(tmp),
        }

    def use(self, url: str, offering: ToolOffering | None = None) -> None:
        """From now on the person's model is the one at this URL."""
        for name, text in self.person.files(url, offering or self.person.offerings[0]).items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def start(self, prompt: str, *words: str) -> Begun:
        return Begun(
            process=subprocess.Popen(
                [str(PROGRAM), "run", self.person.agent.name, prompt, *words],
                env=self.environ,
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def run(self, prompt: str, *words: str, limit: float = LIMIT) -> Told:
        """`toolcrib run … --json`, to its end."""
        begun = self.start(prompt, "--json", *words)
        try:
            return begun.wait(limit)
        except subprocess.TimeoutExpired:
            begun.kill()
            raise

    def settings(self) -> dict[str, object]:
        """What is the person's own of all that lies at home, and whatever a run might leave in the project for the
        programs to find: the same before and after a run."""
        own = {name: (self.folder / name).read_text() for name in self.person.files("", self.person.offerings[0])}
        parts = {name: _parts(self.folder / name, keys) for name, keys in self.person.keeps.items()}
        planted = (".mcp.json", ".claude", ".codex", ".gemini")
        return {**own, **parts, **{name: (self.project / name).exists() for name in planted}}

    def processes(self) -> list[leftovers.Process]:
        """Those that work for runs of this person: the program, what it started, and `toolcrib run` itself."""
        return [process for process in leftovers.living() if process.names(self.folder)]

    def wait_until_alone(self, limit: float = 10.0) -> None:
        try:
            wait_for(lambda: not self.processes(), "every process of the run to end", limit)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {[(one.pid, one.words) for one in self.processes()]}") from None

    def tokens(self) -> dict[str, str]:
        """Of the agents that there are now."""
        files = (self.home.toolcrib / "state" / "agents").glob("*/token")
        return {file.parent.name: file.read_text().strip() for file in files}

    def logs(self) -> list[Path]:
        return sorted((self.project / ".toolcrib" / "runs").glob("*.jsonl"))


def _parts(file: Path, keys: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    # Of each project, only the servers: the rest is the program's own count of what was done there.
    projects = {name: of.get("mcpServers") for name, of in found.get("projects", {}).items() if of.get("mcpServers")}
    return {**{key: found.get(key) for key in keys}, "projects": projects}


@contextmanager
def desk(person: Person, home: Home, project: Path) -> Iterator[Desk]:
    """Raises `fleet.NotRun` where the program cannot be had."""
    made = Desk(person=person, home=home, project=project)
    programs = home.path / "bin"
    for folder in (made.folder, programs, Path(made.environ["TMPDIR"])):
        folder.mkdir()
    for name in ALL:
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(fleet.command(name))} "$@"\n')
        program.chmod(0o755)
    try:
        yield made
    finally:
        # What a failed test leaves must not disturb the next one.
        for process in made.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
