"""`toolcrib run`: text for people and JSON for programs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolcrib.cli.run_command
from parts.run_logs import message, metadata, summary, written
from parts.run_words import CALL, OLD, Terminal, made_project
from parts.stand_in import LOG, Script, code_agent
from toolcrib.cli.app import run
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.run_result import OnMcpFailure, RunStatus
from toolcrib.errors import NotFound
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-7")

TESTS = Path(__file__).parents[1]

Play = Callable[..., list[dict[str, Any]]]
Execute = Callable[..., Any]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made_project(tmp_path, monkeypatch)


@pytest.fixture
def execute(capsys: pytest.CaptureFixture[str]) -> Execute:
    """Runs `toolcrib run` with these arguments; returns what it printed."""

    def execute(*args: str, code: int = 0) -> Any:
        assert run(["run", *args]) == code
        return capsys.readouterr()

    return execute


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Puts a stand-in with this script in the agent's place; what it is asked comes back."""

    def play(**script: Any) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        monkeypatch.setattr(toolcrib.cli.run_command, "CodeAgent", code_agent(Script(**script), made))
        return made

    return play


def test_the_answer_alone_is_on_stdout_and_all_else_beside_it(play: Play, execute: Execute) -> None:
    about = metadata(governed=("its own tools: edit",), ungoverned=("its network",))
    play(about=about, events=(message("I look."), CALL, message("done")), end=summary(session="s"))
    printed = execute("claude", "fix it")
    assert printed.out == "done\n"
    lines = printed.err.splitlines()
    assert lines[0] == "claude 2.1.325 as developer in /project"
    assert "  governed      its own tools: edit" in lines
    assert "  not governed  its network" in lines
    assert lines.index("I look.") < lines.index("✓ workspace:read_file  path=a.py  12 ms")
    assert "done" not in lines, "the answer is not said twice"
    assert "✓ finished after 2.5 s" in lines
    assert f"  log           {LOG}" in lines
    assert '  continue      toolcrib run claude "…" --conversation c0ffee --workdir /project' in lines


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("words", [[], ["--log-events"]])
@pytest.mark.parametrize("status", [RunStatus.TIMEOUT, RunStatus.REVOKED, RunStatus.NO_TOOLS, RunStatus.INTERRUPTED])
def test_what_a_run_said_that_was_cut_off_is_no_answer(
    play: Play, status: RunStatus, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for events in ((CALL, message("I look.")), (message("I look."), CALL)):
        play(events=events, end=summary(status=status, text="I look.", error="Because."))
        assert run(["run", "claude", "x", *words]) != 0
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("I look.") == 1


def test_a_failed_runs_text_is_its_answer_only_if_it_came_last(play: Play, execute: Execute) -> None:
    end = summary(status=RunStatus.FAILED, text="I give up.", error="Code 1.")
    play(events=(CALL, message("I give up.")), end=end)
    printed = execute("claude", "x", code=10)
    assert printed.out == "I give up.\n"
    assert "I give up." not in printed.err
    play(events=(message("I give up."), CALL), end=end)
    printed = execute("claude", "x", code=10)
    assert printed.out == ""
    assert printed.err.count("I give up.") == 1


@pytest.mark.req("FRG-6")
def test_the_answer_is_said_once_also_beside_all_events(play: Play, execute: Execute) -> None:
    over = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="success")
    play(events=(message("done"), CALL, message("done"), over))
    printed = execute("claude", "x", "--log-events")
    assert printed.out == "done\n"
    kinds = [line.split()[1] for line in printed.err.splitlines() if line[2:3] == line[5:6] == ":"]
    assert kinds == ["message", "tool", "log"]


