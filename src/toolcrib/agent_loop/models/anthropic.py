"""Anthropic's Messages API.

In: a `ModelEndpoint`, an HTTP client, the tools' definitions. Out: a model. `opening` opens it, `retrying` wraps it.
"""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider

from toolcrib.agent_loop.models.answers import CheckedModel, check_message
from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint
from toolcrib.agent_loop.models.http import NO_KEY

SETTINGS = {"anthropic": frozenset(AnthropicModelSettings.__annotations__)}
"""The model settings it supports."""


class _Anthropic(CheckedModel, AnthropicModel):
    provider_name = "anthropic"


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None


class _Block(msgspec.Struct):
    type: str
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    input: dict[str, Any] | None = None


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    """The fields we use of a stream's message. Compatible servers send null for missing ones."""

    type: str
    message: _Message | None = None
    index: int | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None


class _Client(AsyncAnthropic):
    def _process_response_data(self, *, data: object, **how: Any) -> Any:
        check_message(data, _Event)
        return super()._process_response_data(data=data, **how)


def model(where: ModelEndpoint, client: httpx2.AsyncClient, definitions: Definitions) -> AnthropicModel:
    sdk = _Client(api_key=where.key or NO_KEY, base_url=where.url, http_client=client, max_retries=0)
    # ANTHROPIC_CUSTOM_HEADERS may be meant for another URL.
    sdk._custom_headers = {}
    asked = _Anthropic(where.model, provider=AnthropicProvider(anthropic_client=sdk))
    asked.definitions = definitions
    return asked
