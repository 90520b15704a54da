"""A model's call of a tool, from its words to an outcome that the model can act on.

In: a name and the arguments as the model wrote them, be they JSON or not. Out: an `Outcome`; whatever goes wrong is
one, and nothing but cancellation is raised. `loop` hands it to the model, `tally` makes events of it.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from toolcrib.agent.approving import Approving
from toolcrib.agent_events import ToolStatus
from toolcrib.catalog.offer import Offer
from toolcrib.crib.results import Result
from toolcrib.errors import CallTimeout, Denied, InvalidArguments, ServerFailure, ToolcribError, UnknownTool

log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[ToolcribError], ToolStatus], ...] = (
    (UnknownTool, ToolStatus.UNKNOWN),
    (InvalidArguments, ToolStatus.INVALID),
    (Denied, ToolStatus.DENIED),
    (CallTimeout, ToolStatus.TIMEOUT),
    (ServerFailure, ToolStatus.AWAY),
)
"""The first that fits counts; any other error is the tool's."""

NEAREST = 5
MOST_NAMED = 50
"""Tools that a model is reminded of which called one that does not exist, and none is near."""


@dataclass(frozen=True, kw_only=True)
class Supplied:
    """A tool that the model is offered, and the way to it."""

    offer: Offer
    real: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What the tool is called with when the model gave these. Raises `InvalidArguments` where they do not fit."""
    call: Callable[[Mapping[str, Any]], Awaitable[Result]]
    """Takes what `real` gives."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: ToolStatus
    result: Result | None = None
    words: str = ""
    """What the model is told where there is no result."""
    rule: str = ""
    """Why it was denied."""
    duration_ms: float = 0.0


class Calling:
    def __init__(self, tools: Mapping[str, Supplied], approving: Approving) -> None:
        self.tools = tools
        self._approving = approving

    async def call(self, name: str, given: str | Mapping[str, Any], call: str) -> Outcome:
        began = time.perf_counter()
        try:
            outcome = await self._called(self._named(name), given, call)
        except asyncio.CancelledError:
            # A tool may be cancelled from within; only who cancels this task means the run.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            outcome = Outcome(status=ToolStatus.CANCELLED, words=f"{name} was cancelled before it had a result.")
        except ToolcribError as error:
            outcome = _failed(error)
        except Exception as error:
            log.warning("%s failed", name, exc_info=True)
            outcome = Outcome(status=ToolStatus.ERROR, words=f"{name} failed: {type(error).__name__}: {error}")
        return replace(outcome, duration_ms=(time.perf_counter() - began) * 1000)

    def _named(self, name: str) -> Supplied:
        if name in self.tools:
            return self.tools[name]
        near = difflib.get_close_matches(name, self.tools, n=NEAREST) or list(self.tools)[:MOST_NAMED]
        remedy = f"Use one of those that you were given: {', '.join(near)}." if near else "You were given no tools."
        raise UnknownTool(f'There is no tool "{name}".', remedy=remedy)

    async def _called(self, tool: Supplied, given: str | Mapping[str, Any], call: str) -> Outcome:
        arguments = tool.real(read_arguments(given))
        if refusal := await self._approving.refusal(tool.offer, arguments, call):
            words = f"{tool.offer.name} did not run: {refusal}."
            return Outcome(status=ToolStatus.DENIED, words=words, rule=refusal)
        result = await tool.call(arguments)
        failed = result.is_error or result.failure
        return Outcome(status=ToolStatus.ERROR if failed else ToolStatus.OK, result=result)


def read_arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Raises `InvalidArguments`, in words that help a model."""
    try:
        arguments = dict(given) if isinstance(given, Mapping) else json.loads(given or "{}", parse_constant=_refuse)
        # Numbers beyond all bounds, and halves of characters, are read without a word, but nobody can pass them on.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments are not JSON: {error}.", remedy="Call again with one whole JSON object."
        ) from error
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments are no JSON object.", remedy="Call again with one JSON object.")
    return arguments


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _failed(error: ToolcribError) -> Outcome:
    status = next((status for kind, status in STATUS if isinstance(error, kind)), ToolStatus.ERROR)
    rule = str(error.data.get("rule") or error.message) if status is ToolStatus.DENIED else ""
    return Outcome(status=status, words=error.text(), rule=rule)
