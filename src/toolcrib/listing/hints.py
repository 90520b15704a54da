"""What lists follow from besides the catalog and the permission: which tools are favorites, which need more words.

`core.favorites` keeps it; `cache` and `cost` read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol


class ListingHints(Protocol):
    @property
    def version(self) -> int:
        """Another one after every change."""
        ...

    @property
    def levels(self) -> Mapping[str, int]:
        """By `server:tool`, how many levels more than usual a thin list shows of its definition."""
        ...

    def listed(self, shown: Callable[[str], bool]) -> tuple[str, ...]:
        """The favorite tools among those that are shown, as `server:tool`."""
        ...


class _NoHints:
    version = 0
    levels: Mapping[str, int] = MappingProxyType({})

    def listed(self, shown: Callable[[str], bool]) -> tuple[str, ...]:
        return ()


NO_HINTS: ListingHints = _NoHints()
