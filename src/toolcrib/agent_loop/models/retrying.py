"""Requests that are made again, in one place for all providers: their SDKs make none again by themselves.

In: a model. Out: the same, whose requests are repeated as long as nothing of the answer was shown: text or thoughts. A
call of a tool is not shown before the answer is whole, so one that breaks off there is repeated, too. After that the
failure is the end of the run: its reader has the beginning of the answer, and would get another one after it; the
pieces of a step add up to what the model said. `failures` says what will pass.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.failures import (
    EmptyAnswer,
    Failure,
    failure_reason,
    may_retry,
    requested_delay,
    toolcrib_cause,
)

if TYPE_CHECKING:
    from pydantic_ai.tools import RunContext

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
DOUBLINGS = 10
LONGEST_REQUESTED = 60.0
"""A provider that wants more is asked again after this, all the same."""


class RetryingModel(WrapperModel):
    definitions: Definitions

    def __init__(
        self,
        wrapped: Model,
        *,
        definitions: Definitions,
        retries: int,
        on_retry: Callable[[str, float, int], None],
        hang_up: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(wrapped)
        self.definitions = definitions
        self._retries = retries
        self._on_retry = on_retry
        self._hang_up = hang_up
        self._sleep = sleep
        self._chance = chance

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.wrapped.request(messages, model_settings, model_request_parameters)
            except Failure as error:
                delay = self._delay(error, attempt)
            await self._sleep(delay)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        attempt = 0
        while True:
            attempt += 1
            async with AsyncExitStack() as stack:
                # Also where the answer breaks before there is a stream of it to leave.
                stack.push_async_callback(self._hang_up)
                try:
                    stream = await stack.enter_async_context(
                        self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context)
                    )
                    stack.push_async_callback(self._leave, stream)
                    await _until_shown(stream)
                    _refuse_nothing(stream, messages)
                except Failure as error:
                    delay = self._delay(error, attempt)
                else:
                    yield stream
                    return
            await self._sleep(delay)

    async def _leave(self, stream: StreamedResponse) -> None:
        """Brings all that reads the answer to its end, here and now, unless it has come there.

        An answer is read in many generators, one in the other, and who closes the outermost leaves the others to the
        garbage collector: it closes them in tasks of its own, when the connection they stand on is gone. On a dead
        line each comes to its end by itself.
        """
        await self._hang_up()
        # Who is cancelled between two pieces ends the outer ones, and leaves those that read for them.
        under_it: list[AsyncIterable[Any]] = [stream._response] if hasattr(stream, "_response") else []
        for read in (stream, *under_it):
            with suppress(Exception):
                async for _ in read:
                    pass

    def _delay(self, error: Exception, attempt: int) -> float:
        """How long to wait before this retry, which is reported; raises the error again if there is none left."""
        if (ours := toolcrib_cause(error)) is not None:
            raise ours
        if attempt > self._retries or not may_retry(error):
            raise error
        if requested := requested_delay(error):
            delay = min(requested, LONGEST_REQUESTED)
        else:
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(attempt - 1, DOUBLINGS))
            # Not all at once, where many were refused at once.
            delay = longest * (1 + self._chance()) / 2
        self._on_retry(failure_reason(error), delay, attempt)
        return delay


async def _until_shown(stream: StreamedResponse) -> None:
    """Read on to the first event with something to show. The stream has all of them still."""
    events = stream._get_event_iterator()
    held: list[ModelResponseStreamEvent] = []
    async for event in events:
        held.append(event)
        if _shows(event):
            break
    stream._get_event_iterator = lambda: _after(held, events)  # type: ignore[method-assign]


def _refuse_nothing(stream: StreamedResponse, messages: Sequence[ModelMessage]) -> None:
    """After its tools a model may have nothing to add. To a question nothing is no answer."""
    is_nothing = all(isinstance(part, TextPart) and not part.content for part in stream.get().parts)
    after_tools = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
    # The calls of an answer that was cut off were not run.
    cut_off = any(isinstance(one, ModelResponse) and one.finish_reason == "length" for one in messages[-2:])
    if is_nothing and (cut_off or not after_tools) and stream.finish_reason in (None, "stop"):
        raise EmptyAnswer("The model answered with nothing.")


async def _after(held: Sequence[ModelResponseStreamEvent], events: Any) -> AsyncIterator[ModelResponseStreamEvent]:
    async with aclosing(events):
        for event in held:
            yield event
        async for event in events:
            yield event


def _shows(event: ModelResponseStreamEvent) -> bool:
    match event:
        case PartStartEvent(part=TextPart(content=text) | ThinkingPart(content=text)):
            return bool(text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text) | ThinkingPartDelta(content_delta=text)):
            return bool(text)
        case _:
            return False
