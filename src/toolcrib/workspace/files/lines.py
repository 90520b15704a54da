"""Ranges of a text, read without reading more of the file into memory than they need.

In: a descriptor, the text's form and a range of lines, or a place to start at in bytes. Out: a `Slice`, which says
how to go on. Consecutive slices put together are the whole text. `files` asks.
"""

from __future__ import annotations

import codecs
import math
import os
import time
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.files.text import Form, Newline, newline_of
from toolcrib.workspace.words import fitting

_CHUNK = 262_144
CHEAP = 1_048_576
"""Of a file up to this size all lines are counted."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    text: str
    first: int | None = None
    """The number of the first line; None if it starts at a byte, or there is none."""
    last: int | None = None
    total: int | None = None
    """None: not known without reading on."""
    next_line: int | None = None
    next_offset: int | None = None
    """Where to go on if that is within a line. Nothing left: neither of the two."""
    cut: bool = False
    """Less than was asked for: it would have been too long."""

    @property
    def lines(self) -> tuple[int, float] | None:
        """The first line and the last of those that are here whole; where the file ends with them, there is no last."""
        if self.next_offset is not None or (self.first is None and self.total is None):
            return None
        return self.first or 1, math.inf if self.next_line is None else self.next_line - 1


class Source:
    """The text from some byte on, chunk by chunk."""

    def __init__(self, descriptor: int, form: Form, *, head: bytes, end: float) -> None:
        self._descriptor = descriptor
        self._form = form
        self._head = head
        self._end = end
        self.size = os.fstat(descriptor).st_size
        self.first = len(form.mark)
        """The byte that the text begins at."""
        self.start(0)

    def start(self, offset: int) -> None:
        self._offset = max(offset, self.first)
        self._decoder = codecs.getincrementaldecoder(self._form.encoding)(self._form.errors)

    def newline(self) -> Newline:
        """As the file begins. It stays the same for every range, so lines have the same numbers in all of them."""
        decoder = codecs.getincrementaldecoder(self._form.encoding)(self._form.errors)
        text = self._decode(decoder, self._head[self.first :])
        # The other half of a cut CRLF is not seen.
        return newline_of(text.removesuffix("\r") if self.size > len(self._head) else text)

    def chunk(self) -> str:
        """Empty at the end."""
        while True:
            if time.monotonic() > self._end:
                raise WorkspaceError(
                    "The file is too long to be counted through in time.",
                    remedy="Give a byte as offset instead.",
                    data={"argument": "offset"},
                )
            data = self._head[self._offset :] or self._read()
            text = self._decode(self._decoder, data)
            self._offset += len(data)
            if text or not data:
                return text

    def _read(self) -> bytes:
        # A buffer is made for all that is asked for. The file may have grown: somewhat beyond its end, too.
        return os.pread(self._descriptor, min(_CHUNK, max(self.size - self._offset, 0) + 512), self._offset)

    def offset_of(self, unused: str) -> int:
        """Where the text begins that was read and not used."""
        pending = self._decoder.getstate()[0]
        return self._offset - len(pending) - self.length_of(unused)

    def length_of(self, text: str) -> int:
        return len(text.encode(self._form.encoding, self._form.errors))

    def _decode(self, decoder: codecs.IncrementalDecoder, data: bytes) -> str:
        try:
            return decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise WorkspaceError(
                f"The bytes near {self._offset + error.start} are no {self._form.encoding}.",
                remedy='Name another encoding (latin-1 reads any byte), or "binary" for base64.',
                data={"argument": "encoding"},
            ) from error


def read_lines(source: Source, *, line_end: str, start: int, count: int | None, most: int, room: int) -> Slice:
    """Lines from `start` (the first is 1): as many as asked for, as `most` bytes hold, and as there is room for."""
    unused = _skip(source, line_end, start)
    begins = source.offset_of(unused)
    asked, rest = _take(source, unused, line_end, count, most)
    text = fitting(_fitting(asked, most), room)
    cut = len(text) < len(asked)
    if cut and line_end in text:
        text = text[: text.rindex(line_end) + 1]
    rest = asked[len(text) :] + rest or source.chunk()
    lines = text.count(line_end) + (text != "" and not text.endswith(line_end))
    last = start - 1 + lines
    if not lines:
        if start > 1:
            raise _no_line(start, last)
        return Slice(text="", total=0)
    if not rest:
        return Slice(text=text, first=start, last=last, total=last)
    if not text.endswith(line_end):
        return Slice(text=text, first=start, last=start, next_offset=begins + source.length_of(text), cut=True)
    total = last + _count(source, rest, line_end) if source.size <= CHEAP else None
    return Slice(text=text, first=start, last=last, total=total, next_line=last + 1, cut=cut)


def read_from(source: Source, *, offset: int, most: int, room: int) -> Slice:
    """From a byte on, as `most` bytes hold and there is room for; for lines that are too long to be given whole."""
    if offset > source.size:
        raise no_byte(offset, source.size)
    source.start(offset)
    asked, _ = _take(source, "", "\n", None, most)
    text = fitting(_fitting(asked, most), room)
    cut = len(text) < len(asked) or source.chunk() != ""
    ends = max(offset, source.first) + source.length_of(text)
    return Slice(text=text, next_offset=ends if cut else None, cut=cut)


def no_byte(offset: int, size: int) -> WorkspaceError:
    return WorkspaceError(f"There is no byte {offset}: the file has {size}.", remedy="Start earlier.")


def _skip(source: Source, line_end: str, start: int) -> str:
    """What was read of the line to start with, and of those after it."""
    line, piece, missing = 1, "", start - 1
    while missing:
        ends_at = piece[-1:]
        piece = source.chunk()
        if not piece:
            raise _no_line(start, line - 1 + (ends_at not in ("", line_end)))
        count = piece.count(line_end)
        if count >= missing:
            return piece.split(line_end, missing)[-1]
        line, missing = line + count, missing - count
    return ""


def _take(source: Source, unused: str, line_end: str, count: int | None, most: int) -> tuple[str, str]:
    """The text asked for, or somewhat more than `most` of it; and what was read beyond."""
    taken: list[str] = []
    size, left = 0, count
    piece = unused or source.chunk()
    while piece:
        rest = ""
        if left is not None:
            if piece.count(line_end) >= left:
                rest = piece.split(line_end, left)[-1]
                piece = piece[: len(piece) - len(rest)]
            left -= piece.count(line_end)
        taken.append(piece)
        size += len(piece)
        if left == 0 or size > most:
            return "".join(taken), rest
        piece = source.chunk()
    return "".join(taken), ""


def _count(source: Source, piece: str, line_end: str) -> int:
    count, ends_at = 0, line_end
    while piece:
        count, ends_at = count + piece.count(line_end), piece[-1]
        piece = source.chunk()
    return count + (ends_at != line_end)


def _fitting(text: str, most: int) -> str:
    """So much of the text as takes up `most` bytes in UTF-8, but one character at least."""
    if len(text) * 4 <= most:
        return text
    data = text.encode(errors="surrogateescape")
    if len(data) <= most:
        return text
    end = most
    while end > max(most - 3, 0) and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode(errors="surrogateescape") or text[:1]


def _no_line(start: int, total: int) -> WorkspaceError:
    return WorkspaceError(f"There is no line {start}: the file has {total}.", remedy="Ask for lines that it has.")
