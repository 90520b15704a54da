"""Two reports of a call become one: the program's lines and the gateway's notes."""

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


@pytest.fixture
def matcher() -> CallMatcher:
    return CallMatcher("p")


def emitted(*steps: Iterable[AgentEvent]) -> list[AgentEvent]:
    return [event for step in steps for event in step]


def test_two_reports_of_a_call_become_one_with_the_gateways_outcome(matcher: CallMatcher) -> None:
    matcher.names = {"files_read": ("files", "read")}
    start, end = emitted(
        matcher.printed(started("c1", args={"path": "a"}), 0),
        matcher.passed(seen("g1", args={"path": "a"}), 0),
        matcher.passed(seen("g1", "ok", args={"path": "a"}), 0),
        matcher.printed(ended("c1"), 0),
        matcher.finish(),
    )
    assert (start.tool_status, start.server, start.tool_name) == (ToolStatus.STARTED, "files", "read")
    assert (end.tool_status, end.server, end.tool_name) == (ToolStatus.OK, "files", "read")
    assert (end.tool_args, end.tool_duration_ms, end.decision, end.rule) == ({"path": "a"}, 7.5, "allow", "a rule")
    assert start.call == end.call == "c1"
    assert (start.raw, end.raw, end.text) == ({"start": "c1"}, {"end": "c1"}, "what it gave")


@pytest.mark.parametrize("gateway_first", [True, False])
def test_a_start_reads_the_same_whichever_side_is_quicker(matcher: CallMatcher, gateway_first: bool) -> None:
    matcher.names = {"files_read": ("files", "read")}
    sides = [
        lambda: matcher.printed(started("c1", args={"path": "a"}), 0),
        lambda: matcher.passed(seen("g1", args={"path": "a"}), 0),
    ]
    (start,) = emitted(*(side() for side in (reversed(sides) if gateway_first else sides)))
    assert (start.tool_args, start.decision, start.rule) == ({"path": "a"}, "", "")
    (end,) = emitted(matcher.finish())
    assert (end.tool_status, end.decision, end.rule) == (ToolStatus.CANCELLED, "allow", "a rule")


def test_the_end_waits_for_the_gateways_word_and_not_for_ever(matcher: CallMatcher) -> None:
    assert len(emitted(matcher.printed(started("c1"), 0), matcher.printed(ended("c1"), 5.0))) == 1
    assert matcher.next_due() == 5.0 + PATIENCE
    assert emitted(matcher.overdue(5.0)) == []
    (end,) = emitted(matcher.overdue(5.0 + PATIENCE))
    assert (end.tool_status, end.decision, end.tool_name) == (ToolStatus.OK, "", "files_read")
    assert matcher.next_due() is None


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
def test_a_call_that_the_program_never_prints_is_emitted(
    matcher: CallMatcher, outcome: str, status: ToolStatus
) -> None:
    assert emitted(matcher.passed(seen("g1", outcome, args={"n": 1}), 0)) == []
    start, end = emitted(matcher.overdue(PATIENCE))
    assert (start.tool_status, end.tool_status) == (ToolStatus.STARTED, status)
    assert (end.tool_args, end.tool_duration_ms, start.call) == ({"n": 1}, 7.5, end.call)


def test_a_late_line_of_an_emitted_call_is_kept_as_raw(matcher: CallMatcher) -> None:
    events = emitted(
        matcher.printed(started("c1"), 0),
        matcher.passed(seen("g1"), 0),
        matcher.passed(seen("g1", "ok"), 0),
        matcher.overdue(PATIENCE),
        matcher.printed(ended("c1"), 9),
        matcher.finish(),
    )
    assert [event.kind for event in events] == [AgentEventKind.TOOL, AgentEventKind.TOOL, AgentEventKind.RAW]
    assert events[-1].raw == {"end": "c1"}


