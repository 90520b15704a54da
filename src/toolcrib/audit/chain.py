"""The hash chain that makes a changed row visible, its key, and its head anchored outside the database.

In: the key's file, the hash before, a row's columns. Out: the row's hash, and a small file with the newest head of
every audit log that was written from here. Whoever can read the key can write a chain that verifies, which is why
the head is worth writing down elsewhere. The logs of runs have another key.

A head's line is written over in its place. It has always the same length and lies within one sector of the disk,
and one write of it is whole or not done; a new file put in its place would be forced to disk by the file system,
which costs each commit more than the commit itself. For the same reason it is not synced. Rows are durable before
it is written, so it never runs ahead of them; after a power failure it may lie a few commits behind, which `verify`
accepts, and the next commit brings it up again.
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

from toolcrib.errors import StoreError

_LENGTH = 32


def read_key(file: Path) -> bytes | None:
    """None: there is none."""
    try:
        text = file.read_text()
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, f"cannot be read: {error}") from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _LENGTH:
        raise _unusable(file, "is not a key")
    return key


def make_key(file: Path) -> bytes:
    """Of two who make it at once, both get the same."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    try:
        # With the database elsewhere, a command without a daemon is the first who needs the folder.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_bytes(_LENGTH).hex())
            stream.flush()
            # A key that a power failure takes along would leave rows that nobody can verify.
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    except OSError as error:
        raise _unusable(file, f"cannot be made: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    key = read_key(file)
    if key is None:
        raise _unusable(file, "vanished while it was made")
    return key


def _unusable(file: Path, what: str) -> StoreError:
    return StoreError(
        f"The key {file} {what}.", remedy="Free some space, check its permissions, or put back a backup of it."
    )


_encode = msgspec.msgpack.Encoder().encode


class ChainKeys:
    """What is made of the one key in the file: a hash of arguments must not say anything about the chain."""

    def __init__(self, secret: bytes) -> None:
        self.chain = hmac.digest(secret, b"toolcrib audit chain", hashlib.sha256)
        self.arguments = hmac.digest(secret, b"toolcrib audit arguments", hashlib.sha256)

    def new_chain(self) -> str:
        salt = secrets.token_hex(16)
        return salt + self._mark(salt)

    def began(self, chain: str) -> bool:
        """Whether the audit log of this id was begun with this key."""
        return hmac.compare_digest(chain[32:].encode(), self._mark(chain[:32]).encode())

    def link(self, before: str, columns: Iterable[Any]) -> str:
        """The hash of the row with these columns, `hash` itself left out."""
        return hmac.digest(self.chain, before.encode() + _encode(list(columns)), hashlib.sha256).hex()

    def _mark(self, salt: str) -> str:
        return hmac.digest(self.chain, salt.encode(), hashlib.sha256).hex()[:32]


_LINE = 256
_MOST = 64 * 1024


class ChainHead(msgspec.Struct, frozen=True, kw_only=True):
    chain: str
    """Which audit log."""
    place: str
    """A digest of where its database is."""
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
        """`FileNotFoundError` where there is none; `ValueError` if it cannot be understood."""
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            return _understood(os.pread(descriptor, _MOST, 0))

    def advance(self, head: ChainHead) -> None:
        """Of the same audit log only a later head takes the place of an earlier one."""
        with self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            content = os.pread(descriptor, _MOST, 0)
            try:
                heads = _understood(content)
            except ValueError:
                # What a power failure left of it says nothing that could be kept.
                heads = ()
            # An audit log that was begun and never written, because its first commit failed, is none.
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


def _understood(content: bytes) -> tuple[ChainHead, ...]:
    try:
        return tuple(_decoder.decode_lines(content))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _line(head: ChainHead) -> bytes:
    return _encoder.encode(head).ljust(_LINE - 1) + b"\n"
