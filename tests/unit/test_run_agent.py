"""The loop of `run_agent` with a model and servers in memory: events, calls, results, history, failures."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart

from parts.agent_runs import (
    SERVERS,
    Calls,
    FakeModel,
    FakeServers,
    Thinks,
    desk,
    in_memory,
    of,
    only,
    options,
    other_tasks,
    result,
    run,
    turns,
)
from toolcrib.agent_loop import loop, messages, tool_sources
from toolcrib.agent_loop.event_queue import EventEmitter, EventQueue
from toolcrib.agent_loop.events import (
    AnyRunEvent,
    McpConnected,
    McpWarning,
    NameConflict,
    ReasoningDelta,
    Retrying,
    RunEnd,
    RunEvent,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
from toolcrib.agent_loop.messages import TextPieces, whole_arguments, whole_text
from toolcrib.agent_loop.models import opening
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.options import AgentOptions, CodingTools, ToolRequest
from toolcrib.agent_loop.run import run_agent
from toolcrib.agent_loop.tool_calls import ToolOutcome, read_arguments
from toolcrib.catalog.names import is_legal
from toolcrib.catalog.transforms import DefaultArguments, FixArguments, RenameArguments, RenameTools
from toolcrib.core.results import TOO_DEEP, OtherBlock, Result, read_result
from toolcrib.errors import CallTimeout, Denied, InvalidArguments, ServerUnavailable, UsageError
from toolcrib.events import ServerStateChanged
from toolcrib.run_events import FAILURE_KEY, AgentEvent, AgentEventKind, ToolStatus
from toolcrib.servers.model import ServerState, ServerStatus

PNG = b"\x89PNG\r\n\x1a\n"
DATA = base64.b64encode(PNG).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff").decode()
PDF = base64.b64encode(b"%PDF").decode()
FIRST, SECOND = "\ud83d", "\ude00"
FACE, LONE = "\U0001f600", "\N{REPLACEMENT CHARACTER}"
"""`FIRST` and `SECOND` are the halves of `FACE`."""


def calls_of(events: list[RunEvent]) -> list[tuple[Any, Any]]:
    """Each call with its end; each must have one of both."""
    began = of(ToolCalled, events)
    ended = {event.call: event for event in of(ToolFinished, events)}
    assert len(ended) == len(of(ToolFinished, events)) == len(began)
    assert all(events.index(one) < events.index(ended[one.call]) for one in began)
    return [(one, ended[one.call]) for one in began]


async def outcome(
    monkeypatch: pytest.MonkeyPatch, tool: Any, arguments: str = "{}", **options_: Any
) -> tuple[Any, Any]:
    """One call of `act`: its last event, and the result that the model gets."""
    model = in_memory(monkeypatch, [Calls(tool="act", arguments=arguments)], ["Well."], kit=desk(act=tool))
    events = await run(**SERVERS, **options_)
    assert only(RunFinished, events).ended is RunEnd.DONE
    [(_, ended)] = calls_of(events)
    [part] = model.results
    return ended, part


def raising(error: BaseException) -> Any:
    def act(_: Any) -> None:
        raise error

    return act


class Peak:
    """Counts how many calls run at the same time."""

    now = most = 0

    async def count(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await turns(5)
        self.now -= 1


def taking(**properties: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": properties}}


@pytest.mark.req("KAI-1", "KAI-7", "FRG-6")
async def test_a_run_reports_each_event_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(add=lambda given: str(given["a"] + given["b"]))
    turn = [Thinks(text="Numbers."), "I add", " them.", Calls(tool="add", arguments='{"a": 2, "b": 3}')]
    model = in_memory(monkeypatch, turn, ["It is 5."], kit=kit)
    events = await run("What is 2 + 3?", **SERVERS, instructions="Be brief.", settings={"temperature": 0.5})
    before = ["run_started", "mcp_connected", "reasoning_delta", "text_delta", "text_delta", "tool_call", "tool_result"]
    after = ["step_finished", "text_delta", "step_finished", "run_finished"]
    assert [event.type for event in events] == before + after
    started, last = only(RunStarted, events), only(RunFinished, events)
    assert (started.model, started.max_steps) == ("anthropic:scripted", 30)
    assert (last.text, last.ended, last.steps, last.usage.requests) == ("It is 5.", RunEnd.DONE, 2, 2)
    assert only(ReasoningDelta, events).text == "Numbers."
    assert "".join(event.text for event in of(TextDelta, events)) == "I add them.It is 5."
    [(called, ended)] = calls_of(events)
    assert (called.tool_name, called.server, called.tool_args) == ("add", "desk", {"a": 2, "b": 3})
    assert (ended.tool_status, ended.text, ended.blocks) == (ToolStatus.OK, "5", ({"type": "text", "text": "5"},))
    assert 0 < ended.tool_duration_ms < 60_000
    assert [part.content for part in model.results] == ["5"]
    assert model.asked[0][0].instructions == "Be brief."  # type: ignore[union-attr]
    assert [part.content for part in model.asked[0][0].parts] == ["What is 2 + 3?"]  # type: ignore[union-attr]
    assert {event.run_id for event in events} == {started.run_id} != {""}
    assert {event.provider for event in events} == {"anthropic"}


@pytest.mark.req("FRG-6")
async def test_every_event_is_an_agent_event_and_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    look = {"look": lambda _: result("seen", structuredContent={"n": 1})}
    kit = FakeServers({"desk": look}, missing={"lamp": "broken"})
    in_memory(monkeypatch, [Thinks(text="Hm."), "I look.", Calls(tool="look"), Calls(tool="no")], ["Done."], kit=kit)
    events = await run(**SERVERS)
    for event in events:
        assert isinstance(event, AgentEvent)
        plain = event.to_json()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["type"] == event.type
        assert (event.kind is AgentEventKind.TOOL) == (event.type in {"tool_call", "tool_result"})
    assert {event.kind for event in events} == set(AgentEventKind) - {AgentEventKind.RAW}
    assert only(RunFinished, events).to_json()["usage"]["requests"] == 2


@pytest.mark.req("KAI-2")
async def test_without_servers_the_model_gets_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, ["Hello."])
    assert [event.type for event in await run()] == ["run_started", "text_delta", "step_finished", "run_finished"]
    assert model.offered == [[]]


@pytest.mark.req("KAI-4", "KAI-7")
async def test_missing_servers_are_reported_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    tools = {"desk": {"look": lambda _: "x", "see": lambda _: "y"}}
    kit = FakeServers(tools, missing={"lamp": "no answer", "fan": "gone"})
    in_memory(monkeypatch, [lambda: seen.append("asked"), "Hello."], kit=kit)
    async for event in run_agent("Go.", options(**SERVERS)):
        seen.append(event.type)
        if isinstance(event, McpConnected):
            assert (event.servers, event.tools) == (("desk",), {"desk": 2})
        if isinstance(event, McpWarning):
            assert event.reason == {"lamp": "no answer", "fan": "gone"}[event.server]
    assert seen[:5] == ["run_started", "mcp_warning", "mcp_warning", "mcp_connected", "asked"]
    assert (kit.opened, kit.closed) == (1, 1)


class ConnectingServers(FakeServers):
    """`lamp` has failed, and `fan` is still connecting."""

    def __init__(self) -> None:
        super().__init__({"desk": {"act": lambda _: "x"}}, missing={"lamp": "no light", "fan": "late"})
        self.connected_now = asyncio.Event()

    async def __aenter__(self) -> ConnectingServers:
        self.bus.publish(ServerStateChanged(server="desk", state=ServerState.READY))
        self.bus.publish(ServerStateChanged(server="fan", state=ServerState.UNAVAILABLE, reason="not yet"))
        self.bus.publish(ServerStateChanged(server="lamp", state=ServerState.FAILED, reason="no light"))
        await self.connected_now.wait()
        await super().__aenter__()
        return self


@pytest.mark.req("KAI-4", "KAI-7")
async def test_a_failed_server_is_reported_while_others_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = ConnectingServers()
    in_memory(monkeypatch, ["Hello."], kit=kit)
    async with asyncio.timeout(60), run_agent("Go.", options(**SERVERS)) as events:
        assert isinstance(await anext(events), RunStarted)
        warning = await anext(events)
        assert isinstance(warning, McpWarning)
        assert (warning.server, warning.reason, kit.opened) == ("lamp", "no light", 0)
        kit.connected_now.set()
        rest: list[AnyRunEvent] = [event async for event in events]
    assert [event.server for event in of(McpWarning, rest)] == ["fan"]
    types = [event.type for event in rest]
    assert types.index("mcp_connected") == types.index("text_delta") - 1


class CribWithStates(FakeServers):
    def __init__(self, **states: ServerState) -> None:
        super().__init__({name: {f"{name}_act": lambda _: "x"} for name in states})
        self.states = states

    def status(self) -> dict[str, ServerStatus]:
        return {name: replace(one, state=self.states[name]) for name, one in super().status().items()}

    def becomes(self, name: str, state: ServerState) -> None:
        self.states[name] = state
        self.bus.publish(ServerStateChanged(server=name, state=state))


@pytest.mark.req("KAI-4", "KAI-7")
async def test_a_run_waits_for_the_servers_of_a_crib_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, ready = ServerState.CONNECTING, ServerState.READY
    crib = CribWithStates(a=connecting, b=connecting, c=ready, d=ServerState.STOPPED)
    in_memory(monkeypatch, ["Done."])
    reading = asyncio.create_task(run(crib=crib))
    for name, state in (("a", ready), ("b", ServerState.UNAVAILABLE)):
        await turns(20)
        assert not reading.done()
        crib.becomes(name, state)
    events = await reading
    assert only(McpConnected, events).servers == ("a", "c")
    assert only(McpWarning, events).server == "b"
    monkeypatch.setattr(tool_sources, "CONNECT_LIMIT", 0.05)
    warning = only(McpWarning, await run(crib=CribWithStates(a=connecting, b=ready)))
    assert (warning.server, warning.reason) == ("a", "It is not connected yet.")


@pytest.mark.req("KAI-7")
async def test_the_model_waits_until_the_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, [Calls(tool="look")], ["Done."], kit=desk(look=lambda _: "x"))
    async with run_agent("Go.", options(**SERVERS)) as events:
        assert isinstance(await anext(events), RunStarted)
        await turns(200)
        assert not model.asked
        assert isinstance(await anext(events), McpConnected)
        assert isinstance(await anext(events), ToolCalled)
        await turns(200)
        assert len(model.asked) == 1


async def test_a_cribs_tools_are_offered_after_the_servers_and_the_crib_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = desk(look=lambda _: "from the kit", own=lambda _: "own")
    shelf = {"look": lambda _: "from the crib", "book": lambda _: "a book"}
    crib = FakeServers({"shelf": shelf}, missing={"far": "away"})
    model = in_memory(monkeypatch, [Calls(tool="look"), Calls(tool="book")], ["Done."], kit=kit)
    events = await run(**SERVERS, crib=crib)
    connected, conflict = only(McpConnected, events), only(NameConflict, events)
    assert (connected.servers, connected.tools) == (("desk", "shelf"), {"desk": 2, "shelf": 1})
    assert only(McpWarning, events).server == "far"
    assert (conflict.name, conflict.kept, conflict.left_out) == ("look", "desk:look", "shelf:look")
    assert [part.content for part in model.results] == ["from the kit", "a book"]
    assert (crib.opened, crib.closed) == (0, 0)


@pytest.mark.req("KAI-6")
async def test_tools_have_plain_names_and_transforms_are_undone_on_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(read_file=lambda given: f"read {given}", write_file=lambda _: "", rm=lambda _: "")
    model = in_memory(monkeypatch, [Calls(tool="slurp", arguments='{"path": "a"}')], ["Done."], kit=kit)
    await run(**SERVERS, keep="*_file", drop="desk:write_*", transform=[RenameTools({"read_file": "slurp"})])
    assert model.offered[0] == ["slurp"]
    assert kit.calls == [("read_file", {"path": "a"})]
    model = in_memory(monkeypatch, ["Done."], kit=kit)
    await run(**SERVERS)
    assert model.offered[0] == ["read_file", "write_file", "rm"]


@pytest.mark.parametrize(
    ("transform", "offered"),
    [
        (FixArguments({"repo_path": "."}), ["status"]),
        (DefaultArguments({"repo_path": "."}), ["status"]),
        (RenameArguments({"repo_path": "folder"}), ["status"]),
        (RenameTools({"status": "e"}), ["e"]),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_tool_that_does_not_fit_a_transform_is_omitted(
    monkeypatch: pytest.MonkeyPatch, transform: Any, offered: list[str]
) -> None:
    definitions = {
        "status": taking(repo_path={"type": "string"}),
        "e": taking(repo_path={"type": "integer"}, folder={"type": "string"}),
    }
    tools = {"good": {"status": lambda _: "x"}, "odd": {"e": lambda _: "y"}}
    model = in_memory(monkeypatch, ["Hello."], kit=FakeServers(tools, definitions=definitions))
    events = await run(**SERVERS, transform=[transform])
    assert isinstance(events[-1], RunFinished)
    assert model.offered == [offered]
    assert "left out" in only(McpWarning, events).reason
    assert sum(only(McpConnected, events).tools.values()) == 1


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (RuntimeError("it broke"), ToolStatus.ERROR, "RuntimeError: it broke"),
        (ServerUnavailable("Server 'desk' is gone."), ToolStatus.UNAVAILABLE, "Server 'desk' is gone."),
        (CallTimeout("No answer in 5 s."), ToolStatus.TIMEOUT, "No answer in 5 s."),
        (InvalidArguments("a: a number is needed", remedy="Correct it."), ToolStatus.INVALID, "Correct it."),
        (TimeoutError("slow"), ToolStatus.ERROR, "TimeoutError: slow"),
        (KeyError("x"), ToolStatus.ERROR, "KeyError"),
        (asyncio.CancelledError(), ToolStatus.CANCELLED, ""),
    ],
)
async def test_a_tool_that_raises_returns_an_error_to_the_model(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: ToolStatus, text: str
) -> None:
    ended, part = await outcome(monkeypatch, raising(error))
    assert (ended.tool_status, part.outcome) == (status, "failed")
    assert text in ended.text
    assert text in part.content


async def test_a_tools_own_error_is_returned_with_all_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    content = [{"type": "text", "text": "See:"}, {"type": "image", "data": DATA, "mimeType": "image/png"}]
    ended, part = await outcome(monkeypatch, lambda _: {"content": content, "isError": True})
    assert (ended.tool_status, part.outcome) == (ToolStatus.ERROR, "failed")
    assert part.content == ["See:", BinaryContent(data=PNG, media_type="image/png")]
    assert list(ended.blocks) == content


async def test_a_failed_command_is_an_error_in_the_event_but_not_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = result("Exit code 3", _meta={FAILURE_KEY: "Exit code 3"})
    ended, part = await outcome(monkeypatch, lambda _: failed)
    assert (ended.tool_status, ended.text) == (ToolStatus.ERROR, "Exit code 3")
    assert (part.content, part.outcome) == ("Exit code 3", "success"), "the model gets it as MCP has it"
    ended, _ = await outcome(monkeypatch, lambda _: failed | {"_meta": {FAILURE_KEY: ""}})
    assert ended.tool_status is ToolStatus.OK


NOT_JSON_VALUES = ('{"n": 1e999}', '{"n": [-1e999]}', '{"n": "\\ud83d"}')


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', "[1]", '"text"', "nonsense", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "null", *NOT_JSON_VALUES],
)
async def test_arguments_that_are_not_a_json_object_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    ran: list[Any] = []
    ended, part = await outcome(monkeypatch, ran.append, arguments)
    assert not ran
    assert (ended.tool_status, ended.raw, part.outcome) == (ToolStatus.INVALID, arguments, "failed")
    assert "JSON" in part.content
    if arguments in NOT_JSON_VALUES:
        with pytest.raises(InvalidArguments, match="JSON"):
            read_arguments(json.loads(arguments))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.text() | JSON.map(json.dumps), st.dictionaries(st.text(), JSON))
def test_any_json_object_is_read_and_any_other_text_is_refused(text: str, arguments: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(arguments)) == read_arguments(arguments) == arguments
    try:
        assert isinstance(read_arguments(text), dict)
    except InvalidArguments as error:
        assert "JSON" in error.text()


async def test_a_call_of_an_unknown_tool_gets_the_known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, [Calls(tool="luk", arguments='{"x": 1}')], ["Oh."], kit=desk(look=lambda _: "x"))
    [(called, ended)] = calls_of(await run(**SERVERS))
    assert (called.server, called.tool_args) == ("", {"x": 1})
    assert ended.tool_status is ToolStatus.UNKNOWN
    assert "look" in ended.text
    assert model.results[0].content == ended.text


@pytest.mark.parametrize("call", [Calls(tool="luk"), Calls(tool="look", arguments="{"), Calls(tool="fail")])
async def test_a_model_may_make_as_many_mistakes_as_it_has_steps(monkeypatch: pytest.MonkeyPatch, call: Calls) -> None:
    kit = desk(look=lambda _: "x", fail=raising(RuntimeError("no")))
    model = in_memory(monkeypatch, *([[call]] * 60), ["At last."], kit=kit)
    events = await run(**SERVERS, max_steps=70)
    assert only(RunFinished, events).text == "At last."
    assert len(calls_of(events)) == len(model.results) == 60


@pytest.mark.parametrize("name", ["functions.look", "", "ä" * 200, "look\n", "x" * 500])
async def test_a_name_that_providers_refuse_is_not_sent_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = in_memory(monkeypatch, [Calls(tool=name)], ["Oh."], kit=desk(look=lambda _: "x"))
    events = await run(**SERVERS)
    last = only(RunFinished, events)
    assert last.text == "Oh."
    [(_, ended)] = calls_of(events)
    assert ended.tool_status is ToolStatus.UNKNOWN
    [part] = model.results
    assert is_legal(part.tool_name)
    assert {one["tool_name"] for one in last.messages[1]["parts"]} == {part.tool_name}


def sent_back(model: FakeModel) -> list[list[tuple[str, str]]]:
    """The ids of each turn's calls with those of their results, in the last request."""
    calls = [[part.tool_call_id for part in one.parts if isinstance(part, ToolCallPart)] for one in model.asked[-1]]
    results = [[part.tool_call_id for part in one.parts if isinstance(part, ToolReturnPart)] for one in model.asked[-1]]
    turns_ = zip(filter(None, calls), filter(None, results), strict=True)
    return [list(zip(called, answered, strict=True)) for called, answered in turns_]