@pytest.mark.parametrize("words", [[], ["--log-events"], ["--json"], ["--json", "--log-events"]])
def test_secrets_of_the_run_are_masked_in_all_that_is_shown(play: Play, words: list[str], execute: Execute) -> None:
    secret = "hunter2-" + "z" * 80
    call = replace(
        CALL, tool_args={"key": secret}, raw={"k": [secret]}, tool_status=ToolStatus.DENIED, rule=secret, server=secret
    )
    warning = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="toolcrib", text=secret)
    end = summary(status=RunStatus.FAILED, text=secret, error=secret, tools={f"{secret}:read_file": 1}, remedy=secret)
    play(events=(message(secret), call, warning, message(secret)), end=end, secrets=(secret,))
    printed = execute("claude", "x", *words, code=10)
    assert "hunter2" not in printed.out + printed.err
    assert "*" in printed.out


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RunStatus.FINISHED, 0),
        (RunStatus.FAILED, 10),
        (RunStatus.TIMEOUT, 12),
        (RunStatus.REVOKED, 12),
        (RunStatus.NO_TOOLS, 12),
        (RunStatus.INTERRUPTED, 130),
    ],
)
def test_the_exit_code_depends_on_the_status(play: Play, status: RunStatus, code: int, execute: Execute) -> None:
    play(end=summary(status=status, error="" if code == 0 else "Because."))
    assert ("Because." in execute("claude", "x", code=code).err) == (code in (10, 12))


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.TIMEOUT, RunStatus.NO_TOOLS, RunStatus.REVOKED])
def test_an_unfinished_run_reports_the_same_as_text_and_json(
    play: Play, status: RunStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    end = summary(
        status=status, error="Because.", remedy="Do this.", program_exit_code=0, unavailable={"git": "No answer."}
    )
    play(end=end)
    code = run(["run", "claude", "x"])
    lines = capsys.readouterr().err.splitlines()
    assert "  remedy        Do this." in lines
    assert "  unavailable   git: No answer." in lines
    assert run(["run", "claude", "x", "--json"]) == code != 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["exit_code"], reported["program_exit_code"]) == (code, 0)
    assert (reported["error"], reported["remedy"], reported["unavailable"]) == (
        "Because.",
        "Do this.",
        {"git": "No answer."},
    )


def test_a_failed_programs_last_log_lines_are_shown(play: Play, execute: Execute) -> None:
    words = [AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text=f"word {n}") for n in range(9)]
    play(events=tuple(words), end=summary(status=RunStatus.FAILED, text="", error="Code 1."))
    printed = execute("claude", "x", code=10)
    assert printed.out == ""
    assert "word 8" in printed.err
    assert "word 3" not in printed.err
    play(events=tuple(words), end=summary(status=RunStatus.FAILED, text="", error="word 8"))
    assert execute("claude", "x", code=10).err.count("word") == 1, "a reason is not said twice"
    play(events=tuple(words))
    assert "word 8" not in execute("claude", "x").err


def test_json_is_one_object_on_one_line(play: Play, execute: Execute) -> None:
    end = summary(
        usage=TokenUsage(input=5, output=2, cached=1), tools={"workspace:read_file": 2}, denials=1, session="s"
    )
    play(events=(message("x"), CALL), end=end)
    printed = execute("claude", "x", "--json")
    assert printed.err == ""
    (line,) = printed.out.splitlines()
    assert json.loads(line) == {
        "run_id": "20261116-100000-00000a",
        "log": LOG,
        "text": "done",
        "status": "finished",
        "exit_code": 0,
        "program_exit_code": 0,
        "error": "",
        "remedy": "",
        "usage": {"input": 5, "output": 2, "cached": 1, "reported": {}},
        "tools": {"workspace:read_file": 2},
        "unavailable": {},
        "denials": 1,
        "failures": 0,
        "seconds": 2.5,
        "conversation": "c0ffee",
        "session": "s",
        "provider": "claude",
        "model": "",
        "profile": "developer",
        "agent": "claude-c0ffee",
        "workdir": "/project",
        "listing": {"tools": 0, "bytes": 0, "tokens": 0, "tokens_estimated": False},
    }


