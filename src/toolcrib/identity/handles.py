"""Sealed texts that a client keeps for the gateway and sends back: the state of a question, the id of a task.

In: a purpose, the agent that gets the handle, and what it refers to. Out: a text that only this agent can use, only for
this purpose, and only until it expires. A client can neither read nor change it. The key outlives the process, so a
handle is still recognized after a restart.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from toolcrib.credentials.key_file import make_key, read_key
from toolcrib.credentials.sealing import seal, unseal
from toolcrib.errors import HandleExpired, InvalidHandle

ContentT = TypeVar("ContentT")
_PREFIX = "crib_"
_LONGEST = 256 * 1024


class _Sealed(msgspec.Struct, array_like=True):
    until: float
    content: msgspec.Raw


class Handles:
    def __init__(self, key_file: Path, since: Callable[[str], float] = lambda agent: 0.0) -> None:
        """`since`: when the agent was created. A later one with its name is another agent."""
        self._key_file = key_file
        self._since = since
        self._key = b""

    def seal(self, purpose: str, agent: str, content: object, *, lives: float) -> str:
        """`lives`: in how many seconds it expires."""
        return _PREFIX + base64.urlsafe_b64encode(self.seal_bytes(purpose, agent, content, lives)).decode().rstrip("=")

    def seal_bytes(self, purpose: str, agent: str, content: object, lives: float) -> bytes:
        """For what Toolcrib keeps itself, of any size."""
        sealed = _Sealed(time.time() + lives, msgspec.Raw(msgspec.msgpack.encode(content)))
        return seal(msgspec.msgpack.encode(sealed), self._read_key(), self._bound_to(purpose, agent))

    def open(self, purpose: str, agent: str, handle: str, kind: type[ContentT]) -> ContentT:
        """Raises `InvalidHandle`, and `HandleExpired` for one that was valid."""
        if not handle.startswith(_PREFIX) or len(handle) > _LONGEST:
            raise InvalidHandle(f"This {purpose} is not from Toolcrib.")
        text = handle.removeprefix(_PREFIX)
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        return self.open_bytes(purpose, agent, raw, kind)

    def open_bytes(self, purpose: str, agent: str, sealed_bytes: bytes, kind: type[ContentT]) -> ContentT:
        """Raises like `open`."""
        plain = unseal(sealed_bytes, self._read_key(), self._bound_to(purpose, agent))
        if plain is None:
            raise InvalidHandle(f"This {purpose} was changed, or belongs to another agent.")
        sealed = msgspec.msgpack.decode(plain, type=_Sealed)
        if sealed.until < time.time():
            raise HandleExpired(f"This {purpose} has expired.", remedy="Check what the call did before you call again.")
        return msgspec.msgpack.decode(sealed.content, type=kind)

    def _read_key(self) -> bytes:
        if not self._key:
            self._key = read_key(self._key_file) or make_key(self._key_file)
        return self._key

    def _bound_to(self, purpose: str, agent: str) -> bytes:
        return msgspec.msgpack.encode((purpose, agent, self._since(agent)))
