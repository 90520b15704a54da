"""A user who runs a real coding agent with `toolcrib run`.

A `ProgramUser` has a home folder with the user's settings for the program (login, model), the program on PATH, and
nothing else in the environment.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import coding_agents, fleet, leftovers
from parts.coding_agents import KEY, CodingAgent
from parts.daemon import PROGRAM, Finished, Home
from parts.preloaded import Preloaded
from parts.waiting import wait_for
from toolcrib.config.paths import Paths
from toolcrib.testing.conversation import ToolOffering, TurnUsage
from toolcrib.testing.script import CallByName

LIMIT = 180.0
"""Seconds that any run of a test may take."""


@dataclass(frozen=True, kw_only=True)
class ProgramSetup:
    """A program and its user's files."""

    agent: CodingAgent
    offerings: tuple[ToolOffering, ...]
    """The ways in which the program can offer tools to its model; the first is the default."""
    files: Callable[[str, ToolOffering], Mapping[str, str]]
    """The user's files, below the home folder, for the model at this URL."""
    keeps: Mapping[str, tuple[str, ...]]
    """Files that the program itself changes, and the keys in them that belong to the user."""
    writes: Callable[[Path], Mapping[str, CallByName]]
    """Ways to write a file of this name into a folder with the program's built-in tools."""
    counted: Callable[[Sequence[TurnUsage]], tuple[int, ...]]
    """Input, output and cached tokens of these turns, as the program reports them."""
    reaches: str
    """The program's name for Toolcrib's `workspace_write_file`."""
    namespace: str = ""

    def write_file(self, arguments: Mapping[str, Any]) -> CallByName:
        """A call of Toolcrib's tool, even if it is not offered."""
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
"""Codex decides by its knowledge of a model; it does not know the first one."""


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


def _sums(turns: Sequence[TurnUsage], *names: str) -> tuple[int, ...]:
    return tuple(sum(getattr(turn, name) for turn in turns) for name in names)


def _without_thoughts(turns: Sequence[TurnUsage]) -> tuple[int, ...]:
    read, output, cached, thought = _sums(turns, "read", "output", "cached", "thought")
    return read, output - thought, cached


