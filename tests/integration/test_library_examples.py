"""The programs of examples/library and docs/library.md run as they are written, with scripted models."""

from __future__ import annotations

import ast
import builtins
import re
import runpy
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Home
from toolcrib.agent_loop.models import endpoint
from toolcrib.testing import Call, Say, ScriptedModel, Step, Together, scripted
from toolcrib.workspace.settings.model import _VARIABLES as CI

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
SECTION = re.compile(r"^#{2,3} (.*?)\n(.*?)(?=^#{2,3} |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    title: block for title, text in SECTION.findall(PAGE) for block in BLOCK.findall(text) if "asyncio.run(" in block
}


@pytest.fixture(autouse=True)
def in_the_checkout(toolcrib_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without configuration, in the folder that the programs mention."""
    for name in ("TOOLCRIB_HOME", "HOME", "TMPDIR"):
        monkeypatch.setenv(name, toolcrib_home.environ()[name])
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in CI:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)


def use_model(model: ScriptedModel, patch: pytest.MonkeyPatch) -> None:
    """Replaces the providers' addresses by the scripted model's."""
    providers = {name: one._replace(url=model.url) for name, one in endpoint.PROVIDERS.items()}
    patch.setattr(endpoint, "PROVIDERS", providers)
    patch.setenv("ANTHROPIC_BASE_URL", model.url)
    for one in endpoint.PROVIDERS.values():
        patch.setenv(one.variables[0], "an invalid key")


def is_time(text: str) -> bool:
    return datetime.fromisoformat(text.strip()).tzinfo is not None


@dataclass(frozen=True, kw_only=True)
class Story:
    """The steps of a program's model, and the check of the program's output."""

    check: Callable[[list[str], ScriptedModel], None]
    provider: str = "anthropic"
    steps: list[Step] = field(default_factory=list)


def shows_a_run(lines: list[str], model: ScriptedModel) -> None:
    assert lines[0] == "I look.[clock:now {'zone': 'Europe/Lisbon'}]"
    assert lines[1] == "Late."
    assert re.fullmatch(r"done, \d+ tokens in, \d+ out", lines[2])
    assert is_time(model.results[0])
    assert {tool.name for tool in model.offered} == {"now", "Read", "Glob", "Grep"}


def leaves_nothing(lines: list[str], model: ScriptedModel) -> None:
    assert (lines, len(model.requests)) == (["nothing of it is left"], 1)


def continues(lines: list[str], model: ScriptedModel) -> None:
    assert [re.search(r'text="(.*?)"', line)[1] for line in lines] == ["The Tejo.", "Very."]
    assert model.conversations[-1].said == ("The Tejo.",)


def asks_for_approval(lines: list[str], model: ScriptedModel) -> None:
    assert lines == [
        "Write denied Write did not run: it was not approved.",
        "Write ok Created hello.txt: 5 bytes written.",
        "Bash denied Bash did not run: there is no shell today.",
    ]
    assert len(model.results) == 3


def offers_tools(lines: list[str], _: ScriptedModel) -> None:
    assert lines[0].startswith("('clock',) {'gone': \"'no-such-program' is not installed")
    assert lines[1] == "('now',) clock"
    assert lines[2].startswith("False ")
    assert is_time(lines[2].removeprefix("False "))


def discovers_and_registers(lines: list[str], _: ScriptedModel) -> None:
    assert lines == [
        "() ('now',)",
        "['other:now']",
        "('clock_now', 'other_now')",
        "other:now ok",
        "['clock is ready', 'other is ready']",
        "True",
    ]


def connects_one(lines: list[str], _: ScriptedModel) -> None:
    assert lines[0] == "True 2025-06-18 ['now']"
    assert is_time(lines[1])


def changes_tools(lines: list[str], _: ScriptedModel) -> None:
    assert lines[0].startswith("('NOW',) The time now in an IANA time zone. (clock) {")
    schema = ast.literal_eval(lines[0][lines[0].index("{") :])
    assert "zone" not in schema.get("properties", {})
    assert lines[1].endswith("+00:00")


def loops(lines: list[str], model: ScriptedModel) -> None:
    assert lines == ["Late."]
    lisbon, wrong = model.results
    assert is_time(lisbon)
    assert "zone" in wrong


LISBON = Call("now", {"zone": "Europe/Lisbon"}, says="I look.")
WRITE = {"file_path": "hello.txt", "content": "hello"}
LS = Call("Bash", {"command": "ls"})
STORIES = {
    "An agent's run": Story(steps=[LISBON, Say("Late.")], check=shows_a_run),
    "Leaving early": Story(provider="openai", steps=[LISBON, Say("Late.")], check=leaves_nothing),
    "History": Story(provider="google", steps=[Say("The Tejo."), Say("Very.")], check=continues),
    "Approvals": Story(provider="openrouter", steps=[*[Call("Write", WRITE)] * 2, LS], check=asks_for_approval),
    "Tools for an agent that you have": Story(check=offers_tools),
    "A crib of your configuration": Story(check=discovers_and_registers),
    "One server": Story(check=connects_one),
    "Transforms": Story(check=changes_tools),
    "Results": Story(steps=[Together([LISBON, Call("now", {"zone": 3})]), Say("Late.")], check=loops),
}


def test_every_program_of_the_page_is_tested() -> None:
    assert list(PROGRAMS) == list(STORIES)


@pytest.mark.req("KAI-1", "KAI-2", "ENG-2", "ENG-3", "ENG-5", "ENG-6")
@pytest.mark.parametrize("title", STORIES)
def test_each_program_of_the_page_works(title, monkeypatch, capsys):
    answers = iter(["n", "y"])
    monkeypatch.setattr(builtins, "input", lambda _: next(answers))
    story = STORIES[title]
    with scripted(story.provider, story.steps) as model:
        use_model(model, monkeypatch)
        program = compile(PROGRAMS[title], str(ROOT / "docs" / "library.md"), "exec")
        exec(program, {"__name__": "__main__"})  # noqa: S102 - our own page
    story.check(capsys.readouterr().out.splitlines(), model)


@pytest.mark.slow
@pytest.mark.req("KAI-10")
async def test_the_run_with_a_daemon_works(daemon, toolcrib_home, monkeypatch, capsys):
    daemon()
    monkeypatch.chdir(toolcrib_home.project)
    (toolcrib_home.project / "notes.txt").write_text("Buy milk.\n")
    [lines] = BLOCK.findall(PAGE.partition("### The tools of a running daemon\n")[2].partition("\n### ")[0])
    program = f"from toolcrib import *\nasync def work():\n{textwrap.indent(lines, '    ')}"
    with scripted("anthropic", [Call("workspace_read_file", {"path": "notes.txt"}), Say("Tidy.")]) as model:
        use_model(model, monkeypatch)
        names: dict[str, Any] = {}
        exec(program, names)  # noqa: S102 - our own page
        await names["work"]()
    assert "Buy milk." in model.results[0]
    assert 'run_finished text="Tidy."' in capsys.readouterr().out


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(ROOT / "examples" / "library" / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_example_is_run_here() -> None:
    files = {file.name for file in (ROOT / "examples" / "library").glob("*.py")}
    assert files == {"agent.py", "own_loop.py", "shaping.py"}


@pytest.mark.req("KAI-1", "KAI-5")
def test_the_agents_writes_need_an_approval(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("agent.py", capsys)
    assert lines[-1] == "['notes.txt']"
    assert lines[-2].startswith('run_finished text="I wrote it down." ended="done"')
    (denied,) = [line for line in lines if 'tool_status="denied"' in line]
    assert "passwords.txt" in denied
    assert 'rule="only notes.txt may be written"' in denied


@pytest.mark.req("ENG-8", "ENG-9")
def test_the_own_loop_returns_every_result_to_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    by_anthropic, by_openai = run("own_loop.py", capsys)
    for line in (by_anthropic, by_openai):
        assert line.startswith("Late in Lisbon. (")
        lisbon, nowhere, wrong = ast.literal_eval(line.removeprefix("Late in Lisbon. "))
        assert is_time(lisbon)
        assert "no such zone" in nowhere
        assert "must be of type string" in wrong


@pytest.mark.req("ENG-5", "ENG-6", "ENG-7", "ENG-8")
def test_the_shaped_tools_are_offered_and_called(capsys: pytest.CaptureFixture[str]) -> None:
    openai, anthropic, google, *changes, first, second = run("shaping.py", capsys)
    assert '"strict": true' in openai
    assert '"cache_control": {"type": "ephemeral"}' in anthropic
    assert '"my_now"' in google
    assert "openai: my_now #/properties/zone: it became required, null if absent" in changes[1]
    assert (first[-6:], second[-6:]) == ("+00:00", "+00:00")
