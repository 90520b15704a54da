"""OpenAI's chat completions and responses, and whatever else speaks these.

In: a `Place`, an HTTP client, the tools' definitions. Out: a model. `models` opens it, `retrying` is around it;
`openrouter` has its client from here.
"""

from __future__ import annotations

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from toolcrib.agent.models.definitions import Definitions
from toolcrib.agent.models.http import NO_KEY
from toolcrib.agent.models.place import Format, Place
from toolcrib.agent.models.wire import AsGiven

COMPATIBLE = "openai-compatible"
SETTINGS = {
    "openai": frozenset(OpenAIChatModelSettings.__annotations__),
    "openai-responses": frozenset(OpenAIResponsesModelSettings.__annotations__),
}
"""What they can be asked with."""


class _Chat(AsGiven, OpenAIChatModel):
    pass


class _Responses(AsGiven, OpenAIResponsesModel):
    pass


def model(where: Place, client: httpx2.AsyncClient, definitions: Definitions) -> OpenAIChatModel | OpenAIResponsesModel:
    sdk = client_of(where, client)
    # Another service has not all that OpenAI itself has, and must not be sent ids that only OpenAI knows.
    provider = (
        OpenAICompatibleProvider(COMPATIBLE, openai_client=sdk)
        if where.elsewhere
        else OpenAIProvider(openai_client=sdk)
    )
    kind = _Chat if where.provider.format is Format.OPENAI_CHAT else _Responses
    asked = kind(where.model, provider=provider)
    asked.definitions = definitions
    return asked


def client_of(where: Place, client: httpx2.AsyncClient) -> AsyncOpenAI:
    sdk = AsyncOpenAI(api_key=where.key or NO_KEY, base_url=where.url, http_client=client, max_retries=0)
    sdk.organization, sdk.project = where.organization or None, where.project or None
    # OPENAI_CUSTOM_HEADERS are meant for another address.
    sdk._custom_headers = {}
    return sdk
