"""Files as text: encoding, line ends, and ranges that load no more of the file than needed.

In: a file's first bytes or an encoding's name, a descriptor, a range of lines or a start offset. Out: a `TextEncoding`,
or None for a binary file; a `TextRange`, which says where to continue. Consecutive ranges add up to the whole text.
`files` and `edits` use it.
"""

from __future__ import annotations

import codecs
import enum
import math
import os
import time
from collections.abc import Collection
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.text import count_undecodable, fit_json

SAMPLE_BYTES = 65_536
"""Bytes that are read to detect the kind of a file."""
BINARY = "binary"
"""Used as an encoding's name for raw bytes."""

# The order matters: the mark of UTF-32-LE begins with that of UTF-16-LE.
_BOMS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
# Encodings without a byte order: written files begin with a mark.
_WITH_BOM = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
# Not meant for files, or extremely slow on hostile ones.
_ODD = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"})
_SHIFTING = ("iso2022", "hz")
"""The meaning of a byte depends on earlier ones, so no range can be read alone."""
_MAX_ODD_SHARE = 0.1
"""Share of bytes in a text that may be invalid UTF-8."""
_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\0asm", "a WebAssembly module"),
)


class NewlineStyle(enum.StrEnum):
    LF = "lf"
    CRLF = "crlf"
    CR = "cr"
    MIXED = "mixed"
    NONE = "none"

    @property
    def end(self) -> str:
        """The line end. A lone CR counts only if there is no LF, because tools count lines by LF."""
        return "\r" if self is NewlineStyle.CR else "\n"

    @property
    def whole(self) -> str:
        return "\r\n" if self is NewlineStyle.CRLF else self.end


@dataclass(frozen=True, kw_only=True)
class TextEncoding:
    encoding: str = "utf-8"
    mark: bytes = b""
    """The byte order mark that the file begins with."""

    @property
    def errors(self) -> str:
        """Invalid bytes survive an edit in UTF-8; in other encodings they are an error."""
        return "surrogateescape" if self.encoding == "utf-8" else "strict"

    def text_of(self, data: bytes, name: str) -> str:
        """Refuses a text that would not encode to the same bytes again."""
        try:
            text = data[len(self.mark) :].decode(self.encoding, self.errors)
            if self._encode(text) == data:
                return text
        except UnicodeError:
            pass
        raise WorkspaceError(
            f"{name} is not valid {self.encoding}.", remedy="Name its encoding; latin-1 reads any file."
        )

    def bytes_of(self, text: str, name: str) -> bytes:
        try:
            return self._encode(text)
        except UnicodeEncodeError as error:
            raise WorkspaceError(
                f"{name} contains {text[error.start]!r}, which {self.encoding} cannot encode.",
                remedy="Use other characters, or another encoding.",
            ) from error

    def _encode(self, text: str) -> bytes:
        return self.mark + text.encode(self.encoding, self.errors)


def detect_encoding(head: bytes, named: str | None) -> TextEncoding | None:
    """None: it does not look like text. A given name is used without detection."""
    if named is None:
        return _marked_as(head, _BOMS) or (None if _is_binary(head) else TextEncoding())
    encoding = checked_encoding(named)
    plain = _WITH_BOM.get(encoding, encoding)
    kin = [name for name in _BOMS if name == plain or (plain != encoding and name[:6] == plain[:6])]
    return _marked_as(head, kin) or TextEncoding(encoding=plain)


def encoding_to_write(named: str | None, head: bytes) -> TextEncoding:
    """Keeps the byte order mark of an existing file, unless another encoding is requested."""
    if named is None:
        return _marked_as(head, _BOMS) or TextEncoding()
    encoding = checked_encoding(named)
    if encoding in _WITH_BOM:
        return TextEncoding(encoding=_WITH_BOM[encoding], mark=_BOMS[_WITH_BOM[encoding]])
    return _marked_as(head, [encoding]) or TextEncoding(encoding=encoding)


