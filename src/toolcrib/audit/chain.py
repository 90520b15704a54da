"""The hash chain that reveals a changed row, its key, and its head anchored outside the database.

In: the key's file, the previous hash, a row's columns. Out: the row's hash, and a small file with the newest head of
every audit log that was written from here. Anyone who can read the key can forge a chain that verifies, so it is worth
storing the head elsewhere. The logs of runs have another key.

A head's line is overwritten in place. It always has the same length and lies within one disk sector, so a write is
atomic. Replacing the whole file would make the file system flush it to disk, which costs more than the commit itself.
For the same reason it is not synced. Rows are durable before it is written, so it is never ahead of them; after a power
failure it may be a few commits behind, which `verify` accepts, and the next commit brings it up to date.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode


class ChainKeys:
    """The keys derived from the one in the file: a hash of arguments must reveal nothing about the chain."""

    def __init__(self, secret: bytes) -> None:
        self.chain = hmac.digest(secret, b"toolcrib audit chain", hashlib.sha256)
        self.arguments = hmac.digest(secret, b"toolcrib audit arguments", hashlib.sha256)

    def new_chain(self) -> str:
        salt = secrets.token_hex(16)
        return salt + self._mark(salt)

    def began(self, chain: str) -> bool:
        """Whether the audit log with this id was started with this key."""
        return hmac.compare_digest(chain[32:].encode(), self._mark(chain[:32]).encode())

    def link(self, before: str, columns: Iterable[Any]) -> str:
        """The hash of the row with these columns (without `hash` itself)."""
        return hmac.digest(self.chain, before.encode() + _encode(list(columns)), hashlib.sha256).hex()

    def _mark(self, salt: str) -> str:
        return hmac.digest(self.chain, salt.encode(), hashlib.sha256).hex()[:32]


_LINE_LENGTH = 256
_MAX_ANCHOR_BYTES = 64 * 1024


class ChainHead(msgspec.Struct, frozen=True, kw_only=True):
    chain: str
    """The audit log's id."""
    place: str
    """A digest of its database's location."""
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


_decoder = msgspec.json.Decoder(ChainHead)
_encoder = msgspec.json.Encoder()


class HeadAnchor:
    def __init__(self, file: Path) -> None:
        self.file = file

    def heads(self) -> tuple[ChainHead, ...]:
        """Raises `FileNotFoundError` if there is no file and `ValueError` if it is malformed."""
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            return _decoded(os.pread(descriptor, _MAX_ANCHOR_BYTES, 0))

    def advance(self, head: ChainHead) -> None:
        """Replaces an audit log's head only with a later one."""
        with self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            content = os.pread(descriptor, _MAX_ANCHOR_BYTES, 0)
            try:
                heads = _decoded(content)
            except ValueError:
                # Damaged by a power failure: nothing in it can be used.
                heads = ()
            # Ignore an audit log that was started but has no entries, because its first commit failed.
            heads = tuple(old for old in heads if old.seq or old.place != head.place or old.chain == head.chain)
            index = next((index for index, old in enumerate(heads) if old.chain == head.chain), len(heads))
            if index < len(heads) and heads[index].seq >= head.seq:
                return
            if len(content) == len(heads) * _LINE_LENGTH:
                os.pwrite(descriptor, _line(head), index * _LINE_LENGTH)
            else:
                # A new head, or the file was edited.
                lines = [_line(new) for new in (*heads[:index], head, *heads[index + 1 :])]
                os.ftruncate(descriptor, len(lines) * _LINE_LENGTH)
                os.pwrite(descriptor, b"".join(lines), 0)

    @contextlib.contextmanager
    def _locked(self, flags: int, kind: int) -> Iterator[int]:
        descriptor = os.open(self.file, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield descriptor
        finally:
            os.close(descriptor)


def _decoded(content: bytes) -> tuple[ChainHead, ...]:
    try:
        return tuple(_decoder.decode_lines(content))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _line(head: ChainHead) -> bytes:
    return _encoder.encode(head).ljust(_LINE_LENGTH - 1) + b"\n"
