"""The database for the event loop.

In: the same as `Database`. Out: the same, awaited. Everything runs on one thread of the store's own, in the order
it was asked for, so a slow disk or a locked file never holds up a call. `crib` and `daemon` use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from toolcrib.errors import StoreError
from toolcrib.store.database import BUSY_TIMEOUT, Database, TrustedFile

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """Made by `open`. A call that is cancelled while it waits may still be carried out."""

    def __init__(self, database: Database, thread: ThreadPoolExecutor) -> None:
        self._database = database
        self._thread = thread
        self._closed = False

    @classmethod
    async def open(cls, where: str | Path, *, busy_timeout: float = BUSY_TIMEOUT) -> Self:
        thread = ThreadPoolExecutor(1, thread_name_prefix="toolcrib-store")
        opening = thread.submit(Database.open, where, busy_timeout=busy_timeout)
        try:
            database = await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException:
            # Cancelled while the thread still opens it: nobody will use it.
            opening.add_done_callback(_discard)
            thread.shutdown(wait=False)
            raise
        return cls(database, thread)

    async def close(self) -> None:
        """What was asked for before is still done."""
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        finally:
            self._thread.shutdown(wait=False)

    async def known_tools(self, identity: str, root: str | None) -> tuple[bytes, ...] | None:
        return await self._run(self._database.known_tools, identity, root)

    async def remember_tools(self, identity: str, root: str | None, definitions: Sequence[bytes]) -> bool:
        return await self._run(self._database.remember_tools, identity, root, definitions)

    async def forget_tools(self, identity: str) -> None:
        await self._run(self._database.forget_tools, identity)

    async def is_trusted(self, path: str | Path, sha256: str) -> bool:
        return await self._run(self._database.is_trusted, path, sha256)

    async def trust(self, path: str | Path, sha256: str) -> None:
        await self._run(self._database.trust, path, sha256)

    async def untrust(self, path: str | Path) -> bool:
        return await self._run(self._database.untrust, path)

    async def trusted_files(self) -> tuple[TrustedFile, ...]:
        return await self._run(self._database.trusted_files)

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreError("The database is closed.", remedy="Toolcrib is stopping; start it again.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))


def _discard(opening: Future[Database]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
