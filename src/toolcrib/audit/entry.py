"""What is noted: one entry for a call's intent, one for its outcome, one for every change of who may do what.

In: facts from `calls` and `core`. Out: the same, for `row` to write down. Making one must cost next to nothing.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

LOOKED_INTO = 256 * 1024
"""Bytes of arguments above which they are hashed as they came and their shape is only their size."""


class EntryKind(enum.StrEnum):
    INTENT = "intent"
    """A call is about to leave for its server: from here on it may have run."""
    OUTCOME = "outcome"
    """What became of a call; has all that the intent has, since a call stopped at the door has only this."""
    CHANGE = "change"
    """Somebody may do more or less than before; `outcome` says what happened."""
    GAP = "gap"
    """Entries that could not be written are missing before this one."""
    PRUNED = "pruned"
    """The oldest entries were let go."""
    UNANCHORED = "unanchored"
    """Whoever wrote this one found the end of the audit log not as the anchor, or they themselves, knew it."""


class LargeArguments(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is held of arguments that are not looked into: a queue of them would soon hold a lot."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """1 ms per MB, about what it takes to read them as JSON."""
        return cls(size=len(raw), digest=hashlib.sha256(raw).digest())


class AuditEntry(msgspec.Struct, kw_only=True, gc=False):
    kind: EntryKind
    at: float = msgspec.field(default_factory=time.time)
    call: str = ""
    """The same for a call's intent and outcome."""
    agent: str = ""
    session: str = ""
    conversation: str = ""
    tool: str = ""
    server: str = ""
    decision: str = ""
    rule: str = ""
    mode: str = ""
    arguments: bytes | LargeArguments | None = None
    """As they came; their shape and a keyed hash are kept, their values only if that is switched on. The outcome of a
    call that has an intent does not repeat them."""
    outcome: str = ""
    duration: float = 0.0
    size: int = 0
    result: bytes | None = None
    """Only to count its tokens."""
    detail: Mapping[str, Any] | None = None
    counted: Callable[[tuple[int, bool]], None] | None = None
    """Called with the tokens of the result, and whether they are an estimate; on the loop."""
