"""How a run reads for people, also one out of a log that somebody else wrote."""

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

from parts.run_logs import NOBODY, message, metadata, summary
from toolcrib.cli import run_text
from toolcrib.cli.run_text import AllEventLines, EventDetail, EventLines, EventTimes, RunFacts, StyledLine
from toolcrib.cli.run_view import RunScreen
from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.run_result import RunStatus, ToolListSize
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6", "FRG-7")


def plain(lines: Any) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def tool(status: ToolStatus = ToolStatus.OK, **given: Any) -> AgentEvent:
    usual = {"tool_name": "read_file", "server": "workspace", "call": "1", "tool_args": {"path": "a.py"}}
    return AgentEvent(kind=AgentEventKind.TOOL, provider="claude", tool_status=status, **(usual | given))


def shown(*events: AgentEvent, times: EventTimes = EventTimes.LEFT_OUT, but: str = "") -> list[str]:
    telling = EventLines(times)
    lines: list[StyledLine] = []
    for event in events:
        lines += telling.of(event)
    return plain([*lines, *telling.rest(but=but)])


def test_a_tool_is_one_line_with_arguments_time_and_error() -> None:
    assert shown(tool(ToolStatus.STARTED), tool(tool_duration_ms=12.4)) == ["✓ workspace:read_file  path=a.py  12 ms"]
    denied = tool(ToolStatus.DENIED, rule="profile read-only: allow *:* only if read_only", decision="deny", text="no")
    assert shown(denied) == ["✗ workspace:read_file  path=a.py  denied: profile read-only: allow *:* only if read_only"]
    own = tool(ToolStatus.ERROR, server="", tool_name="Bash", tool_args={"command": "ls -l"}, text="exit 1\nbad")
    assert shown(own) == ['✗ Bash  command="ls -l"  failed: exit 1 bad']
    assert shown(tool(ToolStatus.CANCELLED)) == ["✗ workspace:read_file  path=a.py  cancelled"]


def test_what_is_shortened_shows_it() -> None:
    (line,) = shown(tool(tool_args={"text": "x" * 500, "n": 5}))
    assert "text=" + "x" * 59 + "… n=5" in line
    (line,) = shown(tool(tool_args={f"k{number}": "y" * 50 for number in range(9)}))
    assert line.endswith("…")


def test_messages_are_shown_in_order_and_the_answer_is_held_back() -> None:
    events = [message("First I look.\nThen I write."), tool(), message("Done.")]
    assert shown(*events, but="Done.\n") == ["First I look.", "Then I write.", "✓ workspace:read_file  path=a.py"]
    assert shown(*events)[-1] == "Done."
    assert shown(message("one"), message("two"), but="two") == ["one"]


def test_all_events_come_in_order_and_the_answer_alone_is_kept_back() -> None:
    own = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="success")
    warning = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="toolcrib", text="away")
    everything = AllEventLines()
    given = [message("one"), own, message("two"), warning, own, tool(), message("three"), own]
    lines = [line for event in given for line in everything.of(event)]
    assert everything.held == "three"
    ends = [line.split()[-1] for line in plain([*lines, *everything.rest(but="three")])]
    assert ends == ["one", "success", "two", "away", "success", '"a.py"}', "success"]


def test_warnings_and_reasoning_are_shown_and_the_programs_log_is_counted() -> None:
    warning = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="toolcrib", text="The server git is away")
    thought = AgentEvent(kind=AgentEventKind.REASONING, provider="claude", role="assistant", text="hm\nhm")
    own = AgentEvent(kind=AgentEventKind.LOG, provider="claude", role="system", text="debug")
    assert shown(warning, thought, own) == ["! The server git is away", "· hm hm"]
    telling = EventLines(EventTimes.LEFT_OUT)
    for event in (warning, own, own, message("", raw={})):
        list(telling.of(event))
    assert telling.hidden == 3


def test_out_of_a_log_each_has_its_time_and_lines_stay_aligned() -> None:
    lines = shown(message("one\ntwo", time=0.0), tool(time=1e300), times=EventTimes.SHOWN)
    assert lines[0].endswith(":00  one")
    assert lines[1] == "          two"
    assert lines[2].startswith("?  ✓")


def test_every_event_is_one_whole_line() -> None:
    text = "x" * 5000 + "\nend"
    (line,) = plain([run_text.event_line(message(text))])
    assert line.endswith("x" * 5000 + "\\nend")
    (line,) = plain([run_text.event_line(AgentEvent(kind=AgentEventKind.RAW, provider="codex", raw={"a": [1, "é"]}))])
    assert line.endswith('{"a": [1, "é"]}')
    (line,) = plain([run_text.event_line(tool(decision="allow", rule="why", tool_duration_ms=5.0))])
    assert line.endswith('workspace:read_file  ok  {"path": "a.py"}  5 ms  allow (why)')


