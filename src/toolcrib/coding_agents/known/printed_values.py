"""Values, calls and failures in what a program printed, for the parsers.

In: a value from a printed line, which may be anything; a text with a provider's JSON in it; lines on standard error.
Out: a text, a number, a list or an object, where anything else counts as absent; the failure in words for a person.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolcrib.coding_agents.client_spec import RunReport
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, kw_only=True)
class PrintedCall:
    """A tool's call that is under way, by what the program printed of it."""

    provider: str
    id: str
    name: str
    server: str
    """Empty for a tool of the program's own."""
    arguments: Mapping[str, Any] | None
    of_subagent: bool = False

    def event(self, status: ToolStatus, *, text: str = "") -> AgentEvent:
        return AgentEvent(
            kind=AgentEventKind.TOOL,
            provider=self.provider,
            role="assistant" if status is ToolStatus.STARTED else "tool",
            text=text,
            tool_name=self.name,
            tool_args=self.arguments,
            tool_status=status,
            server=self.server,
            call=self.id,
        )


_DECODER = json.JSONDecoder()
_WRAPPED = re.compile(r"\[API Error: (.*)\]", re.DOTALL)
_SHORT = 40
"""Characters of a word for a kind of error that still helps."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINES, _LONGEST = 3, 400


def failure_text(text: str) -> str:
    """With the message of a provider's JSON, and its word for the kind of error, in place of the JSON."""
    wrapped = _WRAPPED.fullmatch(text)
    text = wrapped[1] if wrapped else text
    start = text.find("{")
    try:
        found = _DECODER.raw_decode(text, start)[0] if start >= 0 else {}
    except (ValueError, RecursionError):
        return text
    inner = found.get("error")
    error: dict[str, Any] = inner if isinstance(inner, dict) else found
    message = error.get("message")
    if not isinstance(message, str) or not message.strip():
        return text
    words = [error.get("code"), error.get("status") or error.get("type")]
    kind = " ".join(str(one) for one in words if isinstance(one, int | str) and 0 < len(str(one)) <= _SHORT)
    before = text[:start].strip(" :")
    return (f"{before}: " if before else "") + failure_text(message).strip() + (f" ({kind})" if kind else "")


class LastErrorLines:
    """The last lines on standard error of a program that has not reported a failure, or its end, in its own form."""

    def __init__(self, report: RunReport) -> None:
        self._report = report
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._failure = ""

    def add(self, line: str) -> None:
        text = failure_text(_COLOUR.sub("", line).strip())
        if not text or self._report.ended or self._report.failure != self._failure:
            return
        self._lines.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        self._failure = self._report.failure = "\n".join(self._lines)
