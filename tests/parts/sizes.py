"""How much of a large table of cases is tried: some in a usual run, all of them in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("TOOLCRIB_TEST_SIZES") == "full"


def some(usual: Iterable[T], more: Iterable[T]) -> list[T]:
    """The usual cases, and in a full run the others too."""
    return [*usual, *(more if FULL else ())]
