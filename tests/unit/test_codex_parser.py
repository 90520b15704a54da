"""What Codex prints, as events: lines as the real program printed them, and whatever else may come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from toolcrib.coding_agents.client_spec import SERVER_NAME
from toolcrib.coding_agents.known.codex import CodexParser
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

THREAD = "01a1e320-fa2d-7b21-9ae5-fb56a04abaaf"

pytestmark = pytest.mark.req("FRG-6")


def item(phase: str, **what: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": {"id": "item_1", **what}}


def mcp(phase: str, status: str, **more: Any) -> dict[str, Any]:
    call = {"server": "toolcrib", "tool": "workspace_read_file", "arguments": {"path": "a"}}
    return item(phase, type="mcp_tool_call", **{**call, "result": None, "error": None, "status": status, **more})


def command(phase: str, status: str, exit_code: int | None = None, output: str = "") -> dict[str, Any]:
    shown = {"command": "/bin/bash -lc ls", "aggregated_output": output, "exit_code": exit_code, "status": status}
    return item(phase, type="command_execution", **shown)


def read(*lines: dict[str, Any]) -> tuple[CodexParser, list[AgentEvent]]:
    reader = CodexParser()
    return reader, [event for line in lines for event in reader.parse(line)]


def statuses(events: Sequence[AgentEvent]) -> list[ToolStatus | None]:
    return [event.tool_status for event in events]


def test_a_whole_run_becomes_its_session_text_and_usage() -> None:
    usage = {"input_tokens": 303, "cached_input_tokens": 21, "output_tokens": 15, "reasoning_output_tokens": 9}
    reader, events = read(
        {"type": "thread.started", "thread_id": THREAD},
        {"type": "turn.started"},
        item("completed", type="reasoning", text="Let me see."),
        item("completed", type="agent_message", text="First words."),
        item("completed", type="agent_message", text="Last words."),
        {"type": "turn.completed", "usage": usage},
    )
    assert [event.kind for event in events] == [
        *(
            AgentEventKind.LOG,
            AgentEventKind.RAW,
            AgentEventKind.REASONING,
            AgentEventKind.MESSAGE,
            AgentEventKind.MESSAGE,
            AgentEventKind.LOG,
        )
    ]
    assert {event.role for event in events[2:5]} == {"assistant"}
    report = reader.report
    assert (report.session, report.text, report.failure) == (THREAD, "Last words.", "")
    assert (report.usage.input, report.usage.cached, report.usage.output) == (303, 21, 15)
    assert report.usage.reported == usage


def test_a_call_has_an_event_at_its_start_and_at_its_end() -> None:
    result = {"content": [{"type": "text", "text": "contents"}], "structured_content": None}
    lines = (mcp("started", "in_progress"), mcp("completed", "completed", result=result))
    _, (start, end) = read(*lines)
    assert (start.tool_status, end.tool_status) == (ToolStatus.STARTED, ToolStatus.OK)
    for event, line in zip((start, end), lines, strict=True):
        assert (event.kind, event.server, event.tool_name) == (AgentEventKind.TOOL, SERVER_NAME, "workspace_read_file")
        assert (event.tool_args, event.call, event.raw) == ({"path": "a"}, "item_1", line)
    assert end.text == "contents"


def test_our_server_has_our_name_whatever_it_was_called_in_the_run() -> None:
    _, events = read(mcp("started", "in_progress", server="toolcrib_run"))
    assert events[0].server == SERVER_NAME
    _, events = read(mcp("started", "in_progress", server="notes"))
    assert events[0].server == "notes"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (
            {"message": "tool call error: tool call failed\n\nCaused by:\n    Transport send error: …"},
            ToolStatus.UNAVAILABLE,
        ),
        ({"message": "tool call error: timed out awaiting tools/call after 3600s"}, ToolStatus.TIMEOUT),
        ({"message": "MCP tool call requires approval, but approval policy is never"}, ToolStatus.DENIED),
        ({"message": "user rejected MCP tool call"}, ToolStatus.DENIED),
        ({"message": "tool call error: boom"}, ToolStatus.ERROR),
        (None, ToolStatus.ERROR),
    ],
)
def test_a_failed_call_has_a_status_and_reason(error: dict[str, str] | None, status: ToolStatus) -> None:
    _, (_, end) = read(mcp("started", "in_progress"), mcp("completed", "failed", error=error))
    assert end.tool_status is status
    assert end.text == (error["message"] if error else "")


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"),
    [("completed", 0, ToolStatus.OK), ("failed", 2, ToolStatus.ERROR), ("declined", None, ToolStatus.DENIED)],
)
def test_a_command_of_codexs_own_is_a_tool_of_no_server(
    status: str, exit_code: int | None, expected: ToolStatus
) -> None:
    _, (start, end) = read(command("started", "in_progress"), command("completed", status, exit_code, "a\nb\n"))
    assert (start.tool_name, start.server, start.tool_args) == ("shell", "", {"command": "/bin/bash -lc ls"})
    assert (end.tool_status, end.text) == (expected, f"Exit code {exit_code}\na\nb\n" if exit_code else "a\nb\n")


def test_a_call_that_is_printed_only_at_its_end_still_has_a_start() -> None:
    line = item("completed", type="file_change", changes=[{"path": "/w/a", "kind": "add"}], status="completed")
    _, (start, end) = read(line)
    assert statuses((start, end)) == [ToolStatus.STARTED, ToolStatus.OK]
    assert (start.tool_name, start.tool_args) == ("apply_patch", {"changes": [{"path": "/w/a", "kind": "add"}]})
    assert (start.raw, end.raw) == (line, None)
    assert start.call == end.call == "item_1"


def test_a_call_is_over_once_whatever_is_printed_of_it_later() -> None:
    _, events = read(
        command("started", "in_progress"),
        command("started", "in_progress"),
        command("updated", "in_progress"),
        command("completed", "completed", 0),
        command("completed", "completed", 0),
    )
    assert statuses(events) == [ToolStatus.STARTED, None, None, ToolStatus.OK, None]
    assert [event.kind for event in events if event.tool_status is None] == [AgentEventKind.RAW] * 3


def test_the_other_tools_of_codex_are_tools_as_well() -> None:
    _, (_, search) = read(item("completed", type="web_search", query="toolcrib", action={"type": "search"}))
    assert (search.tool_name, search.tool_status) == ("web_search", ToolStatus.OK)
    assert search.tool_args == {"query": "toolcrib", "action": {"type": "search"}}
    spawn = {"tool": "spawn_agent", "prompt": "look", "receiver_thread_ids": [], "status": "failed"}
    _, (_, helper) = read(item("completed", type="collab_tool_call", **spawn))
    assert (helper.tool_name, helper.tool_status) == ("spawn_agent", ToolStatus.ERROR)


def test_plans_and_warnings_are_log_events() -> None:
    steps = [{"text": "look", "completed": True}, {"text": "write", "completed": False}]
    _, (plan, warning) = read(
        item("started", type="todo_list", items=steps),
        item("completed", type="error", message="Model metadata for `gpt-4.1` not found."),
    )
    assert (plan.kind, plan.text) == (AgentEventKind.LOG, "[x] look\n[ ] write")
    assert (warning.kind, warning.text) == (AgentEventKind.LOG, "Model metadata for `gpt-4.1` not found.")


def test_a_failed_turn_is_a_failure_unless_it_recovers() -> None:
    trouble = {"type": "error", "message": "Reconnecting... 1/5"}
    reader, _ = read(trouble, {"type": "turn.failed", "error": {"message": "unexpected status 401"}})
    assert reader.report.failure == "unexpected status 401"
    reader, _ = read(trouble, {"type": "turn.completed", "usage": {}})
    assert reader.report.failure == ""


@pytest.mark.req("FRG-10")
def test_missing_tools_are_read_from_standard_error() -> None:
    types = "Transport [codex_rmcp_client::A<rmcp::transport::worker::W<x::Y>>]"
    reader = CodexParser()
    (event,) = reader.parse_stderr(
        "Error: thread/start failed: required MCP servers failed to initialize: toolcrib: handshaking with MCP server "
        f"failed: Send message error {types} error: unexpected server response: HTTP 401: {{}}, when send initialize "
        "request: once more (code -32603)"
    )
    assert (event.kind, event.role) == (AgentEventKind.LOG, "system")
    assert reader.report.mcp_failure == (
        "handshaking with MCP server failed: Send message error Transport error: "
        "unexpected server response: HTTP 401: {}"
    )
    assert reader.report.failure.startswith("Error: thread/start failed")


def test_another_missing_server_is_not_toolcribs_failure() -> None:
    reader = CodexParser()
    reader.parse_stderr("Error: required MCP servers failed to initialize: notes: timed out after 3s")
    assert reader.report.mcp_failure == ""
    assert "notes" in reader.report.failure


def test_a_warning_on_standard_error_does_not_fail_a_successful_run() -> None:
    reader = CodexParser()
    line = "2026-11-16T07:00:15.1Z ERROR codex_api::endpoint: failed to connect stage=Unknown"
    (event,) = reader.parse_stderr(line)
    assert (event.kind, event.text, event.raw) == (AgentEventKind.LOG, line, line)
    assert reader.report.failure == "failed to connect stage=Unknown"
    reader.parse({"type": "turn.completed", "usage": {}})
    reader.parse_stderr(line)
    assert reader.report.failure == reader.report.mcp_failure == ""


@pytest.mark.req("FRG-7")
def test_an_invalid_argument_is_reported_without_the_lines_that_follow() -> None:
    reader = CodexParser()
    for line in ("error: unexpected argument '--nonsense' found", "", "  tip: to pass it", "Usage: codex exec"):
        reader.parse_stderr(line)
    assert reader.report.failure == "error: unexpected argument '--nonsense' found"


@pytest.mark.req("FRG-7")
def test_of_a_program_that_breaks_down_the_last_lines_are_the_failure() -> None:
    reader = CodexParser()
    for line in ("first", "thread 'main' panicked at a.rs:1:2:", "\x1b[31mno such thing\x1b[0m", "note: " + "x" * 900):
        reader.parse_stderr(line)
    panicked, what, note = reader.report.failure.split("\n")
    assert (panicked, what) == ("thread 'main' panicked at a.rs:1:2:", "no such thing")
    assert len(note) < 500


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ('{"error": {"type": "invalid_request_error", "message": "no such model"}}', "no such model (%s)"),
        ('{"type": "error", "error": {"type": "%s", "message": "deep"}, "request_id": "r"}', "deep (%s)"),
        ('{"error": {"message": "{\\"error\\": {\\"message\\": \\"twice\\"}}"}}', "twice"),
        ('unexpected status 404: {"error": {"message": "gone"}}, url: http://x', "unexpected status 404: gone"),
        ('{"error": "nothing more"}', '{"error": "nothing more"}'),
        ('{"error": {"message": ', '{"error": {"message": '),
        ("Quota exceeded.", "Quota exceeded."),
    ],
)
def test_a_providers_error_is_shown_without_its_json(message: str, failure: str) -> None:
    kind = "invalid_request_error"
    line = {"type": "turn.failed", "error": {"message": message.replace("%s", kind)}}
    reader, (event,) = read(line)
    assert (reader.report.failure, reader.report.remedy) == (failure.replace("%s", kind), "")
    assert (event.text, event.raw) == (reader.report.failure, line)


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    "message",
    [
        "unexpected status 401 Unauthorized: Missing bearer or basic authentication in header, url: http://x",
        "Your refresh token was already used. Please log out and sign in again.",
    ],
)
def test_a_missing_login_has_a_remedy(message: str) -> None:
    reader, _ = read({"type": "turn.failed", "error": {"message": message}})
    assert "`codex login`" in reader.report.remedy
    reader.parse({"type": "turn.completed", "usage": {}})
    assert reader.report.remedy == ""


@pytest.mark.req("FRG-10")
def test_a_model_that_does_not_answer_is_the_last_trouble_until_it_does() -> None:
    waiting = "Reconnecting... waiting for network (Connection failed: error sending request)"
    reader, _ = read({"type": "error", "message": waiting}, item("completed", type="error", message="Falling back."))
    assert reader.report.last_trouble == waiting
    reader.parse(item("completed", type="agent_message", text="Here I am."))
    assert reader.report.last_trouble == ""


REJECTED = (
    'exec_command failed: CreateProcess { message: "Rejected(\\"`/bin/bash -lc \'rm -rf \\\\\\"a b\\\\\\"\'` '
    'rejected: rm -f style commands are not permitted\\")" }'
)


@pytest.mark.parametrize(
    ("printed", "tool", "server", "arguments", "status"),
    [
        ("patch rejected: writing is blocked by read-only sandbox", "apply_patch", "", None, ToolStatus.DENIED),
        ("unsupported custom tool call: apply_patch", "apply_patch", "", None, ToolStatus.UNKNOWN),
        ("unsupported call: spawn_agent", "spawn_agent", "", None, ToolStatus.UNKNOWN),
        ("unsupported call: mcp__toolcribdrop_table", "drop_table", "toolcrib", None, ToolStatus.UNKNOWN),
        ("unsupported call: mcp__toolcrib__drop_table", "drop_table", "toolcrib", None, ToolStatus.UNKNOWN),
        ("unsupported call: mcp__toolcrib_rundrop_table", "drop_table", "toolcrib", None, ToolStatus.UNKNOWN),
        ("unsupported call: mcp__notesadd", "mcp__notesadd", "", None, ToolStatus.UNKNOWN),
        ("approval policy is Never; reject command — you cannot ask", "shell", "", None, ToolStatus.DENIED),
        (REJECTED, "shell", "", {"command": "/bin/bash -lc 'rm -rf \"a b\"'"}, ToolStatus.DENIED),
        (REJECTED.replace("a b", "a \\u{1b} b"), "shell", "", None, ToolStatus.DENIED),
    ],
)
def test_a_call_that_codex_refuses_is_an_event(
    printed: str, tool: str, server: str, arguments: dict[str, Any] | None, status: ToolStatus
) -> None:
    reader = CodexParser()
    line = f"2026-11-16T07:59:19.362875Z ERROR codex_core::tools::router: error={printed}"
    start, end = reader.parse_stderr(line)
    assert statuses((start, end)) == [ToolStatus.STARTED, status]
    for event in (start, end):
        assert (event.kind, event.tool_name, event.server, event.tool_args) == (
            AgentEventKind.TOOL,
            tool,
            server,
            arguments,
        )
    assert (start.raw, end.raw, start.call) == (line, None, end.call)
    assert end.text
    assert reader.report.failure == ""
    assert reader.parse_stderr(line)[0].call != end.call


def test_a_call_of_which_not_even_the_tool_is_known_stays_a_line() -> None:
    line = "2026-11-16T07:59:19.36Z ERROR codex_core::tools::router: error=failed to parse function arguments: x"
    (event,) = CodexParser().parse_stderr(line)
    assert (event.kind, event.raw) == (AgentEventKind.LOG, line)
