"""How the daemon's servers do, as it tells a program of one of its agents.

In: the daemon's socket and the agent's token. Out: a state by server, kept up to date for as long as it is followed. A
daemon that does not tell, or is away, leaves none. `Connection` has one; `commands.servers_seen` is at the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.errors import ToolcribError
from toolcrib.reach.line import HungUp, Line
from toolcrib.servers.model import ServerState

_COMMAND = "agent:servers"
_FIRST_WITHIN = 10.0
_LOOK_AGAIN = 0.5
"""Seconds after which a daemon that went away is asked again."""


class DaemonStates:
    def __init__(self, on_change: Callable[[str, ServerState], None]) -> None:
        self.by_server: Mapping[str, ServerState] = {}
        self._on_change = on_change
        self._first = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def begin(self, socket: Path, token: str, root: Path) -> None:
        """Returns when the first word has come, or none will."""
        self._following = asyncio.create_task(self._follow(socket, token, root))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WITHIN):
                await self._first.wait()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self, socket: Path, token: str, root: Path) -> None:
        while True:
            try:
                await self._until_hung_up(await Line.to(socket), token, root)
            except HungUp:
                self._note({})
            except ToolcribError:
                # The agent is no more, or the daemon does not know the command.
                self._note({})
                return
            finally:
                self._first.set()
            await asyncio.sleep(_LOOK_AGAIN)

    async def _until_hung_up(self, line: Line, token: str, root: Path) -> None:
        try:
            await line.ask(_COMMAND, {"token": token}, root)
            while (event := await line.event()) is not None:
                self._note(_read(event))
                self._first.set()
        finally:
            await line.close()

    def _note(self, states: Mapping[str, ServerState]) -> None:
        before, self.by_server = self.by_server, states
        for name, state in states.items():
            if before.get(name) is not state:
                self._on_change(name, state)


def _read(event: Mapping[str, Any]) -> dict[str, ServerState]:
    match event:
        case {"servers": list(servers)}:
            known = {state.value for state in ServerState}
            return {one["name"]: ServerState(one["state"]) for one in servers if one["state"] in known}
    return {}
