"""A coding agent at work, by itself or through Toolcrib, in a home of its own, with a scripted model on loopback.

In: one of the three programs and a `Way` to run it. Out: a `Place` that starts runs; a `Watch` beside the model notes
when each request came and what it held. The programs, the models and the five real servers are those of the tests
(`tests/parts`), in their pinned versions. `figures/run_*.py` measure with it.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import daemon, fleet
from parts.coding_agents import PROMPT
from parts.runs import ProgramSetup
from parts.waiting import wait_for
from targets import NotMeasured
from toolcrib.testing.conversation import Hold, RequestConversation, ToolOffering
from toolcrib.testing.script import Call, Say, Step
from toolcrib.testing.server import ScriptedModel, serving
from toolcrib.testing.wire import Message, WireFormat

LIMIT = 120.0
"""Seconds that any run may take."""
SERVERS = ("everything", "filesystem", "memory", "git", "time")
"""Real ones, from npm and PyPI, of the kind that people have."""
CALLED_SERVER = "time"
CALLED = Call("get_current_time", {"timezone": "UTC"})
LAST_WORDS = "That was all."


class Way(enum.StrEnum):
    ALONE = "the program alone"
    DIRECT = "it starts the 5 servers"
    WARM = "toolcrib run, daemon up"
    COLD = "toolcrib run, no daemon"
    WORKSPACE = "toolcrib run, no servers"

    @property
    def is_ours(self) -> bool:
        return self in (Way.WARM, Way.COLD, Way.WORKSPACE)


@dataclass
class Watch:
    """A provider's wire format that notes when it was spoken to."""

    provider: WireFormat
    seen: list[tuple[float, RequestConversation, dict[str, Any]]] = field(default_factory=list)

    def is_turn(self, path: str) -> bool:
        return self.provider.is_turn(path)

    def read(self, body: dict[str, Any]) -> RequestConversation:
        at = time.time()
        conversation = self.provider.read(body)
        # One without tools is about something else: a title, a check of the key.
        if conversation.tools:
            self.seen.append((at, conversation, body))
        return conversation

    @property
    def base(self) -> str:
        return self.provider.base

    def write(self, *about: Any) -> Sequence[Message]:
        return self.provider.write(*about)

    def whole(self, *about: Any) -> dict[str, Any] | None:
        return self.provider.whole(*about)

    def refusal(self, *about: Any) -> dict[str, Any]:
        return self.provider.refusal(*about)

    def interruption(self, *about: Any) -> Message:
        return self.provider.interruption(*about)


