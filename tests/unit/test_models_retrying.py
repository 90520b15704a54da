"""What is asked again, when, and what is not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.failures import LONGEST, failure_reason
from toolcrib.agent_loop.models.retrying import LONGEST_DELAY, LONGEST_REQUESTED, RetryingModel

ASKED: list[ModelMessage] = [ModelRequest.user_text_prompt("go on")]
LOST = ModelConnectionError("m", "lost")


def http(status: int, *, after: str | None = None, **more: Any) -> ModelHTTPError:
    headers = {**({"Retry-After": after} if after is not None else {}), **more}
    return ModelHTTPError(status, "m", {"error": {"message": "not now"}}, headers=headers)


class Told:
    """What was said and waited for, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.hung_up = 0

    def tell(self, why: str, delay: float, attempt: int) -> None:
        self.log.append(("told", (why, delay, attempt)))

    async def hang_up(self) -> None:
        self.hung_up += 1

    async def sleep(self, delay: float) -> None:
        self.log.append(("slept", delay))

    @property
    def waits(self) -> list[float]:
        return [what for kind, what in self.log if kind == "slept"]


class Scripted:
    """A model whose answers are pieces, of which some are errors."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers: Iterator[list[Any]] = iter(answers)
        self.asked = 0

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for piece in self._next():
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        (piece,) = self._next()
        if isinstance(piece, Exception):
            raise piece
        return ModelResponse(parts=[TextPart(piece)])

    def _next(self) -> list[Any]:
        self.asked += 1
        return next(self.answers)


def around(
    scripted: Scripted, told: Told, *, retries: int = 4, chance: Callable[[], float] = lambda: 1.0
) -> RetryingModel:
    inner = FunctionModel(scripted.whole, stream_function=scripted.stream)
    return RetryingModel(
        inner,
        definitions=Definitions(by_name={}),
        retries=retries,
        on_retry=told.tell,
        hang_up=told.hang_up,
        sleep=told.sleep,
        chance=chance,
    )


async def answer(model: RetryingModel, shown: list[Any] | None = None) -> ModelResponse:
    async with model.request_stream(ASKED, None, ModelRequestParameters()) as stream:
        async for event in stream:
            if shown is not None:
                shown.append(event)
        return stream.get()


def said(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_what_will_pass_is_asked_again(status: int) -> None:
    scripted, told = Scripted([http(status)], ["there"]), Told()
    assert said(await answer(around(scripted, told))) == "there"
    assert scripted.asked == 2
    assert told.log == [("told", (f"{status}: not now", 0.5, 1)), ("slept", 0.5)]


@pytest.mark.parametrize(
    "error",
    [
        *(http(status) for status in (400, 401, 402, 403, 404, 413, 422)),
        ModelHTTPError.for_category(ModelQuotaExceededError, status_code=429, model_name="m"),
        ModelRequestRejectedError("m", "too long"),
        ContentFilterError("refused"),
        http(429, **{"x-should-retry": "false"}),
    ],
    ids=lambda error: f"{type(error).__name__} {getattr(error, 'status_code', '')}",
)
async def test_what_will_not_pass_is_not_asked_again(error: Exception) -> None:
    scripted, told = Scripted([error]), Told()
    with pytest.raises(type(error)) as caught:
        await answer(around(scripted, told))
    assert caught.value is error
    assert (scripted.asked, told.log) == (1, [])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (LOST, "connection failed: lost"),
        (ModelTimeoutError("m", "slow"), "timed out: slow"),
        (UnexpectedModelBehavior("ended without content"), "ended without content"),
        (ModelAPIError("m", "no JSON"), "no JSON"),
    ],
)
async def test_a_line_that_fails_and_an_answer_that_is_none_are_asked_again(error: Exception, why: str) -> None:
    scripted, told = Scripted([error], ["there"]), Told()
    assert said(await answer(around(scripted, told))) == "there"
    assert told.log[0] == ("told", (why, 0.5, 1))


async def test_the_waits_grow_up_to_a_limit_and_the_last_failure_is_the_end() -> None:
    scripted, told = Scripted(*([http(503)] for _ in range(20))), Told()
    with pytest.raises(ModelHTTPError):
        await answer(around(scripted, told, retries=9))
    assert told.waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert scripted.asked == 10


async def test_without_retries_nothing_is_asked_again() -> None:
    scripted, told = Scripted([http(503)]), Told()
    with pytest.raises(ModelHTTPError):
        await answer(around(scripted, told, retries=0))
    assert told.log == []


@pytest.mark.parametrize(("after", "waited"), [("0", 0.5), ("7", 7.0), ("3600", LONGEST_REQUESTED), ("soon", 0.5)])
async def test_the_provider_says_how_long_to_wait_within_a_limit(after: str, waited: float) -> None:
    scripted, told = Scripted([http(429, after=after)], ["there"]), Told()
    await answer(around(scripted, told))
    assert told.waits == [waited]


@pytest.mark.parametrize(
    ("delay", "waited"),
    [("3s", 3.0), ("0.25s", 0.25), ("0s", 0.5), ("x", 0.5), (None, 0.5), ("9999s", LONGEST_REQUESTED)],
)
async def test_google_says_in_the_body_how_long_to_wait(delay: Any, waited: float) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    error = ModelHTTPError(429, "m", {"error": {"message": "not now", "details": ["odd", {}, detail]}})
    scripted, told = Scripted([error], ["there"]), Told()
    await answer(around(scripted, told))
    assert told.waits == [waited]


@pytest.mark.parametrize("body", [None, "x", [], {"error": "x"}, {"error": {"details": {}}}, {"details": [1]}])
async def test_a_body_that_says_nothing_of_it_is_no_trouble(body: Any) -> None:
    scripted, told = Scripted([ModelHTTPError(429, "m", body)], ["there"]), Told()
    await answer(around(scripted, told))
    assert told.waits == [0.5]


@given(chance=st.floats(0, 1), retries=st.integers(1, 60))
async def test_no_wait_is_longer_than_the_limit_nor_shorter_than_half_its_turn(chance: float, retries: int) -> None:
    scripted, told = Scripted(*([http(503)] for _ in range(retries)), ["there"]), Told()
    await answer(around(scripted, told, retries=retries, chance=lambda: chance))
    turns = [min(LONGEST_DELAY, 0.5 * 2**n) for n in range(retries)]
    assert all(turn / 2 <= wait <= turn for turn, wait in zip(turns, told.waits, strict=True))


@pytest.mark.parametrize(
    "beginning", [[], [""], [{0: DeltaThinkingPart(content="")}]], ids=["nothing", "", "no thought"]
)
async def test_an_answer_that_breaks_before_anything_was_shown_is_asked_for_again(beginning: list[Any]) -> None:
    scripted, told = Scripted([*beginning, LOST], ["the ", "answer"]), Told()
    shown: list[Any] = []
    assert said(await answer(around(scripted, told), shown)) == "the answer"
    assert scripted.asked == 2
    assert [event.part.content for event in shown if event.event_kind == "part_start"] == ["the "]


async def test_an_answer_that_breaks_in_a_tool_s_call_is_asked_for_again_since_none_of_it_was_shown() -> None:
    begun = [{0: DeltaToolCall(name="add", json_args='{"a"', tool_call_id="1")}, LOST]
    whole = [{0: DeltaToolCall(name="add", json_args='{"a": 1}', tool_call_id="2")}]
    scripted, told = Scripted(begun, whole), Told()
    response = await answer(around(scripted, told))
    assert [(part.tool_call_id, part.args) for part in response.parts if isinstance(part, ToolCallPart)] == [
        ("2", '{"a": 1}')
    ]


@pytest.mark.parametrize("shown", ["half of", {0: DeltaThinkingPart(content="half of")}], ids=["text", "thought"])
async def test_an_answer_that_breaks_after_something_was_shown_is_the_end(shown: Any) -> None:
    scripted, told = Scripted([shown, LOST], ["another"]), Told()
    seen: list[Any] = []
    with pytest.raises(ModelConnectionError):
        await answer(around(scripted, told), seen)
    assert (scripted.asked, told.log) == (1, [])
    assert seen[0].part.content == "half of"


async def test_what_is_shown_comes_as_soon_as_it_is_there() -> None:
    more = asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "first"
        await more.wait()
        yield " second"

    told = Told()
    model = RetryingModel(
        FunctionModel(stream_function=stream),
        definitions=Definitions(by_name={}),
        retries=0,
        on_retry=told.tell,
        hang_up=told.hang_up,
    )
    async with asyncio.timeout(60), model.request_stream(ASKED, None, ModelRequestParameters()) as answered:
        events = aiter(answered)
        assert (await anext(events)).part.content == "first"  # type: ignore[union-attr]
        more.set()
        assert [event async for event in events]
        assert said(answered.get()) == "first second"


async def test_thoughts_and_words_keep_their_order() -> None:
    scripted = Scripted([{0: DeltaThinkingPart(content="hm")}, {0: DeltaThinkingPart(content="m")}])
    response = await answer(around(scripted, Told()))
    assert [part.content for part in response.parts if isinstance(part, ThinkingPart)] == ["hmm"]


async def test_a_request_for_a_whole_answer_is_made_again_alike() -> None:
    scripted, told = Scripted([http(429, after="1")], ["there"]), Told()
    assert said(await around(scripted, told).request(ASKED, None, ModelRequestParameters())) == "there"
    assert told.waits == [1.0]


async def test_who_is_cancelled_while_waiting_asks_no_more() -> None:
    scripted, told = Scripted([http(503)], ["never"]), Told()
    waiting = asyncio.Event()

    async def forever(delay: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    told.sleep = forever  # type: ignore[method-assign]
    task = asyncio.create_task(answer(around(scripted, told)))
    async with asyncio.timeout(60):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert scripted.asked == 1


def test_a_reason_is_one_short_line() -> None:
    told = failure_reason(ModelHTTPError(500, "m", "a\nb " + "x" * 1000))
    assert told.startswith("500: a b xx")
    assert len(told) == LONGEST


@pytest.mark.parametrize("body", [None, {}, {"error": {}}, {"message": "why"}, {"error": "why"}, {"error": ["why"]}])
def test_a_reason_is_found_in_whatever_a_provider_sends(body: object) -> None:
    assert failure_reason(ModelHTTPError(500, "m", body)) in {"500", "500: why"}


def test_a_failed_connection_is_told_by_what_it_came_from() -> None:
    layers = itertools.accumulate([OSError("no route"), RuntimeError("failed"), LOST], _caused)
    assert failure_reason([*layers][-1]) == "connection failed: no route"


def _caused(cause: Exception, error: Exception) -> Exception:
    error.__cause__ = cause
    return error