async def test_repeated_call_ids_are_made_unique_for_the_program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    turn = [Calls(tool="act", id="X"), Calls(tool="act", id="X_2")]
    model = in_memory(monkeypatch, *[turn] * 3, ["Done."], kit=desk(act=lambda _: "x"))
    approving = {**SERVERS, "approve": lambda request: asked.append(request.call) or True}
    events = await run(**approving)
    called = [began.call for began, _ in calls_of(events)]
    assert len(set(called)) == 6
    assert sorted(called) == sorted(asked)
    assert sent_back(model) == [[("X", "X"), ("X_2", "X_2")]] * 3
    again = await run("Go on.", **approving, history=only(RunFinished, events).messages)
    assert not {event.call for event in of(ToolCalled, again)} & set(called)


async def test_calls_of_one_turn_with_the_same_id_keep_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [Calls(tool=tool, id=own) for tool, own in zip("abcd", ("a", "a", "a_2", "a"), strict=True)]
    kit = desk(**{name: lambda _, name=name: name.upper() for name in "abcd"})
    model = in_memory(monkeypatch, calls, ["Done."], kit=kit)
    assert [ended.text for _, ended in calls_of(await run(**SERVERS))] == ["A", "B", "C", "D"]
    assert [part.content for part in model.results] == ["A", "B", "C", "D"]
    [ids] = sent_back(model)
    assert (ids[0], ids[2]) == (("a", "a"), ("a_2", "a_2"))
    assert len(set(ids)) == 4


