"""Events as small frozen classes, and the bus that delivers them.

In: events from every package. Out: the same events for all subscribers (daemon log, audit log, list_changed).
A subscriber must be quick and must not raise. If one raises, the error is logged and the others still get the event.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
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
    """The name that the caller used."""
    tool: str
    """`server:tool`, or the name itself if no tool has it."""
    server: str
    decision: str
    rule: str
    arguments: bytes | None = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)
    """`_meta` without the keys about the caller's connection."""


@dataclass(frozen=True, kw_only=True)
class CallIntended(CallEvent):
    """The call is about to be sent to its server."""


class CallOutcome(enum.StrEnum):
    """How a call ended, in events and in the audit log. Denied, invalid and unknown calls usually have no intent."""

    OK = "ok"
    FAILED = "failed"
    """The tool answered, and reports that the program it ran failed."""
    TOOL_ERROR = "tool_error"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    ASKED = "asked"
    """The server asks something; the caller's next call has the answers."""
    TASK = "task"
    """The server works on it as a task, whose result the caller fetches later."""
    REFUSED = "refused"
    """It may change something, and the audit log could not be written."""


@dataclass(frozen=True, kw_only=True)
class TaskSeen(Event):
    """A server created a task, or said how far it is."""

    agent: str
    server: str
    tool: str
    """The server's own name of the tool; empty except when it is created."""
    task: str
    """The server's id."""
    modern: bool
    status: str
    message: str
    created_at: str
    updated_at: str
    ttl: float | None
    """Milliseconds, like `poll`."""
    poll: float | None


@dataclass(frozen=True, kw_only=True)
class CallFinished(CallEvent):
    outcome: CallOutcome
    duration: float
    result_size: int = 0
    failure: str = ""
    """The tool's report of a program that failed."""


@dataclass(frozen=True, kw_only=True)
class CallFailed(CallFinished):
    """A call that did not succeed. Separate, so that subscribers to failures don't get every call."""


@dataclass(frozen=True, kw_only=True)
class ConfigProblem(Event):
    """A problem found while reading a project's configuration."""

    problem: str


@dataclass(frozen=True, kw_only=True)
class ConfigReloaded(Event):
    """The configuration was read again, and the differences are in effect: names of servers and settings."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    """Settings that differ from those of the start, and apply only after a restart."""

    @property
    def changes(self) -> bool:
        """Whether anything took effect."""
        return bool(self.added or self.removed or self.changed or self.settings)

    def lines(self) -> list[str]:
        """The differences, for people."""
        found = (
            ("added", self.added),
            ("removed", self.removed),
            ("changed", self.changed),
            ("settings", self.settings),
            ("take effect only after a restart", self.restart),
        )
        return [f"{what}: {', '.join(names)}" for what, names in found if names] or ["nothing changed"]


@dataclass(frozen=True, kw_only=True)
class ToolsListed(Event):
    agent: str
    tools: bytes = field(repr=False)
    """The JSON array of definitions that it got; the same object until something changes."""
    by_name: Mapping[str, Tool] = field(repr=False)
    """All tools in the catalog, by the names used in the listing."""
    mode: str = "full"


@dataclass(frozen=True, kw_only=True)
class ListingSettingsChanged(Event):
    """The favorite tools, or how much lists show of a tool, differ."""


@dataclass(frozen=True, kw_only=True)
class PermissionChanged(Event):
    agent: str


@dataclass(frozen=True, kw_only=True)
class AgentEnded(Event):
    """The agent's token no longer works, so its open requests and streams end."""

    agent: str
    returns: bool = False
    """Whether it has a new token and keeps its sessions. Otherwise they end too."""


@dataclass(frozen=True, kw_only=True)
class ApprovalsChanged(Event):
    """A call or a question waits for the owner, or no longer does."""


@dataclass(frozen=True, kw_only=True)
class QuestionWaits(Event):
    """A server's question waits for the owner's answer."""

    id: str
    """Of the approval."""
    agent: str
    server: str
    tool: str
    mode: str
    """`form`, `url` or `sampling`."""


@dataclass(frozen=True, kw_only=True)
class JobChanged(Event):
    """The job has ended."""

    job: str
    submitter: str
    """The principal that submitted it."""


@dataclass(frozen=True, kw_only=True)
class TokenReplaced(Event):
    """The agent's new token is in its file, so anything that holds the old token can be updated."""

    agent: str


@dataclass(frozen=True, kw_only=True)
class AuditedChange(Event):
    """The owner changed agents or permissions: an entry for the audit log."""

    what: str
    """Such as "agent added", "rule added", "token rotated" …"""
    agent: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DefinitionsChanged(Event):
    """A server lists tools that differ from the accepted ones. Published once per difference."""

    server: str
    tools: Mapping[str, Sequence[str]]
    """Names, by "new", "changed" and "removed"."""


class Bus:
    """Delivers each event to every subscriber, in the order of subscription."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], list[Callable[[Event], object]]] = {}
        self.heard: frozenset[type[Event]] = frozenset()
        """The kinds that have subscribers; events of other kinds need not be created."""

    def subscribe(self, subscriber: Callable[[Event], object], *kinds: type[Event]) -> Callable[[], None]:
        """Returns the function that ends the subscription."""
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
