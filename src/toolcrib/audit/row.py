"""An entry → a row: bounded, free of secrets, and the same on both engines when it is read back.

In: an `AuditEntry`. Out: a mapping of the columns of `audit`, but for `hash`, in their order; the shape of arguments
without what they say; how many tokens a result costs a model. This is done where the rows are written, not on the
event loop: looking at arguments and counting tokens takes its time.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import operator
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from toolcrib.audit.entry import AuditEntry, EntryKind, LargeArguments
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


COUNTED_UP_TO = 256 * 1024
"""Bytes: counting takes 16 µs per KiB, and nothing else runs meanwhile."""

_WEIGHTS: tuple[tuple[bytes, float], ...] = (
    (string.ascii_letters.encode(), 0.227),
    (string.digits.encode(), 0.42),
    (string.punctuation.encode(), 0.65),
    (b"\n", 0.4),
    (bytes(range(0xC2, 0xE3)), 0.26),
    (bytes(range(0xE3, 0xF5)), 0.72),
)
"""Tokens for each such byte; beyond ASCII, for each first byte of a character: of an alphabet, of Chinese and the like.
Fitted to o200k: mostly within a fifth for JSON, code and prose; too few for columns of numbers and for base64."""


class TokenCount(NamedTuple):
    tokens: int
    estimated: bool


def count_tokens(data: bytes) -> TokenCount | None:
    """How many tokens a text costs a model, by o200k with `toolcrib[tokens]`. None: too long to be counted."""
    if len(data) > COUNTED_UP_TO:
        return None
    counter = _counter()
    if counter is None:
        return TokenCount(estimate_tokens(data), estimated=True)
    return TokenCount(counter(data.decode(errors="replace")), estimated=False)


def estimate_tokens(data: bytes) -> int:
    if not data:
        return 0
    return max(1, round(sum(weight * (len(data) - len(data.translate(None, kind))) for kind, weight in _WEIGHTS)))


@functools.cache
def _counter() -> Callable[[str], int] | None:
    """None: the extra is not installed. Its table takes 50 ms and 40 MB, so it is loaded with the first count."""
    try:
        from rs_bpe.bpe import openai  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError:
        return None
    found: Callable[[str], int] = openai.o200k_base().count
    return found


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
        agent, conversation, tool, server, rule, outcome = self._texts(entry)
        call, session, decision, mode = _own_texts(entry)
        shape, digest, values = self._arguments(entry)
        counted = None if entry.result is None else count_tokens(entry.result)
        return {
            "seq": seq,
            "at": _number(entry.at),
            "kind": str(entry.kind),
            "call": call,
            "agent": agent,
            "session": session,
            "conversation": conversation,
            "tool": tool,
            "server": server,
            "decision": decision,
            "rule": rule,
            "mode": mode,
            "shape": shape,
            "arguments_hash": digest,
            "arguments": values,
            "outcome": outcome,
            "duration": _number(entry.duration),
            "size": max(-_LARGEST, min(entry.size, _LARGEST)),
            "tokens": None if counted is None else counted.tokens,
            "tokens_estimated": counted is not None and counted.estimated,
            "detail": self._detail(entry) if entry.detail else None,
        }

    def _texts(self, entry: AuditEntry) -> tuple[str, ...]:
        """What others named: masked before it is cut, since half a secret is one too."""
        texts = (entry.agent, entry.conversation, entry.tool, entry.server, entry.rule, str(entry.outcome))
        # Most hold no secret: one look at all of them is enough. A blank ends whatever a pattern finds.
        joined = " ".join(texts)
        if self._mask(joined) == joined and _fit(texts, _TEXT_LIMITS):
            return texts
        masked = map(self._mask, texts)
        return tuple(_bounded(text, most) for text, most in zip(masked, _TEXT_LIMITS, strict=True))

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
            shape = shape_of(arguments, self._mask)
            if not shape.isascii():
                shape = storable(shape)
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

    def _detail(self, entry: AuditEntry) -> str:
        if entry.kind in (EntryKind.GAP, EntryKind.PRUNED, EntryKind.UNANCHORED):
            # Our own words; and `verify` reads the hashes in them.
            return msgspec.json.encode(entry.detail).decode()
        return _json(self._masked(entry.detail))

    def _masked(self, value: Any) -> Any:
        return mask_tree(value, self._mask, names_a_secret)


_TEXT_LIMITS = (64, 200, 200, 100, 500, 100)
_OWN_LIMITS = (80, 80, 20, 20)
"""Characters that are kept of each text."""


def _own_texts(entry: AuditEntry) -> tuple[str, ...]:
    """What we named ourselves. A decision may be an enum's member, and is kept as plain text."""
    texts = (entry.call, entry.session, str(entry.decision), entry.mode)
    if _fit(texts, _OWN_LIMITS):
        return texts
    return tuple(_bounded(text, most) for text, most in zip(texts, _OWN_LIMITS, strict=True))


def _fit(texts: tuple[str, ...], limits: tuple[int, ...]) -> bool:
    """Whether they can be kept as they are, by a quick look."""
    whole = "".join(texts)
    return whole.isascii() and "\0" not in whole and all(map(operator.le, map(len, texts), limits))


def _json(value: Any) -> str:
    return _bounded(msgspec.json.encode(value, enc_hook=str).decode(), VALUES_UP_TO)


def _bounded(text: str, most: int) -> str:
    text = storable(text)
    return text if len(text) <= most else text[: most - 1] + _CUT


def _number(value: float) -> float:
    """A finite number, and no negative zero: SQLite would give it back as another."""
    return value + 0.0 if math.isfinite(value) else 0.0
