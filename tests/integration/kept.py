"""Clients that outlive one task: what a fixture opens and a test uses.

In: any context manager that gives a client. Out: the same, opened and closed by one task of its own, as the SDK asks;
the two halves of a fixture, and several clients opened at once, are different tasks.
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

    async def live() -> None:
        async with opening as client:
            opened.set_result(client)
            await over.wait()

    task = asyncio.create_task(live())
    await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield opened.result()
    finally:
        over.set()
        await task
