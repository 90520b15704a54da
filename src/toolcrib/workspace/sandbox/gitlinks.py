"""Which folders of a repository are repositories of their own: what git's index says of submodules.

In: the bytes of an index (versions 2 to 4), and until when it must be read. Out: paths. Git goes into such a folder by
itself, for `git status` at the top, and follows the configuration that it finds there; so its `.git` matters as much as
the top's own. The bytes may be anybody's: few of them must not become many, nor take long.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

_HEADER = struct.Struct(">4sII")
_MODE_AT = 24
_STAT_SIZE = 40
_HASHES = (20, 32)
"""Bytes of an object's name: SHA-1, SHA-256."""
_GITLINK = 0o160000
_EXTENDED = 0x4000
LONGEST_PATH = 4096
MOST_ENTRIES = 2_000_000
MOST_LINKS = 250
_LONGEST_NUMBER = 5
_CLOCK_EVERY = 10_000


class NotAnIndex(ValueError):
    """Not what git would read, or not as we read it."""


class TooMuch(NotAnIndex):
    """An index such as no project has, or which takes too long to read."""


def gitlinks(data: bytes, until: float = float("inf")) -> list[bytes]:
    """Paths of submodules; NotAnIndex if it cannot be read, TooMuch if not within the bounds."""
    if not data:
        return []
    for hash_size in _HASHES:
        try:
            found = _links(data, hash_size, until)
        except TooMuch:
            raise
        except (NotAnIndex, struct.error, IndexError):
            continue
        if b"" in found:
            # In a split index a changed entry has no name of its own. Git never makes a submodule of a file that way.
            raise NotAnIndex("a submodule without a path")
        return found
    raise NotAnIndex("no index of version 2, 3 or 4")


def _links(data: bytes, hash_size: int, until: float) -> list[bytes]:
    found: list[bytes] = []
    for number, (path, mode) in enumerate(_entries(data, hash_size)):
        if mode & 0o170000 == _GITLINK:
            found.append(path)
        if len(found) > MOST_LINKS:
            raise TooMuch(f"more than {MOST_LINKS} submodules")
        if number % _CLOCK_EVERY == 0 and time.monotonic() > until:
            raise TooMuch("takes too long to read")
    return found


def _entries(data: bytes, hash_size: int) -> Iterator[tuple[bytes, int]]:
    mark, version, count = _HEADER.unpack_from(data)
    if mark != b"DIRC" or version not in {2, 3, 4}:
        raise NotAnIndex("no index")
    if count > MOST_ENTRIES:
        raise TooMuch(f"more than {MOST_ENTRIES} files")
    at = _HEADER.size
    before = b""
    for _ in range(count):
        begin = at
        (mode,) = struct.unpack_from(">I", data, begin + _MODE_AT)
        if mode & 0o170000 not in {0o040000, 0o100000, 0o120000, _GITLINK}:
            raise NotAnIndex("an entry of no known kind")
        at = begin + _STAT_SIZE + hash_size
        (flags,) = struct.unpack_from(">H", data, at)
        at += 4 if version >= 3 and flags & _EXTENDED else 2
        if version == 4:
            cut, at = _number(data, at)
            if cut > len(before):
                raise NotAnIndex("a path that is shorter than nothing")
            end = _end_of_path(data, at)
            path = before[: len(before) - cut] + data[at:end]
            at = end + 1
            if len(path) > LONGEST_PATH:
                raise NotAnIndex("a path that is too long")
        else:
            end = _end_of_path(data, at)
            path = data[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        before = path
        yield path, mode


def _end_of_path(data: bytes, at: int) -> int:
    end = data.find(b"\0", at, at + LONGEST_PATH + 1)
    if end < 0:
        raise NotAnIndex("a path that is too long")
    return end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """As git packs offsets: seven bits a byte, the high ones first."""
    value, begin = data[at] & 0x7F, at
    while data[at] & 0x80:
        at += 1
        if at - begin >= _LONGEST_NUMBER:
            raise NotAnIndex("a number that is too long")
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
