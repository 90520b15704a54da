"""Reads values, calls and failures from a program's output, for the parsers.

In: a value of any type from a printed line; a text that contains a provider's JSON; lines on standard error.
Out: a text, a number, a list or an object, where any other type counts as missing; a readable failure.
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
    """A tool call that the program has printed and that has not ended."""

    provider: str
    id: str
    name: str
    server: str
    """Empty for the program's built-in tools."""
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
_MAX_CODE_LENGTH = 40
"""Characters of an error code or type; a longer one is omitted."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LINES, _MAX_LINE_LENGTH = 3, 400


def failure_text(text: str) -> str:
    """The text with a provider's JSON error replaced by its message and code."""
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
    codes = [error.get("code"), error.get("status") or error.get("type")]
    kind = " ".join(
        str(code) for code in codes if isinstance(code, int | str) and 0 < len(str(code)) <= _MAX_CODE_LENGTH
    )
    before = text[:start].strip(" :")
    return (f"{before}: " if before else "") + failure_text(message).strip() + (f" ({kind})" if kind else "")


class LastErrorLines:
    """Uses the last lines on standard error as the failure, until the program reports a failure or its end itself."""

    def __init__(self, report: RunReport) -> None:
        self._report = report
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._failure = ""

    def add(self, line: str) -> None:
        text = failure_text(_COLOUR.sub("", line).strip())
        if not text or self._report.ended or self._report.failure != self._failure:
            return
        self._lines.append(text if len(text) <= _MAX_LINE_LENGTH else f"{text[:_MAX_LINE_LENGTH]}…")
        self._failure = self._report.failure = "\n".join(self._lines)
