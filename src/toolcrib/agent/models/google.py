"""Google's Gemini API.

In: a `Place`, an HTTP client, the tools' definitions. Out: a model. `models` opens it, `retrying` is around it.
"""

from __future__ import annotations

from typing import Any

import httpx2
from google.genai.client import Client
from google.genai.types import HttpOptions
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from toolcrib.agent.models.definitions import Definitions
from toolcrib.agent.models.http import NO_KEY, SILENCE_LIMIT
from toolcrib.agent.models.place import Place
from toolcrib.agent.models.wire import AsGiven

API_VERSION = "v1beta"


class _Google(AsGiven, GoogleModel):
    async def _build_content_and_config(self, *request: Any) -> Any:
        contents: Any
        config: Any
        contents, config = await super()._build_content_and_config(*request)
        names = [function["name"] for tool in config.get("tools") or () for function in tool["function_declarations"]]
        if names:
            # Laid over what the SDK has made of them, which knows only some fields.
            tools = [{"functionDeclarations": [self.definitions.of(name) for name in names]}]
            config["http_options"]["extra_body"] = {"tools": tools}
        return contents, config


def model(where: Place, client: httpx2.AsyncClient, definitions: Definitions) -> GoogleModel:
    way = HttpOptions(
        base_url=where.url,
        api_version=API_VERSION,
        httpx_async_client=client,
        # In milliseconds. Without it the SDK waits forever, whatever the client says.
        timeout=int(SILENCE_LIMIT * 1000),
    )
    sdk = Client(vertexai=False, api_key=where.key or NO_KEY, http_options=way)
    asked = _Google(where.model, provider=GoogleProvider(client=sdk))
    asked.definitions = definitions
    return asked
