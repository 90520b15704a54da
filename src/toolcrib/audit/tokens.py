"""How many tokens a text costs a model: counted, or estimated.

In: bytes. Out: a `TokenCount`. With the extra `toolcrib[tokens]` they are counted by o200k; its table takes 50 ms and
40 MB to load, so it is loaded with the first count. Without it they are estimated from the kinds of characters, and
whatever shows the number shows that, too. `row` counts results, `commands` the lists that a run was given.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from typing import NamedTuple

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
    """None: too long to be counted."""
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
    """None: the extra is not installed."""
    try:
        from rs_bpe.bpe import openai  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError:
        return None
    found: Callable[[str], int] = openai.o200k_base().count
    return found
