"""The small parts of `run_agent`: what a model writes, what a program keeps, what is loaded, who is waited for."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.agent_runs import Bench, in_memory, options, run
from toolcrib.agent_loop import messages as history
from toolcrib.agent_loop import tool_sources
from toolcrib.agent_loop.event_queue import EventEmitter, EventQueue
from toolcrib.agent_loop.events import McpConnected, McpWarning, RunFailed
from toolcrib.agent_loop.messages import result_content
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.run import run_agent
from toolcrib.agent_loop.tool_calls import ToolOutcome, read_arguments
from toolcrib.core.results import TOO_DEEP, OtherBlock, Result
from toolcrib.errors import InvalidArguments, UsageError
from toolcrib.events import ServerStateChanged
from toolcrib.run_events import ToolStatus
from toolcrib.servers.model import ServerState, ServerStatus

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["kind", "parts", "part_kind", "content", "tool_name", "tool_call_id", "args", "state", "usage"])
VALUES = st.sampled_from(
    ["request", "response", "user-prompt", "tool-return", "tool-call", "text", "system-prompt", "suspended", "x", ""]
)


@settings(max_examples=100)
@given(st.dictionaries(st.text(), JSON))
def test_arguments_that_are_a_json_object_are_read_as_they_are(arguments: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(arguments)) == arguments
    assert read_arguments(arguments) == arguments


@settings(max_examples=200)
@given(st.text() | JSON.map(json.dumps))
def test_whatever_a_model_writes_is_an_object_or_told_to_be_none(text: str) -> None:
    try:
        assert isinstance(read_arguments(text), dict)
    except InvalidArguments as error:
        assert "JSON" in error.text()


def test_a_result_that_nests_too_deep_is_told_in_words() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"inner": deep}
    result = Result(blocks=(OtherBlock(kind="odd", raw=deep),), structured=None, is_error=False, raw={})
    told = result_content(ToolOutcome(status=ToolStatus.OK, result=result), ToolFormat.ANTHROPIC)
    assert told == TOO_DEEP


@settings(max_examples=200)
@given(
    st.lists(
        st.recursive(
            VALUES | JSON,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
            max_leaves=20,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_given_as_history_is_read_or_refused(messages: list[Any]) -> None:
    try:
        read = history.read_history(messages)
    except UsageError as error:
        assert error.remedy
    else:
        assert history.read_history(history.write_history(read)) == read


def test_the_agents_dependencies_are_loaded_by_a_run_and_not_before() -> None:
    heavy = "{'pydantic_ai', 'openai', 'anthropic', 'google.genai', 'mcp'}"
    code = f"import sys, toolcrib, toolcrib.agent_loop.run; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


async def test_a_missing_extra_is_told_with_the_words_that_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "pydantic_ai" else find(name))
    with pytest.raises(UsageError) as refused:
        await anext(run_agent("Go.", options()))
    assert "toolcrib[agent]" in refused.value.remedy


async def test_an_sdk_that_is_missing_is_told_with_the_words_that_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = importlib.import_module

    def without(name: str) -> Any:
        if name == "toolcrib.agent_loop.models.anthropic":
            raise ImportError("No module named 'anthropic'")
        return load(name)

    in_memory(monkeypatch, ["never"])
    monkeypatch.setattr(endpoint.importlib, "import_module", without)
    failed = (await run())[-1]
    assert isinstance(failed, RunFailed)
    assert "anthropic" in failed.error
    assert "toolcrib[agent]" in failed.remedy


class Waking(Bench):
    """A crib whose servers take their time."""

    def __init__(self, **states: ServerState) -> None:
        super().__init__({name: {f"{name}_act": lambda _: "x"} for name in states})
        self.states = states

    def status(self) -> dict[str, ServerStatus]:
        return {name: replace(one, state=self.states[name]) for name, one in super().status().items()}

    def becomes(self, name: str, state: ServerState) -> None:
        self.states[name] = state
        self.bus.publish(ServerStateChanged(server=name, state=state))


@pytest.mark.req("KAI-7")
async def test_the_servers_of_a_crib_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    crib = Waking(a=ServerState.CONNECTING, b=ServerState.CONNECTING, c=ServerState.READY, d=ServerState.STOPPED)
    in_memory(monkeypatch, ["Done."])
    reading = asyncio.create_task(run(crib=crib))
    for state in (ServerState.READY, ServerState.UNAVAILABLE):
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()
        crib.becomes("a" if state is ServerState.READY else "b", state)
    events = await reading
    assert [event.servers for event in events if isinstance(event, McpConnected)] == [("a", "c")]
    assert [event.server for event in events if isinstance(event, McpWarning)] == ["b"]


@pytest.mark.req("KAI-4")
async def test_a_server_of_a_crib_that_takes_too_long_is_told_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_sources, "CONNECT_LIMIT", 0.05)
    crib = Waking(a=ServerState.CONNECTING, b=ServerState.READY)
    in_memory(monkeypatch, ["Done."])
    events = await run(crib=crib)
    assert [(event.server, event.reason) for event in events if isinstance(event, McpWarning)] == [
        ("a", "It is not connected yet.")
    ]


@pytest.mark.parametrize("key", ["sk-secret", "a+b/c=d e"])
def test_a_key_is_masked_also_where_a_url_holds_it(key: str) -> None:
    from urllib.parse import quote

    emitter = EventEmitter(run_id="1", provider="p", key=key, queue=EventQueue())
    assert emitter.without_key(f"<{key}> ?key={quote(key, safe='')}&x") == "<****> ?key=****&x"


def test_a_key_that_is_no_secret_masks_nothing() -> None:
    assert EventEmitter(run_id="1", provider="p", key="", queue=EventQueue()).without_key("all of it") == "all of it"