@given(st.lists(st.sampled_from(["", "a", "a_2", "a_3", "a_2_2"])), st.sets(st.sampled_from(["a", "a_2", "b"])))
def test_any_list_of_ids_becomes_unique(ids: list[str], taken: set[str]) -> None:
    before = set(taken)
    apart = loop._apart(ids, taken)
    assert len(set(apart)) == len(ids)
    assert not set(apart) & before
    assert taken == before | set(apart)
    assert {own for given_, own in zip(ids, apart, strict=True) if given_ == own} == set(ids) - before


def test_making_many_equal_ids_unique_takes_linear_time() -> None:
    began = time.process_time()
    assert len(set(loop._apart(["same"] * 50_000, set()))) == 50_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("calls", [loop.MAX_CONCURRENT_CALLS - 1, 3 * loop.MAX_CONCURRENT_CALLS])
async def test_calls_of_one_answer_run_concurrently_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    peak = Peak()

    async def act(_: Any) -> str:
        await peak.count()
        return "x"

    in_memory(monkeypatch, [Calls(tool="act") for _ in range(calls)], ["Done."], kit=desk(act=act))
    assert [ended.tool_status for _, ended in calls_of(await run(**SERVERS))] == [ToolStatus.OK] * calls
    assert peak.most == min(calls, loop.MAX_CONCURRENT_CALLS)


