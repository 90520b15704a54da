"""Sessions: one per agent and conversation, in memory and in the store, so that they survive a restart.

In: an authenticated agent and the label of a conversation. Out: their `Session`, with its counts. A session grants
nothing: every request is authorized anew. Legacy clients have their own ids, bound to a session; an id of another
agent is treated as unknown.

The start of a session is durable before the client gets it. Its counts are written later, in batches.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from toolcrib.config.model import ListingMode
from toolcrib.errors import NotFound, StoreError, TooManySessions
from toolcrib.events import AgentEnded, Bus, CallOutcome, Event
from toolcrib.identity.usage import Counted, SessionUsage, ShownTools, TokenCounter, TokenKind
from toolcrib.store import identity as rows
from toolcrib.store.clock import ExpiryClock
from toolcrib.store.identity import LegacySessionRow, SessionRow

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from toolcrib.store.commits import GroupCommit
    from toolcrib.store.database import Store


_WRITTEN = tuple(field.name for field in fields(SessionRow))


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    agent: str
    conversation: str
    id: str
    started_at: float
    used_at: float
    idle_since: float
    """The same moment, by the monotonic clock."""
    catalog_version: int = 0
    permission_version: int = 0
    mode: str = "full"
    listings: int = 0
    calls: int = 0
    denied: int = 0
    failed: int = 0
    result_bytes: int = 0
    usage: SessionUsage = field(default_factory=SessionUsage)
    shown: ShownTools | None = None
    """What its searches have shown since the start of the process."""
    legacy: tuple[str, ...] = ()
    """Its legacy clients' ids, the last used at the end."""
    open_requests: set[Callable[[], None]] | None = None
    """Callbacks that end the open requests and streams."""
    kept: bool = False
    """Whether its start is durable, or the store gave no answer in time."""
    ended: bool = False
    changed: bool = False
    """Whether it has unwritten changes."""
    mark: Callable[[Session], None]
    """Schedules it to be written."""

    def add_tokens(self, kind: TokenKind, counted: Counted) -> None:
        self.usage.add_tokens(kind, counted)
        if not self.changed:
            self.mark(self)

    def begin(self, end: Callable[[], None]) -> None:
        """Registers an open request or stream; `end` interrupts it."""
        if self.open_requests is None:
            self.open_requests = {end}
        else:
            self.open_requests.add(end)

    def over(self, end: Callable[[], None]) -> None:
        if self.open_requests is not None:
            self.open_requests.discard(end)
            if not self.open_requests:
                self.open_requests = None

    def interrupt(self) -> None:
        """Ends all open requests and streams."""
        for end in tuple(self.open_requests or ()):
            end()

    def row(self) -> SessionRow:
        values = {name: getattr(self, name) for name in _WRITTEN}
        return SessionRow(**{**values, "usage": msgspec.json.encode(self.usage).decode()})

    @classmethod
    def of(cls, row: SessionRow, *, idle_since: float, mark: Callable[[Session], None]) -> Session:
        usage = msgspec.json.decode(row.usage, type=SessionUsage)
        return cls(**{**vars(row), "usage": usage}, idle_since=idle_since, kept=True, mark=mark)


class SessionEnded(NamedTuple):
    agent: str
    conversation: str


class LegacyIdEnded(NamedTuple):
    id: str


SessionChange = SessionRow | LegacySessionRow | SessionEnded | LegacyIdEnded
"""A change of a session to write."""


def write_session_changes(connection: Connection, items: list[SessionChange]) -> None:
    """One function for all kinds, because the group commit keeps the order only within one function."""
    for kind, group in itertools.groupby(items, type):
        _WRITERS[kind](connection, list(group))


_WRITERS: Mapping[type, Callable[[Connection, list[Any]], None]] = {
    SessionRow: rows.put_sessions,
    LegacySessionRow: rows.begin_legacy_sessions,
    SessionEnded: rows.end_sessions,
    LegacyIdEnded: lambda connection, gone: rows.end_legacy_sessions(connection, [one.id for one in gone]),
}


MOST_OF_AN_AGENT = 1_000
MOST = 20_000
MOST_LEGACY_IDS = 100
"""Per session. A client that initializes repeatedly under one label leaves its earlier ids behind."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_WRITE_AFTER = 1.0
"""Seconds until a session's counts are written; a crash loses at most these."""
_WRITTEN_AT_ONCE = 500
"""Sessions per batch, so that writing many does not block the event loop."""
_PATIENCE = 2.0
"""Seconds that a new session waits for a store that does not answer; then it exists only in memory."""


