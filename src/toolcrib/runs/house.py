"""Where runs get their identity: from the daemon that runs, or from one that is started for as long as runs need it.

In: a user's paths. Out: a `House`, which leases agents. `daemon.starting` reaches or starts a daemon, so that many runs
that begin at once share one; `lease` holds the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.paths import Paths
from toolcrib.daemon.lock import is_free
from toolcrib.daemon.starting import PATIENCE, START_FOR_RUNS, connect_or_start
from toolcrib.errors import DaemonNotRunning, ToolcribError, UnknownCommand
from toolcrib.reach.lease import Lease, Wanted
from toolcrib.reach.line import HungUp, Line
from toolcrib.reach.notes import CallSeen, Ended, Listed, Lost, Note

__all__ = ["CallSeen", "Ended", "House", "Lease", "Listed", "Lost", "Note", "Wanted", "open_house"]

_ENDS_WITHIN = 6.0
_LOOK_AGAIN = 0.02


class House:
    """Made by `open_house`."""

    def __init__(self, paths: Paths, root: Path, environ: Mapping[str, str], line: Line) -> None:
        self._paths = paths
        self._root = root
        self._environ = environ
        self._spare: Line | None = line
        """A connection that nobody uses yet."""
        self._leases: list[Lease] = []

    async def lease(self, wanted: Wanted) -> Lease:
        """Raises `UsageError` where the same conversation is under way, and whatever else the daemon says."""
        deadline = time.monotonic() + PATIENCE
        while True:
            line, self._spare = self._spare or await _connected(self._paths, self._environ), None
            try:
                made = await Lease.begin(line, wanted, path=self._paths.socket, root=self._root)
            except UnknownCommand as old:
                raise DaemonNotRunning(
                    "The daemon that runs is of an older version and knows of no runs.",
                    remedy="`toolcrib down` ends it; then run again.",
                ) from old
            except (HungUp, DaemonNotRunning) as gone:
                # It was just ending when we came: the next one is ours.
                if time.monotonic() > deadline:
                    raise DaemonNotRunning(
                        "The daemon ended before it had lent an agent.", remedy="See `toolcrib logs`."
                    ) from gone
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            self._leases.append(made)
            return made

    async def close(self) -> None:
        """What was leased is given back. A daemon that nobody needs any more is gone when it returns."""
        if self._spare is not None:
            await self._spare.close()
        await asyncio.gather(*(lease.release() for lease in self._leases))
        for pid in {lease.daemon for lease in self._leases if lease.for_runs}:
            await self._until_ended(pid)

    async def _until_ended(self, pid: int) -> None:
        """Waits for a daemon that is about to end; not for one that others need, or that came in its place."""
        deadline = time.monotonic() + _ENDS_WITHIN
        while time.monotonic() < deadline and not is_free(self._paths):
            match await self._status():
                case {"pid": int(found), "stopping": stopping} if found != pid or not stopping:
                    return
            await asyncio.sleep(_LOOK_AGAIN)

    async def _status(self) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                line = await Line.to(self._paths.socket)
                try:
                    return await line.answer("system:status", {}, self._root)
                finally:
                    await line.close()
        except (HungUp, TimeoutError, ToolcribError):
            return {}


@contextlib.asynccontextmanager
async def open_house(paths: Paths, root: Path, environ: Mapping[str, str]) -> AsyncIterator[House]:
    """`root` is the project's. Raises `DaemonNotRunning` where no daemon runs and none can be started."""
    house = House(paths, root, environ, await _connected(paths, environ))
    try:
        yield house
    finally:
        await house.close()


async def _connected(paths: Paths, environ: Mapping[str, str]) -> Line:
    given_up = threading.Event()
    reach = functools.partial(
        connect_or_start, paths.socket, environ=environ, start=START_FOR_RUNS, given_up=given_up.is_set
    )
    reaching = asyncio.get_running_loop().run_in_executor(None, reach)
    try:
        return await Line.over(await asyncio.shield(reaching))
    except asyncio.CancelledError:
        given_up.set()
        reaching.add_done_callback(_close)
        raise


def _close(reached: asyncio.Future[socket.socket]) -> None:
    if not reached.cancelled() and reached.exception() is None:
        reached.result().close()
