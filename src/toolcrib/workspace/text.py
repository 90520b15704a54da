"""Text for the answers of tools: counts, sizes, paths, and what commands printed.

In: numbers, names, and bytes as they come. Out: text for a model, how much room it takes in JSON, and lines for
whoever follows a command, a few times a second. All tools use it.
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
    """Without what is no Unicode, which no answer can hold: � stands there instead, of three bytes too."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def count_undecodable(text: str) -> int:
    """How many bytes of the file stand in the text for themselves."""
    return 0 if text.isascii() else len(_LONE.findall(text))


def json_size(text: str) -> int:
    """Bytes that a text takes up in JSON, which is what most clients hand to their model."""
    return len(msgspec.json.encode(valid_unicode(text)))


def fit_json(text: str, most: int) -> str:
    """The beginning of a text that takes up `most` bytes in JSON, but one character at least."""
    # No character takes more than six, and the quotes two.
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
"""Of the time for a call, kept back for answering with what was found until then."""


def looking_deadline(context: ToolContext, tool: str) -> float:
    """When to stop looking, by the monotonic clock."""
    limit = context.settings.limits.seconds[tool]
    return min(context.deadline, time.monotonic() + limit) - _SHARE * limit


def shown_path(parts: Sequence[str]) -> str:
    """A path for a program. Bytes that are not UTF-8 are written \\xNN, and then a backslash is doubled."""
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
    """For the text of an answer: a name cannot break out of its line, nor hide anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def ignored_note(count: int, what: str) -> str:
    """What .gitignore kept from being shown, for the first line of an answer."""
    return f" ({count:,} ignored by .gitignore not {what}; ignored: true does)" if count else ""


def incomplete_note(walk: FolderWalk, advice: str) -> str:
    """Why not everything was seen; empty if it was."""
    if not walk.stops:
        return ""
    return f"Not everything was looked at: {', and '.join(walk.stops)}. {advice}"


class AnswerBuffer:
    """As many lines as an answer takes: up to a number of things, and up to a number of bytes as JSON."""

    def __init__(self, things: int, size: int) -> None:
        self._things = things
        self.room = size
        """Bytes that are left."""
        self.lines: list[str] = []
        self.is_full = False

    def takes(self, *lines: str) -> bool:
        """Adds what one thing takes; nothing after what did not fit."""
        # A line stands in a list: a comma comes with it.
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
"""Seconds between two messages to whoever follows."""
MOST_PROGRESS = 2000
"""Characters of one such message."""
LONGEST_OPEN_LINE = 8 * 1024
"""Characters of a line that are kept until it ends."""
OUTPUT_WINDOW = 128 * 1024
"""Bytes that are looked at, at the beginning and at the end of what a command printed."""
MOST_REPEATS = 3
"""Times that the same line is shown in a row."""


def clean_text(text: str) -> str:
    """Colours and cursor movements gone; of a line that overwrote itself the last state; odd characters marked."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("\ufffd", text)


def decode_output(raw: bytes) -> str:
    return clean_text(raw.decode("utf-8", "replace"))


def shown_output(captured: CapturedOutput, room: int | None) -> str:
    """What a command printed: all of it, or its beginning and its end as far as there is room for them in JSON."""
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
    # Backwards, the end is a beginning.
    last = _whole_last_lines(fit_json(tail[::-1], max(room - json_size(first), 1))[::-1])
    left_out = between + len(head) + len(tail) - len(first) - len(last)
    return f"{first}\n[… {size_text(left_out)} left out …]\n{last}"


def collapse_repeats(text: str) -> str:
    """A line that comes many times in a row stands there once."""
    lines: list[str] = []
    for line, same in itertools.groupby(text.split("\n")):
        times = sum(1 for _ in same)
        lines += [line] * times if times <= MOST_REPEATS else [line, f"[… repeated {times - 1:,} times more …]"]
    return "\n".join(lines)


def head_and_tail(text: str, limit: int) -> str:
    """Beginning and end of a text that is too long."""
    if len(text) <= limit:
        return text
    head, tail = _whole_first_lines(text[: limit // 3]), _whole_last_lines(text[-(limit - limit // 3) :])
    left_out = count_text(len(text) - len(head) - len(tail), "character")
    return f"{head}\n[… {left_out} left out …]\n{tail}"


def _whole_first_lines(text: str) -> str:
    """Whole lines, where that costs little."""
    at = text.rfind("\n")
    return text[:at] if at > len(text) // 2 else text


def _whole_last_lines(text: str) -> str:
    at = text.find("\n")
    return text[at + 1 :] if -1 < at < len(text) // 2 else text


class ProgressThrottle:
    """Passes on the newest text, at most every `PROGRESS_PAUSE` seconds, and never after it was closed."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._last = -PROGRESS_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._make: Callable[[], str] | None = None

    def soon(self, make: Callable[[], str]) -> None:
        """`make` is asked when the time has come; nothing is sent if it gives nothing."""
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
    """Bytes of two streams in, whole lines out, each batch sent by a `ProgressThrottle`."""

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
        if len(self._open[stream]) > LONGEST_OPEN_LINE:
            self._keep([self._open[stream]])
            self._open[stream] = ""

    def close(self) -> None:
        self._keep([rest for rest in self._open.values() if rest])
        self._throttle.close()

    def _keep(self, lines: list[str]) -> None:
        """The newest lines, as many as fit: who follows wants to see what happens now."""
        for line in lines[-MOST_PROGRESS:]:
            self._ready.append(clean_text(line[-MOST_PROGRESS:] if len(line) > MOST_PROGRESS else line))
            self._size += len(self._ready[-1]) + 1
        self._dropped += max(0, len(lines) - MOST_PROGRESS)
        while self._size > MOST_PROGRESS and len(self._ready) > 1:
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
