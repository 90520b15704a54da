"""One server, for a program of one's own: connect, list, call, disconnect.

In: a `ServerConfig`. Out: its tools, and results as content blocks. It is a `Kit` of one that can be connected again;
`Crib` is the same for a user's whole configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolcrib.catalog.tool import Tool
from toolcrib.config.given import GivenServer, config_of
from toolcrib.config.model import ServerConfig
from toolcrib.crib.kit import Kit
from toolcrib.crib.results import Result
from toolcrib.errors import ServerAway, UsageError
from toolcrib.servers.model import ServerState, ServerStatus


class Client:
    """One server: `async with Client(StdioServer(…)) as client`, or `connect()` and `disconnect()`, as often as needed.

    `client.list_tools()` are its tools, `await client.call_tool("read_file", {…})` calls one.
    """

    def __init__(self, config: ServerConfig | GivenServer, *, root: Path | None = None) -> None:
        self.config = config_of(config)
        self._root = root
        self._kit: Kit | None = None
        self._turn = asyncio.Lock()
        """Held while it connects or leaves: two who connect at once make one process."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Raises `ServerAway`, with the reason, if the server is not there within its time limit."""
        async with self._turn:
            await self._connect()

    async def _connect(self) -> None:
        if self.is_connected:
            return
        await self._leave()
        kit = Kit([self.config], root=self._root, connect_limit=self.config.connect_timeout)
        self._kit = await kit.__aenter__()
        if reason := kit.missing.get(self.config.name):
            await self._leave()
            raise ServerAway(
                f"Server '{self.config.name}' could not be reached: {reason}",
                remedy="Put that right, then connect again.",
            )

    async def disconnect(self) -> None:
        """Ends the connection and the server's process, if it is ours."""
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
        """Who the server says it is, which era it speaks, how it does."""
        return self._live().server_info(self.config.name)

    async def refresh(self) -> None:
        """Asks the server for its tools again. Servers that tell of changes need no asking."""
        await self._live().refresh(self.config.name)

    def list_tools(self) -> tuple[Tool, ...]:
        """The server's tools as it describes them, as they are now."""
        return self._live().catalog.tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Raises `UnknownTool`, `InvalidArguments`, `ServerFailure`; a tool's own failure is a result."""
        return await self._live().call(name, arguments, timeout=timeout)

    def _live(self) -> Kit:
        if self._kit is None:
            raise UsageError(
                "A Client is used inside its `async with`, or after connect().", remedy="Connect it first."
            )
        return self._kit
