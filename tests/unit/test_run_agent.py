"""The loop of `run_agent` with a model and servers in memory: what is told, what the model gets, how it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent

from parts.agent_runs import Bench, Calls, Thinks, in_memory, options, other_tasks, result, run
from toolcrib.agent_loop.events import (
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
from toolcrib.agent_loop.options import AgentOptions, ToolRequest
from toolcrib.agent_loop.run import run_agent
from toolcrib.catalog.names import is_legal
from toolcrib.catalog.transforms import RenameTools
from toolcrib.errors import CallTimeout, Denied, InvalidArguments, ServerUnavailable, UsageError
from toolcrib.run_events import FAILURE_KEY, AgentEvent, AgentEventKind, ToolStatus

SERVERS: dict[str, Any] = {"mcp_servers": ["stands for the bench"]}
PIXELS = b"\x89PNG\r\n"
DATA = base64.b64encode(PIXELS).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff").decode()
PDF = base64.b64encode(b"%PDF").decode()


def desk(**tools: Any) -> Bench:
    return Bench({"desk": tools})


def kinds(events: list[RunEvent]) -> list[str]:
    return [event.type for event in events]


def only(events: list[RunEvent], kind: type[Any]) -> Any:
    (event,) = [event for event in events if isinstance(event, kind)]
    return event


def calls_of(events: list[RunEvent]) -> list[tuple[Any, Any]]:
    """Each call with its end; each must have one of both."""
    began = [event for event in events if isinstance(event, ToolCalled)]
    ended = {event.call: event for event in events if isinstance(event, ToolFinished)}
    assert len(ended) == sum(isinstance(event, ToolFinished) for event in events) == len(began)
    assert all(events.index(one) < events.index(ended[one.call]) for one in began)
    return [(one, ended[one.call]) for one in began]


async def outcome(monkeypatch: pytest.MonkeyPatch, does: Any, arguments: str = "{}", **given: Any) -> tuple[Any, Any]:
    """One call of `act`: its last event, and what the model was told."""
    world = in_memory(monkeypatch, [Calls(tool="act", arguments=arguments)], ["Well."], kit=desk(act=does))
    events = await run(**SERVERS, **given)
    assert only(events, RunFinished).ended is RunEnd.DONE
    ((_, ended),) = calls_of(events)
    (told,) = world.results
    return ended, told


def raising(error: Exception) -> Any:
    def act(_: Any) -> None:
        raise error

    return act


@pytest.mark.req("KAI-1", "KAI-7", "FRG-6")
async def test_a_run_tells_each_fact_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(add=lambda given: str(given["a"] + given["b"]))
    turn = [Thinks(text="Numbers."), "I add", " them.", Calls(tool="add", arguments='{"a": 2, "b": 3}')]
    world = in_memory(monkeypatch, turn, ["It is 5."], kit=kit)
    events = await run("What is 2 + 3?", **SERVERS)
    assert kinds(events) == [
        "run_started",
        "mcp_connected",
        "reasoning_delta",
        "text_delta",
        "text_delta",
        "tool_call",
        "tool_result",
        "step_finished",
        "text_delta",
        "step_finished",
        "run_finished",
    ]
    started, last = events[0], events[-1]
    assert isinstance(started, RunStarted)
    assert isinstance(last, RunFinished)
    assert (started.model, started.max_steps) == ("anthropic:scripted", 30)
    assert (last.text, last.ended, last.steps, last.usage.requests) == ("It is 5.", RunEnd.DONE, 2, 2)
    ((called, ended),) = calls_of(events)
    assert (called.tool_name, called.server, called.tool_args) == ("add", "desk", {"a": 2, "b": 3})
    assert (ended.tool_status, ended.text, ended.blocks) == (ToolStatus.OK, "5", ({"type": "text", "text": "5"},))
    assert 0 < ended.tool_duration_ms < 60_000
    assert [part.content for part in world.results] == ["5"]
    assert {event.run_id for event in events} == {started.run_id} != {""}
    assert {event.provider for event in events} == {"anthropic"}


@pytest.mark.req("FRG-6")
async def test_every_event_is_an_agent_event_and_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(
        monkeypatch,
        [Thinks(text="Hm."), "I look.", Calls(tool="look"), Calls(tool="nothing")],
        ["Done."],
        kit=Bench({"desk": {"look": lambda _: result("seen", structuredContent={"n": 1})}}, missing={"lamp": "broken"}),
    )
    events = await run(**SERVERS)
    assert all(isinstance(event, AgentEvent) for event in events)
    for event in events:
        plain = event.to_json()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["type"] == event.type
    assert {event.kind for event in events} == {
        AgentEventKind.LOG,
        AgentEventKind.MESSAGE,
        AgentEventKind.REASONING,
        AgentEventKind.TOOL,
    }
    assert {event.type for event in events if event.kind is AgentEventKind.TOOL} == {"tool_call", "tool_result"}
    assert only(events, RunFinished).to_json()["usage"]["requests"] == 2


@pytest.mark.req("KAI-2")
async def test_without_servers_there_are_no_tools_and_no_words_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, ["Hello."])
    events = await run()
    assert kinds(events) == ["run_started", "text_delta", "step_finished", "run_finished"]
    assert world.offered == [[]]


@pytest.mark.req("KAI-4", "KAI-7")
async def test_servers_that_are_missing_are_told_before_the_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    kit = Bench({"desk": {"look": lambda _: "x", "see": lambda _: "y"}}, missing={"lamp": "no answer", "fan": "gone"})
    in_memory(monkeypatch, [lambda: seen.append("asked"), "Hello."], kit=kit)
    async for event in run_agent("Go.", options(**SERVERS)):
        seen.append(event.type)
        if isinstance(event, McpConnected):
            assert (event.servers, event.tools) == (("desk",), {"desk": 2})
        if isinstance(event, McpWarning):
            assert event.reason == {"lamp": "no answer", "fan": "gone"}[event.server]
    assert seen[:5] == ["run_started", "mcp_warning", "mcp_warning", "mcp_connected", "asked"]
    assert (kit.opened, kit.closed) == (1, 1)


@pytest.mark.req("KAI-7")
async def test_the_model_is_not_asked_while_events_wait_for_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, [Calls(tool="look")], ["Done."], kit=desk(look=lambda _: "x"))
    async with run_agent("Go.", options(**SERVERS)) as events:
        assert isinstance(await anext(events), RunStarted)
        for _ in range(200):
            await asyncio.sleep(0)
        assert not world.asked
        assert isinstance(await anext(events), McpConnected)
        assert isinstance(await anext(events), ToolCalled)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(world.asked) == 1


async def test_a_crib_is_offered_beside_the_servers_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(look=lambda _: "from the kit", own=lambda _: "own")
    crib = Bench({"shelf": {"look": lambda _: "from the crib", "book": lambda _: "a book"}}, missing={"far": "away"})
    turn = [Calls(tool="look"), Calls(tool="book")]
    world = in_memory(monkeypatch, turn, ["Done."], kit=kit)
    events = await run(**SERVERS, crib=crib)
    assert only(events, McpConnected).servers == ("desk", "shelf")
    assert only(events, McpConnected).tools == {"desk": 2, "shelf": 1}
    assert only(events, McpWarning).server == "far"
    conflict = only(events, NameConflict)
    assert (conflict.name, conflict.kept, conflict.left_out) == ("look", "desk:look", "shelf:look")
    assert [part.content for part in world.results] == ["from the kit", "a book"]
    assert (crib.opened, crib.closed) == (0, 0)


@pytest.mark.req("KAI-6")
async def test_tools_have_their_plain_names_and_calls_undo_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(read_file=lambda given: f"read {given}", write_file=lambda _: "", rm=lambda _: "")
    world = in_memory(monkeypatch, [Calls(tool="slurp", arguments='{"path": "a"}')], ["Done."], kit=kit)
    await run(**SERVERS, keep="*_file", drop="desk:write_*", transform=[RenameTools({"read_file": "slurp"})])
    assert world.offered[0] == ["slurp"]
    assert kit.calls == [("read_file", {"path": "a"})]
    world = in_memory(monkeypatch, ["Done."], kit=kit)
    await run(**SERVERS)
    assert world.offered[0] == ["read_file", "write_file", "rm"]


async def test_calls_of_one_answer_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(3)

    async def meet(_: Any) -> str:
        async with asyncio.timeout(60):
            await both.wait()
        return "met"

    in_memory(monkeypatch, [Calls(tool="meet")] * 3, ["Done."], kit=desk(meet=meet))
    events = await run(**SERVERS)
    assert [ended.text for _, ended in calls_of(events)] == ["met"] * 3


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RuntimeError("it broke"), ToolStatus.ERROR, "RuntimeError: it broke"),
        (ServerUnavailable("Server 'desk' is gone."), ToolStatus.UNAVAILABLE, "Server 'desk' is gone."),
        (CallTimeout("No answer in 5 s."), ToolStatus.TIMEOUT, "No answer in 5 s."),
        (InvalidArguments("a: a number is needed", remedy="Correct it."), ToolStatus.INVALID, "Correct it."),
        (TimeoutError("slow"), ToolStatus.ERROR, "TimeoutError: slow"),
        (KeyError("x"), ToolStatus.ERROR, "KeyError"),
    ],
)
async def test_a_tool_that_raises_is_a_result_that_the_model_can_act_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: ToolStatus, words: str
) -> None:
    ended, told = await outcome(monkeypatch, raising(error))
    assert ended.tool_status is status
    assert words in ended.text
    assert words in told.content
    assert told.outcome == "failed"


async def test_a_tool_that_is_cancelled_from_within_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(_: Any) -> str:
        raise asyncio.CancelledError

    ended, told = await outcome(monkeypatch, act)
    assert ended.tool_status is ToolStatus.CANCELLED
    assert told.outcome == "failed"


async def test_a_tool_that_says_it_failed_is_told_with_all_it_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = {"type": "image", "data": DATA, "mimeType": "image/png"}
    ended, told = await outcome(
        monkeypatch, lambda _: {"content": [{"type": "text", "text": "See:"}, picture], "isError": True}
    )
    assert ended.tool_status is ToolStatus.ERROR
    assert told.outcome == "failed"
    assert told.content == ["See:", BinaryContent(data=PIXELS, media_type="image/png")]
    assert ended.blocks == ({"type": "text", "text": "See:"}, picture)


async def test_a_tool_whose_command_failed_is_shown_as_failed_though_its_call_went_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = {"content": [{"type": "text", "text": "Exit code 3"}], "_meta": {FAILURE_KEY: "Exit code 3"}}
    ended, told = await outcome(monkeypatch, lambda _: failed)
    assert (ended.tool_status, ended.text) == (ToolStatus.ERROR, "Exit code 3")
    assert (told.content, told.outcome) == ("Exit code 3", "success"), "the model gets it as MCP has it"
    fine, _ = await outcome(monkeypatch, lambda _: failed | {"_meta": {FAILURE_KEY: ""}})
    assert fine.tool_status is ToolStatus.OK


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", '"text"', "nonsense", '{"a": NaN}', "[" * 100_000, "null"])
async def test_arguments_that_are_no_json_object_are_told_and_no_tool_runs(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    ran: list[Any] = []
    ended, told = await outcome(monkeypatch, ran.append, arguments)
    assert not ran
    assert ended.tool_status is ToolStatus.INVALID
    assert "JSON" in told.content
    assert told.outcome == "failed"
    assert ended.raw == arguments


async def test_a_tool_that_does_not_exist_is_told_and_those_that_do_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, [Calls(tool="luk", arguments='{"x": 1}')], ["Oh."], kit=desk(look=lambda _: "x"))
    events = await run(**SERVERS)
    ((called, ended),) = calls_of(events)
    assert (called.server, called.tool_args) == ("", {"x": 1})
    assert ended.tool_status is ToolStatus.UNKNOWN
    assert "look" in ended.text
    assert world.results[0].content == ended.text


@pytest.mark.parametrize("call", [Calls(tool="luk"), Calls(tool="look", arguments="{"), Calls(tool="fail")])
async def test_a_model_may_err_as_often_as_it_has_steps(monkeypatch: pytest.MonkeyPatch, call: Calls) -> None:
    kit = desk(look=lambda _: "x", fail=raising(RuntimeError("no")))
    world = in_memory(monkeypatch, *([[call]] * 60), ["At last."], kit=kit)
    events = await run(**SERVERS, max_steps=70)
    assert only(events, RunFinished).text == "At last."
    assert len(calls_of(events)) == len(world.results) == 60


async def test_calls_that_share_an_id_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = desk(a=lambda _: "A", b=lambda _: "B", c=lambda _: "C")
    world = in_memory(monkeypatch, [Calls(tool=name, id="call_0") for name in "abc"], ["Done."], kit=kit)
    events = await run(**SERVERS)
    assert [ended.text for _, ended in calls_of(events)] == ["A", "B", "C"]
    assert [part.content for part in world.results] == ["A", "B", "C"]
    assert len({part.tool_call_id for part in world.results}) == 3


@pytest.mark.parametrize("name", ["functions.look", "", "ä" * 200, "look\n", "x" * 500])
async def test_a_name_that_no_provider_takes_does_not_go_back_into_the_conversation(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    world = in_memory(monkeypatch, [Calls(tool=name)], ["Oh."], kit=desk(look=lambda _: "x"))
    events = await run(**SERVERS)
    assert only(events, RunFinished).text == "Oh."
    ((_, ended),) = calls_of(events)
    assert ended.tool_status is ToolStatus.UNKNOWN
    (told,) = world.results
    assert is_legal(told.tool_name)
    assert {part["tool_name"] for part in only(events, RunFinished).messages[1]["parts"]} == {told.tool_name}


async def test_results_of_every_kind_reach_the_model_and_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
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
    structured = {"answer": 42}
    ended, told = await outcome(monkeypatch, lambda _: {"content": blocks, "structuredContent": structured})
    words = "\n".join(item for item in told.content if isinstance(item, str))
    files = [item.media_type for item in told.content if isinstance(item, BinaryContent)]
    assert files == ["image/jpeg", "application/pdf"]
    for what in ("One.", "audio/wav", "6 bytes", "image/x-odd", "inside", "a.pdf", "file:///far", "surprise", "42"):
        assert what in words, what
    assert list(ended.blocks) == blocks
    assert ended.structured == structured
    assert ended.text == words


async def test_structured_content_is_told_once_and_an_empty_result_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = await outcome(monkeypatch, lambda _: result('{"n": 1}', structuredContent={"n": 1}))
    assert told.content == '{"n": 1}'
    _, told = await outcome(monkeypatch, lambda _: result(structuredContent={"n": 1}))
    assert told.content == '{"n": 1}'
    _, told = await outcome(monkeypatch, lambda _: result(" \n "))
    assert "without any output" in told.content


async def test_the_last_step_is_the_last_and_what_was_said_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, ["I go on.", Calls(tool="act")], kit=desk(act=lambda _: "more"))
    events = await run(**SERVERS, max_steps=3)
    last = only(events, RunFinished)
    assert (last.ended, last.text, last.steps) == (RunEnd.MAX_STEPS, "I go on.", 3)
    assert len(world.asked) == 3
    assert len(calls_of(events)) == 3
    assert sum(isinstance(event, StepFinished) for event in events) == 3
    # The last call's result is in the conversation, so a run can go on from there.
    world = in_memory(monkeypatch, *[["never"]] * 3, ["Finally."], kit=desk(act=lambda _: "more"))
    again = await run("Go on.", **SERVERS, history=last.messages)
    assert only(again, RunFinished).text == "Finally."
    assert [part.content for part in world.results] == ["more"] * 3


async def test_a_run_goes_on_from_the_history_of_another_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = {"content": [{"type": "image", "data": DATA, "mimeType": "image/png"}]}
    in_memory(monkeypatch, [Calls(tool="look")], ["I saw it."], kit=desk(look=lambda _: picture))
    first = only(await run("Look!", **SERVERS), RunFinished)
    kept = json.loads(json.dumps(first.to_json()["messages"]))
    world = in_memory(monkeypatch, ["x"], ["x"], ["As I said."])
    events = await run("What did you see?", history=kept)
    assert only(events, RunFinished).text == "As I said."
    given = str(world.asked[0])
    assert "Look!" in given
    assert "I saw it." in given
    ((picture_again,),) = [part.content for part in world.results]
    assert (picture_again.data, picture_again.media_type) == (PIXELS, "image/png")
    assert only(events, RunFinished).messages[: len(kept)] == kept


@pytest.mark.parametrize(
    "history",
    [
        [{}],
        ["text"],
        [{"kind": "request"}],
        [{"kind": "request", "parts": [{"part_kind": "user-prompt"}]}],
        [{"kind": "response", "parts": [], "state": "suspended"}],
        [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": b"\xff"}]}],
        [{"kind": "unknown", "parts": []}],
        "not a list",
        json.loads("[" * 900 + "]" * 900),
    ],
)
async def test_a_history_that_is_none_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, history: Any
) -> None:
    kit = desk()
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    with pytest.raises(UsageError) as refused:
        await run(**SERVERS, history=history)
    assert "messages" in refused.value.remedy
    assert (kit.opened, world.opened) == (0, 0)


async def test_calls_of_a_history_that_were_never_answered_do_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Go."}]},
        {
            "kind": "response",
            "parts": [{"part_kind": "tool-call", "tool_name": "act", "args": "{}", "tool_call_id": "1"}],
        },
    ]
    world = in_memory(monkeypatch, ["x"], ["Fine."])
    assert only(await run(history=history), RunFinished).text == "Fine."
    assert len(world.results) == 1


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"model": "nobody:x"}, "provider"),
        ({"model": "scripted"}, "provider"),
        ({"base_url": "", "environ": {}}, "ANTHROPIC_API_KEY"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"coding_tools": "some"}, "coding_tools"),
    ],
)
async def test_options_that_cannot_work_are_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], word: str
) -> None:
    kit = desk()
    world = in_memory(monkeypatch, ["Hello."], kit=kit)
    run_ = run_agent("Go.", options(**SERVERS, **given))
    with pytest.raises(UsageError) as refused:
        await anext(run_)
    assert word in refused.value.text()
    assert refused.value.remedy
    with pytest.raises(StopAsyncIteration):
        await anext(run_)
    assert (kit.opened, world.opened) == (0, 0)
    assert not other_tasks()


@pytest.mark.parametrize("prompt", ["", "  \n"])
async def test_a_run_needs_a_prompt(prompt: str) -> None:
    with pytest.raises(UsageError, match="prompt"):
        await run(prompt)


async def test_two_servers_of_one_name_are_refused() -> None:
    from toolcrib.config.from_code import HttpServer

    twice = [HttpServer("jobs", url="http://127.0.0.1:9/mcp"), HttpServer("Jobs", url="http://127.0.0.1:8/mcp")]
    with pytest.raises(UsageError, match="one name"):
        await run(mcp_servers=twice)


@pytest.mark.parametrize(
    ("approve", "status"),
    [
        (lambda _: True, ToolStatus.OK),
        (lambda _: False, ToolStatus.DENIED),
        (lambda _: "not on a Friday", ToolStatus.DENIED),
        (lambda _: 1, ToolStatus.DENIED),
        (raising(ValueError("no screen")), ToolStatus.DENIED),
    ],
)
async def test_a_call_that_may_change_something_is_approved_by_the_program(
    monkeypatch: pytest.MonkeyPatch, approve: Any, status: ToolStatus
) -> None:
    asked: list[ToolRequest] = []

    def ask(request: ToolRequest) -> Any:
        asked.append(request)
        return approve(request)

    async def ask_later(request: ToolRequest) -> Any:
        await asyncio.sleep(0)
        return ask(request)

    for callback in (ask, ask_later):
        ran: list[Any] = []
        ended, told = await outcome(
            monkeypatch, lambda given, ran=ran: (ran.append(given), "done")[1], '{"a": 1}', approve=callback
        )
        assert ended.tool_status is status
        assert bool(ran) is (status is ToolStatus.OK)
        if status is ToolStatus.DENIED:
            assert told.outcome == "denied"
            assert "did not run" in told.content
            assert ended.decision == "deny"
    assert [(one.name, one.server, one.arguments) for one in asked] == [("act", "desk", {"a": 1})] * 2
    assert {one.call for one in asked} == {"c0_0"}


async def test_the_reason_for_a_denial_reaches_the_model_and_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, told = await outcome(monkeypatch, lambda _: "x", approve=lambda _: "not on a Friday")
    assert "not on a Friday" in told.content
    assert ended.rule == "not on a Friday"
    ended, told = await outcome(monkeypatch, lambda _: "x", approve=raising(ValueError("no screen")))
    assert "no screen" in told.content
    ended, _ = await outcome(monkeypatch, raising(Denied("You may not.", data={"rule": "deny desk:*"})))
    assert (ended.tool_status, ended.rule) == (ToolStatus.DENIED, "deny desk:*")


async def test_nobody_is_asked_for_a_tool_that_only_reads_by_the_word_of_a_trusted_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = {"look": {"annotations": {"readOnlyHint": True}}}
    asked: list[str] = []

    def ask(request: ToolRequest) -> bool:
        asked.append(request.server)
        return True

    tools = {"desk": {"look": lambda _: "x"}, "odd": {"see": lambda _: "y"}}
    definitions = {**reads, "see": reads["look"]}
    kit = Bench(tools, definitions=definitions, trusted=frozenset({"desk"}))
    in_memory(monkeypatch, [Calls(tool="look"), Calls(tool="see")], ["Done."], kit=kit)
    await run(**SERVERS, approve=ask)
    assert asked == ["odd"]


async def test_one_approval_is_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = most = 0

    async def ask(_: ToolRequest) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _turn in range(5):
            await asyncio.sleep(0)
        now -= 1
        return True

    in_memory(monkeypatch, [Calls(tool="act")] * 4, ["Done."], kit=desk(act=lambda _: "x"))
    events = await run(**SERVERS, approve=ask)
    assert [ended.tool_status for _, ended in calls_of(events)] == [ToolStatus.OK] * 4
    assert most == 1


async def test_when_the_time_is_up_calls_under_way_are_cancelled_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[str] = []

    async def hang(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            over.append("cancelled")
        return ""

    kit = desk(hang=hang, quick=lambda _: "done")
    turn = ["I begin.", Calls(tool="hang"), Calls(tool="quick")]
    world = in_memory(monkeypatch, turn, kit=kit)
    events = await run(**SERVERS, timeout=1)
    last = only(events, RunFinished)
    assert events[-1] is last
    assert (last.ended, last.text, last.steps) == (RunEnd.TIMEOUT, "I begin.", 1)
    assert {ended.tool_name: ended.tool_status for _, ended in calls_of(events)} == {
        "hang": ToolStatus.CANCELLED,
        "quick": ToolStatus.OK,
    }
    assert over == ["cancelled"]
    assert (kit.closed, world.closed) == (1, 1)
    assert not other_tasks()
    # A run can go on from there: the call that was cut short has an answer.
    world = in_memory(monkeypatch, ["x"], ["I see."])
    again = await run("Go on.", history=json.loads(json.dumps(last.messages)))
    assert only(again, RunFinished).text == "I see."
    assert len(world.results) == 2


async def test_the_time_limit_holds_while_servers_connect_and_while_the_model_thinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    class Slow(Bench):
        async def __aenter__(self) -> Any:
            await hang()

    in_memory(monkeypatch, ["never"], kit=Slow())
    events = await run(**SERVERS, timeout=0.1)
    assert kinds(events) == ["run_started", "run_finished"]
    in_memory(monkeypatch, ["I thi", hang, "nk."])
    last = only(await run(timeout=1), RunFinished)
    assert (last.ended, last.text) == (RunEnd.TIMEOUT, "I thi")
    assert not other_tasks()


async def test_a_model_that_says_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, ["I act.", Calls(tool="act")], [Thinks(text="That was it.")], kit=desk(act=lambda _: "x"))
    last = only(await run(**SERVERS), RunFinished)
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "I act.", 2)


async def test_a_provider_that_fails_ends_the_run_with_words_and_a_remedy_and_without_the_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-very+secret/key"
    error = ModelHTTPError(401, "m", {"error": {"message": f"bad key {key}"}})
    world = in_memory(monkeypatch, ["Hello.", error])
    run_ = run_agent("Go.", options(api_key=key))
    events = [event async for event in run_]
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert "401: bad key ****" in failed.error
    assert "key" in failed.remedy
    assert failed.steps == 0
    assert world.closed == 1
    assert key not in repr(events) + repr(run_) + json.dumps([event.to_json() for event in events]) + caplog.text


async def test_what_nobody_expected_ends_the_run_as_a_failure_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    key = "sk-very-secret"
    world = in_memory(monkeypatch, [RuntimeError(f"odd {key}")])
    failed = (await run(api_key=key))[-1]
    assert isinstance(failed, RunFailed)
    assert failed.error == "RuntimeError: odd ****"
    assert "Traceback" in caplog.text
    assert key not in caplog.text
    assert world.closed == 1


async def test_repeated_requests_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolcrib.agent_loop.models import opening

    world = in_memory(monkeypatch, ["Hello."])

    def opened(options_: AgentOptions, offers: Any, on_retry: Any) -> Any:
        on_retry("429: slower, sk-secret", 1.5, 1)
        return world.open_model()

    monkeypatch.setattr(opening, "open_model", opened)
    told = only(await run(api_key="sk-secret"), Retrying)
    assert (told.reason, told.delay, told.attempt) == ("429: slower, ****", 1.5, 1)


async def test_what_the_program_chose_reaches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    world = in_memory(monkeypatch, ["Hello."])
    await run("Say hello.", instructions="Be brief.", settings={"temperature": 0.5})
    (message,) = world.asked[0]
    assert message.instructions == "Be brief."
    assert [part.content for part in message.parts] == ["Say hello."]


async def test_deltas_add_up_to_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, [Thinks(text="a"), "H", "el", "lo", " there", "."])
    events = await run()
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello there."
    assert only(events, ReasoningDelta).text == "a"
    assert only(events, RunFinished).text == "Hello there."
