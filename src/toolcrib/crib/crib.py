"""The core: configuration, servers, catalogs, the door and the listings, wired together.

In: where a user's files are, the environment, the flags. Out: a `Project` per root, whose tools can be listed and
called. `Crib` only wires; the rooms below do the work. It starts no process of its own and listens nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw

from toolcrib.agents.approvals import Approvals
from toolcrib.agents.roster import Roster
from toolcrib.agents.sessions import Sessions
from toolcrib.book import Book
from toolcrib.calls import Door, Request
from toolcrib.catalog.tool import Tool
from toolcrib.config import Flags, Paths, load, store_place
from toolcrib.config.model import Config, ServerConfig
from toolcrib.crib.attendant import Attendant, attending, note
from toolcrib.crib.client import Client
from toolcrib.crib.project import Builtin, Project
from toolcrib.crib.results import Result, read_answer
from toolcrib.crib.secrets import KnownSecrets
from toolcrib.crib.trust import Trust, trusted_files
from toolcrib.errors import ServerAway, StoreError
from toolcrib.events import Bus, CatalogChanged, Change
from toolcrib.listing import Listings
from toolcrib.policy import OWNER
from toolcrib.servers.pool import Pool
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server
from toolcrib.store import Store, tools
from toolcrib.store.trust import believed_servers

log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_OPEN = "a Crib is used inside its `async with`"

LINGER = 300.0
"""Seconds that a project's servers stay after its last user left."""