@pytest.mark.req("FRG-6")
def test_every_event_can_be_had_as_lines_and_as_json(
    play: Play, execute: Execute, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = AgentEvent(kind=AgentEventKind.RAW, provider="claude", raw={"new": "\ud800"}, time=0.0)
    play(events=(message("x"), raw, CALL))
    assert run(["run", "claude", "x", "--json", "--log-events"]) == 0
    *events, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"]["kind"] for event in events] == ["message", "raw", "tool"]
    assert events[1]["event"]["raw"] == {"new": "\ud800"}
    assert events[2]["event"] == CALL.to_json()
    assert last["status"] == "finished"
    printed = execute("claude", "x", "--log-events")
    assert printed.out == "done\n"
    assert [line.split()[1] for line in printed.err.splitlines() if line[2:3] == line[5:6] == ":"] == [
        "message",
        "raw",
        "tool",
    ]


@pytest.mark.req("FRG-10")
def test_what_was_asked_for_reaches_the_run(play: Play, tmp_path: Path) -> None:
    made = play()
    words = ["run", "codex", "do it", "--profile", "read-only", "--workdir", str(tmp_path), "--timeout", "1h30m"]
    words += ["--on-mcp-failure", "continue", "--env", "A", "--env", "B", "--env-file", "f.env"]
    assert run([*words, "--", "-c", "model=x", "--json"]) == 0
    assert made == [
        {
            "client": "codex",
            "prompt": "do it",
            "profile": "read-only",
            "workdir": tmp_path,
            "timeout": 5400.0,
            "on_mcp_failure": OnMcpFailure.CONTINUE,
            "env": ("A", "B"),
            "env_file": Path("f.env"),
            "extra": ("-c", "model=x", "--json"),
            "conversation": "",
        }
    ]


@pytest.mark.parametrize("words", [[], ["-"], ["--", "--model", "x"], ["-", "--", "y"]])
def test_the_prompt_can_come_by_a_pipe(play: Play, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    made = play()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("- é\n".encode())))
    assert run(["run", "claude", *words]) == 0
    assert made[0]["prompt"] == "- é\n"
    assert made[0]["extra"] == tuple(words[words.index("--") + 1 :] if "--" in words else ())


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["claude"], "There is no prompt"),
        *(
            (["claude", "x", "--timeout", time], "more than 0, at most 7d")
            for time in ("0", "0s", "1h0m", "-5", "100d", "8d", "h", "1h30", "1.2.3s", "soon", "")
        ),
        (["claude", "fix", "the", "test"], "Quote a prompt of several words."),
        (["claude", "x", "--model", "y"], "Put arguments for the program after `--`"),
        (["claude", "- x"], "Pipe in a prompt"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(
    play: Play, words: list[str], printed: str, execute: Execute
) -> None:
    made = play()
    assert printed in execute(*words, code=2).err
    assert not any("prompt" in one for one in made)


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("90s", 90), ("1.5", 1.5), ("2h", 7200), ("1h30m", 5400), ("1d2h3m4s", 93784), ("7d", 604800)],
)
def test_a_time_limit_is_written_as_people_do(play: Play, written: str, seconds: float) -> None:
    made = play()
    assert run(["run", "claude", "x", "--timeout", written]) == 0
    assert made[0]["timeout"] == seconds


@pytest.mark.req("FRG-10")
def test_invalid_values_are_reported_with_the_option_and_the_choices(execute: Execute) -> None:
    assert (
        "--on-mcp-failure) cannot be 'maybe'. Use stop or continue."
        in execute("claude", "x", "--on-mcp-failure", "maybe", code=2).err
    )
    assert execute("cursor", "x", code=4).err.endswith("Known: claude, codex, gemini.\n")
    assert (
        "There is no conversation with claude yet in " in execute("claude", "x", "--conversation", "last", code=4).err
    )


def test_a_run_that_cannot_start_reports_why_as_text_and_json(play: Play, execute: Execute) -> None:
    def missing() -> None:
        raise NotFound("There is no claude here.", remedy="npm install -g claude")

    play(before=missing)
    assert execute("claude", "x", code=4).err == "Error: There is no claude here. npm install -g claude\n"
    (line,) = execute("claude", "x", "--json", code=4).out.splitlines()
    assert json.loads(line)["error"]["exit_code"] == 4


