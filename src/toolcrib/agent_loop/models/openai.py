"""OpenAI's Chat Completions and Responses APIs, and compatible servers.

In: a `ModelEndpoint`, an HTTP client, the tools' definitions. Out: a model. `opening` opens it, `retrying` wraps it;
`openrouter` uses the same client.
"""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from toolcrib.agent_loop.models.answers import CheckedModel, check_message
from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint, ToolFormat
from toolcrib.agent_loop.models.http import NO_KEY

COMPATIBLE = "openai-compatible"
SETTINGS = {
    "openai": frozenset(OpenAIChatModelSettings.__annotations__),
    "openai-responses": frozenset(OpenAIResponsesModelSettings.__annotations__),
}
"""The model settings they support."""


class _Chat(CheckedModel, OpenAIChatModel):
    provider_name = "openai"


class _Responses(CheckedModel, OpenAIResponsesModel):
    provider_name = "openai-responses"


class _Function(msgspec.Struct):
    name: str | None = None
    # Some compatible servers send an object.
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Item(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    incomplete_details: _Details | None = None


class _Chunk(msgspec.Struct):
    """The fields we use of a message in a stream of chat completions."""

    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None


class _Event(msgspec.Struct):
    """The fields we use of a message in a stream of responses."""

    type: str
    item_id: str | None = None
    output_index: int | None = None
    delta: str | None = None
    text: str | None = None
    arguments: str | None = None
    part: _Part | None = None
    item: _Item | None = None
    response: _Response | None = None


class _Client(AsyncOpenAI):
    def _process_response_data(self, *, data: object, cast_to: Any, **how: Any) -> Any:
        if cast_to not in (ChatCompletion, Response):
            check_message(data, _Chunk if cast_to is ChatCompletionChunk else _Event)
        if cast_to is ChatCompletionChunk and isinstance(data, dict):
            # The last chunk may have only a stop reason, which pydantic-ai ignores if there is no delta.
            choices = [{**choice, "delta": choice.get("delta") or {}} for choice in data.get("choices") or ()]
            data = {**data, "choices": choices}
        return super()._process_response_data(data=data, cast_to=cast_to, **how)


def model(
    where: ModelEndpoint, client: httpx2.AsyncClient, definitions: Definitions
) -> OpenAIChatModel | OpenAIResponsesModel:
    sdk = client_of(where, client)
    # A compatible server lacks some of OpenAI's features, and must not get ids that only OpenAI knows.
    provider = (
        OpenAICompatibleProvider(COMPATIBLE, openai_client=sdk)
        if where.elsewhere
        else OpenAIProvider(openai_client=sdk)
    )
    kind = _Chat if where.provider.format is ToolFormat.OPENAI_CHAT else _Responses
    asked = kind(where.model, provider=provider)
    asked.definitions = definitions
    return asked


def client_of(where: ModelEndpoint, client: httpx2.AsyncClient) -> AsyncOpenAI:
    sdk = _Client(api_key=where.key or NO_KEY, base_url=where.url, http_client=client, max_retries=0)
    sdk.organization, sdk.project = where.organization or None, where.project or None
    # OPENAI_CUSTOM_HEADERS may be meant for another URL.
    sdk._custom_headers = {}
    return sdk
