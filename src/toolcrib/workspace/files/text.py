"""How a file's bytes stand for text.

In: the first bytes of a file, or a name that a model gave. Out: its encoding, its byte order mark, its kind of line
ends; or that it is no text. `lines` and `files` read and write by it.
"""

from __future__ import annotations

import codecs
import enum
import re
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError

HEAD = 65_536
"""So many bytes tell what a file is."""
BINARY = "binary"
"""Stands where an encoding's name stands, for bytes as they are."""

_MARKS = (
    ("utf-8", codecs.BOM_UTF8),
    ("utf-32-le", codecs.BOM_UTF32_LE),
    ("utf-32-be", codecs.BOM_UTF32_BE),
    ("utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16-be", codecs.BOM_UTF16_BE),
)
_MARK_OF = dict(_MARKS)
# Named without their byte order: what is written begins with a mark.
_MARKED = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
# Not for files, or slow beyond measure on hostile ones.
_ODD = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"})
_SHIFTING = ("iso2022", "hz")
"""A byte means something else after a shift, so no range of them can be read alone."""
_MOST_ODD = 0.1
"""Of the bytes that may be no UTF-8 in a text."""
_LONE = re.compile("[\ud800-\udfff]")
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


class Newline(enum.StrEnum):
    LF = "lf"
    CRLF = "crlf"
    CR = "cr"
    MIXED = "mixed"
    NONE = "none"

    @property
    def end(self) -> str:
        """The last character of a line. A lone CR is it only where there is nothing else: tools count by LF."""
        return "\r" if self is Newline.CR else "\n"

    @property
    def whole(self) -> str:
        return "\r\n" if self is Newline.CRLF else self.end


@dataclass(frozen=True, kw_only=True)
class Form:
    encoding: str = "utf-8"
    mark: bytes = b""
    """The byte order mark that the file begins with."""

    @property
    def errors(self) -> str:
        """Bytes that are no UTF-8 live through an edit; of other encodings they are an error."""
        return "surrogateescape" if self.encoding == "utf-8" else "strict"

    def text_of(self, data: bytes, name: str) -> str:
        """Only if the very same bytes can be made of it again."""
        try:
            text = data[len(self.mark) :].decode(self.encoding, self.errors)
            if self._encode(text) == data:
                return text
        except UnicodeError:
            pass
        raise WorkspaceError(f"{name} is no valid {self.encoding}.", remedy="Name its encoding; latin-1 fits any file.")

    def bytes_of(self, text: str, name: str) -> bytes:
        try:
            return self._encode(text)
        except UnicodeEncodeError as error:
            raise WorkspaceError(
                f"{name} holds {text[error.start]!r}, which {self.encoding} does not have.",
                remedy="Use other characters, or another encoding.",
            ) from error

    def _encode(self, text: str) -> bytes:
        return self.mark + text.encode(self.encoding, self.errors)


def form_of(head: bytes, named: str | None) -> Form | None:
    """None: it is no text, as far as one can see. A name that was given is taken at its word."""
    if named is None:
        for encoding, mark in _MARKS:
            if head.startswith(mark):
                return Form(encoding=encoding, mark=mark)
        return None if _is_binary(head) else Form()
    encoding = checked(named)
    plain = _MARKED.get(encoding, encoding)
    kin = [(name, mark) for name, mark in _MARKS if name == plain or (plain != encoding and name[:6] == plain[:6])]
    for name, mark in kin:
        if head.startswith(mark):
            return Form(encoding=name, mark=mark)
    return Form(encoding=plain)


def form_to_write(named: str | None, head: bytes) -> Form:
    """Of a file that is there the mark is kept, unless another encoding is asked for."""
    if named is None:
        for encoding, mark in _MARKS:
            if head.startswith(mark):
                return Form(encoding=encoding, mark=mark)
        return Form()
    encoding = checked(named)
    if encoding in _MARKED:
        return Form(encoding=_MARKED[encoding], mark=_MARK_OF[_MARKED[encoding]])
    mark = _MARK_OF.get(encoding, b"")
    return Form(encoding=encoding, mark=mark if mark and head.startswith(mark) else b"")


def checked(name: str) -> str:
    """The encoding's own name."""
    try:
        found = codecs.lookup(name).name
        "x".encode(found)
    except (LookupError, ValueError, UnicodeError):
        found = ""
    if not found or found.replace("_", "-") in _ODD or found.startswith(_SHIFTING):
        raise WorkspaceError(
            f"{name[:40]!r} is no encoding of texts.", remedy="Leave it out for UTF-8; latin-1, cp1252, utf-16 … work."
        )
    return found


def newline_of(text: str) -> Newline:
    both = text.count("\r\n")
    found = {
        Newline.CRLF: both,
        Newline.LF: text.count("\n") - both,
        Newline.CR: text.count("\r") - both,
    }
    kinds = [kind for kind, count in found.items() if count]
    return kinds[0] if len(kinds) == 1 else Newline.MIXED if kinds else Newline.NONE


def shown_text(text: str) -> str:
    """Without what is no Unicode, which no answer can hold: � stands there instead."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def undecodable(text: str) -> int:
    """How many bytes of the file stand in the text for themselves."""
    return 0 if text.isascii() else len(_LONE.findall(text))


def check_unicode(text: str, name: str) -> None:
    """A lone surrogate would become a byte of its own in the file."""
    if undecodable(text):
        raise WorkspaceError(f"{name} is not valid Unicode.", remedy='Bytes can be written with encoding: "binary".')


def describe(head: bytes) -> str:
    """What a file that is no text may be."""
    return next((what for magic, what in _MAGIC if head.startswith(magic)), "binary data, or text that is not UTF-8")


def _is_binary(head: bytes) -> bool:
    if b"\0" in head:
        return True
    try:
        # The last character may be cut; that is no sign.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        odd = sum("\udc80" <= letter <= "\udcff" for letter in head.decode(errors="surrogateescape"))
        return odd > 3 and odd > len(head) * _MOST_ODD
    return False
