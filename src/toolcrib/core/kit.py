"""Servers that a program names, connected while it needs them: `Kit`, and `Client` for a single server.

In: servers declared in code. Out: a provider with the tools of the connected servers. Nothing is read from files, and
nothing is stored. `run_agent` uses `Kit`; `Crib` is for a user's configuration.

All servers connect at the same time, once, each within a limit; a server that is late is ended and listed in
`missing`. One that is still being installed is listed there too, but goes on, and its tools are added when it is ready.
Leaving the kit always ends everything it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.names import LIMITS
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.from_code import DeclaredServer, config_of, configs_of
from toolcrib.config.launchers import launch_of
from toolcrib.config.model import NameStyle, ServerConfig, StartMode
from toolcrib.config.paths import Paths, server_key
from toolcrib.core.answers import Answer, program_asker
from toolcrib.core.offer_source import OfferSource
from toolcrib.core.provider import HEALTH_LIMIT, AsyncResource, ToolProvider, call_request
from toolcrib.core.resources import Prompt, PromptMessages, Resource, ResourceContents
from toolcrib.core.results import Result, read_answer
from toolcrib.credentials.vault import Vault
from toolcrib.errors import ServerUnavailable, UnknownServer, UnknownTool, UsageError
from toolcrib.events import Bus, CatalogChanged, ServerStateChanged
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.servers.model import ServerAnswer, ServerHealth, ServerState, ServerStatus
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.server import Server
from toolcrib.servers.tool_listing import without_tools

CONNECT_LIMIT = 10.0
"""Seconds that a server has to connect."""
_ANEW = "Fix the cause, then connect again."


class _KitState(enum.Enum):
    NEW = enum.auto()
    OPEN = enum.auto()
    OVER = enum.auto()


class Kit(AsyncResource, ToolProvider, OfferSource):
    """Servers that your program names, connected while it needs them: `async with Kit([StdioServer(…)]) as kit`.

    All connect at the same time, once; `kit.connected` and `kit.missing` list the results. `kit.tools()` returns the
    tools for a model, `await kit.call("read_file", {…})` calls one. Nothing is read from files or stored.
    """

    def __init__(
        self,
        servers: Sequence[DeclaredServer | ServerConfig],
        *,
        root: Path | None = None,
        connect_limit: float = CONNECT_LIMIT,
        answer: Answer | None = None,
    ) -> None:
        """`root` is the default working folder of the servers' processes; it defaults to the current folder. `answer`
        gets what servers ask during a call; without it, their questions are cancelled."""
        super().__init__()
        self.bus = Bus()
        self._own_asker = program_asker(answer)
        self._configs = configs_of(servers)
        _refuse_same_names(self._configs)
        self.root = root or Path.cwd()
        self._limit = connect_limit
        self._door = Door(self.bus)
        vault = Vault(Paths.of_user(os.environ))
        self._pool = ServerPool(bus=self.bus, on_tools=self._tools_changed, vault=vault)
        self._servers: dict[str, Server] = {}
        self._missing: dict[str, ServerStatus] = {}
        self._installing: dict[str, Server] = {}
        """Missing servers that are not ended, because their launchers may be fetching them."""
        self._catalog: Catalog | None = None
        self._version = 0
        self._leaving: set[asyncio.Task[None]] = set()
        """Late servers that are being ended."""
        self._stage = _KitState.NEW
        self._turn = asyncio.Lock()
        """Held while servers connect or disconnect, so that none connects after the kit has closed."""

    def _refuse_again(self) -> None:
        if self._stage is not _KitState.NEW:
            raise UsageError("A Kit can be used only once.", remedy="Create another.")

    async def _open(self) -> None:
        self._stage = _KitState.OPEN
        await self._connect_rest()

    async def _connect_rest(self) -> None:
        async with self._turn, asyncio.TaskGroup() as group:
            for config in self._configs:
                group.create_task(self._connect(config))

    async def _connect(self, config: ServerConfig) -> None:
        if not config.enabled:
            self._missing[config.name] = _absent(config, "It is disabled.")
            return
        before = self._servers.get(config.name)
        if before is not None and before.status.state is not ServerState.STOPPED:
            if before.status.state is not ServerState.READY:
                await before.restart()
            return
        limit = min(self._limit, config.connect_timeout)
        allowed = config.connect_timeout if launch_of(config.command, config.args) else limit
        eager = replace(config, connect_timeout=allowed, start=StartMode.EAGER)
        server = self._installing.pop(config.name, None) or self._pool.acquire(
            eager, self.root, known_tools=before.tools if before else None
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await server.settled(limit)
        status = server.status
        if status.state is ServerState.READY:
            self._missing.pop(config.name, None)
            self._servers[config.name] = server
            # Its notification came before it was in the table.
            self._catalog = self._built(self._catalog)
        elif status.installing:
            self._installing[config.name] = server
            self._missing[config.name] = replace(status, last_error=f"It is still installing ({limit:g} s).")
        else:
            self._give_up(server, limit)

    def _give_up(self, server: Server, limit: float) -> None:
        config, status = server.config, server.status
        if self._servers.pop(config.name, None) is not None:
            self._catalog = self._built(self._catalog)
        why = status.last_error or f"It did not connect within {limit:g} s."
        self._missing[config.name] = replace(status, state=ServerState.FAILED, last_error=why)
        self.bus.publish(ServerStateChanged(server=config.name, state=ServerState.FAILED, reason=why))
        # Ending a process that hangs takes time; only `_close` waits for it.
        ending = asyncio.create_task(self._pool.release(server))
        self._leaving.add(ending)
        ending.add_done_callback(self._leaving.discard)

    async def _close(self) -> None:
        self._stage = _KitState.OVER
        async with self._turn:
            self._servers, self._installing, self._catalog = {}, {}, None
            await asyncio.gather(self._pool.close(), *self._leaving)

    @property
    def connected(self) -> tuple[str, ...]:
        """The servers that connected and were not disconnected, in the given order."""
        up = {name for name, server in self._servers.items() if server.status.state is not ServerState.STOPPED}
        return tuple(config.name for config in self._configs if config.name in up)

    @property
    def missing(self) -> dict[str, str]:
        """Why each missing server is not connected."""
        return {name: status.last_error for name, status in self._missing.items()}

    def status(self) -> dict[str, ServerStatus]:
        self._refuse_closed()
        return {**self._missing, **{name: server.status for name, server in self._servers.items()}}

    @property
    def catalog(self) -> Catalog:
        self._refuse_closed()
        if self._catalog is None:
            self._catalog = self._built(None)
        return self._catalog

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        return read_answer(await self._request(call_request(name, arguments, timeout)))

    def _offers(self) -> OfferCatalog:
        self._refuse_closed()
        return self.offers

    async def _request(self, request: CallRequest) -> ServerAnswer:
        self._refuse_closed()
        request = msgspec.structs.replace(request, asker=self._asker)
        with self._advising(request.timeout):
            return self.public_answer(request, await self._door.call(RequestContext(OWNER, self), request))

    async def refresh(self, server: str) -> None:
        """Lists the server's tools again. Not needed for servers that send change notifications."""
        self._refuse_closed()
        await self._live(server).refresh()

    async def connect_all(self) -> dict[str, ServerStatus]:
        """Connects all servers that are not connected, at the same time. Returns each server's status when all are
        connected or have failed."""
        self._refuse_closed()
        await self._connect_rest()
        return self.status()

    async def disconnect(self, server: str | None = None) -> None:
        """Disconnects one server, or all, and ends the processes. The tools stay listed; calls fail until it is
        connected again."""
        self._refuse_closed()
        async with self._turn:
            servers = tuple(self._servers.values()) if server is None else (self._live(server),)
            await asyncio.gather(*map(self._pool.release, servers))

    async def health(self, server: str, *, timeout: float = HEALTH_LIMIT) -> ServerHealth:
        """Exchanges one message with the server, within `timeout` seconds. Does not connect it."""
        self._refuse_closed()
        if server in self._missing:
            return ServerHealth(ok=False, error=self._missing[server].last_error)
        return await self._live(server).health(timeout)

    # `ToolSource`, for the door.

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        """The tool of this name. For a tool of a missing server, raises the reason."""
        try:
            return self.catalog.find(name, shown=shown, style=style)
        except UnknownTool:
            server, colon, _ = name.partition(":")
            if colon and server in self._missing:
                self._live(server)
            raise

    def target(self, server: str, _request: RequestContext[Kit]) -> Server:
        """The target of calls to this server's tools."""
        return self._live(server)

    def instance(self, server: str, _agent: str) -> Server:
        """The instance that answers them, which all callers share."""
        return self._live(server)

    def _live(self, server: str) -> Server:
        if server in self._missing:
            raise ServerUnavailable(
                f"Server '{server}' could not be reached: {self._missing[server].last_error}", remedy=_ANEW
            )
        if server not in self._servers:
            raise UnknownServer(
                f'There is no server "{server}".', remedy=f"Available: {', '.join(self._servers) or 'none'}."
            )
        return self._servers[server]

    def _refuse_closed(self) -> None:
        if self._stage is not _KitState.OPEN:
            raise self._not_open()

    def _advice(self, server: str) -> str:
        there = self._servers.get(server)
        return _ANEW if there is not None and there.status.state in (ServerState.STOPPED, ServerState.FAILED) else ""

    def _tools_changed(self, server: Server) -> None:
        if self._installing.get(server.name) is server:
            del self._installing[server.name]
            if server.status.state is not ServerState.READY:
                self._give_up(server, server.config.connect_timeout)
                return
            del self._missing[server.name]
            # Read by the comparison below as the catalog before the change.
            self._catalog = self.catalog
            self._servers[server.name] = server
        if self._servers.get(server.name) is not server:
            return
        before, offers = self.catalog, self.offers
        made = self._built(before)
        if made.tools != before.tools or self.offers is not offers:
            self._catalog = made
            self.bus.publish(CatalogChanged(root=str(self.root), version=made.version))

    def _built(self, previous: Catalog | None) -> Catalog:
        self._version += 1
        folders = {name: server.config.reads_from(self.root) for name, server in self._servers.items()}
        made = Catalog.build(
            {
                name: without_tools(server.tools or (), server.config.disabled_tools)
                for name, server in self._servers.items()
            },
            version=self._version,
            previous=previous,
            folders={name: str(folder) for name, folder in folders.items() if folder is not None},
        )
        listed = {name: server.offers for name, server in self._servers.items()}
        self.update_offers(listed, made, style=NameStyle.PLAIN, limit=LIMITS[NameStyle.PLAIN])
        return made


