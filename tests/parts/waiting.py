"""Waiting for a condition, always with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str, limit: float = 60.0, pause: float = 0.02) -> T:
    """Asks until the answer is true; says what was waited for when it never was."""
    end = time.monotonic() + limit
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit:g} s for {what}")
        time.sleep(pause)