class Stall(Hold):
    """Where the model keeps all runs waiting while somebody measures."""

    LIMIT = 240.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Seconds since the start."""

    program: float
    """The program itself was started: by us, or by Toolcrib."""
    first_request: float
    whole: float


@dataclass(frozen=True, kw_only=True)
class Place:
    person: ProgramSetup
    way: Way
    home: daemon.Home

    @property
    def name(self) -> str:
        return self.person.agent.name

    @property
    def folder(self) -> Path:
        """The person's home folder."""
        return self.home.path / "h"

    @property
    def environ(self) -> dict[str, str]:
        ours = {"TOOLCRIB_HOME": str(self.home.toolcrib)} if self.way.is_ours else {}
        path = f"{self.home.path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {"HOME": str(self.folder), "PATH": path, "LANG": "C.UTF-8", "TMPDIR": str(self.home.tmp)}
        # Claude Code's patience with servers: fifty that start at once on a small machine take long.
        return {**ours, **own, "MCP_TIMEOUT": f"{LIMIT * 1000:.0f}"}

    @property
    def argv(self) -> list[str]:
        if self.way.is_ours:
            return [str(daemon.PROGRAM), "run", self.name, PROMPT, "--json"]
        return [str(self.home.path / "bin" / self.name), *_ALONE[self.name](self)]

    @property
    def started(self) -> Path:
        """Where the program notes when it was started."""
        return self.home.path / "started"

    def use(self, url: str, offering: ToolOffering | None = None) -> None:
        """From now on the person's model is the one at this URL."""
        files = dict(self.person.files(url, offering or self.person.offerings[0]))
        if self.way is Way.DIRECT:
            _OWN_SERVERS[self.name](files, servers(self.home.path))
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """One run, in a session of its own; whatever is left of it afterwards is ended."""
        child = subprocess.Popen(
            self.argv,
            env=self.environ,
            cwd=self.home.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            # Ctrl-C for `toolcrib run`, which then ends everything of its own; a program alone gets a little time, too.
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.communicate(timeout=15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def run(self, watch: Watch) -> Ran:
        """One run to its end. The watch may have seen others before."""
        before = len(watch.seen)
        began = time.time()
        with self.running() as child:
            try:
                out, err = child.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                raise NotMeasured(f"{self.name}, {self.way}: it took longer than {LIMIT:.0f} s") from None
            whole = time.time() - began
        if child.returncode or len(watch.seen) == before:
            raise NotMeasured(f"{self.name}, {self.way}: exit {child.returncode}: {(err or out)[-300:]}")
        program = float(self.started.read_text()) - began
        return Ran(program=program, first_request=watch.seen[before][0] - began, whole=whole)


def servers(scratch: Path) -> dict[str, dict[str, Any]]:
    """The five as they stand under `mcpServers`."""
    arguments = {"filesystem": [str(scratch)]}
    variables = {"memory": {"MEMORY_FILE_PATH": str(scratch / "memory.jsonl")}}
    entries = {}
    for name in SERVERS:
        program, *words = fleet.command(name)
        entries[name] = {"command": program, "args": [*words, *arguments.get(name, [])], "env": variables.get(name, {})}
    return entries


def _claude_alone(place: Place) -> list[str]:
    words = ["-p", PROMPT, "--output-format=stream-json", "--verbose", "--strict-mcp-config"]
    if place.way is Way.ALONE:
        return words
    allowed = ",".join(f"mcp__{name}" for name in SERVERS)
    return [*words, f"--mcp-config={place.folder / 'servers.json'}", f"--allowedTools={allowed}"]


_ALONE: Mapping[str, Callable[[Place], list[str]]] = {
    "claude": _claude_alone,
    "codex": lambda _: ["exec", "--json", "--skip-git-repo-check", PROMPT],
    "gemini": lambda _: ["-p", PROMPT, "--output-format", "stream-json", "--skip-trust"],
}
"""The words that run a program without a person in front of it."""


def _claude_servers(files: dict[str, str], entries: Mapping[str, Any]) -> None:
    typed = {name: {"type": "stdio", **one} for name, one in entries.items()}
    files["servers.json"] = json.dumps({"mcpServers": typed})


def _codex_servers(files: dict[str, str], entries: Mapping[str, Any]) -> None:
    lines = []
    for name, one in entries.items():
        variables = "".join(f"{key} = {json.dumps(value)}, " for key, value in one["env"].items()).removesuffix(", ")
        lines += [
            f"[mcp_servers.{name}]",
            f"command = {json.dumps(one['command'])}",
            f"args = {json.dumps(one['args'])}",
            f"env = {{ {variables} }}",
            'default_tools_approval_mode = "approve"',
            # Without this it waits a second, then starts without the tools.
            "required = true",
            f"startup_timeout_sec = {LIMIT:.0f}",
        ]
    files[".codex/config.toml"] += "\n".join(lines) + "\n"


def _gemini_servers(files: dict[str, str], entries: Mapping[str, Any]) -> None:
    settings = json.loads(files[".gemini/settings.json"])
    settings["mcpServers"] = {name: {**one, "trust": True} for name, one in entries.items()}
    files[".gemini/settings.json"] = json.dumps(settings)


_OWN_SERVERS: Mapping[str, Callable[[dict[str, str], Mapping[str, Any]], None]] = {
    "claude": _claude_servers,
    "codex": _codex_servers,
    "gemini": _gemini_servers,
}
"""Adds the servers to a person's own files."""


@contextlib.contextmanager
def place(person: ProgramSetup, way: Way) -> Iterator[Place]:
    """A place with all it needs; where the way is WARM or WORKSPACE, with a daemon whose servers are ready."""
    with contextlib.ExitStack() as stack:
        made = Place(person=person, way=way, home=stack.enter_context(daemon.Home.temporary()))
        made.folder.mkdir()
        _put_program(made)
        entries = {} if way is Way.WORKSPACE else servers(made.home.path)
        made.home.write_config({"mcpServers": entries})
        if way in (Way.WARM, Way.WORKSPACE):
            started = stack.enter_context(daemon.starting(made.home))()
            started.wait_until_ready(*entries)
        if way.is_ours and entries:
            # What this server calls read-only is then trusted, so that its call waits for nobody.
            trusted = daemon.run_cli(made.home, "trust", "--server", CALLED_SERVER)
            if trusted.exit_code:
                raise NotMeasured(f"`toolcrib trust` said {trusted.err}")
        yield made


def _put_program(made: Place) -> None:
    """The pinned program on PATH, behind a line that notes the time."""
    folder = made.home.path / "bin"
    folder.mkdir()
    program = folder / made.name
    bash = shutil.which("bash")
    if not bash:
        raise NotMeasured("bash is needed to note when a program starts")
    words = shlex.join(fleet.command(made.name))
    program.write_text(f'#!{bash}\necho $EPOCHREALTIME > {made.started}\nexec {words} "$@"\n')
    program.chmod(0o755)


@contextlib.contextmanager
def model(person: ProgramSetup, steps: Sequence[Step]) -> Iterator[tuple[Watch, ScriptedModel]]:
    watch = Watch(person.agent.provider)
    with serving(watch, steps, last_words=LAST_WORDS) as served:
        yield watch, served


def steps(way: Way, hold: Hold | None = None) -> list[Step]:
    """One call of a tool, where there is one, then last words."""
    last = Say(LAST_WORDS, hold=hold)
    return [last] if way in (Way.ALONE, Way.WORKSPACE) else [CALLED, last]


def all_stand(watch: Watch, children: Sequence[subprocess.Popen[str]]) -> None:
    """Returns when all of these wait for the model's last words, each after one call."""

    def standing() -> bool:
        for child in children:
            if child.poll() is not None:
                out, err = child.communicate()
                raise NotMeasured(f"one ended early, with {child.returncode}: {(err or out)[-300:]}")
        return sum(bool(conversation.results) for _, conversation, _ in watch.seen) >= len(children)

    wait_for(standing, f"{len(children)} runs to wait for their model", Stall.LIMIT / 2, pause=0.1)