def test_the_summary_has_tools_time_tokens_denials_list_log_and_how_to_go_on() -> None:
    over = summary(
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
    assert plain(run_text.closing_lines(over, about, Path("/p/run.jsonl"), seen)) == [
        "✓ finished after 1m 15s",
        "  model         opus",
        "  tools         workspace:read_file 3, Bash 1 (denied)",
        "  tokens        12,345 in, 678 out, 10,000 cached",
        "  tool list     24 tools, 18.2 kB, 4,512 tokens",
        "  log           /p/run.jsonl",
        '  continue      toolcrib run claude "…" --conversation c0ffee',
    ]
    guessed = summary(listing=ToolListSize(tools=1, bytes=900, tokens=230, tokens_estimated=True))
    assert "  tool list     1 tool, 900 B, ~230 tokens" in plain(
        run_text.closing_lines(guessed, about, Path("/l"), seen)
    )
    failed = summary(status=RunStatus.FAILED, error="The model\nis gone.", seconds=0.25)
    assert plain(run_text.closing_lines(failed, about, Path("/l"), RunFacts())) == [
        "✗ failed after 250 ms: The model is gone.",
        "  tools         none called",
        "  tokens        not reported",
        "  log           /l",
    ]


def test_denied_calls_are_counted_separately() -> None:
    seen = RunFacts()
    for status in (ToolStatus.STARTED, ToolStatus.OK, ToolStatus.DENIED, ToolStatus.ERROR):
        seen.note(tool(status, tool_name="write_file"))
    over = summary(tools={"workspace:write_file": 3, "Read": 1}, denials=1)
    lines = plain(run_text.closing_lines(over, metadata(), Path("/l"), seen))
    assert "  tools         workspace:write_file 2, Read 1, workspace:write_file 1 (denied)" in lines


def test_of_a_long_prompt_the_beginning_is_shown_and_how_much_is_not() -> None:
    def prompt_lines(prompt: str) -> list[str]:
        lines = plain(run_text.heading_lines(metadata(prompt=prompt), RunStatus.FINISHED, EventDetail.USUAL))
        first = next(place for place, line in enumerate(lines) if line.startswith("  prompt"))
        return [line[16:] for line in lines[first:]]

    assert prompt_lines("a\r\nb\n") == ["a", "b"]
    assert prompt_lines("\n".join(f"line {number}" for number in range(40))) == [
        f"line {number}" for number in range(40)
    ]
    *lines, last = prompt_lines("x\n" * 100)
    assert lines == ["x"] * 40
    assert last == "(120 characters more; --json shows everything)"
    (line, last) = prompt_lines("y" * 10_000)
    assert line == "y" * 3999 + "…"
    assert last == "(6,000 characters more; --json shows everything)"


def test_the_command_to_continue_is_safe_to_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    evil = metadata(provider="x;y", conversation="$(z)", profile="owner", workdir="/a b")
    *_, line = plain(run_text.closing_lines(summary(session="s"), evil, Path("/l"), RunFacts(answered=True)))
    command = "toolcrib run 'x;y' \"…\" --conversation '$(z)' --profile owner --workdir '/a b'"
    assert line == f"  continue      {command}"


def test_a_long_text_wraps_beside_its_label_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    reported = "It may read files and change them in the folder, and no others; what is git's it may not change."
    path = "/" + "long/" * 12
    lines = [*run_text.opening_lines(metadata(governed=(reported, path)))][2:]
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        for line in lines:
            RunScreen(stream).write(line)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert [line.rstrip() for line in drawn] == [
        "  governed      It may read files and change them",
        "                in the folder, and no others; what",
        "                is git's it may not change.",
        f"                {path}",
    ]
    assert pipe.getvalue().splitlines() == [f"  governed      {reported}", f"                {path}"]


def test_the_heading_has_program_profile_folder_and_limits() -> None:
    about = metadata(governed=("a", "b"), ungoverned=("c",), session_before="s")
    assert plain(run_text.opening_lines(about)) == [
        "claude 2.1.325 as developer in /project",
        "  conversation  c0ffee (continued)",
        "  governed      a",
        "                b",
        "  not governed  c",
    ]


def test_a_log_without_a_summary_shows_whether_the_run_continues() -> None:
    going = plain(run_text.unfinished_lines(metadata(), Path("/l"), "s"))
    assert going[0].startswith("Still running: `toolcrib runs tail 2026")
    assert not any("continue" in line for line in going[1:])
    killed = plain(run_text.unfinished_lines(metadata(pid_began=NOBODY), Path("/l"), "s"))
    assert killed[0].startswith("✗ killed")
    assert killed[-1].startswith("  continue      toolcrib run claude")
    assert "continue" not in plain(run_text.unfinished_lines(metadata(pid_began=NOBODY), Path("/l"), ""))[-1]


@given(
    seconds=st.floats(),
    at=st.floats(),
    name=st.text(),
    arguments=st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.lists(st.text())),
)
def test_no_figure_and_no_text_of_a_hostile_log_makes_it_fail(
    seconds: float, at: float, name: str, arguments: dict[str, Any]
) -> None:
    event = tool(tool_duration_ms=seconds, time=at, tool_name=name, tool_args=arguments, server=name, text=name)
    lines = [*shown(event, times=EventTimes.SHOWN), *plain([run_text.event_line(event)])]
    end = summary(seconds=seconds, tools={name: -1}, error=name, remedy=name, session=name)
    about = metadata(started_at=at, workdir=name, prompt=name, profile=name, conversation=name, governed=(name,))
    lines += plain(run_text.closing_lines(end, about, Path("/l"), RunFacts(answered=True)))
    for detail in EventDetail:
        lines += plain(run_text.heading_lines(about, RunStatus.KILLED, detail))
    assert not any("\n" in line for line in lines)
    assert run_text.seconds_text(math.inf) == "?"
