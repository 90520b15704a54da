"""How a run reads for people, also one out of a log that somebody else wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.run_logs import NOBODY, message, metadata, summary
from toolcrib.cli import run_lines
from toolcrib.cli.run_lines import Line, Telling, Times
from toolcrib.coding_agents.events import AgentEvent, Kind, ToolStatus
from toolcrib.coding_agents.headless import Usage
from toolcrib.runs.result import Listing, Status


def plain(lines: Any) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def tool(status: ToolStatus = ToolStatus.OK, **given: Any) -> AgentEvent:
    usual = {"tool_name": "read_file", "server": "workspace", "call": "1", "tool_args": {"path": "a.py"}}
    return AgentEvent(kind=Kind.TOOL, provider="claude", tool_status=status, **(usual | given))


def told(*events: AgentEvent, times: Times = Times.LEFT_OUT, but: str = "") -> list[str]:
    telling = Telling(times)
    lines: list[Line] = []
    for event in events:
        lines += telling.of(event)
    return plain([*lines, *telling.rest(but=but)])


@pytest.mark.req("FRG-6")
def test_a_tool_is_one_line_with_arguments_time_and_what_was_wrong() -> None:
    assert told(tool(ToolStatus.STARTED), tool(tool_duration_ms=12.4)) == ["✓ workspace:read_file  path=a.py  12 ms"]
    denied = tool(ToolStatus.DENIED, rule="profile read-only: allow *:* only if read_only", decision="deny", text="no")
    assert told(denied) == ["✗ workspace:read_file  path=a.py  denied: profile read-only: allow *:* only if read_only"]
    own = tool(ToolStatus.ERROR, server="", tool_name="Bash", tool_args={"command": "ls -l"}, text="exit 1\nbad")
    assert told(own) == ['✗ Bash  command="ls -l"  failed: exit 1 bad']
    assert told(tool(ToolStatus.CANCELLED)) == ["✗ workspace:read_file  path=a.py  not over"]


@pytest.mark.req("FRG-6")
def test_what_is_shortened_shows_it() -> None:
    (line,) = told(tool(tool_args={"text": "x" * 500, "n": 5}))
    assert "text=" + "x" * 59 + "… n=5" in line
    (line,) = told(tool(tool_args={f"k{number}": "y" * 50 for number in range(9)}))
    assert line.endswith("…")


@pytest.mark.req("FRG-6")
def test_messages_are_told_in_order_and_the_answer_is_kept_for_its_own_place() -> None:
    events = [message("First I look.\nThen I write."), tool(), message("Done.")]
    assert told(*events, but="Done.\n") == ["First I look.", "Then I write.", "✓ workspace:read_file  path=a.py"]
    assert told(*events)[-1] == "Done."
    assert told(message("one"), message("two"), but="two") == ["one"]


@pytest.mark.req("FRG-6")
def test_warnings_of_toolcrib_and_thoughts_are_told_the_programs_own_log_is_counted() -> None:
    warning = AgentEvent(kind=Kind.LOG, provider="claude", role="toolcrib", text="The server git is away")
    thought = AgentEvent(kind=Kind.REASONING, provider="claude", role="assistant", text="hm\nhm")
    own = AgentEvent(kind=Kind.LOG, provider="claude", role="system", text="debug")
    assert told(warning, thought, own) == ["! The server git is away", "· hm hm"]
    telling = Telling(Times.LEFT_OUT)
    for event in (warning, own, own, message("", raw={})):
        list(telling.of(event))
    assert telling.untold == 3


@pytest.mark.req("FRG-7")
def test_out_of_a_log_each_has_its_time_and_lines_stay_aligned() -> None:
    lines = told(message("one\ntwo", time=0.0), tool(time=1e300), times=Times.SHOWN)
    assert lines[0].endswith(":00  one")
    assert lines[1] == "          two"
    assert lines[2].startswith("?  ✓")


@pytest.mark.req("FRG-6")
def test_every_event_is_one_whole_line() -> None:
    text = "x" * 5000 + "\nend"
    (line,) = plain([run_lines.event_line(message(text))])
    assert line.endswith("x" * 5000 + "\\nend")
    (line,) = plain([run_lines.event_line(AgentEvent(kind=Kind.RAW, provider="codex", raw={"a": [1, "é"]}))])
    assert line.endswith('{"a": [1, "é"]}')
    (line,) = plain([run_lines.event_line(tool(decision="allow", rule="why", tool_duration_ms=5.0))])
    assert line.endswith('workspace:read_file  ok  {"path": "a.py"}  5 ms  allow (why)')


@pytest.mark.req("FRG-7", "KSI-4")
def test_the_summary_has_tools_time_tokens_denials_list_log_and_how_to_go_on() -> None:
    over = summary(
        seconds=75.0,
        session="s",
        usage=Usage(input=12345, output=678, cached=10000),
        tools={"Bash": 1, "workspace:read_file": 3},
        denials=1,
        model="opus",
        listing=Listing(tools=24, bytes=18_200, tokens=4512),
    )
    assert plain(run_lines.closing(over, metadata(), Path("/p/run.jsonl"))) == [
        "✓ finished after 1m 15s",
        "  model         opus",
        "  tools         workspace:read_file (3 times), Bash; 1 denied",
        "  tokens        12,345 in, 678 out, 10,000 cached",
        "  tool list     24 tools, 18.2 kB, about 4,512 tokens",
        "  log           /p/run.jsonl",
        '  go on         toolcrib run claude "…" --conversation c0ffee',
    ]
    failed = summary(status=Status.NO_TOOLS, error="The daemon\nis gone.", seconds=0.25)
    assert plain(run_lines.closing(failed, metadata(), Path("/l"))) == [
        "✗ no tools after 250 ms: The daemon is gone.",
        "  tools         none called",
        "  tokens        not told",
        "  log           /l",
    ]


@pytest.mark.req("FRG-7")
def test_the_beginning_says_who_what_where_and_what_is_not_governed() -> None:
    about = metadata(governed=("a", "b"), ungoverned=("c",), session_before="s")
    assert plain(run_lines.opening(about)) == [
        "claude 2.1.325 as developer in /project",
        "  conversation  c0ffee (goes on)",
        "  governed      a",
        "                b",
        "  not governed  c",
    ]


@pytest.mark.req("FRG-7")
def test_a_log_without_an_end_says_whether_the_run_goes_on() -> None:
    assert plain(run_lines.no_end(metadata(), Path("/l")))[0].startswith("It still goes on: `toolcrib runs tail 2026")
    assert plain(run_lines.no_end(metadata(pid_began=NOBODY), Path("/l")))[0].startswith("✗ killed")


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
    lines = [*told(event, times=Times.SHOWN), *plain([run_lines.event_line(event)])]
    lines += plain(run_lines.closing(summary(seconds=seconds, tools={name: -1}, error=name), metadata(), Path("/l")))
    lines += plain(run_lines.heading(metadata(started_at=at, workdir=name), Status.KILLED))
    assert not any("\n" in line for line in lines)
    assert run_lines.span(math.inf) == "?"
