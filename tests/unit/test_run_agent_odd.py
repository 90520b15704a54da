"""Odd models, odd servers and odd programs: a run of `run_agent` takes them as they are, and goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.agent_runs import Bench, Calls, Thinks, in_memory, options, other_tasks, run
from toolcrib.agent_loop import event_queue, loop
from toolcrib.agent_loop.events import (
    AnyRunEvent,
    McpConnected,
    McpWarning,
    ReasoningDelta,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
from toolcrib.agent_loop.messages import TextPieces, whole_arguments, whole_text
from toolcrib.agent_loop.options import CodingTools, ToolRequest
from toolcrib.agent_loop.run import AgentRun, run_agent
from toolcrib.agent_loop.tool_calls import read_arguments
from toolcrib.catalog.transforms import DefaultArguments, FixArguments, RenameArguments, RenameTools
from toolcrib.errors import InvalidArguments
from toolcrib.events import ServerStateChanged
from toolcrib.run_events import ToolStatus
from toolcrib.servers.model import ServerState

SERVERS: dict[str, Any] = {"mcp_servers": ["stands for the bench"]}


def of(kind: type[Any], events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def taking(**properties: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": properties}}


# What a model says.


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["Hi \ud83d", "\ude00!"], "Hi 😀!"),
        (["Hi \ud83d", " and on"], "Hi \ufffd and on"),
        (["Hi \ude00"], "Hi \ufffd"),
        (["Hi \ud83d"], "Hi \ufffd"),
    ],
)
async def test_characters_that_come_in_halves_are_joined_and_lone_halves_replaced(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str], said: str
) -> None:
    thoughts = [Thinks(text=piece) for piece in pieces]
    in_memory(monkeypatch, [*thoughts, *pieces, Calls(tool="luk")], ["Done."])
    events = await run()
    assert "".join(event.text for event in of(TextDelta, events)) == f"{said}Done."
    assert "".join(event.text for event in of(ReasoningDelta, events)).startswith(said)
    last = events[-1]
    assert isinstance(last, RunFinished)
    kept = json.dumps(last.messages, ensure_ascii=False).encode()
    assert said.encode() in kept
    in_memory(monkeypatch, ["x"], ["x"], ["On."])
    assert (await run(history=json.loads(kept)))[-1].text == "On."


@settings(max_examples=200)
@given(st.lists(st.text(st.characters(codec=None), max_size=5), max_size=6))
def test_whatever_comes_in_pieces_can_be_encoded_and_adds_up(given_: list[str]) -> None:
    pieces = TextPieces()
    told = "".join([*map(pieces.add, given_), pieces.rest()])
    assert told == whole_text("".join(given_))
    told.encode()


def test_arguments_are_made_of_whole_characters() -> None:
    assert whole_arguments({"a": ["\ud83d\ude00", 1, None], "b": "\ud83d"}) == {"a": ["😀", 1, None], "b": "\ufffd"}
    assert whole_arguments('{"a": "\ud83d\ude00"}') == '{"a": "😀"}'
    assert whole_arguments(None) is None


# What a model calls.


@pytest.mark.parametrize("arguments", ['{"n": 1e999}', '{"n": [-1e999]}', '{"n": "\\ud83d"}'])
def test_what_no_json_can_hold_is_no_argument(arguments: str) -> None:
    with pytest.raises(InvalidArguments, match="JSON"):
        read_arguments(arguments)
    with pytest.raises(InvalidArguments, match="JSON"):
        read_arguments(json.loads(arguments))


async def test_calls_have_ids_of_their_own_over_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"act": lambda _: "x"}})
    in_memory(monkeypatch, *[[Calls(tool="act", id="X"), Calls(tool="act", id="X_2")]] * 3, ["Done."], kit=kit)
    events = await run(**SERVERS)
    began, ended = ([event.call for event in of(kind, events)] for kind in (ToolCalled, ToolFinished))
    assert len(set(began)) == 6
    assert sorted(began) == sorted(ended)
    again = await run("Go on.", **SERVERS, history=events[-1].messages)
    assert not {event.call for event in of(ToolCalled, again)} & set(began)


async def test_not_all_calls_of_an_answer_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = most = 0

    async def act(_: Any) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _turn in range(20):
            await asyncio.sleep(0)
        now -= 1
        return "x"

    in_memory(monkeypatch, [Calls(tool="act")] * 100, ["Done."], kit=Bench({"desk": {"act": act}}))
    events = await run(**SERVERS)
    assert len(of(ToolFinished, events)) == 100
    assert most == loop.MAX_CONCURRENT_CALLS


# Who is asked.


async def test_what_is_approved_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"rm": lambda _: "gone"}}, definitions={"rm": taking(path={"type": "string"}, force={})})
    in_memory(monkeypatch, [Calls(tool="rm", arguments='{"p": "/etc/x"}')], ["Done."], kit=kit)
    asked: list[dict[str, Any]] = []

    def approve(request: ToolRequest) -> bool:
        asked.append(dict(request.arguments))
        request.arguments["path"] = "/changed"  # type: ignore[index]
        return True

    await run(**SERVERS, approve=approve, transform=[RenameArguments({"path": "p"}), FixArguments({"force": True})])
    assert asked == [{"path": "/etc/x", "force": True}]
    assert kit.calls == [("rm", {"path": "/etc/x", "force": True})]


async def test_what_a_format_changed_is_undone_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    either = [{"properties": {name: {"type": "string"}}, "required": [name]} for name in ("path", "url")]
    schema = {"inputSchema": {"type": "object", "oneOf": either}}
    kit = Bench({"desk": {"rm": lambda _: "gone"}}, definitions={"rm": schema})
    in_memory(monkeypatch, [Calls(tool="rm", arguments='{"arguments": {"path": "/etc/x"}}')], ["Done."], kit=kit)
    asked: list[Any] = []
    await run(**SERVERS, approve=lambda request: bool(asked.append(request.arguments)) or True)
    assert [("rm", one) for one in asked] == kit.calls
    assert asked[0] in ({"path": "/etc/x"}, {"arguments": {"path": "/etc/x"}})


async def test_nobody_is_asked_about_arguments_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"add": lambda _: "2"}}, definitions={"add": taking(a={"type": "integer"})})
    in_memory(monkeypatch, [Calls(tool="add", arguments='{"a": "two"}')], ["Done."], kit=kit)
    asked: list[Any] = []
    (ended,) = of(ToolFinished, await run(**SERVERS, approve=lambda request: bool(asked.append(request)) or True))
    assert ended.tool_status is ToolStatus.INVALID
    assert (asked, kit.calls) == ([], [])


async def test_nobody_is_asked_about_arguments_that_a_coding_tool_does_not_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    wrong = [Calls(tool="Write", arguments='{"path": "a.txt", "content": "x"}')]
    right = [Calls(tool="Write", arguments='{"file_path": "a.txt", "content": "x", "unknown": null}')]
    in_memory(monkeypatch, wrong, right, ["Done."])
    asked: list[Any] = []

    def approve(request: ToolRequest) -> bool:
        asked.append(request.arguments)
        return True

    first, second = of(ToolFinished, await run(coding_tools=CodingTools.all(tmp_path), approve=approve))
    assert first.tool_status is ToolStatus.INVALID
    assert "file_path" in first.text
    assert (second.tool_status, asked) == (ToolStatus.OK, [{"file_path": "a.txt", "content": "x"}])
    assert (tmp_path / "a.txt").read_text() == "x"


async def test_a_number_in_quotes_is_still_a_number_to_a_coding_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    in_memory(monkeypatch, [Calls(tool="Read", arguments='{"file_path": "a.txt", "limit": "1"}')], ["Done."])
    (ended,) = of(ToolFinished, await run(coding_tools=CodingTools.read_only(tmp_path)))
    assert (ended.tool_status, "two" in ended.text) == (ToolStatus.OK, False)


async def test_who_is_asked_may_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"act": lambda _: "x"}})
    world = in_memory(monkeypatch, [Calls(tool="act")] * 2, ["Never."], kit=kit)
    held: list[AgentRun] = []

    async def approve(_: ToolRequest) -> bool:
        await held[0].aclose()
        return True

    held.append(run_agent("Go.", options(**SERVERS, approve=approve)))
    async with asyncio.timeout(60):
        told = [event.type async for event in held[0]]
    assert "run_finished" not in told
    await asyncio.wait_for(held[0].aclose(), 60)
    assert kit.calls == []
    assert (kit.closed, world.closed) == (1, 1)
    assert not other_tasks()


async def test_who_is_asked_may_run_another_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Bench({"desk": {"act": lambda _: "x"}})
    in_memory(monkeypatch, [Calls(tool="act")], ["Done."], kit=kit)

    async def approve(_: ToolRequest) -> bool:
        async with run_agent("Is it right?", options()) as inner:
            async for _event in inner:
                break
        return True

    (ended,) = of(ToolFinished, await run(**SERVERS, approve=approve))
    assert ended.tool_status is ToolStatus.OK


# Who reads.


async def test_a_reader_that_stops_stops_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 0

    def one_more() -> None:
        nonlocal said
        said += 1

    piece: list[Any] = ["x", one_more]
    in_memory(monkeypatch, piece * 2000)
    async with run_agent("Go.", options()) as events:
        assert isinstance(await anext(events), RunStarted)
        assert isinstance(await anext(events), TextDelta)
        for _ in range(20_000):
            await asyncio.sleep(0)
        assert event_queue.MAX_UNREAD_EVENTS <= said <= event_queue.MAX_UNREAD_EVENTS + 2
        rest = [event async for event in events]
    assert isinstance(rest[-1], RunFinished)
    assert len(of(TextDelta, rest)) == 1999


# Which servers there are.


class Slow(Bench):
    """One server is known to be dead while another still connects."""

    def __init__(self) -> None:
        super().__init__({"desk": {"act": lambda _: "x"}}, missing={"lamp": "no light", "fan": "late"})
        self.connected_now = asyncio.Event()

    async def __aenter__(self) -> Slow:
        self.bus.publish(ServerStateChanged(server="desk", state=ServerState.READY))
        self.bus.publish(ServerStateChanged(server="fan", state=ServerState.UNAVAILABLE, reason="not yet"))
        self.bus.publish(ServerStateChanged(server="lamp", state=ServerState.FAILED, reason="no light"))
        await self.connected_now.wait()
        await super().__aenter__()
        return self


@pytest.mark.req("KAI-4", "KAI-7")
async def test_a_server_that_is_not_there_is_told_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Slow()
    in_memory(monkeypatch, ["Hello."], kit=kit)
    async with asyncio.timeout(60), run_agent("Go.", options(**SERVERS)) as events:
        assert isinstance(await anext(events), RunStarted)
        warned = await anext(events)
        assert isinstance(warned, McpWarning)
        assert (warned.server, warned.reason) == ("lamp", "no light")
        assert kit.opened == 0
        kit.connected_now.set()
        rest: list[AnyRunEvent] = [event async for event in events]
    assert [event.server for event in of(McpWarning, rest)] == ["fan"]
    types = [event.type for event in rest]
    assert types.index("mcp_connected") == types.index("text_delta") - 1


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
async def test_a_tool_that_a_transform_does_not_fit_is_left_out_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, transform: Any, offered: list[str]
) -> None:
    definitions = {
        "status": taking(repo_path={"type": "string"}),
        "e": taking(repo_path={"type": "integer"}, folder={"type": "string"}),
    }
    tools = {"good": {"status": lambda _: "x"}, "odd": {"e": lambda _: "y"}}
    world = in_memory(monkeypatch, ["Hello."], kit=Bench(tools, definitions=definitions))
    events = await run(**SERVERS, transform=[transform])
    assert isinstance(events[-1], RunFinished)
    assert world.offered == [offered]
    (warned,) = of(McpWarning, events)
    assert "left out" in warned.reason
    assert sum(of(McpConnected, events)[0].tools.values()) == 1


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    yield
    assert not other_tasks()
