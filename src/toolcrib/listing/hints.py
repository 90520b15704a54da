"""What is known from use: which tools to list directly, which to describe at length.

In: stored settings. Out: frozen `ListingHints`, part of what a list follows from. `core` keeps them; `cache` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MOST_FAVORITES = 8


@dataclass(frozen=True, kw_only=True)
class ListingHints:
    version: int = 0
    """Another one for every change."""
    favorites: tuple[str, ...] = ()
    """The tools that are listed directly in search mode, as `server:tool`."""
    levels: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The least level of thin definitions that were too short to call the tool, by `server:tool`."""
    used: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Recent calls by `server:tool`. They rank search results, and don't change lists."""


NO_HINTS = ListingHints()