@pytest.mark.parametrize("before", ["nothing", "read-only", "developer"])
def test_a_conversation_keeps_its_profile(play: Play, project: Path, before: str) -> None:
    made = play()
    written(project, metadata(OLD, profile=before), end=summary())
    assert run(["run", "claude", "x", "--conversation", "last"]) == 0
    assert (made[0]["profile"], made[0]["conversation"]) == (before, "last")
    assert run(["run", "claude", "x", "--conversation", "c0ffee", "--profile", "trusted"]) == 0
    assert made[1]["profile"] == "trusted"


def test_a_log_in_the_project_cannot_give_a_run_more_than_is_usual(play: Play, project: Path, execute: Execute) -> None:
    made = play()
    written(project, metadata(OLD, profile="owner"), end=summary())
    assert "Add --profile owner to keep it" in execute("claude", "x", "--conversation", "last", code=2).err
    assert made == []


def test_an_agents_output_cannot_control_the_terminal(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "\x1b[2J\x1b]0;evil\x07[red]\x9b1m"
    call = replace(CALL, tool_name=evil, tool_status=ToolStatus.DENIED, rule=evil, tool_args={evil: evil})
    begun = replace(call, tool_status=ToolStatus.STARTED, call="2")
    play(events=(message(evil), call, begun), about=metadata(ungoverned=(evil,)), end=summary(error=evil, text=evil))
    beside, out = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", beside)
    monkeypatch.setattr("sys.stdout", out)
    assert run(["run", "claude", "x"]) == 0
    assert "\x1b[32m✓ " in beside.getvalue(), "a terminal gets colours"
    assert "\x1b[?25h" in beside.getvalue(), "and its cursor back"
    for hostile in ("\x1b[2J", "\x1b]0;", "\x9b"):
        assert hostile not in beside.getvalue() + out.getvalue()
    assert "[red]" in beside.getvalue()


def test_a_reader_that_leaves_ends_the_run_in_order(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return spare

    spare = os.open(os.devnull, os.O_WRONLY)
    play(events=(message("x"), CALL), waits=True)
    monkeypatch.setattr("sys.stdout", Left())
    try:
        assert run(["run", "claude", "x", "--json", "--log-events"]) == 141
    finally:
        os.close(spare)


INTERRUPTIBLE = """
import sys
sys.path.insert(0, sys.argv[1])
import toolcrib.cli.run_command
from parts.run_logs import message
from parts.stand_in import Script, code_agent
from toolcrib.cli.app import run
script = Script(events=(message("begun"), message("x")), waits=True, stubborn=sys.argv[2] == "stubborn")
toolcrib.cli.run_command.CodeAgent = code_agent(script, [])
sys.exit(run(["run", "claude", "x", *sys.argv[3:]]))
"""


@pytest.fixture
def interruptible() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-c", INTERRUPTIBLE, str(TESTS), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}")


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_in_order(
    interruptible: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = interruptible("gentle")
    wait_for(process, "begun")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "✗ interrupted after 2.5 s" in err.splitlines(), "whoever did it knows why"
    assert err.splitlines().count("x") == 1, "what it said last is told like all it said"


def test_an_ignored_sigint_or_sighup_does_not_end_it_but_sigterm_does(
    interruptible: Callable[..., subprocess.Popen[str]],
) -> None:
    process = interruptible("gentle", before=("sh", "-c", 'trap "" INT HUP TERM; exec "$@"', "sh"))
    wait_for(process, "begun")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "✗ interrupted" in err, "a second signal that it hears would have ended it at once"


def test_a_second_interruption_ends_it_at_once(interruptible: Callable[..., subprocess.Popen[str]]) -> None:
    process = interruptible("stubborn")
    wait_for(process, "begun")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stubborn")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
