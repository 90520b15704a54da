"""A call's way: resolve the name → decide → check the arguments → write the intent → forward raw → write the outcome.

In: a `Request` of a `Caller` and the `Shelf` (catalog and servers) it is made at. Out: the server's raw `Answer`,
or an error of ours. Nothing else in Toolcrib may reach a server's tools.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Raw

from toolcrib.catalog.param_headers import param_headers
from toolcrib.catalog.schema_check import Checker
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.errors import CallTimeout, Denied, ServerFailure, ToolcribError
from toolcrib.events import Bus, CallFinished, CallIntended
from toolcrib.policy import Caller, Decision, Verdict, decide
from toolcrib.servers.model import Answer, OnProgress, ToolCall

_PROCESS = f"{os.getpid():x}-{time.time_ns():x}"
_IS_TOOL_ERROR = (b'"isError":true', b'"isError": true')


class Target(Protocol):
    """What a call is forwarded to: a live server, or the commands of the daemon."""

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Answer: ...


class Shelf(Protocol):
    """Where names are resolved: one project's catalog and the servers behind it."""

    @property
    def catalog(self) -> Catalog: ...

    def target(self, server: str, caller: Caller) -> Target: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A call as its caller made it."""

    tool: str
    """A name in any style."""
    params: Mapping[str, Raw] = field(default_factory=dict)
    """`arguments` and whatever else the params held, without `name` and `_meta`."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    on_progress: OnProgress | None = None


class Door:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._checker = Checker()
        self._numbers = itertools.count(1)
        self.in_flight = 0
        self.finished = 0

    async def call(self, shelf: Shelf, caller: Caller, request: Request) -> Answer:
        tool = shelf.catalog.find(request.tool)
        decision = decide(caller, tool)
        call_id = f"{_PROCESS}-{next(self._numbers)}"
        began = time.monotonic()
        if decision.verdict is not Verdict.ALLOW:
            self._intend(call_id, caller, tool, decision)
            self._finish(call_id, caller, tool, "denied", began)
            raise Denied(
                f"{caller.agent} may not use {tool.display}: {decision.rule}.",
                remedy="Ask the owner of this machine to allow it.",
                data={"rule": decision.rule, "tool": tool.display},
            )
        arguments = request.params.get("arguments")
        try:
            checked = self._checker.check(tool, arguments)
        except ToolcribError:
            self._intend(call_id, caller, tool, decision)
            self._finish(call_id, caller, tool, "invalid", began)
            raise
        self._intend(call_id, caller, tool, decision)
        call = ToolCall(
            name=tool.name, params=request.params, meta=request.meta, headers=param_headers(tool.input_schema, checked)
        )
        self.in_flight += 1
        outcome = "error"
        size = 0
        try:
            answer = await shelf.target(tool.server, caller).call(
                call, timeout=request.timeout, on_progress=request.on_progress
            )
            outcome, size = _outcome(answer)
            return answer
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except CallTimeout:
            outcome = "timeout"
            raise
        except ServerFailure:
            outcome = "away"
            raise
        finally:
            self.in_flight -= 1
            self.finished += 1
            self._finish(call_id, caller, tool, outcome, began, size)

    def _intend(self, call_id: str, caller: Caller, tool: Tool, decision: Decision) -> None:
        self._bus.publish(
            CallIntended(
                call_id=call_id,
                caller=caller.agent,
                tool=tool.display,
                server=tool.server,
                decision=decision.verdict,
                rule=decision.rule,
            )
        )

    def _finish(self, call_id: str, caller: Caller, tool: Tool, outcome: str, began: float, size: int = 0) -> None:
        self._bus.publish(
            CallFinished(
                call_id=call_id,
                caller=caller.agent,
                tool=tool.display,
                server=tool.server,
                outcome=outcome,
                duration=time.monotonic() - began,
                result_size=size,
            )
        )


def _outcome(answer: Answer) -> tuple[str, int]:
    if answer.result is None:
        return "error", len(answer.error or b"")
    # Decoding a large result only for the book would cost more than the call; servers write the flag
    # at the very beginning or the very end, and the book says "ok" where it stands elsewhere.
    edges = answer.result[:256] + answer.result[-256:]
    failed = any(mark in edges for mark in _IS_TOOL_ERROR)
    return ("tool_error" if failed else "ok"), len(answer.result)
