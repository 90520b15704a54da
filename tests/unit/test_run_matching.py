"""The program's output and the gateway's events about a call become one report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.coding_agents.call_matching import PATIENCE, CallMatcher
from toolcrib.coding_agents.client_spec import SERVER_NAME
from toolcrib.config.masking import HIDDEN
from toolcrib.daemon_client.lease import CallSeen
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6")

MARK = "program/id"


def started(call: str, name: str = "files_read", args: Any = None, server: str = SERVER_NAME) -> AgentEvent:
    """The program prints the start of a call."""
    given = {"tool_args": args or {}, "tool_status": ToolStatus.STARTED, "raw": {"start": call}, "time": 10.0}
    return AgentEvent(kind=AgentEventKind.TOOL, provider="p", tool_name=name, server=server, call=call, **given)


def ended(call: str, name: str = "files_read", server: str = SERVER_NAME) -> AgentEvent:
    """The program prints the end of a call."""
    given = {"tool_status": ToolStatus.OK, "raw": {"end": call}, "text": "the result", "time": 12.5}
    return AgentEvent(kind=AgentEventKind.TOOL, provider="p", tool_name=name, server=server, call=call, **given)


def seen(call: str, outcome: str = "", *, args: Any = None, meta: dict[str, Any] | None = None) -> CallSeen:
    """The gateway reports a call; with an outcome, its end."""
    return CallSeen(
        call=call,
        name="files_read",
        tool="read",
        server="" if outcome == "unknown" else "files",
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


class Calls:
    """A matcher that takes reports at time 0."""

    def __init__(self, mark: str = "") -> None:
        self.matcher = CallMatcher("p", mark=mark)

    def take(self, *reports: AgentEvent | CallSeen) -> list[AgentEvent]:
        events: list[AgentEvent] = []
        for report in reports:
            events += (
                self.matcher.passed(report, 0) if isinstance(report, CallSeen) else self.matcher.printed(report, 0)
            )
        return events

    def overdue(self, now: float = PATIENCE) -> list[AgentEvent]:
        return list(self.matcher.overdue(now))

    def finish(self) -> list[AgentEvent]:
        return list(self.matcher.finish())


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_two_reports_of_a_call_become_one_with_the_gateways_outcome(calls: Calls):
    calls.matcher.names = {"files_read": ("files", "read")}
    args = {"path": "a"}
    start, end = calls.take(started("c1", args=args), seen("g1", args=args), seen("g1", "ok", args=args), ended("c1"))
    assert calls.finish() == []
    assert (start.tool_status, start.server, start.tool_name) == (ToolStatus.STARTED, "files", "read")
    assert (end.tool_status, end.server, end.tool_name) == (ToolStatus.OK, "files", "read")
    assert (end.tool_args, end.tool_duration_ms, end.decision, end.rule) == (args, 7.5, "allow", "a rule")
    assert start.call == end.call == "c1"
    assert (start.raw, end.raw, end.text) == ({"start": "c1"}, {"end": "c1"}, "the result")


@pytest.mark.parametrize("gateway_first", [True, False])
def test_a_start_is_the_same_in_either_order_and_ends_with_the_run(calls: Calls, gateway_first: bool):
    reports = [started("c1", args={"path": "a"}), seen("g1", args={"path": "a"})]
    (start,) = calls.take(*(reversed(reports) if gateway_first else reports))
    assert (start.tool_args, start.decision, start.rule) == ({"path": "a"}, "", "")
    (end,) = calls.finish()
    assert (end.call, end.tool_status, end.decision, end.rule) == ("c1", ToolStatus.CANCELLED, "allow", "a rule")


def test_the_end_waits_for_the_gateway_for_a_limited_time(calls: Calls):
    assert len(calls.take(started("c1"))) == 1
    assert list(calls.matcher.printed(ended("c1"), 5.0)) == []
    assert calls.matcher.next_due() == 5.0 + PATIENCE
    assert calls.overdue(5.0) == []
    (end,) = calls.overdue(5.0 + PATIENCE)
    assert (end.tool_status, end.decision, end.tool_name) == (ToolStatus.OK, "", "files_read")
    assert calls.matcher.next_due() is None


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
def test_a_call_that_the_program_never_prints_is_emitted(calls: Calls, outcome: str, status: ToolStatus):
    assert calls.take(seen("g1", outcome, args={"n": 1})) == []
    start, end = calls.overdue()
    assert (start.tool_status, end.tool_status) == (ToolStatus.STARTED, status)
    assert (end.tool_args, end.tool_duration_ms, start.call) == ({"n": 1}, 7.5, end.call)


def test_a_late_line_of_an_emitted_call_is_kept_as_raw(calls: Calls):
    events = [*calls.take(started("c1"), seen("g1"), seen("g1", "ok")), *calls.overdue(), *calls.take(ended("c1"))]
    assert [event.kind for event in events] == [AgentEventKind.TOOL, AgentEventKind.TOOL, AgentEventKind.RAW]
    assert events[-1].raw == {"end": "c1"}
    assert calls.finish() == []


def statuses(events: list[AgentEvent]) -> dict[str, ToolStatus | None]:
    return {event.call: event.tool_status for event in events if event.tool_status is not ToolStatus.STARTED}


def test_calls_are_matched_by_arguments_size_mark_and_order():
    calls = Calls()
    calls.take(*(started(f"c{n}", args={"n": n}) for n in (1, 2, 3)))
    calls.take(*(seen(f"g{n}", "ok" if n < 3 else "denied", args={"n": n}) for n in (3, 1, 2)))
    ends = calls.take(*(ended(f"c{n}") for n in (1, 2, 3)))
    assert statuses(ends) == {"c1": ToolStatus.OK, "c2": ToolStatus.OK, "c3": ToolStatus.DENIED}
    assert [end.tool_args for end in ends] == [{"n": 1}, {"n": 2}, {"n": 3}]
    expected = {"c1": ToolStatus.OK, "c2": ToolStatus.DENIED}
    marked = Calls(MARK)
    marked.take(started("c1"), started("c2"))
    marked.take(seen("g2", "denied", meta={MARK: "c2"}), seen("g1", "ok", meta={MARK: "c1"}))
    assert statuses(marked.take(ended("c1"), ended("c2"))) == expected
    sized = Calls()
    sized.take(started("c1", args={"text": "x" * 300_000}), started("c2", args={"p": "small"}))
    large = replace(seen("g1", "ok"), arguments=None, arguments_size=300_013)
    sized.take(seen("g2", "denied", args={"p": "small"}), large)
    assert statuses(sized.take(ended("c1"), ended("c2"))) == expected
    other = Calls()
    other.take(started("c1", args={"p": 1}), seen("g1", "denied", args={"p": 2}))
    rest = other.take(ended("c1")) + other.finish()
    assert statuses(rest) == {"c1": ToolStatus.OK, "g1": ToolStatus.DENIED}


@pytest.mark.parametrize("gateway", ["reports", "is late", "never reports"])
def test_output_after_a_call_comes_after_its_end(calls: Calls, gateway: str):
    words = AgentEvent(kind=AgentEventKind.MESSAGE, provider="p", text="So much for that.")
    (start,) = calls.take(started("c1"), ended("c1"), words)
    assert start.tool_status is ToolStatus.STARTED
    events = calls.take(seen("g1"), seen("g1", "ok")) if gateway == "reports" else []
    events += calls.finish() if gateway == "never reports" else calls.overdue()
    assert [(event.kind, event.tool_status) for event in events] == [
        (AgentEventKind.TOOL, ToolStatus.OK),
        (AgentEventKind.MESSAGE, None),
    ]


def test_calls_that_the_gateway_never_saw_wait_at_the_same_time(calls: Calls):
    calls.take(*(started(f"c{n}") for n in range(3)), *(ended(f"c{n}") for n in range(3)))
    ends = calls.overdue() + calls.overdue() + calls.overdue()
    assert [end.call for end in ends] == ["c0", "c1", "c2"]


def test_a_built_in_tool_has_the_time_between_its_lines_and_ends_with_the_run(calls: Calls):
    start, end = calls.take(started("c1", "shell", server=""), ended("c1", "shell", server=""))
    assert start.tool_duration_ms is None
    assert (end.tool_duration_ms, end.decision) == (2500.0, "")
    calls.take(started("c2", "shell", server=""))
    (end,) = calls.finish()
    assert (end.call, end.tool_name, end.tool_status, end.raw) == ("c2", "shell", ToolStatus.CANCELLED, None)


def test_masked_arguments_match_the_printed_ones(calls: Calls):
    calls.take(started("c1", args={"key": "s3cret-s3cret", "wait_for_previous": True}))
    calls.take(seen("g1", "ok", args={"key": HIDDEN}))
    (end,) = calls.take(ended("c1")) + calls.finish()
    assert (end.call, end.decision, end.tool_args) == ("c1", "allow", {"key": HIDDEN})


def test_the_failure_of_a_tools_command_is_always_reported():
    for program in (ended("c1"), replace(ended("c1"), text="")):
        calls = Calls()
        calls.take(started("c1"), seen("g1"))
        (end,) = calls.take(program, replace(seen("g1", "failed"), failure="Exit code 3"))
        assert end.tool_status is ToolStatus.ERROR
        assert end.text.splitlines() == ["Exit code 3", *program.text.splitlines()]


@given(st.data(), st.integers(1, 4), st.sampled_from(["", MARK]))
def test_in_any_order_each_call_starts_and_ends_once_and_no_line_is_lost(data: st.DataObject, count: int, mark: str):
    matcher = CallMatcher("p", mark=mark)
    queues: list[list[Any]] = []
    for n in range(count):
        given = {"args": {"n": data.draw(st.integers(0, 1))}, "meta": {MARK: f"c{n}"}}
        prints, passes = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        if prints:
            start = started(f"c{n}", args=given["args"])
            queues.append([(matcher.printed, start), (matcher.printed, ended(f"c{n}"))])
        if passes:
            gateway = [seen(f"g{n}", **given), seen(f"g{n}", "ok", **given)]
            queues.append([(matcher.passed, report) for report in gateway])
    lines = sum(take == matcher.printed for queue in queues for take, _ in queue)
    events, now = [], 0.0
    while any(queues):
        take, report = data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0)
        now += data.draw(st.sampled_from([0.0, 0.1, PATIENCE * 2]))
        events += [*matcher.overdue(now), *take(report, now)]
    events += matcher.finish()
    by_call: dict[str, list[bool]] = {}
    for event in events:
        if event.kind is AgentEventKind.TOOL:
            by_call.setdefault(event.call, []).append(event.tool_status is ToolStatus.STARTED)
    assert all(found == [True, False] for found in by_call.values())
    assert sum(event.raw is not None for event in events) == lines
    if mark:
        assert len(by_call) <= 2 * count


@pytest.mark.parametrize("name", ["crib_call", "mcp_crib_call"])
def test_a_call_that_a_search_led_to_is_the_call_that_the_gateway_saw(name: str) -> None:
    given = {"tool": "files_read", "arguments": {"path": "a"}}
    calls = Calls()
    events = calls.take(
        started("1", name, given),
        seen("g1", args={"path": "a"}),
        seen("g1", "ok", args={"path": "a"}),
        ended("1", name),
    )
    assert [(one.server, one.tool_name, one.tool_args, one.decision) for one in events[1:]] == [
        ("files", "read", {"path": "a"}, "allow")
    ]
    assert calls.finish() == []
