"""An entry → a row: bounded, free of secrets, and the same on both engines when it is read back.

In: an `AuditEntry`. Out: a mapping of the columns of `audit`, but for `hash`, in their order; the shape of arguments
without what they say; how many tokens a result costs a model (`tokens`). This is done where the rows are written, not
on the event loop: looking at arguments and counting tokens takes its time.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.audit.entry import AuditEntry, EntryKind, LargeArguments
from toolcrib.audit.tokens import count_tokens
from toolcrib.config.masking import Masker, mask_tree, names_a_secret
from toolcrib.policy import Verdict
from toolcrib.store.schema import storable

MOST_BYTES = 2048

_DEPTHS = (6, 3, 1, 0)
"""Tried in turn until the shape is small enough."""
_MOST_KEYS = 32
_MOST_MEMBERS = 3
_KEY_LENGTH = 64
_REST = "…"


def shape_of(arguments: Any, redact: Callable[[str], str]) -> str:
    for depth in _DEPTHS:
        text = msgspec.json.encode(_shape(arguments, depth, redact))
        if len(text) <= MOST_BYTES:
            break
    return text.decode()


def _shape(value: Any, depth: int, redact: Callable[[str], str]) -> Any:
    match value:
        case str():
            return f"string({len(value)})"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case None:
            return "null"
        case dict():
            return _object(value, depth, redact) if depth else f"object({len(value)})"
        case _:
            return _array(value, depth, redact) if depth else f"array({len(value)})"


def _object(value: dict[str, Any], depth: int, redact: Callable[[str], str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, inner in value.items():
        if len(shown) == _MOST_KEYS:
            shown[_REST] = f"+{len(value) - _MOST_KEYS}"
            break
        shown[redact(key)[:_KEY_LENGTH]] = _shape(inner, depth - 1, redact)
    return shown


def _array(value: list[Any], depth: int, redact: Callable[[str], str]) -> list[Any]:
    shown = [_shape(inner, depth - 1, redact) for inner in value[:_MOST_MEMBERS]]
    return [*shown, f"+{len(value) - _MOST_MEMBERS}"] if len(value) > _MOST_MEMBERS else shown


Row = dict[str, Any]

VALUES_UP_TO = 4096
"""Characters that are kept of values and details."""

_LARGEST = 2**63 - 1
_CUT = "…"
_BEYOND_READING = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


class RowMaker:
    def __init__(self, *, key: bytes, mask: Masker, values: bool) -> None:
        self._key = key
        self._mask = mask
        self._values = values

    def row(self, seq: int, entry: AuditEntry) -> Row:
        shape, digest, values = self._arguments(entry)
        counted = None if entry.result is None else count_tokens(entry.result)
        return {
            "seq": seq,
            "at": _number(entry.at),
            "kind": str(entry.kind),
            "call": _bounded(entry.call, 80),
            "agent": self._text(entry.agent, 64),
            "session": _bounded(entry.session, 80),
            "conversation": self._text(entry.conversation, 200),
            "tool": self._text(entry.tool, 200),
            "server": self._text(entry.server, 100),
            "decision": _bounded(entry.decision, 20),
            "rule": self._text(entry.rule, 500),
            "mode": _bounded(entry.mode, 20),
            "shape": shape,
            "arguments_hash": digest,
            "arguments": values,
            "outcome": self._text(entry.outcome, 100),
            "duration": _number(entry.duration),
            "size": max(-_LARGEST, min(entry.size, _LARGEST)),
            "tokens": None if counted is None else counted.tokens,
            "tokens_estimated": counted is not None and counted.estimated,
            "detail": self._detail(entry),
        }

    def _text(self, text: str, most: int) -> str:
        # Masked before it is cut: half a secret is one too.
        return _bounded(self._mask(text), most) if text else ""

    def _arguments(self, entry: AuditEntry) -> tuple[str | None, str | None, str | None]:
        """Their shape, their keyed hash, and their values if those are kept."""
        raw = entry.arguments
        if raw is None:
            return None, None, None
        if isinstance(raw, LargeArguments):
            return f'"{raw.size} bytes"', self._digest(raw.digest), None
        try:
            arguments = msgspec.json.decode(raw)
            canonical = msgspec.json.encode(arguments, order="deterministic")
            shape = storable(shape_of(arguments, self._mask))
            values = None
            if self._values:
                # What a person was asked about stands here as that person saw it.
                asked = entry.decision == Verdict.ASK
                values = _json(mask_tree(arguments, self._mask.named) if asked else self._masked(arguments))
        except _BEYOND_READING:
            return f'"{len(raw)} bytes"', self._digest(raw), None
        return shape, self._digest(canonical), values

    def _digest(self, data: bytes) -> str:
        return hmac.digest(self._key, data, hashlib.sha256).hex()

    def _detail(self, entry: AuditEntry) -> str | None:
        if not entry.detail:
            return None
        if entry.kind in (EntryKind.GAP, EntryKind.PRUNED, EntryKind.UNANCHORED):
            # Our own words; and `verify` reads the hashes in them.
            return msgspec.json.encode(entry.detail).decode()
        return _json(self._masked(entry.detail))

    def _masked(self, value: Any) -> Any:
        return mask_tree(value, self._mask, names_a_secret)


def _json(value: Any) -> str:
    return _bounded(msgspec.json.encode(value, enc_hook=str).decode(), VALUES_UP_TO)


def _bounded(text: str, most: int) -> str:
    text = storable(text)
    # The slice also makes a plain text of an enum's member.
    return text[:most] if len(text) <= most else text[: most - 1] + _CUT


def _number(value: float) -> float:
    """A finite number, and no negative zero: SQLite would give it back as another."""
    return value + 0.0 if math.isfinite(value) else 0.0
