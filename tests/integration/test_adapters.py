"""Each provider's adapter runs the same story, against a scripted model that speaks its streaming HTTP interface."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts.adapters import LIMIT, MODELS, connections, options, run
from parts.agent_runs import of
from parts.sizes import some
from parts.waiting import wait_for
from toolcrib.agent_loop.events import (
    McpConnected,
    ReasoningDelta,
    Retrying,
    RunEnd,
    RunEvent,
    RunFailed,
    RunFinished,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
from toolcrib.agent_loop.models import endpoint
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.run import run_agent
from toolcrib.config.from_code import StdioServer
from toolcrib.run_events import ToolStatus
from toolcrib.testing import PROVIDERS, Break, Call, Hold, Refuse, Say, ScriptedModel, Step, Together, scripted

KEY = "sk-given-by-hand"
MEETING = Path(__file__).parent.parent / "parts" / "servers" / "meeting.py"

each_provider = pytest.mark.parametrize("provider", MODELS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that does not say when to come again is asked again at once."""
    monkeypatch.setattr("toolcrib.agent_loop.models.retrying.FIRST_DELAY", 0.0)


def test_every_provider_has_its_story() -> None:
    assert set(MODELS) == set(PROVIDERS) == set(endpoint.PROVIDERS)


STORY: tuple[Step, ...] = (
    Refuse(429),
    Together(
        [Call("meet", {"who": "ann"}), Call("meet", {"who": "bob", "mood": "good"})],
        thinking="They should come together.",
        says="I let them meet.",
    ),
    Call("refuse", {}),
    Say("They met, and nobody else came."),
)


@pytest.mark.req("KAI-8")
@each_provider
async def test_a_model_calls_the_tools_of_an_mcp_server_through_its_provider_s_real_interface(provider: str) -> None:
    server = StdioServer("meeting", command=sys.executable, args=["-I", "-S", MEETING])
    with scripted(provider, STORY) as model:
        events = await run(options(provider, model, api_key=KEY, mcp_servers=[server], instructions="Be kind."))
    _the_run_tells_it(events)
    _the_model_was_given_it(model)
    _the_key_came(provider, model)
    _the_calls_and_results_are_in_their_turns(provider, model.bodies[-1])


def _the_run_tells_it(events: list[RunEvent]) -> None:
    last = events[-1]
    assert isinstance(last, RunFinished), last
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "They met, and nobody else came.", 3)
    assert [event.servers for event in of(McpConnected, events)] == [("meeting",)]
    again = of(Retrying, events)
    assert [(event.attempt, event.delay, event.reason[:4]) for event in again] == [(1, 0.0, "429:")]
    assert "".join(event.text for event in of(ReasoningDelta, events)) == "They should come together."
    text = "".join(event.text for event in of(TextDelta, events))
    assert text == "I let them meet.They met, and nobody else came."
    called = [(event.tool_name, event.server, event.tool_args) for event in of(ToolCalled, events)]
    assert called == [
        ("meet", "meeting", {"who": "ann"}),
        ("meet", "meeting", {"who": "bob", "mood": "good"}),
        ("refuse", "meeting", {}),
    ]
    ended = [(event.text, event.tool_status) for event in of(ToolFinished, events)]
    assert sorted(ended[:2]) == [("ann met bob", ToolStatus.OK), ("bob met ann", ToolStatus.OK)]
    assert ended[2:] == [("no, thank you", ToolStatus.ERROR)]


def _the_model_was_given_it(model: ScriptedModel) -> None:
    assert not model.left
    assert len(model.requests) == 4
    assert model.bodies[0] == model.bodies[1], "what was refused is asked again as it was"
    assert [tool.name for tool in model.offered] == ["meet", "refuse"]
    assert model.results[:2] == ("ann met bob", "bob met ann")
    assert "no, thank you" in model.results[2]
    assert any("Be kind." in json.dumps(body) for body in model.bodies)


def _the_key_came(provider: str, model: ScriptedModel) -> None:
    for request in model.requests:
        where = [name for name, value in request.headers.items() if KEY in value]
        assert len(where) == 1
        assert where[0] in {"google": {"x-goog-api-key"}}.get(provider, {"authorization", "x-api-key"})
        assert KEY not in json.dumps(request.body) + request.path


def _the_calls_and_results_are_in_their_turns(provider: str, body: dict[str, Any]) -> None:
    calls, results, failed = TURNS[provider](body)
    assert [len(turn) for turn in calls] == [2, 1], "the two calls are one turn"
    assert calls == results, "each result has the id of its call"
    assert len({call for turn in calls for call in turn}) == 3
    assert failed


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
    return calls, results, "no, thank you" in body["messages"][-1]["content"]


