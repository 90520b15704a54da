"""Opens a run's model, with its HTTP client, its tool definitions and its retries.

In: `AgentOptions` and the tools that the model may call. Out: a pydantic-ai model. `run` loads this module when a run
starts, which loads the provider's module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio.to_thread
from pydantic_ai.models import Model

from toolcrib.agent_loop.models.definitions import write_definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint, find_endpoint, load_module
from toolcrib.agent_loop.models.http import ModelHttpClient
from toolcrib.agent_loop.models.retrying import RetryingModel
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.catalog.offered_tool import OfferedTool

OnRetry = Callable[[str, float, int], None]
"""Called before each wait, with the reason, the delay in seconds, and the number of the retry, from 1."""


@asynccontextmanager
async def open_model(
    options: AgentOptions, offers: Mapping[str, OfferedTool], on_retry: OnRetry
) -> AsyncIterator[RetryingModel]:
    """Closes the model's connections on exit."""
    endpoint = find_endpoint(options)
    # In a thread: it takes a second the first time, or with thousands of tools.
    client, model = await anyio.to_thread.run_sync(_make_model, options, endpoint, offers, on_retry)
    async with client:
        yield model


def _make_model(
    options: AgentOptions, endpoint: ModelEndpoint, offers: Mapping[str, OfferedTool], on_retry: OnRetry
) -> tuple[ModelHttpClient, RetryingModel]:
    client = ModelHttpClient(endpoint)
    wire = write_definitions(endpoint.provider.format, offers)
    asked: Model = load_module(f"models.{endpoint.provider.module}").model(endpoint, client, wire)
    return client, RetryingModel(
        asked, definitions=wire, retries=options.retries, on_retry=on_retry, hang_up=client.hang_up
    )
