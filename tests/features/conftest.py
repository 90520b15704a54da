"""What is given in the scenarios; and no green CI without a green scenario of each coding agent.

In: what `parts/` offers. Out: the fixture `stage`, and the steps that set it: what there is, and what the model of an
agent will do. Where `CI=true`, a session that was to run these scenarios fails unless one has passed for each agent: a
feature file that lost its examples, or a scenario that skips itself, is seen.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_bdd import given

from parts import runs
from parts.daemon import Cli, Home, StartDaemon
from parts.stage import CHANGED, MODULE, TEST, Stage, note
from parts.witness import Notes
from parts.wording import words
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import Call, Say, Together

HERE = Path(__file__).parent
_AGENT = re.compile(r"\[(\w+)")
_green: set[str] = set()

REVIEWER = """
description: Reads everything, writes reviews.
own_tools: read
rules:
  - allow: "*"
    annotations: {read_only: true}
  - allow: workspace:write_file
    when:
      path: {under: FOLDER}
"""


@pytest.fixture
def stage(toolcrib_home: Home, daemon: StartDaemon, cli: Cli, parts: Callable[[str], list[str]]) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(home=toolcrib_home, cli=cli, start_daemon=daemon, parts=parts, open=stack)


@given("a project with a small program in it")
def _(stage: Stage) -> None:
    stage.make_project()


@given("a change in the project that nobody has reviewed")
def _(stage: Stage) -> None:
    (stage.project / "doubling.py").write_text(CHANGED)


@given("Toolcrib runs")
def _(stage: Stage) -> None:
    stage.start({})


@given('Toolcrib runs, with a server "ledger" of mine')
def _(stage: Stage) -> None:
    stage.start({"servers": {"ledger": Notes(stage.home.path / "ledger.jsonl").server("note")}})


@given(words('a profile "{name}" that reads everything and writes below "{folder}"'))
def _(stage: Stage, name: str, folder: str) -> None:
    text = REVIEWER.replace("FOLDER", folder)
    stage.cli("profile", "edit", name, "--file", "-", stdin=text).ok()


# What the model will do.


@given(words('{agent} will read "{file}" and say "{words}"'))
def _(stage: Stage, agent: str, file: str, words: str) -> None:
    stage.plays(agent, Call("workspace_read_file", {"path": file}, thinking="I should read it."), Say(words))


@given(words('in the second run it will read "{file}" again and say "{words}"'))
def _(stage: Stage, file: str, words: str) -> None:
    [first] = stage.models
    stage.plays(stage.desk.person.agent.name, Call("workspace_read_file", {"path": file}), Say(words))
    stage.use(first)


@given(words('{agent} will write "{file}" and its test, run the tests, and say "{words}"'))
def _(stage: Stage, agent: str, file: str, words: str) -> None:
    stage.plays(
        agent,
        Call("workspace_write_file", {"path": file, "content": MODULE}, says="First the module."),
        Call("workspace_write_file", {"path": f"test_{file}", "content": TEST}),
        Call("workspace_run_tests", {}),
        Say(words),
    )


@given(words('{agent} will look at the change, then try to write "{file}" in every way it knows, and say "{words}"'))
def _(stage: Stage, agent: str, file: str, words: str) -> None:
    person = runs.ALL[agent]
    stage.plays(
        agent,
        Call("workspace_project_diff", {}),
        person.write_file({"path": file, "content": "by Toolcrib's hands"}),
        *person.writes(stage.project / "by-hand").values(),
        Say(words),
    )


@given(words('{agent} will write in every way it knows, and say "{words}"'))
def _(stage: Stage, agent: str, words: str) -> None:
    person = runs.ALL[agent]
    (stage.project / "by-hand").mkdir()
    given = {"path": "by-hand/toolcrib", "content": "by Toolcrib's hands"}
    stage.plays(
        agent, Call("workspace_write_file", given), *person.writes(stage.project / "by-hand").values(), Say(words)
    )


@given(words('{agent} will write "{allowed}", then "{refused}", and say "{words}"'))
def _(stage: Stage, agent: str, allowed: str, refused: str, words: str) -> None:
    stage.plays(
        agent,
        Call("workspace_write_file", {"path": allowed, "content": "It should be a star.\n"}),
        Call("workspace_write_file", {"path": refused, "content": CHANGED}),
        Say(words),
    )


@given(words('{agent} will call the ledger, call it again, call it a third time, and say "{words}"'))
def _(stage: Stage, agent: str, words: str) -> None:
    stage.plays(agent, note("first"), note("second", hold=True), note("third"), Say(words))


@given(words("{agent} will call the ledger, and go on calling it after it was revoked"))
def _(stage: Stage, agent: str) -> None:
    stage.plays(agent, note("first"), note("second", first=stage.remove_agent), note("third"))


@given(words('{agent} will call the ledger, call it again after it was revoked, and say "{words}"'))
def _(stage: Stage, agent: str, words: str) -> None:
    stage.plays(agent, note("first"), note("second", first=stage.remove_agent), Say(words))


@given(words('{agent} will read "{file}" and then think for a long time'))
def _(stage: Stage, agent: str, file: str) -> None:
    stage.plays(agent, Call("workspace_read_file", {"path": file}), Say("Too late.", hold=stage.hold))


@given(words("{agent} will call the ledger and then think for a long time"))
def _(stage: Stage, agent: str) -> None:
    stage.plays(agent, note("of the first run"), note("never", hold_answer=stage.hold))


@given(words('{agent} will call the ledger and say "{words}"'))
def _(stage: Stage, agent: str, words: str) -> None:
    stage.plays(agent, note("of the next run"), Say(words))


@given(
    words('{agent}, which offers tools {way}, will read "{file}" and list the folder in one turn, and say "{words}"')
)
def _(stage: Stage, agent: str, way: str, file: str, words: str) -> None:
    both = Together((Call("workspace_read_file", {"path": file}), Call("workspace_list_dir", {"path": "."})))
    stage.plays(agent, both, Say(words), offering=ToolOffering(way))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and {"mcp", "e2e"} <= report.keywords.keys():
        _green.update(_AGENT.findall(report.nodeid))


def _missing(config: pytest.Config) -> list[str]:
    """The agents of which no scenario has passed, where all were asked for."""
    asked = [Path(word) for word in config.args if "::" not in word]
    whole = any(HERE.is_relative_to(path.resolve()) for path in asked)
    chosen = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("collectonly")
    if os.environ.get("CI") != "true" or hasattr(config, "workerinput") or not whole or chosen:
        return []
    return sorted(runs.ALL.keys() - _green)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _missing(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if missing := _missing(config):
        terminalreporter.section("scenarios", sep="=", red=True, bold=True)
        terminalreporter.line(f"No @mcp @e2e scenario has passed for: {', '.join(missing)}")
