"""The servers of a crib's home project, which a program can add, remove, connect and disconnect.

In: servers, and names of tools. Out: the home project with or without them. `Crib.servers` is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.from_code import DeclaredServer, config_of
from toolcrib.config.model import Problem, ServerConfig
from toolcrib.core.kit import Client
from toolcrib.core.projects import Projects
from toolcrib.errors import ServerUnavailable, UnknownServer, UsageError
from toolcrib.servers.model import ServerHealth, ServerState
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server


class ServerRegistry:
    def __init__(self, projects: Projects) -> None:
        self._projects = projects
        self._pool = projects.pool
        self._names = projects.registered
        self._turn = asyncio.Lock()
        """Held while servers change, so that two simultaneous registrations of a name leave one server, not two."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the configuration; a server with an error in its entry is missing."""
        return self._projects.home.config.problems

    @property
    def reaper(self) -> Reaper:
        """Cleans up if this process is killed."""
        return self._pool.reaper

    async def discover(self, server: DeclaredServer | ServerConfig) -> tuple[Tool, ...]:
        """Connects, lists the server's tools and disconnects, without registering anything."""
        async with Client(config_of(server), root=self._projects.root) as client:
            return client.list_tools()

    async def register(
        self, server: DeclaredServer | ServerConfig, *, only: Iterable[str] | None = None
    ) -> tuple[Tool, ...]:
        """Connects and adds the server's tools: all of them, or `only` those named. Replaces a server of the same name.

        Raises `ServerUnavailable` if it cannot be reached and `UnknownTool` if it lacks a tool; then nothing changes.
        """
        config = config_of(server)
        chosen = None if only is None else frozenset([only] if isinstance(only, str) else only)
        async with self._turn:
            connected = await self._reached(config, chosen or frozenset())
            await self._leave(config.name)
            return self._enter(connected, chosen)

    async def register_tool(self, server: DeclaredServer | ServerConfig, tool: str) -> Tool:
        """Adds one tool, by its name on the server, to the server's registered tools."""
        config = config_of(server)
        async with self._turn:
            home = self._projects.home
            present = home.servers.get(config.name)
            if config.name not in self._names or present is None or present.config.identity != config.identity:
                connected = await self._reached(config, frozenset({tool}))
                await self._leave(config.name)
                self._enter(connected, frozenset({tool}))
            else:
                _refuse_unknown(present, frozenset({tool}))
                if (chosen := home.chosen.get(config.name)) is not None:
                    home.chosen[config.name] = chosen | {tool}
                    home.changed()
        return next(one for one in home.catalog.of_server(config.name) if one.name == tool)

    async def unregister(self, name: str) -> None:
        """Removes the server and its tools."""
        async with self._turn:
            await self._leave(name)

    async def _reached(self, config: ServerConfig, wanted: frozenset[str]) -> Server:
        """The connected server with the wanted tools; if it raises, nothing changes."""
        server = self._pool.acquire(config, self._projects.home.root)
        try:
            await server.settled(config.connect_timeout + 1)
            if server.tools is None:
                raise _not_reached(server)
            _refuse_unknown(server, wanted)
        except BaseException:
            await self._pool.release(server)
            raise
        return server

    def _enter(self, server: Server, chosen: frozenset[str] | None) -> tuple[Tool, ...]:
        home = self._projects.home
        if chosen is not None:
            home.chosen[server.name] = chosen
        home.servers[server.name] = server
        self._names.add(server.name)
        home.changed()
        return home.catalog.of_server(server.name)

    async def _leave(self, name: str) -> None:
        home = self._projects.home
        server = home.servers.pop(name, None)
        home.chosen.pop(name, None)
        self._names.discard(name)
        if server is not None:
            home.changed()
            await self._pool.release(server)

    async def connect(self, name: str) -> None:
        """Connects a disconnected or unavailable server. Raises `ServerUnavailable`, with the reason, if it cannot be
        reached."""
        async with self._turn:
            server = await self._connected(self._known(name))
            if server.status.state not in (ServerState.READY, ServerState.IDLE):
                raise _not_reached(server)

    async def connect_all(self) -> None:
        """Connects all servers that are not connected, at the same time."""
        async with self._turn:
            await asyncio.gather(*map(self._connected, tuple(self._projects.home.servers.values())))

    async def _connected(self, server: Server) -> Server:
        """The server after an attempt to connect; a new one in the place of one that was disconnected."""
        match server.status.state:
            case ServerState.STOPPED:
                home = self._projects.home
                server = self._pool.acquire(
                    server.config, home.root, known_tools=server.tools, known_offers=server.offers
                )
                home.servers[server.name] = server
                home.changed()
                server.start_if_idle()
                await server.settled()
            case ServerState.UNAVAILABLE | ServerState.FAILED:
                await server.restart()
            case _:
                server.start_if_idle()
                await server.settled()
        return server

    async def disconnect(self, name: str | None = None) -> None:
        """Ends the connection and the process of one server, or of all. Their tools stay listed; calls fail because
        the server is stopped."""
        async with self._turn:
            home = self._projects.home
            servers = tuple(home.servers.values()) if name is None else (self._known(name),)
            # Never one that other projects still use: calls would reach it, and it would be released again later.
            home.servers.update({one.name: one for one in await asyncio.gather(*map(self._pool.disconnect, servers))})

    async def refresh(self, name: str) -> None:
        """Lists its tools again. Raises `ServerFailure`."""
        await self._known(name).refresh()

    async def health(self, name: str, limit: float) -> ServerHealth:
        """The result of one exchange with the server."""
        return await self._known(name).health(limit)

    def _known(self, name: str) -> Server:
        home = self._projects.home
        server = home.servers.get(name)
        if server is not None:
            return server
        config = home.config.servers.get(name)
        if config is not None and not config.enabled:
            raise UsageError(f"{name} is disabled in {config.source}.", remedy="Enable it there.")
        raise UnknownServer(
            f'There is no server "{name}".', remedy=f"Available: {', '.join(sorted(home.servers)) or 'none'}."
        )


def _not_reached(server: Server) -> ServerUnavailable:
    reason = server.status.last_error or "it did not answer in time"
    return ServerUnavailable(
        f"Server '{server.name}' could not be reached: {reason}", remedy="Fix the cause, then try again."
    )


def _refuse_unknown(server: Server, wanted: frozenset[str]) -> None:
    """Raises `UnknownTool`, with similar names, for a tool that the server does not list."""
    listed = Catalog.build({server.name: server.tools or ()}, version=0)
    offered = {tool.name for tool in listed.tools}
    for name in sorted(wanted - offered):
        listed.find(f"{server.name}:{name}")
