"""A task of six calls on twelve servers, done by a real coding agent with a scripted model, in each listing mode.

In: a coding agent, a way to offer tools, a listing mode. Out: a `FinishedTask` with the model's requests and the calls
that arrived. Five servers are real ones, two are ours on the SDKs, and five answer to the saved lists of real servers,
or to generated ones where those are missing. `bench/figures/listing_clients.py` measures with it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import daemon as daemons
from parts import fleet, runs, server_process
from parts.agent_clients import Owner
from parts.daemon import Daemon, Home
from parts.recording_server import Notes
from parts.runs import FinishedRun
from toolcrib.config.model import ListingMode
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import Call, Say, Step
from toolcrib.testing.server import RecordedRequest, ScriptedModel, serving

SAVED = Path(__file__).parents[3] / "shared" / "data" / "catalogs"
REAL = ("everything", "filesystem", "memory", "git", "time")
OWN = ("sdk_v1", "sdk_v2")
STAND_INS = ("github", "slack", "notion", "playwright", "atlassian")
SERVERS = (*REAL, *OWN, *STAND_INS)
PROMPT = "Use the tools."
FIRST_WORDS, LAST_WORDS = "So far, so good.", "Done."


@dataclass(frozen=True, kw_only=True)
class TaskCall:
    server: str
    tool: str
    arguments: Mapping[str, Any]
    query: str
    """What finds the tool."""
    answer: str = ""
    """A part of its result. The stand-ins record their calls instead."""

    @property
    def display(self) -> str:
        return f"{self.server}:{self.tool}"

    @property
    def name(self) -> str:
        return f"{self.server}_{self.tool}"


def task(folder: Path, number: int = 0) -> tuple[TaskCall, ...]:
    """`number`: tells apart what several agents store."""
    entity = {"name": f"Toolcrib {number}", "entityType": "program", "observations": ["It lists tools."]}
    return (
        TaskCall(
            server="filesystem",
            tool="read_text_file",
            arguments={"path": str(folder / "note.txt")},
            query="read a text file",
            answer="written in the note",
        ),
        TaskCall(
            server="time",
            tool="get_current_time",
            arguments={"timezone": "UTC"},
            query="current time in a time zone",
            answer="UTC",
        ),
        TaskCall(
            server="memory",
            tool="create_entities",
            arguments={"entities": [entity]},
            query="create entities in the knowledge graph",
            answer="It lists tools.",
        ),
        TaskCall(server="sdk_v2", tool="add", arguments={"a": 40, "b": 2}, query="add two numbers", answer="42"),
        TaskCall(
            server="github",
            tool="create_issue",
            arguments={"owner": "o", "repo": "r", "title": "A bug"},
            query="create an issue in a repository",
        ),
        TaskCall(
            server="slack",
            tool="slack_post_message",
            arguments={"channel_id": "C1", "text": "Look at the bug."},
            query="post a message to a channel",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    calls: tuple[TaskCall, ...]
    model: ScriptedModel
    runs: Sequence[FinishedRun]
    recorded: Sequence[Mapping[str, Any]]
    """The calls that arrived at the stand-ins."""
    audit: Sequence[Mapping[str, Any]]
    """The entries about these runs."""

    @property
    def first_requests(self) -> list[RecordedRequest]:
        """Of each run, the first request to the model that has tools."""
        begun = [(one, one.conversation) for one in self.model.requests if one.conversation and one.conversation.tools]
        later = [one for one, conversation in begun if FIRST_WORDS in conversation.said]
        return [begun[0][0], *later[:1]]


@dataclass(kw_only=True)
class ListingScene:
    """A daemon with the twelve servers."""

    home: Home
    daemon: Daemon
    notes: Notes = field(repr=False)
    tasks: int = 0

    def do(self, client: str, offering: ToolOffering, mode: ListingMode) -> FinishedTask:
        """With `handshake`, a second run continues the conversation after the first call."""
        setup, before, known = runs.ALL[client], len(self.notes.calls()), len(self._audit())
        self.tasks += 1
        calls = task(self.home.path, self.tasks)
        place = Path(tempfile.mkdtemp(dir=self.home.path))
        (place / "p").mkdir()
        with contextlib.ExitStack() as stack:
            user = stack.enter_context(runs.program_user(setup, self.home, place / "p", place=place))
            steps = _steps(calls, mode, expected_mode(client, mode))
            model = stack.enter_context(serving(setup.agent.provider, steps, last_words=LAST_WORDS))
            user.use(model.url, offering)
            words = ("--listing", mode)
            finished = [user.run(PROMPT, *words)]
            if mode is ListingMode.HANDSHAKE:
                conversation = finished[0].ok().json["conversation"]
                finished.append(user.run(PROMPT, *words, "--conversation", conversation))
            user.wait_until_alone()
        return FinishedTask(
            calls=calls,
            model=model,
            runs=finished,
            recorded=self.notes.calls()[before:],
            audit=self._audit()[known:],
        )

    def _audit(self) -> list[dict[str, Any]]:
        return Owner(self.daemon).audit()


def expected_mode(client: str, mode: ListingMode) -> ListingMode:
    """In which the client's first list is."""
    if mode is ListingMode.AUTO:
        return ListingMode.SEARCH if client == runs.GEMINI.agent.name else ListingMode.FULL
    return ListingMode.FULL if mode is ListingMode.HANDSHAKE else mode


