"""What Gemini CLI prints in a run (`--output-format stream-json`) → events.

In: one printed JSON object after the other: `init`, `message` (the model's words come in pieces), `tool_use`,
`tool_result`, `error`, `result`. Out: `AgentEvent`s, and in `told` what they say of the run. Pieces are kept as they
are, and become one message as soon as something else is printed. Thoughts are not printed. `gemini_launch` starts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolcrib.coding_agents.client import SERVER_NAME
from toolcrib.coding_agents.events import AgentEvent, Kind, ToolStatus
from toolcrib.coding_agents.headless import Told, Usage

_PROVIDER = "gemini"
_OF_A_SERVER = re.compile(rf"mcp_({SERVER_NAME}|[^_]+)_(.+)", re.DOTALL)
_NOT_THERE = (f"discovery for MCP server '{SERVER_NAME}'", f"ensuring MCP server '{SERVER_NAME}'")
"""How it says that a server could not be asked for its tools. At its start it says no more than that some server has
issues, which may be one of the person's; and nothing at all where a token is refused."""
_STATUS = {
    "policy_violation": ToolStatus.DENIED,
    "path_not_in_workspace": ToolStatus.DENIED,
    "invalid_tool_params": ToolStatus.INVALID,
    "tool_not_registered": ToolStatus.UNKNOWN,
}
"""By its word for an error; every other is an error of the tool's."""
_WORDINGS = (
    ("Path not in workspace", ToolStatus.DENIED),
    ('"fetch failed"', ToolStatus.AWAY),
    ("Request timed out", ToolStatus.TIMEOUT),
)
"""Of its own, in an error's text: these count before its word for it."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    name: str
    server: str
    arguments: Mapping[str, Any] | None


class GeminiReader:
    def __init__(self) -> None:
        self.told = Told()
        self._pieces: list[str] = []
        """Of the message that is being said."""
        self._open: dict[str, _Call] = {}
        self._error = ""

    def read(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        if self._is_piece(line):
            self._pieces.append(_str(line.get("content")))
            self.told.text = "".join(self._pieces)
            return [_event(Kind.RAW, raw=line)]
        kind = line.get("type")
        readers = {
            "init": self._begun,
            "message": self._message,
            "tool_use": self._started,
            "tool_result": self._over,
            "error": self._trouble,
            "result": self._result,
        }
        found = list(readers[kind](line)) if isinstance(kind, str) and kind in readers else []
        first, *more = (*self._said_whole(), *(found or [_event(Kind.RAW)]))
        return [replace(first, raw=line), *more]

    def said(self, line: str) -> AgentEvent:
        if any(words in line for words in _NOT_THERE):
            self.told.mcp_failure = line
        return _event(Kind.LOG, role="system", text=line, raw=line)

    def _is_piece(self, line: Mapping[str, Any]) -> bool:
        return line.get("type") == "message" and line.get("role") == "assistant" and line.get("delta") is True

    def _said_whole(self) -> Iterator[AgentEvent]:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text.strip():
            yield _event(Kind.MESSAGE, role="assistant", text=text)

    def _begun(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        self.told.session = _str(line.get("session_id")) or self.told.session
        self.told.model = _str(line.get("model")) or self.told.model
        yield _event(Kind.LOG, role="system", text=f"Session {self.told.session}, model {self.told.model}")

    def _message(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        role, text = _str(line.get("role")), _str(line.get("content"))
        if role == "assistant":
            self.told.text = text
        yield _event(Kind.MESSAGE, role=role, text=text)

    def _started(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call, given = _str(line.get("tool_id")), line.get("parameters")
        if not call or call in self._open:
            return
        server, name = _named(_str(line.get("tool_name")))
        known = _Call(name=name, server=server, arguments=given if isinstance(given, dict) else None)
        self._open[call] = known
        yield _tool(call, known, ToolStatus.STARTED)

    def _over(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        call = _str(line.get("tool_id"))
        known = self._open.pop(call, None)
        if known is None:
            return
        error = _map(line.get("error"))
        text = _str(error.get("message")) or _str(line.get("output"))
        failed = bool(error) or line.get("status") == "error"
        yield _tool(call, known, _failure(error, text) if failed else ToolStatus.OK, text=text)

    def _trouble(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        text = _str(line.get("message"))
        if line.get("severity") == "error":
            self._error = text
        yield _event(Kind.LOG, role="system", text=text)

    def _result(self, line: Mapping[str, Any]) -> Iterator[AgentEvent]:
        stats = _map(line.get("stats"))
        if stats:
            self.told.usage = Usage(
                input=_count(stats.get("input_tokens")),
                output=_count(stats.get("output_tokens")),
                cached=_count(stats.get("cached")),
                told=stats,
            )
        status = _str(line.get("status"))
        if status == "success":
            yield _event(Kind.LOG, role="system", text="The run is over.")
            return
        why = _str(_map(line.get("error")).get("message")) or self._error
        self.told.failure = why or f"Gemini CLI ended its run with {status or 'no word'}."
        yield _event(Kind.LOG, role="system", text=self.told.failure)


def _named(name: str) -> tuple[str, str]:
    """Whose tool it is, and how its server calls it."""
    found = _OF_A_SERVER.fullmatch(name)
    return (found[1], found[2]) if found else ("", name)


def _failure(error: Mapping[str, Any], text: str) -> ToolStatus:
    by_text = next((status for words, status in _WORDINGS if words in text), None)
    return by_text or _STATUS.get(_str(error.get("type")), ToolStatus.ERROR)


def _tool(call: str, known: _Call, status: ToolStatus, *, text: str = "") -> AgentEvent:
    return _event(
        Kind.TOOL,
        role="assistant" if status is ToolStatus.STARTED else "tool",
        text=text,
        tool_name=known.name,
        tool_args=known.arguments,
        tool_status=status,
        server=known.server,
        call=call,
    )


def _event(kind: Kind, **what: Any) -> AgentEvent:
    return AgentEvent(kind=kind, provider=_PROVIDER, **what)


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
