"""The chain: each row's hash covers the row and the hash before it, keyed, so that none can be changed unseen.

In: the key, the hash before, a row's columns. Out: the row's hash. A book begins with a chain id of its own, which
stands for "the hash before" of the first row; half of it is random, half says which key the book was begun with.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode


class Keys:
    """What is made of the one key in the file: a hash of arguments must not say anything about the chain."""

    def __init__(self, secret: bytes) -> None:
        self.chain = hmac.digest(secret, b"toolcrib audit chain", hashlib.sha256)
        self.arguments = hmac.digest(secret, b"toolcrib audit arguments", hashlib.sha256)

    def new_chain(self) -> str:
        salt = secrets.token_hex(16)
        return salt + self._mark(salt)

    def began(self, chain: str) -> bool:
        """Whether the book of this id was begun with this key."""
        return hmac.compare_digest(chain[32:].encode(), self._mark(chain[:32]).encode())

    def link(self, before: str, columns: Iterable[Any]) -> str:
        """The hash of the row with these columns, `hash` itself left out."""
        return hmac.digest(self.chain, before.encode() + _encode(list(columns)), hashlib.sha256).hex()

    def _mark(self, salt: str) -> str:
        return hmac.digest(self.chain, salt.encode(), hashlib.sha256).hex()[:32]
