"""Which names are not for tools, however they are spelled, and which folders can be a workspace.

In: the names on the way to a file, links resolved; a folder and Toolcrib's own folders. Out: whether it is git's or
Toolcrib's own; a `WorkspaceError` that says what would work. `folder` asks before every read and write. Git takes
any folder for a repository that has a HEAD which it accepts, `objects` and `refs` (or `commondir`, which names
another folder for the two), and runs what the `config` there names. No repository is without its HEAD, so that is
what decides.
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
def normalized(name: str) -> str:
    """The same for all spellings that some file system takes for one name."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name.translate(_UNSEEN))
    return name.casefold().partition(":")[0].rstrip(". ")


def protected_name(names: Sequence[str]) -> str | None:
    """The first name that nothing may be written at or below; None if there is none."""
    return next((name for name in names if normalized(name) in _GUARDED), None)


def is_head(content: bytes) -> bool:
    """Whether git would take a file with this content for a repository's HEAD."""
    return _HEAD.match(content) is not None


def is_head_link(leads_to: str) -> bool:
    """As old versions of git made it."""
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
"""Folders in those of the system where people and containers keep projects."""
_SHARED = tuple(map(Path, ("/home", "/tmp", "/var", "/var/tmp", "/Users")))  # noqa: S108
"""Hold the projects of many; themselves they are none."""
_OF_ENVIRONMENT = ("bin", "lib", "lib64", "pyvenv.cfg")
_REMEDY = "Choose the folder of one project."


def check_root(root: Path, unfit: Sequence[Path] = (), *, home: Path | None = None) -> None:
    """`unfit`: folders that it may neither hold nor lie in. `home`: the user's, which it may lie in."""
    home = home or user_home()
    if why := _why_unfit(_real(root), [_real(path) for path in unfit], home and _real(home)):
        raise WorkspaceError(f"{root} cannot be a workspace: {why}.", remedy=_REMEDY, data={"root": str(root)})


def own_environment(root: Path) -> Iterator[tuple[str, ...]]:
    """Names below the root of the Python environment that runs us, if it lies there."""
    for place in {_real(Path(sys.prefix)), _real(Path(sys.base_prefix))}:
        if place == root:
            yield from ((name,) for name in _OF_ENVIRONMENT)
        elif place.is_relative_to(root):
            yield place.relative_to(root).parts


def user_home() -> Path | None:
    """None where the system knows none, as for a user of a container that is only a number."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _why_unfit(root: Path, unfit: Sequence[Path], home: Path | None) -> str:
    if root == Path("/"):
        return "it is the whole system"
    if home and home.is_relative_to(root):
        return "it holds your home"
    if root in _SHARED:
        return "it holds the folders of many"
    if any(path.is_relative_to(root) for path in unfit):
        return "it holds Toolcrib's own files"
    if any(root.is_relative_to(path) for path in unfit):
        return "it lies among Toolcrib's own files"
    if name := protected_name(root.parts):
        return f"{name} is not for tools"
    if any(path.is_relative_to(root) for path in _SYSTEM):
        return "it is a folder of the system"
    if any(root.is_relative_to(path) for path in _SYSTEM):
        return "" if any(path in root.parents for path in _FINE_INSIDE) else "it is a folder of the system"
    return ""


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()