async def test_results_of_every_kind_reach_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        {"type": "text", "text": "One."},
        {"type": "image", "data": JPEG, "mimeType": "image/jpg"},
        {"type": "audio", "data": DATA, "mimeType": "audio/wav"},
        {"type": "image", "data": DATA, "mimeType": "image/x-odd"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///a.pdf", "blob": PDF, "mimeType": "application/pdf"}},
        {"type": "resource_link", "uri": "file:///far", "name": "far"},
        {"type": "surprise", "what": 1},
    ]
    ended, part = await outcome(monkeypatch, lambda _: {"content": blocks, "structuredContent": {"answer": 42}})
    text = "\n".join(item for item in part.content if isinstance(item, str))
    files = [item.media_type for item in part.content if isinstance(item, BinaryContent)]
    assert files == ["image/jpeg", "application/pdf"]
    for what in ("One.", "audio/wav", "8 bytes", "image/x-odd", "inside", "a.pdf", "file:///far", "surprise", "42"):
        assert what in text, what
    assert (list(ended.blocks), ended.structured, ended.text) == (blocks, {"answer": 42}, text)


async def test_structured_content_is_sent_once_and_an_empty_result_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for returned in (result('{"n": 1}', structuredContent={"n": 1}), result(structuredContent={"n": 1})):
        _, part = await outcome(monkeypatch, lambda _, returned=returned: returned)
        assert part.content == '{"n": 1}'
    _, part = await outcome(monkeypatch, lambda _: result(" \n "))
    assert "returned no output" in part.content


