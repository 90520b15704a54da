"""What is used inside `async with`: open as a whole or not at all, and closed to the end however it is left.

In: how it is opened and closed. Out: the two ends of `async with`. `Crib`, `Kit` and `Connection` are such.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Self


class Opened(ABC):
    @abstractmethod
    def _refuse_again(self) -> None:
        """Raises if it was entered before."""

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None:
        """Also of what is open only in part."""

    async def __aenter__(self) -> Self:
        self._refuse_again()
        try:
            await self._open()
        except BaseException:
            await to_its_end(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_its_end(self._close())


async def to_its_end(work: Coroutine[None, None, None]) -> None:
    """Does the work whole, however often whoever waits for it is cancelled meanwhile."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
