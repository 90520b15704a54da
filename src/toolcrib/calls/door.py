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
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from toolcrib.catalog.schema_check import Checker
from toolcrib.catalog.tool import Tool
from toolcrib.errors import CallTimeout, Denied, ServerFailure, ToolcribError
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended
from toolcrib.policy import Caller, Decision, Verdict, decide
from toolcrib.servers.model import Answer, OnProgress, ToolCall

_PROCESS = f"{os.getpid():x}-{time.time_ns():x}"


class Target(Protocol):
    """What a call is forwarded to: a live server, or the commands of the daemon."""

    async def call(
        self, call: ToolCall, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Answer: ...


class Shelf(Protocol):
    """Where names are resolved: one project's catalog and the servers behind it."""

    def find(self, name: str) -> Tool: ...

    def target(self, server: str, caller: Caller) -> Target: ...


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its caller made it."""

    tool: str
    """A name in any style."""
    params: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    """`arguments` and whatever else the params held, without `name` and `_meta`."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    timeout: float | None = None
    on_progress: OnProgress | None = None


class Outcome(msgspec.Struct, frozen=True):
    """A call that reached its server: what the server said, and the tool that the name stood for."""

    answer: Answer
    tool: Tool


class Door:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._checker = Checker()
        self._numbers = itertools.count(1)
        self.in_flight = 0
        self.finished = 0

    async def call(self, shelf: Shelf, caller: Caller, request: Request) -> Outcome:
        tool = shelf.find(request.tool)
        decision = decide(caller, tool)
        line = _Line(self._bus, f"{_PROCESS}-{next(self._numbers)}", caller, tool, decision)
        if decision.verdict is not Verdict.ALLOW:
            line.finish("denied")
            raise Denied(
                f"{caller.agent} may not use {tool.display}: {decision.rule}.",
                remedy="Ask the owner of this machine to allow it.",
                data={"rule": decision.rule, "tool": tool.display},
            )
        try:
            checked = self._checker.check(tool, request.params.get("arguments"))
        except ToolcribError:
            line.finish("invalid")
            raise
        line.intend()
        call = ToolCall(name=tool.name, params=request.params, meta=request.meta, headers=tool.param_headers(checked))
        self.in_flight += 1
        try:
            answer = await shelf.target(tool.server, caller).call(
                call, timeout=request.timeout, on_progress=request.on_progress
            )
        except BaseException as error:
            line.finish(_failure(error))
            raise
        finally:
            self.in_flight -= 1
            self.finished += 1
        line.finish(_success(answer), len(answer.result or answer.error or b""))
        return Outcome(answer, tool)


class _Line:
    """A call's line in the book: the intent once it passed all checks, the outcome in any case."""

    def __init__(self, bus: Bus, call_id: str, caller: Caller, tool: Tool, decision: Decision) -> None:
        self._bus = bus
        self._call_id = call_id
        self._caller = caller.agent
        self._tool = tool
        self._decision = decision
        self._began = time.monotonic()
        self._intended = False

    def intend(self) -> None:
        self._intended = True
        if self._bus.hears(CallIntended):
            self._bus.publish(
                CallIntended(
                    call_id=self._call_id,
                    caller=self._caller,
                    tool=self._tool.display,
                    server=self._tool.server,
                    decision=self._decision.verdict,
                    rule=self._decision.rule,
                )
            )

    def finish(self, outcome: str, size: int = 0) -> None:
        """The outcome; of a call that was stopped at the door, what was intended comes before it."""
        if not self._intended:
            self.intend()
        kind = CallFinished if outcome == "ok" else CallFailed
        if self._bus.hears(kind):
            self._bus.publish(
                kind(
                    call_id=self._call_id,
                    caller=self._caller,
                    tool=self._tool.display,
                    server=self._tool.server,
                    outcome=outcome,
                    duration=time.monotonic() - self._began,
                    result_size=size,
                )
            )


def _failure(error: BaseException) -> str:
    match error:
        case asyncio.CancelledError():
            return "cancelled"
        case CallTimeout():
            return "timeout"
        case ServerFailure():
            return "away"
        case _:
            return "error"


class _Flagged(msgspec.Struct):
    failed: Any = msgspec.field(name="isError", default=False)


_flagged = msgspec.json.Decoder(_Flagged).decode
_LOOKED_INTO = 4 * 1024 * 1024
"""A result above this is not read through once more for its flag: no tool explains its failure at such length."""


def _success(answer: Answer) -> str:
    if answer.result is None:
        return "error"
    if len(answer.result) > _LOOKED_INTO:
        return "ok"
    try:
        return "tool_error" if _flagged(answer.result).failed is True else "ok"
    except (msgspec.MsgspecError, RecursionError):
        return "ok"
