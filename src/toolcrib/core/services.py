"""The attendant: knows the agents, asks the owner, watches the door and keeps the book.

In: an open store, the bus, where the user's files are, the settings. Out: roster, sessions, approvals, book and door,
wired together and closed in the right order. `Crib` has one; the rooms below do the work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.calls import Door
from toolcrib.config import Paths
from toolcrib.config.masking import Masker
from toolcrib.config.model import DaemonSettings
from toolcrib.events import AuditedChange, Bus
from toolcrib.identity.agent import naming_tokens
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.principal import CLIENT, OWNER
from toolcrib.identity.registry import AgentRegistry
from toolcrib.identity.sessions import SessionRegistry
from toolcrib.store.clock import ExpiryClock, watch
from toolcrib.store.clock import load as load_clock
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store


async def write_change(book: AuditLog, change: AuditedChange) -> None:
    """Writes down that something was changed, by the owner where no agent is named; durable when it returns."""
    agent = change.agent or OWNER.name
    book.note(
        AuditEntry(kind=EntryKind.CHANGE, at=change.at, agent=agent, outcome=change.what, detail=dict(change.detail))
    )
    await book.flush()


_BUILTIN_AGENTS = frozenset({OWNER.name, CLIENT.name})


class Services:
    def __init__(
        self,
        *,
        commits: GroupCommit,
        book: AuditLog,
        roster: AgentRegistry,
        sessions: SessionRegistry,
        approvals: Approvals,
        door: Door,
        clock: ExpiryClock,
    ) -> None:
        self.commits = commits
        self.book = book
        self.roster = roster
        self.sessions = sessions
        self.approvals = approvals
        self.door = door
        self.clock = clock


@contextlib.asynccontextmanager
async def open_services(
    store: Store, bus: Bus, paths: Paths, settings: DaemonSettings, mask: Masker
) -> AsyncIterator[Services]:
    async with contextlib.AsyncExitStack() as stack:
        clock = ExpiryClock()
        clock.resume(await store.read(load_clock))
        commits = GroupCommit(store)
        stack.push_async_callback(commits.close)
        book = await AuditLog.open(
            store,
            commits,
            folder=paths.state_dir,
            mask=mask,
            values=settings.audit_values,
            keep_days=settings.audit_keep_days,
            keep_bytes=int(settings.audit_keep_mb * 1024 * 1024),
            clock=clock,
        )
        stack.push_async_callback(book.close)
        watching = asyncio.create_task(watch(clock, store, partial(write_change, book)))
        stack.callback(watching.cancel)

        roster = await AgentRegistry.open(
            store, bus=bus, note=partial(write_change, book), folder=paths.agents, clock=clock
        )
        stack.push_async_callback(roster.close)
        sessions = await SessionRegistry.open(
            store,
            commits,
            bus=bus,
            exists=lambda name: name in _BUILTIN_AGENTS or roster.holds(name),
            idle=settings.session_idle_hours * 3600,
            clock=clock,
        )
        stack.push_async_callback(sessions.close)

        def holder(token: str) -> str:
            agent = roster.authenticate(token)
            return f"agent {agent.name}" if agent else ""

        approvals = Approvals(bus, mask=lambda text: naming_tokens(mask.named(text), holder))
        door = Door(bus, audit=book, registry=roster, approvals=approvals, sessions=sessions)
        yield Services(
            commits=commits,
            book=book,
            roster=roster,
            sessions=sessions,
            approvals=approvals,
            door=door,
            clock=clock,
        )
