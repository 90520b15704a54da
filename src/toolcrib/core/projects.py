"""The projects that somebody works in, each with its servers, and the tools that servers listed last.

In: roots, as callers come and go; the configuration of each. Out: a `Project` per root, its servers started,
exchanged and let go as they are needed. `Crib` has one, and wires it to the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolcrib.config.model import Config
from toolcrib.core.project import BuiltinServer, Project
from toolcrib.errors import StoreError
from toolcrib.events import CatalogChanged, ConfigProblem
from toolcrib.servers.pool import ServerPool, instance_key
from toolcrib.servers.server import Server
from toolcrib.store import servers
from toolcrib.store.database import Store

if TYPE_CHECKING:
    from toolcrib.core.crib import Crib


log = logging.getLogger(__name__)


class LastKnownTools:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, identity: str, root: Path) -> tuple[bytes, ...] | None:
        """None: nobody has ever seen them."""
        try:
            return await self._store.read(servers.load_tools, identity, str(root))
        except StoreError as error:
            log.warning("the last known tools could not be read: %s", error.text())
            return None

    async def keep(self, server: Server, root: Path) -> None:
        if server.tools is None:
            return
        try:
            await self._store.write(servers.remember_tools, server.config.identity, str(root), server.tools)
        except StoreError as error:
            log.warning("the tools of %s could not be kept: %s", server.name, error.text())

    async def forget(self, server: Server) -> None:
        try:
            await self._store.write(servers.forget_tools, server.config.identity)
        except StoreError as error:
            log.warning("the tools of %s could not be forgotten: %s", server.name, error.text())


T = TypeVar("T")

PROJECT_LINGER = 300.0
"""Seconds that a project's servers stay after its last user left."""


class Projects:
    def __init__(self, crib: Crib, *, builtins: Mapping[str, BuiltinServer], only: frozenset[str] | None) -> None:
        self.pool = ServerPool(
            bus=crib.bus, on_tools=self._tools_changed, log_file=crib.paths.server_log, mask=crib.mask
        )
        self.by_root: dict[Path, Project] = {}
        self.registered: set[str] = set()
        """Servers that the program added to the home project; reading the configuration again leaves them alone."""
        self._crib = crib
        self._builtins = builtins
        self._only = only
        self._versions = itertools.count(1)
        self._told: set[str] = set()
        """Problems of the configuration that were told since all of it was last read."""
        self._farewells: dict[Path, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._wiring = asyncio.Lock()
        """Held while projects get and lose servers, so that two who come at once get one project, not two."""

    async def close(self) -> None:
        self._closed = True
        for timer in self._farewells.values():
            timer.cancel()
        await self.pool.close()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def at(self, root: Path) -> Project:
        project = self.by_root.get(root)
        if project is None:
            project = await self._to_its_end(self._opened(root))
        # It must not be let go before whoever asked begins to use it.
        project.touch()
        return project

    @contextlib.asynccontextmanager
    async def working_in(self, root: Path) -> AsyncIterator[Project]:
        project = await self.at(root)
        try:
            with project.in_use():
                yield project
        finally:
            self._plan_farewell(project)

    async def reload(self) -> None:
        await self._to_its_end(self._reloaded())

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
                trusted=self._crib.trust.trusted,
            )
            self.by_root[root] = project
            project.subscribe(lambda: self._announce(project))
            # Readers that come while the servers are acquired find the built-in tools.
            project.rebuild()
            # Whoever asked may be gone by now; then nobody would come to leave.
            self._plan_farewell(project)
            await self._connect(project)
            return project

    async def _reloaded(self) -> None:
        async with self._wiring:
            self._told.clear()
            for builtin in self._builtins.values():
                await builtin.refresh(self._crib)
            for project in tuple(self.by_root.values()):
                project.config = await self._read(project.root)
                await self._connect(project)

    async def _read(self, root: Path) -> Config:
        config = await self._crib.read_config(root)
        for problem in map(str, config.problems):
            if problem not in self._told:
                self._told.add(problem)
                self._crib.bus.publish(ConfigProblem(problem=problem))
        return config

    async def _to_its_end(self, work: Coroutine[None, None, T]) -> T:
        """Does the work whole, also if whoever waits for it goes away: half a project would serve nobody."""
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
                await self.pool.release(server)
                await self._forget(server)
        for name, config in wanted.items():
            if name not in project.servers:
                known = await self._crib.last_known.of(config.identity, project.root)
                project.servers[name] = server = self.pool.acquire(config, project.root, known_tools=known)
                if server.tools is not None:
                    await self._crib.trust.cover_first(config, server.tools)
        project.changed()

    def _tools_changed(self, server: Server) -> None:
        if server.tools is not None:
            self._spawn(self._crib.trust.cover_first(server.config, server.tools))
        for project in self.by_root.values():
            if server in project.servers.values():
                project.changed()
                self._spawn(self._crib.last_known.keep(server, project.root))

    async def _forget(self, server: Server) -> None:
        """A server that was removed takes its tools along, also those that were kept for a cold start."""
        identity = server.config.identity
        configs = [config for project in self.by_root.values() for config in project.config.servers.values()]
        if all(config.identity != identity for config in configs):
            await self._crib.last_known.forget(server)

    def _announce(self, project: Project) -> None:
        self._crib.bus.publish(CatalogChanged(root=str(project.root), version=project.catalog.version))

    def _plan_farewell(self, project: Project, delay: float | None = None) -> None:
        """Whoever uses the project then, or did so lately, has it put off."""
        if project.root != self._crib.root and not self._closed:
            if (earlier := self._farewells.pop(project.root, None)) is not None:
                earlier.cancel()
            later = asyncio.get_running_loop().call_later(
                PROJECT_LINGER if delay is None else delay, self._begin_farewell, project
            )
            self._farewells[project.root] = later

    def _begin_farewell(self, project: Project) -> None:
        self._farewells.pop(project.root, None)
        self._spawn(self.farewell(project))

    async def farewell(self, project: Project) -> None:
        """Lets the project go, unless somebody uses it, or did so lately."""
        async with self._wiring:
            rest = PROJECT_LINGER - (time.monotonic() - project.touched)
            if project.users > 0 or rest > 0:
                self._plan_farewell(project, None if project.users > 0 else rest)
                return
            self.by_root.pop(project.root, None)
            servers, project.servers = list(project.servers.values()), {}
            for server in servers:
                await self.pool.release(server)

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
