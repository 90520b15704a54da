"""What commands print, made fit for a model: as text, without control sequences, whole lines, a bounded amount.

In: bytes as they come. Out: text; and lines for whoever follows a command, a few times a second. `command` and its
neighbours (`shell`, `testing`, `linting`, `diff`) use both.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import re
from collections import deque
from collections.abc import Callable

from toolcrib.workspace.sandbox.model import Captured
from toolcrib.workspace.words import count_words, fitting, room_of, size_words

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
WINDOW = 128 * 1024
"""Bytes that are looked at, at the beginning and at the end of what a command printed."""
FEW = 3
"""Times that the same line is shown in a row."""


def clean(text: str) -> str:
    """Colours and cursor movements gone; of a line that overwrote itself the last state; odd characters marked."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("\ufffd", text)


def plain(raw: bytes) -> str:
    return clean(raw.decode("utf-8", "replace"))


def shown(captured: Captured, room: int | None) -> str:
    """What a command printed: all of it, or its beginning and its end as far as there is room for them in JSON."""
    data = captured.head + captured.tail
    if room is None or (captured.whole and captured.total <= 2 * WINDOW):
        text = collapsed(plain(data))
        if room is None or room_of(text) <= room:
            return text
        middle = len(text) // 2
        head, tail, between = text[:middle], text[middle:], 0
    else:
        head, tail = collapsed(plain(data[:WINDOW])), collapsed(plain(data[-WINDOW:]))
        between = captured.total - 2 * WINDOW
    first = _begin(fitting(head, max(room // 2, room - room_of(tail))))
    # Backwards, the end is a beginning.
    last = _end(fitting(tail[::-1], max(room - room_of(first), 1))[::-1])
    left_out = between + len(head) + len(tail) - len(first) - len(last)
    return f"{first}\n[… {size_words(left_out)} left out …]\n{last}"


def collapsed(text: str) -> str:
    """A line that comes many times in a row stands there once."""
    lines: list[str] = []
    for line, same in itertools.groupby(text.split("\n")):
        times = sum(1 for _ in same)
        lines += [line] * times if times <= FEW else [line, f"[… repeated {times - 1:,} times more …]"]
    return "\n".join(lines)


def ends(text: str, limit: int) -> str:
    """Beginning and end of a text that is too long."""
    if len(text) <= limit:
        return text
    head, tail = _begin(text[: limit // 3]), _end(text[-(limit - limit // 3) :])
    left_out = count_words(len(text) - len(head) - len(tail), "character")
    return f"{head}\n[… {left_out} left out …]\n{tail}"


def _begin(text: str) -> str:
    """Whole lines, where that costs little."""
    at = text.rfind("\n")
    return text[:at] if at > len(text) // 2 else text


def _end(text: str) -> str:
    at = text.find("\n")
    return text[at + 1 :] if -1 < at < len(text) // 2 else text


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
