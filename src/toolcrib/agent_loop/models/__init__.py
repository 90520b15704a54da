"""The model of a run, asked over its provider's HTTP interface.

In: `AgentOptions` and the tools that the model may call. Out: a pydantic-ai model. `endpoint` says where it is and with
which key, `http` is the way there, `definitions` what is on the wire for each tool, `answers` which answers are whole,
`retrying` what is asked again; `openai`, `openrouter`, `anthropic` and `google` are one provider each. All but
`endpoint` and `definitions` need `toolcrib[agent]`, and are imported when a run begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

from toolcrib.agent_loop.models.definitions import write_definitions
from toolcrib.agent_loop.models.endpoint import ModelEndpoint, find_endpoint, load_module

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from toolcrib.agent_loop.models.http import ModelHttpClient
    from toolcrib.agent_loop.models.retrying import RetryingModel
    from toolcrib.agent_loop.options import AgentOptions
    from toolcrib.catalog.offered_tool import OfferedTool

OnRetry = Callable[[str, float, int], None]
"""Called before a wait: why, for how many seconds, and which repetition it is, counted from one."""


def check_model(options: AgentOptions) -> None:
    """UsageError unless there is a model to ask: a provider that is known, its key, an address. Asks nobody."""
    find_endpoint(options)


@asynccontextmanager
async def open_model(
    options: AgentOptions, offers: Mapping[str, OfferedTool], on_retry: OnRetry
) -> AsyncIterator[RetryingModel]:
    """The model, and its connections for as long as this is open."""
    where = find_endpoint(options)
    # A second's work the first time, and with thousands of tools, so not done in the event loop.
    client, model = await anyio.to_thread.run_sync(_make_model, options, where, offers, on_retry)
    async with client:
        yield model


def _make_model(
    options: AgentOptions, where: ModelEndpoint, offers: Mapping[str, OfferedTool], on_retry: OnRetry
) -> tuple[ModelHttpClient, RetryingModel]:
    client: ModelHttpClient = load_module(f"{__name__}.http").ModelHttpClient(where)
    wire = write_definitions(where.provider.format, offers)
    asked: Model = load_module(f"{__name__}.{where.provider.module}").model(where, client, wire)
    retrying: type[RetryingModel] = load_module(f"{__name__}.retrying").RetryingModel
    return client, retrying(asked, definitions=wire, retries=options.retries, on_retry=on_retry, hang_up=client.hang_up)