def content_of(form: ToolFormat = ToolFormat.ANTHROPIC, **raw: Any) -> Any:
    outcome_ = ToolOutcome(status=ToolStatus.OK, result=read_result(json.dumps(raw).encode()))
    return messages.result_content(outcome_, form)


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(size: int) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG + bytes(size - 8)).decode()}


async def test_a_result_that_is_too_long_is_truncated_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "y" * (messages.MAX_TEXT_LENGTH + 12_345)
    ended, part = await outcome(monkeypatch, lambda _: result(long))
    assert part.content.startswith("y" * messages.MAX_TEXT_LENGTH + "\n(12345 more characters omitted. Ask for less")
    assert len(part.content) < messages.MAX_TEXT_LENGTH + 200
    assert (ended.text, ended.blocks) == (part.content, (text_block(long),))


def test_all_texts_of_a_result_count_for_the_limit_and_files_do_not() -> None:
    half = messages.MAX_TEXT_LENGTH // 2 + 1
    blocks = [text_block("a" * half), image(50), text_block("b" * half), text_block("c" * half)]
    first, picture, second, note = content_of(content=blocks)
    assert isinstance(picture, BinaryContent)
    assert (first, second) == ("a" * half, "b" * (messages.MAX_TEXT_LENGTH - half))
    # One of the omitted characters is the line break between the two texts.
    assert note.startswith(f"({half + 3} more characters omitted.")
    whole = "a" * messages.MAX_TEXT_LENGTH
    assert content_of(content=[text_block(whole)]) == whole
    error = ToolOutcome(status=ToolStatus.ERROR, words="z" * 2 * messages.MAX_TEXT_LENGTH)
    text = messages.result_content(error, ToolFormat.OPENAI_CHAT)
    assert isinstance(text, str)
    assert f"({messages.MAX_TEXT_LENGTH} more characters omitted." in text[messages.MAX_TEXT_LENGTH :]


def test_files_that_are_too_large_are_replaced_by_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    [fits] = content_of(content=[image(messages.MAX_FILE_BYTES)])
    assert isinstance(fits, BinaryContent)
    assert len(base64.b64encode(fits.data)) <= 5 * 1024 * 1024, "Anthropic's limit, counted in base64"
    size = messages.MAX_FILE_BYTES + 1
    note = f"See:\n(image/png, {size} bytes: too large to show.)"
    assert content_of(content=[text_block("See:"), image(size)]) == note
    monkeypatch.setattr(messages, "MAX_TOTAL_FILE_BYTES", 250)
    *shown, text = content_of(content=[image(100)] * 3)
    assert [len(one.data) for one in shown] == [100, 100]
    assert text == "(image/png, 100 bytes: too large to show.)"


def test_a_result_that_nests_too_deeply_is_replaced_by_a_note() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"inner": deep}
    nested = Result(blocks=(OtherBlock(kind="odd", raw=deep),), structured=None, is_error=False, raw={})
    assert messages.result_content(ToolOutcome(status=ToolStatus.OK, result=nested), ToolFormat.ANTHROPIC) == TOO_DEEP


