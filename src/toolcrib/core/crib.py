"""The core: configuration, servers, catalogs, the door and the listings, wired together.

In: the paths of the user's files, the environment, the flags. Out: a `Project` per root, whose tools can be listed and
called, and a `ToolProvider` for the home project. `Crib` only connects the packages below, which do the work. It
listens on no socket.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from toolcrib.calls import CallRequest
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.config.from_code import OwnSource, check_source
from toolcrib.config.layers import store_location
from toolcrib.config.masking import Masker
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths, empty_folder, project_of
from toolcrib.config.values import Secrets
from toolcrib.core.answers import Answer, program_asker
from toolcrib.core.connection import Connection
from toolcrib.core.project import BuiltinServer
from toolcrib.core.projects import Projects
from toolcrib.core.provider import HEALTH_LIMIT, AsyncResource, ToolProvider, call_request
from toolcrib.core.results import Result, read_answer
from toolcrib.core.server_registry import ServerRegistry
from toolcrib.core.services import Services, open_services
from toolcrib.core.trust import Trust, trusted_files
from toolcrib.credentials.vault import Vault
from toolcrib.errors import UsageError
from toolcrib.events import Bus
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.servers.model import ServerAnswer, ServerHealth, ServerState, ServerStatus
from toolcrib.store.database import Store
from toolcrib.store.lock import StoreHolder


@dataclass(frozen=True, kw_only=True)
class CribEnvironment:
    """The surroundings of a crib: the user's files, the home project's root, the variables, the flags."""

    paths: Paths
    root: Path
    """The root of the home project, for callers that give no root."""
    variables: Mapping[str, str]
    flags: Flags
    mask: Masker
    """Masks the secrets of every configuration that was loaded."""
    vault: Vault

    def secrets(self) -> Secrets:
        """The user's secrets as they are now."""
        return Secrets(self.vault.secret)


class Opening(enum.Enum):
    """When `async with` continues."""

    AT_ONCE = "at once"
    CONNECTED = "connected"
    """When every server without known tools is connected or has failed."""


