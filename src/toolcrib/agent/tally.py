"""The calls of a run: each begins once and ends once.

In: what the model calls, and how it ended. Out: one `ToolCalled` and one `ToolFinished` for each, also for a tool that
does not exist, and for a call that the run's end cut short. `loop` reports here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolcrib.agent.calling import Outcome, Supplied, read_arguments
from toolcrib.agent.events import ToolCalled, ToolFinished
from toolcrib.agent.teller import Teller
from toolcrib.agent_events import ToolStatus
from toolcrib.errors import InvalidArguments


@dataclass(frozen=True, kw_only=True)
class _Open:
    fields: Mapping[str, Any]
    began: float


class Tally:
    def __init__(self, tools: Mapping[str, Supplied], teller: Teller) -> None:
        self._tools = tools
        self._teller = teller
        self._open: dict[str, _Open] = {}

    def began(self, call: str, name: str, given: str | Mapping[str, Any] | None) -> None:
        tool = self._tools.get(name)
        fields: dict[str, Any] = {"tool_name": name, "server": tool.offer.server if tool else "", "call": call}
        try:
            fields["tool_args"] = read_arguments(given or {})
        except InvalidArguments:
            fields["raw"] = given
        self._open[call] = _Open(fields=fields, began=time.perf_counter())
        self._teller.tell(ToolCalled, tool_status=ToolStatus.STARTED, **fields)

    def ended(self, call: str, outcome: Outcome, text: str) -> None:
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
        """The run is over: what is still open will not come to an end of its own."""
        for call in tuple(self._open):
            self._close(call, tool_status=ToolStatus.CANCELLED, text="The run ended before the tool did.")

    def _close(self, call: str, **how: Any) -> None:
        one = self._open.pop(call)
        how.setdefault("tool_duration_ms", (time.perf_counter() - one.began) * 1000)
        self._teller.tell(ToolFinished, **one.fields, **how)
