"""The output of Claude Code, Codex and Gemini CLI, as events and a report. The lines are real ones, shortened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from toolcrib.coding_agents.client_spec import SERVER_NAME, OutputParser, RunReport
from toolcrib.coding_agents.known.claude import ClaudeParser as Claude
from toolcrib.coding_agents.known.codex import CodexParser as Codex
from toolcrib.coding_agents.known.gemini import GeminiParser as Gemini
from toolcrib.run_events import AgentEvent
from toolcrib.run_events import AgentEventKind as Kind
from toolcrib.run_events import ToolStatus as Status

pytestmark = pytest.mark.req("FRG-6")

SESSION = "11111111-2222-3333-4444-555555555555"
Line = dict[str, Any] | str
"""An object is a line of standard output, a string is one of standard error."""
Parser = type[OutputParser]


def read(parser: Parser, *lines: Line) -> tuple[list[AgentEvent], RunReport]:
    reader = parser()
    output: list[AgentEvent] = []
    for line in lines:
        output += reader.parse_stderr(line) if isinstance(line, str) else reader.parse(line)
    return output, reader.report


def kinds(events: Iterable[AgentEvent]) -> list[Kind]:
    return [event.kind for event in events]


def statuses(events: Iterable[AgentEvent], call: str = "c1") -> list[Status | None]:
    return [event.tool_status for event in events if event.call == call]


def assistant(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": list(content)}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def result_of(call: str, content: Any, *, failed: bool = False, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call, "content": content}
    return {"type": "user", "message": {"role": "user", "content": [{**block, "is_error": failed}]}, **more}


def refused(call: str, kind: str = "permission-rule") -> dict[str, Any]:
    decision = {"decision": "reject", "source": "config", "reason_type": "other"}
    return {"tool_result_meta": [{"id": call, "non_execution_kind": kind, "permission_decision": decision}]}


def init(status: str, name: str = "toolcrib") -> dict[str, Any]:
    servers = [{"name": "another", "status": "failed"}, {"name": name, "status": status}]
    versions = {"model": "claude-sonnet-4-5", "claude_code_version": "2.1.325"}
    return {"type": "system", "subtype": "init", "session_id": SESSION, "mcp_servers": servers, **versions}


def ended(**more: Any) -> dict[str, Any]:
    usual = {"is_error": False, "subtype": "success", "terminal_reason": "completed", "session_id": SESSION}
    return {**usual, "result": "Done.", **more, "type": "result"}


def api_error(words: str, error: str) -> list[Line]:
    return [assistant(text(words), error=error, is_api_error_message=True), ended(is_error=True, result=words)]


def item(phase: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": {"id": "c1", **fields}}


def mcp(phase: str, status: str, **more: Any) -> dict[str, Any]:
    call = {"server": "toolcrib", "tool": "workspace_read_file", "arguments": {"path": "a"}}
    return item(phase, type="mcp_tool_call", **{**call, "result": None, "error": None, "status": status, **more})


def command(phase: str, status: str, exit_code: int | None = None, output: str = "") -> dict[str, Any]:
    shown = {"command": "/bin/bash -lc ls", "aggregated_output": output, "exit_code": exit_code, "status": status}
    return item(phase, type="command_execution", **shown)


def turn_failed(message: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": message}}


TURN_COMPLETED: Line = {"type": "turn.completed", "usage": {}}


def piece(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": words, "delta": True}


def gemini_use(name: str, call: str = "c1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "tool_name": name, "tool_id": call, "parameters": arguments}


def gemini_result(output: str = "", call: str = "c1", *, error: str = "", message: str = "") -> dict[str, Any]:
    failed = {"error": {"type": error, "message": message or output}} if error else {}
    return {
        "type": "tool_result",
        "tool_id": call,
        "status": "error" if error else "success",
        "output": output,
    } | failed


STATS = {"total_tokens": 6540, "input_tokens": 6442, "output_tokens": 92, "cached": 6000, "input": 442, "tool_calls": 3}


def gemini_ended(status: str = "success", message: str = "") -> dict[str, Any]:
    error = {"error": {"type": "unknown", "message": message}} if message else {}
    return {"type": "result", "status": status, "stats": STATS, **error}


def provider_error(code: int, status: str, message: str) -> str:
    return "[API Error: " + json.dumps({"error": {"code": code, "message": message, "status": status}}) + "]"


def test_a_message_of_claude_has_reasoning_text_and_calls() -> None:
    call = use("toolu_1", "mcp__toolcrib__workspace_read_file", path="a.py")
    line = assistant({"type": "thinking", "thinking": "let me see", "signature": "x"}, text("I will look."), call)
    events, _ = read(Claude, line)
    assert [(event.kind, event.role, event.text, event.raw) for event in events] == [
        (Kind.REASONING, "assistant", "let me see", line),
        (Kind.MESSAGE, "assistant", "I will look.", None),
        (Kind.TOOL, "assistant", "", None),
    ]
    assert (events[2].tool_name, events[2].tool_args) == ("workspace_read_file", {"path": "a.py"})
    assert (events[2].tool_status, events[2].server, events[2].call) == (Status.STARTED, "toolcrib", "toolu_1")


def test_a_run_of_codex_has_session_text_and_usage() -> None:
    usage = {"input_tokens": 303, "cached_input_tokens": 21, "output_tokens": 15, "reasoning_output_tokens": 9}
    events, report = read(
        Codex,
        {"type": "thread.started", "thread_id": SESSION},
        {"type": "turn.started"},
        item("completed", type="reasoning", text="Let me see."),
        item("completed", type="agent_message", text="First words."),
        item("completed", type="agent_message", text="Last words."),
        {"type": "turn.completed", "usage": usage},
    )
    assert kinds(events) == [Kind.LOG, Kind.RAW, Kind.REASONING, Kind.MESSAGE, Kind.MESSAGE, Kind.LOG]
    assert {event.role for event in events[2:5]} == {"assistant"}
    assert (report.session, report.text, report.failure) == (SESSION, "Last words.", "")
    assert (report.usage.input, report.usage.cached, report.usage.output) == (303, 21, 15)
    assert report.usage.reported == usage


def test_pieces_of_gemini_become_one_message_as_soon_as_anything_else_is_printed() -> None:
    lines = [piece("Firs"), piece("t I "), piece("look."), gemini_use("glob"), piece("Do"), piece("ne.")]
    events, report = read(Gemini, *lines)
    assert kinds(events) == [*[Kind.RAW] * 3, Kind.MESSAGE, Kind.TOOL, *[Kind.RAW] * 2]
    assert (events[3].role, events[3].text) == ("assistant", "First I look.")
    assert report.text == "Done.", "it may be killed in the middle of a message"
    *_, message, end = read(Gemini, *lines, gemini_ended())[0]
    assert (message.kind, message.text, end.kind) == (Kind.MESSAGE, "Done.", Kind.LOG)


def test_every_line_of_gemini_is_kept_in_its_first_event() -> None:
    lines = [piece("a"), gemini_use("glob"), gemini_result(), {"type": "news"}, gemini_ended()]
    events, _ = read(Gemini, *lines)
    assert [event.raw for event in events if event.raw is not None] == lines


@pytest.mark.parametrize(
    ("parser", "line", "server", "tool"),
    [
        *(
            (Claude, assistant(use("c1", name)), server, tool)
            for name, server, tool in (
                ("mcp__toolcrib__a__b", "toolcrib", "a__b"),
                ("mcp__github__get_issue", "github", "get_issue"),
                ("Bash", "", "Bash"),
                ("mcp__odd", "", "mcp__odd"),
                ("x_mcp__a__b", "", "x_mcp__a__b"),
            )
        ),
        (Codex, mcp("started", "in_progress", server="toolcrib_run"), SERVER_NAME, "workspace_read_file"),
        (Codex, mcp("started", "in_progress", server="notes"), "notes", "workspace_read_file"),
        (Gemini, gemini_use("mcp_toolcrib_workspace_read_file"), "toolcrib", "workspace_read_file"),
        (Gemini, gemini_use("mcp_other_search_all"), "other", "search_all"),
        (Gemini, gemini_use("read_file"), "", "read_file"),
        (Gemini, gemini_use("mcp_"), "", "mcp_"),
    ],
)
def test_a_call_has_the_server_and_its_name_for_the_tool(parser: Parser, line: Line, server: str, tool: str) -> None:
    (event,) = read(parser, line)[0]
    assert (event.server, event.tool_name) == (server, tool)


CONTENTS = {"content": [text("contents")], "structured_content": None}


@pytest.mark.parametrize(
    ("parser", "start", "end"),
    [
        (
            Claude,
            assistant(use("c1", "mcp__toolcrib__workspace_read_file", path="a")),
            result_of("c1", [{"type": "image", "source": {}}, text("contents")]),
        ),
        (Codex, mcp("started", "in_progress"), mcp("completed", "completed", result=CONTENTS)),
        (Gemini, gemini_use("mcp_toolcrib_workspace_read_file", path="a"), gemini_result("contents")),
    ],
)
def test_a_call_starts_and_ends_once_and_repetitions_are_raw_events(parser: Parser, start: Line, end: Line) -> None:
    started, again, over, again_over = read(parser, start, start, end, end)[0]
    assert statuses((started, over)) == [Status.STARTED, Status.OK]
    for event, line in ((started, start), (over, end)):
        assert (event.kind, event.server, event.tool_name) == (Kind.TOOL, SERVER_NAME, "workspace_read_file")
        assert (event.tool_args, event.call, event.raw) == ({"path": "a"}, "c1", line)
    assert (over.role, over.text) == ("tool", "contents")
    assert kinds((again, again_over)) == [Kind.RAW] * 2


NO_TOOL = "<tool_use_error>Error: No such tool available:"
SETTINGS_DENY = "<tool_use_error>File is in a directory that is denied by your permission settings"
REJECTED_ONLY = {"tool_result_meta": [{"id": "c1", "permission_decision": {"decision": "reject"}}]}
SEND_ERROR = "tool call error: tool call failed\n\nCaused by:\n    Transport send error: …"


@pytest.mark.parametrize(
    ("message", "more", "status"),
    [
        ("it failed", {}, Status.ERROR),
        ("/etc/x is outside /p; --restricted confines the file tools", refused("c1"), Status.DENIED),
        ("Claude requested permissions to write", refused("c1", "user-rejected"), Status.DENIED),
        ("stopped", refused("c1", "interrupted"), Status.CANCELLED),
        (f"{NO_TOOL} Bash. Bash is disabled for this session", {}, Status.DENIED),
        (SETTINGS_DENY, {}, Status.DENIED),
        ("refused", REJECTED_ONLY, Status.DENIED),
        (f"{NO_TOOL} mcp__toolcrib__nope", {}, Status.UNKNOWN),
        ("<tool_use_error>InputValidationError: Read failed", {}, Status.INVALID),
        ('MCP server "toolcrib" is not connected', {}, Status.UNAVAILABLE),
        ('MCP server "toolcrib" tool "slow" sent no response or progress for 30s', {}, Status.TIMEOUT),
        ("a refusal of another call", refused("toolu_2"), Status.ERROR),
    ],
)
def test_the_status_of_a_failed_call_of_claude(message: str, more: dict[str, Any], status: Status) -> None:
    call = assistant(use("c1", "Read"))
    assert statuses(read(Claude, call, result_of("c1", message, failed=True, **more))[0])[1] is status
    assert statuses(read(Claude, call, result_of("c1", message))[0])[1] is Status.OK, "only failures are read"


@pytest.mark.parametrize(
    ("parser", "error", "message", "status"),
    [
        (Codex, "", SEND_ERROR, Status.UNAVAILABLE),
        (Codex, "", "tool call error: timed out awaiting tools/call after 3600s", Status.TIMEOUT),
        (Codex, "", "MCP tool call requires approval, but approval policy is never", Status.DENIED),
        (Codex, "", "user rejected MCP tool call", Status.DENIED),
        (Codex, "", "tool call error: boom", Status.ERROR),
        (Codex, "", "", Status.ERROR),
        (Gemini, "policy_violation", "Tool execution denied by policy.", Status.DENIED),
        (Gemini, "invalid_tool_params", 'Path not in workspace: Attempted path "/x"', Status.DENIED),
        (Gemini, "invalid_tool_params", "params must have required property 'b'", Status.INVALID),
        (Gemini, "tool_not_registered", 'Tool "write_file" not found.', Status.UNKNOWN),
        (Gemini, "mcp_tool_error", '{"error":{"message":"fetch failed","isError":true}}', Status.UNAVAILABLE),
        (Gemini, "mcp_tool_error", "MCP error -32001: Request timed out", Status.TIMEOUT),
        (Gemini, "mcp_tool_error", "MCP tool 'fail' reported tool error", Status.ERROR),
        (Gemini, "file_not_found", "File not found.", Status.ERROR),
    ],
)
def test_the_status_and_reason_of_a_failed_call(parser: Parser, error: str, message: str, status: Status) -> None:
    end = mcp("completed", "failed", error={"message": message} if message else None)
    if parser is Gemini:
        end = gemini_result("Error.", error=error, message=message)
    _, event = read(parser, gemini_use("a_tool") if error else mcp("started", "in_progress"), end)[0]
    assert (event.tool_status, event.text) == (status, message)


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"),
    [("completed", 0, Status.OK), ("failed", 2, Status.ERROR), ("declined", None, Status.DENIED)],
)
def test_a_command_of_codex_is_a_call_without_a_server(status: str, exit_code: int | None, expected: Status) -> None:
    lines = (command("started", "in_progress"), command("updated", "in_progress"))
    start, update, end = read(Codex, *lines, command("completed", status, exit_code, "a\nb\n"))[0]
    assert (start.tool_name, start.server, start.tool_args) == ("shell", "", {"command": "/bin/bash -lc ls"})
    assert (update.kind, update.tool_status) == (Kind.RAW, None)
    assert (end.tool_status, end.text) == (expected, f"Exit code {exit_code}\na\nb\n" if exit_code else "a\nb\n")


SPAWN = {"tool": "spawn_agent", "prompt": "look", "receiver_thread_ids": [], "status": "failed"}


@pytest.mark.parametrize(
    ("kind", "fields", "tool", "arguments", "status"),
    [
        ("file_change", {"changes": [{"path": "/w/a"}], "status": "completed"}, "apply_patch", {"changes"}, Status.OK),
        ("web_search", {"query": "toolcrib", "action": {"type": "x"}}, "web_search", {"query", "action"}, Status.OK),
        ("collab_tool_call", SPAWN, "spawn_agent", None, Status.ERROR),
    ],
)
def test_a_call_that_codex_prints_only_at_its_end_has_a_start_too(
    kind: str, fields: dict[str, Any], tool: str, arguments: set[str] | None, status: Status
) -> None:
    line = item("completed", type=kind, **fields)
    start, end = read(Codex, line)[0]
    assert statuses((start, end)) == [Status.STARTED, status]
    assert (start.raw, end.raw) == (line, None)
    assert start.tool_name == end.tool_name == tool
    if arguments is not None:
        assert start.tool_args == end.tool_args == {name: fields[name] for name in arguments}


@pytest.mark.parametrize(
    ("printed", "status"),
    [
        ("Command exited with code: 3", Status.ERROR),
        ("Command terminated by signal: 9", Status.ERROR),
        ("Command was automatically cancelled because it exceeded the timeout of 5.0 minutes", Status.TIMEOUT),
        ("some output", Status.OK),
    ],
)
def test_only_for_shell_commands_of_gemini_the_status_is_read_from_the_output(printed: str, status: Status) -> None:
    for tool, expected in (("run_shell_command", status), ("glob", Status.OK)):
        events, _ = read(Gemini, gemini_use(tool), gemini_result(printed))
        assert statuses(events) == [Status.STARTED, expected]


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        ({"content": [text("no"), text("way")], "isError": True}, "no\nway"),
        ({"content": [], "isError": True}, ""),
        ({"error": {"message": "fetch failed", "isError": True}}, ""),
    ],
)
def test_a_tools_error_in_gemini_is_shown_without_the_text_around_it(response: dict[str, Any], shown: str) -> None:
    asked = json.dumps({"name": "fail", "args": {"message": "a with response: [b"}})
    answered = json.dumps([{"functionResponse": {"name": "fail", "response": response}}])
    whole = f"MCP tool 'fail' reported tool error for function call: {asked} with response: {answered}"
    for message, expected in ((whole, shown or whole), (whole[:-9], whole[:-9])):
        end = gemini_result(error="mcp_tool_error", message=message)
        assert read(Gemini, gemini_use("mcp_toolcrib_fail"), end)[0][1].text == expected


REJECTED = (
    'exec_command failed: CreateProcess { message: "Rejected(\\"`/bin/bash -lc \'rm -rf \\\\\\"a b\\\\\\"\'` '
    'rejected: rm -f style commands are not permitted\\")" }'
)
ROUTER = "2026-11-16T07:59:19.362875Z ERROR codex_core::tools::router: error="


@pytest.mark.parametrize(
    ("printed", "tool", "server", "arguments", "status"),
    [
        ("patch rejected: writing is blocked by read-only sandbox", "apply_patch", "", None, Status.DENIED),
        ("unsupported custom tool call: apply_patch", "apply_patch", "", None, Status.UNKNOWN),
        ("unsupported call: spawn_agent", "spawn_agent", "", None, Status.UNKNOWN),
        ("unsupported call: mcp__toolcribdrop_table", "drop_table", "toolcrib", None, Status.UNKNOWN),
        ("unsupported call: mcp__toolcrib__drop_table", "drop_table", "toolcrib", None, Status.UNKNOWN),
        ("unsupported call: mcp__toolcrib_rundrop_table", "drop_table", "toolcrib", None, Status.UNKNOWN),
        ("unsupported call: mcp__notesadd", "mcp__notesadd", "", None, Status.UNKNOWN),
        ("approval policy is Never; reject command — you cannot ask", "shell", "", None, Status.DENIED),
        (REJECTED, "shell", "", {"command": "/bin/bash -lc 'rm -rf \"a b\"'"}, Status.DENIED),
        (REJECTED.replace("a b", "a \\u{1b} b"), "shell", "", None, Status.DENIED),
    ],
)
def test_calls_that_codex_refuses_are_events(
    printed: str, tool: str, server: str, arguments: dict[str, Any] | None, status: Status
) -> None:
    line = f"{ROUTER}{printed}"
    (start, end, other, _), report = read(Codex, line, line)
    assert (start.tool_status, end.tool_status) == (Status.STARTED, status)
    for event in (start, end):
        assert (event.kind, event.tool_name, event.server) == (Kind.TOOL, tool, server)
        assert event.tool_args == arguments
    assert (start.raw, end.raw, start.call) == (line, None, end.call)
    assert other.call != end.call
    assert end.text
    assert report.failure == ""


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(
    ("line", "fails"),
    [
        (init("connected"), False),
        (init("pending"), False),
        (init("failed", name="github"), False),
        (init("failed"), True),
        (init("needs-auth"), True),
        (init(""), True),
    ],
)
def test_claude_reports_a_missing_server_only_if_it_is_toolcrib(line: dict[str, Any], *, fails: bool) -> None:
    events, report = read(Claude, line)
    assert bool(report.mcp_failure) is fails
    assert (report.session, report.model) == (SESSION, "claude-sonnet-4-5")
    assert [(event.kind, event.text) for event in events] == [(Kind.LOG, "Claude Code 2.1.325")]


BLOCKED = "Warning: MCP server blocked by enterprise policy: "
REQUIRED = "required MCP servers failed to initialize: "
TYPES = "Transport [codex_rmcp_client::A<rmcp::transport::worker::W<x::Y>>]"
UNAUTHORIZED = "error: unexpected server response: HTTP 401: {}"
HANDSHAKE = "handshaking with MCP server failed: Send message error"
DISCOVERY = "Error during discovery for MCP server 'toolcrib': fetch failed"


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(
    ("parser", "line", "mcp_failure"),
    [
        (Claude, f"{BLOCKED}toolcrib", f"{BLOCKED}toolcrib"),
        (Claude, f"{BLOCKED}github", ""),
        (
            Codex,
            f"Error: thread/start failed: {REQUIRED}toolcrib: {HANDSHAKE} {TYPES} {UNAUTHORIZED}, when send initialize "
            "request: once more (code -32603)",
            f"{HANDSHAKE} Transport {UNAUTHORIZED}",
        ),
        (Codex, f"Error: {REQUIRED}notes: timed out after 3s", ""),
        # The first may be about any server; after the second, which appears during a run, the next call may succeed.
        (Gemini, "MCP issues detected. Run /mcp list for status.", ""),
        (Gemini, "[ERROR] MCP ERROR (toolcrib)", ""),
        (Gemini, DISCOVERY, DISCOVERY),
    ],
)
def test_missing_tools_of_toolcrib_are_read_from_standard_error(parser: Parser, line: str, mcp_failure: str) -> None:
    (event,), report = read(parser, line)
    assert (event.kind, event.role, event.text, event.raw) == (Kind.LOG, "system", line, line)
    assert report.mcp_failure == mcp_failure
    if parser is Codex:
        assert report.failure.startswith(line[:60])


RETRY = {"type": "system", "subtype": "api_retry", "attempt": 7, "max_retries": 10, "error_status": 401}
WAITING = "Reconnecting... waiting for network (Connection failed: error sending request)"
ATTEMPT = "Attempt 4 failed with status 429. Retrying with backoff... _ApiError: "
QUOTA = json.dumps({"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}})


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize(
    ("parser", "lines", "answer", "trouble"),
    [
        (
            Claude,
            [init("connected"), {**RETRY, "error": "authentication_failed"}],
            assistant(text("Here I am.")),
            "The model did not answer, attempt 7 of 10: 401 authentication_failed",
        ),
        (
            Codex,
            [{"type": "error", "message": WAITING}, item("completed", type="error", message="Falling back.")],
            item("completed", type="agent_message", text="Here I am."),
            WAITING,
        ),
        (
            Gemini,
            [f"{ATTEMPT}{QUOTA}", {"type": "message", "role": "user", "content": "do it"}],
            piece("He"),
            f"{ATTEMPT}quota (429 RESOURCE_EXHAUSTED)",
        ),
    ],
)
def test_a_silent_model_is_the_last_trouble_until_it_answers(
    parser: Parser, lines: list[Line], answer: Line, trouble: str
) -> None:
    events, report = read(parser, *lines)
    assert report.last_trouble == trouble
    if parser is Claude:
        assert events[-1].text == trouble
        assert report.remedy
    assert read(parser, *lines, answer)[1].last_trouble == ""


CLAUDE_LOGIN = "Run `claude` on its own once and log in"
GEMINI_LOGIN = "Run `gemini` on its own once and log in, or set GEMINI_API_KEY."
NO_GEMINI_LOGIN = "Gemini CLI is not logged in."
NO_CLAUDE_LOGIN = "Not logged in · Please run /login"
BAD_CLAUDE_KEY = "Invalid API key · Fix external API key"
NO_CODEX_LOGIN = "unexpected status 401 Unauthorized: Missing bearer or basic authentication in header, url: http://x"
OLD_CODEX_LOGIN = "Your refresh token was already used. Please log out and sign in again."
NO_METHOD = "Please set an Auth method in your /x/agents/gemini-1/.gemini/settings.json or specify one of the following"
MANUAL = "Manual authorization is required but the current session is non-interactive. Please run the Gemini CLI."
STACK = ["    at main (a.js:1:2) {", "  exitCode: 41", "}"]
NO_KEY = "When using Gemini API, you must specify the GEMINI_API_KEY environment variable."
BAD_KEY = "API key not valid. Please pass a valid API key."


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    ("parser", "lines", "failure", "remedy"),
    [
        (Claude, api_error(NO_CLAUDE_LOGIN, "authentication_failed"), NO_CLAUDE_LOGIN, CLAUDE_LOGIN),
        (Claude, api_error(BAD_CLAUDE_KEY, "authentication_failed"), BAD_CLAUDE_KEY, CLAUDE_LOGIN),
        (Claude, api_error("API Error: 400 wrong", "unknown"), "API Error: 400 wrong", ""),
        (Codex, [turn_failed(NO_CODEX_LOGIN)], None, "`codex login`"),
        (Codex, [turn_failed(OLD_CODEX_LOGIN)], None, "`codex login`"),
        (Gemini, [NO_METHOD], NO_GEMINI_LOGIN, GEMINI_LOGIN),
        (Gemini, ["Invalid auth method selected."], NO_GEMINI_LOGIN, GEMINI_LOGIN),
        (Gemini, [f"Error authenticating: FatalAuthenticationError: {MANUAL}", *STACK], NO_GEMINI_LOGIN, GEMINI_LOGIN),
        (Gemini, [f"\x1b[31m{MANUAL}\x1b[0m", "more words"], NO_GEMINI_LOGIN, GEMINI_LOGIN),
        (Gemini, [NO_KEY], NO_KEY, GEMINI_LOGIN),
    ],
)
def test_a_missing_login_has_a_remedy_until_success(
    parser: Parser, lines: list[Line], failure: str | None, remedy: str
) -> None:
    events, report = read(parser, *lines)
    assert remedy in report.remedy
    assert bool(report.remedy) is bool(remedy)
    if failure is not None:
        assert report.failure == failure
    if parser is Gemini:
        assert [event.raw for event in events] == lines
        assert events[0].text == failure, "without the private path"
    success = {Claude: ended(), Codex: TURN_COMPLETED, Gemini: gemini_ended()}[parser]
    _, report = read(parser, *lines, success)
    assert (report.failure, report.remedy) == ("", "")


INVALID = '{"error": {"type": "invalid_request_error", "message": "no such model"}}'
DEEP = '{"type": "error", "error": {"type": "invalid_request_error", "message": "deep"}, "request_id": "r"}'
GONE = 'unexpected status 404: {"error": {"message": "gone"}}, url: http://x'


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    ("parser", "message", "failure", "remedy"),
    [
        (Codex, INVALID, "no such model (invalid_request_error)", ""),
        (Codex, DEEP, "deep (invalid_request_error)", ""),
        (Codex, '{"error": {"message": "{\\"error\\": {\\"message\\": \\"twice\\"}}"}}', "twice", ""),
        (Codex, GONE, "unexpected status 404: gone", ""),
        (Codex, '{"error": "nothing more"}', '{"error": "nothing more"}', ""),
        (Codex, '{"error": {"message": ', '{"error": {"message": ', ""),
        (Codex, "Quota exceeded.", "Quota exceeded.", ""),
        (Gemini, provider_error(400, "INVALID_ARGUMENT", "no"), "no (400 INVALID_ARGUMENT)", ""),
        (Gemini, provider_error(400, "INVALID_ARGUMENT", BAD_KEY), f"{BAD_KEY} (400 INVALID_ARGUMENT)", GEMINI_LOGIN),
        (Gemini, provider_error(401, "UNAUTHENTICATED", "Who?"), "Who? (401 UNAUTHENTICATED)", GEMINI_LOGIN),
        (Gemini, "[API Error: refused]", "refused", ""),
    ],
)
def test_a_providers_error_is_shown_without_its_json(parser: Parser, message: str, failure: str, remedy: str) -> None:
    line = gemini_ended("error", message) if parser is Gemini else turn_failed(message)
    (*_, event), report = read(parser, line)
    assert (report.failure, report.remedy, event.text, event.raw) == (failure, remedy, failure, line)


FAILED: dict[str, Any] = {"type": "result", "is_error": True}
UNKNOWN_OPTION = "error: unknown option '--nonsense'"
UNEXPECTED = "error: unexpected argument '--nonsense' found"
CONNECT_FAILED = "2026-11-16T07:00:15.1Z ERROR codex_api::endpoint: failed to connect stage=Unknown"
DENIED = "Error executing tool write_file: Tool execution denied by policy."
CHOICES = 'Argument: output-format, Given: "nope", Choices: "text", "json"'
GEMINI_HELP = ["Usage: gemini [options] [command]", "", "Options:", "  -h, --help      Show help  [boolean]"]


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize(
    ("parser", "lines", "failure"),
    [
        (Claude, [UNKNOWN_OPTION], UNKNOWN_OPTION),
        (Claude, [ended(is_error=True, result="Not logged in")], "Not logged in"),
        (Claude, [{**FAILED, "subtype": "error_during_execution", "errors": ["No session"]}], "No session"),
        (Claude, [{**FAILED, "subtype": "error_max_turns", "terminal_reason": "max_turns"}], "max_turns"),
        (Claude, [FAILED], "No reason was reported."),
        (Codex, [UNEXPECTED, "", "  tip: to pass it", "Usage: codex exec"], UNEXPECTED),
        (Codex, [CONNECT_FAILED], "failed to connect stage=Unknown"),
        (Codex, [{"type": "error", "message": "Reconnecting... 1/5"}, turn_failed("status 418")], "status 418"),
        (Gemini, [DENIED], DENIED),
        (Gemini, ["Unknown argument: nonsense", *GEMINI_HELP], "Unknown argument: nonsense"),
        (Gemini, ["Invalid values:", CHOICES, *GEMINI_HELP], f"Invalid values:\n{CHOICES}"),
        (Gemini, [{"type": "error", "severity": "error", "message": "No words."}, gemini_ended("error")], "No words."),
        (Gemini, [{"type": "error", "severity": "warning", "message": "A loop."}, gemini_ended()], ""),
        (Gemini, [gemini_ended("error")], "Gemini CLI ended its run with status error."),
    ],
)
def test_a_failure_has_a_reason_unless_the_run_succeeds(parser: Parser, lines: list[Line], failure: str) -> None:
    begin = [assistant(text("I begin."))] if parser is Claude else []
    events, report = read(parser, *begin, *lines)
    assert report.failure == failure
    if parser is Claude:
        assert failure in events[-1].text
        assert report.text == "I begin."
    if GEMINI_HELP[0] in lines:
        assert [line for line, event in zip(lines, events, strict=True) if event.kind is Kind.LOG] == lines[:-4]
    success = {Claude: ended(), Codex: TURN_COMPLETED, Gemini: gemini_ended()}[parser]
    _, report = read(parser, *lines, success, "a warning after the end")
    assert (report.failure, report.mcp_failure) == ("", "")


@pytest.mark.req("FRG-7")
def test_the_last_lines_of_a_crash_of_codex_are_the_failure() -> None:
    panic = "thread 'main' panicked at a.rs:1:2:"
    _, report = read(Codex, "first", panic, "\x1b[31mno such thing\x1b[0m", "note: " + "x" * 900)
    first, second, note = report.failure.split("\n")
    assert (first, second) == (panic, "no such thing")
    assert len(note) < 500


def test_an_api_error_of_claude_is_not_a_message_of_the_model() -> None:
    events, report = read(Claude, api_error("API Error: 400 no", "unknown")[0])
    assert [(event.kind, event.text) for event in events] == [(Kind.LOG, "API Error: 400 no")]
    assert report.text == ""


def test_calls_of_claudes_subagents_are_events_but_their_messages_are_not_the_answer() -> None:
    inner = {"parent_tool_use_id": "toolu_1"}
    events, report = read(
        Claude,
        assistant(text("I ask a helper.")),
        assistant(use("toolu_1", "Agent", prompt="look")),
        {"type": "system", "subtype": "task_started", "task_id": "t", "description": "look"},
        {"type": "user", "message": {"role": "user", "content": [text("look")]}, **inner},
        assistant(text("helper's words"), **inner),
        assistant(use("toolu_2", "Bash", command="ls"), **inner),
    )
    assert report.text == "I ask a helper."
    assert statuses(events, "toolu_2") == [Status.STARTED]
    messages = [(event.role, event.text) for event in events if event.kind is Kind.MESSAGE]
    assert messages == [("assistant", "I ask a helper."), ("user", "look"), ("assistant", "helper's words")]
    assert "task_started: look" in [event.text for event in events if event.kind is Kind.LOG]


def test_a_call_of_claude_that_was_cut_off_ends_with_the_turn_but_not_a_subagents() -> None:
    events, _ = read(
        Claude,
        assistant(use("toolu_1", "Read")),
        assistant(use("toolu_2", "Bash"), parent_tool_use_id="toolu_0"),
        ended(is_error=True, terminal_reason="budget_exhausted"),
        result_of("toolu_2", "done"),
    )
    assert statuses(events, "toolu_1") == [Status.STARTED, Status.CANCELLED]
    assert statuses(events, "toolu_2") == [Status.STARTED, Status.OK]


def of_models(**models: tuple[int, int, int, int]) -> dict[str, Any]:
    keys = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    return {name: dict(zip(keys, figures, strict=True)) for name, figures in models.items()}


USAGE = {"input_tokens": 20, "output_tokens": 10, "cache_read_input_tokens": 14, "cache_creation_input_tokens": 6}


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        ([ended(usage=USAGE, modelUsage={"opus": {"inputTokens": 500}}, total_cost_usd=0.5)], (20, 10, 14, 6)),
        (
            [
                ended(usage=USAGE, model_usage_since_last_result=of_models(opus=(10, 20, 30, 40), haiku=(1, 2, 3, 4))),
                ended(
                    usage=USAGE, model_usage_since_last_result=of_models(opus=(100, 200, 300, 400)), total_cost_usd=0.5
                ),
            ],
            (111, 222, 333, 444),
        ),
        ([ended(usage={"input_tokens": "many"}, total_cost_usd=0.5)], (None, None, None, None)),
    ],
)
def test_the_result_of_claude_has_the_tokens_of_all_models_and_turns(
    lines: list[Line], tokens: tuple[int | None, ...]
) -> None:
    events, report = read(Claude, *lines)
    assert {(event.kind, event.text) for event in events} == {(Kind.LOG, "completed")}
    assert (report.text, report.session, report.failure) == ("Done.", SESSION, "")
    usage = report.usage
    assert (usage.input, usage.output, usage.cached, usage.cache_write) == tokens
    assert usage.reported["total_cost_usd"] == 0.5


def test_the_report_of_gemini_has_session_model_and_tokens() -> None:
    _, report = read(Gemini, {"type": "init", "session_id": SESSION, "model": "flash"}, gemini_ended())
    assert (report.session, report.model, report.failure) == (SESSION, "flash", "")
    usage = report.usage
    assert (usage.input, usage.output, usage.cached, usage.reported) == (6442, 92, 6000, STATS)


SYSTEM = {"type": "system"}
RETRIED = {**SYSTEM, "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error": "overloaded"}
NOT_GRANTED = {**SYSTEM, "subtype": "permission_denied", "tool_name": "Write", "message": "not granted"}
STEPS = [{"text": "look", "completed": True}, {"text": "write", "completed": False}]
NO_METADATA = "Model metadata for `gpt-4.1` not found."
UNPARSED = f"{ROUTER}failed to parse function arguments: x"
COLOURS = "Warning: True color (24-bit) support not detected. Using a terminal with true color enabled will help."
SKIPPED = "Warning: skipping access to x"


@pytest.mark.parametrize(
    ("parser", "line", "kind", "shown"),
    [
        (Claude, RETRIED, Kind.LOG, "The model did not answer, attempt 1 of 10: overloaded"),
        (Claude, {**SYSTEM, "subtype": "compact_boundary", "compact_metadata": {}}, Kind.LOG, "compact_boundary"),
        (Claude, {**SYSTEM, "subtype": "hook_started", "hook_name": "Stop"}, Kind.LOG, "hook_started: Stop"),
        (Claude, NOT_GRANTED, Kind.LOG, "permission_denied: not granted"),
        (Claude, {**SYSTEM, "subtype": "thinking_tokens", "estimated_tokens": 3}, Kind.RAW, ""),
        (Claude, {"type": "stream_event", "event": {"type": "message_stop"}}, Kind.RAW, ""),
        (Claude, {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}}, Kind.RAW, ""),
        (Claude, {"type": "of next year"}, Kind.RAW, ""),
        (Claude, {}, Kind.RAW, ""),
        (Codex, item("started", type="todo_list", items=STEPS), Kind.LOG, "[x] look\n[ ] write"),
        (Codex, item("completed", type="error", message=NO_METADATA), Kind.LOG, NO_METADATA),
        (Codex, UNPARSED, Kind.LOG, UNPARSED),
        (Gemini, COLOURS, Kind.RAW, COLOURS),
        (Gemini, "    at async main (a.js:1:2) {", Kind.RAW, "    at async main (a.js:1:2) {"),
        (Gemini, "  status: 429", Kind.RAW, "  status: 429"),
        (Gemini, "}", Kind.RAW, "}"),
        (Gemini, SKIPPED, Kind.LOG, SKIPPED),
    ],
)
def test_every_other_line_is_a_log_or_raw_event(parser: Parser, line: Line, kind: Kind, shown: str) -> None:
    (event,), report = read(parser, line)
    assert (event.kind, event.text, event.raw) == (kind, shown, line)
    if kind is Kind.RAW:
        assert report.failure == ""
