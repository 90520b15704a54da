"""The model of a run, opened: its HTTP client, its definitions on the wire, and the requests that are made again.

In: `AgentOptions` and the tools that the model may call. Out: a pydantic-ai model. `run` loads this module when a run
begins, and with it that of the provider.
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
"""Called before a wait: why, for how many seconds, and which repetition it is, counted from one."""


@asynccontextmanager
async def open_model(
    options: AgentOptions, offers: Mapping[str, OfferedTool], on_retry: OnRetry
) -> AsyncIterator[RetryingModel]:
    """The model, and its connections for as long as this is open."""
    endpoint = find_endpoint(options)
    # A second's work the first time, and with thousands of tools, so not done in the event loop.
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
