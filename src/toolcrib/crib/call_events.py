"""A call that another process carries out, told on our own bus as the door tells those of this one.

In: a call, and how it ended. Out: `CallIntended`, then `CallFinished` or `CallFailed`. `Connection` uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from toolcrib.crib.results import Result
from toolcrib.errors import BookUnwritable, CallTimeout, Denied, InvalidArguments, ServerFailure, UnknownTool
from toolcrib.events import Bus, CallFailed, CallFinished, CallIntended

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (CallTimeout, "timeout"),
    (ServerFailure, "away"),
    (Denied, "denied"),
    (InvalidArguments, "invalid"),
    (UnknownTool, "unknown"),
    (BookUnwritable, "refused"),
)


@contextlib.contextmanager
def told(
    bus: Bus, *, call_id: str, caller: str, name: str, tool: str, server: str, arguments: bytes
) -> Iterator[Callable[[Result], None]]:
    """Gives the function that takes the result; without one, what is raised says how it ended."""
    facts: dict[str, Any] = {
        "call_id": call_id,
        "caller": caller,
        "name": name,
        "tool": tool,
        "server": server,
        "decision": "",
        "rule": "",
        "arguments": arguments,
        "meta": {},
    }
    began = time.monotonic()

    def finished(outcome: str, failure: str = "") -> None:
        kind = CallFinished if outcome == "ok" else CallFailed
        bus.publish(kind(**facts, outcome=outcome, duration=time.monotonic() - began, failure=failure))

    bus.publish(CallIntended(**facts))
    try:
        yield lambda result: finished(
            "tool_error" if result.is_error else "failed" if result.failure else "ok", result.failure
        )
    except BaseException as error:
        finished(next((word for kind, word in _OUTCOMES if isinstance(error, kind)), "error"))
        raise
