"""`toolcrib runs` as a person and as a program meet it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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

SESSION = "0b5a3c9e-6f0a-4c7c-9d1e-2f3a4b5c6d7e"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made_project(tmp_path, monkeypatch)


@pytest.mark.req("FRG-7")
def test_runs_are_a_table_for_people_and_json_for_programs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs"]) == 0
    assert capsys.readouterr().out == f"No runs in {project} yet.\n"
    written(project, metadata(OLD, pid_began=NOBODY, prompt="line\n\x1b[2J two " + "x" * 1000))
    end = summary(usage=TokenUsage(input=1234, output=5), tools={"a": 2, "b": 1}, denials=1)
    written(project, metadata(NEW), end=end)
    assert run(["runs"]) == 0
    said = capsys.readouterr()
    head, new, old = said.out.splitlines()
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
    assert run(["runs", "-n", "1"]) == 0
    assert "1 more: `toolcrib runs -n 2` shows them." in capsys.readouterr().err
    assert run(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["run_id"], row["status"]) for row in rows] == [(NEW, "finished"), (OLD, "killed")]
    assert rows[0]["summary"]["denials"] == 1


@pytest.mark.req("FRG-7")
def test_a_run_is_shown_as_it_went(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="debug")
    about = metadata(OLD, governed=("this", "that"), ungoverned=("much",))
    path = written(project, about, message("I look."), CALL, own, message("done"), end=summary())
    assert run(["runs", "show", "last"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"run {OLD} finished"
    assert "  prompt        fix the failing test" in lines
    assert "  governed      2 lines, shown by --events" in lines
    assert "  not governed  1 line, shown by --events" in lines
    course = [line[10:] for line in lines if line[2:3] == ":" and line[5:6] == ":"]
    assert course == ["I look.", "✓ workspace:read_file  path=a.py  12 ms", "done"]
    assert f"  log           {path}" in lines
    assert said.err == f"Not shown: 1 event of the program's own; `toolcrib runs show {OLD} --events` has all.\n"
    assert run(["runs", "show", OLD[:8], "--events"]) == 0
    told_all = capsys.readouterr().out
    assert "debug" in told_all
    assert "  not governed  much" in told_all.splitlines()
    assert run(["runs", "show", "last", "--events", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in told["events"]] == ["message", "tool", "log", "message"]
    assert told["metadata"]["prompt"] == "fix the failing test"


@pytest.mark.req("FRG-7")
def test_a_killed_run_says_how_to_go_on_and_one_from_elsewhere_does_not(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = metadata(OLD, pid_began=NOBODY, workdir=str(project), profile="trusted; x")
    written(project, about, message("I look."), session=SESSION)
    assert run(["runs", "show", "last"]) == 0
    said = capsys.readouterr()
    assert "  go on         toolcrib run claude \"…\" --conversation c0ffee --profile 'trusted; x'\n" in said.out
    assert said.err == ""
    written(project, replace(about, run_id=NEW), session=SESSION, seals=LogSeals(b"x" * 32))
    assert run(["runs", "show", "last"]) == 0
    said = capsys.readouterr()
    assert "go on" not in said.out
    assert "came from elsewhere" in said.err


@pytest.mark.req("FRG-7")
def test_a_run_that_failed_before_a_model_answered_has_no_conversation_to_go_on_in(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = summary(status=RunStatus.FAILED, session=SESSION)
    note = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="Please run /login")
    written(project, metadata(OLD), note, end=end)
    written(project, metadata(NEW), note, CALL, end=end)
    assert run(["runs", "show", OLD]) == 0
    assert "go on" not in capsys.readouterr().out
    assert run(["runs", "show", NEW]) == 0
    assert "go on" in capsys.readouterr().out


@pytest.mark.req("FRG-7")
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


@pytest.mark.req("FRG-7")
def test_a_spoiled_log_is_an_error_with_file_and_line_after_what_could_be_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(project, metadata(OLD), message("I look."), CALL, end=summary())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], '{"event": {"kind": "\x1b[2J"}}\n', *lines[2:]]))
    assert run(["runs", "show", "last"]) == 1
    said = capsys.readouterr()
    assert f"{path}, line 3: this is no JSON" in said.err
    assert "  prompt        fix the failing test" in said.out


@pytest.mark.req("FRG-7")
def test_tail_follows_the_run_that_goes_on_to_its_end(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog.open(project, metadata(OLD), seals=SEALS)
    written(project, metadata(NEW), end=summary())
    log.event(message("I look."))
    later = [lambda: log.event(CALL), lambda: log.end(summary())]
    monkeypatch.setattr(run_history.follow_log, "__defaults__", (lambda _: later.pop(0)(),))
    assert run(["runs", "tail"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"run {OLD} running\n")
    assert "✓ workspace:read_file" in said
    assert "✓ finished after 2.5 s" in said
    assert run(["runs", "tail", NEW, "--json"]) == 0
    assert [next(iter(json.loads(line))) for line in capsys.readouterr().out.splitlines()] == ["metadata", "summary"]


@pytest.mark.req("FRG-7")
def test_another_projects_runs_can_be_asked_for_before_or_after_the_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    written(other, metadata(OLD), end=summary())
    for words in (["runs", "--workdir", str(other), "show", "last"], ["runs", "show", "last", "--workdir", str(other)]):
        assert run(words) == 0
        assert OLD in capsys.readouterr().out
    assert run(["runs", "show", "last"]) == 4
    assert run(["runs", "tail"]) == 4
