"""The loop: queries the model and runs its tool calls until it makes none.

In: a model of pydantic-ai, the tools, the conversation so far. Out: events through the `EventEmitter`, and a `RunEnd`.
`run` opens everything before and closes it after.

It does not use pydantic-ai's own agent: when cancelled in the middle of a step, that leaves tasks behind, and it ends a
run whose model makes too many mistakes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
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
    ModelResponsePart,
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

from toolcrib.agent_loop import messages
from toolcrib.agent_loop.event_queue import EventEmitter, EventQueue, RunProgress
from toolcrib.agent_loop.events import ModelUsage, ReasoningDelta, RunEnd, StepFinished, TextDelta
from toolcrib.agent_loop.messages import (
    TextPieces,
    content_text,
    outcome_word,
    result_content,
    whole_arguments,
    whole_text,
)
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.tool_calls import CallEvents, ToolCaller, ToolOutcome
from toolcrib.catalog.names import LIMITS, is_legal
from toolcrib.config.model import NameStyle
from toolcrib.run_events import ToolStatus

MAX_NAME_LENGTH = LIMITS[NameStyle.PLAIN]
MAX_CONCURRENT_CALLS = 32

_CUT_OFF = ToolOutcome(
    status=ToolStatus.INVALID,
    words="This call did not run: your answer was cut off at the token limit, perhaps inside the call. Call again "
    "with less per answer, for example one part of the text at a time.",
)


@dataclass(frozen=True, kw_only=True)
class _Call:
    part: ToolCallPart
    known_as: str
    """Its id in the run's events. Some servers reuse ids in each answer, and need their own ids back."""


class Loop:
    def __init__(
        self,
        prompt: str,
        options: AgentOptions,
        past: Sequence[ModelMessage],
        *,
        emitter: EventEmitter,
        queue: EventQueue,
    ) -> None:
        self._prompt = prompt
        self._options = options
        self._messages = list(past)
        self._emitter = emitter
        self._queue = queue
        self._usage = ModelUsage()
        self._steps = 0
        self._said = ""
        self._known: set[str] = set()

    async def run(self, model: Model, calling: ToolCaller, form: ToolFormat) -> RunEnd:
        events = CallEvents(calling.tools, self._emitter)
        asked_with = self._parameters(calling)
        self._add_request([UserPromptPart(self._prompt)])
        try:
            while self._steps < self._options.max_steps:
                await self._queue.all_read()
                answer = await self._asked(model, asked_with)
                self._steps += 1
                calls = self._calls_of(answer)
                refused = _ended(answer) is RunEnd.REFUSED
                if calls and not refused:
                    await self._carry_out(calls, calling, events, form, cut_off=_ended(answer) is RunEnd.LENGTH)
                self._emitter.emit(StepFinished, step=self._steps, usage=_usage(answer.usage))
                if refused or not calls:
                    return _ended(answer)
        except ContentFilterError:
            return RunEnd.REFUSED
        finally:
            events.cut_short()
        return RunEnd.MAX_STEPS

    def _parameters(self, calling: ToolCaller) -> ModelRequestParameters:
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
            # None would mean the instructions in the history.
            instruction_parts=[InstructionPart(content=words)] if words else [],
        )

    async def _asked(self, model: Model, asked_with: ModelRequestParameters) -> ModelResponse:
        settings = ModelSettings(**self._options.settings)  # type: ignore[typeddict-item]
        said, thought = TextPieces(), TextPieces()
        async with model.request_stream(list(self._messages), settings, asked_with) as stream:
            try:
                async for event in stream:
                    words, thoughts = _piece(event)
                    self._emit_pieces(said.add(words), thought.add(thoughts))
                    await self._queue.room()
            except BaseException:
                self._add_answer(replace(stream.get(), state="interrupted"))
                raise
            finally:
                self._emit_pieces(said.rest(), thought.rest())
        return self._add_answer(stream.get())

    def _emit_pieces(self, words: str, thoughts: str) -> None:
        if thoughts:
            self._emitter.emit(ReasoningDelta, text=thoughts)
        if words:
            self._emitter.emit(TextDelta, text=words)

    async def _carry_out(
        self, calls: Sequence[_Call], calling: ToolCaller, events: CallEvents, form: ToolFormat, *, cut_off: bool
    ) -> None:
        """Runs the calls concurrently; the model gets the results in the order of the calls. If the answer was cut off,
        none runs, since providers don't say which calls are complete."""
        for call in calls:
            events.began(call.known_as, call.part.tool_name, call.part.args)
        at_once = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

        async def carried_out(call: _Call) -> ToolReturnPart:
            name = call.part.tool_name
            async with at_once:
                outcome = _CUT_OFF if cut_off else await calling.call(name, call.part.args or "", call.known_as)
            content = result_content(outcome, form)
            events.ended(call.known_as, outcome, content_text(content))
            return ToolReturnPart(name, content, call.part.tool_call_id, outcome=outcome_word(outcome))

        tasks: list[asyncio.Task[ToolReturnPart]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(carried_out(call), name=call.part.tool_name) for call in calls]
        except BaseException:
            # Keep the results of completed calls in the conversation.
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
                run_id=self._emitter.run_id,
                state=state,
            )
        )

    def _add_answer(self, answer: ModelResponse) -> ModelResponse:
        answer.parts = [_mended(part) for part in answer.parts]
        answer.run_id = self._emitter.run_id
        self._usage = _sum(self._usage, _usage(answer.usage))
        self._said = answer.text or self._said
        if answer.parts:
            self._messages.append(answer)
        return answer

    def _calls_of(self, answer: ModelResponse) -> list[_Call]:
        """The calls of an answer, adjusted so that the provider accepts them in the next request: a model may invent
        illegal names, and some servers give all calls the same id.
        """
        # The cast drops the narrower types of special calls, which don't occur here.
        given = [cast("ToolCallPart[Any]", part) for part in answer.parts if isinstance(part, ToolCallPart)]
        ids = [part.tool_call_id for part in given]
        calls = [
            _Call(part=replace(part, tool_call_id=own, tool_name=_legal(part.tool_name)), known_as=known_as)
            for part, own, known_as in zip(given, _apart(ids, set()), _apart(ids, self._known), strict=True)
        ]
        fit = iter(calls)
        answer.parts = [next(fit).part if isinstance(part, ToolCallPart) else part for part in answer.parts]
        return calls

    def progress(self) -> RunProgress:
        return RunProgress(
            text=self._said, usage=self._usage, steps=self._steps, messages=messages.write_history(self._messages)
        )


