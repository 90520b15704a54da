"""Buffers the events of one agent until its run reads them.

In: events of calls, listings and questions from the bus. Out: the same, in order, as plain JSON. Calls
never wait for a reader: a reader that doesn't keep up is dropped, so that the buffer stays small. Only `run` uses it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import msgspec

from toolcrib.audit.row import count_all_tokens
from toolcrib.catalog.tool import Tool
from toolcrib.config.masking import mask_tree
from toolcrib.events import (
    AgentEnded,
    Bus,
    CallEvent,
    CallFailed,
    CallFinished,
    CallIntended,
    Event,
    QuestionWaits,
    ToolsListed,
)

MAX_ARGUMENTS = 256 * 1024
"""Bytes; for larger arguments only the size is sent."""
MAX_META = 16 * 1024
MAX_UNREAD = 4096
MAX_UNREAD_BYTES = 32 * 1024 * 1024
_ENTRY = 1024
"""Bytes of memory that an event uses in addition to arguments and definitions."""
_AT_ONCE = 16 * 1024
"""Bytes of arguments that are masked on the event loop; more are masked in a thread."""
_LAST_CALLS = 2.0
"""Seconds that calls may take to end after their agent has ended."""

Redact = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class SeenEvent:
    event: CallEvent | ToolsListed | QuestionWaits
    """Without arguments and `_meta` that are too large to send."""
    arguments_size: int
    size: int
    """Approximate bytes in memory."""


class AgentWatch:
    """A context manager: it collects events inside its `with` block."""

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus = bus
        self._agent = agent
        self._kept: deque[SeenEvent] = deque()
        self._size = 0
        self._open_calls: set[str] = set()
        self._last_listing = b""
        self._news = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None
        self.ended: AgentEnded | None = None
        self.overrun = asyncio.Event()
        """Set when too much is unread; after that, events are discarded."""

    def __enter__(self) -> Self:
        self._unsubscribe = self._bus.subscribe(
            self._note, CallIntended, CallFinished, CallFailed, ToolsListed, QuestionWaits, AgentEnded
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()

    def _note(self, event: Event) -> None:
        # The bus reports all agents' calls.
        match event:
            case CallEvent() if event.caller == self._agent:
                if isinstance(event, CallFinished):
                    self._open_calls.discard(event.call_id)
                else:
                    self._open_calls.add(event.call_id)
                self._keep(_seen(event))
            case ToolsListed() if event.agent == self._agent:
                known = event.tools is self._last_listing
                self._last_listing = event.tools
                self._keep(SeenEvent(event=event, arguments_size=0, size=_ENTRY + (0 if known else len(event.tools))))
            case QuestionWaits() if event.agent == self._agent:
                self._keep(SeenEvent(event=event, arguments_size=0, size=_ENTRY))
            case AgentEnded() if event.agent == self._agent:
                self.ended = event
                self._news.set()

    def _keep(self, seen: SeenEvent) -> None:
        if self.overrun.is_set():
            return
        self._kept.append(seen)
        self._size += seen.size
        self._news.set()
        if len(self._kept) > MAX_UNREAD or self._size > MAX_UNREAD_BYTES:
            self._kept.clear()
            self._size = 0
            self.overrun.set()

    async def next(self) -> SeenEvent | None:
        """None after the last event, when the agent and its calls have ended."""
        while not self._kept:
            if self.ended is not None and not self._open_calls:
                return None
            self._news.clear()
            try:
                async with asyncio.timeout(None if self.ended is None else _LAST_CALLS):
                    await self._news.wait()
            except TimeoutError:
                return None
        seen = self._kept.popleft()
        self._size -= seen.size
        return seen


def _seen(event: CallEvent) -> SeenEvent:
    size = len(event.arguments or b"")
    if size > MAX_ARGUMENTS:
        event = replace(event, arguments=None)
    meta_size = len(msgspec.json.encode(event.meta)) if event.meta else 0
    if meta_size > MAX_META:
        event = replace(event, meta={})
    held = (0 if event.arguments is None else size) + (meta_size if event.meta else 0)
    return SeenEvent(event=event, arguments_size=size, size=_ENTRY + held)


async def event_json(seen: SeenEvent, redact: Redact) -> dict[str, Any]:
    event = seen.event
    if isinstance(event, QuestionWaits):
        about = {"id": event.id, "server": event.server, "tool": event.tool, "mode": event.mode}
        return {"question": {**about, "at": event.at}}
    if isinstance(event, ToolsListed):
        # Counting loads a table, which is slow.
        counted = await asyncio.to_thread(count_all_tokens, event.tools)
        listed = msgspec.json.decode(event.tools, type=list[_Named])
        names = offered_names(event.tools, event.by_name)
        size = {
            "mode": event.mode,
            "tools": len(listed),
            "bytes": len(event.tools),
            "tokens": counted.tokens,
            "tokens_estimated": counted.estimated,
        }
        return {"listed": {**size, "names": names, "at": event.at}}
    if len(event.arguments or b"") > _AT_ONCE:
        call = await asyncio.to_thread(_call, event, redact)
    else:
        call = _call(event, redact)
    return {"call": {**call, "arguments_size": seen.arguments_size}}


class _Named(msgspec.Struct):
    name: str


def offered_names(tools: bytes, by_name: Mapping[str, Tool]) -> dict[str, tuple[str, str]]:
    """The server and tool for each name in a listing."""
    listed = msgspec.json.decode(tools, type=list[_Named])
    return {one.name: (tool.server, tool.name) for one in listed if (tool := by_name.get(one.name)) is not None}


def _call(event: CallEvent, redact: Redact) -> dict[str, Any]:
    over = event if isinstance(event, CallFinished) else None
    return {
        "call": event.call_id,
        "name": redact(event.name),
        "tool": redact(event.tool.removeprefix(f"{event.server}:") if event.server else event.tool),
        "server": event.server,
        "arguments": _arguments(event.arguments, redact),
        "over": over is not None,
        "outcome": "" if over is None else over.outcome,
        "failure": "" if over is None else redact(over.failure),
        "duration_ms": None if over is None else round(over.duration * 1000, 3),
        "decision": event.decision,
        "rule": event.rule,
        "meta": _meta(event.meta, redact),
        "at": event.at,
    }


def _arguments(raw: bytes | None, redact: Redact) -> dict[str, Any] | None:
    try:
        found = None if raw is None else mask_tree(msgspec.json.decode(raw), redact)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _meta(meta: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    try:
        masked: dict[str, Any] = mask_tree(meta, redact)
    except RecursionError:
        return {}
    return masked
