"""docs/coding-agents.md says what is so: its programs, its commands, its versions, its codes."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import toolcrib
from parts.run_logs import message, metadata, summary
from parts.stand_in import Script, code_agent
from toolcrib.cli.app import app
from toolcrib.cli.run_command import STOPPED, exit_code
from toolcrib.coding_agents.clients import RUNNABLE
from toolcrib.coding_agents.code_agent import TIMEOUT, CodeAgent
from toolcrib.coding_agents.run_result import RunStatus
from toolcrib.errors import ConfigError, DaemonNotRunning, NotFound, StoreError, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "coding-agents.md"
TEXT = PAGE.read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^(?:[^|\n]*\| )?toolcrib (.*)$", TEXT, re.MULTILINE)


@pytest.mark.req("FRG-8")
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_is_whole_and_does_what_it_says(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[dict[str, Any]] = []
    script = Script(about=metadata(), events=(message("I look."),), end=summary())
    monkeypatch.setattr(toolcrib, "CodeAgent", code_agent(script, made), raising=False)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "message" in printed
    assert "finished" in printed
    (asked,) = made
    for name in ("prompt", "conversation"):
        asked.pop(name)
    # The real one takes the same words.
    inspect.signature(CodeAgent).bind(asked.pop("client"), **asked)


@pytest.mark.req("FRG-8")
@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_is_one(line: str) -> None:
    word, *rest = shlex.split(line.partition(" < ")[0], comments=True)
    get_command(app).commands[word].load().make_context(word, rest)


@pytest.mark.req("FRG-7")
def test_versions_time_limit_and_exit_codes_are_those_of_the_code() -> None:
    assert len(COMMANDS) > 8
    assert len(PROGRAMS) == 2
    for client in RUNNABLE:
        assert client.headless is not None
        assert f"{client.title} {'.'.join(map(str, client.headless.oldest))}" in " ".join(TEXT.split())
        assert client.headless.install.removeprefix("npm install -g ") in TEXT
    assert TIMEOUT == 2 * 3600
    table = TEXT.split("| exit code | |")[1].split("\n\n")[0]
    codes = {int(code) for row in re.findall(r"^\| ([0-9, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    ends = {exit_code(status) for status in RunStatus if status not in (RunStatus.RUNNING, RunStatus.KILLED)}
    errors = (UsageError, ConfigError, NotFound, DaemonNotRunning, StoreError)
    assert ends <= codes
    assert STOPPED in codes
    assert {error.exit_code for error in errors} <= codes


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert "://" in target or (PAGE.parent / target).exists(), target
