"""The core: configuration, servers, catalogs, the door and the listings, wired together.

In: where a user's files are, the environment, the flags. Out: a `Project` per root, whose tools can be listed and
called, and a `ToolProvider` for the home project. `Crib` only wires; the rooms below do the work. It starts no process
of its own and listens nowhere.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from toolcrib.audit.log import AuditLog
from toolcrib.calls import Door
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config import Flags, Paths, load, store_location
from toolcrib.config.from_code import DeclaredServer, OwnSource, check_source, config_of, with_servers_of
from toolcrib.config.masking import Masker, secrets_of
from toolcrib.config.model import Config, NameStyle, Problem, ServerConfig
from toolcrib.config.paths import empty_folder, project_of
from toolcrib.core.connection import Connection
from toolcrib.core.project import BuiltinServer, Project
from toolcrib.core.projects import LastKnownTools, Projects
from toolcrib.core.provider import AsyncResource, ToolProvider, call_request
from toolcrib.core.results import Result, read_answer
from toolcrib.core.server_registry import ServerRegistry
from toolcrib.core.services import Services, open_services, write_change
from toolcrib.core.trust import Trust, trusted_files
from toolcrib.errors import UsageError
from toolcrib.events import AuditedChange, Bus
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.identity.registry import AgentRegistry
from toolcrib.identity.sessions import SessionRegistry
from toolcrib.listing import Listings
from toolcrib.servers.model import ServerState, ServerStatus
from toolcrib.servers.reaper import Reaper
from toolcrib.store.database import Store
from toolcrib.store.lock import StoreHolder
from toolcrib.store.servers import all_trusted_servers as trusted_servers


class Opening(enum.Enum):
    """When `async with` goes on."""

    AT_ONCE = "at once"
    INTRODUCED = "introduced"
    """When each server whose tools nobody has ever seen is there, or has failed."""


class Crib(AsyncResource, ToolProvider):
    """The tools of your configuration, for a program of your own: `async with Crib.from_config() as crib`.

    `crib.tools()` are for a model, `await crib.call("read_file", {…})` calls one, and your book says so. `register`
    adds a server for as long as the crib is open. `Crib.connect()` takes the tools of a running daemon instead.
    """

    def __init__(
        self,
        *,
        paths: Paths | None = None,
        root: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Flags = Flags(),  # noqa: B008 - frozen
        builtins: Mapping[str, BuiltinServer] | None = None,
        only: frozenset[str] | None = None,
        source: OwnSource | None = None,
        opening: Opening = Opening.AT_ONCE,
        is_daemon: bool = False,
        mask: Masker | None = None,
    ) -> None:
        """Unless said: this user's files, the folder we are in, our own environment; all servers, not `only` some."""
        self.environ = os.environ if environ is None else environ
        self.paths = paths or Paths.of_user(self.environ)
        self.root = (root or Path.cwd()).resolve()
        self.bus = Bus()
        self.mask = mask or Masker()
        """Knows the secrets of every configuration that was read."""
        self.flags = flags
        self._builtins = dict(builtins or {})
        self._source = source
        self._opening = opening
        self._holder = StoreHolder(home=str(self.paths.config_dir), daemon=is_daemon)
        self._store: Store | None = None
        self._attendant: Services | None = None
        self._held = contextlib.AsyncExitStack()
        """What ends with us, in the order opposite to its beginning."""
        self._trust: Trust | None = None
        self._last_known: LastKnownTools | None = None
        self._projects = Projects(self, builtins=self._builtins, only=only)
        self._registering = ServerRegistry(self._projects, lambda: self.home)
        self._listings: dict[NameStyle, Listings] = {}
        self._last_good: dict[Path, bytes] = {}
        """The user's file as it could last be read: a mistake in it takes nothing away that was in force."""

    @classmethod
    def from_config(
        cls,
        source: OwnSource | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """For a program of one's own, without a daemon: the servers of the user's configuration and of the project,
        where its files are trusted; or only those of a `source`, a file or a mapping as a file would have it.

        Inside `async with` all servers are there, or have failed, or are known from last time and come by themselves.
        What is called is written into the user's book.
        """
        check_source(source)
        return cls(
            root=project_of(Path.cwd()) if root is None else Path(root),
            environ=environ,
            source=source,
            opening=Opening.INTRODUCED,
        )

    @staticmethod
    def connect(
        *,
        agent: str | None = None,
        token: str | None = None,
        profile: str | None = None,
        workdir: str | os.PathLike[str] | None = None,
        paths: Paths | None = None,
        environ: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> Connection:
        """A running daemon's tools, under its permissions and in its book: see `Connection`."""
        return Connection(
            agent=agent,
            token=token,
            profile=profile,
            workdir=workdir,
            paths=paths,
            environ=environ,
            parent=parent,
        )

    def _refuse_again(self) -> None:
        if self._store is not None:
            raise UsageError("A Crib is used once.", remedy="Make another.")

    async def _open(self) -> None:
        await self._open_books()
        await self._open_builtins()
        home = await self.project(self.root)
        if self._opening is Opening.INTRODUCED:
            await home.introduced(None)

    async def _open_books(self) -> None:
        empty_folder(self.paths.start_folder)
        self._store = await Store.open(store_location(self.paths, self.environ, self.flags), holder=self._holder)
        self._held.push_async_callback(self._store.close)
        self._last_known = LastKnownTools(self._store)
        settings = (await self.read_config(self.root)).settings
        self._attendant = await self._held.enter_async_context(
            open_services(self._store, self.bus, self.paths, settings, self.mask)
        )
        self._trust = Trust(
            self._store,
            await self._store.read(trusted_servers),
            note=self.note,
            on_change=self._catalogs_changed,
        )

    async def _open_builtins(self) -> None:
        for builtin in self._builtins.values():
            await builtin.refresh(self)
            self._held.push_async_callback(builtin.close)

    async def note(self, change: AuditedChange) -> None:
        """Writes into the book what is no call; durable when it returns."""
        await write_change(self.book, change)

    def _catalogs_changed(self) -> None:
        for project in self.projects:
            project.changed()

    async def _close(self) -> None:
        await self._projects.close()
        await self._held.aclose()

    @property
    def store(self) -> Store:
        if self._store is None:
            raise self._not_open()
        return self._store

    @property
    def last_known(self) -> LastKnownTools:
        if self._last_known is None:
            raise self._not_open()
        return self._last_known

    @property
    def trust(self) -> Trust:
        if self._trust is None:
            raise self._not_open()
        return self._trust

    @property
    def attendant(self) -> Services:
        if self._attendant is None:
            raise self._not_open()
        return self._attendant

    @property
    def door(self) -> Door:
        return self.attendant.door

    @property
    def book(self) -> AuditLog:
        return self.attendant.book

    @property
    def roster(self) -> AgentRegistry:
        return self.attendant.roster

    @property
    def sessions(self) -> SessionRegistry:
        return self.attendant.sessions

    @property
    def approvals(self) -> Approvals:
        return self.attendant.approvals

    @property
    def reaper(self) -> Reaper:
        """Who cleans up after us if we are killed."""
        return self._projects.pool.reaper

    @property
    def home(self) -> Project:
        """The project that callers without a root of their own work in."""
        if self.root not in self._projects.by_root:
            raise self._not_open()
        return self._projects.by_root[self.root]

    @property
    def projects(self) -> tuple[Project, ...]:
        return tuple(self._projects.by_root.values())

    def listings(self, project: Project) -> Listings:
        """In the style of names that the project has."""
        style = project.config.settings.names
        return self._listings.setdefault(style, Listings(style))

    async def read_config(self, root: Path) -> Config:
        """The configuration as its files have it now; nothing is started or stopped."""
        trusted = await trusted_files(self.store)
        config = load(
            paths=self.paths,
            root=root,
            environ=self.environ,
            flags=self.flags,
            is_trusted=lambda _, digest: digest in trusted,
            last_good=self._last_good,
        )
        if self._source is not None:
            config = with_servers_of(self._source, config, environ=self.environ)
        self.mask.learn(secrets_of(config))
        return config

    async def project(self, root: Path) -> Project:
        """The project at this root: read and connected when first asked for."""
        return await self._projects.at(root)

    @contextlib.asynccontextmanager
    async def working_in(self, root: Path) -> AsyncIterator[Project]:
        """The project, for as long as somebody works in it; its servers go some time after the last one left."""
        async with self._projects.working_in(root) as project:
            yield project

    async def reload(self, *, by: str = OWNER.name, besides: str = "") -> None:
        """Reads the configuration of every project again and starts, stops or exchanges what changed, nothing else.

        The book says which servers came, went or changed, `besides` the one that it speaks of already.
        """
        before = self._configured()
        await self._projects.reload()
        after = self._configured()
        found = {
            "added": sorted(after.keys() - before.keys() - {besides}),
            "removed": sorted(before.keys() - after.keys() - {besides}),
            "changed": sorted(name for name in after.keys() & before.keys() - {besides} if after[name] != before[name]),
        }
        if detail := {what: names for what, names in found.items() if names}:
            await self.note(AuditedChange(what="servers changed in files", agent=by, detail=detail))

    def _configured(self) -> dict[str, frozenset[tuple[str, bool]]]:
        """Of all projects, by name: what a server is, and whether it is on."""
        servers = [server for project in self.projects for server in project.config.servers.values()]
        return {
            name: frozenset((one.identity, one.enabled) for one in servers if one.name == name)
            for name in {one.name for one in servers}
        }

    async def discover(self, server: DeclaredServer | ServerConfig) -> tuple[Tool, ...]:
        """Connects, looks at what the server offers and leaves again: nothing is registered."""
        return await self._registering.discover(config_of(server), self.root)

    async def register(
        self, server: DeclaredServer | ServerConfig, *, only: Iterable[str] | None = None
    ) -> tuple[Tool, ...]:
        """Connects and adds the server's tools: all of them, or `only` those named. One of its name makes way for it.

        Raises `ServerAway` if it cannot be reached, `UnknownTool` if it has no such tool; then nothing is changed.
        """
        return await self._registering.register(config_of(server), only)

    async def register_tool(self, server: DeclaredServer | ServerConfig, tool: str) -> Tool:
        """Adds one tool, by its server's own name of it, to those that were registered of the server before."""
        return await self._registering.register_tool(config_of(server), tool)

    async def unregister(self, name: str) -> None:
        """The server's tools go with it."""
        await self._registering.unregister(name)

    async def connect_server(self, name: str) -> None:
        """Connects a server that was disconnected or went away; `ServerAway`, with the reason, if it is not there."""
        await self._registering.connect(name)

    async def disconnect_server(self, name: str) -> None:
        """Ends its connection and its process. Its tools stay listed; calls say that it is stopped."""
        await self._registering.disconnect(name)

    @property
    def catalog(self) -> Catalog:
        return self.home.catalog

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the configuration; a server with an error in its entry is not there."""
        return self.home.config.problems

    def status(self) -> dict[str, ServerStatus]:
        return {name: server.status for name, server in sorted(self.home.servers.items())}

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        with self._advising(timeout):
            outcome = await self.door.call(RequestContext(OWNER, self.home), call_request(name, arguments, timeout))
        return read_answer(outcome.answer)

    @property
    def all_known(self) -> bool:
        config = self.home.config
        left_out = config.problems or config.waiting or not all(one.enabled for one in config.servers.values())
        return not left_out and super().all_known

    def _advice(self, server: str) -> str:
        there = self.home.servers.get(server)
        if there is None or there.status.state not in (ServerState.STOPPED, ServerState.FAILED):
            return ""
        return f"`await crib.connect_server({server!r})` connects it again."
