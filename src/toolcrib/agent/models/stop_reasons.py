"""Why a model's answer ended, for each provider: the table, and what follows from it.

In: an answer as pydantic-ai read it. Out: the finish reason that `loop` acts on, or `BrokenAnswer` and `AnswerStopped`
of `failures`. A stop reason comes after all content, so it is also the mark that the answer is whole. `wire` asks here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from pydantic_ai.messages import FinishReason, ModelResponse, ToolCallPart

from toolcrib.agent.models.failures import AnswerStopped, BrokenAnswer


class Meaning(enum.StrEnum):
    COMPLETE = "complete"
    """The answer is whole, and its calls are run."""
    LENGTH = "length"
    """Cut off at a limit of tokens: its calls are not run, and the model is told."""
    REFUSED = "refused"
    """The provider's filter, or the model, declined: its calls are not run."""
    RETRY = "retry"
    """The same request may go better; as long as nothing was shown it is made again."""
    FAIL = "fail"
    """The run fails with the reason."""


_C, _L, _N, _R, _F = Meaning.COMPLETE, Meaning.LENGTH, Meaning.REFUSED, Meaning.RETRY, Meaning.FAIL

STOP_REASONS: Mapping[str, Mapping[str, Meaning]] = MappingProxyType(
    {
        "openai": {
            "stop": _C,
            "tool_calls": _C,
            "function_call": _C,
            "length": _L,
            "content_filter": _N,
            # Of servers that copy the interface: Text Generation Inference and Together …
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
            # Only with tools that the provider runs itself, or that shorten a conversation: none is asked for.
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
"""By the provider's name in `AgentOptions.model`. A reason that is not here fails the run: it may mean anything."""

CALLS = frozenset({"tool_calls", "function_call", "tool_use"})
"""Reasons which say that the answer holds a call."""
DECLINED = ("refusal", "block_reason")
"""Where pydantic-ai keeps that a model declined in words, or that the prompt was blocked."""


def finish_reason(provider: str, answer: ModelResponse, reason: str | None) -> FinishReason:
    """`reason` is the provider's own word. None: it gave none, so the answer was cut short."""
    if any((answer.provider_details or {}).get(key) for key in DECLINED):
        return "content_filter"
    if not reason:
        raise BrokenAnswer("The model's answer ended without a stop reason, so it is not whole.")
    match STOP_REASONS[provider].get(reason, Meaning.FAIL):
        case Meaning.LENGTH:
            return "length"
        case Meaning.REFUSED:
            return "content_filter"
        case Meaning.RETRY:
            raise BrokenAnswer(f"The provider gave up on the answer: its stop reason is {reason}.")
        case Meaning.FAIL:
            raise AnswerStopped(f"The provider stopped the answer: its stop reason is {reason}.")
    if reason in CALLS and not any(isinstance(part, ToolCallPart) for part in answer.parts):
        raise BrokenAnswer(f"The model's answer ended with {reason}, but holds no call.")
    return "stop"