def _marked_as(head: bytes, names: Collection[str]) -> TextEncoding | None:
    """By the file's byte order mark, if it belongs to one of these."""
    fitting = (TextEncoding(encoding=name, mark=mark) for name, mark in _BOMS.items() if name in names)
    return next((form for form in fitting if head.startswith(form.mark)), None)


def checked_encoding(name: str) -> str:
    """The encoding's canonical name."""
    try:
        found = codecs.lookup(name).name
        "x".encode(found)
    except (LookupError, ValueError, UnicodeError):
        found = ""
    if not found or found.replace("_", "-") in _ODD or found.startswith(_SHIFTING):
        raise WorkspaceError(
            f"{name[:40]!r} is not a text encoding.", remedy="Omit it for UTF-8; latin-1, cp1252, utf-16 … work."
        )
    return found


def newline_style(text: str) -> NewlineStyle:
    both = text.count("\r\n")
    found = {
        NewlineStyle.CRLF: both,
        NewlineStyle.LF: text.count("\n") - both,
        NewlineStyle.CR: text.count("\r") - both,
    }
    kinds = [kind for kind, count in found.items() if count]
    return kinds[0] if len(kinds) == 1 else NewlineStyle.MIXED if kinds else NewlineStyle.NONE


def check_unicode(text: str, name: str) -> None:
    """Refuses lone surrogates, which would become raw bytes in the file."""
    if count_undecodable(text):
        raise WorkspaceError(f"{name} is not valid Unicode.", remedy='Bytes can be written with encoding: "binary".')


def describe_binary(head: bytes) -> str:
    """The likely kind of a binary file."""
    return next((what for magic, what in _MAGIC if head.startswith(magic)), "binary data, or text that is not UTF-8")


def _is_binary(head: bytes) -> bool:
    if b"\0" in head:
        return True
    try:
        # The last character may be cut, which is not an error.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        odd = sum("\udc80" <= letter <= "\udcff" for letter in head.decode(errors="surrogateescape"))
        return odd > 3 and odd > len(head) * _MAX_ODD_SHARE
    return False


_CHUNK = 262_144
COUNTED_BYTES = 1_048_576
"""All lines are counted in files up to this size."""


@dataclass(frozen=True, kw_only=True)
class TextRange:
    text: str
    first: int | None = None
    """The number of the first line; None if the range starts at a byte or is empty."""
    last: int | None = None
    total: int | None = None
    """None: unknown without reading further."""
    next_line: int | None = None
    next_offset: int | None = None
    """Where to continue within a line. At the end of the file, both are None."""
    cut: bool = False
    """Less than requested, because it would be too long."""

    @property
    def lines(self) -> tuple[int, float] | None:
        """The first and last complete line; the last is infinity if the range reaches the end of the file."""
        if self.next_offset is not None or (self.first is None and self.total is None):
            return None
        return self.first or 1, math.inf if self.next_line is None else self.next_line - 1


