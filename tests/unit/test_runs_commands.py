"""`toolcrib runs`: text for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts.run_logs import NOBODY, SEALS, message, metadata, summary, written
from parts.run_words import CALL, NEW, OLD, Terminal, made_project
from toolcrib.cli.app import run
from toolcrib.coding_agents import run_history
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.run_folder import LogSeals
from toolcrib.coding_agents.run_log import RunLog
from toolcrib.coding_agents.run_result import RunStatus
from toolcrib.run_events import AgentEvent, AgentEventKind

pytestmark = pytest.mark.req("FRG-7")

Runs = Callable[..., Any]
SESSION = "0b5a3c9e-6f0a-4c7c-9d1e-2f3a4b5c6d7e"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made_project(tmp_path, monkeypatch)


@pytest.fixture
def runs(capsys: pytest.CaptureFixture[str]) -> Runs:
    """Runs `toolcrib runs` with these arguments; returns what it printed."""

    def execute(*args: str, code: int = 0) -> Any:
        assert run(["runs", *args]) == code
        return capsys.readouterr()

    return execute


def test_runs_are_a_table_for_people_and_json_for_programs(project: Path, runs: Runs) -> None:
    assert runs().out == f"No runs in {project} yet.\n"
    written(project, metadata(OLD, pid_began=NOBODY, prompt="line\n\x1b[2J two " + "x" * 1000))
    end = summary(usage=TokenUsage(input=1234, output=5), tools={"a": 2, "b": 1}, denials=1)
    written(project, metadata(NEW), end=end)
    printed = runs()
    head, new, old = printed.out.splitlines()
    assert head.split() == [
        *("run", "when", "client", "conversation", "profile", "status", "time", "tools", "tokens", "prompt")
    ]
    cells = [cell.strip() for cell in new.split("  ") if cell]
    assert cells[0] == NEW
    assert cells[2:] == [
        "claude",
        "c0ffee",
        "developer",
        "finished",
        "2.5 s",
        "3 (1 denied)",
        "1,234 / 5",
        "fix the failing test",
    ]
    assert "killed" in old
    assert "line \\x1b[2J two" in old
    assert old.endswith("xx…")
    assert len(old) < 400
    assert "1 more: `toolcrib runs -n 2` shows them." in runs("-n", "1").err
    rows = json.loads(runs("--json").out)["runs"]
    assert [(row["run_id"], row["status"]) for row in rows] == [(NEW, "finished"), (OLD, "killed")]
    assert rows[0]["summary"]["denials"] == 1


def test_a_run_is_shown_as_it_went(project: Path, runs: Runs) -> None:
    own = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="debug")
    about = metadata(OLD, governed=("this", "that"), ungoverned=("much",))
    path = written(project, about, message("I look."), CALL, own, message("done"), end=summary())
    printed = runs("show", "last")
    lines = printed.out.splitlines()
    assert lines[0] == f"run {OLD} finished"
    assert "  prompt        fix the failing test" in lines
    assert "  governed      2 lines, shown by --events" in lines
    assert "  not governed  1 line, shown by --events" in lines
    course = [line[10:] for line in lines if line[2:3] == ":" and line[5:6] == ":"]
    assert course == ["I look.", "✓ workspace:read_file  path=a.py  12 ms", "done"]
    assert f"  log           {path}" in lines
    assert (
        printed.err
        == f"Not shown: 1 event of the program itself; `toolcrib runs show {OLD} --events` shows everything.\n"
    )
    everything = runs("show", OLD[:8], "--events").out
    assert "debug" in everything
    assert "  not governed  much" in everything.splitlines()
    reported = json.loads(runs("show", "last", "--events", "--json").out)
    assert [event["kind"] for event in reported["events"]] == ["message", "tool", "log", "message"]
    assert reported["metadata"]["prompt"] == "fix the failing test"


def test_a_killed_run_shows_how_to_continue_unless_its_log_is_untrusted(project: Path, runs: Runs) -> None:
    about = metadata(OLD, pid_began=NOBODY, workdir=str(project), profile="trusted; x")
    written(project, about, message("I look."), session=SESSION)
    printed = runs("show", "last")
    assert "  continue      toolcrib run claude \"…\" --conversation c0ffee --profile 'trusted; x'\n" in printed.out
    assert printed.err == ""
    written(project, replace(about, run_id=NEW), session=SESSION, seals=LogSeals(b"x" * 32))
    printed = runs("show", "last")
    assert "continue" not in printed.out
    assert "copied from elsewhere" in printed.err


def test_a_run_that_failed_before_a_model_answered_has_no_conversation_to_go_on_in(project: Path, runs: Runs) -> None:
    end = summary(status=RunStatus.FAILED, session=SESSION)
    note = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="Please run /login")
    written(project, metadata(OLD), note, end=end)
    written(project, metadata(NEW), note, CALL, end=end)
    assert "continue" not in runs("show", OLD).out
    assert "continue" in runs("show", NEW).out


def test_the_table_fits_a_terminal_of_80_columns_with_the_conversation_in_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    end = summary(status=RunStatus.INTERRUPTED, usage=TokenUsage(input=1234567, output=5), tools={"a": 2})
    written(project, metadata(OLD, conversation="0123456789", provider="gemini", prompt="word " * 40), end=end)
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    assert run(["runs"]) == 0
    head, row = out.getvalue().splitlines()
    assert head.split() == ["run", "client", "conversation", "status", "prompt"]
    assert "0123456789    interrupted  word word" in row
    assert len(row) <= 80


def test_a_spoiled_log_is_an_error_with_file_and_line_after_what_could_be_read(project: Path, runs: Runs) -> None:
    path = written(project, metadata(OLD), message("I look."), CALL, end=summary())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], '{"event": {"kind": "\x1b[2J"}}\n', *lines[2:]]))
    printed = runs("show", "last", code=1)
    assert f"{path}, line 3: this is not JSON" in printed.err
    assert "  prompt        fix the failing test" in printed.out


def test_tail_follows_a_running_run_to_its_end(project: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    log = RunLog.open(project, metadata(OLD), seals=SEALS)
    written(project, metadata(NEW), end=summary())
    log.event(message("I look."))
    later = [lambda: log.event(CALL), lambda: log.end(summary())]
    monkeypatch.setattr(run_history.follow_log, "__defaults__", (lambda _: later.pop(0)(),))
    printed = runs("tail").out
    assert printed.startswith(f"run {OLD} running\n")
    assert "✓ workspace:read_file" in printed
    assert "✓ finished after 2.5 s" in printed
    assert [next(iter(json.loads(line))) for line in runs("tail", NEW, "--json").out.splitlines()] == [
        "metadata",
        "summary",
    ]


def test_another_projects_runs_can_be_asked_for_before_or_after_the_word(tmp_path: Path, runs: Runs) -> None:
    other = tmp_path / "other"
    other.mkdir()
    written(other, metadata(OLD), end=summary())
    for args in (["--workdir", str(other), "show", "last"], ["show", "last", "--workdir", str(other)]):
        assert OLD in runs(*args).out
    runs("show", "last", code=4)
    runs("tail", code=4)
