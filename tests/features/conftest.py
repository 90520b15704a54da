"""A stage for the scenarios; and no green CI without a green scenario of each coding agent.

In: what `parts/` offers. Out: the fixture `stage`. Where `CI=true`, a session that was to run these scenarios fails
unless one has passed for each agent: a feature file that lost its examples, or a scenario that skips itself, is seen.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parts import runs
from parts.daemon import Cli, Home, StartDaemon
from parts.stage import Stage

HERE = Path(__file__).parent
_AGENT = re.compile(r"\[(\w+)")
_green: set[str] = set()


@pytest.fixture
def stage(toolcrib_home: Home, daemon: StartDaemon, cli: Cli, parts: Callable[[str], list[str]]) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(home=toolcrib_home, cli=cli, start_daemon=daemon, parts=parts, open=stack)


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
