"""How much of our time a server may take with what it was not asked for: noise on its pipes, notifications, requests.

In: what each piece of input cost, in seconds of the event loop's CPU. Out: how long to read nothing more of this
server, so that its pipe or connection fills up and the writer waits; and its end, with the reason, if it goes on.
Answers to our requests are free: whoever asks for much gets much. Every link has one (`link.Link.intake`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PIECE = 4096
"""Bytes that are taken in at a stretch: some milliseconds, whatever stands in them."""
SHARE = 0.1
"""The part of the event loop's time above which reading pauses."""
_STRETCH = 0.005
"""Seconds of it that a server may take at once, without a pause."""
_LASTING = 0.05
"""The part that a server may take for as long as it runs."""
MOST = 0.5
"""Seconds beyond that part after which the server is ended: some ten seconds of flooding."""
HANDED_ON = 0.0003
"""What a message costs others: the SDK that answers a request, the client that is told of progress."""
ENDED = "It was ended because it floods us: it sends much more than it is asked for."


class Intake:
    def __init__(self, end: Callable[[str], None]) -> None:
        """`end` gets the reason why the server is not listened to any more."""
        self._end = end
        self._debt = 0.0
        self._flood = 0.0
        self._at = time.monotonic()

    def charge(self, seconds: float, *, asked: bool = False) -> None:
        """What was asked for, such as progress of a call, makes the server wait, and never ends it."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self._debt = max(0.0, self._debt - SHARE * passed) + seconds
        self._flood = max(0.0, self._flood - _LASTING * passed) + (0.0 if asked else seconds)
        if self._flood > MOST:
            self._end(ENDED)

    @property
    def pause(self) -> float:
        """Seconds for which nothing more should be read. 0 for a server that keeps to its share."""
        return self._debt / SHARE if self._debt > _STRETCH else 0.0

    async def take(self, chunk: bytes, read: Callable[[bytes], bool]) -> bool:
        """Has a stream's chunk read piece by piece, until `read` says that one held the answer."""
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
