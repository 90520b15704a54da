"""What a program adds to its crib besides the configuration, and which servers it wants connected.

In: servers, and names of tools. Out: the home project has them, or has them no more. `Crib` has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import ServerConfig
from toolcrib.core.kit import Client
from toolcrib.core.project import Project
from toolcrib.core.projects import Projects
from toolcrib.errors import ServerUnavailable, UnknownServer, UsageError
from toolcrib.servers.model import ServerState
from toolcrib.servers.server import Server


class ServerRegistry:
    def __init__(self, projects: Projects, home: Callable[[], Project]) -> None:
        self._pool = projects.pool
        self._names = projects.registered
        self._home = home
        self._turn = asyncio.Lock()
        """Held while servers come and go: two who register one name at once leave one server, not two."""

    @staticmethod
    async def discover(config: ServerConfig, root: Path) -> tuple[Tool, ...]:
        async with Client(config, root=root) as client:
            return client.list_tools()

    async def register(self, config: ServerConfig, only: Iterable[str] | None) -> tuple[Tool, ...]:
        chosen = None if only is None else frozenset([only] if isinstance(only, str) else only)
        async with self._turn:
            server = await self._reached(config, chosen or frozenset())
            await self._leave(config.name)
            return self._enter(server, chosen)

    async def register_tool(self, config: ServerConfig, tool: str) -> Tool:
        async with self._turn:
            home = self._home()
            present = home.servers.get(config.name)
            if config.name not in self._names or present is None or present.config.identity != config.identity:
                server = await self._reached(config, frozenset({tool}))
                await self._leave(config.name)
                self._enter(server, frozenset({tool}))
            else:
                _refuse_unknown(present, frozenset({tool}))
                if (chosen := home.chosen.get(config.name)) is not None:
                    home.chosen[config.name] = chosen | {tool}
                    home.changed()
        return next(one for one in home.catalog.of_server(config.name) if one.name == tool)

    async def unregister(self, name: str) -> None:
        async with self._turn:
            await self._leave(name)

    async def _reached(self, config: ServerConfig, wanted: frozenset[str]) -> Server:
        """Connected and with the tools that are wanted; where it raises, nothing was changed."""
        server = self._pool.acquire(config, self._home().root)
        try:
            await server.settled()
            if server.tools is None:
                raise _not_reached(server)
            _refuse_unknown(server, wanted)
        except BaseException:
            await self._pool.release(server)
            raise
        return server

    def _enter(self, server: Server, chosen: frozenset[str] | None) -> tuple[Tool, ...]:
        home = self._home()
        if chosen is not None:
            home.chosen[server.name] = chosen
        home.servers[server.name] = server
        self._names.add(server.name)
        home.changed()
        return home.catalog.of_server(server.name)

    async def _leave(self, name: str) -> None:
        home = self._home()
        server = home.servers.pop(name, None)
        home.chosen.pop(name, None)
        self._names.discard(name)
        if server is not None:
            home.changed()
            await self._pool.release(server)

    async def connect(self, name: str) -> None:
        async with self._turn:
            server = self._known(name)
            match server.status.state:
                case ServerState.STOPPED:
                    home = self._home()
                    server = self._pool.acquire(server.config, home.root, known_tools=server.tools)
                    home.servers[name] = server
                    home.changed()
                    await server.settled()
                case ServerState.UNAVAILABLE | ServerState.FAILED:
                    await server.restart()
                case _:
                    await server.settled()
            if server.status.state is not ServerState.READY:
                raise _not_reached(server)

    async def disconnect(self, name: str) -> None:
        async with self._turn:
            await self._pool.release(self._known(name))

    def _known(self, name: str) -> Server:
        home = self._home()
        server = home.servers.get(name)
        if server is not None:
            return server
        config = home.config.servers.get(name)
        if config is not None and not config.enabled:
            raise UsageError(f"{name} is switched off in {config.source}.", remedy="Switch it on there.")
        raise UnknownServer(
            f'There is no server "{name}".', remedy=f"There are: {', '.join(sorted(home.servers)) or 'none'}."
        )


def _not_reached(server: Server) -> ServerUnavailable:
    reason = server.status.last_error or "it did not answer in time"
    return ServerUnavailable(
        f"Server '{server.name}' could not be reached: {reason}", remedy="Put that right, then try again."
    )


def _refuse_unknown(server: Server, wanted: frozenset[str]) -> None:
    """Raises `UnknownTool` for a tool that the server does not list, and says which ones are like it."""
    listed = Catalog.build({server.name: server.tools or ()}, version=0)
    offered = {tool.name for tool in listed.tools}
    for name in sorted(wanted - offered):
        listed.find(f"{server.name}:{name}")
