"""What a coding agent may do by its own hands: with the tools that its program brings, which do not pass our door.

A profile says it; `coding_agents` knows what it means for each program.
"""

from __future__ import annotations

import enum


class OwnTools(enum.StrEnum):
    NONE = "none"
    """Only what Toolcrib hands out."""
    READ = "read"
    """It may look at files; nothing that writes, runs or fetches."""
    EDIT = "edit"
    """It may also change files in its folder; commands only where its program confines them to that folder."""
    ALL = "all"
    """Whatever its program can do, without asking."""

    def exceeds(self, other: OwnTools) -> bool:
        order = list(OwnTools)
        return order.index(self) > order.index(other)
