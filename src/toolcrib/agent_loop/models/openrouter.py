"""OpenRouter's dialect of chat completions.

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
"""What it can be asked with."""


class _OpenRouter(CheckedModel, OpenRouterModel):
    provider_name = "openrouter"

    def _stop_reason(self, answer: ModelResponse) -> str | None:
        """OpenRouter's word, which is the same for all; pydantic-ai keeps that of the provider behind it."""
        given = super()._stop_reason(answer)
        return "tool_calls" if given and answer.finish_reason == "tool_call" else given and answer.finish_reason


def model(where: ModelEndpoint, client: httpx2.AsyncClient, definitions: Definitions) -> OpenRouterModel:
    asked = _OpenRouter(where.model, provider=OpenRouterProvider(openai_client=client_of(where, client)))
    asked.definitions = definitions
    return asked
