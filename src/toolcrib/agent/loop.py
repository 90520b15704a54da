"""The loop: the model is asked, its calls are carried out, until it has nothing more to do.

In: a model, the tools, the conversation so far. Out: events by the `Teller`, and why it ended. The graph of pydantic-ai
does the work; here stand its steps, what is told of them, and when they are enough. `course` opens what is needed
before, and closes it after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic_ai import Agent, AgentRetries
from pydantic_ai.exceptions import AgentRunError, ContentFilterError
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, RunUsage, UsageLimits

from toolcrib.agent import history
from toolcrib.agent.calling import Calling
from toolcrib.agent.events import Ended, ReasoningDelta, StepFinished, TextDelta, Usage
from toolcrib.agent.feed import Feed
from toolcrib.agent.models.place import Format
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.tally import Tally
from toolcrib.agent.teller import Standing, Teller
from toolcrib.agent.toolset import NO_LIMIT, Toolset

EMPTY_ANSWERS = 3
"""How often the model is asked again that answered with nothing that can be used."""

Run: TypeAlias = AgentRun[None, str | None]
ANSWER: Any = str | None
"""Some models say nothing after their last call."""


class Loop:
    def __init__(
        self, prompt: str, options: AgentOptions, past: Sequence[ModelMessage], *, teller: Teller, feed: Feed
    ) -> None:
        self._prompt = prompt
        self._options = options
        self._past = past
        self._teller = teller
        self._feed = feed
        self._run: Run | None = None
        self._unsent: ModelRequest | None = None
        self._steps = 0

    async def run(self, model: Model, calling: Calling, form: Format) -> Ended:
        tally = Tally(calling.tools, self._teller)
        agent: Agent[None, str | None] = Agent(
            model,
            name="toolcrib",
            output_type=ANSWER,
            instructions=self._options.instructions or None,
            model_settings=ModelSettings(**self._options.settings),  # type: ignore[typeddict-item]
            toolsets=[Toolset(calling, tally, form)] if calling.tools else [],
            retries=AgentRetries(tools=NO_LIMIT, output=EMPTY_ANSWERS),
            deps_type=type(None),
        )
        try:
            async with agent.iter(
                self._prompt,
                message_history=list(self._past) or None,
                usage_limits=UsageLimits(request_limit=None),
                run_id=self._teller.run_id,
                infer_name=False,
            ) as run:
                self._run = run
                return await self._all_steps(run, tally)
        except ContentFilterError:
            return Ended.REFUSED
        except AgentRunError:
            # Cut off before there was anything, or in the middle of a call.
            if self._last is not None and self._last.finish_reason == "length":
                return Ended.LENGTH
            raise
        finally:
            tally.cut_short()

    async def _all_steps(self, run: Run, tally: Tally) -> Ended:
        async for node in run:
            if Agent.is_model_request_node(node):
                if self._steps == self._options.max_steps:
                    self._unsent = node.request
                    return Ended.MAX_STEPS
                await self._feed.all_read()
                self._steps += 1
                async with node.stream(run.ctx) as answer:
                    async for event in answer:
                        self._tell_piece(event)
            elif Agent.is_call_tools_node(node):
                _tell_calls_apart(node.model_response)
                async with node.stream(run.ctx) as calls:
                    async for happened in calls:
                        _tell_call(happened, tally)
                self._teller.tell(StepFinished, step=self._steps, usage=_usage(node.model_response.usage))
        return _ended(self._last)

    def _tell_piece(self, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                kind: type[TextDelta | ReasoningDelta] = TextDelta
            case PartStartEvent(part=ThinkingPart(content=text)):
                kind = ReasoningDelta
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))):
                kind = ReasoningDelta
            case _:
                return
        if text:
            self._teller.tell(kind, text=text)

    @property
    def _last(self) -> ModelResponse | None:
        """The last answer of this run."""
        return next((message for message in reversed(self._new()) if isinstance(message, ModelResponse)), None)

    def _new(self) -> list[ModelMessage]:
        return self._run.new_messages() if self._run else []

    def standing(self) -> Standing:
        if self._run is None:
            return Standing(messages=history.write(self._past))
        said = (message.text for message in reversed(self._new()) if isinstance(message, ModelResponse))
        unsent = [self._unsent] if self._unsent else []
        return Standing(
            text=next((text for text in said if text), ""),
            usage=_usage(self._run.usage),
            steps=self._steps,
            messages=history.write([*self._run.all_messages(), *unsent]),
        )


def _tell_call(event: AgentStreamEvent, tally: Tally) -> None:
    match event:
        case FunctionToolCallEvent(part=part):
            tally.began(part.tool_call_id, part.tool_name, part.args)
        case FunctionToolResultEvent(part=part):
            tally.unknown(part.tool_call_id, part.model_response_str(wrap_if_error=False))


def _tell_calls_apart(answer: ModelResponse) -> None:
    """Some servers give all calls of an answer one id, by which nobody could tell their results apart."""
    seen: set[str] = set()
    parts = list(answer.parts)
    for place, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            own = part.tool_call_id
            while own in seen:
                own += "_"
            seen.add(own)
            parts[place] = replace(part, tool_call_id=own)
    answer.parts = parts


def _ended(last: ModelResponse | None) -> Ended:
    match last.finish_reason if last else None:
        case "length":
            return Ended.LENGTH
        case "content_filter":
            return Ended.REFUSED
        case _:
            return Ended.DONE


def _usage(usage: RequestUsage | RunUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        requests=usage.requests,
    )