def test_calls_of_one_tool_are_matched_by_arguments_and_then_by_order(matcher: CallMatcher) -> None:
    emitted(*(matcher.printed(started(f"c{n}", args={"n": n}), 0) for n in (1, 2, 3)))
    emitted(*(matcher.passed(seen(f"g{n}", "ok" if n < 3 else "denied", args={"n": n}), 0) for n in (3, 1, 2)))
    ends = emitted(*(matcher.printed(ended(f"c{n}"), 0) for n in (1, 2, 3)))
    assert [(end.call, end.tool_args, end.tool_status) for end in ends] == [
        ("c1", {"n": 1}, ToolStatus.OK),
        ("c2", {"n": 2}, ToolStatus.OK),
        ("c3", {"n": 3}, ToolStatus.DENIED),
    ]


def test_a_mark_distinguishes_equal_calls() -> None:
    matcher = CallMatcher("p", mark=MARK)
    emitted(matcher.printed(started("c1"), 0), matcher.printed(started("c2"), 0))
    emitted(
        matcher.passed(seen("g2", "denied", meta={MARK: "c2"}), 0),
        matcher.passed(seen("g1", "ok", meta={MARK: "c1"}), 0),
    )
    ends = emitted(matcher.printed(ended("c1"), 0), matcher.printed(ended("c2"), 0))
    assert [end.tool_status for end in ends] == [ToolStatus.OK, ToolStatus.DENIED]


def test_an_open_call_ends_with_the_run(matcher: CallMatcher) -> None:
    emitted(matcher.printed(started("c1"), 0), matcher.passed(seen("g1"), 0))
    (end,) = emitted(matcher.finish())
    assert (end.tool_status, end.call) == (ToolStatus.CANCELLED, "c1")


@pytest.mark.parametrize("gateway", ["tells", "is late", "never tells"])
def test_what_is_printed_after_a_call_comes_after_its_end(matcher: CallMatcher, gateway: str) -> None:
    words = AgentEvent(kind=AgentEventKind.MESSAGE, provider="p", text="So much for that.")
    events = emitted(matcher.printed(started("c1"), 0), matcher.printed(ended("c1"), 0), matcher.printed(words, 0))
    assert [event.tool_status for event in events] == [ToolStatus.STARTED]
    if gateway == "tells":
        events += emitted(matcher.passed(seen("g1"), 0), matcher.passed(seen("g1", "ok"), 0))
    events += emitted(matcher.finish()) if gateway == "never tells" else emitted(matcher.overdue(PATIENCE))
    assert [(event.kind, event.tool_status) for event in events[1:]] == [
        (AgentEventKind.TOOL, ToolStatus.OK),
        (AgentEventKind.MESSAGE, None),
    ]


def test_calls_that_the_gateway_never_saw_do_not_wait_one_after_the_other(matcher: CallMatcher) -> None:
    emitted(
        *(matcher.printed(started(f"c{n}"), 0) for n in range(3)),
        *(matcher.printed(ended(f"c{n}"), 0) for n in range(3)),
    )
    ends = emitted(matcher.overdue(PATIENCE), matcher.overdue(PATIENCE), matcher.overdue(PATIENCE))
    assert [end.call for end in ends] == ["c0", "c1", "c2"]


def test_the_time_of_a_tool_that_is_not_ours_is_between_its_lines(matcher: CallMatcher) -> None:
    start, end = emitted(
        matcher.printed(started("b1", "Bash", server=""), 0), matcher.printed(ended("b1", "Bash", server=""), 0)
    )
    assert start.tool_duration_ms is None
    assert (end.tool_duration_ms, end.decision) == (2500.0, "")


