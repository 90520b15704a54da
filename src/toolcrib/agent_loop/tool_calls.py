"""A model's tool calls: approval, execution, and events.

In: a name and the arguments as the model wrote them, valid JSON or not. Out: a `ToolOutcome`, also for every failure;
only cancellation is raised. `CallEvents` emits one `ToolCalled` and one `ToolFinished` for each call, also for a tool
that does not exist and for a call that the run's end interrupts. `loop` uses both.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from toolcrib.agent_loop.event_queue import EventEmitter
from toolcrib.agent_loop.events import ToolCalled, ToolFinished
from toolcrib.agent_loop.options import Approve, ToolRequest
from toolcrib.catalog.names import similar
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.core.results import Result
from toolcrib.errors import CallTimeout, Denied, InvalidArguments, ServerFailure, ToolcribError, UnknownTool
from toolcrib.run_events import ToolStatus


class CallApproval:
    def __init__(self, approve: Approve | None) -> None:
        self._approve = approve
        self._one_at_a_time = asyncio.Lock()

    async def refusal(self, offer: OfferedTool, arguments: Mapping[str, Any], call: str) -> str:
        """Empty if the call may run."""
        if self._approve is None or offer.tool.reads_only:
            return ""
        request = ToolRequest(
            name=offer.name,
            server=offer.server,
            arguments=copy.deepcopy(dict(arguments)),
            annotations=offer.annotations,
            call=call,
        )
        async with self._one_at_a_time:
            try:
                answer = self._approve(request)
                if inspect.isawaitable(answer):
                    answer = await answer
            except Exception as error:
                return f"the approval failed ({type(error).__name__}: {error})"
        if answer is True:
            return ""
        return answer if isinstance(answer, str) and answer else "it was not approved"


log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[ToolcribError], ToolStatus], ...] = (
    (UnknownTool, ToolStatus.UNKNOWN),
    (InvalidArguments, ToolStatus.INVALID),
    (Denied, ToolStatus.DENIED),
    (CallTimeout, ToolStatus.TIMEOUT),
    (ServerFailure, ToolStatus.UNAVAILABLE),
)
"""The first match counts; any other error is the tool's."""

NEAREST = 5
MAX_LISTED = 50
"""Tools listed for a model that called an unknown tool with no similar name."""


@dataclass(frozen=True, kw_only=True)
class CallableTool:
    """An offered tool and how to call it."""

    offer: OfferedTool
    real: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The tool's arguments for those of the model. Raises `InvalidArguments`."""
    call: Callable[[Mapping[str, Any]], Awaitable[Result]]
    """Takes the result of `real`."""


@dataclass(frozen=True, kw_only=True)
class ToolOutcome:
    status: ToolStatus
    result: Result | None = None
    words: str = ""
    """The text for the model if there is no result."""
    rule: str = ""
    """The reason of a denial."""
    duration_ms: float = 0.0


class ToolCaller:
    def __init__(self, tools: Mapping[str, CallableTool], approving: CallApproval) -> None:
        self.tools = tools
        self._approving = approving

    async def call(self, name: str, given: str | Mapping[str, Any], call: str) -> ToolOutcome:
        began = time.perf_counter()
        try:
            outcome = await self._called(self._named(name), given, call)
        except asyncio.CancelledError:
            # A tool may be cancelled from within; only a cancellation of this task ends the run.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            outcome = ToolOutcome(status=ToolStatus.CANCELLED, words=f"{name} was cancelled before it finished.")
        except ToolcribError as error:
            outcome = _failed(error)
        except Exception as error:
            log.warning("%s failed", name, exc_info=True)
            outcome = ToolOutcome(status=ToolStatus.ERROR, words=f"{name} failed: {type(error).__name__}: {error}")
        return replace(outcome, duration_ms=(time.perf_counter() - began) * 1000)

    def _named(self, name: str) -> CallableTool:
        if name in self.tools:
            return self.tools[name]
        names = list(self.tools)
        near = [names[at] for at in itertools.islice(similar(name, names), NEAREST)] or names[:MAX_LISTED]
        remedy = f"Use one of your tools: {', '.join(near)}." if near else "You have no tools."
        raise UnknownTool(f'There is no tool "{name}".', remedy=remedy)

    async def _called(self, tool: CallableTool, given: str | Mapping[str, Any], call: str) -> ToolOutcome:
        arguments = tool.real(read_arguments(given))
        if refusal := await self._approving.refusal(tool.offer, arguments, call):
            words = f"{tool.offer.name} did not run: {refusal}."
            return ToolOutcome(status=ToolStatus.DENIED, words=words, rule=refusal)
        result = await tool.call(arguments)
        failed = result.is_error or result.failure
        return ToolOutcome(status=ToolStatus.ERROR if failed else ToolStatus.OK, result=result)


def read_arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Raises `InvalidArguments` with a remedy for the model."""
    try:
        arguments = dict(given) if isinstance(given, Mapping) else json.loads(given or "{}", parse_constant=_refuse)
        # Infinite numbers and lone surrogates are parsed without an error, but cannot be passed on.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments are not JSON: {error}.", remedy="Call again with one whole JSON object."
        ) from error
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments are not a JSON object.", remedy="Call again with one JSON object.")
    return arguments


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _failed(error: ToolcribError) -> ToolOutcome:
    status = next((status for kind, status in STATUS if isinstance(error, kind)), ToolStatus.ERROR)
    rule = str(error.data.get("rule") or error.message) if status is ToolStatus.DENIED else ""
    return ToolOutcome(status=status, words=error.text(), rule=rule)


@dataclass(frozen=True, kw_only=True)
class _OpenCall:
    fields: Mapping[str, Any]
    began: float


class CallEvents:
    def __init__(self, tools: Mapping[str, CallableTool], emitter: EventEmitter) -> None:
        self._tools = tools
        self._emitter = emitter
        self._open: dict[str, _OpenCall] = {}

    def began(self, call: str, name: str, given: str | Mapping[str, Any] | None) -> None:
        tool = self._tools.get(name)
        fields: dict[str, Any] = {"tool_name": name, "server": tool.offer.server if tool else "", "call": call}
        try:
            fields["tool_args"] = read_arguments(given or {})
        except InvalidArguments:
            fields["raw"] = given
        self._open[call] = _OpenCall(fields=fields, began=time.perf_counter())
        self._emitter.emit(ToolCalled, tool_status=ToolStatus.STARTED, **fields)

    def ended(self, call: str, outcome: ToolOutcome, text: str) -> None:
        result = outcome.result
        self._close(
            call,
            tool_status=outcome.status,
            tool_duration_ms=outcome.duration_ms,
            text=text,
            blocks=tuple(block.raw for block in result.blocks) if result else (),
            structured=result.structured if result else None,
            **({"decision": "deny", "rule": outcome.rule} if outcome.status is ToolStatus.DENIED else {}),
        )

    def cut_short(self) -> None:
        """Reports the calls that are still open at the end of the run as cancelled."""
        for call in tuple(self._open):
            self._close(call, tool_status=ToolStatus.CANCELLED, text="The run ended before the tool did.")

    def _close(self, call: str, **how: Any) -> None:
        open_call = self._open.pop(call)
        how.setdefault("tool_duration_ms", (time.perf_counter() - open_call.began) * 1000)
        self._emitter.emit(ToolFinished, **open_call.fields, **how)
