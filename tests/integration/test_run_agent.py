"""`run_agent` with real servers over stdio, and models behind the real HTTP interfaces of their providers."""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from parts.adapters import MODELS, connections
from parts.agent_runs import of
from parts.sizes import some
from parts.waiting import until, wait_for
from toolcrib import testing
from toolcrib.agent_loop import events as run_events
from toolcrib.agent_loop.events import McpConnected, ModelUsage, Retrying, RunEnd, RunEvent, RunFailed, RunFinished
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.options import AgentOptions, CodingTools
from toolcrib.agent_loop.run import run_agent
from toolcrib.config.from_code import HttpServer, StdioServer
from toolcrib.run_events import ToolStatus
from toolcrib.testing import (
    AnswerEnding,
    Break,
    Call,
    CallByName,
    Garble,
    Hold,
    Refuse,
    Say,
    ScriptedModel,
    Together,
    scripted,
)

SERVER = Path(__file__).parents[1] / "parts" / "servers" / "arithmetic.py"
LIMIT = 60.0
KEY = "sk-test+0123/456789"

every_provider = pytest.mark.parametrize("provider", MODELS)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.jsonl"


@pytest.fixture
def sums(notes: Path) -> StdioServer:
    env = {"NOTES": str(notes)}
    return StdioServer("sums", command=sys.executable, args=[SERVER], env=env, connect_timeout=LIMIT)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at once, unless a provider sets a delay; and servers may be slow on a busy machine."""
    monkeypatch.setattr("toolcrib.agent_loop.models.retrying.FIRST_DELAY", 0.0)
    monkeypatch.setattr("toolcrib.agent_loop.setup.CONNECT_LIMIT", LIMIT)


def test_every_provider_is_tested():
    assert set(MODELS) == set(testing.PROVIDERS) == set(endpoint.PROVIDERS)


@pytest.fixture(autouse=True)
def no_socket_left() -> Iterator[None]:
    before = sockets()
    yield
    assert sockets() <= before


def sockets() -> int:
    places = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return sum(str(Path(place).readlink()).startswith("socket:") for place in places if os.path.islink(place))  # noqa: PTH114


def noted(notes: Path, key: str) -> list[Any]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [line for line in map(json.loads, lines) if key in line]


def alive(notes: Path) -> list[int]:
    pids = {line["pid"] for line in noted(notes, "pid")}
    return [process.pid for process in leftovers.living() if process.pid in pids]


def options(model: ScriptedModel, provider: str = "anthropic", **given: Any) -> AgentOptions:
    return AgentOptions(**{"model": MODELS[provider], "base_url": model.url, "api_key": KEY, **given})


async def run(model: ScriptedModel, provider: str = "anthropic", prompt: str = "Go.", **given: Any) -> list[RunEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in run_agent(prompt, options(model, provider, **given))]


def finished(events: list[RunEvent]) -> RunFinished:
    last = events[-1]
    assert isinstance(last, RunFinished), last
    return last


def ends(events: list[RunEvent]) -> dict[str, run_events.ToolFinished]:
    assert len(of(run_events.ToolCalled, events)) == len(of(run_events.ToolFinished, events))
    return {event.tool_name: event for event in of(run_events.ToolFinished, events)}


@pytest.mark.req("KAI-1", "KAI-2", "KAI-3", "KAI-6", "KAI-7", "KAI-8")
@every_provider
async def test_a_run_with_every_provider(provider: str, sums: StdioServer, notes: Path) -> None:
    steps = [
        Refuse(429),
        Together(
            (Call("add", {"a": 2, "b": 3}), Call("add", {"a": 4, "b": 5})), thinking="Both at once.", says="I add."
        ),
        Together((CallByName("nothing_of_this_name"), Call("add", {"a": "two"}), Call("whole"))),
        Say("That was it."),
    ]
    with scripted(provider, steps) as model:
        events = await run(model, provider, mcp_servers=[sums], instructions="Be brief.")
    assert_events(events, model)
    assert_requests(provider, model)
    # The server received only valid calls.
    assert [call["arguments"] for call in noted(notes, "call")] == [{"a": 2, "b": 3}, {"a": 4, "b": 5}, {}]
    assert not alive(notes)


def assert_events(events: list[RunEvent], model: ScriptedModel) -> None:
    last = finished(events)
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "That was it.", 3)
    types = [event.type for event in events]
    assert types.index("mcp_connected") < types.index("text_delta")
    assert [event.servers for event in of(McpConnected, events)] == [("sums",)]
    assert [(one.attempt, one.delay, one.reason[:4]) for one in of(Retrying, events)] == [(1, 0.0, "429:")]
    assert "".join(event.text for event in of(run_events.ReasoningDelta, events)) == "Both at once."
    assert "".join(event.text for event in of(run_events.TextDelta, events)) == "I add.That was it."
    assert [(event.tool_name, event.server, event.tool_args) for event in of(run_events.ToolCalled, events)] == [
        ("add", "sums", {"a": 2, "b": 3}),
        ("add", "sums", {"a": 4, "b": 5}),
        ("nothing_of_this_name", "", {}),
        ("add", "sums", {"a": "two"}),
        ("whole", "sums", {}),
    ]
    ended = [(event.text, event.tool_status) for event in of(run_events.ToolFinished, events)]
    assert sorted(ended[:2]) == [("5", ToolStatus.OK), ("9", ToolStatus.OK)]
    assert ("I could not.", ToolStatus.ERROR) in ended
    statuses = {"add": ToolStatus.INVALID, "whole": ToolStatus.ERROR, "nothing_of_this_name": ToolStatus.UNKNOWN}
    assert {name: event.tool_status for name, event in ends(events).items()} == statuses
    usages = [event.usage for event in of(run_events.StepFinished, events)]
    assert [usage.input_tokens for usage in usages] == [one.read for one in model.usages]
    assert last.usage == ModelUsage(
        input_tokens=sum(one.read for one in model.usages),
        output_tokens=sum(one.output for one in model.usages),
        cache_read_tokens=sum(one.cached for one in model.usages),
        requests=3,
    )


def assert_requests(provider: str, model: ScriptedModel) -> None:
    assert not model.left
    assert len(model.requests) == 4
    assert model.bodies[0] == model.bodies[1], "a refused request is repeated unchanged"
    assert [tool.name for tool in model.offered] == ["add", "whole", "picture", "hang", "die", "meet"]
    first, second, unknown, invalid, failed = model.results
    assert (first, second) == ("5", "9")
    assert "nothing_of_this_name" in unknown
    assert "two" in invalid or "integer" in invalid
    assert "I could not." in failed
    assert "Be brief." in json.dumps(model.bodies[0])
    for request in model.requests:
        [header] = [name for name, value in request.headers.items() if KEY in value]
        assert header in {"google": {"x-goog-api-key"}}.get(provider, {"authorization", "x-api-key"})
        assert KEY not in json.dumps(request.body) + request.path
    calls, results, is_error = TURNS[provider](model.bodies[-1])
    assert [len(turn) for turn in calls] == [2, 3], "the calls of a turn stay together"
    assert calls == results, "each result has the id of its call"
    assert len({call for turn in calls for call in turn}) == 5
    assert is_error


Turns = tuple[list[list[str]], list[list[str]], bool]


def _chat(body: dict[str, Any]) -> Turns:
    calls: list[list[str]] = []
    results: list[list[str]] = []
    for message in body["messages"]:
        if message["role"] == "assistant" and message.get("tool_calls"):
            calls.append([call["id"] for call in message["tool_calls"]])
            results.append([])
        elif message["role"] == "tool":
            results[-1].append(message["tool_call_id"])
    return calls, results, "I could not." in body["messages"][-1]["content"]


def _responses(body: dict[str, Any]) -> Turns:
    kinds = {"function_call": "calls", "function_call_output": "results"}
    runs = [(kinds[item["type"]], item["call_id"]) for item in body["input"] if item.get("type") in kinds]
    grouped = [[call for _, call in group] for _, group in itertools.groupby(runs, key=lambda run: run[0])]
    return grouped[::2], grouped[1::2], "I could not." in body["input"][-1]["output"]


def _anthropic(body: dict[str, Any]) -> Turns:
    def blocks(kind: str, name: str) -> list[list[str]]:
        turns = [[block[name] for block in message["content"] if block["type"] == kind] for message in body["messages"]]
        return [turn for turn in turns if turn]

    last = body["messages"][-1]["content"][-1]
    return blocks("tool_use", "id"), blocks("tool_result", "tool_use_id"), last["is_error"] is True


def _google(body: dict[str, Any]) -> Turns:
    def parts(kind: str) -> list[list[str]]:
        turns = [[part[kind]["id"] for part in content["parts"] if kind in part] for content in body["contents"]]
        return [turn for turn in turns if turn]

    last = body["contents"][-1]["parts"][-1]["functionResponse"]["response"]
    return parts("functionCall"), parts("functionResponse"), "I could not." in json.dumps(last)


TURNS: Mapping[str, Callable[[dict[str, Any]], Turns]] = {
    "openai": _chat,
    "openrouter": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
}


@pytest.mark.req("KAI-2")
@every_provider
async def test_without_servers_the_request_has_no_tools_and_a_run_ends_for_the_answers_reason(provider: str) -> None:
    endings = {
        AnswerEnding.NATURAL: RunEnd.DONE,
        AnswerEnding.LENGTH: RunEnd.LENGTH,
        AnswerEnding.FILTER: RunEnd.REFUSED,
    }
    for ending, ended in endings.items():
        with scripted(provider, [Say("I would", ending=ending)]) as model:
            events = await run(model, provider)
        assert finished(events).ended is ended
        types = [event.type for event in events if event.type != "text_delta"]
        assert types == ["run_started", "step_finished", "run_finished"]
        (body,) = model.bodies
        assert not [key for key in body if "tool" in key.lower()]


@every_provider
async def test_a_conversation_with_a_picture_continues_in_another_run_and_may_end_with_an_empty_answer(
    provider: str, sums: StdioServer
) -> None:
    sum_of = Call("add", {"a": 1, "b": 1}, says="I add.")
    with scripted(provider, [sum_of, Call("picture"), Say("It is 2."), sum_of, Say("")]) as model:
        events = await run(model, provider, "How much is 1 + 1?", mcp_servers=[sums])
        first = finished(events)
        (block,) = ends(events)["picture"].blocks
        assert base64.b64decode(block["data"]).startswith(b"\x89PNG")
        assert block["data"] in json.dumps(model.bodies[-1]).replace("_", "/").replace("-", "+")
        kept = json.loads(json.dumps(first.messages))
        second = finished(await run(model, provider, "And now?", mcp_servers=[sums], history=kept))
    assert first.text == "It is 2."
    assert (second.ended, second.text, second.steps) == (RunEnd.DONE, "I add.", 2)
    talk = model.conversations[-1]
    assert "It is 2." in talk.said
    assert (talk.results[0], talk.results[-1]) == ("2", "2")


@pytest.mark.parametrize("provider", [name for name in MODELS if name != "google"])
async def test_arguments_that_are_not_json_are_an_error_for_the_model(
    provider: str, sums: StdioServer, notes: Path
) -> None:
    with scripted(provider, [Garble("add"), Say("I see.")]) as model:
        events = await run(model, provider, mcp_servers=[sums])
    assert finished(events).text == "I see."
    assert ends(events)["add"].tool_status is ToolStatus.INVALID
    assert "JSON" in model.results[0]
    assert not noted(notes, "call")


@pytest.mark.req("KAI-4")
async def test_a_run_continues_without_unavailable_servers_and_reports_them(
    monkeypatch: pytest.MonkeyPatch, sums: StdioServer, tmp_path: Path
) -> None:
    monkeypatch.setattr("toolcrib.agent_loop.setup.CONNECT_LIMIT", 6.0)
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\nexec sleep 600\n")
    npx.chmod(0o755)
    servers = [
        sums,
        StdioServer("late", command=npx, args=["-y", "package"]),
        StdioServer("mute", command=sys.executable, args=[SERVER], env={"MUTE": "1"}),
        StdioServer("none", command=str(tmp_path / "nothing-here")),
        HttpServer("far", url="http://127.0.0.1:9/mcp"),
    ]
    with scripted("anthropic", []) as model:
        # The imports of a first run would count towards the limit.
        await run(model)
    with scripted("anthropic", [Call("add", {"a": 1, "b": 1}), Say("Two.")]) as model:
        events = await run(model, mcp_servers=servers)
    assert finished(events).text == "Two."
    missing = {event.server: event.reason for event in of(run_events.McpWarning, events)}
    assert set(missing) == {"mute", "none", "far", "late"}
    assert all(missing.values())
    assert missing["late"] == "It is still installing (6 s)."
    assert [event.servers for event in of(McpConnected, events)] == [("sums",)]


async def test_concurrent_calls_time_outs_and_a_dead_server_have_results(sums: StdioServer, notes: Path) -> None:
    limited = StdioServer("slow", command=sys.executable, args=[SERVER], call_timeout=0.3)
    steps = [Together((Call("sums_meet"), Call("sums_meet"))), Call("slow_hang"), Call("sums_die"), Say("It is gone.")]
    with scripted("anthropic", steps) as model:
        events = await run(model, mcp_servers=[sums, limited])
    assert finished(events).text == "It is gone."
    assert model.results[:2] == ("met", "met"), "calls of one turn run at the same time"
    assert ends(events)["slow_hang"].tool_status is ToolStatus.TIMEOUT
    assert ends(events)["sums_die"].tool_status is ToolStatus.UNAVAILABLE
    assert "sums" in model.results[3]
    assert not alive(notes)


@pytest.mark.req("KAI-6")
async def test_two_servers_with_one_tool_name_are_both_offered(sums: StdioServer) -> None:
    other = StdioServer("other", command=sys.executable, args=[SERVER])
    with scripted("anthropic", [Call("sums_add", {"a": 1, "b": 2}), Say("Three.")]) as model:
        events = await run(model, mcp_servers=[sums, other], keep="*add")
    assert sorted(tool.name for tool in model.offered) == ["other_add", "sums_add"]
    assert ends(events)["sums_add"].server == "sums"
    assert not of(run_events.NameConflict, events)


@pytest.mark.req("KAI-5")
async def test_the_coding_tools_work_beside_the_servers(sums: StdioServer, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("forty-two\n")
    steps = [Together((Call("Read", {"file_path": str(root / "a.txt")}), Call("add", {"a": 1, "b": 1}))), Say("Read.")]
    asked: list[str] = []

    def approve(request: Any) -> bool:
        asked.append(request.name)
        return True

    with scripted("anthropic", steps) as model:
        events = await run(model, mcp_servers=[sums], coding_tools=CodingTools.read_only(root), approve=approve)
    assert finished(events).text == "Read."
    assert "forty-two" in model.results[0]
    assert ends(events)["Read"].server == ""
    assert asked == ["add"], "tools that only read need no approval"


@every_provider
async def test_the_key_is_only_in_the_request(provider: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with scripted(provider, [Refuse(401)]) as model:
        events = await run(model, provider, retries=0)
        assert any(KEY in value for value in model.requests[0].headers.values())
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert "401" in failed.error
    assert failed.remedy
    assert KEY not in repr(events) + json.dumps([event.to_json() for event in events]) + caplog.text


async def leave(events: Any) -> None:
    """The reader only stops reading."""


async def close(events: Any) -> None:
    await events.aclose()


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", [leave, close])
@pytest.mark.parametrize("wanted", [McpConnected, run_events.ToolCalled])
async def test_a_run_that_is_ended_early_leaves_no_process(
    sums: StdioServer, notes: Path, wanted: type[RunEvent], end: Callable[[Any], Any]
) -> None:
    with scripted("anthropic", [Call("hang")]) as model:
        events = run_agent("Go.", options(model, mcp_servers=[sums]))
        async with asyncio.timeout(LIMIT):
            async for event in events:
                if isinstance(event, wanted):
                    break
            assert alive(notes)
            await end(events)
            if end is close:
                assert not alive(notes)
            del events
            await until(lambda: not alive(notes) and len(asyncio.all_tasks()) == 1)


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("moment", ["a server starts", "the model is asked", "a call is under way"])
async def test_a_reader_that_is_cancelled_leaves_no_process(sums: StdioServer, notes: Path, moment: str) -> None:
    hold = Hold()
    with scripted("anthropic", [Call("hang", hold=hold)]) as model:
        come: dict[str, Callable[[], Any]] = {
            "a server starts": lambda: noted(notes, "pid"),
            "the model is asked": lambda: model.requests,
            "a call is under way": lambda: noted(notes, "call"),
        }
        if moment == "a call is under way":
            hold.release()
        reader = asyncio.create_task(run(model, mcp_servers=[sums]))
        await until(come[moment])
        reader.cancel()
        await asyncio.wait({reader}, timeout=LIMIT)
        assert reader.cancelled()
        assert not alive(notes)
        assert len(asyncio.all_tasks()) == 1


@pytest.mark.req("KAI-3")
def test_an_event_loop_that_ends_in_mid_run_leaves_no_process(sums: StdioServer, notes: Path) -> None:
    async def main() -> None:
        async for event in run_agent("Go.", options(model, mcp_servers=[sums])):
            if isinstance(event, run_events.ToolCalled):
                assert alive(notes)
                return

    with scripted("anthropic", [Call("hang")]) as model:
        asyncio.run(main())
    assert not alive(notes)


@pytest.mark.req("KAI-3")
async def test_when_the_time_is_up_no_process_is_left(sums: StdioServer, notes: Path) -> None:
    with scripted("anthropic", [Say("Hello.")]) as model:
        # Importing the provider's modules may take longer than everything else.
        await run(model)
    with scripted("anthropic", [Call("hang", says="I wait.")]) as model:
        events = await run(model, mcp_servers=[sums], timeout=6)
        last = finished(events)
        assert (last.ended, last.text) == (RunEnd.TIMEOUT, "I wait.")
        assert ends(events)["hang"].tool_status is ToolStatus.CANCELLED
    assert not alive(notes)


WHOLE = "This is what it was about to say."


@every_provider
async def test_an_answer_that_breaks_off_ends_the_run_and_its_text_is_kept(provider):
    with scripted(provider, [Break(WHOLE), Say("not requested")]) as model:
        events = await run(model, provider)
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert failed.remedy
    text = "".join(event.text for event in of(run_events.TextDelta, events))
    assert text
    assert WHOLE.startswith(text)
    assert [part["content"] for part in failed.messages[-1]["parts"]] == [text]
    assert len(model.requests) == 1


@every_provider
@pytest.mark.parametrize("empty", [[Break("", status=529), Break("")], [Say(""), Say("")]])
async def test_an_empty_answer_is_requested_again(provider, empty):
    with scripted(provider, [*empty, Say("at last")]) as model:
        events = await run(model, provider)
    assert events[-1].text == "at last"
    assert [event.attempt for event in of(Retrying, events)] == [1, 2]
    assert len(model.requests) == 3


@every_provider
async def test_only_empty_answers_end_the_run_after_the_retries(provider):
    with scripted(provider, [Say("")] * 3) as model:
        events = await run(model, provider, retries=2)
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert "is empty" in failed.error
    assert failed.remedy
    assert len(model.requests) == 3


@every_provider
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_rejected_request_is_not_repeated(provider, status):
    with scripted(provider, [Refuse(status)]) as model:
        events = await run(model, provider)
    assert isinstance(events[-1], RunFailed)
    assert events[-1].error.startswith(f"{status}:")
    assert not of(Retrying, events)
    assert len(model.requests) == 1


@every_provider
async def test_a_run_that_is_cancelled_during_an_answer_closes_the_connection(provider):
    hold = Hold()
    with scripted(provider, [Say("begun, never ended", hold=hold)]) as model:
        task = asyncio.create_task(run(model, provider))
        await asyncio.to_thread(hold.reached, LIMIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_for(lambda: not connections(model), "the connection to be closed")


@every_provider
@pytest.mark.parametrize("end", ["async with", "break alone"])
@pytest.mark.usual(provider=("anthropic", "google"))
async def test_leaving_during_an_answer_leaves_nothing_to_the_garbage_collector(provider, end, caplog):
    """The collector would close it in separate tasks, after the connection, and log the failures."""
    loop = asyncio.get_running_loop()
    troubles: list[Any] = []
    left: list[str] = []
    loop.set_exception_handler(lambda _, trouble: troubles.append(trouble))
    before = sys.get_asyncgen_hooks()

    def finalized(generator: Any) -> None:
        left.append(generator.__qualname__)
        before.finalizer(generator)

    sys.set_asyncgen_hooks(before.firstiter, finalized)
    gc.freeze()  # So that each collection looks only at what was made here.
    try:
        with scripted(provider, [Say("one two three four five six seven eight")]) as model:
            for turn in TURNS_LATER:
                await _leave(options(model, provider), end, turn)
                gc.collect()
    finally:
        gc.unfreeze()
        sys.set_asyncgen_hooks(*before)
    assert (troubles, caplog.text) == ([], "")
    # OpenAI's SDK leaves its own after every answer, but they have nothing to wait for.
    assert not left or provider in {"openai", "openrouter"}
    assert len(model.requests) == len(TURNS_LATER)


TURNS_LATER = some(range(0, 24, 2), range(1, 120))
"""Turns of the event loop between the first word and the end."""


async def _leave(chosen: AgentOptions, end: str, turn: int) -> None:
    async with asyncio.timeout(LIMIT):
        events = run_agent("Count.", chosen)
        async for event in events:
            if event.type == "text_delta":
                break
        for _ in range(turn):
            await asyncio.sleep(0)
        if end == "async with":
            await events.aclose()
        del events
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def test_the_delay_in_the_body_of_googles_error_is_used(monkeypatch):
    monkeypatch.setattr("toolcrib.testing.server.retry_header", lambda _: {})
    with scripted("google", [Refuse(429, retry_after=0.01), Say("At last.")]) as model:
        events = await run(model, "google")
    assert [event.delay for event in of(Retrying, events)] == [0.01]
