"""`run_agent` with real servers over stdio, and models behind the real HTTP interfaces of their providers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from toolcrib.agent_loop.events import (
    McpConnected,
    McpWarning,
    ModelUsage,
    NameConflict,
    Retrying,
    RunEnd,
    RunEvent,
    RunFailed,
    RunFinished,
    StepFinished,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
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

DESK = Path(__file__).parents[1] / "parts" / "servers" / "arithmetic.py"
PROVIDERS = ("anthropic", "google", "openai", "openai-responses", "openrouter")
MODELS = {name: f"{name}:{'maker/' if name == 'openrouter' else ''}scripted" for name in PROVIDERS}
LIMIT = 60.0
KEY = "sk-test+0123/456789"

every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.jsonl"


@pytest.fixture
def desk(notes: Path) -> StdioServer:
    return StdioServer("desk", command=sys.executable, args=[DESK], env={"NOTES": str(notes)})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that does not say when to come again is asked again at once."""
    monkeypatch.setattr("toolcrib.agent_loop.models.retrying.FIRST_DELAY", 0.0)


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


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.01)


def options(model: ScriptedModel, provider: str = "anthropic", **given: Any) -> AgentOptions:
    return AgentOptions(**{"model": MODELS[provider], "base_url": model.url, "api_key": KEY, **given})


async def run(model: ScriptedModel, provider: str = "anthropic", prompt: str = "Go.", **given: Any) -> list[RunEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in run_agent(prompt, options(model, provider, **given))]


def finished(events: list[RunEvent]) -> RunFinished:
    last = events[-1]
    assert isinstance(last, RunFinished), last
    return last


def ends(events: list[RunEvent]) -> dict[str, ToolFinished]:
    assert sum(isinstance(event, ToolCalled) for event in events) == sum(
        isinstance(event, ToolFinished) for event in events
    )
    return {event.tool_name: event for event in events if isinstance(event, ToolFinished)}


@pytest.mark.req("KAI-1", "KAI-2", "KAI-3", "KAI-6", "KAI-7")
@every_provider
async def test_a_run_with_every_provider(provider: str, desk: StdioServer, notes: Path) -> None:
    steps = [
        Together((Call("add", {"a": 2, "b": 3}), Call("add", {"a": 4, "b": 5})), says="I add."),
        Refuse(429),
        Together((Call("whole"), CallByName("nothing_of_this_name"), Call("add", {"a": "two"}))),
        Say("That was it."),
    ]
    with scripted(provider, steps) as model:
        events = await run(model, provider, mcp_servers=[desk], instructions="Be brief.")
    last = finished(events)
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "That was it.", 3)
    assert [tool.name for tool in model.offered] == [
        "add", "whole", "picture", "hang", "die", "meet"
    ]  # fmt: skip
    types = [event.type for event in events]
    assert types.index("mcp_connected") < types.index("text_delta")
    assert [event.servers for event in events if isinstance(event, McpConnected)] == [("desk",)]
    told = [event.text for event in events if isinstance(event, ToolFinished)]
    assert told[:2] == ["5", "9"]
    statuses = {name: event.tool_status for name, event in ends(events).items()}
    assert statuses == {
        "add": ToolStatus.INVALID,
        "whole": ToolStatus.ERROR,
        "nothing_of_this_name": ToolStatus.UNKNOWN,
    }
    assert "I could not." in model.results[2]
    assert "nothing_of_this_name" in model.results[3]
    assert "two" in model.results[4] or "integer" in model.results[4]
    (retry,) = [event for event in events if isinstance(event, Retrying)]
    assert (retry.attempt, "429" in retry.reason) == (1, True)
    # What the server saw: nothing that did not fit.
    assert [call["arguments"] for call in noted(notes, "call")] == [{"a": 2, "b": 3}, {"a": 4, "b": 5}, {}]
    steps_told = [event.usage for event in events if isinstance(event, StepFinished)]
    assert [usage.input_tokens for usage in steps_told] == [one.read for one in model.usages]
    assert last.usage == ModelUsage(
        input_tokens=sum(one.read for one in model.usages),
        output_tokens=sum(one.output for one in model.usages),
        cache_read_tokens=sum(one.cached for one in model.usages),
        requests=3,
    )
    assert "Be brief." in json.dumps(model.bodies[0])
    assert not alive(notes)


@pytest.mark.req("KAI-2")
@every_provider
async def test_without_servers_the_request_has_no_word_of_tools(provider: str) -> None:
    with scripted(provider, [Say("Hello.")]) as model:
        events = await run(model, provider)
    assert [event.type for event in events if event.type != "text_delta"] == [
        "run_started",
        "step_finished",
        "run_finished",
    ]
    (body,) = model.bodies
    assert not [key for key in body if "tool" in key.lower()]