async def test_split_characters_are_joined_and_lone_halves_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = [
        *(Thinks(text=text) for text in (f"Hm {FIRST}", f"{SECOND}{FIRST}")),
        *(f"Hi {FIRST}", SECOND, f" {SECOND}a{FIRST}", f"b{FIRST}"),
        Calls(tool="act", arguments=f'{{"a": "{FIRST}{SECOND}"}}', id=f"one{FIRST}"),
    ]
    kit = desk(act=lambda given_: given_["a"])
    model = in_memory(monkeypatch, turn, [f"Bye {FIRST}", SECOND, FIRST], kit=kit)
    events = await run(**SERVERS)
    last = only(RunFinished, events)
    assert last.text == f"Bye {FACE}{LONE}"
    assert "".join(one.text for one in of(ReasoningDelta, events)) == f"Hm {FACE}{LONE}"
    assert "".join(one.text for one in of(TextDelta, events)) == f"Hi {FACE} {LONE}a{LONE}b{LONE}Bye {FACE}{LONE}"
    assert [given_ for _, given_ in kit.calls] == [{"a": FACE}]
    assert [part.content for part in model.results] == [FACE]
    for event in events:
        json.dumps(event.to_json(), ensure_ascii=False).encode()
    assert only(RunFinished, await run(history=json.loads(json.dumps(last.messages)))).text == f"Bye {FACE}{LONE}"
    in_memory(monkeypatch, [f"Hi {FIRST}", lambda: asyncio.Event().wait()])
    events = await run(timeout=1)
    broken_off = "".join(one.text for one in of(TextDelta, events))
    assert only(RunFinished, events).text == f"Hi {LONE}" == broken_off


PIECES = st.text(st.characters(codec=None), max_size=5) | st.text(st.sampled_from(["a", "é", FACE, FIRST, SECOND]))


@given(st.lists(PIECES))
def test_pieces_of_a_text_add_up_to_the_whole(cut: list[str]) -> None:
    pieces = TextPieces()
    added = "".join([*map(pieces.add, cut), pieces.rest()])
    assert added == whole_text("".join(cut))
    added.encode()
    assert whole_text(added) == added


def test_arguments_and_results_have_only_whole_characters() -> None:
    assert whole_arguments({"a": [f"{FIRST}{SECOND}", 1, None], "b": FIRST}) == {"a": [FACE, 1, None], "b": LONE}
    assert whole_arguments(f'{{"a": "{FIRST}{SECOND}"}}') == f'{{"a": "{FACE}"}}'
    assert whole_arguments(None) is None
    good = read_result(json.dumps(result("x")).encode())
    odd = replace(good, blocks=tuple(replace(one, text=f"x{FIRST}") for one in good.blocks))
    assert messages.result_content(ToolOutcome(status=ToolStatus.OK, result=odd), ToolFormat.GOOGLE) == f"x{LONE}"
    assert messages.result_content(ToolOutcome(status=ToolStatus.ERROR, words=FIRST), ToolFormat.GOOGLE) == LONE


async def test_a_run_ends_after_its_last_step_and_another_can_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, ["I go on.", Calls(tool="act")], kit=desk(act=lambda _: "more"))
    events = await run(**SERVERS, max_steps=3)
    last = only(RunFinished, events)
    assert (last.ended, last.text, last.steps) == (RunEnd.MAX_STEPS, "I go on.", 3)
    assert len(model.asked) == len(calls_of(events)) == len(of(StepFinished, events)) == 3
    model = in_memory(monkeypatch, *[["never"]] * 3, ["Finally."], kit=desk(act=lambda _: "more"))
    again = await run("Go on.", **SERVERS, history=last.messages)
    assert only(RunFinished, again).text == "Finally."
    assert [part.content for part in model.results] == ["more"] * 3


async def test_a_run_continues_from_a_history_stored_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = {"content": [{"type": "image", "data": DATA, "mimeType": "image/png"}]}
    in_memory(monkeypatch, [Calls(tool="look")], ["I saw it."], kit=desk(look=lambda _: picture))
    first = only(RunFinished, await run("Look!", **SERVERS))
    stored = json.loads(json.dumps(first.to_json()["messages"]))
    model = in_memory(monkeypatch, ["x"], ["x"], ["As I said."])
    last = only(RunFinished, await run("What did you see?", history=stored))
    assert last.text == "As I said."
    assert "Look!" in str(model.asked[0])
    assert "I saw it." in str(model.asked[0])
    [[sent]] = [part.content for part in model.results]
    assert (sent.data, sent.media_type) == (PNG, "image/png")
    assert last.messages[: len(stored)] == stored


async def test_a_history_with_unanswered_calls_can_be_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"part_kind": "tool-call", "tool_name": "act", "args": "{}", "tool_call_id": "1"}
    prompt = {"part_kind": "user-prompt", "content": "Go."}
    history = [{"kind": "request", "parts": [prompt]}, {"kind": "response", "parts": [call]}]
    model = in_memory(monkeypatch, ["x"], ["Fine."])
    assert only(RunFinished, await run(history=history)).text == "Fine."
    assert len(model.results) == 1


