"""One account of a call from two: the program's lines, and what passed the gateway's door."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.coding_agents.call_matching import PATIENCE, CallMatcher
from toolcrib.coding_agents.client_spec import SERVER_NAME
from toolcrib.config.masking import HIDDEN
from toolcrib.daemon_client.lease import CallSeen
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6")

MARK = "program/id"


def started(call: str, name: str = "files_read", args: Any = None, server: str = SERVER_NAME) -> AgentEvent:
    return AgentEvent(
        kind=AgentEventKind.TOOL,
        provider="p",
        raw={"start": call},
        tool_name=name,
        tool_args=args or {},
        tool_status=ToolStatus.STARTED,
        server=server,
        call=call,
        time=10.0,
    )


def ended(
    call: str, name: str = "files_read", server: str = SERVER_NAME, status: ToolStatus = ToolStatus.OK
) -> AgentEvent:
    return AgentEvent(
        kind=AgentEventKind.TOOL,
        provider="p",
        raw={"end": call},
        text="what it gave",
        tool_name=name,
        tool_status=status,
        server=server,
        call=call,
        time=12.5,
    )


def seen(
    call: str, outcome: str = "", *, name: str = "files_read", args: Any = None, meta: dict[str, Any] | None = None
) -> CallSeen:
    server, _, tool = name.partition("_")
    return CallSeen(
        call=call,
        name=name,
        tool=tool,
        server="" if outcome == "unknown" else server,
        arguments=args or {},
        arguments_size=2,
        over=bool(outcome),
        outcome=outcome,
        duration_ms=7.5 if outcome else None,
        decision="deny" if outcome == "denied" else "allow",
        rule="a rule",
        meta=meta or {},
        at=11.0,
    )


def told(*steps: Iterable[AgentEvent]) -> list[AgentEvent]:
    return [event for step in steps for event in step]


def test_a_call_that_both_sides_tell_of_is_told_once_with_the_gateways_word() -> None:
    one = CallMatcher("p")
    one.names = {"files_read": ("files", "read")}
    start, end = told(
        one.printed(started("c1", args={"path": "a"}), 0),
        one.passed(seen("g1", args={"path": "a"}), 0),
        one.passed(seen("g1", "ok", args={"path": "a"}), 0),
        one.printed(ended("c1"), 0),
        one.finish(),
    )
    assert (start.tool_status, start.server, start.tool_name) == (ToolStatus.STARTED, "files", "read")
    assert (end.tool_status, end.server, end.tool_name) == (ToolStatus.OK, "files", "read")
    assert (end.tool_args, end.tool_duration_ms, end.decision, end.rule) == ({"path": "a"}, 7.5, "allow", "a rule")
    assert start.call == end.call == "c1"
    assert (start.raw, end.raw, end.text) == ({"start": "c1"}, {"end": "c1"}, "what it gave")


@pytest.mark.parametrize("gateway_first", [True, False])
def test_a_start_reads_the_same_whichever_side_is_quicker(gateway_first: bool) -> None:
    one = CallMatcher("p")
    one.names = {"files_read": ("files", "read")}
    sides = [
        lambda: one.printed(started("c1", args={"path": "a"}), 0),
        lambda: one.passed(seen("g1", args={"path": "a"}), 0),
    ]
    (start,) = told(*(side() for side in (reversed(sides) if gateway_first else sides)))
    assert (start.tool_args, start.decision, start.rule) == ({"path": "a"}, "", "")
    (end,) = told(one.finish())
    assert (end.tool_status, end.decision, end.rule) == (ToolStatus.CANCELLED, "allow", "a rule")


def test_the_end_waits_for_the_gateways_word_and_not_for_ever() -> None:
    one = CallMatcher("p")
    assert len(told(one.printed(started("c1"), 0), one.printed(ended("c1"), 5.0))) == 1
    assert one.next_due() == 5.0 + PATIENCE
    assert told(one.overdue(5.0)) == []
    (end,) = told(one.overdue(5.0 + PATIENCE))
    assert (end.tool_status, end.decision, end.tool_name) == (ToolStatus.OK, "", "files_read")
    assert one.next_due() is None


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("ok", ToolStatus.OK),
        ("tool_error", ToolStatus.ERROR),
        ("refused", ToolStatus.ERROR),
        ("denied", ToolStatus.DENIED),
        ("invalid", ToolStatus.INVALID),
        ("unknown", ToolStatus.UNKNOWN),
        ("timeout", ToolStatus.TIMEOUT),
        ("cancelled", ToolStatus.CANCELLED),
        ("unavailable", ToolStatus.UNAVAILABLE),
    ],
)
def test_a_call_that_the_program_never_prints_is_told_all_the_same(outcome: str, status: ToolStatus) -> None:
    one = CallMatcher("p")
    assert told(one.passed(seen("g1", outcome, args={"n": 1}), 0)) == []
    start, end = told(one.overdue(PATIENCE))
    assert (start.tool_status, end.tool_status) == (ToolStatus.STARTED, status)
    assert (end.tool_args, end.tool_duration_ms, start.call) == ({"n": 1}, 7.5, end.call)


def test_a_line_that_comes_after_its_call_was_told_is_kept_and_no_second_call() -> None:
    one = CallMatcher("p")
    events = told(
        one.printed(started("c1"), 0),
        one.passed(seen("g1"), 0),
        one.passed(seen("g1", "ok"), 0),
        one.overdue(PATIENCE),
        one.printed(ended("c1"), 9),
        one.finish(),
    )
    assert [event.kind for event in events] == [AgentEventKind.TOOL, AgentEventKind.TOOL, AgentEventKind.RAW]
    assert events[-1].raw == {"end": "c1"}


def test_calls_of_one_tool_are_told_apart_by_their_arguments_and_then_by_their_order() -> None:
    one = CallMatcher("p")
    told(*(one.printed(started(f"c{n}", args={"n": n}), 0) for n in (1, 2, 3)))
    told(*(one.passed(seen(f"g{n}", "ok" if n < 3 else "denied", args={"n": n}), 0) for n in (3, 1, 2)))
    ends = told(*(one.printed(ended(f"c{n}"), 0) for n in (1, 2, 3)))
    assert [(end.call, end.tool_args, end.tool_status) for end in ends] == [
        ("c1", {"n": 1}, ToolStatus.OK),
        ("c2", {"n": 2}, ToolStatus.OK),
        ("c3", {"n": 3}, ToolStatus.DENIED),
    ]


def test_a_mark_tells_equal_calls_apart() -> None:
    one = CallMatcher("p", mark=MARK)
    told(one.printed(started("c1"), 0), one.printed(started("c2"), 0))
    told(one.passed(seen("g2", "denied", meta={MARK: "c2"}), 0), one.passed(seen("g1", "ok", meta={MARK: "c1"}), 0))
    ends = told(one.printed(ended("c1"), 0), one.printed(ended("c2"), 0))
    assert [end.tool_status for end in ends] == [ToolStatus.OK, ToolStatus.DENIED]


def test_a_call_that_nobody_ended_ends_with_the_run() -> None:
    one = CallMatcher("p")
    told(one.printed(started("c1"), 0), one.passed(seen("g1"), 0))
    (end,) = told(one.finish())
    assert (end.tool_status, end.call) == (ToolStatus.CANCELLED, "c1")


@pytest.mark.parametrize("gateway", ["tells", "is late", "never tells"])
def test_what_is_printed_after_a_call_comes_after_its_end(gateway: str) -> None:
    one = CallMatcher("p")
    words = AgentEvent(kind=AgentEventKind.MESSAGE, provider="p", text="So much for that.")
    events = told(one.printed(started("c1"), 0), one.printed(ended("c1"), 0), one.printed(words, 0))
    assert [event.tool_status for event in events] == [ToolStatus.STARTED]
    if gateway == "tells":
        events += told(one.passed(seen("g1"), 0), one.passed(seen("g1", "ok"), 0))
    events += told(one.finish()) if gateway == "never tells" else told(one.overdue(PATIENCE))
    assert [(event.kind, event.tool_status) for event in events[1:]] == [
        (AgentEventKind.TOOL, ToolStatus.OK),
        (AgentEventKind.MESSAGE, None),
    ]


def test_calls_that_the_gateway_never_saw_do_not_wait_one_after_the_other() -> None:
    one = CallMatcher("p")
    told(*(one.printed(started(f"c{n}"), 0) for n in range(3)), *(one.printed(ended(f"c{n}"), 0) for n in range(3)))
    ends = told(one.overdue(PATIENCE), one.overdue(PATIENCE), one.overdue(PATIENCE))
    assert [end.call for end in ends] == ["c0", "c1", "c2"]


def test_the_time_of_a_tool_that_is_not_ours_is_between_its_lines() -> None:
    one = CallMatcher("p")
    start, end = told(one.printed(started("b1", "Bash", server=""), 0), one.printed(ended("b1", "Bash", server=""), 0))
    assert start.tool_duration_ms is None
    assert (end.tool_duration_ms, end.decision) == (2500.0, "")


def test_a_large_call_is_not_told_as_a_small_one_of_the_same_tool() -> None:
    one = CallMatcher("p")
    large = {"text": "x" * 300_000}
    told(one.printed(started("c1", args=large), 0), one.printed(started("c2", args={"p": "small"}), 0))
    told(
        one.passed(replace(seen("g2", "denied"), arguments={"p": "small"}), 0),
        one.passed(replace(seen("g1", "ok"), arguments=None, arguments_size=300_013), 0),
    )
    ends = told(one.printed(ended("c1"), 0), one.printed(ended("c2"), 0))
    assert [(end.call, end.tool_status) for end in ends] == [("c1", ToolStatus.OK), ("c2", ToolStatus.DENIED)]


def test_a_call_with_other_arguments_is_another_call() -> None:
    one = CallMatcher("p")
    told(one.printed(started("c1", args={"p": 1}), 0), one.passed(seen("g1", "denied", args={"p": 2}), 0))
    rest = told(one.printed(ended("c1"), 0), one.finish())
    over = {(event.call, event.tool_status) for event in rest if event.tool_status is not ToolStatus.STARTED}
    assert over == {("c1", ToolStatus.OK), ("g1", ToolStatus.DENIED)}


def test_masked_arguments_are_those_that_the_program_printed() -> None:
    one = CallMatcher("p")
    told(one.printed(started("c1", args={"key": "s3cret-s3cret", "wait_for_previous": True}), 0))
    told(one.passed(seen("g1", "ok", args={"key": HIDDEN}), 0))
    (end,) = told(one.printed(ended("c1"), 0), one.finish())
    assert (end.call, end.decision, end.tool_args) == ("c1", "allow", {"key": HIDDEN})


@settings(max_examples=300)
@given(st.data(), st.integers(1, 4), st.sampled_from(["", MARK]))
def test_however_the_words_are_mixed_each_call_starts_once_and_ends_once_and_no_line_is_lost(
    data: st.DataObject, count: int, mark: str
) -> None:
    one = CallMatcher("p", mark=mark)
    ways: list[list[Any]] = []
    lines = 0
    for n in range(count):
        args = {"n": data.draw(st.integers(0, 1))}
        meta = {MARK: f"c{n}"}
        prints, passes = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        if prints:
            ways.append([(one.printed, started(f"c{n}", args=args)), (one.printed, ended(f"c{n}"))])
            lines += 2
        if passes:
            ways.append(
                [
                    (one.passed, seen(f"g{n}", args=args, meta=meta)),
                    (one.passed, seen(f"g{n}", "ok", args=args, meta=meta)),
                ]
            )
    events, now = [], 0.0
    while any(ways):
        way = data.draw(st.sampled_from([way for way in ways if way]))
        take, word = way.pop(0)
        now += data.draw(st.sampled_from([0.0, 0.1, PATIENCE * 2]))
        events += told(one.overdue(now), take(word, now))
    events += told(one.finish())
    by_call: dict[str, list[ToolStatus | None]] = {}
    for event in events:
        if event.kind is AgentEventKind.TOOL:
            by_call.setdefault(event.call, []).append(event.tool_status)
    for statuses in by_call.values():
        assert len(statuses) == 2
        assert statuses[0] is ToolStatus.STARTED
        assert statuses[1] is not ToolStatus.STARTED
    assert sum(event.raw is not None for event in events) == lines
    if mark:
        assert len(by_call) <= 2 * count


def test_a_call_of_the_programs_own_that_nobody_ended_ends_with_the_run() -> None:
    one = CallMatcher("p")
    told(one.printed(started("c1", "shell", server=""), 0), one.printed(started("c2", "shell", server=""), 0))
    told(one.printed(ended("c1", "shell", server=""), 1))
    (end,) = told(one.finish())
    assert (end.call, end.tool_name, end.tool_status, end.raw) == ("c2", "shell", ToolStatus.CANCELLED, None)


def test_what_a_tool_ran_and_failed_is_said_whatever_the_program_prints_of_it() -> None:
    failed = replace(seen("g1", "failed"), failure="Exit code 3")
    for program in (ended("c1"), replace(ended("c1"), text="")):
        one = CallMatcher("p")
        told(one.printed(started("c1"), 0), one.passed(seen("g1"), 0))
        (end,) = told(one.printed(program, 0), one.passed(failed, 0))
        assert end.tool_status is ToolStatus.ERROR
        assert end.text.splitlines() == ["Exit code 3", *program.text.splitlines()]