def _absent(config: ServerConfig, why: str) -> ServerStatus:
    return ServerStatus(name=config.name, state=ServerState.STOPPED, transport=config.transport.value, last_error=why)


def _refuse_same_names(configs: Sequence[ServerConfig]) -> None:
    seen: dict[str, str] = {}
    for config in configs:
        if other := seen.get(server_key(config.name)):
            raise UsageError(
                f"Two servers have the same name: {other} and {config.name}.",
                remedy="Give them names that differ in more than case or special characters.",
            )
        seen[server_key(config.name)] = config.name


class Client:
    """One server: `async with Client(StdioServer(…)) as client`, or `connect()` and `disconnect()`, as often as needed.

    `client.list_tools()` returns its tools, `await client.call_tool("read_file", {…})` calls one.
    """

    def __init__(
        self, config: ServerConfig | DeclaredServer, *, root: Path | None = None, answer: Answer | None = None
    ) -> None:
        """`answer` gets what the server asks during a call; without it, its questions are cancelled."""
        self.config = config_of(config)
        self.root = root
        self._answer = answer
        self._kit: Kit | None = None
        self._turn = asyncio.Lock()
        """Held while it connects or disconnects, so that two simultaneous connects start one process."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Raises `ServerUnavailable`, with the reason, if the server does not connect within its time limit."""
        async with self._turn:
            await self._connect()

    async def _connect(self) -> None:
        if self.is_connected:
            return
        await self._leave()
        kit = Kit([self.config], root=self.root, connect_limit=self.config.connect_timeout, answer=self._answer)
        self._kit = await kit.__aenter__()
        if reason := kit.missing.get(self.config.name):
            await self._leave()
            raise ServerUnavailable(
                f"Server '{self.config.name}' could not be reached: {reason}",
                remedy=_ANEW,
            )

    async def disconnect(self) -> None:
        """Ends the connection, and the server's process if this client started it."""
        async with self._turn:
            await self._leave()

    async def _leave(self) -> None:
        kit, self._kit = self._kit, None
        if kit is not None:
            await kit.__aexit__(None, None, None)

    @property
    def is_connected(self) -> bool:
        return self._kit is not None and self.server_info.state is ServerState.READY

    @property
    def server_info(self) -> ServerStatus:
        """The server's name, protocol version and state."""
        return self._live().server_info(self.config.name)

    async def refresh(self) -> None:
        """Lists the server's tools again. Not needed for servers that send change notifications."""
        await self._live().refresh(self.config.name)

    async def health(self, *, timeout: float = HEALTH_LIMIT) -> ServerHealth:
        """Exchanges one message with the server, within `timeout` seconds. Does not connect it."""
        return await self._live().health(self.config.name, timeout=timeout)

    def list_tools(self) -> tuple[Tool, ...]:
        """The server's current tools, as it describes them."""
        return self._live().catalog.tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Raises `UnknownTool`, `InvalidArguments` or `ServerFailure`; a tool's own failure is a result."""
        return await self._live().call(name, arguments, timeout=timeout)

    def resources(self) -> tuple[Resource, ...]:
        """The server's current resources, then its templates for further ones."""
        return self._live().resources()

    def prompts(self) -> tuple[Prompt, ...]:
        """The server's current prompts."""
        return self._live().prompts()

    async def read(self, uri: str, *, timeout: float | None = None) -> ResourceContents:
        """Reads a resource. Raises `UnknownOffer` or `ServerFailure`, or `ToolError` if the server refuses."""
        return await self._live().read(uri, timeout=timeout)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptMessages:
        """The messages of a prompt with these arguments. It raises the same errors as `read`."""
        return await self._live().get_prompt(name, arguments, timeout=timeout)

    def _live(self) -> Kit:
        if self._kit is None:
            raise UsageError(
                "A Client must be used inside its `async with`, or after connect().", remedy="Connect it first."
            )
        return self._kit
