"""An entry → a row: bounded, free of secrets, and identical on both engines when it is read back.

In: an `AuditEntry`. Out: a mapping of the columns of `audit`, without `hash`, in order; the shape of arguments without
their values; how many tokens a result costs a model. This runs in the thread that writes rows, not on the event loop,
since parsing arguments and counting tokens takes time.
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
from toolcrib.config.masking import Masker, mask_tree, names_a_secret, storable
from toolcrib.policy import Verdict

MAX_SHAPE_BYTES = 2048

_DEPTHS = (6, 3, 1, 0)
"""Tried in turn until the shape is small enough."""
_MAX_KEYS = 32
_MAX_MEMBERS = 3
_MAX_KEY_LENGTH = 64
_REST = "…"


def shape_of(arguments: Any, redact: Callable[[str], str]) -> str:
    for depth in _DEPTHS:
        text = msgspec.json.encode(_shape(arguments, depth, redact))
        if len(text) <= MAX_SHAPE_BYTES:
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
        if len(shown) == _MAX_KEYS:
            shown[_REST] = f"+{len(value) - _MAX_KEYS}"
            break
        shown[redact(key)[:_MAX_KEY_LENGTH]] = _shape(inner, depth - 1, redact)
    return shown


def _array(value: list[Any], depth: int, redact: Callable[[str], str]) -> list[Any]:
    shown = [_shape(inner, depth - 1, redact) for inner in value[:_MAX_MEMBERS]]
    return [*shown, f"+{len(value) - _MAX_MEMBERS}"] if len(value) > _MAX_MEMBERS else shown


MAX_COUNTED_BYTES = 256 * 1024
"""Counting takes 16 µs per KiB, and blocks everything else."""

_WEIGHTS: tuple[tuple[bytes, float], ...] = (
    (string.ascii_letters.encode(), 0.227),
    (string.digits.encode(), 0.42),
    (string.punctuation.encode(), 0.65),
    (b"\n", 0.4),
    (bytes(range(0xC2, 0xE3)), 0.26),
    (bytes(range(0xE3, 0xF5)), 0.72),
)
"""Tokens per byte of each class; beyond ASCII, per first byte of a character: alphabets, then Chinese and the like.
Fitted to o200k: mostly within 20 % for JSON, code and prose; too few for columns of numbers and for base64."""


class TokenCount(NamedTuple):
    tokens: int
    estimated: bool


def count_tokens(data: bytes) -> TokenCount | None:
    """The tokens in a text, counted with o200k if `toolcrib[tokens]` is installed. None if it is too long to count."""
    if len(data) > MAX_COUNTED_BYTES:
        return None
    counter = _counter()
    if counter is None:
        return TokenCount(estimate_tokens(data), estimated=True)
    return TokenCount(counter(data.decode(errors="replace")), estimated=False)


def count_all_tokens(data: bytes) -> TokenCount:
    """Counts a text of any length, piece by piece, and the same text only once. Call it in a thread."""
    digest = hashlib.sha256(data).digest()
    known = _known.get(digest)
    if known is None:
        pieces = (data[at : at + MAX_COUNTED_BYTES] for at in range(0, len(data), MAX_COUNTED_BYTES))
        counts = [count for piece in pieces if (count := count_tokens(piece))]
        known = TokenCount(sum(one.tokens for one in counts), any(one.estimated for one in counts))
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[digest] = known
    return known


_MOST_KNOWN = 1024
_known: dict[bytes, TokenCount] = {}
"""By the text's digest: a list of tools may have megabytes."""


def estimate_tokens(data: bytes) -> int:
    if not data:
        return 0
    return max(1, round(sum(weight * (len(data) - len(data.translate(None, kind))) for kind, weight in _WEIGHTS)))


@functools.cache
def _counter() -> Callable[[str], int] | None:
    """None if the extra is not installed. Its table takes 50 ms and 40 MB, so it is loaded for the first count."""
    try:
        from rs_bpe.bpe import openai  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError:
        return None
    found: Callable[[str], int] = openai.o200k_base().count
    return found


Row = dict[str, Any]

MAX_VALUE_LENGTH = 4096
"""Longer values and details are truncated."""

_MAX_INTEGER = 2**63 - 1
_CUT = "…"
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


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
            "size": max(-_MAX_INTEGER, min(entry.size, _MAX_INTEGER)),
            "tokens": None if counted is None else counted.tokens,
            "tokens_estimated": counted is not None and counted.estimated,
            "detail": self._detail(entry) if entry.detail else None,
        }

    def _texts(self, entry: AuditEntry) -> tuple[str, ...]:
        """Texts from outside, masked before they are truncated, since half a secret is still one."""
        texts = (entry.agent, entry.conversation, entry.tool, entry.server, entry.rule, str(entry.outcome))
        # Most contain no secret, so check all of them at once. No pattern matches across a space.
        joined = " ".join(texts)
        if self._mask(joined) == joined and _fit(texts, _TEXT_LIMITS):
            return texts
        masked = map(self._mask, texts)
        return tuple(_bounded(text, limit) for text, limit in zip(masked, _TEXT_LIMITS, strict=True))

    def _arguments(self, entry: AuditEntry) -> tuple[str | None, str | None, str | None]:
        """Their shape, their keyed hash, and their values if those are stored."""
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
                # Store the arguments of an approval as the approver saw them.
                asked = entry.decision == Verdict.ASK
                values = _json(mask_tree(arguments, self._mask.named) if asked else self._masked(arguments))
        except _UNREADABLE:
            return f'"{len(raw)} bytes"', self._digest(raw), None
        return shape, self._digest(canonical), values

    def _digest(self, data: bytes) -> str:
        return hmac.digest(self._key, data, hashlib.sha256).hex()

    def _detail(self, entry: AuditEntry) -> str:
        if entry.kind in (EntryKind.GAP, EntryKind.PRUNED, EntryKind.UNANCHORED):
            # Our own data; `verify` needs the hashes in it.
            return msgspec.json.encode(entry.detail).decode()
        return _json(self._masked(entry.detail))

    def _masked(self, value: Any) -> Any:
        return mask_tree(value, self._mask, names_a_secret)


_TEXT_LIMITS = (64, 200, 200, 100, 500, 100)
_OWN_LIMITS = (80, 80, 20, 20)
"""Maximum length of each text."""


def _own_texts(entry: AuditEntry) -> tuple[str, ...]:
    """Texts that Toolcrib generates. A decision may be an enum member and is stored as plain text."""
    texts = (entry.call, entry.session, str(entry.decision), entry.mode)
    if _fit(texts, _OWN_LIMITS):
        return texts
    return tuple(_bounded(text, limit) for text, limit in zip(texts, _OWN_LIMITS, strict=True))


def _fit(texts: tuple[str, ...], limits: tuple[int, ...]) -> bool:
    """A quick check whether the texts can be stored unchanged."""
    whole = "".join(texts)
    return whole.isascii() and "\0" not in whole and all(map(operator.le, map(len, texts), limits))


def _json(value: Any) -> str:
    return _bounded(msgspec.json.encode(value, enc_hook=str).decode(), MAX_VALUE_LENGTH)


def _bounded(text: str, limit: int) -> str:
    text = storable(text)
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def _number(value: float) -> float:
    """A finite number, never negative zero, which SQLite would not return unchanged."""
    return value + 0.0 if math.isfinite(value) else 0.0
