"""`run_agent` with models, tools and readers that do what nobody should: too much, at the wrong time, or in halves."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart

from parts.agent_runs import Bench, Calls, Piece, Thinks, World, in_memory, options, other_tasks, result, run, turns
from toolcrib.agent_loop import loop, messages
from toolcrib.agent_loop.event_queue import MAX_UNREAD_EVENTS
from toolcrib.agent_loop.events import (
    ReasoningDelta,
    RunEnd,
    RunEvent,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCalled,
    ToolFinished,
)
from toolcrib.agent_loop.messages import TextPieces, whole_text
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.options import ToolRequest
from toolcrib.agent_loop.run import AgentRun, run_agent
from toolcrib.agent_loop.tool_calls import ToolOutcome, read_arguments
from toolcrib.core.results import read_result
from toolcrib.errors import InvalidArguments, UsageError
from toolcrib.run_events import ToolStatus

SERVERS: dict[str, Any] = {"mcp_servers": ["stands for the bench"]}
HISTORY = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Before."}]}]
FIRST, SECOND = "\ud83d", "\ude00"
FACE = "\U0001f600"
LONE = "\N{REPLACEMENT CHARACTER}"
PNG = b"\x89PNG\r\n\x1a\n"


def desk(**tools: Any) -> Bench:
    return Bench({"desk": tools})


def finished(events: list[RunEvent]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


async def settled() -> None:
    await turns(50)


# Closing


class Closing:
    """A run whose `approve` closes it."""

    def __init__(self, patch: pytest.MonkeyPatch, close: Any) -> None:
        self.kit = desk(act=lambda _: "done")
        self.world = in_memory(patch, [Calls(tool="act")], ["Done."], kit=self.kit)

        async def approve(_: ToolRequest) -> bool:
            await close(self.run)
            return True

        self.run: AgentRun = run_agent("Go.", options(**SERVERS, approve=approve))

    async def read(self) -> list[str]:
        async with asyncio.timeout(60):
            return [event.type async for event in self.run]


async def directly(run_: AgentRun) -> None:
    await run_.aclose()


async def in_a_task(run_: AgentRun) -> None:
    await asyncio.create_task(run_.aclose())


async def in_another_run(run_: AgentRun) -> None:
    async def approve(_: ToolRequest) -> bool:
        await run_.aclose()
        return True

    async for _ in run_agent("Inner.", options(**SERVERS, approve=approve)):
        pass


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("close", [directly, in_a_task, in_another_run])
async def test_a_run_can_be_closed_by_its_own_approval_and_then_the_tool_does_not_run(
    monkeypatch: pytest.MonkeyPatch, close: Any
) -> None:
    story = Closing(monkeypatch, close)
    assert "run_finished" not in await story.read()
    await story.run.aclose()
    assert story.kit.calls == []
    assert story.kit.opened == story.kit.closed > 0
    assert story.world.opened == story.world.closed
    assert not other_tasks()


@pytest.mark.req("KAI-3")
async def test_a_run_that_is_closed_while_it_closes_is_not_waited_for_from_within(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closer(Bench):
        async def __aexit__(self, *what: object) -> None:
            await run_.aclose()
            await super().__aexit__(*what)

    kit = Closer({"desk": {}})
    in_memory(monkeypatch, ["Done."], kit=kit)
    run_ = run_agent("Go.", options(**SERVERS))
    async with asyncio.timeout(60):
        assert [event.type async for event in run_][-1] == "run_finished"
    assert (kit.closed, kit.disturbed) == (1, 0)


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("given", [{}, {"history": HISTORY}])
async def test_a_run_that_is_closed_while_it_begins_never_begins(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    for step in range(4):
        kit = desk()
        world = in_memory(monkeypatch, ["Hello."], kit=kit)
        run_ = run_agent("Go.", options(**SERVERS, **given))
        reader = asyncio.create_task(anext(run_, "nothing"))
        await turns(step)
        async with asyncio.timeout(60):
            await run_.aclose()
            assert not other_tasks() - {reader}
            await reader
            assert await anext(run_, "nothing") == "nothing"
        assert kit.opened == kit.closed
        assert world.opened == world.closed
        assert not world.asked
        assert not other_tasks()


@pytest.mark.parametrize("given", [{}, {"history": HISTORY}])
async def test_only_one_reads_a_run_and_another_is_refused_without_harm(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    world = in_memory(monkeypatch, ["Hello."])
    run_ = run_agent("Go.", options(**given))
    first, *others = await asyncio.gather(*(anext(run_) for _ in range(4)), return_exceptions=True)
    assert isinstance(first, RunStarted)
    assert [type(other) for other in others] == [UsageError] * 3
    assert all(other.remedy for other in others if isinstance(other, UsageError))
    assert finished([event async for event in run_]).text == "Hello."
    assert (world.opened, len(world.asked)) == (1, 1)


async def test_a_reader_that_gave_up_may_be_followed_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, [lambda: asyncio.Event().wait()])
    run_ = run_agent("Go.", options())
    assert isinstance(await anext(run_), RunStarted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(run_), 0.01)
    assert await anext(run_, "nothing") == "nothing"
    assert not other_tasks()


# Much


def sent_back(world: World) -> list[list[tuple[str, str]]]:
    """The ids of each turn's calls, with those of their results, as the model was last asked with."""
    calls = [[part.tool_call_id for part in one.parts if isinstance(part, ToolCallPart)] for one in world.asked[-1]]
    results = [[part.tool_call_id for part in one.parts if isinstance(part, ToolReturnPart)] for one in world.asked[-1]]
    return [
        list(zip(called, answered, strict=True))
        for called, answered in zip(filter(None, calls), filter(None, results), strict=True)
    ]


