"""Audit entries: one for a call's intent, one for its outcome, one for every change of permissions.

In: events from `calls` and `core`. Out: entries that `row` turns into rows. Creating one must cost next to nothing.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

MAX_PARSED_BYTES = 256 * 1024
"""Longer arguments are hashed as raw bytes, and their shape is only their size."""


class EntryKind(enum.StrEnum):
    INTENT = "intent"
    """A call is about to be sent to its server: from here on it may have run."""
    OUTCOME = "outcome"
    """The result of a call. It repeats the intent's fields, since a call stopped at the door has only an outcome."""
    QUESTION = "question"
    """A server asked something during a call. `outcome` is what the person did; what was said is not stored."""
    CHANGE = "change"
    """A permission changed; `outcome` describes how."""
    GAP = "gap"
    """Entries before this one are missing because they could not be written."""
    PRUNED = "pruned"
    """The oldest entries were deleted."""
    UNANCHORED = "unanchored"
    """The writer found that the end of the audit log differs from the anchor, or from the last row it wrote."""


class LargeArguments(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Size and digest of arguments that are too long to parse, so that queued entries stay small."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Takes 1 ms per MB, about as long as parsing them as JSON."""
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
    """Raw bytes. Their shape and a keyed hash are stored, their values only if you enable that. The outcome of a call
    with an intent does not repeat them."""
    outcome: str = ""
    duration: float = 0.0
    size: int = 0
    result: bytes | None = None
    """Only to count its tokens."""
    detail: Mapping[str, Any] | None = None
    counted: Callable[[tuple[int, bool]], None] | None = None
    """Called with the tokens of the result, and whether they are an estimate; on the loop."""
    arguments_counted: Callable[[tuple[int, bool]], None] | None = None
    """The same for the arguments."""
