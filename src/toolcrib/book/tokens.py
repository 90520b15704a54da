"""How many tokens a text costs a model.

In: bytes. Out: their tokens by o200k, or None where that is not counted. The table takes 50 ms and 40 MB to load, so it
is loaded with the first count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

COUNTED_UP_TO = 256 * 1024
"""Bytes: counting takes 16 µs per KiB, and nothing else runs meanwhile."""


def count(data: bytes) -> int | None:
    """None: too long to be counted."""
    if len(data) > COUNTED_UP_TO:
        return None
    return _counter()(data.decode(errors="replace"))


@functools.cache
def _counter() -> Callable[[str], int]:
    from rs_bpe.bpe import openai  # type: ignore[import-not-found] # noqa: PLC0415

    found: Callable[[str], int] = openai.o200k_base().count
    return found