def test_a_large_call_is_not_matched_with_a_small_one(matcher: CallMatcher) -> None:
    large = {"text": "x" * 300_000}
    emitted(matcher.printed(started("c1", args=large), 0), matcher.printed(started("c2", args={"p": "small"}), 0))
    emitted(
        matcher.passed(replace(seen("g2", "denied"), arguments={"p": "small"}), 0),
        matcher.passed(replace(seen("g1", "ok"), arguments=None, arguments_size=300_013), 0),
    )
    ends = emitted(matcher.printed(ended("c1"), 0), matcher.printed(ended("c2"), 0))
    assert [(end.call, end.tool_status) for end in ends] == [("c1", ToolStatus.OK), ("c2", ToolStatus.DENIED)]


def test_a_call_with_other_arguments_is_another_call(matcher: CallMatcher) -> None:
    emitted(matcher.printed(started("c1", args={"p": 1}), 0), matcher.passed(seen("g1", "denied", args={"p": 2}), 0))
    rest = emitted(matcher.printed(ended("c1"), 0), matcher.finish())
    over = {(event.call, event.tool_status) for event in rest if event.tool_status is not ToolStatus.STARTED}
    assert over == {("c1", ToolStatus.OK), ("g1", ToolStatus.DENIED)}


def test_masked_arguments_are_those_that_the_program_printed(matcher: CallMatcher) -> None:
    emitted(matcher.printed(started("c1", args={"key": "s3cret-s3cret", "wait_for_previous": True}), 0))
    emitted(matcher.passed(seen("g1", "ok", args={"key": HIDDEN}), 0))
    (end,) = emitted(matcher.printed(ended("c1"), 0), matcher.finish())
    assert (end.call, end.decision, end.tool_args) == ("c1", "allow", {"key": HIDDEN})


@settings(max_examples=300)
@given(st.data(), st.integers(1, 4), st.sampled_from(["", MARK]))
def test_in_any_order_each_call_starts_and_ends_once_and_no_line_is_lost(
    data: st.DataObject, count: int, mark: str
) -> None:
    matcher = CallMatcher("p", mark=mark)
    ways: list[list[Any]] = []
    lines = 0
    for n in range(count):
        args = {"n": data.draw(st.integers(0, 1))}
        meta = {MARK: f"c{n}"}
        prints, passes = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        if prints:
            ways.append([(matcher.printed, started(f"c{n}", args=args)), (matcher.printed, ended(f"c{n}"))])
            lines += 2
        if passes:
            ways.append(
                [
                    (matcher.passed, seen(f"g{n}", args=args, meta=meta)),
                    (matcher.passed, seen(f"g{n}", "ok", args=args, meta=meta)),
                ]
            )
    events, now = [], 0.0
    while any(ways):
        way = data.draw(st.sampled_from([way for way in ways if way]))
        take, word = way.pop(0)
        now += data.draw(st.sampled_from([0.0, 0.1, PATIENCE * 2]))
        events += emitted(matcher.overdue(now), take(word, now))
    events += emitted(matcher.finish())
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


def test_an_open_call_of_a_built_in_tool_ends_with_the_run(matcher: CallMatcher) -> None:
    emitted(
        matcher.printed(started("c1", "shell", server=""), 0), matcher.printed(started("c2", "shell", server=""), 0)
    )
    emitted(matcher.printed(ended("c1", "shell", server=""), 1))
    (end,) = emitted(matcher.finish())
    assert (end.call, end.tool_name, end.tool_status, end.raw) == ("c2", "shell", ToolStatus.CANCELLED, None)


def test_what_a_tool_ran_and_failed_is_said_whatever_the_program_prints_of_it() -> None:
    failed = replace(seen("g1", "failed"), failure="Exit code 3")
    for program in (ended("c1"), replace(ended("c1"), text="")):
        matcher = CallMatcher("p")
        emitted(matcher.printed(started("c1"), 0), matcher.passed(seen("g1"), 0))
        (end,) = emitted(matcher.printed(program, 0), matcher.passed(failed, 0))
        assert end.tool_status is ToolStatus.ERROR
        assert end.text.splitlines() == ["Exit code 3", *program.text.splitlines()]
