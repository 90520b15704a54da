"""The projects in use, each with its configuration and its servers.

In: the roots that callers work in; the configuration files. Out: a `Project` per root, whose servers are started,
replaced and released as needed. `Crib` has one and connects it to the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolcrib.catalog.tool import OfferKind
from toolcrib.config.from_code import OwnSource, with_servers_of
from toolcrib.config.layers import LastGood, files_read, load
from toolcrib.config.masking import secrets_of
from toolcrib.config.model import Config, DaemonSettings, NameStyle, ShareMode
from toolcrib.core.agent_servers import AgentServers
from toolcrib.core.config_watch import Stamp, stamp_of
from toolcrib.core.project import BuiltinServer, Project
from toolcrib.core.provider import not_open
from toolcrib.core.tool_search import ToolSearch, load_embeddings
from toolcrib.core.trust import trusted_files
from toolcrib.credentials.vault import CredentialKind
from toolcrib.events import (
    AgentEnded,
    AuditedChange,
    CatalogChanged,
    ConfigProblem,
    ConfigReloaded,
    ListingSettingsChanged,
)
from toolcrib.identity.principal import OWNER
from toolcrib.listing import ListingCache
from toolcrib.servers.pool import ServerPool, instance_key
from toolcrib.servers.server import Server

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib


T = TypeVar("T")


_AT_START = frozenset({"port", "store", "audit_values", "audit_keep_days", "audit_keep_mb", "session_idle_hours"})
"""Settings that are read when the daemon starts; a change needs a restart."""


def _different(before: DaemonSettings, after: DaemonSettings) -> tuple[str, ...]:
    names = (field.name for field in dataclasses.fields(DaemonSettings))
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


class Projects:
    """Iterates over the projects; `root in projects` is true if that project is open."""

    def __init__(
        self,
        crib: Crib,
        *,
        builtins: Mapping[str, BuiltinServer],
        only: frozenset[str] | None = None,
        source: OwnSource | None = None,
    ) -> None:
        here = crib.environment
        self.pool = ServerPool(
            bus=crib.bus,
            on_tools=self._tools_changed,
            on_notice=self._heard,
            log_file=here.paths.server_log,
            mask=here.mask,
            install_locks=here.paths.install_locks,
            vault=here.vault,
        )
        self.root = here.root
        """The home project's root."""
        self.by_root: dict[Path, Project] = {}
        self.registered: set[str] = set()
        """Servers that the program added to the home project; a reload does not touch them."""
        self._crib = crib
        self._builtins = builtins
        self._only = only
        self._source = source
        self._last_good = LastGood()
        self._loading = threading.Lock()
        """Held while `_last_good` is in use: a cancelled caller's thread runs to its end."""
        self.seconds_loading = 0.0
        """The processor time that loading configurations has taken so far."""
        self._stamps: dict[Path, Stamp] = {}
        """By project: its configuration files, as they were when they were read."""
        self.last_change: ConfigReloaded | None = None
        """The last reload that changed something."""
        self._first_settings: DaemonSettings | None = None
        """The settings of the start."""
        self.editing = asyncio.Lock()
        """Held by what changes a configuration file until the change is in effect, so that it is not taken for a hand
        edit."""
        self._versions = itertools.count(1)
        self._listings: dict[NameStyle, ListingCache] = {}
        self._embeddings = functools.cache(partial(load_embeddings, here.paths.search_cache))
        """Loaded once, for all projects."""
        self._reported: set[str] = set()
        """Configuration problems published since the last reload."""
        self._releases: dict[Path, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._wiring = asyncio.Lock()
        """Held while projects gain and lose servers, so that two simultaneous callers get one project, not two."""
        self._unsubscribe = crib.bus.subscribe(self._agent_ended, AgentEnded)
        crib.bus.subscribe(lambda _: self.changed(), ListingSettingsChanged)

    async def close(self) -> None:
        self._closed = True
        self._unsubscribe()
        for timer in self._releases.values():
            timer.cancel()
        await asyncio.gather(*(project.search.close() for project in self))
        await self.pool.close()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    def __iter__(self) -> Iterator[Project]:
        return iter(tuple(self.by_root.values()))

    def __len__(self) -> int:
        return len(self.by_root)

    def __contains__(self, root: Path) -> bool:
        return root in self.by_root

    @property
    def home(self) -> Project:
        """The project of callers that give no root."""
        home = self.by_root.get(self.root)
        if home is None:
            raise not_open("Crib")
        return home

    def changed(self) -> None:
        """Rebuilds every catalog."""
        for project in self:
            project.changed()

    async def at(self, root: Path) -> Project:
        """The project at this root, loaded and connected on first use."""
        project = self.by_root.get(root)
        if project is None:
            project = await self._to_its_end(self._opened(root))
        # It must not be released before the caller starts to use it.
        project.touch()
        return project

    @contextlib.asynccontextmanager
    async def working_in(self, root: Path) -> AsyncIterator[Project]:
        """The project, kept open while entered; its servers stop soon after its last client has left."""
        project = await self.at(root)
        try:
            with project.in_use():
                yield project
        finally:
            self._plan_release(project)

    async def reload(self, *, by: str = OWNER.name, besides: str = "") -> ConfigReloaded:
        """Reloads the configuration of every project and starts, stops or replaces only the changed servers. A server
        that is stopped finishes its calls first.

        The audit log records added, removed and changed servers, except `besides`, which it already has.
        """
        before, settings = self._configured(), self.home.config.settings
        await self._to_its_end(self._reloaded())
        after, now = self._configured(), self.home.config.settings
        found = {
            "added": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": {name for name in after.keys() & before.keys() if after[name] != before[name]},
        }
        if detail := {what: sorted(names - {besides}) for what, names in found.items() if names - {besides}}:
            await self._crib.services.record(AuditedChange(what="servers changed in files", agent=by, detail=detail))
        event = ConfigReloaded(
            added=tuple(sorted(found["added"])),
            removed=tuple(sorted(found["removed"])),
            changed=tuple(sorted(found["changed"])),
            settings=tuple(name for name in _different(settings, now) if name not in _AT_START),
            restart=tuple(name for name in _different(self._first_settings or now, now) if name in _AT_START),
        )
        if event.changes:
            self.last_change = event
        self._crib.bus.publish(event)
        return event

    def _configured(self) -> dict[str, frozenset[tuple[object, ...]]]:
        """By server name, over all projects: what defines it, and what of it is enabled."""
        found: dict[str, set[tuple[object, ...]]] = {}
        for one in (server for project in self for server in project.config.servers.values()):
            what = one.identity, one.limits, one.enabled, one.disabled_tools, tuple(sorted(one.cache.items()))
            found.setdefault(one.name, set()).add(what)
        return {name: frozenset(what) for name, what in found.items()}

    @property
    def files(self) -> frozenset[Path]:
        """Every path whose change matters to an open project."""
        return frozenset(
            file
            for project in self
            for file in (
                *files_read(self._crib.environment.paths, project.root),
                *(file for builtin in self._builtins.values() for file in builtin.files(project)),
            )
        )

    async def reload_edited(self) -> None:
        """Reloads what changed on the disk since it was read: the configuration, or files of a built-in server."""
        async with self.editing:
            if await asyncio.to_thread(self.is_edited):
                await self.reload()
        for project in await asyncio.to_thread(self.outdated):
            project.changed()

    def outdated(self) -> list[Project]:
        """Projects in which a built-in server's files have changed. Reads the disk."""
        return [one for one in self if any(builtin.outdated(one) for builtin in self._builtins.values())]

    def is_edited(self) -> bool:
        """Whether a configuration file or a secret has changed since it was read. Reads the disk."""
        return any(self._stamps.get(project.root) != self._stamp(project.root) for project in self)

    def _stamp(self, root: Path) -> Stamp:
        here = self._crib.environment
        return stamp_of((*files_read(here.paths, root), here.vault.folder(CredentialKind.SECRET)))

    async def read_config(self, root: Path) -> Config:
        """Loads the configuration from its files, without starting or stopping anything."""
        trusted = await trusted_files(self._crib.services.store)
        # Anybody can write a file that takes long to parse into a project's folder.
        return self._learned(await asyncio.to_thread(self._load, root, trusted))

    def load_config(self, root: Path, trusted: frozenset[str]) -> Config:
        """The same, given the digests of the trusted files. Blocks the event loop."""
        return self._learned(self._load(root, trusted))

    def _load(self, root: Path, trusted: frozenset[str]) -> Config:
        here = self._crib.environment
        secrets = here.secrets()
        with self._loading:
            begun = time.thread_time()
            try:
                config = load(
                    paths=here.paths,
                    root=root,
                    environ=here.variables,
                    secrets=secrets,
                    flags=here.flags,
                    is_trusted=lambda _, digest: digest in trusted,
                    last_good=self._last_good,
                )
                if self._source is None:
                    return config
                return with_servers_of(self._source, config, environ=here.variables, secrets=secrets)
            finally:
                self.seconds_loading += time.thread_time() - begun

    def _learned(self, config: Config) -> Config:
        """Not in the thread: two that learn at once would lose secrets."""
        self._crib.environment.mask.learn(secrets_of(config))
        return config

    async def _opened(self, root: Path) -> Project:
        async with self._wiring:
            found = self.by_root.get(root)
            if found is not None:
                return found
            config = await self._read(root)
            project = Project(
                root,
                config,
                builtins=self._builtins,
                next_version=lambda: next(self._versions),
                listings_in=lambda style: self._listings.setdefault(style, ListingCache(style)),
                search=ToolSearch(self._embeddings),
                trust=self._crib.trust,
                favorites=self._crib.services.favorites,
                agent_servers=AgentServers(self.pool, root),
            )
            self.by_root[root] = project
            project.subscribe(lambda changes: self._announce(project) if OfferKind.TOOL in changes else None)
            # Readers that arrive while the servers are acquired get the built-in tools.
            project.rebuild()
            if root != self.root:
                # The caller may be gone by now and would never release it.
                self._plan_release(project)
            await self._connect(project)
            # Opening may take long, and a waiting release must not come before the caller.
            project.touch()
            return project

    async def _reloaded(self) -> None:
        async with self._wiring:
            self._reported.clear()
            for builtin in self._builtins.values():
                await builtin.refresh(self._crib)
            for project in self:
                project.config = await self._read(project.root)
                await self._connect(project)

    async def _read(self, root: Path) -> Config:
        # Taken first: an edit during the reading is noticed as a later one.
        stamp = await asyncio.to_thread(self._stamp, root)
        config = await self.read_config(root)
        self._stamps[root] = stamp
        if root == self.root and self._first_settings is None:
            self._first_settings = config.settings
        for problem in map(str, config.problems):
            if problem not in self._reported:
                self._reported.add(problem)
                self._crib.bus.publish(ConfigProblem(problem=problem))
        return config

    async def _to_its_end(self, work: Coroutine[None, None, T]) -> T:
        """Completes the work even if the caller is cancelled, because a half-open project is useless."""
        return await asyncio.shield(self._spawn(work))

    async def _connect(self, project: Project) -> None:
        wanted = {
            name: config
            for name, config in project.config.servers.items()
            if config.enabled and (self._only is None or name in self._only)
        }
        for name, server in list(project.servers.items()):
            if name in self.registered:
                continue
            if name not in wanted or instance_key(wanted[name], project.root) != instance_key(
                server.config, project.root
            ):
                del project.servers[name]
                await self.pool.retire(server)
                await project.agent_servers.retire(name)
                await self._forget(server)
        for name, config in wanted.items():
            if name not in project.servers:
                root = project.root if config.depends_on_project else None
                known, offers = await self._crib.services.last_known.of(config, root)
                project.servers[name] = server = self.pool.acquire(
                    config, project.root, known_tools=known, known_offers=offers
                )
                if server.tools is not None and not self._crib.trust.is_pinned(config):
                    await self._crib.trust.take_up(config, server.root, server.tools)
        project.changed()

    def _tools_changed(self, server: Server) -> None:
        trust, tools = self._crib.trust, server.tools
        users = [project for project in self if project.take_tools(server)]
        if not users:
            # It ends, or is an agent's own instance that is not connected.
            return
        hold = any(project.holds(server) for project in users)
        if tools is not None and trust.must_wait(server.config, server.root, tools, hold=hold):
            self._spawn(self._prepared(server, tools))
            return
        if tools is not None:
            self._spawn(trust.take_up(server.config, server.root, tools))
        for project in users:
            project.changed()
        self._spawn(self._crib.services.last_known.keep(server))
        if server.config.share is ShareMode.AGENT and not server.was_used:
            # It was started only to be listed.
            self._rest_if_on_demand(server)

    def _heard(self, server: Server, method: str, params: Mapping[str, Any], agent: str | None) -> None:
        for project in self:
            project.heard(server, method, params, agent)

    async def _prepared(self, server: Server, tools: tuple[bytes, ...]) -> None:
        """Reads many new definitions before anything shows them."""
        await self._crib.trust.prepare(server.config, server.root, tools)
        self._tools_changed(server)

    def _rest_if_on_demand(self, server: Server) -> None:
        if server.config.starts_on_demand:
            self._spawn(server.rest())

    def _agent_ended(self, event: Any) -> None:
        if event.returns:
            return
        for project in self:
            project.callers.pop(event.agent, None)
            self._spawn(project.agent_servers.release(event.agent))
            if project.root in self._releases:
                self._plan_release(project)

    def _forget_lists(self, server: Server) -> None:
        """Frees what was read of the server's lists, unless an open project uses it."""
        key = server.config.identity, server.root
        if all((one.config.identity, one.root) != key for project in self for one in project.servers.values()):
            self._crib.trust.forget(server.config, server.root)

    async def _forget(self, server: Server) -> None:
        """Deletes the last known tools of a changed entry. One that is gone may come back with its file."""
        self._forget_lists(server)
        named = [one for project in self for name, one in project.config.servers.items() if name == server.name]
        if named and all(config.listing_identity != server.config.listing_identity for config in named):
            await self._crib.services.last_known.forget(server.config)

    def _announce(self, project: Project) -> None:
        self._crib.bus.publish(CatalogChanged(root=str(project.root), version=project.catalog.version))

    def _plan_release(self, project: Project) -> None:
        """Schedules the release, which is postponed while the project is needed."""
        if not self._closed:
            if (earlier := self._releases.pop(project.root, None)) is not None:
                earlier.cancel()
            loop = asyncio.get_running_loop()
            self._releases[project.root] = loop.call_later(project.seconds_needed(), self._begin_release, project)

    def _begin_release(self, project: Project) -> None:
        self._releases.pop(project.root, None)
        self._spawn(self.release_unused(project))

    async def release_unused(self, project: Project) -> None:
        """Stops the servers that only this project uses, unless it is needed. Closes it, unless it is the home
        project."""
        async with self._wiring:
            if project.seconds_needed():
                self._plan_release(project)
                return
            servers = project.servers.values()
            if project.root != self.root:
                self.by_root.pop(project.root, None)
                self._stamps.pop(project.root, None)
                project.servers = {}
        # Ending processes takes time, and other projects must not wait for it.
        leaving = () if project.root == self.root else map(self.pool.release, servers)
        searches = () if project.root == self.root else (project.search.close(),)
        await asyncio.gather(project.agent_servers.release(), *searches, *leaving)
        for server in servers:
            self._forget_lists(server)
            if not any(server in other.servers.values() and other.seconds_needed() for other in self):
                self._rest_if_on_demand(server)

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
