"""The parsers of all coding agents: no line is lost, and a run ends with its final line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.coding_agents.client_spec import OutputParser
from toolcrib.coding_agents.known.claude import ClaudeParser
from toolcrib.coding_agents.known.codex import CodexParser
from toolcrib.coding_agents.known.gemini import GeminiParser
from toolcrib.run_events import AgentEventKind, ToolStatus

pytestmark = pytest.mark.req("FRG-6")

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def values(*names: str) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(names, ANY | st.just("a"))


def objects(kinds: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of these types, as a program prints them, with any values."""
    return st.fixed_dictionaries({"type": st.sampled_from(kinds.split())}, optional=optional)


BLOCKS = objects(
    "text thinking tool_use tool_result",
    **values("text", "thinking", "id", "name", "input", "tool_use_id", "content", "is_error"),
)
CLAUDE = objects(
    "system assistant user result",
    subtype=st.sampled_from(["init", "status"]) | ANY,
    message=st.fixed_dictionaries({}, optional={"content": st.lists(BLOCKS | ANY, max_size=4) | ANY}) | ANY,
    tool_result_meta=st.just([{"id": "a", "permission_decision": 5}]) | ANY,
    model_usage_since_last_result=st.dictionaries(st.text(max_size=3), ANY, max_size=2) | ANY,
    **values("usage", "mcp_servers", "errors", "result", "is_error", "session_id", "parent_tool_use_id"),
)
CODEX = objects(
    "item.started item.updated item.completed turn.completed turn.failed error thread.started",
    item=ANY
    | objects(
        "command_execution file_change mcp_tool_call web_search todo_list collab_tool_call error",
        **values("id", "status", "error", "result", "arguments", "items", "text", "server", "tool", "query"),
    ),
    **values("usage", "error", "message", "thread_id"),
)
GEMINI = objects(
    "init message tool_use tool_result error result news",
    role=st.just("assistant") | ANY,
    delta=st.booleans() | ANY,
    **values("content", "tool_name", "tool_id", "parameters", "status", "output", "error", "message", "severity"),
    **values("stats", "session_id", "model"),
)
PARSERS = {ClaudeParser: CLAUDE, CodexParser: CODEX, GeminiParser: GEMINI}


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.data(), printed=st.text())
def test_any_line_becomes_an_event_with_that_line(parser: type[OutputParser], data: st.DataObject, printed: str):
    reader, calls = parser(), set[str]()
    lines = st.lists(PARSERS[parser] | st.dictionaries(st.text(max_size=5), ANY, max_size=4), max_size=6)
    for line in data.draw(lines):
        first, *more = reader.parse(line)
        assert first.raw is line
        assert all(event.raw is None for event in more)
        for event in (first, *more):
            event.to_json()
            if event.kind is AgentEventKind.TOOL and event.call:
                over = event.tool_status is not ToolStatus.STARTED
                assert (event.call in calls) is over, "an end has a start, and a start no other before its end"
                (calls.remove if over else calls.add)(event.call)
    assert next(iter(reader.parse_stderr(printed))).raw == printed


SAYS: dict[str, Any] = {"type": "assistant", "message": {"content": [{"type": "text", "text": "Done."}]}}
PIECE = {"type": "message", "role": "assistant", "content": "Done.", "delta": True}
RESULT = {"type": "result", "status": "success", "is_error": False}
BEGINS, ENDS = {"type": "turn.started"}, {"type": "turn.completed", "usage": {}}
MESSAGE = {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Done."}}


@pytest.mark.parametrize(
    ("parser", "lines", "ended"),
    [
        (ClaudeParser, [{"type": "system", "subtype": "init"}, SAYS], False),
        (ClaudeParser, [SAYS, RESULT], True),
        (ClaudeParser, [SAYS, RESULT, SAYS], False),
        (GeminiParser, [PIECE], False),
        (GeminiParser, [PIECE, RESULT], True),
        (GeminiParser, [RESULT, PIECE], False),
        (CodexParser, [BEGINS, MESSAGE], False),
        (CodexParser, [BEGINS, {"type": "error", "message": "Reconnecting... 1/5"}], False),
        (CodexParser, [BEGINS, ENDS], True),
        (CodexParser, [BEGINS, {"type": "turn.failed", "error": {"message": "No."}}], True),
        (CodexParser, [BEGINS, ENDS, BEGINS], False),
    ],
)
def test_a_run_ends_with_its_final_line_until_more_follows(
    parser: type[OutputParser], lines: list[dict[str, Any]], ended: bool
):
    reader = parser()
    for line in lines:
        list(reader.parse(line))
    assert reader.report.ended is ended