KEYS = st.sampled_from(["kind", "parts", "part_kind", "content", "tool_name", "tool_call_id", "args", "state", "usage"])
VALUES = st.sampled_from(
    ["request", "response", "user-prompt", "tool-return", "tool-call", "text", "system-prompt", "suspended", "x", ""]
)
MESSAGES = st.recursive(
    VALUES | JSON, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_any_history_is_read_or_refused(history: list[Any]) -> None:
    try:
        read = messages.read_history(history)
    except UsageError as error:
        assert error.remedy
    else:
        assert messages.read_history(messages.write_history(read)) == read


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (lambda _: True, ToolStatus.OK, ""),
        (lambda _: False, ToolStatus.DENIED, ""),
        (lambda _: "not on a Friday", ToolStatus.DENIED, "not on a Friday"),
        (lambda _: 1, ToolStatus.DENIED, ""),
        (raising(ValueError("no screen")), ToolStatus.DENIED, "no screen"),
    ],
)
async def test_approve_decides_calls_that_may_change_something(
    monkeypatch: pytest.MonkeyPatch, answer: Any, status: ToolStatus, reason: str
) -> None:
    asked: list[ToolRequest] = []

    def approve(request: ToolRequest) -> Any:
        asked.append(request)
        return answer(request)

    async def approve_later(request: ToolRequest) -> Any:
        await asyncio.sleep(0)
        return approve(request)

    for callback in (approve, approve_later):
        ran: list[Any] = []
        ended, part = await outcome(
            monkeypatch, lambda given_, ran=ran: (ran.append(given_), "done")[1], '{"a": 1}', approve=callback
        )
        assert ended.tool_status is status
        assert bool(ran) is (status is ToolStatus.OK)
        if status is ToolStatus.DENIED:
            assert (part.outcome, ended.decision) == ("denied", "deny")
            assert "did not run" in part.content
            assert reason in part.content
            assert reason in ended.rule
    assert [(one.name, one.server, one.arguments, one.call) for one in asked] == [("act", "desk", {"a": 1}, "c0_0")] * 2


async def test_a_denial_by_the_server_has_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, _ = await outcome(monkeypatch, raising(Denied("You may not.", data={"rule": "deny desk:*"})))
    assert (ended.tool_status, ended.rule) == (ToolStatus.DENIED, "deny desk:*")


async def test_read_only_tools_of_trusted_servers_need_no_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    reads = {"annotations": {"readOnlyHint": True}}
    tools = {"desk": {"look": lambda _: "x"}, "odd": {"see": lambda _: "y"}}
    kit = FakeServers(tools, definitions={"look": reads, "see": reads}, trusted=frozenset({"desk"}))
    in_memory(monkeypatch, [Calls(tool="look"), Calls(tool="see")], ["Done."], kit=kit)
    await run(**SERVERS, approve=lambda request: asked.append(request.server) or True)
    assert asked == ["odd"]


async def test_approvals_are_requested_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = Peak()

    async def approve(_: ToolRequest) -> bool:
        await peak.count()
        return True

    in_memory(monkeypatch, [Calls(tool="act")] * 4, ["Done."], kit=desk(act=lambda _: "x"))
    events = await run(**SERVERS, approve=approve)
    assert [ended.tool_status for _, ended in calls_of(events)] == [ToolStatus.OK] * 4
    assert peak.most == 1


async def test_approve_gets_the_arguments_that_the_tool_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = {"rm": taking(path={"type": "string"}, force={})}
    kit = FakeServers({"desk": {"rm": lambda _: "gone"}}, definitions=definitions)
    in_memory(monkeypatch, [Calls(tool="rm", arguments='{"p": "/etc/x"}')], ["Done."], kit=kit)
    asked: list[dict[str, Any]] = []

    def approve(request: ToolRequest) -> bool:
        asked.append(dict(request.arguments))
        request.arguments["path"] = "/changed"  # type: ignore[index]
        return True

    await run(**SERVERS, approve=approve, transform=[RenameArguments({"path": "p"}), FixArguments({"force": True})])
    assert asked == [{"path": "/etc/x", "force": True}]
    assert kit.calls == [("rm", {"path": "/etc/x", "force": True})]
    either = [{"properties": {name: {"type": "string"}}, "required": [name]} for name in ("path", "url")]
    schema = {"inputSchema": {"type": "object", "oneOf": either}}
    kit = FakeServers({"desk": {"rm": lambda _: "gone"}}, definitions={"rm": schema})
    in_memory(monkeypatch, [Calls(tool="rm", arguments='{"arguments": {"path": "/etc/x"}}')], ["Done."], kit=kit)
    asked.clear()
    await run(**SERVERS, approve=lambda request: asked.append(request.arguments) or True)
    assert [("rm", one) for one in asked] == kit.calls
    assert asked[0] in ({"path": "/etc/x"}, {"arguments": {"path": "/etc/x"}})


