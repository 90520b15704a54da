"""Clients that a fixture opens and a test uses.

One task opens and closes them, as the SDK requires; the two halves of a fixture run in different tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def kept_open(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def keep() -> None:
        async with opening as client:
            opened.set_result(client)
            await over.wait()

    task = asyncio.create_task(keep())
    await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield opened.result()
    finally:
        over.set()
        await task
