"""How many cases of a large table are tried: some in a usual run, all in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

FULL = os.environ.get("TOOLCRIB_TEST_SIZES") == "full"


def some(usual: Iterable[T], more: Iterable[T]) -> list[T]:
    """The usual cases, and in a full run the others too."""
    return [*usual, *(more if FULL else ())]


def sized(usual: int, full: int) -> int:
    """A number of examples, attempts or the like."""
    return full if FULL else usual


def left_for_soak(item: pytest.Item) -> bool:
    """Whether the marks `soak` and `usual` leave this case out of a usual run."""
    if FULL:
        return False
    cases: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    only = {name: kept for mark in item.iter_markers("usual") for name, kept in mark.kwargs.items()}
    return item.get_closest_marker("soak") is not None or any(
        _name_of(cases[name]) not in ((kept,) if isinstance(kept, str) else kept) for name, kept in only.items()
    )


def _name_of(case: Any) -> str:
    return str(getattr(case, "name", getattr(case, "__name__", case)))
