"""Text for tool results: counts, sizes, paths, and command output.

In: numbers, names, and raw bytes. Out: text for a model, its size in JSON, and progress lines of a command, a few times
a second. All tools use it.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolcrib.workspace.sandbox.command import CapturedOutput
from toolcrib.workspace.tool import ToolContext

if TYPE_CHECKING:
    from toolcrib.workspace.tools.walk import FolderWalk


_LONE = re.compile("[\ud800-\udfff]")


def count_text(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def valid_unicode(text: str) -> str:
    """Replaces lone surrogates, which JSON cannot hold, with �."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def count_undecodable(text: str) -> int:
    """How many undecodable bytes the text contains as surrogates."""
    return 0 if text.isascii() else len(_LONE.findall(text))


def json_size(text: str) -> int:
    """The size of a text in JSON, which most clients pass to their model."""
    return len(msgspec.json.encode(valid_unicode(text)))


def fit_json(text: str, most: int) -> str:
    """The beginning of a text that fits into `most` bytes of JSON; at least one character."""
    # A character takes at most six bytes, and the quotes two.
    if len(text) * 6 + 2 <= most or json_size(text) <= most:
        return text
    fits, too_long = 1, min(len(text), most) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if json_size(text[:middle]) <= most:
            fits = middle
        else:
            too_long = middle
    return text[:fits]


_SHARE = 0.1
"""Share of a call's time limit that is reserved for returning the results found so far."""


def looking_deadline(context: ToolContext, tool: str) -> float:
    """When to stop searching, by the monotonic clock."""
    limit = context.settings.limits.seconds[tool]
    return min(context.deadline, time.monotonic() + limit) - _SHARE * limit


def shown_path(parts: Sequence[str]) -> str:
    """A path for a program. If it has bytes that are not UTF-8, they become \\xNN and backslashes are doubled."""
    path = "/".join(parts) or "."
    if is_utf8(path):
        return path
    return path.replace("\\", "\\\\").encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """Escapes unprintable characters, so that a name cannot break its line or hide anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def ignored_note(count: int, what: str) -> str:
    """How many entries .gitignore left out, for the first line of a result."""
    return f" ({count:,} ignored by .gitignore not {what}; set ignored: true)" if count else ""


def incomplete_note(walk: FolderWalk, advice: str) -> str:
    """Why the walk was incomplete; empty if it was complete."""
    if not walk.stops:
        return ""
    return f"Incomplete: {', and '.join(walk.stops)}. {advice}"


class AnswerBuffer:
    """Collects lines up to a number of items and a number of bytes as JSON."""

    def __init__(self, things: int, size: int) -> None:
        self._things = things
        self.room = size
        """Bytes left."""
        self.lines: list[str] = []
        self.is_full = False

    def takes(self, *lines: str) -> bool:
        """Adds the lines of one item if they fit. After the first that doesn't, nothing fits."""
        # Plus the comma in the list.
        needed = sum(json_size(line) + 1 for line in lines)
        self.is_full = self.is_full or self._things == 0 or needed > self.room
        if self.is_full:
            return False
        self._things -= 1
        self.room -= needed
        self.lines += lines
        return True


