"""The tasks that agents have at servers: calls whose result is fetched later.

In: what servers say about tasks (`TaskSeen`), and the ids that clients send. Out: `KnownTask`. Clients know a task by a
sealed handle, which names its server and tool, so a task can still be used when the daemon has restarted and this list
is empty. `gateway.task_requests` and the commands `task:*` use it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolcrib.errors import InvalidHandle, NotFound
from toolcrib.events import AgentEnded, Bus, Event, TaskSeen
from toolcrib.servers.model import Era, ServerAnswer
from toolcrib.servers.questions import AskedQuestion
from toolcrib.servers.tasks import ENDED, KEPT, LONGEST_TTL, digest_of

if TYPE_CHECKING:
    from toolcrib.identity.handles import Handles
    from toolcrib.servers.tasks import TaskState

MAX_PER_AGENT = 100
"""Unfinished tasks."""
_MAX_KNOWN = 5000
_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the same task, however often its client asks."""
_LONGEST_TIME = 64
_PURPOSE = "task id"
_HANDLE_LIVES = 7 * 24 * 3600.0
"""Longer than any server is asked to keep a task, because servers may keep it longer than they said."""


class _Reference(msgspec.Struct, frozen=True, array_like=True):
    """What a handle refers to."""

    server: str
    tool: str
    task: str
    modern: bool


class KnownTask(msgspec.Struct, kw_only=True, eq=False):
    agent: str
    server: str
    tool: str
    """The server's own name."""
    task: str
    """The server's id; empty if the gateway made it, for a call that had already ended."""
    modern: bool
    """The server's generation."""
    status: str = "working"
    message: str = ""
    created_at: str = ""
    updated_at: str = ""
    ttl: float | None = None
    poll: float | None = None
    since: float = 0.0
    until: float = 0.0
    """When it is forgotten, by the monotonic clock."""
    handle: str = ""
    own: ServerAnswer | None = None
    """The result of a task that the gateway made."""
    asked: dict[str, AskedQuestion] = {}
    """What the server asks, and the client has not answered."""
    follower: Any = None
    """Fetches the result of a legacy server for a modern client."""
    next_look: float = 0.0

    @property
    def id(self) -> str:
        return digest_of(self.server, self.task or self.handle)

    async def turn(self) -> None:
        """Returns when the server may be asked again how far it is."""
        now = time.monotonic()
        begin = max(now, self.next_look)
        self.next_look = begin + _BETWEEN_LOOKS
        if begin > now:
            await asyncio.sleep(begin - now)


class TaskRegistry:
    def __init__(self, bus: Bus, handles: Handles) -> None:
        self._handles = handles
        self._known: dict[tuple[str, str, str], KnownTask] = {}
        """By agent, server and the server's id."""
        bus.subscribe(self._changed, TaskSeen, AgentEnded)

    def all(self) -> list[KnownTask]:
        """The oldest first."""
        now = time.monotonic()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        return list(self._known.values())

    def of(self, agent: str) -> list[KnownTask]:
        return [one for one in self.all() if one.agent == agent]

    def is_full(self, agent: str) -> bool:
        return sum(one.status not in ENDED for one in self.of(agent)) >= MAX_PER_AGENT

    def find(self, id: str) -> KnownTask:
        for one in self.all():
            if one.id == id:
                return one
        raise NotFound(f"There is no task {id[:80]!r}.", remedy="List the tasks with `toolcrib tasks`.")

    def created(self, agent: str, server: str, tool: str, state: TaskState) -> KnownTask:
        """The task with its handle."""
        return self.sealed(self._held(agent, _Reference(server, tool, state.id, state.era is Era.MODERN)))

    def add_finished(self, agent: str, server: str, tool: str, answer: ServerAnswer) -> KnownTask:
        """A task of a call that has ended already."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        own = KnownTask(
            agent=agent, server=server, tool=tool, task="", modern=True, status="completed", own=answer, ttl=KEPT * 1000
        )
        own.created_at = own.updated_at = now
        own.since, own.until = time.time(), time.monotonic() + KEPT
        self.sealed(own)
        self._keep((agent, server, own.handle), own)
        return own

    def opened(self, agent: str, handle: str) -> KnownTask:
        """The task of a client's id. Raises `InvalidHandle`."""
        found = self._handles.open(_PURPOSE, agent, handle, _Reference)
        if found.task:
            known = self._held(agent, found)
        elif (own := self._known.get((agent, found.server, handle))) is not None:
            known = own
        else:
            raise InvalidHandle("This task is no longer known.")
        known.handle = handle
        return known

    def _held(self, agent: str, about: _Reference) -> KnownTask:
        """The task, also if it was forgotten: servers may keep a task longer than they said, or not at all."""
        key = agent, about.server, about.task
        known = self._known.get(key)
        if known is None:
            known = KnownTask(agent=agent, server=about.server, tool=about.tool, task=about.task, modern=about.modern)
            known.since, known.until = time.time(), time.monotonic() + KEPT
            self._keep(key, known)
        return known

    def sealed(self, known: KnownTask) -> KnownTask:
        if not known.handle:
            about = _Reference(known.server, known.tool, known.task, known.modern)
            known.handle = self._handles.seal(_PURPOSE, known.agent, about, lives=_HANDLE_LIVES)
        return known

    def _keep(self, key: tuple[str, str, str], known: KnownTask) -> None:
        self._known[key] = known
        self._forget([one for one, other in self._known.items() if other.agent == known.agent], 2 * MAX_PER_AGENT)
        self._forget(list(self._known), _MAX_KNOWN)

    def _forget(self, keys: list[tuple[str, str, str]], most: int) -> None:
        """Keeps only so many of these: first those that have not ended, then the newest."""
        if len(keys) > most:
            for key in sorted(keys, key=lambda one: self._known[one].status not in ENDED)[:-most]:
                del self._known[key]

    def _changed(self, event: Event) -> None:
        if isinstance(event, AgentEnded):
            if not event.returns:
                self._known = {key: one for key, one in self._known.items() if one.agent != event.agent}
        elif isinstance(event, TaskSeen):
            self._note(event)

    def _note(self, seen: TaskSeen) -> None:
        key = seen.agent, seen.server, seen.task
        known = self._known.get(key)
        if known is None:
            if not seen.tool:
                return
            known = KnownTask(
                agent=seen.agent, server=seen.server, tool=seen.tool, task=seen.task, modern=seen.modern, since=seen.at
            )
            self._keep(key, known)
        known.status, known.message = seen.status, seen.message[:1000]
        known.created_at, known.updated_at = seen.created_at[:_LONGEST_TIME], seen.updated_at[:_LONGEST_TIME]
        known.ttl, known.poll = seen.ttl, seen.poll
        kept = KEPT if seen.ttl is None else min(max(0.0, seen.ttl / 1000), LONGEST_TTL)
        left = kept if seen.ttl is None else kept - (time.time() - known.since)
        known.until = time.monotonic() + max(0.0, left)


def described(known: KnownTask) -> Mapping[str, object]:
    return {
        "id": known.id,
        "agent": known.agent,
        "server": known.server,
        "tool": f"{known.server}:{known.tool}",
        "status": known.status,
        "message": known.message,
        "age": max(0.0, time.time() - known.since),
    }
