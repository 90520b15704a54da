"""Anthropic's messages.

In: a `Place`, an HTTP client, the tools' definitions. Out: a model. `models` opens it, `retrying` is around it.
"""

from __future__ import annotations

import httpx2
from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider

from toolcrib.agent.models.definitions import Definitions
from toolcrib.agent.models.http import NO_KEY
from toolcrib.agent.models.place import Place
from toolcrib.agent.models.wire import AsGiven

SETTINGS = {"anthropic": frozenset(AnthropicModelSettings.__annotations__)}
"""What it can be asked with."""


class _Anthropic(AsGiven, AnthropicModel):
    pass


def model(where: Place, client: httpx2.AsyncClient, definitions: Definitions) -> AnthropicModel:
    sdk = AsyncAnthropic(api_key=where.key or NO_KEY, base_url=where.url, http_client=client, max_retries=0)
    # ANTHROPIC_CUSTOM_HEADERS are meant for another address.
    sdk._custom_headers = {}
    asked = _Anthropic(where.model, provider=AnthropicProvider(anthropic_client=sdk))
    asked.definitions = definitions
    return asked