def _legal(name: str) -> str:
    return "".join(letter if is_legal(letter) else "_" for letter in name[:MAX_NAME_LENGTH]) or "_"


def _apart(ids: Sequence[str], taken: set[str]) -> list[str]:
    """The ids, with a suffix for each that is taken or repeated. Adds them all to `taken`."""
    free = set(ids) - taken
    taken |= free
    times: Counter[str] = Counter()
    apart = []
    for given in ids:
        own = given
        if given in free:
            free.remove(given)
        else:
            while own in taken:
                times[given] += 1
                own = f"{given}_{times[given] + 1}"
            taken.add(own)
        apart.append(own)
    return apart


def _piece(event: ModelResponseStreamEvent) -> tuple[str, str]:
    """Text and reasoning."""
    match event:
        case PartStartEvent(part=TextPart(content=words)) | PartDeltaEvent(delta=TextPartDelta(content_delta=words)):
            return words, ""
        case PartStartEvent(part=ThinkingPart(content=thoughts)):
            return "", thoughts
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(thoughts))):
            return "", thoughts
    return "", ""


def _mended(part: ModelResponsePart) -> ModelResponsePart:
    match part:
        case TextPart() | ThinkingPart():
            return replace(part, content=whole_text(part.content))
        case ToolCallPart():
            return replace(
                cast("ToolCallPart[Any]", part),
                args=whole_arguments(part.args),
                tool_call_id=whole_text(part.tool_call_id),
            )
    return part


def _ended(answer: ModelResponse) -> RunEnd:
    match answer.finish_reason:
        case "length":
            return RunEnd.LENGTH
        case "content_filter":
            return RunEnd.REFUSED
        case _:
            return RunEnd.DONE


def _usage(usage: RequestUsage) -> ModelUsage:
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        requests=1,
    )


def _sum(one: ModelUsage, other: ModelUsage) -> ModelUsage:
    return ModelUsage(**{name: value + getattr(other, name) for name, value in asdict(one).items()})
