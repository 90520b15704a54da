"""The text of a run for people, including one from an untrusted log."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.run_logs import NO_PROCESS, log_event, message, metadata, summary
from toolcrib.cli import run_text
from toolcrib.cli.run_text import AllEventLines, EventDetail, EventLines, EventTimes, RunFacts
from toolcrib.cli.run_view import RunScreen
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary, ToolListSize
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6", "FRG-7")


def plain(lines: Any) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def tool(status: ToolStatus = ToolStatus.OK, **given: Any) -> AgentEvent:
    usual = {"tool_name": "read_file", "server": "workspace", "call": "1", "tool_args": {"path": "a.py"}}
    return AgentEvent(kind=AgentEventKind.TOOL, provider="claude", tool_status=status, **(usual | given))


def shown(*events: AgentEvent, times: EventTimes = EventTimes.LEFT_OUT, but: str = "") -> list[str]:
    text = EventLines(times)
    lines = [line for event in events for line in text.of(event)]
    return plain([*lines, *text.rest(but=but)])


def closing(end: RunSummary, about: RunMetadata, seen: RunFacts, log: str = "/l") -> list[str]:
    return plain(run_text.closing_lines(end, about, Path(log), seen))


def test_a_tool_is_one_line_with_arguments_time_and_error():
    assert shown(tool(ToolStatus.STARTED), tool(tool_duration_ms=12.4)) == ["✓ workspace:read_file  path=a.py  12 ms"]
    denied = tool(ToolStatus.DENIED, rule="profile read-only: allow *:* only if read_only", decision="deny", text="no")
    assert shown(denied) == ["✗ workspace:read_file  path=a.py  denied: profile read-only: allow *:* only if read_only"]
    own = tool(ToolStatus.ERROR, server="", tool_name="Bash", tool_args={"command": "ls -l"}, text="exit 1\nbad")
    assert shown(own) == ['✗ Bash  command="ls -l"  failed: exit 1 bad']
    assert shown(tool(ToolStatus.CANCELLED)) == ["✗ workspace:read_file  path=a.py  cancelled"]
    (line,) = shown(tool(tool_args={"text": "x" * 500, "n": 5}))
    assert "text=" + "x" * 59 + "… n=5" in line
    (line,) = shown(tool(tool_args={f"k{number}": "y" * 50 for number in range(9)}))
    assert line.endswith("…")


def test_messages_and_events_are_shown_in_order_without_the_answer():
    events = [message("First I look.\nThen I write."), tool(), message("Done.")]
    assert shown(*events, but="Done.\n") == ["First I look.", "Then I write.", "✓ workspace:read_file  path=a.py"]
    assert shown(*events)[-1] == "Done."
    assert shown(message("one"), message("two"), but="two") == ["one"]
    own, warning = log_event("success"), log_event("away", "toolcrib")
    everything = AllEventLines()
    given = [message("one"), own, message("two"), warning, own, tool(), message("three"), own]
    lines = [line for event in given for line in everything.of(event)]
    assert everything.held == "three"
    ends = [line.split()[-1] for line in plain([*lines, *everything.rest(but="three")])]
    assert ends == ["one", "success", "two", "away", "success", '"a.py"}', "success"]


def test_warnings_and_reasoning_are_shown_and_the_programs_log_is_counted():
    warning, own = log_event("The server git is away", "toolcrib"), log_event("debug")
    thought = AgentEvent(kind=AgentEventKind.REASONING, provider="claude", role="assistant", text="hm\nhm")
    assert shown(warning, thought, own) == ["! The server git is away", "· hm hm"]
    text = EventLines(EventTimes.LEFT_OUT)
    for event in (warning, own, own, message("", raw={})):
        list(text.of(event))
    assert text.hidden == 3


def test_lines_from_a_log_have_their_time_and_stay_aligned():
    lines = shown(message("one\ntwo", time=0.0), tool(time=1e300), times=EventTimes.SHOWN)
    assert lines[0].endswith(":00  one")
    assert lines[1] == "          two"
    assert lines[2].startswith("?  ✓")


def test_every_event_is_one_complete_line():
    raw = AgentEvent(kind=AgentEventKind.RAW, provider="codex", raw={"a": [1, "é"]})
    for event, end in (
        (message("x" * 5000 + "\nend"), "x" * 5000 + "\\nend"),
        (raw, '{"a": [1, "é"]}'),
        (
            tool(decision="allow", rule="why", tool_duration_ms=5.0),
            'workspace:read_file  ok  {"path": "a.py"}  5 ms  allow (why)',
        ),
    ):
        (line,) = plain([run_text.event_line(event)])
        assert line.endswith(end)


def test_the_summary_has_tools_time_tokens_denials_list_log_and_the_command_to_continue():
    end = summary(
        seconds=75.0,
        session="s",
        usage=TokenUsage(input=12345, output=678, cached=10000),
        tools={"Bash": 1, "workspace:read_file": 3},
        denials=1,
        model="opus",
        listing=ToolListSize(tools=24, bytes=18_200, tokens=4512),
    )
    about = metadata(workdir=str(Path.cwd()))
    seen = RunFacts(answered=True, denied=Counter({"Bash": 1}))
    assert closing(end, about, seen, "/p/run.jsonl") == [
        "✓ finished after 1m 15s",
        "  model         opus",
        "  tools         workspace:read_file 3, Bash 1 (denied)",
        "  tokens        12,345 in, 678 out, 10,000 cached",
        "  tool list     24 tools, 18.2 kB, 4,512 tokens",
        "  log           /p/run.jsonl",
        '  continue      toolcrib run claude "…" --conversation c0ffee',
    ]
    guessed = summary(listing=ToolListSize(tools=1, bytes=900, tokens=230, tokens_estimated=True))
    assert "  tool list     1 tool, 900 B, ~230 tokens" in closing(guessed, about, seen)
    failed = summary(status=RunStatus.FAILED, error="The model\nis gone.", seconds=0.25)
    assert closing(failed, about, RunFacts()) == [
        "✗ failed after 250 ms: The model is gone.",
        "  tools         none called",
        "  tokens        not reported",
        "  log           /l",
    ]
    seen = RunFacts()
    for status in (ToolStatus.STARTED, ToolStatus.OK, ToolStatus.DENIED, ToolStatus.ERROR):
        seen.note(tool(status, tool_name="write_file"))
    lines = closing(summary(tools={"workspace:write_file": 3, "Read": 1}, denials=1), metadata(), seen)
    assert "  tools         workspace:write_file 2, Read 1, workspace:write_file 1 (denied)" in lines


def test_the_heading_has_program_profile_folder_limits_and_the_beginning_of_a_long_prompt():
    about = metadata(governed=("a", "b"), ungoverned=("c",), session_before="s")
    assert plain(run_text.opening_lines(about)) == [
        "claude 2.1.325 as developer in /project",
        "  conversation  c0ffee (continued)",
        "  governed      a",
        "                b",
        "  not governed  c",
    ]

    def prompt_lines(prompt: str) -> list[str]:
        lines = plain(run_text.heading_lines(metadata(prompt=prompt), RunStatus.FINISHED, EventDetail.USUAL))
        first = next(place for place, line in enumerate(lines) if line.startswith("  prompt"))
        return [line[16:] for line in lines[first:]]

    assert prompt_lines("a\r\nb\n") == ["a", "b"]
    forty = [f"line {number}" for number in range(40)]
    assert prompt_lines("\n".join(forty)) == forty
    assert prompt_lines("x\n" * 100) == [*["x"] * 40, "(120 characters more; --json shows everything)"]
    assert prompt_lines("y" * 10_000) == ["y" * 3999 + "…", "(6,000 characters more; --json shows everything)"]


def test_the_command_to_continue_is_safe_to_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    evil = metadata(provider="x;y", conversation="$(z)", profile="owner", workdir="/a b")
    line = closing(summary(session="s"), evil, RunFacts(answered=True))[-1]
    command = "toolcrib run 'x;y' \"…\" --conversation '$(z)' --profile owner --workdir '/a b'"
    assert line == f"  continue      {command}"


def test_a_long_text_wraps_next_to_its_label_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    text = "It may read files and change them in the folder, and no others; what is git's it may not change."
    path = "/" + "long/" * 12
    screen, pipe = io.StringIO(), io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    for stream in (screen, pipe):
        for line in [*run_text.opening_lines(metadata(governed=(text, path)))][2:]:
            RunScreen(stream).write(line)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert [line.rstrip() for line in drawn] == [
        "  governed      It may read files and change them",
        "                in the folder, and no others; what",
        "                is git's it may not change.",
        f"                {path}",
    ]
    assert pipe.getvalue().splitlines() == [f"  governed      {text}", f"                {path}"]


def test_a_log_without_a_summary_shows_whether_the_run_continues():
    running = plain(run_text.unfinished_lines(metadata(), Path("/l"), "s"))
    assert running[0].startswith("Still running: `toolcrib runs tail 2026")
    assert not any("continue" in line for line in running[1:])
    about = metadata(pid_began=NO_PROCESS)
    killed = plain(run_text.unfinished_lines(about, Path("/l"), "s"))
    assert killed[0].startswith("✗ killed")
    assert killed[-1].startswith("  continue      toolcrib run claude")
    assert "continue" not in plain(run_text.unfinished_lines(about, Path("/l"), ""))[-1]


@given(
    seconds=st.floats(),
    at=st.floats(),
    name=st.text(),
    arguments=st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.lists(st.text())),
)
def test_no_number_and_no_text_of_a_hostile_log_fails(seconds: float, at: float, name: str, arguments: dict[str, Any]):
    event = tool(tool_duration_ms=seconds, time=at, tool_name=name, tool_args=arguments, server=name, text=name)
    lines = [*shown(event, times=EventTimes.SHOWN), *plain([run_text.event_line(event)])]
    end = summary(seconds=seconds, tools={name: -1}, error=name, remedy=name, session=name)
    about = metadata(started_at=at, workdir=name, prompt=name, profile=name, conversation=name, governed=(name,))
    lines += plain(run_text.closing_lines(end, about, Path("/l"), RunFacts(answered=True)))
    for detail in EventDetail:
        lines += plain(run_text.heading_lines(about, RunStatus.KILLED, detail))
    assert not any("\n" in line for line in lines)
    assert run_text.seconds_text(math.inf) == "?"
