"""Waiting, always with a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT = 60.0


def wait_for(condition: Callable[[], T | None], what: str, limit: float = LIMIT, pause: float = 0.02) -> T:
    """Waits until the condition is true. `what` is part of the error at the limit."""
    end = time.monotonic() + limit
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit:g} s for {what}")
        time.sleep(pause)


async def until(condition: Callable[[], Any], what: str = "a condition", limit: float = LIMIT) -> Any:
    """The same while the event loop runs."""
    try:
        async with asyncio.timeout(limit):
            while not (answer := condition()):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
            return answer
    except TimeoutError:
        raise TimeoutError(f"waited {limit:g} s for {what}") from None


async def during(work: Callable[..., T], *args: Any, **more: Any) -> T:
    """Does blocking work in a thread while the event loop runs."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.to_thread(work, *args, **more)
