"""Waiting for what must not be left half done.

In: something that goes on. Out: its result, not before it has ended, also if the task is cancelled meanwhile: then the
cancellation goes on afterwards. `run` ends commands so, `floor` looks through the folder in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: S112 - it is the task's, and comes with its result
            continue
    if cancelled is not None:
        raise cancelled
    return task.result()


async def in_a_thread(act: Callable[[], Result]) -> Result:
    return await to_the_end(asyncio.to_thread(act))
