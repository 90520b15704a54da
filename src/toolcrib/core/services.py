"""The parts that all projects share: the agents, their sessions and approvals, the door and the audit log.

In: an open store, the bus, the paths of the user's files, the settings. Out: `Services`, connected with each other and
closed in the right order. `Crib` has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.audit.log import AuditLog
from toolcrib.audit.row import count_all_tokens
from toolcrib.calls import Door
from toolcrib.config.masking import Masker
from toolcrib.config.model import DaemonSettings, ListingMode, ListingSettings, ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.core.favorites import Favorites
from toolcrib.errors import StoreError
from toolcrib.events import AuditedChange, Bus
from toolcrib.identity.agent import naming_tokens
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.handles import Handles
from toolcrib.identity.kept_results import KeptResults
from toolcrib.identity.principal import CLIENT, OWNER
from toolcrib.identity.registry import AgentRegistry
from toolcrib.identity.sessions import SessionRegistry
from toolcrib.identity.tasks import TaskRegistry
from toolcrib.listing import wanted_mode
from toolcrib.servers.model import Offers
from toolcrib.servers.server import Server
from toolcrib.servers.supervisor import ASKS
from toolcrib.store import servers
from toolcrib.store.clock import ExpiryClock, watch
from toolcrib.store.clock import load as load_clock
from toolcrib.store.commits import GroupCommit
from toolcrib.store.database import Store

log = logging.getLogger(__name__)

_BUILTIN_AGENTS = frozenset({OWNER.name, CLIENT.name})


class LastKnownTools:
    """The tools that each server listed last, to show before it connects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, config: ServerConfig, root: Path | None) -> tuple[tuple[bytes, ...] | None, Offers]:
        """None if the server has never listed its tools. `root` is None if it is the same in all projects."""
        place = str(root) if root else None
        try:
            tools = await self._store.read(servers.load_tools, config.listing_identity, place)
            packed = await self._store.read(servers.load_offers, config.listing_identity, place)
            return tools, msgspec.msgpack.decode(packed, type=Offers) if packed else Offers()
        except StoreError as error:
            log.warning("could not read the last known tools: %s", error.text())
        except msgspec.MsgspecError:
            log.warning("the stored resources and prompts of a server cannot be read; they count as unknown")
        return None, Offers()

    async def keep(self, server: Server) -> None:
        if server.tools is None:
            return
        try:
            root = str(server.root) if server.config.depends_on_project else None
            asks = {ASKS} if server.asks else set()
            kept = msgspec.structs.replace(server.offers, capabilities=server.offers.capabilities | asks)
            offers = msgspec.msgpack.encode(kept)
            await self._store.write(servers.remember_tools, server.config.listing_identity, root, server.tools, offers)
        except StoreError as error:
            log.warning("could not store the tools of %s: %s", server.name, error.text())

    async def forget(self, config: ServerConfig) -> None:
        try:
            await self._store.write(servers.forget_tools, config.listing_identity)
        except StoreError as error:
            log.warning("could not delete the stored tools of %s: %s", config.name, error.text())


@dataclass(frozen=True, kw_only=True)
class Services:
    store: Store
    last_known: LastKnownTools
    audit: AuditLog
    agents: AgentRegistry
    sessions: SessionRegistry
    approvals: Approvals
    door: Door
    handles: Handles
    tasks: TaskRegistry
    results: KeptResults
    favorites: Favorites
    clock: ExpiryClock
    record: Callable[[AuditedChange], Awaitable[None]]
    """Writes a change into the audit log; durable on return."""

    def listing_for(
        self,
        agent: str,
        conversation: str,
        settings: ListingSettings,
        requested: ListingMode | None = None,
        *,
        continues: bool = False,
    ) -> str:
        """What the agent's next completion says in `X-Toolcrib-Listing`; empty if the settings are enough.

        `requested` overrides them. `continues`: the program continues a session of its own, so the completion is not
        the conversation's first, even if the agent of the first has ended.
        """
        own = self.agents.find(agent).permission.listing if self.agents.knows(agent) else None
        if wanted_mode(own, settings, client="", requested=requested) is not ListingMode.HANDSHAKE:
            return requested or ""
        return ListingMode.THIN if continues else self.sessions.next_listing(agent, conversation)


async def _record(audit: AuditLog, change: AuditedChange) -> None:
    agent = change.agent or OWNER.name
    audit.note(
        AuditEntry(kind=EntryKind.CHANGE, at=change.at, agent=agent, outcome=change.what, detail=dict(change.detail))
    )
    await audit.flush()


@contextlib.asynccontextmanager
async def open_services(
    store: Store, bus: Bus, paths: Paths, settings: DaemonSettings, mask: Masker
) -> AsyncIterator[Services]:
    async with contextlib.AsyncExitStack() as stack:
        clock = ExpiryClock()
        clock.resume(await store.read(load_clock))
        commits = GroupCommit(store)
        stack.push_async_callback(commits.close)
        audit = await AuditLog.open(
            store,
            commits,
            folder=paths.state_dir,
            mask=mask,
            values=settings.audit_values,
            keep_days=settings.audit_keep_days,
            keep_bytes=int(settings.audit_keep_mb * 1024 * 1024),
            clock=clock,
        )
        stack.push_async_callback(audit.close)
        record = partial(_record, audit)
        watching = asyncio.create_task(watch(clock, store, record))
        stack.callback(watching.cancel)

        agents = await AgentRegistry.open(store, bus=bus, note=record, folder=paths.agents, clock=clock)
        stack.push_async_callback(agents.close)
        sessions = await SessionRegistry.open(
            store,
            commits,
            bus=bus,
            exists=lambda name: name in _BUILTIN_AGENTS or agents.holds(name),
            idle=settings.session_idle_hours * 3600,
            count_tokens=count_all_tokens,
            clock=clock,
        )
        stack.push_async_callback(sessions.close)

        def holder(token: str) -> str:
            agent = agents.authenticate(token)
            return f"agent {agent.name}" if agent else ""

        approvals = Approvals(bus, mask=lambda text: naming_tokens(mask.named(text), holder))
        door = Door(bus, audit=audit, registry=agents, approvals=approvals, sessions=sessions)

        def since(name: str) -> float:
            return agents.find(name).created_at if agents.knows(name) else 0.0

        handles = Handles(paths.handles_key, since)
        results = KeptResults(paths.results, bus, handles)
        stack.push_async_callback(results.close)
        yield Services(
            store=store,
            last_known=LastKnownTools(store),
            audit=audit,
            agents=agents,
            sessions=sessions,
            approvals=approvals,
            door=door,
            handles=handles,
            tasks=TaskRegistry(bus, handles),
            results=results,
            favorites=await Favorites.load(store, bus),
            clock=clock,
            record=record,
        )
