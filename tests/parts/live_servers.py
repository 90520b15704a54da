"""`Server` objects of the product, connected to our odd test servers without a daemon: import the fixture `live`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

from parts.fleet import SERVERS
from parts.servers.odd_web import OddWeb, running
from parts.waiting import LIMIT, until
from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.events import Bus, ServerStateChanged
from toolcrib.servers.model import ServerState, ToolCall
from toolcrib.servers.reaper import Reaper
from toolcrib.servers.server import Server

__all__ = ["LIMIT", "LiveServers", "call", "live", "odd_config", "until", "web_config"]

ODD_STDIO = str(SERVERS / "odd_stdio.py")
SOURCE = ConfigSource(layer=Layer.FLAGS)


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, params={"arguments": Raw(json.dumps(arguments).encode())})


def odd_config(odd: str = "", env: Mapping[str, str] | None = None, **settings: Any) -> ServerConfig:
    own: dict[str, Any] = {"command": sys.executable, "args": ("-I", "-S", ODD_STDIO), "connect_timeout": LIMIT}
    own["env"] = {"ODD": odd, **(env or {})}
    return ServerConfig(name="odd", transport=Transport.STDIO, source=SOURCE, **{**own, **settings})


def web_config(url: str, transport: Transport = Transport.HTTP, **settings: Any) -> ServerConfig:
    return ServerConfig(name="web", transport=transport, source=SOURCE, url=url, **settings)


@dataclass
class LiveServers:
    root: Path
    bus: Bus = field(default_factory=Bus)
    reaper: Reaper = field(default_factory=Reaper)
    news: list[tuple[ServerState, int]] = field(default_factory=list)
    """The state and the number of tools at each call of on_tools."""
    events: list[ServerStateChanged] = field(default_factory=list)
    made: list[Server] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings of every server."""

    def __post_init__(self) -> None:
        self.bus.subscribe(lambda event: self.events.append(cast("ServerStateChanged", event)), ServerStateChanged)

    def reasons(self) -> list[str]:
        """Why servers became unavailable."""
        return [event.reason for event in self.events if event.reason]

    def make(self, config: ServerConfig, **more: Any) -> Server:
        def on_tools(server: Server) -> None:
            self.news.append((server.status.state, len(server.tools or ())))

        server = Server(config, root=self.root, on_tools=on_tools, bus=self.bus, reaper=self.reaper, **more)
        self.made.append(server)
        return server

    async def started(self, config: ServerConfig, **more: Any) -> Server:
        server = self.make(config, **more)
        server.start()
        await server.settled()
        return server

    async def odd(self, odd: str = "", **settings: Any) -> Server:
        """A server over stdio, odd in this way."""
        return await self.started(odd_config(odd, **{**self.defaults, **settings}))

    @contextlib.asynccontextmanager
    async def web(
        self, odd: OddWeb | str, transport: Transport = Transport.HTTP, path: str = "", tls: Any = None, **settings: Any
    ) -> AsyncIterator[tuple[OddWeb, Server]]:
        """A server over a web transport, and its other end: an `OddWeb`, or a new one of this era."""
        async with running(OddWeb(odd) if isinstance(odd, str) else odd, tls) as answering:
            scheme = {Transport.WEBSOCKET: "ws"}.get(transport, "http") + ("s" if tls else "")
            url = f"{scheme}://127.0.0.1:{answering.port}{path or ('/sse' if transport is Transport.SSE else '/mcp')}"
            server = await self.started(web_config(url, transport, **{**self.defaults, **settings}))
            yield answering, server
            await server.stop()

    async def end(self) -> None:
        for server in self.made:
            await server.stop()
        self.reaper.close()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServers]:
    servers = LiveServers(tmp_path)
    yield servers
    await servers.end()
