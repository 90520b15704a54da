"""The instances of one project's servers that agents have for themselves: `share: agent`, and servers that ask on a
stream that their callers share.

In: a server as the project lists it, and an agent's first call. Out: that agent's own instance, which shows the listed
tools until it has connected. `Project` routes calls here; `Projects` releases the instances.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from toolcrib.servers.model import ServerState
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.server import Server


class AgentServers:
    def __init__(self, pool: ServerPool, root: Path) -> None:
        self._pool = pool
        self._root = root
        self._held: dict[tuple[str, str], Server] = {}
        """By server and agent."""

    def of(self, listed: Server, agent: str) -> Server:
        """The agent's instance of this server; its first call starts it."""
        key = listed.name, agent
        if key not in self._held:
            self._held[key] = self._pool.acquire(
                listed.config, self._root, agent=agent, known_tools=listed.tools, known_offers=listed.offers
            )
        # What one instance does, all may do.
        own = self._held[key]
        own.asks = listed.asks = own.asks or listed.asks
        return own

    def by_agent(self, server: str) -> dict[str, Server]:
        return {agent: held for (name, agent), held in self._held.items() if name == server}

    async def restart(self, server: str) -> None:
        """Restarts this server's instances, except idle ones, which start with their next call."""
        running = [one for one in self.by_agent(server).values() if one.status.state is not ServerState.IDLE]
        await asyncio.gather(*(one.restart() for one in running))

    def all(self) -> tuple[Server, ...]:
        return tuple(self._held.values())

    async def release(self, agent: str | None = None) -> None:
        """Stops the instances of this agent, or of all."""
        leaving = [key for key in self._held if agent in (None, key[1])]
        await asyncio.gather(*(self._pool.release(self._held.pop(key)) for key in leaving))

    async def retire(self, server: str) -> None:
        """Stops this server's instances when their calls have finished."""
        leaving = [key for key in self._held if key[0] == server]
        await asyncio.gather(*(self._pool.retire(self._held.pop(key)) for key in leaving))