_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|\x9b[0-?]*[ -/]*[@-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

PROGRESS_PAUSE = 0.1
"""Seconds between two progress messages."""
MAX_PROGRESS = 2000
"""Characters of one progress message."""
MAX_OPEN_LINE = 8 * 1024
"""Characters of an unfinished line that are buffered."""
OUTPUT_WINDOW = 128 * 1024
"""Bytes read at the beginning and at the end of a command's output."""
MAX_REPEATS = 3
"""How often a repeated line is shown in a row."""


def clean_text(text: str) -> str:
    """Removes colours and cursor movements, keeps the last state of an overwritten line, marks odd characters."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("\ufffd", text)


def decode_output(raw: bytes) -> str:
    return clean_text(raw.decode("utf-8", "replace"))


def shown_output(captured: CapturedOutput, room: int | None) -> str:
    """A command's whole output, or as much of its beginning and end as fits in JSON."""
    data = captured.head + captured.tail
    if room is None or (captured.whole and captured.total <= 2 * OUTPUT_WINDOW):
        text = collapse_repeats(decode_output(data))
        if room is None or json_size(text) <= room:
            return text
        middle = len(text) // 2
        head, tail, between = text[:middle], text[middle:], 0
    else:
        head, tail = (
            collapse_repeats(decode_output(data[:OUTPUT_WINDOW])),
            collapse_repeats(decode_output(data[-OUTPUT_WINDOW:])),
        )
        between = captured.total - 2 * OUTPUT_WINDOW
    first = _whole_first_lines(fit_json(head, max(room // 2, room - json_size(tail))))
    # Reversed, the end is a beginning.
    last = _whole_last_lines(fit_json(tail[::-1], max(room - json_size(first), 1))[::-1])
    left_out = between + len(head) + len(tail) - len(first) - len(last)
    return f"{first}\n[… {size_text(left_out)} left out …]\n{last}"


def collapse_repeats(text: str) -> str:
    """Shortens runs of the same line."""
    lines: list[str] = []
    for line, same in itertools.groupby(text.split("\n")):
        times = sum(1 for _ in same)
        lines += [line] * times if times <= MAX_REPEATS else [line, f"[… repeated {times - 1:,} times more …]"]
    return "\n".join(lines)


def head_and_tail(text: str, limit: int) -> str:
    """Beginning and end of a text that is too long."""
    if len(text) <= limit:
        return text
    head, tail = _whole_first_lines(text[: limit // 3]), _whole_last_lines(text[-(limit - limit // 3) :])
    left_out = count_text(len(text) - len(head) - len(tail), "character")
    return f"{head}\n[… {left_out} left out …]\n{tail}"


def _whole_first_lines(text: str) -> str:
    """Cuts at a line end if that loses little."""
    at = text.rfind("\n")
    return text[:at] if at > len(text) // 2 else text


def _whole_last_lines(text: str) -> str:
    at = text.find("\n")
    return text[at + 1 :] if -1 < at < len(text) // 2 else text


class ProgressThrottle:
    """Sends the newest text, at most every `PROGRESS_PAUSE` seconds, and never after it was closed."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._last = -PROGRESS_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._make: Callable[[], str] | None = None

    def soon(self, make: Callable[[], str]) -> None:
        """Calls `make` when the pause is over; sends nothing if it returns nothing."""
        self._make = make
        if self._timer is None:
            self._timer = self._loop.call_at(max(self._loop.time(), self._last + PROGRESS_PAUSE), self._now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._now()

    def _now(self) -> None:
        self._timer = None
        self._last = self._loop.time()
        make, self._make = self._make, None
        if make is not None and (text := make()):
            self._send(text)


class ProgressLines:
    """Turns the bytes of two streams into whole lines, which a `ProgressThrottle` sends in batches."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._throttle = ProgressThrottle(send)
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
        if len(self._open[stream]) > MAX_OPEN_LINE:
            self._keep([self._open[stream]])
            self._open[stream] = ""

    def close(self) -> None:
        self._keep([rest for rest in self._open.values() if rest])
        self._throttle.close()

    def _keep(self, lines: list[str]) -> None:
        """Keeps only the newest lines that fit."""
        for line in lines[-MAX_PROGRESS:]:
            self._ready.append(clean_text(line[-MAX_PROGRESS:] if len(line) > MAX_PROGRESS else line))
            self._size += len(self._ready[-1]) + 1
        self._dropped += max(0, len(lines) - MAX_PROGRESS)
        while self._size > MAX_PROGRESS and len(self._ready) > 1:
            self._size -= len(self._ready.popleft()) + 1
            self._dropped += 1
        if self._ready:
            self._throttle.soon(self._batch)

    def _batch(self) -> str:
        if self._dropped:
            self._ready.appendleft(f"… {self._dropped} lines left out …")
        text = "\n".join(self._ready)
        self._ready.clear()
        self._size = self._dropped = 0
        return text
