"""What a coding agent may do by its own hands: with the tools that its program brings, which do not pass our door.

A profile says it, and a folder's `workspace.yml` bounds it (`allowed_by`): no program understands these settings, so
where one of them forbids something, the program loses the tools that could do it. `coding_agents` knows what a level
means for each program.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from toolcrib.workspace.settings.model import GUARDED, SHELL_TOOLS, Settings


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


@dataclass(frozen=True, kw_only=True)
class OwnLimit:
    """The most that a program may do by itself in a folder."""

    tools: OwnTools = OwnTools.ALL
    shell: bool = True
    """Whether it may run commands, confined or not."""
    guarded: tuple[str, ...] = ()
    """Names and `*.ending`s of files that it may not write, below `all`."""
    why: tuple[str, ...] = ()
    """What limits it, in words of `workspace.yml`."""

    def __and__(self, other: OwnLimit) -> OwnLimit:
        tools = other.tools if self.tools.exceeds(other.tools) else self.tools
        guarded = tuple(dict.fromkeys((*self.guarded, *other.guarded)))
        return OwnLimit(tools=tools, shell=self.shell and other.shell, guarded=guarded, why=(*self.why, *other.why))


_READS = frozenset({"read_file", "list_dir", "stat_file", "find_files", "search_text", "project_structure"})
_CHANGES = frozenset({"write_file", "edit_file"})


def allowed_by(settings: Settings, *, ci: str) -> OwnLimit:
    """`ci`: the variable that says that the run is in CI, if any."""
    limit = OwnLimit(guarded=tuple(one for one in settings.guarded if one in GUARDED))
    if settings.broken:
        return OwnLimit(tools=OwnTools.NONE, shell=False, why=("workspace.yml cannot be used",))
    if settings.hidden:
        limit &= OwnLimit(tools=OwnTools.NONE, shell=False, why=("`hidden` in workspace.yml",))
    if settings.read_only:
        limit &= OwnLimit(tools=OwnTools.READ, shell=False, why=("`read_only` in workspace.yml",))
    if not set(settings.guarded) <= set(GUARDED):
        limit &= OwnLimit(tools=OwnTools.READ, shell=False, why=("`guarded` in workspace.yml",))
    for name in sorted(settings.off & (_READS | _CHANGES | SHELL_TOOLS)):
        limit &= _without(name, f"{name} is off in workspace.yml")
    if settings.forbid_shell_in_ci and ci:
        limit &= OwnLimit(tools=OwnTools.EDIT, shell=False, why=(f"no shell in CI, and {ci} is set",))
    return limit


def _without(name: str, why: str) -> OwnLimit:
    if name in _READS:
        return OwnLimit(tools=OwnTools.NONE, shell=False, why=(why,))
    if name in _CHANGES:
        return OwnLimit(tools=OwnTools.READ, why=(why,))
    return OwnLimit(tools=OwnTools.EDIT, shell=False, why=(why,))
