"""Which folders can be a workspace.

In: the folder, links resolved, and Toolcrib's own folders. Out: nothing, or a `WorkspaceError` that says what would
work. `folder` asks when it opens one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined import names

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
    home = home or own_home()
    if why := _why_unfit(_real(root), [_real(path) for path in unfit], home and _real(home)):
        raise WorkspaceError(f"{root} cannot be a workspace: {why}.", remedy=_REMEDY, data={"root": str(root)})


def running_us(root: Path) -> Iterator[tuple[str, ...]]:
    """Names below the root of the Python environment that runs us, if it lies there."""
    for place in {_real(Path(sys.prefix)), _real(Path(sys.base_prefix))}:
        if place == root:
            yield from ((name,) for name in _OF_ENVIRONMENT)
        elif place.is_relative_to(root):
            yield place.relative_to(root).parts


def own_home() -> Path | None:
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
    if name := names.guarded(root.parts):
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