class Crib:
    def __init__(
        self,
        *,
        paths: Paths | None = None,
        root: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Flags = Flags(),  # noqa: B008 - frozen
        builtins: Mapping[str, Builtin] | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        """Unless said: this user's files, the folder we are in, our own environment; all servers, not `only` some."""
        self.environ = os.environ if environ is None else environ
        self.paths = paths or Paths.of_user(self.environ)
        self.root = (root or Path.cwd()).resolve()
        self.bus = Bus()
        self.flags = flags
        self._builtins = dict(builtins or {})
        self._only = only
        self._versions = itertools.count(1)
        self._projects: dict[Path, Project] = {}
        self._registered: set[str] = set()
        """Servers that the program added to the home project; reading the configuration again leaves them alone."""
        self._farewells: dict[Path, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._wiring = asyncio.Lock()
        """Held while projects get and lose servers, so that two who come at once get one project, not two."""
        self._store: Store | None = None
        self._attendant: Attendant | None = None
        self._open = contextlib.AsyncExitStack()
        """What ends with us, in the order opposite to its beginning."""
        self._trust: Trust | None = None
        self._pool = Pool(bus=self.bus, on_tools=self._tools_changed, log_file=self.paths.server_log)
        self._listings: Listings | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._open_books()
            await self._open_builtins()
            await self.project(self.root)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _open_books(self) -> None:
        self._store = await Store.open(store_place(self.paths, self.environ, self.flags))
        self._open.push_async_callback(self._store.close)
        settings = (await self.read_config(self.root)).settings
        secrets = KnownSecrets(lambda: (project.config for project in self.projects))
        self._attendant = await self._open.enter_async_context(
            attending(self._store, self.bus, self.paths, settings, secrets)
        )
        self._trust = Trust(
            self._store,
            await self._store.read(believed_servers),
            note=self.note,
            on_belief=self._catalogs_changed,
        )

    async def _open_builtins(self) -> None:
        for builtin in self._builtins.values():
            await builtin.refresh(self)
            self._open.push_async_callback(builtin.close)

    async def note(self, change: Change) -> None:
        """Writes into the book what is no call; durable when it returns."""
        await note(self.book, change)

    def _catalogs_changed(self) -> None:
        for project in self.projects:
            project.changed()

    async def _close(self) -> None:
        self._closed = True
        for timer in self._farewells.values():
            timer.cancel()
        await self._pool.close()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        await self._open.aclose()

    @property
    def store(self) -> Store:
        if self._store is None:
            raise RuntimeError(_NOT_OPEN)
        return self._store

    @property
    def trust(self) -> Trust:
        if self._trust is None:
            raise RuntimeError(_NOT_OPEN)
        return self._trust

    @property
    def attendant(self) -> Attendant:
        if self._attendant is None:
            raise RuntimeError(_NOT_OPEN)
        return self._attendant

    @property
    def door(self) -> Door:
        return self.attendant.door

    @property
    def book(self) -> Book:
        return self.attendant.book

    @property
    def roster(self) -> Roster:
        return self.attendant.roster

    @property
    def sessions(self) -> Sessions:
        return self.attendant.sessions

    @property
    def approvals(self) -> Approvals:
        return self.attendant.approvals

    @property
    def reaper(self) -> Reaper:
        """Who cleans up after us if we are killed."""
        return self._pool.reaper

    @property
    def home(self) -> Project:
        """The project that callers without a root of their own work in."""
        return self._projects[self.root]

    @property
    def projects(self) -> tuple[Project, ...]:
        return tuple(self._projects.values())

    @property
    def listings(self) -> Listings:
        style = self.home.config.settings.names
        if self._listings is None or self._listings.style is not style:
            self._listings = Listings(style)
        return self._listings

    async def read_config(self, root: Path) -> Config:
        trusted = await trusted_files(self.store)
        return load(
            paths=self.paths,
            root=root,
            environ=self.environ,
            flags=self.flags,
            is_trusted=lambda _, digest: digest in trusted,
        )

    async def project(self, root: Path) -> Project:
        """The project at this root: read and connected when first asked for."""
        found = self._projects.get(root)
        return found if found is not None else await self._to_its_end(self._opened(root))

    @contextlib.asynccontextmanager
    async def working_in(self, root: Path) -> AsyncIterator[Project]:
        """The project, for as long as somebody works in it; its servers go some time after the last one left."""
        project = await self.project(root)
        project.users += 1
        try:
            yield project
        finally:
            project.users -= 1
            self._plan_farewell(project)

    async def _opened(self, root: Path) -> Project:
        async with self._wiring:
            found = self._projects.get(root)
            if found is not None:
                return found
            config = await self.read_config(root)
            project = Project(
                root,
                config,
                builtins=self._builtins,
                next_version=lambda: next(self._versions),
                believes=self.trust.believes,
            )
            self._projects[root] = project
            project.subscribe(lambda: self._announce(project))
            # Whoever asked may be gone by now; then nobody would come to leave.
            self._plan_farewell(project)
            await self._connect(project)
            return project

    async def reload(self) -> None:
        """Reads the configuration of every project again and starts, stops or exchanges what changed, nothing else."""
        await self._to_its_end(self._reloaded())

    async def _reloaded(self) -> None:
        async with self._wiring:
            for builtin in self._builtins.values():
                await builtin.refresh(self)
            for project in self.projects:
                project.config = await self.read_config(project.root)
                await self._connect(project)

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
            if name in self._registered:
                continue
            if name not in wanted or wanted[name].identity != server.config.identity:
                del project.servers[name]
                await self._pool.release(server)
                await self._forget(server)
            else:
                # Time limits may have changed; they need no new connection.
                server.config = wanted[name]
        for name, config in wanted.items():
            if name not in project.servers:
                known = await self._known_tools(config.identity, project.root)
                project.servers[name] = self._pool.acquire(config, project.root, known_tools=known)
        project.changed()

    async def _known_tools(self, identity: str, root: Path) -> tuple[bytes, ...] | None:
        """What the server listed when it was last here. Without a readable store we only list later."""
        try:
            return await self.store.read(tools.known, identity, str(root))
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
            await self.store.write(tools.remember, server.config.identity, str(root), server.tools)
        except StoreError as error:
            log.warning("the tools of %s could not be kept: %s", server.name, error.text())

    async def _forget(self, server: Server) -> None:
        """A server that was removed takes its tools along, also those that were kept for a cold start."""
        identity = server.config.identity
        if any(config.identity == identity for project in self.projects for config in project.config.servers.values()):
            return
        try:
            await self.store.write(tools.forget, identity)
        except StoreError as error:
            log.warning("the tools of %s could not be forgotten: %s", server.name, error.text())

    def _announce(self, project: Project) -> None:
        self.bus.publish(CatalogChanged(root=str(project.root), version=project.catalog.version))

    async def discover(self, config: ServerConfig) -> tuple[Tool, ...]:
        """Connects, looks at what the server offers and leaves again: nothing is registered."""
        async with Client(config, root=self.root) as client:
            return client.list_tools()

    async def register(self, config: ServerConfig, *, only: Iterable[str] | None = None) -> tuple[Tool, ...]:
        """Connects and adds the server's tools to the home project: all of them, or `only` those named.

        Raises `ServerAway` if it cannot be reached; then nothing is registered.
        """
        project = self.home
        await self.unregister(config.name)
        server = self._pool.acquire(config, project.root)
        await server.settled()
        if server.tools is None:
            reason = server.status.last_error or "it did not answer in time"
            await self._pool.release(server)
            raise ServerAway(f"Server '{config.name}' could not be reached: {reason}")
        if only is not None:
            project.chosen[config.name] = frozenset(only)
        project.servers[config.name] = server
        self._registered.add(config.name)
        project.changed()
        return project.catalog.of_server(config.name)

    async def unregister(self, name: str) -> None:
        """The server's tools go with it."""
        server = self.home.servers.pop(name, None)
        self.home.chosen.pop(name, None)
        self._registered.discard(name)
        if server is not None:
            await self._pool.release(server)
            self.home.changed()

    def tools(self) -> tuple[Tool, ...]:
        """What the home project offers now, each with its definition and its server."""
        return self.home.catalog.tools

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Calls a tool by any of its names. A tool's own failure is a result; ours and the server's are errors."""
        params = {"arguments": Raw(msgspec.json.encode(dict(arguments or {})))}
        outcome = await self.door.call(self.home, OWNER, Request(tool=name, params=params, timeout=timeout))
        return read_answer(outcome.answer)

    def _plan_farewell(self, project: Project, delay: float | None = None) -> None:
        """Whoever uses the project then, or did so lately, has it put off."""
        if project.root != self.root and not self._closed:
            if (earlier := self._farewells.pop(project.root, None)) is not None:
                earlier.cancel()
            later = asyncio.get_running_loop().call_later(
                LINGER if delay is None else delay, self._begin_farewell, project
            )
            self._farewells[project.root] = later

    def _begin_farewell(self, project: Project) -> None:
        self._farewells.pop(project.root, None)
        self._spawn(self._farewell(project))

    async def _farewell(self, project: Project) -> None:
        async with self._wiring:
            rest = LINGER - (asyncio.get_running_loop().time() - project.touched)
            if project.users > 0 or rest > 0:
                self._plan_farewell(project, None if project.users > 0 else rest)
                return
            self._projects.pop(project.root, None)
            servers, project.servers = list(project.servers.values()), {}
            for server in servers:
                await self._pool.release(server)

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