class TextSource:
    """Reads text from an offset, chunk by chunk."""

    def __init__(self, descriptor: int, form: TextEncoding, *, head: bytes, end: float) -> None:
        self._descriptor = descriptor
        self._form = form
        self._head = head
        self._end = end
        self.size = os.fstat(descriptor).st_size
        self.first = len(form.mark)
        """The offset at which the text begins."""
        self.start(0)

    def start(self, offset: int) -> None:
        self._offset = max(offset, self.first)
        self._decoder = codecs.getincrementaldecoder(self._form.encoding)(self._form.errors)

    def newline(self) -> NewlineStyle:
        """From the start of the file, so that lines have the same numbers in every range."""
        decoder = codecs.getincrementaldecoder(self._form.encoding)(self._form.errors)
        text = self._decode(decoder, self._head[self.first :])
        # The other half of a cut CRLF is not seen.
        return newline_style(text.removesuffix("\r") if self.size > len(self._head) else text)

    def chunk(self) -> str:
        """Empty at the end."""
        while True:
            if time.monotonic() > self._end:
                raise WorkspaceError(
                    "The file is too long to count its lines in time.",
                    remedy="Use offset (bytes) instead.",
                    data={"argument": "offset"},
                )
            data = self._head[self._offset :] or self._read()
            text = self._decode(self._decoder, data)
            self._offset += len(data)
            if text or not data:
                return text

    def _read(self) -> bytes:
        # Python allocates a buffer of the requested size. Reads a little more, because the file may have grown.
        return os.pread(self._descriptor, min(_CHUNK, max(self.size - self._offset, 0) + 512), self._offset)

    def offset_of(self, unused: str) -> int:
        """The offset of text that was read but not used."""
        pending = self._decoder.getstate()[0]
        return self._offset - len(pending) - self.length_of(unused)

    def length_of(self, text: str) -> int:
        return len(text.encode(self._form.encoding, self._form.errors))

    def _decode(self, decoder: codecs.IncrementalDecoder, data: bytes) -> str:
        try:
            return decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise WorkspaceError(
                f"The bytes near {self._offset + error.start} are not {self._form.encoding}.",
                remedy='Name another encoding (latin-1 reads any byte), or "binary" for base64.',
                data={"argument": "encoding"},
            ) from error


def read_lines(source: TextSource, *, line_end: str, start: int, count: int | None, most: int, room: int) -> TextRange:
    """Lines from `start` (the first is 1), limited by count, by `most` bytes, and by the room in JSON."""
    unused = _skip(source, line_end, start)
    begins = source.offset_of(unused)
    asked, rest = _take(source, unused, line_end, count, most)
    text = fit_json(_fit_utf8(asked, most), room)
    cut = len(text) < len(asked)
    if cut and line_end in text:
        text = text[: text.rindex(line_end) + 1]
    rest = asked[len(text) :] + rest or source.chunk()
    lines = text.count(line_end) + (text != "" and not text.endswith(line_end))
    last = start - 1 + lines
    if not lines:
        if start > 1:
            raise _no_line(start, last)
        return TextRange(text="", total=0)
    if not rest:
        return TextRange(text=text, first=start, last=last, total=last)
    if not text.endswith(line_end):
        return TextRange(text=text, first=start, last=start, next_offset=begins + source.length_of(text), cut=True)
    total = last + _count(source, rest, line_end) if source.size <= COUNTED_BYTES else None
    return TextRange(text=text, first=start, last=last, total=total, next_line=last + 1, cut=cut)


def read_from(source: TextSource, *, offset: int, most: int, room: int) -> TextRange:
    """Text from a byte offset, limited by `most` bytes and the room in JSON; for lines that are too long."""
    if offset > source.size:
        raise no_such_byte(offset, source.size)
    source.start(offset)
    asked, _ = _take(source, "", "\n", None, most)
    text = fit_json(_fit_utf8(asked, most), room)
    cut = len(text) < len(asked) or source.chunk() != ""
    ends = max(offset, source.first) + source.length_of(text)
    return TextRange(text=text, next_offset=ends if cut else None, cut=cut)


def no_such_byte(offset: int, size: int) -> WorkspaceError:
    return WorkspaceError(f"There is no byte {offset}: the file has {size}.", remedy="Start earlier.")


def _skip(source: TextSource, line_end: str, start: int) -> str:
    """Text read so far, from the start line on."""
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


def _take(source: TextSource, unused: str, line_end: str, count: int | None, most: int) -> tuple[str, str]:
    """The requested text, or slightly more than `most` bytes of it; and the rest that was read."""
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


def _count(source: TextSource, piece: str, line_end: str) -> int:
    count, ends_at = 0, line_end
    while piece:
        count, ends_at = count + piece.count(line_end), piece[-1]
        piece = source.chunk()
    return count + (ends_at != line_end)


def _fit_utf8(text: str, most: int) -> str:
    """The beginning of the text that fits into `most` bytes of UTF-8; at least one character."""
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
    return WorkspaceError(f"There is no line {start}: the file has {total}.", remedy="Ask for existing lines.")
