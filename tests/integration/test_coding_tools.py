"""The coding tools in a real sandbox, in a hostile project, and in runs with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, holes
from parts.agent_runs import Calls, FakeServers, in_memory
from parts.claude_tools import CLAUDE_CODE
from parts.sandboxes import is_running, pids_with
from parts.traps import WRITTEN, HostileProject, leaks_in
from parts.waiting import wait_for
from toolcrib.agent_loop.coding import BuiltinTools, coding_tools
from toolcrib.agent_loop.events import NameConflict, RunEvent, RunFinished, ToolFinished
from toolcrib.agent_loop.options import AgentOptions, CodingTools, ToolRequest
from toolcrib.agent_loop.run import run_agent
from toolcrib.run_events import ToolStatus
from toolcrib.testing.anthropic import Anthropic
from toolcrib.testing.script import Call, Say, Together
from toolcrib.testing.server import serving
from toolcrib.workspace.settings.model import _VARIABLES as CI

pytestmark = [pytest.mark.slow, pytest.mark.req("KAI-5"), pytest.mark.usefixtures("bwrap")]

LIMIT = 60.0


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", *CI):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path / "t"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("API_TOKEN", "hunter2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "p"
    made.mkdir()
    return made


@pytest.fixture
async def tools(root: Path) -> AsyncIterator[BuiltinTools]:
    async with coding_tools(CodingTools.all(root)) as made:
        yield made


@pytest.fixture
def mark() -> str:
    """Finds a command's processes from outside."""
    return f"toolcrib-{uuid.uuid4()}"


async def until(holds: Callable[[], Any]) -> None:
    await asyncio.to_thread(wait_for, holds, "the test's condition", LIMIT)


async def bash(tools: BuiltinTools, command: str, **more: Any) -> str:
    result = await tools.call("Bash", {"command": command, **more})
    assert not result.is_error, result.text
    return result.text


# ---- Bash


async def test_bash_returns_the_output_and_reports_failures_as_errors(root: Path, tools: BuiltinTools) -> None:
    assert await bash(tools, "echo out; echo err >&2", description="Say two words") == "out\nerr"
    assert await bash(tools, "true") == "(No output)"
    assert await bash(tools, "mkdir sub && cd sub && pwd") == f"{root}/sub"
    assert await bash(tools, "pwd") == str(root), "each call begins in the folder"
    failed = await tools.call("Bash", {"command": "echo out; echo err >&2; exit 3"})
    assert (failed.is_error, failed.text) == (True, "Exit code 3\nout\nerr")
    assert "SIGSEGV" in (await tools.call("Bash", {"command": "kill -SEGV $$"})).text
    assert (await tools.call("Bash", {"command": "  "})).text == "The command is empty. Give a command line."
    cut = await bash(tools, "seq 100000")
    assert len(cut) < 20_000
    path = cut.rpartition("full output: ")[2].removesuffix(")")
    rest = await tools.call("Read", {"file_path": path, "offset": 50_000, "limit": 1})
    assert rest.text == "50000\t50000"


async def test_bash_cannot_reach_the_network_secrets_git_or_other_folders(
    root: Path, tools: BuiltinTools, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("hunter2")
    output = await bash(tools, f"env; cat {tmp_path}/secret ../secret 2>&1; ls /sys/class/net 2>&1; echo done")
    assert ("hunter2" in output, "done" in output) == (False, True)
    await tools.call("Bash", {"command": f"echo x >{tmp_path}/made; echo x >../made"})
    assert not (tmp_path / "made").exists()
    (root / ".git" / "hooks").mkdir(parents=True)
    for path in (".git/hooks/pre-commit", ".git/config"):
        result = await tools.call("Bash", {"command": f"echo x >{path}"})
        assert (result.is_error, (root / path).exists()) == (True, False)


async def test_a_timeout_and_a_cancelled_call_end_all_processes(root: Path, tools: BuiltinTools, mark: str) -> None:
    late = await tools.call("Bash", {"command": f"(exec -a {mark} sleep 600) & echo begun; wait", "timeout": 400})
    assert (late.is_error, late.text) == (True, "Ended at the time limit of 0.4 s\nbegun")
    assert not pids_with(mark)
    line = f"(trap '' TERM; exec -a {mark} sleep 600) & touch begun; wait"
    running = asyncio.create_task(tools.call("Bash", {"command": line}))
    await until((root / "begun").exists)
    await until(lambda: pids_with(mark))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, LIMIT)
    assert not pids_with(mark)