async def test_calls_with_invalid_arguments_need_no_approval(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked: list[Any] = []
    kit = FakeServers({"desk": {"add": lambda _: "2"}}, definitions={"add": taking(a={"type": "integer"})})
    calls = [
        Calls(tool="add", arguments='{"a": "two"}'),
        Calls(tool="Write", arguments='{"path": "a.txt", "content": "x"}'),
        Calls(tool="Write", arguments='{"file_path": "a.txt", "content": "x", "unknown": null}'),
        Calls(tool="Read", arguments='{"file_path": "b.txt", "limit": "1"}'),
    ]
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    in_memory(monkeypatch, calls, ["Done."], kit=kit)
    approving = {"approve": lambda request: asked.append(request.arguments) or True}
    events = await run(**SERVERS, coding_tools=CodingTools.all(tmp_path), **approving)
    server_call, wrong, right, quoted_number = (ended for _, ended in calls_of(events))
    assert (server_call.tool_status, kit.calls) == (ToolStatus.INVALID, [])
    assert wrong.tool_status is ToolStatus.INVALID
    assert "file_path" in wrong.text
    assert (right.tool_status, asked) == (ToolStatus.OK, [{"file_path": "a.txt", "content": "x"}])
    assert (tmp_path / "a.txt").read_text() == "x"
    assert (quoted_number.tool_status, "two" in quoted_number.text) == (ToolStatus.OK, False)


async def test_approve_may_run_another_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, [Calls(tool="act")], ["Done."], kit=desk(act=lambda _: "x"))

    async def approve(_: ToolRequest) -> bool:
        async with run_agent("Is it right?", options()) as inner:
            async for _event in inner:
                break
        return True

    [(_, ended)] = calls_of(await run(**SERVERS, approve=approve))
    assert ended.tool_status is ToolStatus.OK


async def test_a_timeout_cancels_running_calls_and_the_run_can_be_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[str] = []

    async def hang(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.append("cancelled")

    kit = desk(hang=hang, quick=lambda _: "done")
    model = in_memory(monkeypatch, ["I begin.", Calls(tool="hang"), Calls(tool="quick")], kit=kit)
    events = await run(**SERVERS, timeout=1)
    last = only(RunFinished, events)
    assert events[-1] is last
    assert (last.ended, last.text, last.steps) == (RunEnd.TIMEOUT, "I begin.", 1)
    statuses = {ended.tool_name: ended.tool_status for _, ended in calls_of(events)}
    assert statuses == {"hang": ToolStatus.CANCELLED, "quick": ToolStatus.OK}
    assert over == ["cancelled"]
    assert (kit.closed, model.closed) == (1, 1)
    assert not other_tasks()
    model = in_memory(monkeypatch, ["x"], ["I see."])
    again = await run("Go on.", history=json.loads(json.dumps(last.messages)))
    assert only(RunFinished, again).text == "I see."
    assert len(model.results) == 2


async def test_the_timeout_includes_connecting_and_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    class Slow(FakeServers):
        async def __aenter__(self) -> Any:
            await hang()

    in_memory(monkeypatch, ["never"], kit=Slow())
    assert [event.type for event in await run(**SERVERS, timeout=0.1)] == ["run_started", "run_finished"]
    in_memory(monkeypatch, ["I thi", hang, "nk."])
    last = only(RunFinished, await run(timeout=1))
    assert (last.ended, last.text) == (RunEnd.TIMEOUT, "I thi")
    assert not other_tasks()


async def test_an_answer_without_text_or_calls_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, ["I act.", Calls(tool="act")], [Thinks(text="That was it.")], kit=desk(act=lambda _: "x"))
    last = only(RunFinished, await run(**SERVERS))
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "I act.", 2)


SECRET = "sk-very+secret/key"
UNAUTHORIZED = ModelHTTPError(401, "m", {"error": {"message": f"bad key {SECRET}"}})


@pytest.mark.parametrize(
    ("error", "text", "remedy", "logged"),
    [
        (UNAUTHORIZED, "401: bad key ****", "key", ""),
        (RuntimeError(f"odd {SECRET}"), "RuntimeError: odd ****", "", "Traceback"),
    ],
)
async def test_a_failure_ends_the_run_without_showing_the_key(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    text: str,
    remedy: str,
    logged: str,
) -> None:
    caplog.set_level(logging.WARNING)
    model = in_memory(monkeypatch, ["Hello.", error])
    run_ = run_agent("Go.", options(api_key=SECRET))
    events = [event async for event in run_]
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert (failed.error, failed.steps, model.closed) == (text, 0, 1)
    assert remedy in failed.remedy
    assert logged in caplog.text
    shown = repr(events) + repr(run_) + json.dumps([event.to_json() for event in events]) + caplog.text
    assert SECRET not in shown


@pytest.mark.parametrize("key", ["sk-secret", "a+b/c=d e"])
def test_a_key_is_masked_also_in_a_url(key: str) -> None:
    from urllib.parse import quote

    emitter = EventEmitter(run_id="1", provider="p", key=key, queue=EventQueue())
    assert emitter.without_key(f"<{key}> ?key={quote(key, safe='')}&x") == "<****> ?key=****&x"
    assert EventEmitter(run_id="1", provider="p", key="", queue=EventQueue()).without_key("all of it") == "all of it"


async def test_retries_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_memory(monkeypatch, ["Hello."])

    def opened(_options: AgentOptions, _offers: Any, on_retry: Any) -> Any:
        on_retry("429: slower, sk-secret", 1.5, 1)
        return model.open_model()

    monkeypatch.setattr(opening, "open_model", opened)
    retrying = only(Retrying, await run(api_key="sk-secret"))
    assert (retrying.reason, retrying.delay, retrying.attempt) == ("429: slower, ****", 1.5, 1)
