"""Scripted models with pydantic-ai's own adapters: each reads the same conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from toolcrib.testing import PROVIDERS, Call, CallByName, Garble, Refuse, Say, Together, scripted

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STEPS = [
    Together(
        [Call("add", {"a": 1, "b": 2}), Call("add", {"a": 30, "b": 4})], thinking="Both at once.", says="I add twice."
    ),
    Call("fail", {"why": "no disk"}),
    CallByName("no_such_tool", {"x": [1, None]}),
    Say("3 and 34; the disk was full.", thinking="So that is it."),
]
BOTH = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
ALL = pytest.mark.parametrize("provider", PROVIDERS)


@asynccontextmanager
async def adapter(provider: str, url: str) -> AsyncIterator[Model]:
    """Without retries."""
    async with httpx2.AsyncClient(timeout=60) as client:
        yield _adapter(provider, url, client)


def _adapter(provider: str, url: str, client: httpx2.AsyncClient) -> Model:
    if provider == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        claude = AsyncAnthropic(base_url=url, api_key="test", http_client=client, max_retries=0)
        return AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(anthropic_client=claude))
    if provider == "google":
        from google.genai import Client
        from google.genai.types import HttpOptions
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        gemini = Client(api_key="test", http_options=HttpOptions(base_url=url, httpx_async_client=client))
        return GoogleModel("gemini-3-pro-preview", provider=GoogleProvider(client=gemini))
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    sdk = AsyncOpenAI(base_url=url, api_key="test", http_client=client, max_retries=0)
    if provider == "openrouter":
        return OpenRouterModel("anthropic/claude-sonnet-4.5", provider=OpenRouterProvider(openai_client=sdk))
    if provider == "openai-responses":
        return OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=sdk))
    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=sdk))


def agent_with(model: Model) -> Agent[None, str]:
    agent = Agent(model, retries=5)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    @agent.tool_plain
    def fail(why: str) -> str:
        from pydantic_ai import ModelRetry

        raise ModelRetry(f"it failed: {why}")

    return agent


async def messages_of(model: Model, *, streamed: bool) -> list[ModelMessage]:
    agent = agent_with(model)
    if not streamed:
        return (await agent.run("Add.")).all_messages()
    async with agent.run_stream_events("Add.") as events:
        *_, last = [event async for event in events]
    result: Any = last
    return list(result.result.all_messages())


def parts_of(messages: list[ModelMessage]) -> list[tuple[str, Any]]:
    parts = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts]
    return [
        (part.part_kind, part.args_as_dict() if part.part_kind == "tool-call" else getattr(part, "content", None))
        for part in parts
    ]


@BOTH
@ALL
async def test_each_adapter_reads_the_same_conversation(provider: str, streamed: bool) -> None:
    with scripted(provider, STEPS) as model:
        async with adapter(provider, model.url) as asked:
            messages = await messages_of(asked, streamed=streamed)
        assert parts_of(messages) == [
            ("thinking", "Both at once."),
            ("text", "I add twice."),
            ("tool-call", {"a": 1, "b": 2}),
            ("tool-call", {"a": 30, "b": 4}),
            ("tool-call", {"why": "no disk"}),
            ("tool-call", {"x": [1, None]}),
            ("thinking", "So that is it."),
            ("text", "3 and 34; the disk was full."),
        ]
        first, second, failed, unknown = model.results
        assert (first, second) == ("3", "34")
        assert "it failed: no disk" in failed
        assert "no_such_tool" in unknown
        assert model.left == ()
        assert [tool.name for tool in model.offered] == ["add", "fail"]
        answers = [message for message in messages if isinstance(message, ModelResponse)]
        usages = [(one.usage.input_tokens, one.usage.cache_read_tokens, one.usage.output_tokens) for one in answers]
        assert usages == [(usage.read, usage.cached, usage.output) for usage in model.usages]
        assert answers[-1].finish_reason == "stop"


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "google"])
async def test_arguments_that_are_not_json_return_an_error_to_the_model(provider: str) -> None:
    with scripted(provider, [Garble("add", '{"a": 1, '), Say("I see.")]) as model:
        async with adapter(provider, model.url) as asked:
            messages = await messages_of(asked, streamed=True)
        parts = [part for message in messages if message.kind == "request" for part in message.parts]
        assert [part.outcome for part in parts if isinstance(part, ToolReturnPart)] == ["retried"]
        assert "Invalid JSON" in model.results[0]
        assert model.left == ()


async def test_googles_answer_to_a_malformed_call_is_empty() -> None:
    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="add")])
    request = ModelRequest.user_text_prompt("Add.")
    with scripted("google", [Garble("add"), Say("I see.")]) as model:
        async with (
            adapter("google", model.url) as asked,
            model_request_stream(asked, [request], model_request_parameters=tools) as stream,
        ):
            async for _ in stream:
                pass
            response = stream.get()
    assert (response.finish_reason, response.parts) == ("error", [])


@BOTH
@ALL
async def test_each_adapter_reads_a_refusal_and_its_delay(provider: str, streamed: bool) -> None:
    with scripted(provider, [Refuse(429, retry_after=3), Say("At last.")]) as model:
        async with adapter(provider, model.url) as asked:
            with pytest.raises(ModelHTTPError) as refused:
                await messages_of(asked, streamed=streamed)
            assert (refused.value.status_code, refused.value.retry_after) == (429, 3)
            assert parts_of(await messages_of(asked, streamed=streamed)) == [("text", "At last.")]
