"""How much event loop time a server may use with input that nobody requested.

In: what its input costs. Out: pauses before more is read, and finally the end of the connection. Each link has one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PIECE = 4096
"""Bytes processed at once: a few milliseconds, whatever their content."""
SHARE = 0.1
"""The share of event loop time above which reading pauses."""
_STRETCH = 0.005
"""Seconds of it that a server may use at once without a pause."""
_LASTING = 0.05
"""The share that a server may use permanently."""
MAX_FLOOD = 0.5
"""Seconds beyond that share after which the server is disconnected: about ten seconds of flooding."""
FORWARD_COST = 0.0003
"""Seconds that a forwarded message costs elsewhere: in the SDK for a request, in a client for progress."""
FLOOD_REASON = "It was stopped because it sends far more than was requested."


class InputBudget:
    def __init__(self, end: Callable[[str], None]) -> None:
        """`end` receives the reason for disconnecting the server."""
        self._end = end
        self._debt = 0.0
        self._flood = 0.0
        self._at = time.monotonic()

    def charge(self, seconds: float, *, asked: bool = False) -> None:
        """Requested input (`asked`), such as a call's progress, only throttles the server, never disconnects it."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self._debt = max(0.0, self._debt - SHARE * passed) + seconds
        self._flood = max(0.0, self._flood - _LASTING * passed) + (0.0 if asked else seconds)
        if self._flood > MAX_FLOOD:
            self._end(FLOOD_REASON)

    @property
    def pause(self) -> float:
        """Seconds to wait before reading more; 0 while the server keeps to its share."""
        return self._debt / SHARE if self._debt > _STRETCH else 0.0

    async def take(self, chunk: bytes, read: Callable[[bytes], bool]) -> bool:
        """Reads a stream's chunk piece by piece, until `read` returns True: that piece held the answer."""
        for piece in pieces(chunk):
            began = time.thread_time()
            if read(piece):
                return True
            if b"\n" in piece or b"\r" in piece:
                self.charge(time.thread_time() - began)
                await self.rest()
        return False

    async def rest(self) -> None:
        if pause := self.pause:
            await asyncio.sleep(pause)


def pieces(chunk: bytes) -> Iterator[bytes]:
    for start in range(0, len(chunk), PIECE):
        yield chunk[start : start + PIECE]