async def test_closing_leaves_no_process_no_thread_and_no_descriptor(root: Path) -> None:
    async def once() -> None:
        async with coding_tools(CodingTools.all(root)) as tools:
            await asyncio.gather(*(tools.call("Glob", {"pattern": "*"}) for _ in range(8)))
            await bash(tools, "true")

    def children() -> set[int]:
        found = set()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (task / "children").read_text().split()}
        return {pid for pid in found if is_running(pid)}

    # The event loop creates its own threads and descriptors once.
    await once()
    descriptors, before = len(os.listdir("/proc/self/fd")), children()  # noqa: PTH208
    await once()
    async with coding_tools(CodingTools.all(root)):
        """Closed during the sandbox's self-test."""
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith("workspace")])
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    assert children() <= before


async def test_bash_gets_no_more_time_than_the_settings_allow_and_is_refused_without_a_sandbox(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (root / ".toolcrib").mkdir()
    (root / ".toolcrib" / "workspace.yml").write_text("limits: {seconds: {run_shell_safe: 1}}\n")
    async with coding_tools(CodingTools.all(root)) as tools:
        (offer,) = (offer for offer in tools.offers if offer.name == "Bash")
        assert "1000 ms" in offer.description
        result = await tools.call("Bash", {"command": "sleep 600", "timeout": 600_000})
    assert "time limit of 1 s" in result.text
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    async with coding_tools(CodingTools.all(root)) as tools:
        result = await tools.call("Bash", {"command": "touch made"})
        assert result.is_error
        assert "tests and linters cannot be run here" in result.text
        assert not (await tools.call("Write", {"file_path": "other", "content": "x"})).is_error
    assert sorted(path.name for path in root.iterdir()) == [".toolcrib", "other"]


# ---- a hostile project

READING: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "Read": lambda path: ("Read", {"file_path": path}),
    "Glob": lambda path: ("Glob", {"pattern": "**", "path": path}),
    "Glob by pattern": lambda path: ("Glob", {"pattern": path}),
    "Glob below": lambda path: ("Glob", {"pattern": f"{path}/*"}),
    "Grep": lambda path: ("Grep", {"pattern": ".", "path": path, "output_mode": "content", "-C": 2}),
    "Grep for files": lambda path: ("Grep", {"pattern": ".", "path": path}),
    "Grep by glob": lambda path: ("Grep", {"pattern": "CANARY", "glob": path, "output_mode": "content"}),
}
WRITING: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "Write": lambda path: ("Write", {"file_path": path, "content": WRITTEN}),
    "Edit": lambda path: ("Edit", {"file_path": path, "old_string": "CANARY", "new_string": WRITTEN}),
    "Edit, new": lambda path: ("Edit", {"file_path": path, "old_string": "", "new_string": WRITTEN}),
}


async def test_no_path_leads_out_and_git_and_toolcribs_files_are_not_written(hostile: HostileProject) -> None:
    outward = holes.leading_out(hostile)
    tables = (holes.links_out, holes.run_logs, holes.odd_words)
    paths = outward | {what: path for table in tables for what, path in table(hostile).items()}

    def small_files() -> dict[Path, bytes]:
        files = [path for path in hostile.root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path: path.read_bytes() for path in files if path.stat().st_size < 10_000}

    async with coding_tools(CodingTools.all(hostile.root)) as tools:
        for what, path in paths.items():
            for kind, form in {**READING, **WRITING}.items():
                result = await tools.call(*form(path))
                assert not leaks_in(result.text), (what, kind, result.text)
                assert "a bug in the workspace" not in result.text, (what, kind)
                assert result.is_error or what not in outward or kind.startswith(("Glob", "Grep by")), (what, kind)
        before = small_files()
        for what, path in holes.never_writable(hostile).items():
            for kind, form in WRITING.items():
                result = await tools.call(*form(path))
                assert result.is_error, (what, kind, result.text)
    assert small_files() == before


