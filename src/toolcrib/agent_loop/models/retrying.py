"""Retries for all providers, in one place. The SDKs' own retries are off.

In: a model. Out: the same model, which repeats failed requests until text or thinking of the answer was shown. A tool
call is not shown before the answer is complete, so an answer that breaks inside one is also requested again. After
that, a failure ends the run: the reader already has the start of one answer and would get another one after it, but
the deltas of a step must add up to the model's text. `failures` decides which errors are temporary.
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
"""Seconds. If a provider requests a longer delay, we still retry after this."""


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
                # Also for answers that break before they have a stream.
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
        """Exhausts all readers of the answer now.

        An answer is read through nested generators. Closing the outermost leaves the inner ones to the garbage
        collector, which closes them in separate tasks after their connection is gone. With the connection closed
        first, each one ends when it is read.
        """
        await self._hang_up()
        # A cancellation between two chunks ends the outer generators, but not the ones they read from.
        under_it: list[AsyncIterable[Any]] = [stream._response] if hasattr(stream, "_response") else []
        for read in (stream, *under_it):
            with suppress(Exception):
                async for _ in read:
                    pass

    def _delay(self, error: Exception, attempt: int) -> float:
        """Reports the retry and returns its delay in seconds. Raises the error if there is no retry."""
        if (ours := toolcrib_cause(error)) is not None:
            raise ours
        if attempt > self._retries or not may_retry(error):
            raise error
        if requested := requested_delay(error):
            delay = min(requested, LONGEST_REQUESTED)
        else:
            longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(attempt - 1, DOUBLINGS))
            # Jitter, so that clients that failed together don't all retry together.
            delay = longest * (1 + self._chance()) / 2
        self._on_retry(failure_reason(error), delay, attempt)
        return delay


async def _until_shown(stream: StreamedResponse) -> None:
    """Reads up to the first event with visible content. The stream still yields every event."""
    events = stream._get_event_iterator()
    held: list[ModelResponseStreamEvent] = []
    async for event in events:
        held.append(event)
        if _shows(event):
            break
    stream._get_event_iterator = lambda: _after(held, events)  # type: ignore[method-assign]


def _refuse_nothing(stream: StreamedResponse, messages: Sequence[ModelMessage]) -> None:
    """An empty answer is valid only after tool results, when a model may have nothing to add."""
    is_nothing = all(isinstance(part, TextPart) and not part.content for part in stream.get().parts)
    after_tools = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
    # The calls of a truncated answer were not run.
    cut_off = any(isinstance(one, ModelResponse) and one.finish_reason == "length" for one in messages[-2:])
    if is_nothing and (cut_off or not after_tools) and stream.finish_reason in (None, "stop"):
        raise EmptyAnswer("The model's answer is empty.")


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
