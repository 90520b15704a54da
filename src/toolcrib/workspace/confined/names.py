"""Which names are not for tools, however they are spelled.

In: the names on the way to a file, links resolved. Out: whether it is git's or Toolcrib's own. `folder` asks before
every read and write. Git takes any folder for a repository that has a HEAD which it accepts, `objects` and `refs` (or
`commondir`, which names another folder for the two), and runs what the `config` there names. No repository is without
its HEAD, so that is what decides.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

from toolcrib.config.paths import PROJECT_FOLDER, RUNS

GIT_FOLDER = ".git"
HEAD = "HEAD"
MOST_HEAD = 256
"""Git reads no more of it to decide."""
GIT_PARTS = frozenset(
    {
        *("branches", "commondir", "config", "config.worktree", "hooks", "info", "modules", "objects", "refs"),
        *("remotes", "worktrees"),
    }
)
"""What makes a repository of a folder that has a HEAD, and what git runs or follows there."""

# File systems of other systems take these for the same names: short names, and letters that do not show.
_GUARDED = frozenset({GIT_FOLDER, "git~1", PROJECT_FOLDER, "toolcr~1"})
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-fA-F]{40}")
_UNSEEN = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


@functools.lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """The same for all spellings that some file system takes for one name."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name.translate(_UNSEEN))
    return name.casefold().partition(":")[0].rstrip(". ")


def guarded(names: Sequence[str]) -> str | None:
    """The first name that nothing may be written at or below; None if there is none."""
    return next((name for name in names if folded(name) in _GUARDED), None)


def is_head(content: bytes) -> bool:
    """Whether git would take a file with this content for a repository's HEAD."""
    return _HEAD.match(content) is not None


def is_head_link(leads_to: str) -> bool:
    """As old versions of git made it."""
    return leads_to.startswith("refs/")


def is_run_log(names: Sequence[str]) -> bool:
    return any(
        folded(below) == RUNS and folded(name) in (PROJECT_FOLDER, "toolcr~1")
        for name, below in itertools.pairwise(names)
    )
