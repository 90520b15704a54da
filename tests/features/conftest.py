"""The `given` steps of the scenarios: the project, the servers, and what the model of an agent will do.

With `CI=true`, a session that runs these scenarios fails unless one has passed for each coding agent, so that a feature
file without examples, or a skipped scenario, is noticed.
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
from parts.recording_server import Notes
from parts.world import CHANGED, MODULE, TEST, World, note, step
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
def world(toolcrib_home: Home, daemon: StartDaemon, cli: Cli, parts: Callable[[str], list[str]]) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(home=toolcrib_home, cli=cli, start_daemon=daemon, parts=parts, open=stack)


@given("a project with a small program in it")
def _(world: World) -> None:
    world.make_project()


@given("an unreviewed change in the project")
def _(world: World) -> None:
    (world.project / "doubling.py").write_text(CHANGED)


@given("Toolcrib runs")
def _(world: World) -> None:
    world.start({})


@given('Toolcrib runs with my server "ledger"')
def _(world: World) -> None:
    world.start({"servers": {"ledger": Notes(world.home.path / "ledger.jsonl").server("note")}})


@given(step('a profile "{name}" that may read everything and write in "{folder}"'))
def _(world: World, name: str, folder: str) -> None:
    text = REVIEWER.replace("FOLDER", folder)
    world.cli("profile", "edit", name, "--file", "-", stdin=text).ok()


@given(step('{agent} will read "{file}" again and say "{text}"'))
def _(world: World, agent: str, file: str, text: str) -> None:
    world.plays(agent, Call("workspace_read_file", {"path": file}), Say(text))


@given(step('{agent} will write "{file}" and its test, run the tests, and say "{text}"'))
def _(world: World, agent: str, file: str, text: str) -> None:
    world.plays(
        agent,
        Call("workspace_write_file", {"path": file, "content": MODULE}, says="First the module."),
        Call("workspace_write_file", {"path": f"test_{file}", "content": TEST}),
        Call("workspace_run_tests", {}),
        Say(text),
    )


@given(step('{agent} will look at the change, then try to write "{file}" with all of its tools, and say "{text}"'))
def _(world: World, agent: str, file: str, text: str) -> None:
    setup = runs.ALL[agent]
    world.plays(
        agent,
        Call("workspace_project_diff", {}),
        setup.write_file({"path": file, "content": "by Toolcrib's tools"}),
        *setup.writes(world.project / "by-agent").values(),
        Say(text),
    )


@given(step('{agent} will write with all of its tools, and say "{text}"'))
def _(world: World, agent: str, text: str) -> None:
    setup = runs.ALL[agent]
    (world.project / "by-agent").mkdir()
    given = {"path": "by-agent/toolcrib", "content": "by Toolcrib's tools"}
    world.plays(
        agent, Call("workspace_write_file", given), *setup.writes(world.project / "by-agent").values(), Say(text)
    )


@given(step('{agent} will write "{allowed}", then "{refused}", and say "{text}"'))
def _(world: World, agent: str, allowed: str, refused: str, text: str) -> None:
    world.plays(
        agent,
        Call("workspace_write_file", {"path": allowed, "content": "It should be a star.\n"}),
        Call("workspace_write_file", {"path": refused, "content": CHANGED}),
        Say(text),
    )


@given(step('{agent} will call the ledger, call it again, call it a third time, and say "{text}"'))
def _(world: World, agent: str, text: str) -> None:
    world.plays(agent, note("first"), note("second", hold=True), note("third"), Say(text))


@given(step("{agent} will call the ledger, and call it again after it was revoked"))
def _(world: World, agent: str) -> None:
    world.plays(agent, note("first"), note("second", first=world.remove_agent), note("third"))


@given(step('{agent} will call the ledger, call it again after it was revoked, then say "{text}"'))
def _(world: World, agent: str, text: str) -> None:
    world.plays(agent, note("first"), note("second", first=world.remove_agent), Say(text))


@given(step('{agent} will read "{file}" and then think for a long time'))
def _(world: World, agent: str, file: str) -> None:
    world.plays(agent, Call("workspace_read_file", {"path": file}), Say("Too late.", hold=world.hold))


@given(step("{agent} will call the ledger and then think for a long time"))
def _(world: World, agent: str) -> None:
    world.plays(agent, note("of the first run"), note("never", hold_answer=world.hold))


@given(step('{agent} will call the ledger and say "{text}"'))
def _(world: World, agent: str, text: str) -> None:
    world.plays(agent, note("of the next run"), Say(text))


@given(step('{agent}, which offers tools {way}, will read "{file}" and list the folder in one turn, and say "{text}"'))
def _(world: World, agent: str, way: str, file: str, text: str) -> None:
    read = Call("workspace_read_file", {"path": file}, thinking="I should read it.")
    both = Together((read, Call("workspace_list_dir", {"path": "."})))
    world.plays(agent, both, Say(text), offering=ToolOffering(way))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and {"mcp", "e2e"} <= report.keywords.keys():
        _green.update(_AGENT.findall(report.nodeid))


def _missing(config: pytest.Config) -> list[str]:
    """The agents without a passed scenario, if all scenarios were selected."""
    asked = [Path(arg) for arg in config.args if "::" not in arg]
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
