"""The running servers: one shared instance per (server, its configuration, project root).

In: configurations and roots as projects open and close; agents, for servers that each agent has for itself. Out:
`Server`s, started at once or with their first call. A server stops when its last user releases it. By default, servers
that do not depend on a project are shared by all roots: network servers, and processes that neither start in the
project's folder nor name it (`${workspaceFolder}`). `share` in the entry changes that. Used by `core`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.masking import Masker
from toolcrib.config.model import ServerConfig
from toolcrib.credentials.vault import Vault
from toolcrib.errors import ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers.account import Accounts
from toolcrib.servers.model import Offers, ServerState
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server

_HURRIED = 3.8
"""Seconds that a launcher gets then, of the five that the daemon's stop may take."""

_NO_OFFERS = Offers()
InstanceKey = tuple[str, tuple[object, ...], Path | None, str]


def instance_key(config: ServerConfig, root: Path | None, agent: str = "") -> InstanceKey:
    """Requests with the same key share one instance."""
    return config.identity, config.limits, root if config.is_per_project else None, agent


class ServerPool:
    def __init__(
        self,
        *,
        bus: Bus,
        on_tools: Callable[[Server], None],
        log_file: Callable[[str, Path | None], Path] | None = None,
        mask: Masker | None = None,
        install_locks: Path | None = None,
        vault: Vault | None = None,
        on_notice: Callable[[Server, str, Mapping[str, Any], str | None], None] | None = None,
    ) -> None:
        """Without a `vault`, servers are used without accounts."""
        self._bus = bus
        self._on_notice = on_notice
        self._on_tools = on_tools
        self._log_file = log_file
        self.reaper = Reaper()
        self._servers: dict[InstanceKey, Server] = {}
        self._holders: dict[InstanceKey, int] = {}
        self._mask = mask or Masker()
        self._install_locks = install_locks
        self._accounts = None if vault is None else Accounts(vault, self._mask)
        self._retiring: dict[asyncio.Task[None], Server] = {}
        """Released servers that finish their calls."""
        self._stopping: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def servers(self) -> Iterable[Server]:
        return tuple(self._servers.values())

    def acquire(
        self,
        config: ServerConfig,
        root: Path | None = None,
        *,
        agent: str = "",
        known_tools: tuple[bytes, ...] | None = None,
        known_offers: Offers = _NO_OFFERS,
    ) -> Server:
        """The instance for this configuration, root and agent. Each `acquire` needs one `release`.

        `known_tools` and `known_offers` are what a new instance lists until it has connected. Without tools, it starts
        at once.
        Raises `ServerUnavailable` once the pool closes, because nothing would stop the server.
        """
        if self._closed:
            raise ServerUnavailable(f"Server '{config.name}': Toolcrib is stopping. The server was not started.")
        key = instance_key(config, root, agent)
        server = self._servers.get(key)
        if server is None:
            self._servers[key] = server = self._made(config, key[2], known_tools, known_offers)
            if known_tools is None or not config.starts_on_demand:
                server.start()
            else:
                server.start_on_demand()
        self._holders[key] = self._holders.get(key, 0) + 1
        return server

    def _made(
        self, config: ServerConfig, root: Path | None, known_tools: tuple[bytes, ...] | None, known_offers: Offers
    ) -> Server:
        server = Server(
            config,
            root=root,
            on_tools=self._on_tools,
            bus=self._bus,
            reaper=self.reaper,
            log_file=self._log_file(config.name, root) if self._log_file else None,
            mask=self._mask,
            known_tools=known_tools,
            known_offers=known_offers,
            install_locks=self._install_locks,
            account=self._accounts.of(config) if self._accounts else None,
        )
        if self._on_notice is not None:
            server.on_notice = functools.partial(self._on_notice, server)
        return server

    async def release(self, server: Server) -> None:
        """Undoes one `acquire`; the last release stops the server."""
        if self._let_go(server):
            await server.stop()

    async def disconnect(self, server: Server) -> Server:
        """The same. Returns a stopped server with its tools: itself, or another one if it still has users."""
        await self.release(server)
        if server.status.state is ServerState.STOPPED:
            return server
        return self._made(server.config, server.root, server.tools, server.offers)

    async def retire(self, server: Server) -> None:
        """The same, but calls in flight finish before the server stops. Waits only for a server without any."""
        if self._let_go(server):
            stopping = asyncio.create_task(server.retire())
            self._retiring[stopping] = server
            stopping.add_done_callback(self._retiring.pop)
            if not server.calls:
                await asyncio.wait({stopping})

    def _let_go(self, server: Server) -> bool:
        """Whether that was its last user."""
        key = next((key for key, one in self._servers.items() if one is server), None)
        if key is None:
            return False
        self._holders[key] -= 1
        if self._holders[key] > 0:
            return False
        del self._servers[key], self._holders[key]
        return True

    def hurry(self) -> None:
        """Begins to stop the servers that are being installed, because `close` must be quick."""
        due = [server for server in self._servers.values() if server.installing]
        self._stopping = [asyncio.create_task(server.stop(patience=_HURRIED)) for server in due]

    async def close(self) -> None:
        """Stops all servers concurrently."""
        self._closed = True
        servers = (*self._servers.values(), *self._retiring.values())
        self._servers.clear()
        self._holders.clear()
        retiring = tuple(self._retiring)
        ended = [self._accounts.close()] if self._accounts else []
        await asyncio.gather(*self._stopping, *ended, *(server.stop() for server in servers))
        await asyncio.gather(*retiring)
        await asyncio.to_thread(self.reaper.close)
