"""Google's Gemini API.

In: a `ModelEndpoint`, an HTTP client, the tools' definitions. Out: a model. `opening` opens it, `retrying` wraps it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2
from google.genai.client import Client
from google.genai.types import GenerateContentResponse, HttpOptions
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.providers.google import GoogleProvider

from toolcrib.agent_loop.models.answers import CheckedModel
from toolcrib.agent_loop.models.definitions import Definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint
from toolcrib.agent_loop.models.http import NO_KEY, SILENCE_LIMIT, trusted

API_VERSION = "v1beta"
SETTINGS = {"google": frozenset(GoogleModelSettings.__annotations__)}
"""The model settings it supports."""


class _Google(CheckedModel, GoogleModel):
    provider_name = "google"

    async def _build_content_and_config(self, *request: Any) -> Any:
        contents: Any
        config: Any
        contents, config = await super()._build_content_and_config(*request)
        for part in (part for content in contents for part in content["parts"]):
            for function in (part.get("function_call"), part.get("function_response")):
                if function:
                    function["name"] = self.definitions.named(function["name"])
        names = [function["name"] for tool in config.get("tools") or () for function in tool["function_declarations"]]
        if names:
            # Replaces the SDK's version, which drops fields that it doesn't know.
            tools = [{"functionDeclarations": [self.definitions.of(name) for name in names]}]
            config["http_options"]["extra_body"] = {"tools": tools}
        return contents, config

    async def _generate_content(self, *request: Any) -> Any:
        answer: Any = await super()._generate_content(*request)
        return self._understood(answer) if isinstance(answer, GenerateContentResponse) else self._streamed(answer)

    async def _streamed(self, pieces: Any) -> AsyncIterator[GenerateContentResponse]:
        async with aclosing(pieces):
            async for piece in pieces:
                yield self._understood(piece)

    def _understood(self, answer: GenerateContentResponse) -> GenerateContentResponse:
        for candidate in answer.candidates or ():
            for part in (candidate.content and candidate.content.parts) or ():
                if part.function_call and part.function_call.name:
                    part.function_call.name = self.definitions.offered(part.function_call.name)
        return answer


def model(where: ModelEndpoint, client: httpx2.AsyncClient, definitions: Definitions) -> GoogleModel:
    way = HttpOptions(
        base_url=where.url,
        api_version=API_VERSION,
        httpx_async_client=client,
        # In milliseconds. Without it, the SDK overrides the client's timeout and waits forever.
        timeout=int(SILENCE_LIMIT * 1000),
        # For the SDK's other clients, which we don't use. Otherwise each would load the certificates again.
        client_args={"verify": trusted()},
        async_client_args={"ssl": trusted()},
    )
    sdk = Client(vertexai=False, api_key=where.key or NO_KEY, http_options=way)
    asked = _Google(where.model, provider=GoogleProvider(client=sdk))
    asked.definitions = definitions
    return asked
