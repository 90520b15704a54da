"""A real coding agent in a project with traps, a scripted model, and an MCP server in Toolcrib's place.

Each program's settings and traps are in its tests, which check the files on disk.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from parts import fleet
from parts.coding_agents import run_to_end
from parts.server_process import StartServer
from toolcrib.coding_agents.client_spec import ClientSpec, LaunchRequest, RunReport
from toolcrib.identity.agent_folders import AgentFolders
from toolcrib.policy.profile import OwnTools
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus
from toolcrib.testing.script import Step
from toolcrib.testing.server import ScriptedModel, serving
from toolcrib.workspace.settings.model import GUARDED

LIMIT = 90.0
TOKEN = "tcb_0123456789abcdef"
PROMPT = "-p is not an argument here."


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    exit_code: int
    err: str
    model: ScriptedModel
    events: list[AgentEvent]
    report: RunReport
    session: str

    def ends(self, tool: str = "") -> list[AgentEvent]:
        """The events at the end of calls, of all tools or of one."""
        calls = [event for event in self.events if event.kind is AgentEventKind.TOOL]
        over = [event for event in calls if event.tool_status is not ToolStatus.STARTED]
        return [event for event in over if tool in ("", event.tool_name)]

    def outcomes(self) -> list[tuple[str, str, ToolStatus | None]]:
        return [(event.tool_name, event.server, event.tool_status) for event in self.ends()]

    def status(self, tool: str) -> ToolStatus | None:
        """How the only call of a tool ended."""
        (over,) = self.ends(tool)
        return over.tool_status

    @property
    def results(self) -> str:
        return "\n".join(self.model.results)

    @property
    def sent(self) -> str:
        """Everything that the model received, as JSON."""
        return json.dumps(self.model.bodies)

    def leaks(self, *texts: str) -> list[str]:
        return [text for text in texts if text in self.sent]


@dataclass(frozen=True, kw_only=True)
class CallRecorder:
    url: str
    file: Path

    def calls(self) -> list[dict[str, Any]]:
        notes = map(json.loads, self.file.read_text().splitlines())
        return [note for note in notes if note["method"] == "tools/call"]


def call_recorder(folder: Path, start: StartServer) -> CallRecorder:
    file = folder / "seen"
    command = [sys.executable, str(fleet.SERVERS / "sdk_v2.py"), "--transport", "http"]
    return CallRecorder(url=start(command, env={"TOOLCRIB_TEST_SEEN": str(file)}).url("http"), file=file)


@dataclass(kw_only=True)
class ProgramScene:
    client: ClassVar[ClientSpec]
    provider: ClassVar[Callable[[], Any]]
    settings_file: ClassVar[str]
    """The user's file, below the home folder. No run may change it."""
    model_name: ClassVar[str] = ""

    base: Path
    server: CallRecorder
    program: list[str]
    settings: Any = None
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that the user has set."""
    _runs: int = 0

    def __post_init__(self) -> None:
        self.home, self.project, self.outside = (self.base / name for name in ("home", "project", "marks"))
        self.file = self.home / self.settings_file
        for folder in (self.project, self.home, self.base / "tmp", self.outside, self.file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        (self.project / "there.txt").write_text("as it was\n")
        self.server.file.write_text("")

    def write_settings(self, model: ScriptedModel) -> None:
        raise NotImplementedError

    @property
    def marks(self) -> set[str]:
        """The triggered traps, and other files written to that folder outside the project."""
        return {mark.name for mark in self.outside.iterdir()}

    def mark(self, name: str) -> str:
        """A command that leaves a mark."""
        return f"touch {self.outside}/{name}"

    def calls(self) -> list[dict[str, Any]]:
        """The arguments of the calls that arrived at the server."""
        return [call["arguments"] for call in self.server.calls()]

    def put(self, name: str, text: str) -> Path:
        """Writes a file, below the project unless the path is absolute."""
        file = self.project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def hide_secrets(self) -> Path:
        """Puts a token in Toolcrib's state folder and links to it, and a log of another run."""
        private = self.home / ".local" / "state" / "toolcrib"
        self.put(f"{private}/owner.token", "the-owners-token\n")
        self.put(".toolcrib/runs/1.jsonl", "the-owners-token\n")
        (self.project / "way").symlink_to(private)
        return private

    def run(self, own_tools: OwnTools, *steps: Step, **more: Any) -> ProgramRun:
        with serving(type(self).provider(), steps) as model:
            return self.run_with(model, own_tools, **more)

    def run_with(
        self,
        model: ScriptedModel,
        own_tools: OwnTools,
        *,
        prompt: str = PROMPT,
        session: str = "",
        url: str | None = None,
        extra: tuple[str, ...] = (),
        private: tuple[Path, ...] = (),
        around: tuple[str, ...] = (),
        model_name: str = "",
    ) -> ProgramRun:
        """`around`: a command that starts the program."""
        self.write_settings(model)
        chosen = model_name or self.model_name
        before = self.file.read_text()
        headless = self.client.headless
        assert headless is not None
        self._runs += 1
        folders, name = AgentFolders(self.base / "agents"), f"agent-{self._runs}"
        folders.make(name, TOKEN)
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.base / "tmp")}
        request = LaunchRequest(
            prompt=prompt,
            session=session,
            new_session=str(uuid.uuid4()),
            own_tools=own_tools,
            guarded=GUARDED,
            url=self.server.url if url is None else url,
            token=TOKEN,
            headers={"X-Toolcrib-Agent": name},
            folder=folders.of(name),
            workdir=self.project,
            environ={**own, **self.environ},
            private=private,
            extra=(*(("-m", chosen) if chosen else ()), *extra),
        )
        made = headless.launch(request)
        for file, text in made.files.items():
            folders.put(name, file, text)
        for link, target in made.links.items():
            if not target.exists():
                target.mkdir(parents=True)
            folders.link(name, link, target)
        command = [*around, *self.program, *made.args]
        environ = {**request.environ, **made.environ}
        done = run_to_end(command, env=environ, cwd=self.project, stdin=made.stdin, limit=LIMIT)
        parser = headless.parser()
        printed = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
        events = [event for line in printed for event in parser.parse(line)]
        events += [event for line in done.stderr.splitlines() for event in parser.parse_stderr(line)]
        assert self.file.read_text() == before, "a run does not change the user's settings"
        return ProgramRun(
            exit_code=done.returncode,
            err=done.stderr,
            model=model,
            events=events,
            report=parser.report,
            session=session or request.new_session,
        )
