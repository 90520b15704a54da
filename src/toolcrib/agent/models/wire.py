"""A pydantic-ai model that sends the definitions it was given, and takes no answer that is not whole.

In: nothing. Out: `AsGiven`, to be mixed into a provider's model in front of it. Without it pydantic-ai would rewrite
the schemas for what it takes for the provider's dialect; that is done in `catalog.formats`, and told. It would also
take an answer for complete that ended without a stop reason (`stop_reasons`), and stumble over wrong types: the SDKs
check none. `checked` holds a message of a stream against its shape, as far as we use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.tools import ToolDefinition

from toolcrib.agent.models.definitions import Definitions
from toolcrib.agent.models.failures import BrokenAnswer, Failure
from toolcrib.agent.models.stop_reasons import finish_reason
from toolcrib.errors import ToolcribError

EVENT: TypeAdapter[ModelResponseStreamEvent] = TypeAdapter(ModelResponseStreamEvent)


class AsGiven:
    definitions: Definitions
    provider_name: str
    """As in `AgentOptions.model`."""

    def customize_request_parameters(self, model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
        return model_request_parameters

    def _map_tool_definition(self, f: ToolDefinition, *_: Any, **__: Any) -> Any:
        return self.definitions.of(f.name)

    def _stop_reason(self, answer: ModelResponse) -> str | None:
        """The provider's own word."""
        return (answer.provider_details or {}).get("finish_reason")

    def _process_response(self, *given: Any, **named: Any) -> ModelResponse:
        with _readable():
            answer: ModelResponse = super()._process_response(*given, **named)  # type: ignore[misc]
        answer.finish_reason = finish_reason(self.provider_name, answer, self._stop_reason(answer))
        return answer

    async def _process_streamed_response(self, *given: Any, **named: Any) -> Any:
        with _readable():
            stream: StreamedResponse = await super()._process_streamed_response(*given, **named)  # type: ignore[misc]
        events = stream._get_event_iterator()
        stream._get_event_iterator = lambda: self._to_the_end(stream, events)  # type: ignore[method-assign]
        return stream

    async def _to_the_end(self, stream: StreamedResponse, events: Any) -> AsyncIterator[ModelResponseStreamEvent]:
        with _readable():
            async with aclosing(events):
                async for event in events:
                    EVENT.dump_python(event, warnings="error")
                    yield event
            answer = stream.get()
            # A value that does not fit would otherwise come up when the conversation is written down.
            ModelMessagesTypeAdapter.dump_python([answer], warnings="error")
        stream.finish_reason = finish_reason(self.provider_name, answer, self._stop_reason(answer))


def checked(message: object, shape: type[msgspec.Struct]) -> None:
    try:
        msgspec.convert(message, shape)
    except msgspec.ValidationError as error:
        raise BrokenAnswer(f"The model's answer cannot be read: {error}") from error


@contextmanager
def _readable() -> Iterator[None]:
    """Whatever an SDK or pydantic-ai stumbles over in an answer makes it a broken one."""
    try:
        yield
    except (ToolcribError, *Failure):
        raise
    except Exception as error:
        raise BrokenAnswer(f"The model's answer cannot be read: {error}") from error