class SessionRegistry:
    def __init__(
        self, commits: GroupCommit, *, bus: Bus, idle: float, count_tokens: Callable[[bytes], Counted]
    ) -> None:
        self._commits = commits
        self._counter = TokenCounter(count_tokens)
        self._counting: asyncio.Task[None] | None = None
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._by_agent: dict[str, OrderedDict[str, Session]] = {}
        """Each agent's sessions by conversation, least recently used first."""
        self._by_legacy_id: dict[str, Session] = {}
        self._capabilities: dict[str, Mapping[str, Any]] = {}
        """What legacy clients can be asked, by their ids."""
        self._clients: dict[str, str] = {}
        """The names of legacy clients, by their ids."""
        self._count = 0
        self._changed: list[Session] = []
        self._marker = self._mark
        """One bound method, shared by all sessions."""
        self._writing: asyncio.TimerHandle | None = None
        self._sweeping = self._loop.call_later(self._pause, self._sweep)
        self._unsubscribe = bus.subscribe(self._agent_ended, AgentEnded)

    @classmethod
    async def open(
        cls,
        store: Store,
        commits: GroupCommit,
        *,
        bus: Bus,
        exists: Callable[[str], bool],
        idle: float,
        count_tokens: Callable[[bytes], Counted],
        clock: ExpiryClock | None = None,
    ) -> Self:
        """Loads the stored sessions. Those of agents that no longer exist, and those unused for `idle` seconds, end.
        `count_tokens` runs in a thread."""
        known, ids = await store.read(rows.all_sessions), await store.read(rows.all_legacy_sessions)
        sessions = cls(commits, bus=bus, idle=idle, count_tokens=count_tokens)
        sessions._load(known, ids, exists, (clock or ExpiryClock()).patient())
        return sessions

    async def close(self) -> None:
        """Passes the remaining changes to the group commit, which writes them when it closes."""
        self._unsubscribe()
        self._sweeping.cancel()
        # The tokens of the last calls are known when the calls are written.
        await self._settle()
        await self._counter.run()
        if self._writing is not None:
            self._writing.cancel()
        self._take_down(self._changed)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Session]:
        return itertools.chain.from_iterable(tuple(held.values()) for held in tuple(self._by_agent.values()))

    def find(self, agent: str, conversation: str) -> Session | None:
        held = self._by_agent.get(agent)
        session = None if held is None else held.get(conversation)
        return session if session is not None and session.kept else None

    async def begin(self, agent: str, conversation: str) -> Session:
        """Returns the session of this agent and conversation, and creates it if needed. It is durable on return."""
        session = self._had(agent, conversation) or self._made(agent, conversation)
        await self._settle()
        session.kept = True
        return session

    def used(self, session: Session, *, catalog_version: int, permission_version: int) -> None:
        session.used_at = time.time()
        session.idle_since = self._loop.time()
        session.catalog_version = catalog_version
        session.permission_version = permission_version
        if not session.ended:
            self._by_agent[session.agent].move_to_end(session.conversation)
        if not session.changed:
            self._mark(session)

    def count(self, session: Session, outcome: CallOutcome, size: int, *, tool: str) -> None:
        """Counts a call of this tool with this outcome and a result of `size` bytes."""
        session.calls += 1
        session.result_bytes += size
        if outcome is CallOutcome.DENIED:
            session.denied += 1
        elif outcome not in (CallOutcome.OK, CallOutcome.ASKED, CallOutcome.TASK):
            session.failed += 1
        if outcome is CallOutcome.INVALID:
            session.usage.add_answer(TokenKind.REPAIRS)
        if session.shown is not None and (rank := session.shown.chosen(tool)) is not None:
            session.usage.ranks[rank] = session.usage.ranks.get(rank, 0) + 1
        if not session.changed:
            self._mark(session)

    def next_listing(self, agent: str, conversation: str) -> ListingMode:
        """`handshake` for the next completion: full if this conversation never got a list, thin after that."""
        session = self.find(agent, conversation)
        return ListingMode.THIN if session is not None and session.listings else ListingMode.FULL

    def count_answer(self, session: Session, kind: TokenKind) -> None:
        """Counts a search, a description or a repair. Those of calls with invalid arguments are counted by `count`."""
        session.usage.add_answer(kind)
        self._mark(session)

    def searched(self, session: Session, tools: Sequence[str]) -> None:
        """Remembers what a search has shown, best first, as `server:tool`."""
        if session.shown is None:
            session.shown = ShownTools()
        session.shown.add(tools)

    def listed(self, session: Session, mode: str, tools: bytes) -> None:
        """Counts a list in this mode; its tokens are counted later."""
        session.listings += 1
        session.mode = mode
        self.answered(session, TokenKind.LISTS, tools)

    def answered(self, session: Session, kind: TokenKind, answer: bytes) -> None:
        """Counts the tokens of an answer later. The audit log counts those of calls that were sent to a server."""
        self._counter.add(partial(session.add_tokens, kind), answer)
        self._mark(session)

    def shortened(self, session: Session, counted: bytes, sent: bytes) -> None:
        """The agent got `sent` instead of a result; the audit log counts the tokens of `counted` for it."""
        self._counter.add(lambda found: session.add_tokens(TokenKind.RESULTS, (-found[0], found[1])), counted)
        self.answered(session, TokenKind.RESULTS, sent)

    async def end(self, session: Session) -> None:
        self._forget(session)
        session.interrupt()
        await self._settle()

    async def end_agent(self, agent: str) -> int:
        """Ends all of an agent's sessions and returns their number."""
        held = self._of(agent)
        for session in held:
            self._forget(session)
            session.interrupt()
        await self._settle()
        return len(held)

    def by_id(self, id: str) -> Session:
        for session in self:
            if session.id == id:
                return session
        raise NotFound(f"There is no session {id!r}.", remedy="`toolcrib sessions` lists them.")

    async def begin_legacy(
        self, agent: str, conversation: str | None, capabilities: Mapping[str, Any] = _NOTHING, *, client: str = ""
    ) -> tuple[str, Session]:
        """Returns a new legacy id and its session. Without a label, the id is also the conversation. `capabilities`:
        what the client can be asked; `client`: the name with which it introduced itself."""
        id = secrets.token_hex(16)
        label = conversation or id
        session = self._had(agent, label) or self._made(agent, label)
        self._by_legacy_id[id] = session
        session.legacy += (id,)
        if capabilities:
            self._capabilities[id] = capabilities
        if client:
            self._clients[id] = client
        declared = msgspec.json.encode(dict(capabilities)).decode()
        row = LegacySessionRow(
            id=id, agent=agent, conversation=label, started_at=time.time(), capabilities=declared, client=client
        )
        self._put(row)
        if len(session.legacy) > MOST_LEGACY_IDS:
            self._forget_id(session, session.legacy[0])
        await self._settle()
        session.kept = True
        return id, session

    def legacy(self, id: str, agent: str) -> Session | None:
        session = self._by_legacy_id.get(id)
        if session is None or session.agent != agent:
            return None
        if session.legacy[-1] != id:
            session.legacy = (*(one for one in session.legacy if one != id), id)
        return session

    def capabilities(self, id: str) -> Mapping[str, Any]:
        """What the client with this legacy id can be asked."""
        return self._capabilities.get(id, _NOTHING)

    def client(self, id: str) -> str:
        """The name with which the client with this legacy id introduced itself; empty if it gave none."""
        return self._clients.get(id, "")

    async def end_legacy(self, id: str) -> None:
        """Ends a client's id, and its session if the client gave it no label."""
        session = self._by_legacy_id.get(id)
        if session is None:
            return
        if session.conversation == id:
            self._forget(session)
        else:
            self._forget_id(session, id)
        await self._settle()

    def _had(self, agent: str, conversation: str) -> Session | None:
        held = self._by_agent.get(agent)
        return None if held is None else held.get(conversation)

    def _of(self, agent: str) -> tuple[Session, ...]:
        return tuple(self._by_agent.get(agent, {}).values())

    def _made(self, agent: str, conversation: str) -> Session:
        self._make_room(agent)
        now = time.time()
        session = Session(
            agent=agent,
            conversation=conversation,
            id=f"s_{secrets.token_hex(8)}",
            started_at=now,
            used_at=now,
            idle_since=self._loop.time(),
            mark=self._marker,
        )
        self._hold(session)
        self._put(session.row())
        return session

    def _hold(self, session: Session) -> None:
        self._by_agent.setdefault(session.agent, OrderedDict())[session.conversation] = session
        self._count += 1

    def _load(
        self,
        known: Collection[SessionRow],
        ids: Collection[LegacySessionRow],
        exists: Callable[[str], bool],
        now: float,
    ) -> None:
        clock = self._loop.time()
        oldest = now - self._idle
        for row in known:
            if not exists(row.agent) or row.used_at < oldest:
                self._put(SessionEnded(row.agent, row.conversation))
                continue
            # A clock that was set back must not keep a session forever.
            idle_since = clock - max(0.0, now - row.used_at)
            self._hold(Session.of(row, idle_since=idle_since, mark=self._marker))
        for one in ids:
            bound = self._had(one.agent, one.conversation)
            if bound is not None:
                self._by_legacy_id[one.id] = bound
                if declared := msgspec.json.decode(one.capabilities):
                    self._capabilities[one.id] = declared
                if one.client:
                    self._clients[one.id] = one.client
                bound.legacy += (one.id,)

    def _make_room(self, agent: str) -> None:
        """At a limit, ends the least recently used session, but never one with open requests."""
        held = self._by_agent.get(agent)
        if held is not None and len(held) >= MOST_OF_AN_AGENT:
            self._evict(_first_idle(held), f"{agent} has {MOST_OF_AN_AGENT}")
        if self._count >= MOST:
            firsts = filter(None, map(_first_idle, self._by_agent.values()))
            self._evict(min(firsts, key=lambda session: session.idle_since, default=None), f"There are {MOST}")

    def _evict(self, session: Session | None, full: str) -> None:
        if session is None:
            raise TooManySessions(
                f"{full} active sessions.", remedy="Wait for some to end, or end some with `toolcrib sessions end`."
            )
        self._forget(session)

    def _sweep(self) -> None:
        self._sweeping = self._loop.call_later(self._pause, self._sweep)
        oldest = self._loop.time() - self._idle
        for held in tuple(self._by_agent.values()):
            for session in tuple(held.values()):
                if session.idle_since > oldest:
                    break
                if session.open_requests is None:
                    self._forget(session)

    @property
    def _pause(self) -> float:
        return max(0.05, min(self._idle / 4, 600.0))

    def _agent_ended(self, event: Event) -> None:
        if not isinstance(event, AgentEnded):
            return
        for session in self._of(event.agent):
            # If only the token was replaced, the conversation may continue with the new one.
            if not event.returns:
                self._forget(session)
            session.interrupt()

    def _forget(self, session: Session) -> None:
        if session.ended:
            return
        session.ended = True
        held = self._by_agent[session.agent]
        del held[session.conversation]
        if not held:
            del self._by_agent[session.agent]
        self._count -= 1
        for id in session.legacy:
            del self._by_legacy_id[id]
            self._capabilities.pop(id, None)
            self._clients.pop(id, None)
        self._put(SessionEnded(session.agent, session.conversation))

    def _forget_id(self, session: Session, id: str) -> None:
        del self._by_legacy_id[id]
        self._capabilities.pop(id, None)
        self._clients.pop(id, None)
        session.legacy = tuple(one for one in session.legacy if one != id)
        self._put(LegacyIdEnded(id))

    def _mark(self, session: Session) -> None:
        if session.changed or session.ended:
            return
        session.changed = True
        self._changed.append(session)
        if self._writing is None:
            self._writing = self._loop.call_later(_WRITE_AFTER, self._write)

    def _write(self) -> None:
        if self._counter.is_needed:
            self._counting = self._loop.create_task(self._counter.run())
        batch, self._changed = self._changed[:_WRITTEN_AT_ONCE], self._changed[_WRITTEN_AT_ONCE:]
        self._take_down(batch)
        self._writing = self._loop.call_later(_WRITE_AFTER / 20, self._write) if self._changed else None

    def _take_down(self, batch: Collection[Session]) -> None:
        for session in batch:
            session.changed = False
            if not session.ended:
                self._put(session.row())

    def _put(self, item: SessionChange) -> None:
        self._commits.add(write_session_changes, item)

    async def _settle(self) -> None:
        """A failing store ends no conversation: `status` reports it, and the changes are written when it recovers."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._commits.flush()
        except (StoreError, TimeoutError):
            return


def _first_idle(held: Mapping[str, Session]) -> Session | None:
    return next((one for one in held.values() if one.open_requests is None), None)
