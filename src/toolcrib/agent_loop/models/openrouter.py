"""OpenRouter's dialect of the Chat Completions API.

In: a `ModelEndpoint`, an HTTP client, the tools' definitions. Out: a model. `opening` opens it, `retrying` wraps it.
"""

from __future__ import annotations

import httpx2
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModelSettings
from pydantic_ai.models.openrouter import OpenRouterModel, OpenRouterModelSettings
from pydantic_ai.providers.openrouter import OpenRouterProvider

from toolcrib.agent_loop.models.answers import CheckedModel
from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint
from toolcrib.agent_loop.models.openai import client_of

SETTINGS = {
    "openrouter": frozenset(OpenRouterModelSettings.__annotations__)
    | frozenset(OpenAIChatModelSettings.__annotations__)
}
"""The model settings it supports."""


class _OpenRouter(CheckedModel, OpenRouterModel):
    provider_name = "openrouter"

    def _stop_reason(self, answer: ModelResponse) -> str | None:
        """OpenRouter's own term, which is uniform; pydantic-ai keeps the upstream provider's."""
        given = super()._stop_reason(answer)
        return "tool_calls" if given and answer.finish_reason == "tool_call" else given and answer.finish_reason


def model(where: ModelEndpoint, client: httpx2.AsyncClient, definitions: Definitions) -> OpenRouterModel:
    asked = _OpenRouter(where.model, provider=OpenRouterProvider(openai_client=client_of(where, client)))
    asked.definitions = definitions
    return asked
