"""Which requests are retried, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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


class Attempts:
    """A model whose answers are lists of pieces, some of them errors. Records retries and waits."""

    def __init__(self, *answers: list[Any], retries: int = 4, chance: float = 1.0) -> None:
        self._answers = iter(answers)
        self.asked = 0
        self.reported: list[tuple[str, float, int]] = []
        self.waits: list[float] = []
        self.events: list[Any] = []
        self.model = RetryingModel(
            FunctionModel(self._whole, stream_function=self._stream),
            definitions=Definitions(by_name={}),
            retries=retries,
            on_retry=lambda *retry: self.reported.append(retry),
            hang_up=self._hang_up,
            sleep=self._sleep,
            chance=lambda: chance,
        )

    async def answer(self) -> str:
        async with self.model.request_stream(ASKED, None, ModelRequestParameters()) as stream:
            async for event in stream:
                self.events.append(event)
            self.response = stream.get()
        return text_of(self.response)

    async def _sleep(self, delay: float) -> None:
        assert self.reported[-1][1] == delay
        self.waits.append(delay)

    async def _hang_up(self) -> None:
        pass

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.asked += 1
        for piece in next(self._answers):
            if isinstance(piece, Exception):
                raise piece
            yield (await piece.wait() or "") if isinstance(piece, asyncio.Event) else piece

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        [piece] = [piece async for piece in self._stream(messages, info)]
        return ModelResponse(parts=[TextPart(piece)])


def text_of(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        *((http(status), f"{status}: not now") for status in (408, 409, 429, 500, 502, 503, 504, 529)),
        (LOST, "connection failed: lost"),
        (ModelTimeoutError("m", "slow"), "timed out: slow"),
        (UnexpectedModelBehavior("ended without content"), "ended without content"),
        (ModelAPIError("m", "no JSON"), "no JSON"),
    ],
)
async def test_temporary_failures_are_retried(error: Exception, reason: str) -> None:
    attempts = Attempts([error], ["there"])
    assert await attempts.answer() == "there"
    assert (attempts.asked, attempts.reported, attempts.waits) == (2, [(reason, 0.5, 1)], [0.5])


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
async def test_permanent_failures_are_not_retried(error: Exception) -> None:
    attempts = Attempts([error])
    with pytest.raises(type(error)) as caught:
        await attempts.answer()
    assert caught.value is error
    assert (attempts.asked, attempts.reported) == (1, [])


@pytest.mark.parametrize(("retries", "waits"), [(9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]), (0, [])])
async def test_waits_grow_up_to_a_limit_and_retries_are_limited(retries: int, waits: list[float]) -> None:
    attempts = Attempts(*([http(503)] for _ in range(20)), retries=retries)
    with pytest.raises(ModelHTTPError):
        await attempts.answer()
    assert (attempts.waits, attempts.asked) == (waits, retries + 1)


def google(delay: Any) -> ModelHTTPError:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    return ModelHTTPError(429, "m", {"error": {"message": "not now", "details": ["odd", {}, detail]}})


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (http(429, after="0"), 0.5),
        (http(429, after="7"), 7.0),
        (http(429, after="3600"), LONGEST_REQUESTED),
        (http(429, after="soon"), 0.5),
        (google("3s"), 3.0),
        (google("0.25s"), 0.25),
        (google("0s"), 0.5),
        (google("x"), 0.5),
        (google(None), 0.5),
        (google("9999s"), LONGEST_REQUESTED),
        *(
            (ModelHTTPError(429, "m", body), 0.5)
            for body in (None, "x", [], {"error": "x"}, {"error": {"details": {}}}, {"details": [1]})
        ),
    ],
)
async def test_a_provider_can_request_a_delay_up_to_a_limit(error: ModelHTTPError, wait: float) -> None:
    attempts = Attempts([error], ["there"])
    assert await attempts.answer() == "there"
    assert attempts.waits == [wait]
    attempts = Attempts([error], ["there"])
    assert text_of(await attempts.model.request(ASKED, None, ModelRequestParameters())) == "there"
    assert attempts.waits == [wait], "the same without streaming"


@given(chance=st.floats(0, 1), retries=st.integers(1, 60))
async def test_a_wait_is_at_least_half_of_its_maximum(chance: float, retries: int) -> None:
    attempts = Attempts(*([http(503)] for _ in range(retries)), ["there"], retries=retries, chance=chance)
    await attempts.answer()
    longest = [min(LONGEST_DELAY, 0.5 * 2**n) for n in range(retries)]
    assert all(most / 2 <= wait <= most for most, wait in zip(longest, attempts.waits, strict=True))


@pytest.mark.parametrize("start", [[], [""], [{0: DeltaThinkingPart(content="")}]], ids=["nothing", "", "no thought"])
async def test_an_answer_that_breaks_before_its_first_text_is_requested_again(start: list[Any]) -> None:
    attempts = Attempts([*start, LOST], ["the ", "answer"])
    assert await attempts.answer() == "the answer"
    assert attempts.asked == 2
    assert [event.part.content for event in attempts.events if event.event_kind == "part_start"] == ["the "]


async def test_an_answer_that_breaks_inside_a_tool_call_is_requested_again() -> None:
    broken = [{0: DeltaToolCall(name="add", json_args='{"a"', tool_call_id="1")}, LOST]
    attempts = Attempts(broken, [{0: DeltaToolCall(name="add", json_args='{"a": 1}', tool_call_id="2")}])
    await attempts.answer()
    [call] = [part for part in attempts.response.parts if isinstance(part, ToolCallPart)]
    assert (call.tool_call_id, call.args) == ("2", '{"a": 1}')


@pytest.mark.parametrize("shown", ["half of", {0: DeltaThinkingPart(content="half of")}], ids=["text", "thought"])
async def test_an_answer_that_breaks_after_something_was_shown_fails(shown: Any) -> None:
    attempts = Attempts([shown, LOST], ["another"])
    with pytest.raises(ModelConnectionError):
        await attempts.answer()
    assert (attempts.asked, attempts.reported) == (1, [])
    assert attempts.events[0].part.content == "half of"


async def test_text_is_shown_immediately() -> None:
    more = asyncio.Event()
    model = Attempts(["first", more, " second"]).model
    async with asyncio.timeout(60), model.request_stream(ASKED, None, ModelRequestParameters()) as stream:
        events = aiter(stream)
        assert (await anext(events)).part.content == "first"  # type: ignore[union-attr]
        more.set()
        assert [event async for event in events]
        assert text_of(stream.get()) == "first second"


async def test_thinking_is_kept() -> None:
    attempts = Attempts([{0: DeltaThinkingPart(content="hm")}, {0: DeltaThinkingPart(content="m")}])
    await attempts.answer()
    assert [part.content for part in attempts.response.parts if isinstance(part, ThinkingPart)] == ["hmm"]


async def test_a_cancelled_wait_makes_no_more_requests() -> None:
    attempts = Attempts([http(503)], ["never"])
    waiting = asyncio.Event()

    async def forever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    attempts.model._sleep = forever
    task = asyncio.create_task(attempts.answer())
    async with asyncio.timeout(60):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert attempts.asked == 1


def test_the_reason_of_a_failure_is_one_short_line() -> None:
    reason = failure_reason(ModelHTTPError(500, "m", "a\nb " + "x" * 1000))
    assert reason.startswith("500: a b xx")
    assert len(reason) == LONGEST
    for body in (None, {}, {"error": {}}, {"message": "why"}, {"error": "why"}, {"error": ["why"]}):
        assert failure_reason(ModelHTTPError(500, "m", body)) in {"500", "500: why"}
    failed, lost = RuntimeError("failed"), ModelConnectionError("m", "lost")
    failed.__cause__ = OSError("no route")
    lost.__cause__ = failed
    assert failure_reason(lost) == "connection failed: no route"
