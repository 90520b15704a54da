"""What the answers of the looking tools have in common: how names are shown, how much fits, when to stop looking.

In: names, sizes, a scene. Out: words. `look`, `structure` and `search` use it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolcrib.workspace.tool import Scene
from toolcrib.workspace.words import room_of

if TYPE_CHECKING:
    from toolcrib.workspace.looking.walk import Walk

_SHARE = 0.1
"""Of the time for a call, kept back for answering with what was found until then."""


def time_for(scene: Scene, tool: str) -> float:
    """When to stop looking, by the monotonic clock."""
    limit = scene.settings.limits.seconds[tool]
    return min(scene.deadline, time.monotonic() + limit) - _SHARE * limit


def shown(parts: Sequence[str]) -> str:
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


def left_out(count: int, what: str) -> str:
    """What .gitignore kept from being shown, for the first line of an answer."""
    return f" ({count:,} ignored by .gitignore not {what}; ignored: true does)" if count else ""


def incomplete(walk: Walk, advice: str) -> str:
    """Why not everything was seen; empty if it was."""
    if not walk.stops:
        return ""
    return f"Not everything was looked at: {', and '.join(walk.stops)}. {advice}"


class Tray:
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
        needed = sum(room_of(line) + 1 for line in lines)
        self.is_full = self.is_full or self._things == 0 or needed > self.room
        if self.is_full:
            return False
        self._things -= 1
        self.room -= needed
        self.lines += lines
        return True
