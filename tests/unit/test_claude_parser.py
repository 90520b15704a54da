"""What Claude Code prints → events. The lines are as it printed them, shortened."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.coding_agents.known.claude import ClaudeParser
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6")

SESSION = "11111111-2222-3333-4444-555555555555"


def assistant(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": list(content)}, **more}


def use(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def result_of(call: str, content: Any, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call, "content": content}
    failed = {"is_error": True} if more.pop("failed", False) else {}
    return {"type": "user", "message": {"role": "user", "content": [{**block, **failed}]}, **more}


def refused(call: str, kind: str = "permission-rule") -> dict[str, Any]:
    decision = {"decision": "reject", "source": "config", "reason_type": "other"}
    return {"tool_result_meta": [{"id": call, "non_execution_kind": kind, "permission_decision": decision}]}


def init(status: str, name: str = "toolcrib") -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "init",
        "session_id": SESSION,
        "mcp_servers": [{"name": "another", "status": "failed"}, {"name": name, "status": status}],
        "model": "claude-sonnet-4-5",
        "claude_code_version": "2.1.325",
    }


def ended(**more: Any) -> dict[str, Any]:
    usual = {"is_error": False, "subtype": "success", "terminal_reason": "completed", "session_id": SESSION}
    return {**usual, "result": "Done.", **more, "type": "result"}


def read(*lines: dict[str, Any]) -> tuple[list[AgentEvent], ClaudeParser]:
    reader = ClaudeParser()
    return [event for line in lines for event in reader.parse(line)], reader


def statuses(events: list[AgentEvent], call: str) -> list[ToolStatus | None]:
    return [event.tool_status for event in events if event.call == call]


def test_a_message_has_reasoning_text_and_calls() -> None:
    line = assistant(
        {"type": "thinking", "thinking": "let me see", "signature": "x"},
        {"type": "text", "text": "I will look."},
        use("toolu_1", "mcp__toolcrib__workspace_read_file", path="a.py"),
    )
    events, _ = read(line)
    assert [(event.kind, event.role, event.text) for event in events] == [
        (AgentEventKind.REASONING, "assistant", "let me see"),
        (AgentEventKind.MESSAGE, "assistant", "I will look."),
        (AgentEventKind.TOOL, "assistant", ""),
    ]
    assert [event.raw for event in events] == [line, None, None]
    assert events[2].tool_name == "workspace_read_file"
    assert events[2].tool_args == {"path": "a.py"}
    assert events[2].tool_status is ToolStatus.STARTED
    assert (events[2].server, events[2].call) == ("toolcrib", "toolu_1")


def test_a_call_has_one_start_and_one_end_with_its_name_and_arguments() -> None:
    events, _ = read(
        assistant(use("toolu_1", "mcp__toolcrib__own_echo", n=1)),
        assistant(use("toolu_1", "mcp__toolcrib__own_echo", n=1)),
        result_of("toolu_1", [{"type": "image", "source": {}}, {"type": "text", "text": "one"}]),
        result_of("toolu_1", "one"),
    )
    assert statuses(events, "toolu_1") == [ToolStatus.STARTED, ToolStatus.OK]
    (over,) = [event for event in events if event.tool_status is ToolStatus.OK]
    assert (over.tool_name, over.tool_args, over.role, over.text) == ("own_echo", {"n": 1}, "tool", "one")
    assert [event.kind for event in events] == [
        AgentEventKind.TOOL,
        AgentEventKind.RAW,
        AgentEventKind.TOOL,
        AgentEventKind.RAW,
    ], "no line is lost"


@pytest.mark.parametrize(
    ("name", "server", "tool"),
    [
        ("mcp__toolcrib__a__b", "toolcrib", "a__b"),
        ("mcp__github__get_issue", "github", "get_issue"),
        ("Bash", "", "Bash"),
        ("mcp__odd", "", "mcp__odd"),
        ("x_mcp__a__b", "", "x_mcp__a__b"),
    ],
)
def test_a_tool_is_named_by_its_server_and_without_the_prefix(name: str, server: str, tool: str) -> None:
    (event,) = read(assistant(use("toolu_1", name)))[0]
    assert (event.server, event.tool_name) == (server, tool)


@pytest.mark.parametrize(
    ("text", "more", "status"),
    [
        ("it failed", {}, ToolStatus.ERROR),
        ("/etc/x is outside /p; --restricted confines the file tools", refused("toolu_1"), ToolStatus.DENIED),
        ("Claude requested permissions to write", refused("toolu_1", "user-rejected"), ToolStatus.DENIED),
        ("stopped", refused("toolu_1", "interrupted"), ToolStatus.CANCELLED),
        (
            "<tool_use_error>Error: No such tool available: Bash. Bash is disabled for this session",
            {},
            ToolStatus.DENIED,
        ),
        ("<tool_use_error>File is in a directory that is denied by your permission settings", {}, ToolStatus.DENIED),
        ("<tool_use_error>Error: No such tool available: mcp__toolcrib__nope", {}, ToolStatus.UNKNOWN),
        ("<tool_use_error>InputValidationError: Read failed", {}, ToolStatus.INVALID),
        ('MCP server "toolcrib" is not connected', {}, ToolStatus.UNAVAILABLE),
        ('MCP server "toolcrib" tool "slow" sent no response or progress for 30s', {}, ToolStatus.TIMEOUT),
        ("a refusal of another call", refused("toolu_2"), ToolStatus.ERROR),
    ],
)
def test_how_a_call_failed(text: str, more: dict[str, Any], status: ToolStatus) -> None:
    events, _ = read(assistant(use("toolu_1", "Read")), result_of("toolu_1", text, failed=True, **more))
    assert statuses(events, "toolu_1") == [ToolStatus.STARTED, status]


def test_a_refusal_without_a_reason_is_a_refusal() -> None:
    rejected = {"tool_result_meta": [{"id": "toolu_1", "permission_decision": {"decision": "reject"}}]}
    denied = "<tool_use_error>File is in a directory that is denied by your permission settings."
    events, _ = read(assistant(use("toolu_1", "Read")), result_of("toolu_1", denied, failed=True, **rejected))
    assert statuses(events, "toolu_1")[-1] is ToolStatus.DENIED


def test_the_text_of_a_successful_result_is_not_read_as_a_failure() -> None:
    events, _ = read(assistant(use("toolu_1", "Read")), result_of("toolu_1", "ECONNREFUSED: is not connected"))
    assert statuses(events, "toolu_1")[-1] is ToolStatus.OK


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
def test_a_missing_server_is_reported_only_if_it_is_toolcrib(line: dict[str, Any], *, fails: bool) -> None:
    events, reader = read(line)
    assert bool(reader.report.mcp_failure) is fails
    assert (reader.report.session, reader.report.model) == (SESSION, "claude-sonnet-4-5")
    assert [(event.kind, event.text) for event in events] == [(AgentEventKind.LOG, "Claude Code 2.1.325")]


@pytest.mark.req("FRG-10")
def test_a_blocked_server_is_read_from_standard_error() -> None:
    reader = ClaudeParser()
    warning = "Warning: MCP server blocked by enterprise policy: toolcrib"
    (event,) = reader.parse_stderr(warning)
    assert (event.kind, event.text, event.raw) == (AgentEventKind.LOG, warning, warning)
    assert reader.report.mcp_failure == warning
    other = ClaudeParser()
    other.parse_stderr("Warning: MCP server blocked by enterprise policy: github")
    assert other.report.mcp_failure == ""


NO_LOGIN = "Not logged in · Please run /login"


def refusal(text: str, error: str) -> dict[str, Any]:
    return assistant({"type": "text", "text": text}, error=error, is_api_error_message=True)


@pytest.mark.req("FRG-7")
@pytest.mark.parametrize("text", [NO_LOGIN, "Invalid API key · Fix external API key"])
def test_a_missing_login_has_a_remedy(text: str) -> None:
    _, reader = read(refusal(text, "authentication_failed"), ended(is_error=True, result=text))
    assert reader.report.failure == text
    assert "Run `claude` on its own once and log in" in reader.report.remedy


@pytest.mark.req("FRG-7")
def test_other_failures_and_successful_runs_have_no_login_remedy() -> None:
    _, reader = read(refusal("API Error: 400 wrong", "unknown"), ended(is_error=True, result="API Error: 400 wrong"))
    assert (reader.report.failure, reader.report.remedy) == ("API Error: 400 wrong", "")
    _, reader = read(refusal(NO_LOGIN, "authentication_failed"), ended())
    assert (reader.report.failure, reader.report.remedy) == ("", "")


@pytest.mark.req("FRG-10")
def test_a_model_that_does_not_answer_is_the_last_trouble_until_it_does() -> None:
    retry = {"type": "system", "subtype": "api_retry", "attempt": 7, "max_retries": 10, "error_status": 401}
    events, reader = read(init("connected"), {**retry, "error": "authentication_failed"})
    assert reader.report.last_trouble == "The model did not answer, attempt 7 of 10: 401 authentication_failed"
    assert events[-1].text == reader.report.last_trouble
    assert reader.report.remedy
    reader.parse(assistant({"type": "text", "text": "Here I am."}))
    assert reader.report.last_trouble == ""


@pytest.mark.req("FRG-7")
def test_what_is_said_on_standard_error_alone_is_the_failure() -> None:
    reader = ClaudeParser()
    reader.parse_stderr("error: unknown option '--nonsense'")
    assert reader.report.failure == "error: unknown option '--nonsense'"
    reader.parse(ended())
    reader.parse_stderr("a warning after the end")
    assert reader.report.failure == ""


def test_subagents_calls_are_reported_but_their_messages_are_not_the_answer() -> None:
    inner = {"parent_tool_use_id": "toolu_1"}
    events, reader = read(
        assistant({"type": "text", "text": "I ask a helper."}),
        assistant(use("toolu_1", "Agent", prompt="look")),
        {"type": "system", "subtype": "task_started", "task_id": "t", "description": "look"},
        {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "look"}]}, **inner},
        assistant({"type": "text", "text": "helper's words"}, **inner),
        assistant(use("toolu_2", "Bash", command="ls"), **inner),
    )
    assert reader.report.text == "I ask a helper."
    assert statuses(events, "toolu_2") == [ToolStatus.STARTED]
    assert [(event.role, event.text) for event in events if event.kind is AgentEventKind.MESSAGE] == [
        ("assistant", "I ask a helper."),
        ("user", "look"),
        ("assistant", "helper's words"),
    ]
    assert "task_started: look" in [event.text for event in events if event.kind is AgentEventKind.LOG]


def test_the_result_has_text_session_and_tokens() -> None:
    line = ended(
        usage={
            "input_tokens": 20,
            "output_tokens": 10,
            "cache_read_input_tokens": 14,
            "cache_creation_input_tokens": 6,
        },
        modelUsage={"opus": {"inputTokens": 500}},
        total_cost_usd=0.5,
    )
    events, reader = read(line)
    assert [(event.kind, event.text) for event in events] == [(AgentEventKind.LOG, "completed")]
    report = reader.report
    assert (report.text, report.session, report.failure) == ("Done.", SESSION, "")
    assert (report.usage.input, report.usage.output, report.usage.cached) == (20, 10, 14)
    assert report.usage.reported["total_cost_usd"] == 0.5


def test_tokens_are_those_of_all_models_in_this_run_and_of_every_turn() -> None:
    def since(**of: tuple[int, int, int]) -> dict[str, Any]:
        keys = ("inputTokens", "outputTokens", "cacheReadInputTokens")
        return {name: dict(zip(keys, figures, strict=True)) for name, figures in of.items()}

    main_only = {"usage": {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 1}}
    first = ended(**main_only, model_usage_since_last_result=since(opus=(10, 20, 30), haiku=(1, 2, 3)))
    second = ended(**main_only, result="And more.", model_usage_since_last_result=since(opus=(100, 200, 300)))
    _, reader = read(first, second)
    usage = reader.report.usage
    assert (usage.input, usage.output, usage.cached) == (111, 222, 333)
    assert reader.report.text == "And more."


def test_unreported_tokens_are_unknown() -> None:
    _, reader = read(ended(usage={"input_tokens": "many"}))
    assert (reader.report.usage.input, reader.report.usage.output, reader.report.usage.cached) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (ended(is_error=True, result="Not logged in"), "Not logged in"),
        (
            {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["No conversation"]},
            "No conversation",
        ),
        (
            {"type": "result", "subtype": "error_max_turns", "is_error": True, "terminal_reason": "max_turns"},
            "max_turns",
        ),
        ({"type": "result", "is_error": True}, "No reason was reported."),
    ],
)
def test_why_it_failed(line: dict[str, Any], failure: str) -> None:
    events, reader = read(assistant({"type": "text", "text": "I begin."}), line)
    assert reader.report.failure == failure
    assert reader.report.text == "I begin."
    assert failure in events[-1].text


def test_an_api_error_is_not_a_message_of_the_model() -> None:
    events, reader = read(
        assistant({"type": "text", "text": "API Error: 400 no"}, is_api_error_message=True, error="unknown")
    )
    assert [(event.kind, event.text) for event in events] == [(AgentEventKind.LOG, "API Error: 400 no")]
    assert reader.report.text == ""


def test_a_call_that_was_cut_off_ends_with_the_turn_but_not_that_of_a_subagent_at_work() -> None:
    events, _ = read(
        assistant(use("toolu_1", "Read")),
        assistant(use("toolu_2", "Bash"), parent_tool_use_id="toolu_0"),
        ended(is_error=True, terminal_reason="budget_exhausted"),
        result_of("toolu_2", "done"),
    )
    assert statuses(events, "toolu_1") == [ToolStatus.STARTED, ToolStatus.CANCELLED]
    assert statuses(events, "toolu_2") == [ToolStatus.STARTED, ToolStatus.OK]


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (
            {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error": "overloaded"},
            AgentEventKind.LOG,
            "The model did not answer, attempt 1 of 10: overloaded",
        ),
        (
            {"type": "system", "subtype": "compact_boundary", "compact_metadata": {}},
            AgentEventKind.LOG,
            "compact_boundary",
        ),
        ({"type": "system", "subtype": "hook_started", "hook_name": "Stop"}, AgentEventKind.LOG, "hook_started: Stop"),
        (
            {"type": "system", "subtype": "permission_denied", "tool_name": "Write", "message": "not granted"},
            AgentEventKind.LOG,
            "permission_denied: not granted",
        ),
        ({"type": "system", "subtype": "thinking_tokens", "estimated_tokens": 3}, AgentEventKind.RAW, ""),
        ({"type": "stream_event", "event": {"type": "message_stop"}}, AgentEventKind.RAW, ""),
        ({"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}}, AgentEventKind.RAW, ""),
        ({"type": "of next year"}, AgentEventKind.RAW, ""),
        ({}, AgentEventKind.RAW, ""),
    ],
)
def test_every_other_line_is_kept(line: dict[str, Any], kind: AgentEventKind, text: str) -> None:
    (event,) = read(line)[0]
    assert (event.kind, event.text, event.raw) == (kind, text, line)
