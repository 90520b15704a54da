"""The loop: the model is asked, its calls are carried out, until it has nothing more to do.

In: a model of pydantic-ai, the tools, the conversation so far. Out: events by the `Teller`, and why it ended. `course`
opens what is needed before, and closes it after.

The steps are ours, and not those of pydantic-ai's agent: cancelled in mid-step, its graph leaves tasks of its own
behind, and it ends a run whose model errs too often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.exceptions import ContentFilterError
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelRequestState,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from toolcrib.agent import history
from toolcrib.agent.calling import Calling
from toolcrib.agent.content import content, how, text
from toolcrib.agent.events import Ended, ReasoningDelta, StepFinished, TextDelta, Usage
from toolcrib.agent.feed import Feed
from toolcrib.agent.models.place import Format
from toolcrib.agent.options import AgentOptions
from toolcrib.agent.tally import Tally
from toolcrib.agent.teller import Standing, Teller
from toolcrib.catalog.names import LIMITS, is_legal
from toolcrib.config.model import NameStyle

LONGEST_NAME = LIMITS[NameStyle.PLAIN]


class Loop:
    def __init__(
        self, prompt: str, options: AgentOptions, past: Sequence[ModelMessage], *, teller: Teller, feed: Feed
    ) -> None:
        self._prompt = prompt
        self._options = options
        self._messages = list(past)
        self._teller = teller
        self._feed = feed
        self._usage = Usage()
        self._steps = 0
        self._said = ""

    async def run(self, model: Model, calling: Calling, form: Format) -> Ended:
        tally = Tally(calling.tools, self._teller)
        asked_with = self._parameters(calling)
        self._add_request([UserPromptPart(self._prompt)])
        try:
            while self._steps < self._options.max_steps:
                await self._feed.all_read()
                answer = await self._asked(model, asked_with)
                self._steps += 1
                if calls := _calls_of(answer):
                    await self._carry_out(calls, calling, tally, form)
                self._teller.tell(StepFinished, step=self._steps, usage=_usage(answer.usage))
                if not calls:
                    return _ended(answer)
        except ContentFilterError:
            return Ended.REFUSED
        finally:
            tally.cut_short()
        return Ended.MAX_STEPS

    def _parameters(self, calling: Calling) -> ModelRequestParameters:
        words = self._options.instructions
        return ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=name,
                    description=tool.offer.description,
                    parameters_json_schema=dict(tool.offer.schema),
                    strict=False,
                )
                for name, tool in calling.tools.items()
            ],
            # None would mean: those of the history.
            instruction_parts=[InstructionPart(content=words)] if words else [],
        )

    async def _asked(self, model: Model, asked_with: ModelRequestParameters) -> ModelResponse:
        settings = ModelSettings(**self._options.settings)  # type: ignore[typeddict-item]
        async with model.request_stream(list(self._messages), settings, asked_with) as stream:
            try:
                async for event in stream:
                    self._tell_piece(event)
            except BaseException:
                self._add_answer(replace(stream.get(), state="interrupted"))
                raise
        return self._add_answer(stream.get())

    def _tell_piece(self, event: ModelResponseStreamEvent) -> None:
        match event:
            case (
                PartStartEvent(part=TextPart(content=words)) | PartDeltaEvent(delta=TextPartDelta(content_delta=words))
            ):
                kind: type[TextDelta | ReasoningDelta] = TextDelta
            case PartStartEvent(part=ThinkingPart(content=words)):
                kind = ReasoningDelta
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(words))):
                kind = ReasoningDelta
            case _:
                return
        if words:
            self._teller.tell(kind, text=words)

    async def _carry_out(self, calls: Sequence[ToolCallPart], calling: Calling, tally: Tally, form: Format) -> None:
        """All at the same time; their results go to the model in the order of the calls."""
        for call in calls:
            tally.began(call.tool_call_id, call.tool_name, call.args)

        async def carried_out(call: ToolCallPart) -> ToolReturnPart:
            outcome = await calling.call(call.tool_name, call.args or "", call.tool_call_id)
            told = content(outcome, form)
            tally.ended(call.tool_call_id, outcome, text(told))
            return ToolReturnPart(call.tool_name, told, call.tool_call_id, outcome=how(outcome))

        tasks: list[asyncio.Task[ToolReturnPart]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(carried_out(call), name=call.tool_name) for call in calls]
        except BaseException:
            # What was done is done, and stays in the conversation.
            done = (task for task in tasks if task.done() and not task.cancelled() and task.exception() is None)
            self._add_request([task.result() for task in done], state="interrupted")
            raise
        self._add_request([task.result() for task in tasks])

    def _add_request(self, parts: Iterable[ModelRequestPart], *, state: ModelRequestState = "complete") -> None:
        self._messages.append(
            ModelRequest(
                parts=list(parts),
                instructions=self._options.instructions or None,
                timestamp=datetime.now(UTC),
                run_id=self._teller.run_id,
                state=state,
            )
        )

    def _add_answer(self, answer: ModelResponse) -> ModelResponse:
        answer.run_id = self._teller.run_id
        self._usage = _sum(self._usage, _usage(answer.usage))
        self._said = answer.text or self._said
        if answer.parts:
            self._messages.append(answer)
        return answer

    def standing(self) -> Standing:
        return Standing(text=self._said, usage=self._usage, steps=self._steps, messages=history.write(self._messages))


def _calls_of(answer: ModelResponse) -> list[ToolCallPart]:
    """The calls of an answer, made fit to go back to the provider in the next request: a model may invent names that
    no provider takes, and some servers give all calls one id, by which nobody could tell their results apart."""
    calls: list[ToolCallPart] = []
    parts = list(answer.parts)
    for place, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            own = part.tool_call_id
            while any(own == call.tool_call_id for call in calls):
                own += "_"
            name = "".join(letter if is_legal(letter) else "_" for letter in part.tool_name[:LONGEST_NAME])
            # Some kinds of calls have but one name; ours are none of these.
            calls.append(replace(cast("ToolCallPart[Any]", part), tool_call_id=own, tool_name=name or "_"))
            parts[place] = calls[-1]
    answer.parts = parts
    return calls


def _ended(answer: ModelResponse) -> Ended:
    match answer.finish_reason:
        case "length":
            return Ended.LENGTH
        case "content_filter":
            return Ended.REFUSED
        case _:
            return Ended.DONE


def _usage(usage: RequestUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        requests=1,
    )


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(**{name: value + getattr(other, name) for name, value in asdict(one).items()})
