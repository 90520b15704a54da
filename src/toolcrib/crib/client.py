"""One server, for a program of one's own: connect, list, call, disconnect.

In: a `ServerConfig`. Out: its tools, and results as content blocks. Calls go through the door as everywhere; there is
no daemon, no store and no other server. `Crib` is the same for many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from toolcrib.calls import Door, Request
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import NameStyle, ServerConfig
from toolcrib.crib.results import Result, read_answer
from toolcrib.errors import ServerAway
from toolcrib.events import Bus
from toolcrib.policy import OWNER, Caller
from toolcrib.servers.model import ServerState, ServerStatus
from toolcrib.servers.pool import Pool
from toolcrib.servers.server import Server


class Client:
    def __init__(self, config: ServerConfig, *, root: Path | None = None) -> None:
        self.config = config
        self._root = root or Path.cwd()
        self._bus = Bus()
        self._door = Door(self._bus)
        self._pool = Pool(bus=self._bus, on_tools=self._tools_changed)
        self._server: Server | None = None
        self._catalog: Catalog | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Raises `ServerAway`, with the reason, if the server is not there within its time limit."""
        if self._server is None:
            self._server = self._pool.acquire(self.config, self._root)
        await self._server.settled()
        if not self.is_connected:
            reason = self._server.status.last_error or "it did not answer in time"
            await self.disconnect()
            raise ServerAway(f"Server '{self.config.name}' could not be reached: {reason}")

    async def disconnect(self) -> None:
        """Ends the connection and the server's process, if it is ours."""
        self._server = self._catalog = None
        await self._pool.close()
        self._pool = Pool(bus=self._bus, on_tools=self._tools_changed)

    @property
    def is_connected(self) -> bool:
        return self._server is not None and self._server.status.state is ServerState.READY

    @property
    def server_info(self) -> ServerStatus:
        """Who the server says it is, which era it speaks, how it does."""
        return self._live().status

    async def refresh(self) -> None:
        """Asks the server for its tools again. Servers that tell of changes need no asking."""
        await self._live().refresh()

    def list_tools(self) -> tuple[Tool, ...]:
        return self.catalog.tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Raises `UnknownTool`, `InvalidArguments`, `ServerFailure`; a tool's own failure is a result."""
        params = {"arguments": msgspec.Raw(msgspec.json.encode(dict(arguments or {})))}
        outcome = await self._door.call(self, OWNER, Request(tool=name, params=params, timeout=timeout))
        return read_answer(outcome.answer)

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            folder = self.config.works_in(self._root)
            self._catalog = Catalog.build(
                {self.config.name: self._live().tools or ()},
                version=1,
                folders={} if folder is None else {self.config.name: str(folder)},
            )
        return self._catalog

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        return self.catalog.find(name, shown=shown, style=style)

    def target(self, _server: str, _caller: Caller) -> Server:
        return self._live()

    def _live(self) -> Server:
        if self._server is None:
            raise ServerAway(f"Server '{self.config.name}' is not connected.", remedy="Use connect() first.")
        return self._server

    def _tools_changed(self, _server: Server) -> None:
        self._catalog = None
