"""The world of a scenario: a project, a user with a coding agent, a scripted model, servers, and the audit log.

`step` matches the wording of a step.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_bdd import parsers

from parts import runs
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.recording_server import Notes
from parts.runs import FinishedRun, Log, ProgramUser, StartedRun
from parts.traps import git
from parts.waiting import wait_for
from toolcrib.testing.conversation import Hold, ToolOffering
from toolcrib.testing.script import Call, Step
from toolcrib.testing.server import ScriptedModel, serving

PROGRAM = "def double(number: int) -> int:\n    return number + 2\n"
CHANGED = PROGRAM.replace("number + 2", "number * 2")
MODULE = "def halve(number: int) -> float:\n    return number / 2\n"
TEST = "from halving import halve\n\n\ndef test_six_halved_is_three() -> None:\n    assert halve(6) == 3\n"
OUR_FOLDERS = {".git", ".toolcrib"}


def step(text: str) -> parsers.re:
    """`{name}` matches a word, `"{name}"` a text without quotes, so no step matches a longer one."""
    quoted = re.sub(r'"\{(\w+)\}"', r'"(?P<\1>[^"]*)"', re.sub(r"[.+*?()|]", r"\\\g<0>", text))
    return parsers.re(re.sub(r"\{(\w+)\}", r"(?P<\1>\\w+)", quoted) + r"\Z")


@dataclass(kw_only=True)
class World:
    home: Home
    cli: Cli
    start_daemon: StartDaemon
    parts: Callable[[str], list[str]]
    open: contextlib.ExitStack
    """Closed at the end of the scenario."""
    user: ProgramUser = field(init=False)
    daemon: Daemon | None = None
    models: list[ScriptedModel] = field(default_factory=list)
    finished: list[FinishedRun] = field(default_factory=list)
    hold: Hold = field(default_factory=Hold)
    """Reached when the model thinks for a long time."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of the killed run."""
    _settings: dict[str, object] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _calls: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.home.path / "doubling"

    @property
    def ledger(self) -> Notes:
        return Notes(self.home.path / "ledger.jsonl")

    @property
    def model(self) -> ScriptedModel:
        return self.models[-1]

    @property
    def run(self) -> FinishedRun:
        return self.finished[-1]

    def make_project(self) -> None:
        self.project.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.project / "doubling.py").write_text(PROGRAM)
        (self.project / ".gitignore").write_text("__pycache__/\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "Double numbers")

    def git(self, *words: str) -> None:
        git(self.project, *words)

    def start(self, config: dict[str, Any]) -> None:
        self.daemon = self.start_daemon(config)

    def plays(self, agent: str, *steps: Step, offering: ToolOffering | None = None) -> None:
        """Starts a new model for the agent, which follows these steps."""
        self.parts(agent)
        if not self.models:
            self.user = self.open.enter_context(runs.program_user(runs.ALL[agent], self.home, self.project))
        self.models.append(self.open.enter_context(serving(self.user.setup.agent.provider, steps)))
        self.use(self.model, offering)
        self._files = self.files()

    def use(self, model: ScriptedModel, offering: ToolOffering | None = None) -> None:
        self.user.use(model.url, offering)
        self._settings = self.user.settings()

    def runs(self, prompt: str, *args: str) -> None:
        self.finished.append(self.user.run(prompt, *args))

    def begins(self, prompt: str, *args: str) -> StartedRun:
        started = self.user.start(prompt, "--json", *args)
        self.open.callback(_end, started)
        return started

    def files(self) -> dict[str, str]:
        """The project's files, by name."""
        names = {path: path.relative_to(self.project) for path in self.project.rglob("*") if path.is_file()}
        return {str(name): path.read_text() for path, name in names.items() if not OUR_FOLDERS & set(name.parts)}

    def changed(self) -> set[str]:
        """The project's files that the run changed."""
        now, before = self.files(), self._files
        return {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}

    def calls(self) -> list[dict[str, Any]]:
        """The calls in the audit log, the oldest first. It is read once after each run."""
        if len(self.finished) not in self._calls:
            entries = self.cli("audit", "--json", "-n", "100", cwd=self.project).ok().json["entries"]
            found = [entry for entry in entries if entry["kind"] == "outcome"]
            self._calls[len(self.finished)] = sorted(found, key=lambda entry: int(entry["seq"]))
        return self._calls[len(self.finished)]

    def logs(self) -> list[Log]:
        return [Log.read(path) for path in self.user.logs()]

    def is_clean(self) -> None:
        """Only the logs of the runs remain, and the user's settings are unchanged."""
        self.user.wait_until_alone()
        settings = self.user.settings()
        assert settings == self._settings, f"{settings} were {self._settings}"
        files = list((self.home.toolcrib / "state" / "agents").rglob("*"))
        assert not files, f"files of agents are left: {files}"
        agents = self.cli("agent", "list", "--json", cwd=self.project).ok().json["agents"]
        assert not agents, f"agents are left: {agents}"
        faults = [fault for model in self.models for fault in model.faults]
        assert not faults, f"the script did not fit what came: {faults}"

    def remove_agent(self) -> None:
        [name] = self.user.tokens()
        self.cli("agent", "remove", name, cwd=self.project).ok()

    def ledger_dies_in(self, nonce: str) -> None:
        """Kills the ledger during this call."""
        wait_for(lambda: nonce in self.ledger.nonces(), f"the call {nonce} to reach the ledger", runs.LIMIT)
        [call] = [call for call in self.ledger.calls() if call["arguments"]["nonce"] == nonce]
        subprocess.run(["kill", "-9", str(call["pid"])], check=True, timeout=10)


def note(nonce: str, *, first: Any = None, hold_answer: Any = None, **more: Any) -> Call:
    return Call("ledger_note", {"nonce": nonce, **more}, first=first, hold=hold_answer)


def _end(started: StartedRun) -> None:
    if started.process.poll() is None:
        started.kill()
