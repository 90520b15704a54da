"""An agent that lives as long as somebody holds it.

In: a connection to the daemon, and what is wanted. Out: the agent's token and place, and what the daemon sees of it. A
daemon that is restarted is asked to go on; one that does not come back is told as `Lost`. `house` makes leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.errors import Denied, ProtocolViolation, ToolcribError
from toolcrib.policy.own_tools import OwnLimit, OwnTools
from toolcrib.reach.line import HungUp, Line
from toolcrib.reach.notes import Ended, Lost, Note, names_from, note_from

GONE_FOR = 10.0
"""Seconds that the daemon may be away before the lease counts as lost."""
_LOOK_AGAIN = 0.05
_RELEASED_WITHIN = 10.0
_COMMAND = "run:lease"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    client: str
    profile: str
    workdir: Path
    conversation: str
    lives: float
    """Seconds after which the agent ends whatever happens."""
    parent: str = ""
    """An agent that bounds it, and that it ends with."""
    job: str = ""
    """The job that it is for."""
    ci: str = ""
    """The variable that says that it is in CI."""

    def to_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "profile": self.profile,
            "workdir": str(self.workdir),
            "conversation": self.conversation,
            "lives": self.lives,
            "parent": self.parent,
            "job": self.job,
            "ci": self.ci,
        }


class Lease:
    """Made by `begin`, ended by `release`."""

    def __init__(self, line: Line, told: Mapping[str, Any], *, path: Path, root: Path) -> None:
        self.agent: str = told["agent"]
        self.token: str = told["token"]
        self.url: str = told["endpoint"]
        self.folder = Path(told["folder"])
        """The agent's private one: it goes with the agent."""
        self.own_tools = OwnLimit(
            tools=OwnTools(told["own_tools"]), shell=told["own_shell"], guarded=tuple(told["guarded"])
        )
        self.broken: str = told["broken"]
        """What is wrong with the workspace's settings: while it says something, the workspace's tools all refuse."""
        self.away: Mapping[str, str] = told["away"]
        """Servers whose tools are not known yet, and why."""
        self.withheld = frozenset[str](told["withheld"])
        """Names of variables that our servers' entries refer to."""
        self.warnings = tuple[str, ...](told["warnings"])
        """Why there are fewer tools than the person may expect, one line each."""
        self.tools: int = told["tools"]
        """How many the agent may see."""
        self.names = names_from(told["names"])
        """Server and tool by the names that the agent is offered."""
        self.for_runs: bool = told["for_runs"]
        """Whether the daemon lives only as long as runs do: then none will come in its place."""
        self.daemon: int = told["daemon"]
        """Its process."""
        self._path = path
        self._root = root
        self._line = line
        self._notes: asyncio.Queue[Note | None] = asyncio.Queue()
        """None: there will be no more."""
        self._released = False
        self._following = asyncio.create_task(self._follow())

    def __repr__(self) -> str:
        return f"Lease(agent={self.agent!r})"

    @classmethod
    async def begin(cls, line: Line, wanted: Wanted, *, path: Path, root: Path) -> Lease:
        """Raises the daemon's error, or `HungUp`; the line is closed then."""
        told = await _told(line, wanted.to_json(), root)
        return cls(line, told, path=path, root=root)

    async def notes(self) -> AsyncIterator[Note]:
        """What is seen of the agent, in order; for one reader.

        Ends after `Ended` and `Lost`, and after `release` with what was seen until then.
        """
        while (note := await self._notes.get()) is not None:
            yield note
        self._notes.put_nowait(None)

    async def release(self) -> None:
        """The agent is gone when it returns, or the daemon is. A second time does nothing."""
        if not self._released:
            self._released = True
            self._line.hang_up()
        await asyncio.wait({self._following}, timeout=_RELEASED_WITHIN)
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._line.close()

    async def _follow(self) -> None:
        try:
            while True:
                last = await self._until_hung_up()
                if last is None and not self._released:
                    last = await self._come_back()
                if last is not None:
                    self._notes.put_nowait(last)
                if last is not None or self._released:
                    return
        finally:
            self._notes.put_nowait(None)

    async def _until_hung_up(self) -> Note | None:
        """The note that ends the lease; None: the connection is gone."""
        try:
            while (event := await self._line.event()) is not None:
                note = note_from(event)
                if isinstance(note, Ended):
                    return note
                if note is not None:
                    self._notes.put_nowait(note)
        except HungUp:
            return None
        except (ToolcribError, ValueError) as error:
            return Lost(why=error.text() if isinstance(error, ToolcribError) else f"{error}.".capitalize())
        return Ended(why="removed")

    async def _come_back(self) -> Note | None:
        """None: a daemon goes on with the agent."""
        await self._line.close()
        if self.for_runs:
            return Lost(why="The daemon that was started for runs has ended.")
        deadline = time.monotonic() + GONE_FOR
        while time.monotonic() < deadline and not self._released:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    told = await self._resumed()
            except Denied:
                return Ended(why="removed")
            except (HungUp, ToolcribError, TimeoutError):
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            if told["endpoint"] != self.url:
                return Lost(why=f"The daemon came back at another address, {told['endpoint']}.")
            return None
        return None if self._released else Lost(why=f"The daemon is gone, and did not come back in {GONE_FOR:.0f} s.")

    async def _resumed(self) -> Mapping[str, Any]:
        line = await Line.to(self._path)
        told = await _told(line, {"resume": {"agent": self.agent, "token": self.token}}, self._root)
        self._line = line
        return told


async def _told(line: Line, params: dict[str, Any], root: Path) -> Mapping[str, Any]:
    try:
        await line.ask(_COMMAND, params, root)
        match await line.event():
            case {"lease": dict(told)}:
                return told
            case _:
                raise ProtocolViolation(
                    "The daemon lends no agent, and does not say why.", remedy="See `toolcrib logs`."
                )
    except BaseException:
        with contextlib.suppress(asyncio.CancelledError):
            await line.close()
        raise