async def test_names_and_parameters_match_those_of_claude_code(
    tmp_path: Path, root: Path, parts: Callable[[str], list[str]]
) -> None:
    parts("claude")
    with serving(Anthropic(), []) as model:
        installed = coding_agents.install_agent(coding_agents.CLAUDE, tmp_path / "installed", model)
        words = (*installed.agent.words, "--tools", ",".join(CLAUDE_CODE))
        installed = dataclasses.replace(installed, agent=dataclasses.replace(installed.agent, words=words))
        ran = await asyncio.to_thread(installed.run, cwd=root)
    assert ran.exit_code == 0, ran.err
    (offered,) = [body["tools"] for body in model.bodies if body.get("tools")]
    assert {tool["name"]: set(tool["input_schema"]["properties"]) for tool in offered} == CLAUDE_CODE


# ---- runs


def options_for(**given: Any) -> AgentOptions:
    return AgentOptions(api_key="sk-dummy-0123456789", model="anthropic:scripted", **given)


async def events_of(prompt: str, **given: Any) -> list[RunEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in run_agent(prompt, options_for(**given))]


async def test_a_model_reads_edits_and_runs_code(root: Path) -> None:
    (root / "sums.py").write_text("def add(a, b):\n    return a - b\n\n\nassert add(2, 3) == 5\n")
    steps = [
        Together((Call("Read", {"file_path": f"{root}/sums.py"}), Call("Bash", {"command": "python3 sums.py"}))),
        Call("Edit", {"file_path": f"{root}/sums.py", "old_string": "a - b", "new_string": "a + b"}),
        Call("Bash", {"command": "python3 sums.py && echo fine", "description": "Try it"}),
        Say("It adds now."),
    ]
    asked: list[ToolRequest] = []

    def approve(request: ToolRequest) -> bool:
        asked.append(request)
        return True

    with serving(Anthropic(), steps) as model:
        events = await events_of("Repair it.", base_url=model.url, coding_tools=CodingTools.all(root), approve=approve)
    ends = [event for event in events if isinstance(event, ToolFinished)]
    first = sorted((one.tool_name, one.server, one.tool_status) for one in ends[:2])
    assert first == [("Bash", "", ToolStatus.ERROR), ("Read", "", ToolStatus.OK)]
    assert [one.tool_status for one in ends[2:]] == [ToolStatus.OK, ToolStatus.OK]
    read, tried, _, fine = model.results
    assert read.startswith("1\tdef add(a, b):\n2\t    return a - b\n")
    assert tried.startswith("Exit code 1\nTraceback")
    assert fine == "fine"
    assert (root / "sums.py").read_text().startswith("def add(a, b):\n    return a + b\n")
    assert [request.name for request in asked] == ["Bash", "Edit", "Bash"], "reading needs no approval"
    assert {tool.name for tool in model.offered} == {"Bash", "Edit", "Glob", "Grep", "Read", "Write"}
    assert isinstance(events[-1], RunFinished)
    assert events[-1].text == "It adds now."


async def test_leaving_a_run_ends_its_command(root: Path, mark: str) -> None:
    with serving(Anthropic(), [Call("Bash", {"command": f"touch begun; exec -a {mark} sleep 600"})]) as model:
        options = options_for(base_url=model.url, coding_tools=CodingTools.all(root))
        async with asyncio.timeout(LIMIT), run_agent("Wait.", options) as events:
            async for event in events:
                if event.type == "tool_call":
                    await until(lambda: pids_with(mark))
                    break
            else:
                pytest.fail("the model called nothing")
    assert not pids_with(mark)


async def test_a_built_in_tool_hides_a_servers_tool_of_the_same_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.txt").write_text("from the disk\n")
    library = FakeServers({"library": {"Read": lambda _: "from the server", "Lend": lambda _: "lent"}})
    world = in_memory(monkeypatch, [Calls(tool="Read", arguments='{"file_path": "a.txt"}')], ["Done."], kit=library)
    events = await events_of(
        "Read it.", base_url="http://127.0.0.1:9", mcp_servers=["the bench"], coding_tools=CodingTools.read_only(root)
    )
    assert [part.content for part in world.results] == ["1\tfrom the disk"]
    assert library.calls == []
    assert world.offered[0] == ["Glob", "Grep", "Read", "Lend"]
    (conflict,) = [event for event in events if isinstance(event, NameConflict)]
    assert (conflict.name, conflict.kept, conflict.left_out) == ("Read", "Read", "library:Read")
