"""A pydantic-ai model that sends the given tool definitions and accepts only complete answers.

In: a provider's model class, with `CheckedModel` as a mixin. Out: answers with a finish reason that `loop` acts on, or
`BrokenAnswer` and `AnswerStopped` from `failures`. Without it, pydantic-ai would rewrite schemas for the provider
(`formats` does that, and reports it), would accept an answer that ended without a stop reason, and would fail on wrong
types, which the SDKs don't check. The stop reason comes after all content, so it also shows that the answer is
complete. `STOP_REASONS` lists those of all providers.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import MappingProxyType
from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.messages import (
    FinishReason,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.tools import ToolDefinition

from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.failures import AnswerStopped, BrokenAnswer, Failure
from toolcrib.errors import ToolcribError


class StopMeaning(enum.StrEnum):
    COMPLETE = "complete"
    """The answer is complete, and its calls are run."""
    LENGTH = "length"
    """Cut off at a token limit. Its calls are not run, and the model is informed."""
    REFUSED = "refused"
    """The provider's filter, or the model, declined. Its calls are not run."""
    RETRY = "retry"
    """The same request may succeed; it is repeated if nothing was shown yet."""
    FAIL = "fail"
    """The run fails with the reason."""


_C, _L, _N, _R, _F = StopMeaning.COMPLETE, StopMeaning.LENGTH, StopMeaning.REFUSED, StopMeaning.RETRY, StopMeaning.FAIL

STOP_REASONS: Mapping[str, Mapping[str, StopMeaning]] = MappingProxyType(
    {
        "openai": {
            "stop": _C,
            "tool_calls": _C,
            "function_call": _C,
            "length": _L,
            "content_filter": _N,
            # From compatible servers: Text Generation Inference and Together …
            "eos": _C,
            "eos_token": _C,
            "stop_sequence": _C,
            # … Mistral …
            "model_length": _L,
            "error": _R,
            # … vLLM, DeepSeek and GLM.
            "abort": _R,
            "insufficient_system_resource": _R,
            "network_error": _R,
            "sensitive": _N,
        },
        "openai-responses": {
            "completed": _C,
            "max_output_tokens": _L,
            "content_filter": _N,
            "failed": _R,
            "max_messages": _F,
            "steered": _F,
        },
        "anthropic": {
            "end_turn": _C,
            "stop_sequence": _C,
            "tool_use": _C,
            "max_tokens": _L,
            "model_context_window_exceeded": _L,
            "refusal": _N,
            # Only with provider-run tools or with compaction, and we request neither.
            "pause_turn": _F,
            "compaction": _F,
        },
        "google": {
            "STOP": _C,
            "MAX_TOKENS": _L,
            "CONTINUATION": _L,
            "SAFETY": _N,
            "RECITATION": _N,
            "BLOCKLIST": _N,
            "PROHIBITED_CONTENT": _N,
            "SPII": _N,
            "MODEL_ARMOR": _N,
            "IMAGE_SAFETY": _N,
            "IMAGE_PROHIBITED_CONTENT": _N,
            "IMAGE_RECITATION": _N,
            "MALFORMED_FUNCTION_CALL": _R,
            "MALFORMED_RESPONSE": _R,
            "UNEXPECTED_TOOL_CALL": _R,
            "OTHER": _R,
            "FINISH_REASON_UNSPECIFIED": _R,
            "LANGUAGE": _F,
            "TOO_MANY_TOOL_CALLS": _F,
            "NO_IMAGE": _F,
            "IMAGE_OTHER": _F,
        },
        "openrouter": {
            "stop": _C,
            "tool_calls": _C,
            "length": _L,
            "content_filter": _N,
            "error": _R,
        },
    }
)
"""By the provider's name in `AgentOptions.model`. An unlisted reason fails the run, because its meaning is unknown."""

CALLS = frozenset({"tool_calls", "function_call", "tool_use"})
"""Reasons of answers that contain a call."""
DECLINED = ("refusal", "block_reason")
"""The keys in `provider_details` of a refusal in words, and of a blocked prompt."""


def finish_reason(provider: str, answer: ModelResponse, reason: str | None) -> FinishReason:
    """`reason` is the provider's own term; without one, the answer was cut short."""
    if any((answer.provider_details or {}).get(key) for key in DECLINED):
        return "content_filter"
    if not reason:
        raise BrokenAnswer("The model's answer is incomplete: it ended without a stop reason.")
    match STOP_REASONS[provider].get(reason, StopMeaning.FAIL):
        case StopMeaning.LENGTH:
            return "length"
        case StopMeaning.REFUSED:
            return "content_filter"
        case StopMeaning.RETRY:
            raise BrokenAnswer(f"The provider could not finish the answer: its stop reason is {reason}.")
        case StopMeaning.FAIL:
            raise AnswerStopped(f"The provider stopped the answer: its stop reason is {reason}.")
    if reason in CALLS and not any(isinstance(part, ToolCallPart) for part in answer.parts):
        raise BrokenAnswer(f"The model's answer ended with {reason}, but contains no call.")
    return "stop"


EVENT: TypeAdapter[ModelResponseStreamEvent] = TypeAdapter(ModelResponseStreamEvent)


class CheckedModel:
    definitions: Definitions
    provider_name: str
    """As in `AgentOptions.model`."""

    def customize_request_parameters(self, model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
        return model_request_parameters

    def _map_tool_definition(self, f: ToolDefinition, *_: Any, **__: Any) -> Any:
        return self.definitions.of(f.name)

    def _stop_reason(self, answer: ModelResponse) -> str | None:
        """The provider's own term."""
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
            # A value of the wrong type would otherwise fail only when the conversation is serialized.
            ModelMessagesTypeAdapter.dump_python([answer], warnings="error")
        stream.finish_reason = finish_reason(self.provider_name, answer, self._stop_reason(answer))


def check_message(message: object, shape: type[msgspec.Struct]) -> None:
    try:
        msgspec.convert(message, shape)
    except msgspec.ValidationError as error:
        raise BrokenAnswer(f"The model's answer cannot be read: {error}") from error


@contextmanager
def _readable() -> Iterator[None]:
    """Any error in an SDK or in pydantic-ai while it reads an answer becomes `BrokenAnswer`."""
    try:
        yield
    except (ToolcribError, *Failure):
        raise
    except Exception as error:
        raise BrokenAnswer(f"The model's answer cannot be read: {error}") from error