def _responses(body: dict[str, Any]) -> Turns:
    kinds = {"function_call": "calls", "function_call_output": "results"}
    runs = [(kinds[item["type"]], item["call_id"]) for item in body["input"] if item.get("type") in kinds]
    grouped = [[call for _, call in group] for _, group in itertools.groupby(runs, key=lambda run: run[0])]
    return grouped[::2], grouped[1::2], "no, thank you" in body["input"][-1]["output"]


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
    return parts("functionCall"), parts("functionResponse"), "no, thank you" in json.dumps(last)


TURNS: Mapping[str, Callable[[dict[str, Any]], Turns]] = {
    "openai": _chat,
    "openrouter": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
}


WHOLE = "This is what it was about to say."


@each_provider
async def test_an_answer_that_breaks_off_in_the_middle_ends_the_run_with_what_there_was(provider: str) -> None:
    with scripted(provider, [Break(WHOLE), Say("never asked for")]) as model:
        events = await run(options(provider, model))
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert failed.remedy
    said = "".join(event.text for event in of(TextDelta, events))
    assert said
    assert WHOLE.startswith(said)
    assert len(model.requests) == 1


@each_provider
async def test_an_answer_that_breaks_off_before_anything_was_said_is_asked_for_again(
    provider: str,
) -> None:
    with scripted(provider, [Break("", status=529), Break(""), Say("at last")]) as model:
        events = await run(options(provider, model))
    assert events[-1].text == "at last"
    assert [event.attempt for event in of(Retrying, events)] == [1, 2]
    assert len(model.requests) == 3


@each_provider
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_the_provider_rejects_is_not_asked_again(provider: str, status: int) -> None:
    with scripted(provider, [Refuse(status)]) as model:
        events = await run(options(provider, model))
    assert isinstance(events[-1], RunFailed)
    assert events[-1].error.startswith(f"{status}:")
    assert not of(Retrying, events)
    assert len(model.requests) == 1


@each_provider
async def test_a_run_that_is_cancelled_in_mid_answer_hangs_up(provider: str) -> None:
    hold = Hold()
    with scripted(provider, [Say("begun, never ended", hold=hold)]) as model:
        task = asyncio.create_task(run(options(provider, model)))
        await asyncio.to_thread(hold.reached, LIMIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_for(lambda: not connections(model), "the connection to be closed")


@each_provider
@pytest.mark.parametrize("end", ["async with", "break alone"])
@pytest.mark.usual(provider=("anthropic", "google"))
async def test_who_leaves_in_mid_answer_leaves_nothing_to_the_garbage_collector(
    provider: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What that closes it closes in tasks of its own, when the connection is gone, and logs how it failed."""
    loop = asyncio.get_running_loop()
    troubles: list[Any] = []
    left: list[str] = []
    loop.set_exception_handler(lambda _, trouble: troubles.append(trouble))
    before = sys.get_asyncgen_hooks()

    def finalized(generator: Any) -> None:
        left.append(generator.__qualname__)
        before.finalizer(generator)

    sys.set_asyncgen_hooks(before.firstiter, finalized)
    try:
        with scripted(provider, [Say("one two three four five six seven eight")]) as model:
            for turn in TURNS_LATER:
                await _leave(options(provider, model), end, turn)
                gc.collect()
    finally:
        sys.set_asyncgen_hooks(*before)
    assert (troubles, caplog.text) == ([], "")
    # OpenAI's SDK leaves its own at the end of every answer, read or not: they wait for nothing any more.
    assert not left or provider in {"openai", "openrouter"}
    assert len(model.requests) == len(TURNS_LATER)


TURNS_LATER = some(range(0, 24, 2), range(1, 120))
"""Of the event loop, after the first word, in which the answer comes further."""


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
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - nobody tells when it is over
            await asyncio.sleep(0)


@each_provider
async def test_an_answer_without_a_word_is_asked_for_again(provider: str) -> None:
    with scripted(provider, [Say(""), Say(""), Say("At last.")]) as model:
        events = await run(options(provider, model))
    assert events[-1].text == "At last."
    assert [event.attempt for event in of(Retrying, events)] == [1, 2]
    with scripted(provider, [Say("")] * 3) as model:
        events = await run(options(provider, model, retries=2))
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert "is empty" in failed.error
    assert failed.remedy
    assert len(model.requests) == 3


async def test_google_says_in_the_body_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.testing.server.retry_header", lambda _: {})
    with scripted("google", [Refuse(429, retry_after=0.01), Say("At last.")]) as model:
        events = await run(options("google", model))
    assert [event.delay for event in of(Retrying, events)] == [0.01]
