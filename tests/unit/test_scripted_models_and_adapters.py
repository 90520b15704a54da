"""The same story with each of pydantic-ai's adapters: they read of the scripted models what was meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent, ModelMessage, ModelRequestPart, ModelResponse, ToolReturnPart
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models import Model

from toolcrib.testing import (
    PROVIDERS,
    AnswerEnding,
    Break,
    Call,
    CallByName,
    Garble,
    Hold,
    Refuse,
    Say,
    Together,
    scripted,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STORY = [
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
    """As it stands, without repetitions of its own."""
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
    told = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts]
    return [
        (part.part_kind, part.args_as_dict() if part.part_kind == "tool-call" else getattr(part, "content", None))
        for part in told
    ]


@BOTH
@ALL
async def test_each_adapter_reads_the_same_story(provider: str, streamed: bool) -> None:
    with scripted(provider, STORY) as model:
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
        counted = [message.usage for message in messages if isinstance(message, ModelResponse)]
        assert [(used.input_tokens, used.cache_read_tokens, used.output_tokens) for used in counted] == [
            (told.read, told.cached, told.output) for told in model.usages
        ]
        finished = [message.finish_reason for message in messages if isinstance(message, ModelResponse)]
        assert finished[-1] == "stop"


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "google"])
async def test_arguments_that_are_no_json_come_back_to_the_model_as_an_error(provider: str) -> None:
    with scripted(provider, [Garble("add", '{"a": 1, '), Say("I see.")]) as model:
        async with adapter(provider, model.url) as asked:
            messages = await messages_of(asked, streamed=True)
        [returned] = [part for part in _returned(messages) if isinstance(part, ToolReturnPart)]
        assert returned.outcome == "retried"
        assert "Invalid JSON" in model.results[0]
        assert model.left == ()


def _returned(messages: list[ModelMessage]) -> list[ModelRequestPart]:
    return [part for message in messages if message.kind == "request" for part in message.parts]


async def test_a_malformed_call_of_googles_is_an_answer_without_content() -> None:
    with scripted("google", [Garble("add"), Say("I see.")]) as model:
        async with adapter("google", model.url) as asked:
            response = await _one_response(asked)
    assert (response.finish_reason, response.parts) == ("error", [])


async def _one_response(asked: Model) -> ModelResponse:
    """The first answer, streamed."""
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="add")])
    request = ModelRequest.user_text_prompt("Add.")
    async with model_request_stream(asked, [request], model_request_parameters=tools) as stream:
        async for _ in stream:
            pass
        return stream.get()


@pytest.mark.parametrize(
    ("ending", "reason"), [(AnswerEnding.LENGTH, "length"), (AnswerEnding.FILTER, "content_filter")]
)
@ALL
async def test_each_adapter_knows_why_an_answer_is_over(provider: str, ending: AnswerEnding, reason: str) -> None:
    with scripted(provider, [Say("It begins with", ending=ending)]) as model:
        async with adapter(provider, model.url) as asked:
            response = await _one_response(asked)
    assert response.finish_reason == reason


@BOTH
@ALL
async def test_each_adapter_knows_a_refusal_and_when_to_come_again(provider: str, streamed: bool) -> None:
    with scripted(provider, [Refuse(429, retry_after=3), Say("At last.")]) as model:
        async with adapter(provider, model.url) as asked:
            with pytest.raises(ModelHTTPError) as refused:
                await messages_of(asked, streamed=streamed)
            assert (refused.value.status_code, refused.value.retry_after) == (429, 3)
            assert parts_of(await messages_of(asked, streamed=streamed)) == [("text", "At last.")]


@pytest.mark.parametrize("status", [0, 503])
@ALL
async def test_each_adapter_knows_that_a_stream_broke(provider: str, status: int) -> None:
    with scripted(provider, [Break("I was about to say something", status), Say("At last.")]) as model:
        async with adapter(provider, model.url) as asked:
            with pytest.raises(ModelAPIError):
                await _one_response(asked)
            response = await _one_response(asked)
    assert [part.part_kind for part in response.parts] == ["text"]


@ALL
async def test_each_adapter_takes_an_empty_answer(provider: str) -> None:
    with scripted(provider, [Say(""), Say("At last.")]) as model:
        async with adapter(provider, model.url) as asked:
            assert (await _one_response(asked)).parts == []
            assert len((await _one_response(asked)).parts) == 1


async def test_an_answer_that_is_held_can_be_given_up() -> None:
    import anyio

    hold = Hold()
    with scripted("anthropic", [Say("Too late.", hold=hold)]) as model:
        async with adapter("anthropic", model.url) as asked, anyio.create_task_group() as tasks:
            tasks.start_soon(_one_response, asked)
            await anyio.to_thread.run_sync(hold.reached, 10.0)
            tasks.cancel_scope.cancel()
    assert len(model.requests) == 1