class Crib(AsyncResource, ToolProvider):
    """The tools of your configuration, for your program: `async with Crib.from_config() as crib`.

    `crib.tools()` returns the tools for a model, `await crib.call("read_file", {…})` calls one and audits it.
    `crib.servers.register` adds a server while the crib is open. `Crib.connect()` uses a running daemon's tools
    instead.
    """

    connect = Connection
    """A running daemon's tools, under its permissions and in its audit log: see `Connection`."""

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
        answer: Answer | None = None,
    ) -> None:
        """Defaults: this user's files, the current folder, the process's environment, and all servers."""
        self._own_asker = program_asker(answer)
        variables = os.environ if environ is None else environ
        paths = paths or Paths.of_user(variables)
        self.environment = CribEnvironment(
            paths=paths,
            root=(root or Path.cwd()).resolve(),
            variables=variables,
            flags=flags,
            mask=mask or Masker(),
            vault=Vault(paths),
        )
        self.bus = Bus()
        self.projects = Projects(self, builtins=builtins or {}, only=only, source=source)
        """The projects in use, with their configuration; `projects.home` is the crib's own."""
        self.servers = ServerRegistry(self.projects)
        """The servers of the home project, which a program can add, connect and disconnect."""
        self._builtins = builtins or {}
        self._opening = opening
        self._holder = StoreHolder(home=str(self.environment.paths.config_dir), daemon=is_daemon)
        self._entered = False
        self._services: Services | None = None
        self._trust: Trust | None = None
        self._exit = contextlib.AsyncExitStack()

    @classmethod
    def from_config(
        cls,
        source: OwnSource | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        answer: Answer | None = None,
    ) -> Self:
        """Creates a crib for a program without a daemon. It has the servers of the user's configuration and of the
        project's trusted files, or only those of `source`: a file, or a mapping in the file's format.

        Inside `async with`, every server is connected, has failed, or has known tools and connects in the background.
        Calls are recorded in the user's audit log. `answer` gets what servers ask during a call; without it, their
        questions are cancelled.
        """
        check_source(source)
        return cls(
            root=project_of(Path.cwd()) if root is None else Path(root),
            environ=environ,
            source=source,
            opening=Opening.CONNECTED,
            answer=answer,
        )

    def _refuse_again(self) -> None:
        if self._entered:
            raise UsageError("A Crib can be used only once.", remedy="Create another.")

    async def _open(self) -> None:
        self._entered = True
        await self._open_services()
        for builtin in self._builtins.values():
            await builtin.refresh(self)
            self._exit.push_async_callback(builtin.close)
        home = await self.projects.at(self.environment.root)
        home.used_by_program = not self._holder.daemon
        if self._opening is Opening.CONNECTED:
            await home.wait_for_new_servers(None)

    async def _open_services(self) -> None:
        here = self.environment
        empty_folder(here.paths.start_folder)
        location = store_location(here.paths, here.variables, here.flags, here.secrets())
        store = await Store.open(location, holder=self._holder)
        self._exit.push_async_callback(store.close)
        settings = self.projects.load_config(here.root, await trusted_files(store)).settings
        self._services = await self._exit.enter_async_context(
            open_services(store, self.bus, here.paths, settings, here.mask)
        )
        self._trust = await Trust.load(
            store,
            bus=self.bus,
            note=self._services.record,
            on_change=self.projects.changed,
        )

    async def _close(self) -> None:
        await self.projects.close()
        await self._exit.aclose()

    @property
    def services(self) -> Services:
        """The parts that all projects share: the store, the agents, their sessions and approvals, the door, the audit
        log."""
        if self._services is None:
            raise self._not_open()
        return self._services

    @property
    def trust(self) -> Trust:
        """The files and servers that the person trusts."""
        if self._trust is None:
            raise self._not_open()
        return self._trust

    @property
    def catalog(self) -> Catalog:
        return self.projects.home.catalog

    def status(self) -> dict[str, ServerStatus]:
        return {name: server.status for name, server in sorted(self.projects.home.servers.items())}

    async def connect_all(self) -> dict[str, ServerStatus]:
        """Connects all servers that are not connected, at the same time. Returns each server's status when all are
        connected or have failed. `crib.servers.connect` connects one."""
        await self.servers.connect_all()
        return self.status()

    async def disconnect(self, server: str | None = None) -> None:
        """Disconnects one server, or all, and ends the processes. The tools stay listed; calls fail until it is
        connected again."""
        await self.servers.disconnect(server)

    async def refresh(self, server: str) -> None:
        """Lists the server's tools again. Not needed for servers that send change notifications."""
        await self.servers.refresh(server)

    async def health(self, server: str, *, timeout: float = HEALTH_LIMIT) -> ServerHealth:
        """Exchanges one message with the server, within `timeout` seconds. Does not connect it."""
        return await self.servers.health(server, timeout)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        return read_answer(await self._request(call_request(name, arguments, timeout)))

    def _offers(self) -> OfferCatalog:
        return self.projects.home.offers

    async def _request(self, request: CallRequest) -> ServerAnswer:
        request = msgspec.structs.replace(request, asker=self._asker)
        with self._advising(request.timeout):
            home = self.projects.home
            return home.public_answer(request, await self.services.door.call(RequestContext(OWNER, home), request))

    @property
    def all_known(self) -> bool:
        config = self.projects.home.config
        left_out = config.problems or config.waiting or not all(one.enabled for one in config.servers.values())
        return not left_out and super().all_known

    def _advice(self, server: str) -> str:
        there = self.projects.home.servers.get(server)
        if there is None or there.status.state not in (ServerState.STOPPED, ServerState.FAILED):
            return ""
        return f"`await crib.servers.connect({server!r})` connects it again."