@every_provider
async def test_why_an_answer_ended_is_why_the_run_did(provider: str) -> None:
    for ending, ended in ((AnswerEnding.LENGTH, RunEnd.LENGTH), (AnswerEnding.FILTER, RunEnd.REFUSED)):
        with scripted(provider, [Say("I would", ending=ending)]) as model:
            assert finished(await run(model, provider)).ended is ended


@every_provider
async def test_an_empty_answer_is_the_end_and_no_failure(provider: str, desk: StdioServer) -> None:
    with scripted(provider, [Call("add", {"a": 1, "b": 1}, says="I add."), Say("")]) as model:
        last = finished(await run(model, provider, mcp_servers=[desk]))
    assert (last.ended, last.text, last.steps) == (RunEnd.DONE, "I add.", 2)


@every_provider
async def test_an_answer_that_breaks_off_ends_the_run_with_what_was_said(provider: str) -> None:
    with scripted(provider, [Break("I was about to say")]) as model:
        events = await run(model, provider)
    failed = events[-1]
    assert isinstance(failed, RunFailed)
    assert failed.remedy
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert said.startswith("I was")
    assert [part["content"] for part in failed.messages[-1]["parts"]] == [said]


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "google"])
async def test_arguments_that_are_no_json_are_told_and_go_back_into_the_conversation(
    provider: str, desk: StdioServer, notes: Path
) -> None:
    with scripted(provider, [Garble("add"), Say("I see.")]) as model:
        events = await run(model, provider, mcp_servers=[desk])
    assert finished(events).text == "I see."
    assert ends(events)["add"].tool_status is ToolStatus.INVALID
    assert "JSON" in model.results[0]
    assert not noted(notes, "call")


@every_provider
async def test_a_picture_reaches_the_model_as_a_picture(provider: str, desk: StdioServer) -> None:
    with scripted(provider, [Call("picture"), Say("Nice.")]) as model:
        events = await run(model, provider, mcp_servers=[desk])
    (block,) = ends(events)["picture"].blocks
    sent = json.dumps(model.bodies[-1]).replace("_", "/").replace("-", "+")
    assert base64.b64decode(block["data"]).startswith(b"\x89PNG")
    assert block["data"] in sent


@every_provider
async def test_a_conversation_goes_on_in_another_run(provider: str, desk: StdioServer) -> None:
    with scripted(provider, [Call("add", {"a": 1, "b": 1}), Say("It is 2."), Say("Still 2.")]) as model:
        first = finished(await run(model, provider, "How much is 1 + 1?", mcp_servers=[desk]))
        kept = json.loads(json.dumps(first.messages))
        second = finished(await run(model, provider, "And now?", mcp_servers=[desk], history=kept))
    assert (first.text, second.text) == ("It is 2.", "Still 2.")
    assert "It is 2." in model.conversations[-1].said
    assert model.conversations[-1].results == ("2",)


@pytest.mark.req("KAI-4")
async def test_servers_that_are_not_there_are_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, desk: StdioServer, tmp_path: Path
) -> None:
    monkeypatch.setattr("toolcrib.agent_loop.setup.CONNECT_LIMIT", 6.0)
    servers = [
        desk,
        StdioServer("mute", command=sys.executable, args=[DESK], env={"MUTE": "1"}),
        StdioServer("none", command=str(tmp_path / "nothing-here")),
        HttpServer("far", url="http://127.0.0.1:9/mcp"),
    ]
    with scripted("anthropic", []) as model:
        # What a first run loads would take its time from the limit.
        await run(model)
    with scripted("anthropic", [Call("add", {"a": 1, "b": 1}), Say("Two.")]) as model:
        events = await run(model, mcp_servers=servers)
    assert finished(events).text == "Two."
    missing = {event.server: event.reason for event in events if isinstance(event, McpWarning)}
    assert set(missing) == {"mute", "none", "far"}
    assert all(missing.values())
    assert [event.servers for event in events if isinstance(event, McpConnected)] == [("desk",)]


async def test_a_server_that_dies_in_a_call_is_a_result(desk: StdioServer, notes: Path) -> None:
    with scripted("anthropic", [Call("die"), Say("It is gone.")]) as model:
        events = await run(model, mcp_servers=[desk])
    assert finished(events).text == "It is gone."
    assert ends(events)["die"].tool_status is ToolStatus.UNAVAILABLE
    assert "desk" in model.results[0]
    assert not alive(notes)


