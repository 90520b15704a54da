"""Which names tools may not use, in any spelling, and which folders can be a workspace.

In: the real path of a file; a folder and Toolcrib's own folders. Out: whether the path belongs to git or Toolcrib; a
`WorkspaceError` with a remedy. `folder` asks before every read and write. Git treats any folder as a repository that
has a valid HEAD, `objects` and `refs` (or `commondir`, which names another folder for the two), and runs programs
named in its `config`. Every repository needs a HEAD, so HEAD decides.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolcrib.config.paths import PROJECT_FOLDER, RUNS
from toolcrib.errors import WorkspaceError

GIT_FOLDER = ".git"
HEAD = "HEAD"
HEAD_BYTES = 256
"""Git reads only this much of it to decide."""
GIT_PARTS = frozenset(
    {
        *("branches", "commondir", "config", "config.worktree", "hooks", "info", "modules", "objects", "refs"),
        *("remotes", "worktrees"),
    }
)
"""Names that turn a folder with a HEAD into a repository, or that git runs or follows there."""

# Other operating systems treat these as the same names: short names (8.3), and names with invisible characters.
_GUARDED = frozenset({GIT_FOLDER, "git~1", PROJECT_FOLDER, "toolcr~1"})
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-fA-F]{40}")
_UNSEEN = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


@functools.lru_cache(maxsize=4096)
def normalized(name: str) -> str:
    """The same result for all spellings that some file system treats as one name."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name.translate(_UNSEEN))
    return name.casefold().partition(":")[0].rstrip(". ")


def protected_name(names: Sequence[str]) -> str | None:
    """The first protected name: nothing at or below it may be written."""
    return next((name for name in names if normalized(name) in _GUARDED), None)


def is_head(content: bytes) -> bool:
    """Whether git would accept a file with this content as a HEAD."""
    return _HEAD.match(content) is not None


def is_head_link(leads_to: str) -> bool:
    """Old versions of git made HEAD a link."""
    return leads_to.startswith("refs/")


def is_run_log(names: Sequence[str]) -> bool:
    return any(
        normalized(below) == RUNS and normalized(name) in (PROJECT_FOLDER, "toolcr~1")
        for name, below in itertools.pairwise(names)
    )


# fmt: off
_SYSTEM = tuple(Path("/", name) for name in (
    "usr", "etc", "proc", "sys", "dev", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "boot", "run",
    "nix", "snap", "System", "Library",
))
# fmt: on
_FINE_INSIDE = tuple(map(Path, ("/usr/src", "/usr/local/src", "/dev/shm", "/run/media")))  # noqa: S108
"""Folders inside system folders where people and containers keep projects."""
_SHARED = tuple(map(Path, ("/home", "/tmp", "/var", "/var/tmp", "/Users")))  # noqa: S108
"""They hold the projects of many users, but aren't projects themselves."""
_OF_ENVIRONMENT = ("bin", "lib", "lib64", "pyvenv.cfg")
_REMEDY = "Choose the folder of one project."


def check_root(root: Path, unfit: Sequence[Path] = (), *, home: Path | None = None) -> None:
    """`unfit`: folders that the root may neither contain nor be inside of. `home`: the user's, which it may be in."""
    home = home or user_home()
    if why := _why_unfit(_real(root), [_real(path) for path in unfit], home and _real(home)):
        raise WorkspaceError(f"{root} cannot be a workspace: {why}.", remedy=_REMEDY, data={"root": str(root)})


def own_environment(root: Path) -> Iterator[tuple[str, ...]]:
    """Paths of Toolcrib's own Python environment, if it is inside the root."""
    for place in {_real(Path(sys.prefix)), _real(Path(sys.base_prefix))}:
        if place == root:
            yield from ((name,) for name in _OF_ENVIRONMENT)
        elif place.is_relative_to(root):
            yield place.relative_to(root).parts


def user_home() -> Path | None:
    """None if the user has none, such as a numeric user in a container."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _why_unfit(root: Path, unfit: Sequence[Path], home: Path | None) -> str:
    if root == Path("/"):
        return "it is the whole system"
    if home and home.is_relative_to(root):
        return "it contains your home directory"
    if root in _SHARED:
        return "it contains the folders of many users"
    if any(path.is_relative_to(root) for path in unfit):
        return "it contains Toolcrib's own files"
    if any(root.is_relative_to(path) for path in unfit):
        return "it is inside one of Toolcrib's own folders"
    if name := protected_name(root.parts):
        return f"{name} is off limits to tools"
    if any(path.is_relative_to(root) for path in _SYSTEM):
        return "it is a system folder"
    if any(root.is_relative_to(path) for path in _SYSTEM):
        return "" if any(path in root.parents for path in _FINE_INSIDE) else "it is a system folder"
    return ""


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()
