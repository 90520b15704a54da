"""Which folders of a repository are repositories of their own: what git's index says of submodules.

In: the bytes of an index (versions 2 to 4). Out: paths. Git goes into such a folder by itself, for `git status` at the
top, and follows the configuration that it finds there; so its `.git` matters as much as the top's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">4sII")
_MODE_AT = 24
_STAT_SIZE = 40
_HASHES = (20, 32)
"""Bytes of an object's name: SHA-1, SHA-256."""
_GITLINK = 0o160000
_EXTENDED = 0x4000


class NotAnIndex(ValueError):
    """Not what git would read, or not as we read it."""


def gitlinks(data: bytes) -> list[bytes]:
    """Paths of submodules; NotAnIndex if it cannot be read."""
    if not data:
        return []
    for hash_size in _HASHES:
        try:
            found = [path for path, mode in _entries(data, hash_size) if mode & 0o170000 == _GITLINK]
        except (NotAnIndex, struct.error, IndexError):
            continue
        if b"" in found:
            # In a split index a changed entry has no name of its own. Git never makes a submodule of a file that way.
            raise NotAnIndex("a submodule without a path")
        return found
    raise NotAnIndex("no index of version 2, 3 or 4")


def _entries(data: bytes, hash_size: int) -> Iterator[tuple[bytes, int]]:
    mark, version, count = _HEADER.unpack_from(data)
    if mark != b"DIRC" or version not in {2, 3, 4}:
        raise NotAnIndex("no index")
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
            end = data.index(b"\0", at)
            path = before[: len(before) - cut] + data[at:end]
            at = end + 1
        else:
            end = data.index(b"\0", at)
            path = data[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        before = path
        yield path, mode


def _number(data: bytes, at: int) -> tuple[int, int]:
    """As git packs offsets: seven bits a byte, the high ones first."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