async def test_ids_that_come_again_in_each_turn_are_told_once_and_sent_back_as_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    turn: list[Piece] = [Calls(tool="act", id="call_0"), Calls(tool="act", id="call_1")]
    world = in_memory(monkeypatch, turn, turn, ["Done."], kit=desk(act=lambda _: "x"))
    events = await run(**SERVERS, approve=lambda request: asked.append(request.call) or True)
    called = [event.call for event in events if isinstance(event, ToolCalled)]
    assert len(set(called)) == 4
    assert sorted(event.call for event in events if isinstance(event, ToolFinished)) == sorted(called) == sorted(asked)
    assert sent_back(world) == [[("call_0", "call_0"), ("call_1", "call_1")]] * 2


async def test_an_id_of_the_providers_own_is_not_changed_for_one_that_was_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn: list[Piece] = [Calls(tool="act", id=own) for own in ("a", "a", "a_2", "a")]
    world = in_memory(monkeypatch, turn, ["Done."], kit=desk(act=lambda _: "x"))
    await run(**SERVERS)
    ((first, second, third, fourth),) = sent_back(world)
    assert (first, third) == (("a", "a"), ("a_2", "a_2"))
    assert len({first, second, third, fourth}) == 4


@given(st.lists(st.sampled_from(["", "a", "a_2", "a_3", "a_2_2"])), st.sets(st.sampled_from(["a", "a_2", "b"])))
def test_ids_are_told_apart_whatever_they_are(ids: list[str], taken: set[str]) -> None:
    before = set(taken)
    apart = loop._apart(ids, taken)
    assert len(set(apart)) == len(ids)
    assert not set(apart) & before
    assert taken == before | set(apart)
    assert {own for given_, own in zip(ids, apart, strict=True) if given_ == own} == set(ids) - before


def test_telling_apart_many_calls_of_one_id_takes_no_time() -> None:
    began = time.process_time()
    assert len(set(loop._apart(["same"] * 50_000, set()))) == 50_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("calls", [loop.MAX_CONCURRENT_CALLS - 1, 3 * loop.MAX_CONCURRENT_CALLS])
