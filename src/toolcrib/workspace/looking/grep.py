"""The lines of one file that a pattern fits.

In: an opened file, a pattern, how many lines around. Out: `Line`s in order, or that the file is binary. A file is read
in pieces that end where a line ends, so its size does not matter. `search` opens the files.
"""

from __future__ import annotations

import codecs
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from toolcrib.workspace.patterns.dialect import Pattern

PIECE = 1024 * 1024
_FIRST_PIECE = 64 * 1024
"""Smaller: it is all of most files, and enough to know most binary ones."""
LONGEST_LINE = 8 * PIECE
"""A longer one is searched in pieces of this size, as if it were several."""
MOST_TEXT = 300
"""Characters of a line that are shown."""
_BEFORE_MATCH = 100
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Around:
    """Lines before and after a match that are shown with it."""

    before: int = 0
    after: int = 0


class Binary(Exception):
    """The file holds a NUL byte, so it is no text."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    before: list[str]
    after: list[str]


class Written(NamedTuple):
    """A line of the answer: one that matches, or one beside it."""

    number: int
    text: str
    is_match: bool


@dataclass(slots=True)
class _Piece:
    data: bytes
    begin: int
    """What stands before was searched with the piece before, and is here for the lines around."""
    stop: int
    """What stands after is searched with the next piece."""
    first_line: int
    """The number of the line that the data begins with."""


def lines_of(descriptor: int, pattern: Pattern, around: Around, *, is_over: Callable[[], bool]) -> Iterator[Line]:
    """Raises Binary whenever it comes upon a NUL byte, so lines that came before do not count then."""
    for piece in _pieces(descriptor, max(around.before, around.after), keep_returns=pattern.carriage_returns):
        if is_over():
            return
        yield from _lines(piece, pattern, around)


def written_around(matches: Iterator[Line], *, most: int, room: int) -> list[list[Written]]:
    """Each match of a file with the lines around it, but none twice: not what is shown with the match before, nor the
    next match and what is shown with it. No more are looked for than `most`, nor any after those that fill the room.
    """
    found: list[list[Written]] = []
    last = 0
    line = next(matches, None)
    while line is not None and len(found) < most and room >= 0:
        following = next(matches, None)
        before = enumerate(line.before, line.number - len(line.before))
        after = enumerate(line.after, line.number + 1)
        end = math.inf if following is None else following.number
        written = [
            *(Written(number, text, is_match=False) for number, text in before if number > last),
            Written(line.number, line.text, is_match=True),
            *(Written(number, text, is_match=False) for number, text in after if number < end),
        ]
        found.append(written)
        # In an answer none takes less than its letters.
        room -= sum(len(text) for _, text, _ in written)
        last = line.number + len(line.after)
        line = following
    return found


def _pieces(descriptor: int, context: int, *, keep_returns: bool) -> Iterator[_Piece]:
    data = b""
    begin = 0
    first_line = 1
    size = _FIRST_PIECE
    held = b""
    while True:
        new = os.read(descriptor, size)
        is_last = len(new) < size
        if b"\0" in new:
            raise Binary
        if size == _FIRST_PIECE:
            new = new.removeprefix(codecs.BOM_UTF8)
            size = PIECE
        if not keep_returns:
            new, held = _with_plain_ends(held + new, is_last=is_last)
        data += new
        # The lines after the last one that is searched must be here as well.
        stop = len(data) if is_last else _back(data, len(data), context + 1)
        if stop <= begin and not is_last:
            if len(data) - begin < LONGEST_LINE:
                continue
            stop = len(data)
        yield _Piece(data, begin, stop, first_line)
        if is_last:
            return
        kept = _back(data, stop, context + 1)
        first_line += data.count(b"\n", 0, kept)
        data = data[kept:]
        begin = stop - kept


def _with_plain_ends(new: bytes, *, is_last: bool) -> tuple[bytes, bytes]:
    """And what has to wait: the other half of a line's end may come with the next piece."""
    held = b"\r" if new.endswith(b"\r") and not is_last else b""
    new = new.removesuffix(held)
    return new.replace(b"\r\n", b"\n") if b"\r" in new else new, held


def _back(data: bytes, end: int, lines: int) -> int:
    """Where the line begins that stands so many line ends before `end`; 0 if there are fewer."""
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _lines(piece: _Piece, pattern: Pattern, around: Around) -> Iterator[Line]:
    data = piece.data
    # A line's end is no empty line of its own.
    end = piece.stop - 1 if data[piece.stop - 1 : piece.stop] == b"\n" else piece.stop
    at = piece.begin
    counted, number = 0, piece.first_line
    while at <= end and at < piece.stop:
        found = pattern.regex.search(data, at, end)
        if found is None:
            return
        first = data.rfind(b"\n", 0, found.start()) + 1
        last = data.find(b"\n", found.start(), piece.stop)
        last = piece.stop if last < 0 else last
        number += data.count(b"\n", counted, first)
        counted = first
        text = _shown(data[first:last], found.start() - first)
        yield Line(number, text, _before(data, first, around.before), _after(data, last, around.after))
        at = last + 1


def _before(data: bytes, first: int, context: int) -> list[str]:
    begin = _back(data, first, context + 1)
    return [_start(line) for line in data[begin:first].split(b"\n")[:-1]] if context else []


def _after(data: bytes, last: int, context: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < context and last + 1 < len(data):
        first = last + 1
        last = data.find(b"\n", first)
        last = len(data) if last < 0 else last
        lines.append(_start(data[first:last]))
    return lines


def _start(line: bytes) -> str:
    # Four bytes are the longest character.
    text = line[: MOST_TEXT * 4 + 4].decode(errors="replace").removesuffix("\r")
    return text[:MOST_TEXT] + _CUT if len(text) > MOST_TEXT else text


def _shown(line: bytes, at: int) -> str:
    """The line, or what stands around the match if it is long."""
    if len(line) <= MOST_TEXT:
        return line.decode(errors="replace").removesuffix("\r")
    begin = max(0, at - _BEFORE_MATCH * 4)
    window = line[begin : at + MOST_TEXT * 4]
    text = window.decode(errors="replace").removesuffix("\r")
    offset = len(line[begin:at].decode(errors="replace"))
    skip = max(0, offset - _BEFORE_MATCH)
    cut_before = begin + skip > 0
    kept = text[skip : skip + MOST_TEXT]
    cut_after = skip + MOST_TEXT < len(text) or at + MOST_TEXT * 4 < len(line)
    return f"{_CUT if cut_before else ''}{kept}{_CUT if cut_after else ''}"
