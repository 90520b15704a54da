"""What commands print, made fit for a model: as text, without control sequences, whole lines, a bounded amount.

In: bytes as they come. Out: text; and lines for whoever follows a command, a few times a second. `command` and its
neighbours (`shell`, `testing`, `linting`, `diff`) use both.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections import deque
from collections.abc import Callable

_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|\x9b[0-?]*[ -/]*[@-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

PAUSE = 0.1
"""Seconds between two messages to whoever follows."""
MOST = 2000
"""Characters of one such message."""
LONGEST = 8 * 1024
"""Characters of a line that are kept until it ends."""


def clean(text: str) -> str:
    """Colours and cursor movements gone; of a line that overwrote itself the last state; odd characters marked."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("\ufffd", text)


def plain(raw: bytes) -> str:
    return clean(raw.decode("utf-8", "replace"))


def ends(text: str, limit: int, *, rest: str = "") -> str:
    """Beginning and end of a text that is too long, cut between lines where that costs little."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 3], text[-(limit - limit // 3) :]
    if (at := head.rfind("\n")) > len(head) // 2:
        head = head[: at + 1]
    if -1 < (at := tail.find("\n")) < len(tail) // 2:
        tail = tail[at + 1 :]
    note = f"… {len(text) - len(head) - len(tail)} characters left out{rest} …"
    return f"{head.rstrip(chr(10))}\n{note}\n{tail}"


class Ticker:
    """Passes on the newest text, at most every `PAUSE` seconds, and never after it was closed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._last = -PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._make: Callable[[], str] | None = None

    def soon(self, make: Callable[[], str]) -> None:
        """`make` is asked when the time has come; nothing is told if it gives nothing."""
        self._make = make
        if self._timer is None:
            self._timer = self._loop.call_at(max(self._loop.time(), self._last + PAUSE), self._now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._now()

    def _now(self) -> None:
        self._timer = None
        self._last = self._loop.time()
        make, self._make = self._make, None
        if make is not None and (text := make()):
            self._tell(text)


class Lines:
    """Bytes of two streams in, whole lines out, each batch told by a `Ticker`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._ticker = Ticker(tell)
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._open = dict.fromkeys(self._decoders, "")
        self._ready: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def take(self, stream: str, chunk: bytes) -> None:
        whole, newline, self._open[stream] = (self._open[stream] + self._decoders[stream].decode(chunk)).rpartition(
            "\n"
        )
        if newline:
            self._keep(whole.split("\n"))
        if len(self._open[stream]) > LONGEST:
            self._keep([self._open[stream]])
            self._open[stream] = ""

    def close(self) -> None:
        self._keep([rest for rest in self._open.values() if rest])
        self._ticker.close()

    def _keep(self, lines: list[str]) -> None:
        """The newest lines, as many as fit: who follows wants to see what happens now."""
        for line in lines[-MOST:]:
            self._ready.append(clean(line[-MOST:] if len(line) > MOST else line))
            self._size += len(self._ready[-1]) + 1
        self._dropped += max(0, len(lines) - MOST)
        while self._size > MOST and len(self._ready) > 1:
            self._size -= len(self._ready.popleft()) + 1
            self._dropped += 1
        if self._ready:
            self._ticker.soon(self._batch)

    def _batch(self) -> str:
        if self._dropped:
            self._ready.appendleft(f"… {self._dropped} lines left out …")
        text = "\n".join(self._ready)
        self._ready.clear()
        self._size = self._dropped = 0
        return text