async def test_calls_of_one_answer_run_at_the_same_time_but_not_all_of_many(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    now = peak = 0

    async def act(_: Any) -> str:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await turns(3)
        now -= 1
        return "x"

    in_memory(monkeypatch, [Calls(tool="act") for _ in range(calls)], ["Done."], kit=desk(act=act))
    events = await run(**SERVERS)
    assert sum(isinstance(event, ToolFinished) and event.tool_status is ToolStatus.OK for event in events) == calls
    assert peak == min(calls, loop.MAX_CONCURRENT_CALLS)


@pytest.mark.req("KAI-3")
async def test_an_answer_waits_for_a_reader_that_stops_in_its_midst(monkeypatch: pytest.MonkeyPatch) -> None:
    told = 0

    def count() -> None:
        nonlocal told
        told += 1

    pieces: list[Piece] = []
    for _ in range(4 * MAX_UNREAD_EVENTS):
        pieces += ["x", count]
    in_memory(monkeypatch, pieces)
    run_ = run_agent("Go.", options())
    async for event in run_:
        if isinstance(event, TextDelta):
            break
    for _ in range(20):
        await settled()
    assert told <= MAX_UNREAD_EVENTS + 2
    async with asyncio.timeout(60):
        rest = [event async for event in run_]
    assert (
        finished(rest).text
        == "x" * 4 * MAX_UNREAD_EVENTS
        == "x" + "".join(event.text for event in rest if isinstance(event, TextDelta))
    )


@pytest.mark.req("KAI-3")
@pytest.mark.parametrize("end", ["closed", "timeout"])
async def test_a_run_that_waits_for_its_reader_can_be_ended(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    asked = asyncio.Event()
    world = in_memory(monkeypatch, [asked.set, *["x"] * 4 * MAX_UNREAD_EVENTS])
    run_ = run_agent("Go.", options(timeout=0.3 if end == "timeout" else None))
    assert isinstance(await anext(run_), RunStarted)
    async with asyncio.timeout(60):
        await asked.wait()
        await settled()
        if end == "closed":
            await run_.aclose()
        else:
            await asyncio.wait(other_tasks())
            rest = [event async for event in run_]
            assert finished(rest).ended is RunEnd.TIMEOUT
            assert MAX_UNREAD_EVENTS <= len(finished(rest).text) < 4 * MAX_UNREAD_EVENTS
    assert world.opened == world.closed == 1
    assert not other_tasks()


def told(form: ToolFormat = ToolFormat.ANTHROPIC, **raw: Any) -> Any:
    return messages.result_content(
        ToolOutcome(status=ToolStatus.OK, result=read_result(json.dumps(raw).encode())), form
    )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(size: int) -> dict[str, Any]:
    data = base64.b64encode(PNG + bytes(size - len(PNG))).decode()
    return {"type": "image", "mimeType": "image/png", "data": data}


async def test_a_result_that_is_too_long_is_cut_and_says_how_much_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_text = "y" * (messages.MAX_TEXT_LENGTH + 12_345)
    world = in_memory(monkeypatch, [Calls(tool="act")], ["Done."], kit=desk(act=lambda _: result(whole_text)))
    events = await run(**SERVERS)
    (part,) = world.results
    assert isinstance(part.content, str)
    assert part.content.startswith("y" * messages.MAX_TEXT_LENGTH + "\n(12345 more characters omitted. Ask for less")
    assert len(part.content) < messages.MAX_TEXT_LENGTH + 200
    (ended,) = [event for event in events if isinstance(event, ToolFinished)]
    assert ended.text == part.content
    assert ended.blocks == (text(whole_text),)


def test_all_texts_of_a_result_count_and_what_is_no_text_stays() -> None:
    half = messages.MAX_TEXT_LENGTH // 2 + 1
    first, picture, second, note = told(content=[text("a" * half), image(50), text("b" * half), text("c" * half)])
    assert first == "a" * half
    assert isinstance(picture, BinaryContent)
    assert second == "b" * (messages.MAX_TEXT_LENGTH - half)
    # One of them ends the line between the two texts.
    assert note.startswith(f"({half + 3} more characters omitted.")
    assert told(content=[text("a" * messages.MAX_TEXT_LENGTH)]) == "a" * messages.MAX_TEXT_LENGTH


def test_an_error_that_is_too_long_is_cut_too() -> None:
    words = messages.result_content(
        ToolOutcome(status=ToolStatus.ERROR, words="z" * 2 * messages.MAX_TEXT_LENGTH), ToolFormat.OPENAI_CHAT
    )
    assert isinstance(words, str)
    assert f"({messages.MAX_TEXT_LENGTH} more characters omitted." in words[messages.MAX_TEXT_LENGTH :]


def test_a_file_that_is_too_large_is_said_in_words() -> None:
    (fits,) = told(content=[image(messages.MAX_FILE_BYTES)])
    assert isinstance(fits, BinaryContent)
    # As it is sent; Anthropic counts these.
    assert len(base64.b64encode(fits.data)) <= 5 * 1024 * 1024
    size = messages.MAX_FILE_BYTES + 1
    assert told(content=[text("See:"), image(size)]) == f"See:\n(image/png, {size} bytes: too large to show.)"


def test_many_files_together_can_be_too_large_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_TOTAL_FILE_BYTES", 250)
    *shown, words = told(content=[image(100), image(100), image(100)])
    assert [len(one.data) for one in shown] == [100, 100]
    assert words == "(image/png, 100 bytes: too large to show.)"


# Halves


async def test_characters_that_come_in_halves_are_joined_and_lone_halves_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn: list[Piece] = [
        *(Thinks(text=words) for words in (f"Hm {FIRST}", f"{SECOND}{FIRST}")),
        *(f"Hi {FIRST}", SECOND, f" {SECOND}a{FIRST}", f"b{FIRST}"),
        Calls(tool="act", arguments=f'{{"a": "{FIRST}{SECOND}"}}', id=f"one{FIRST}"),
    ]
    kit = desk(act=lambda given_: given_["a"])
    world = in_memory(monkeypatch, turn, [f"Bye {FIRST}", SECOND, FIRST], kit=kit)
    events = await run(**SERVERS)
    last = finished(events)
    assert last.text == f"Bye {FACE}{LONE}"
    assert "".join(one.text for one in events if isinstance(one, ReasoningDelta)) == f"Hm {FACE}{LONE}"
    said = "".join(one.text for one in events if isinstance(one, TextDelta))
    assert said == f"Hi {FACE} {LONE}a{LONE}b{LONE}Bye {FACE}{LONE}"
    assert [given_ for _, given_ in kit.calls] == [{"a": FACE}]
    for event in events:
        json.dumps(event.to_json(), ensure_ascii=False).encode()
    assert [part.content for part in world.results] == [FACE]
    assert finished(await run(history=last.messages)).text == f"Bye {FACE}{LONE}"


async def test_an_answer_that_breaks_off_in_a_character_is_told_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, [f"Hi {FIRST}", lambda: asyncio.Event().wait()])
    events = await run(timeout=1)
    assert finished(events).text == f"Hi {LONE}" == "".join(one.text for one in events if isinstance(one, TextDelta))


def test_a_tools_half_character_does_not_reach_the_conversation() -> None:
    good = read_result(b'{"content":[]}')
    odd = replace(good, blocks=tuple(replace(one, text=f"x{FIRST}") for one in read_result(TEXT).blocks))
    assert messages.result_content(ToolOutcome(status=ToolStatus.OK, result=odd), ToolFormat.GOOGLE) == f"x{LONE}"
    assert messages.result_content(ToolOutcome(status=ToolStatus.ERROR, words=FIRST), ToolFormat.GOOGLE) == LONE


TEXT = b'{"content":[{"type":"text","text":"x"}]}'
HALVES = st.text(st.sampled_from(["a", "é", FACE, FIRST, SECOND]))


@given(st.lists(HALVES))
def test_pieces_add_up_to_the_whole_wherever_they_were_cut(cut: list[str]) -> None:
    pieces = TextPieces()
    added = "".join([*map(pieces.add, cut), pieces.rest()])
    assert added == whole_text("".join(cut))
    added.encode()
    assert added.replace(LONE, "") == whole_text("".join(cut)).replace(LONE, "")


@given(st.text())
def test_whole_text_stays_as_it_is(words: str) -> None:
    assert whole_text(words) == words


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "[1e999]"])
async def test_numbers_that_are_not_finite_are_refused_and_the_model_is_told(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    kit = desk(act=lambda _: "never")
    world = in_memory(monkeypatch, [Calls(tool="act", arguments=f'{{"n": {number}}}')], ["Oh."], kit=kit)
    events = await run(**SERVERS)
    (ended,) = [event for event in events if isinstance(event, ToolFinished)]
    assert ended.tool_status is ToolStatus.INVALID
    assert kit.calls == []
    (part,) = world.results
    assert "JSON" in str(part.content)
    with pytest.raises(InvalidArguments):
        read_arguments({"n": float("inf")})
    assert finished(events).ended is RunEnd.DONE