CLAUDE = ProgramSetup(
    agent=coding_agents.CLAUDE,
    offerings=(ToolOffering.DEFERRED, ToolOffering.PLAIN),
    files=_claude_files,
    keeps={".claude.json": ("mcpServers", "hooks", "env")},
    writes=lambda folder: {
        "written": CallByName("Write", {"file_path": str(folder / "written"), "content": "by its own tools"}),
        "shell": CallByName("Bash", {"command": _echo(folder / "shell"), "description": "Write it."}),
    },
    counted=lambda turns: _sums(turns, "fresh", "output", "cached"),
    reaches="mcp__toolcrib__workspace_write_file",
)
CODEX = ProgramSetup(
    agent=coding_agents.CODEX,
    offerings=(ToolOffering.CODE, ToolOffering.DEFERRED, ToolOffering.PLAIN),
    files=_codex_files,
    keeps={},
    writes=lambda folder: {
        "shell": CallByName("exec_command", {"cmd": _echo(folder / "shell")}),
        "patched": CallByName("apply_patch", _patch(folder / "patched")),
    },
    counted=lambda turns: _sums(turns, "read", "output", "cached"),
    reaches="workspace_write_file",
    namespace="mcp__toolcrib",
)
GEMINI = ProgramSetup(
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
ALL = {setup.agent.name: setup for setup in (CLAUDE, CODEX, GEMINI)}


@dataclass(frozen=True, kw_only=True)
class FinishedRun(Finished):
    @property
    def result(self) -> Any:
        return self.json

    def ok(self) -> FinishedRun:
        super().ok()
        return self

    @property
    def log(self) -> Log:
        return Log.read(Path(self.result["log"]))


@dataclass(frozen=True, kw_only=True)
class Log:
    path: Path
    metadata: dict[str, Any]
    events: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None if the run was killed."""

    @classmethod
    def read(cls, path: Path) -> Log:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first, rest = lines[0], lines[1:]
        summary = rest.pop()["summary"] if rest and "summary" in rest[-1] else None
        events = [line["event"] for line in rest if "event" in line]
        return cls(path=path, metadata=first["metadata"], events=events, summary=summary)

    def texts(self, kind: str, role: str) -> list[str]:
        return [event["text"] for event in self.events if (event["kind"], event.get("role")) == (kind, role)]


@dataclass(kw_only=True)
class StartedRun:
    process: subprocess.Popen[str]

    def wait(self, limit: float = LIMIT) -> FinishedRun:
        out, err = self.process.communicate(timeout=limit)
        return FinishedRun(exit_code=self.process.returncode, out=out, err=err)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)

    def interrupt(self) -> FinishedRun:
        self.process.send_signal(signal.SIGINT)
        return self.wait()


@dataclass(kw_only=True)
class ProgramUser:
    setup: ProgramSetup
    home: Home
    project: Path
    place: Path
    """Holds the user's home folder, programs and temporary files."""

    def __post_init__(self) -> None:
        self.folder = self.place / "h"
        """The user's home folder."""
        self.programs = self.place / "bin"
        """Programs in this folder precede the others."""

    @property
    def environ(self) -> dict[str, str]:
        return {
            "TOOLCRIB_HOME": str(self.home.toolcrib),
            "HOME": str(self.folder),
            "PATH": os.pathsep.join((str(self.programs), str(_launchers()), os.environ["PATH"])),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.place / "run-tmp"),
        }

    def use(self, url: str, offering: ToolOffering | None = None) -> None:
        """Makes the model at this URL the user's model."""
        for name, text in self.setup.files(url, offering or self.setup.offerings[0]).items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def start(self, prompt: str, *args: str) -> StartedRun:
        command = [str(PROGRAM), "run", self.setup.agent.name, prompt, *args]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = Preloaded(command, env=self.environ, cwd=self.project, text=True, start_new_session=True, **pipes)
        return StartedRun(process=process)

    def run(self, prompt: str, *args: str, limit: float = LIMIT) -> FinishedRun:
        """`toolcrib run … --json`, to its end."""
        started = self.start(prompt, "--json", *args)
        try:
            return started.wait(limit)
        except subprocess.TimeoutExpired:
            started.kill()
            raise

    def settings(self) -> dict[str, object]:
        """The user's files at home, and files that a run might plant in the project: equal before and after a run."""
        own = {name: (self.folder / name).read_text() for name in self.setup.files("", self.setup.offerings[0])}
        parts = {name: _parts(self.folder / name, keys) for name, keys in self.setup.keeps.items()}
        planted = (".mcp.json", ".claude", ".codex", ".gemini")
        return {**own, **parts, **{name: (self.project / name).exists() for name in planted}}

    def processes(self) -> list[leftovers.Process]:
        """The processes of this user's runs, including `toolcrib run` itself."""
        return [process for process in leftovers.living() if process.names(self.folder)]

    def wait_until_alone(self, limit: float = 10.0) -> None:
        try:
            wait_for(lambda: not self.processes(), "every process of the run to end", limit)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {[(one.pid, one.words) for one in self.processes()]}") from None

    def tokens(self) -> dict[str, str]:
        """The tokens of the existing agents."""
        files = (self.home.toolcrib / "state" / "agents").glob("*/token")
        return {file.parent.name: file.read_text().strip() for file in files}

    def logs(self) -> list[Path]:
        return sorted((self.project / ".toolcrib" / "runs").glob("*.jsonl"))


def _parts(file: Path, keys: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    # Of each project, only the servers: the rest are the program's statistics.
    projects = {name: of.get("mcpServers") for name, of in found.get("projects", {}).items() if of.get("mcpServers")}
    return {**{key: found.get(key) for key in keys}, "projects": projects}


@contextmanager
def program_user(
    setup: ProgramSetup, home: Home, project: Path, kind: type[ProgramUser] = ProgramUser, place: Path | None = None
) -> Iterator[ProgramUser]:
    """`place` is the home's folder by default. Raises `fleet.NotRun` if the program is unavailable."""
    made = kind(setup=setup, home=home, project=project, place=place or home.path)
    for folder in (made.folder, made.programs, Path(made.environ["TMPDIR"])):
        folder.mkdir()
    cache, seen = Paths.of_user(made.environ).programs, _launchers() / "versions"
    if seen.exists() and not cache.exists():
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(seen, cache)
    try:
        yield made
    finally:
        if cache.exists():
            shutil.copy(cache, seen)
        # After a failed test, processes may be left.
        for process in made.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


@functools.cache
def _launchers() -> Path:
    """One folder for all tests of this process, so that Toolcrib asks each program for its version only once."""
    folder = Path(tempfile.mkdtemp(prefix="tc-programs-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ALL:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(fleet.command(name))} "$@"\n')
        program.chmod(0o755)
    return folder