async def test_a_call_that_takes_too_long_is_a_result(notes: Path) -> None:
    slow = StdioServer("desk", command=sys.executable, args=[DESK], env={"NOTES": str(notes)}, call_timeout=0.3)
    with scripted("anthropic", [Call("hang"), Say("Too slow.")]) as model:
        events = await run(model, mcp_servers=[slow])
    assert finished(events).text == "Too slow."
    assert ends(events)["hang"].tool_status is ToolStatus.TIMEOUT


async def test_calls_of_one_turn_are_at_the_server_at_the_same_time(desk: StdioServer) -> None:
    with scripted("anthropic", [Together((Call("meet"), Call("meet"))), Say("They met.")]) as model:
        await run(model, mcp_servers=[desk])
    assert model.results == ("met", "met")


@pytest.mark.req("KAI-6")
async def test_two_servers_with_one_tool_name_are_both_offered(desk: StdioServer) -> None:
    other = StdioServer("other", command=sys.executable, args=[DESK])
    with scripted("anthropic", [Call("desk_add", {"a": 1, "b": 2}), Say("Three.")]) as model:
        events = await run(model, mcp_servers=[desk, other], keep="*add")
    assert sorted(tool.name for tool in model.offered) == ["desk_add", "other_add"]
    assert ends(events)["desk_add"].server == "desk"
    assert not [event for event in events if isinstance(event, NameConflict)]


@pytest.mark.req("KAI-5")
async def test_the_coding_tools_work_beside_the_servers(desk: StdioServer, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("forty-two\n")
    steps = [Together((Call("Read", {"file_path": str(root / "a.txt")}), Call("add", {"a": 1, "b": 1}))), Say("Read.")]
    asked: list[str] = []

    def approve(request: Any) -> bool:
        asked.append(request.name)
        return True

    with scripted("anthropic", steps) as model:
        events = await run(model, mcp_servers=[desk], coding_tools=CodingTools.read_only(root), approve=approve)
    assert finished(events).text == "Read."
    assert "forty-two" in model.results[0]
    assert ends(events)["Read"].server == ""
    # Who only reads is not asked about.
    assert asked == ["add"]


@every_provider
async def test_the_key_is_nowhere_but_in_the_request(provider: str, caplog: pytest.LogCaptureFixture) -> None:
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
    """The reader goes, and nobody says so."""


async def close(events: Any) -> None:
    await events.aclose()


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", [leave, close])
@pytest.mark.parametrize("wanted", [McpConnected, ToolCalled])
async def test_a_run_that_is_ended_early_leaves_no_process(
    desk: StdioServer, notes: Path, wanted: type[RunEvent], end: Callable[[Any], Any]
) -> None:
    with scripted("anthropic", [Call("hang")]) as model:
        events = run_agent("Go.", options(model, mcp_servers=[desk]))
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
async def test_a_reader_that_is_cancelled_leaves_no_process(desk: StdioServer, notes: Path, moment: str) -> None:
    hold = Hold()
    with scripted("anthropic", [Call("hang", hold=hold)]) as model:
        come: dict[str, Callable[[], Any]] = {
            "a server starts": lambda: noted(notes, "pid"),
            "the model is asked": lambda: model.requests,
            "a call is under way": lambda: noted(notes, "call"),
        }
        if moment == "a call is under way":
            hold.release()
        reader = asyncio.create_task(run(model, mcp_servers=[desk]))
        await until(come[moment])
        reader.cancel()
        await asyncio.wait({reader}, timeout=LIMIT)
        assert reader.cancelled()
        assert not alive(notes)
        assert len(asyncio.all_tasks()) == 1


@pytest.mark.req("KAI-3")
def test_an_event_loop_that_ends_in_mid_run_leaves_no_process(desk: StdioServer, notes: Path) -> None:
    async def main() -> None:
        async for event in run_agent("Go.", options(model, mcp_servers=[desk])):
            if isinstance(event, ToolCalled):
                assert alive(notes)
                return

    with scripted("anthropic", [Call("hang")]) as model:
        asyncio.run(main())
    assert not alive(notes)


@pytest.mark.req("KAI-3")
async def test_when_the_time_is_up_no_process_is_left(desk: StdioServer, notes: Path) -> None:
    with scripted("anthropic", [Say("Hello.")]) as model:
        # The provider's modules are loaded by then: they may take longer than all the rest.
        await run(model)
    with scripted("anthropic", [Call("hang", says="I wait.")]) as model:
        events = await run(model, mcp_servers=[desk], timeout=6)
        last = finished(events)
        assert (last.ended, last.text) == (RunEnd.TIMEOUT, "I wait.")
        assert ends(events)["hang"].tool_status is ToolStatus.CANCELLED
    assert not alive(notes)
