"""The core: configuration, servers, catalogs, the door and the listings, wired together.

In: where a user's files are, the environment, the flags. Out: a `Project` per root, whose tools can be listed and
called. `Crib` only wires; the rooms below do the work. It starts no process of its own and listens nowhere.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from toolcrib.calls import Door
from toolcrib.config import Flags, Paths, load, trust_digest
from toolcrib.config.model import Config
from toolcrib.crib.project import Builtin, Project
from toolcrib.errors import StoreError, UnknownServer
from toolcrib.events import Bus, CatalogChanged
from toolcrib.listing import Listings
from toolcrib.servers.pool import Pool
from toolcrib.servers.server import Server
from toolcrib.store import Store

log = logging.getLogger(__name__)

LINGER = 300.0
"""Seconds that a project's servers stay after its last user left."""


class Crib:
    def __init__(
        self,
        *,
        paths: Paths,
        root: Path,
        environ: Mapping[str, str],
        flags: Flags = Flags(),  # noqa: B008 - frozen
        builtins: Mapping[str, Builtin] | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        """`only` names the servers to connect to; unless said, all that are configured."""
        self.paths = paths
        self.root = root
        self.bus = Bus()
        self.door = Door(self.bus)
        self._environ = environ
        self._flags = flags
        self._builtins = dict(builtins or {})
        self._only = only
        self._versions = itertools.count(1)
        self._projects: dict[Path, Project] = {}
        self._farewells: dict[Path, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._store: Store | None = None
        self._pool = Pool(bus=self.bus, on_tools=self._tools_changed, log_dir=paths.state_dir / "servers")
        self._listings: Listings | None = None

    async def __aenter__(self) -> Self:
        self._store = await Store.open(self.paths.database)
        await self.project(self.root)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in self._farewells.values():
            timer.cancel()
        await self._pool.close()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    @property
    def store(self) -> Store:
        if self._store is None:
            raise RuntimeError("a Crib is used inside its `async with`")
        return self._store

    @property
    def home(self) -> Project:
        """The project that callers without a root of their own work in."""
        return self._projects[self.root]

    @property
    def projects(self) -> tuple[Project, ...]:
        return tuple(self._projects.values())

    @property
    def listings(self) -> Listings:
        if self._listings is None:
            self._listings = Listings(self.home.config.settings.names)
        return self._listings

    async def read_config(self, root: Path) -> Config:
        # The digest covers the file's place as well as its bytes, so it alone is enough to know it by.
        trusted = {file.sha256 for file in await self.store.trusted_files()}
        return load(
            paths=self.paths,
            root=root,
            environ=self._environ,
            flags=self._flags,
            is_trusted=lambda _, digest: digest in trusted,
        )

    async def trust(self, file: Path) -> str:
        """Trusts the file as it is now. Returns the digest that the trust is bound to."""
        digest = trust_digest(file)
        await self.store.trust(_place(file), digest)
        return digest

    async def untrust(self, file: Path) -> None:
        await self.store.untrust(_place(file))

    async def project(self, root: Path) -> Project:
        """The project at this root: read and connected when first asked for."""
        found = self._projects.get(root)
        if found is None:
            found = Project(
                root,
                await self.read_config(root),
                builtins=self._builtins,
                next_version=lambda: next(self._versions),
            )
            self._projects[root] = found
            found.subscribe(lambda: self._announce(found))
            await self._connect(found)
        return found

    async def reload(self, project: Project) -> None:
        """Reads the project's configuration again and starts, stops or exchanges what changed, nothing else."""
        project.config = await self.read_config(project.root)
        await self._connect(project)

    async def _connect(self, project: Project) -> None:
        wanted = {
            name: config
            for name, config in project.config.servers.items()
            if config.enabled and (self._only is None or name in self._only)
        }
        for name, server in list(project.servers.items()):
            if name not in wanted or wanted[name].identity != server.config.identity:
                del project.servers[name]
                await self._pool.release(server)
        for name, config in wanted.items():
            if name not in project.servers:
                known = await self._known_tools(config.identity, project.root)
                project.servers[name] = self._pool.acquire(config, project.root, known_tools=known)
        project.changed()

    async def _known_tools(self, identity: str, root: Path) -> tuple[bytes, ...] | None:
        """What the server listed when it was last here. Without a readable store we only list later."""
        try:
            return await self.store.known_tools(identity, str(root))
        except StoreError as error:
            log.warning("the last known tools could not be read: %s", error.text())
            return None

    def _tools_changed(self, server: Server) -> None:
        for project in self._projects.values():
            if server in project.servers.values():
                project.changed()
                self._spawn(self._remember(server, project.root))

    async def _remember(self, server: Server, root: Path) -> None:
        if server.tools is None:
            return
        try:
            await self.store.remember_tools(server.config.identity, str(root), server.tools)
        except StoreError as error:
            log.warning("the tools of %s could not be kept: %s", server.name, error.text())

    def _announce(self, project: Project) -> None:
        self.bus.publish(CatalogChanged(root=str(project.root), version=project.catalog.version))

    def server(self, name: str) -> Server:
        """The named server of the home project."""
        found = self.home.servers.get(name)
        if found is None:
            known = ", ".join(sorted(self.home.servers)) or "none"
            raise UnknownServer(f"There is no server {name!r}.", remedy=f"Servers: {known}. `toolcrib add` adds one.")
        return found

    def enter(self, project: Project) -> None:
        """A connection begins to work in the project."""
        project.users += 1
        timer = self._farewells.pop(project.root, None)
        if timer is not None:
            timer.cancel()

    def leave(self, project: Project) -> None:
        """A connection ended; the project's servers go some time after its last one."""
        project.users -= 1
        if project.users <= 0 and project.root != self.root:
            later = asyncio.get_running_loop().call_later(LINGER, self._spawn_farewell, project)
            self._farewells[project.root] = later

    def _spawn_farewell(self, project: Project) -> None:
        self._farewells.pop(project.root, None)
        self._spawn(self._farewell(project))

    async def _farewell(self, project: Project) -> None:
        if project.users > 0:
            return
        self._projects.pop(project.root, None)
        for server in project.servers.values():
            await self._pool.release(server)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _place(file: Path) -> Path:
    """Where the file really is; the file itself may not be a link, and is not followed."""
    return file.absolute().parent.resolve() / file.name
