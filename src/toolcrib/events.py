"""What happened, as small frozen classes, and the bus that carries them.

In: facts from every package. Out: the same facts to all subscribers (daemon log, audit log, list_changed).
A subscriber must be quick and must not raise; one that does is logged and the rest go on.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.catalog.tool import Tool

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Event:
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class ServerStateChanged(Event):
    server: str
    state: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CatalogChanged(Event):
    root: str
    version: int


@dataclass(frozen=True, kw_only=True)
class CallEvent(Event):
    call_id: str
    caller: str
    name: str
    """As its caller called it."""
    tool: str
    """`server:tool`; where no tool has the name, the name."""
    server: str
    decision: str
    rule: str
    arguments: bytes | None = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)
    """`_meta`, but for what is about its caller's connection."""


@dataclass(frozen=True, kw_only=True)
class CallIntended(CallEvent):
    """The call is about to leave for its server."""


class CallOutcome(enum.StrEnum):
    """What became of a call, in events and in the audit log. Denied, invalid and unknown ones mostly have no intent."""

    OK = "ok"
    FAILED = "failed"
    """The tool answered, and says that what it ran failed."""
    TOOL_ERROR = "tool_error"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    """It may change something, and the audit log could not be written."""


@dataclass(frozen=True, kw_only=True)
class CallFinished(CallEvent):
    outcome: CallOutcome
    duration: float
    result_size: int = 0
    failure: str = ""
    """What the tool says of what it ran, where that failed."""


@dataclass(frozen=True, kw_only=True)
class CallFailed(CallFinished):
    """A call that did not end well; who listens to these alone is not asked about the many others."""


@dataclass(frozen=True, kw_only=True)
class ConfigProblem(Event):
    """Something is wrong in the configuration, as it was just read for a project."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class ToolsListed(Event):
    agent: str
    tools: bytes = field(repr=False)
    """The JSON array of definitions that it was handed; the same object for as long as nothing changes."""
    by_name: Mapping[str, Tool] = field(repr=False)
    """All tools that there are, by the names that are used there."""


@dataclass(frozen=True, kw_only=True)
class PermissionChanged(Event):
    """What the agent may use is not what it was."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class AgentEnded(Event):
    """What the agent has open ends: its token no longer works."""

    agent: str
    returns: bool = False
    """It has a new token: its sessions stay. Otherwise it is gone, and they end with it."""


@dataclass(frozen=True, kw_only=True)
class TokenReplaced(Event):
    """The agent's new token is in its file: whatever else holds the old one can be made anew."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class AuditedChange(Event):
    """The owner changed who may do what: an entry for the audit log."""

    what: str
    """In words: "agent added", "rule added", "token rotated" …"""
    agent: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class Bus:
    """Hands each event to every subscriber, in the order they came."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], list[Callable[[Event], object]]] = {}
        self.heard: frozenset[type[Event]] = frozenset()
        """The kinds that somebody subscribed to; an event of any other need not even be made."""

    def subscribe(self, subscriber: Callable[[Event], object], *kinds: type[Event]) -> Callable[[], None]:
        """Returns the call that ends the subscription."""
        for kind in kinds:
            self._subscribers.setdefault(kind, []).append(subscriber)
        self.heard |= set(kinds)

        def unsubscribe() -> None:
            for kind in kinds:
                if subscriber in self._subscribers[kind]:
                    self._subscribers[kind].remove(subscriber)
            self.heard = frozenset(kind for kind, listening in self._subscribers.items() if listening)

        return unsubscribe

    def publish(self, event: Event) -> None:
        for subscriber in tuple(self._subscribers.get(type(event), ())):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber failed on %s", type(event).__name__)