def _steps(calls: Sequence[TaskCall], mode: ListingMode, listed: ListingMode) -> list[Step]:
    steps: list[Step] = []
    for one in calls:
        if listed is ListingMode.SEARCH:
            steps.append(Call("crib_find", {"query": one.query}))
            steps.append(Call("crib_call", {"tool": one.name, "arguments": one.arguments}))
        else:
            steps.append(Call(one.name, one.arguments, query=one.query))
    if mode is ListingMode.HANDSHAKE:
        steps.insert(1, Say(FIRST_WORDS))
    return steps


@contextlib.contextmanager
def listing_scene(saved: Path = SAVED) -> Iterator[ListingScene]:
    """Raises `fleet.NotRun` if one of the servers is unavailable."""
    with Home.temporary() as home:
        (home.path / "note.txt").write_text("This is written in the note.")
        notes = Notes(home.path / "recorded")
        with daemons.starting(home) as start:
            started = start({"servers": _servers(home.path, notes, saved)})
            started.wait_until_ready(*SERVERS)
            yield ListingScene(home=home, daemon=started, notes=notes)


def _servers(folder: Path, notes: Notes, saved: Path) -> dict[str, Any]:
    arguments = {"filesystem": [str(folder)], "everything": ["stdio"]}
    variables = {"memory": {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}}
    patience = {"connect_timeout": server_process.START_LIMIT}
    entries: dict[str, Any] = {name: server_process.stdio_entry(name) for name in OWN}
    for name in REAL:
        program, *words = fleet.command(name)
        args = [*words, *arguments.get(name, [])]
        entries[name] = {"command": program, "args": args, "env": variables.get(name, {}), **patience}
    for name in STAND_INS:
        file = folder / f"{name}.json"
        file.write_text(json.dumps(_list_of(name, saved)))
        entries[name] = notes.server(flags=["--catalog", str(file)], **patience)
    return entries


def _list_of(name: str, saved: Path) -> list[dict[str, Any]]:
    file = saved / f"{name}.json"
    tools: list[dict[str, Any]] = json.loads(file.read_text())["tools"] if file.exists() else _generated(name)
    return tools


def _generated(name: str) -> list[dict[str, Any]]:
    """Forty tools of the usual size, and those that the task calls."""
    text = {"type": "string", "description": "What it is, in which form, and what happens if it is left out. " * 2}
    called = [one for one in task(Path("/")) if one.server == name]
    return [
        *(
            {
                "name": one.tool,
                "description": f"{one.query.capitalize()}.",
                "inputSchema": {"type": "object", "properties": dict.fromkeys(one.arguments, text)},
            }
            for one in called
        ),
        *(
            {
                "name": f"change_{name}_{number}",
                "description": f"Changes the part {number} of {name}. " * 5,
                "inputSchema": {
                    "type": "object",
                    "properties": {f"field_{field}": text for field in range(6)},
                    "required": ["field_0"],
                },
            }
            for number in range(40)
        ),
    ]
