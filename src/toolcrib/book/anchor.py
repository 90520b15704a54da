"""The head of the chain, kept outside the database: what makes a cut-off end visible.

In: the head after each commit. Out: a small file with a line for every book that was written from here. A book's line
only goes forwards, also between processes.

A line is written over in its place. It has always the same length and lies within one sector of the disk, and one write
of it is whole or not done; a new file put in its place would be forced to disk by the file system, which costs each
commit more than the commit itself. For the same reason it is not synced. Rows are durable before it is written, so it
never runs ahead of them; after a power failure it may lie a few commits behind, which `verify` accepts, and the next
commit brings it up again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_LINE = 256
_MOST = 64 * 1024


class Head(msgspec.Struct, frozen=True, kw_only=True):
    chain: str
    """Which book."""
    place: str
    """A digest of where its database is."""
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


_decoder = msgspec.json.Decoder(Head)
_encoder = msgspec.json.Encoder()


class Anchor:
    def __init__(self, file: Path) -> None:
        self.file = file

    def heads(self) -> tuple[Head, ...]:
        """`FileNotFoundError` where there is none; `ValueError` if it cannot be understood."""
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            return _understood(os.pread(descriptor, _MOST, 0))

    def advance(self, head: Head) -> None:
        """Of the same book only a later head takes the place of an earlier one."""
        with self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            content = os.pread(descriptor, _MOST, 0)
            try:
                heads = _understood(content)
            except ValueError:
                # What a power failure left of it says nothing that could be kept.
                heads = ()
            # A book that was begun and never written, because its first commit failed, is none.
            heads = tuple(one for one in heads if one.seq or one.place != head.place or one.chain == head.chain)
            place = next((place for place, one in enumerate(heads) if one.chain == head.chain), len(heads))
            if place < len(heads) and heads[place].seq >= head.seq:
                return
            if len(content) == len(heads) * _LINE:
                os.pwrite(descriptor, _line(head), place * _LINE)
            else:
                # New lines, or a person's hand, have left it in another shape.
                lines = [_line(one) for one in (*heads[:place], head, *heads[place + 1 :])]
                os.ftruncate(descriptor, len(lines) * _LINE)
                os.pwrite(descriptor, b"".join(lines), 0)

    @contextlib.contextmanager
    def _locked(self, flags: int, kind: int) -> Iterator[int]:
        descriptor = os.open(self.file, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield descriptor
        finally:
            os.close(descriptor)


def _understood(content: bytes) -> tuple[Head, ...]:
    try:
        return tuple(_decoder.decode_lines(content))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _line(head: Head) -> bytes:
    return _encoder.encode(head).ljust(_LINE - 1) + b"\n"
