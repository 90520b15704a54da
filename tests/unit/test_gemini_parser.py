"""What Gemini CLI prints → events. The lines are as it printed them, shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcrib.coding_agents.known.gemini import GeminiParser
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6")

SESSION = "11111111-2222-3333-4444-555555555555"
STATS = {
    "total_tokens": 6540,
    "input_tokens": 6442,
    "output_tokens": 92,
    "cached": 6000,
    "input": 442,
    "duration_ms": 188,
    "tool_calls": 3,
    "models": {"gemini-2.5-flash": {"total_tokens": 6540}},
}


def piece(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, "delta": True}


def use(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "tool_name": name, "tool_id": call, "parameters": arguments}


def result_of(call: str, output: str = "", *, error: str = "", message: str = "") -> dict[str, Any]:
    failed = {"error": {"type": error, "message": message or output}} if error else {}
    return {
        "type": "tool_result",
        "tool_id": call,
        "status": "error" if error else "success",
        "output": output,
        **failed,
    }


def ended(status: str = "success", **more: Any) -> dict[str, Any]:
    return {"type": "result", "status": status, "stats": STATS, **more}


def read(*lines: dict[str, Any]) -> tuple[list[AgentEvent], GeminiParser]:
    reader = GeminiParser()
    return [event for line in lines for event in reader.parse(line)], reader


def test_pieces_become_one_message_as_soon_as_something_else_is_printed() -> None:
    events, reader = read(piece("Firs"), piece("t I "), piece("look."), use("c1", "glob"), piece("Do"), piece("ne."))
    assert [event.kind for event in events] == [
        *[AgentEventKind.RAW] * 3,
        AgentEventKind.MESSAGE,
        AgentEventKind.TOOL,
        *[AgentEventKind.RAW] * 2,
    ]
    assert (events[3].role, events[3].text) == ("assistant", "First I look.")
    # It may be killed in the middle of a word.
    assert reader.report.text == "Done."
    (text_shown, over) = reader.parse(ended())
    assert (text_shown.kind, text_shown.text, over.kind) == (AgentEventKind.MESSAGE, "Done.", AgentEventKind.LOG)


def test_every_line_is_kept_whole_in_the_first_event_that_it_became() -> None:
    lines = (piece("a"), use("c1", "glob"), result_of("c1"), {"type": "news"}, ended())
    events, _ = read(*lines)
    assert [event.raw for event in events if event.raw is not None] == list(lines)


@pytest.mark.parametrize(
    ("printed", "name", "server"),
    [
        ("mcp_toolcrib_workspace_read_file", "workspace_read_file", "toolcrib"),
        ("mcp_other_search_all", "search_all", "other"),
        ("read_file", "read_file", ""),
        ("mcp_", "mcp_", ""),
    ],
)
def test_start_and_end_of_a_call_have_the_servers_name_for_the_tool(printed: str, name: str, server: str) -> None:
    events, _ = read(use("c1", printed, path="a"), result_of("c1", "the text"))
    assert [(e.kind, e.tool_name, e.server, e.call, e.tool_args) for e in events] == [
        (AgentEventKind.TOOL, name, server, "c1", {"path": "a"})
    ] * 2
    assert [event.tool_status for event in events] == [ToolStatus.STARTED, ToolStatus.OK]
    assert events[1].text == "the text"


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        ("policy_violation", "Tool execution denied by policy.", ToolStatus.DENIED),
        ("invalid_tool_params", 'Path not in workspace: Attempted path "/x"', ToolStatus.DENIED),
        ("invalid_tool_params", "params must have required property 'b'", ToolStatus.INVALID),
        ("tool_not_registered", 'Tool "write_file" not found.', ToolStatus.UNKNOWN),
        ("mcp_tool_error", '{"error":{"message":"fetch failed","isError":true}}', ToolStatus.UNAVAILABLE),
        ("mcp_tool_error", "MCP error -32001: Request timed out", ToolStatus.TIMEOUT),
        ("mcp_tool_error", "MCP tool 'fail' reported tool error", ToolStatus.ERROR),
        ("file_not_found", "File not found.", ToolStatus.ERROR),
    ],
)
def test_a_failed_call_has_a_status(error: str, message: str, status: ToolStatus) -> None:
    events, _ = read(use("c1", "some_tool"), result_of("c1", "Error.", error=error, message=message))
    assert (events[1].tool_status, events[1].text) == (status, message)


def test_a_call_starts_once_and_ends_once() -> None:
    events, _ = read(use("c1", "glob"), use("c1", "glob"), result_of("c1"), result_of("c1"), result_of("c2"))
    assert [event.kind for event in events] == [
        AgentEventKind.TOOL,
        AgentEventKind.RAW,
        AgentEventKind.TOOL,
        AgentEventKind.RAW,
        AgentEventKind.RAW,
    ]


def test_the_report_has_session_model_and_tokens() -> None:
    _, reader = read({"type": "init", "session_id": SESSION, "model": "gemini-2.5-flash"}, ended())
    report = reader.report
    assert (report.session, report.model, report.failure) == (SESSION, "gemini-2.5-flash", "")
    assert (report.usage.input, report.usage.output, report.usage.cached, report.usage.reported) == (
        6442,
        92,
        6000,
        STATS,
    )


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        ([ended("error", error={"type": "unknown", "message": "[API Error: refused]"})], "refused"),
        ([{"type": "error", "severity": "error", "message": "No words came."}, ended("error")], "No words came."),
        ([{"type": "error", "severity": "warning", "message": "A loop."}, ended()], ""),
        ([ended("error")], "Gemini CLI ended its run with status error."),
    ],
)
def test_a_failure_has_a_reason(lines: list[dict[str, Any]], failure: str) -> None:
    _, reader = read(*lines)
    assert reader.report.failure == failure


def test_only_a_line_that_names_toolcrib_reports_missing_tools() -> None:
    reader = GeminiParser()
    # The first may be about any server, the second is said in mid-run, where the next call may well arrive.
    for line in ("MCP issues detected. Run /mcp list for status.", "[ERROR] MCP ERROR (toolcrib)"):
        (event,) = reader.parse_stderr(line)
        assert (event.kind, event.text, event.raw) == (AgentEventKind.LOG, line, line)
    assert reader.report.mcp_failure == ""
    line = "Error during discovery for MCP server 'toolcrib': fetch failed"
    reader.parse_stderr(line)
    assert reader.report.mcp_failure == line


LOG_IN = "Run `gemini` on its own once and log in, or set GEMINI_API_KEY."
COLOURS = "Warning: True color (24-bit) support not detected. Using a terminal with true color enabled will help."
MANUAL = "Manual authorization is required but the current session is non-interactive. Please run the Gemini CLI."


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    "lines",
    [
        ["Please set an Auth method in your /x/agents/gemini-1/.gemini/settings.json or specify one of the following"],
        ["Invalid auth method selected."],
        [
            f"Error authenticating: FatalAuthenticationError: {MANUAL}",
            "    at main (a.js:1:2) {",
            "  exitCode: 41",
            "}",
        ],
        [f"\x1b[31m{MANUAL}\x1b[0m", "more words"],
    ],
)
def test_a_missing_login_is_reported_without_a_private_path(lines: list[str]) -> None:
    reader = GeminiParser()
    events = [event for line in lines for event in reader.parse_stderr(line)]
    assert [event.raw for event in events] == lines
    assert events[0].text == "Gemini CLI is not logged in."
    assert (reader.report.failure, reader.report.remedy) == ("Gemini CLI is not logged in.", LOG_IN)


@pytest.mark.req("FRG-7")
def test_a_missing_key_is_reported_as_printed() -> None:
    reader = GeminiParser()
    line = "When using Gemini API, you must specify the GEMINI_API_KEY environment variable."
    reader.parse_stderr(line)
    assert (reader.report.failure, reader.report.remedy) == (line, LOG_IN)


def provider_error(code: int, status: str, message: str) -> str:
    return "[API Error: " + json.dumps({"error": {"code": code, "message": message, "status": status}}) + "]"


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    ("message", "failure", "remedy"),
    [
        (provider_error(400, "INVALID_ARGUMENT", "wrong"), "wrong (400 INVALID_ARGUMENT)", ""),
        (
            provider_error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
            "API key not valid. Please pass a valid API key. (400 INVALID_ARGUMENT)",
            LOG_IN,
        ),
        (provider_error(401, "UNAUTHENTICATED", "Who?"), "Who? (401 UNAUTHENTICATED)", LOG_IN),
    ],
)
def test_a_providers_error_is_shown_without_its_json(message: str, failure: str, remedy: str) -> None:
    events, reader = read(ended("error", error={"type": "unknown", "message": message}))
    assert (reader.report.failure, reader.report.remedy, events[-1].text) == (failure, remedy, failure)


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    "wrong",
    [
        ["Unknown argument: nonsense"],
        ["Invalid values:", 'Argument: output-format, Given: "nope", Choices: "text", "json"'],
    ],
)
def test_an_invalid_argument_is_reported_without_the_help(wrong: list[str]) -> None:
    reader = GeminiParser()
    for line in (*wrong, "Usage: gemini [options] [command]", "", "Options:", "  -h, --help      Show help  [boolean]"):
        (event,) = reader.parse_stderr(line)
        assert (event.kind is AgentEventKind.LOG) == (line in wrong)
    assert reader.report.failure == "\n".join(wrong)


@pytest.mark.req("FRG-7")
def test_standard_error_does_not_fail_a_successful_run() -> None:
    reader = GeminiParser()
    reader.parse_stderr("Error executing tool write_file: Tool execution denied by policy.")
    assert reader.report.failure
    reader.parse(ended())
    reader.parse_stderr("said later")
    assert (reader.report.failure, reader.report.remedy) == ("", "")


def test_terminal_warnings_and_stack_traces_are_raw_events() -> None:
    reader = GeminiParser()
    for line in (COLOURS, "    at async main (file:///a.js:1:2) {", "  status: 429", "}"):
        (event,) = reader.parse_stderr(line)
        assert (event.kind, event.raw) == (AgentEventKind.RAW, line)
    assert reader.report.failure == ""
    (event,) = reader.parse_stderr("Warning: skipping access to x")
    assert event.kind is AgentEventKind.LOG


@pytest.mark.req("FRG-10")
def test_a_model_that_does_not_answer_is_the_last_trouble_until_it_does() -> None:
    reader = GeminiParser()
    error = json.dumps({"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}})
    reader.parse_stderr(f"Attempt 4 failed with status 429. Retrying with backoff... _ApiError: {error}")
    reader.parse({"type": "message", "role": "user", "content": "do it"})
    assert reader.report.last_trouble == (
        "Attempt 4 failed with status 429. Retrying with backoff... _ApiError: quota (429 RESOURCE_EXHAUSTED)"
    )
    reader.parse(piece("He"))
    assert reader.report.last_trouble == ""


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}], "isError": True}, "no\nway"),
        ({"content": [], "isError": True}, ""),
        ({"error": {"message": "fetch failed", "isError": True}}, ""),
    ],
)
def test_a_tools_error_is_shown_without_the_surrounding_text(response: dict[str, Any], text: str) -> None:
    asked = json.dumps({"name": "fail", "args": {"message": "a with response: [b"}})
    answered = json.dumps([{"functionResponse": {"name": "fail", "response": response}}])
    whole = f"MCP tool 'fail' reported tool error for function call: {asked} with response: {answered}"
    events, _ = read(use("c1", "mcp_toolcrib_fail"), result_of("c1", error="mcp_tool_error", message=whole))
    assert events[1].text == (text or whole)
    cut = whole[: len(whole) - 9]
    events, _ = read(use("c1", "mcp_toolcrib_fail"), result_of("c1", error="mcp_tool_error", message=cut))
    assert events[1].text == cut


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Command exited with code: 3", ToolStatus.ERROR),
        ("Command terminated by signal: 9", ToolStatus.ERROR),
        ("Command was automatically cancelled because it exceeded the timeout of 5.0 minutes", ToolStatus.TIMEOUT),
        ("what it printed", ToolStatus.OK),
    ],
)
def test_the_status_of_a_shell_command_is_read_from_its_text(text: str, status: ToolStatus) -> None:
    events, _ = read(use("c1", "run_shell_command"), result_of("c1", text), use("c2", "glob"), result_of("c2", text))
    over = {event.call: event.tool_status for event in events if event.tool_status is not ToolStatus.STARTED}
    assert over == {"c1": status, "c2": ToolStatus.OK}
