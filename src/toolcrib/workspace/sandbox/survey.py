"""A look through the folder for what a command must not touch: repositories inside, hidden files, sockets.

In: the folder. Out: what was found, with its device and inode, so that `inner` can tell that just this was mounted.
Bounded: a hidden file that was not looked for would be shown, so there the bound is an error; repositories deeper
down than the bound are left as they are.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.confined.folder import Folder, Spot

MOST_ENTRIES = 20_000
MOST_DEPTH = 8
MOST_ENTRIES_HIDING = 200_000
MOST_DEPTH_HIDING = 64
MOST_MASKS = 500
NOT_WALKED = frozenset({"node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox"})
"""Large, made by programs, and no place where a person runs git."""
GIT = ".git"
TOOLCRIB = ".toolcrib"


class Kind(enum.Enum):
    FOLDER = enum.auto()
    FILE = enum.auto()
    LINK = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Found:
    parts: tuple[str, ...]
    kind: Kind
    device: int
    inode: int


@dataclass(kw_only=True)
class Survey:
    repositories: list[Found] = field(default_factory=list)
    """Whatever is called `.git` below the root's own."""
    hidden: list[Found] = field(default_factory=list)
    """The topmost of what is hidden."""
    sockets: list[Found] = field(default_factory=list)
    """Doors to processes outside."""
    submodules: list[tuple[str, ...]] = field(default_factory=list)
    """Where git goes in by itself, whether or not there is anything."""
    under_way: list[str] = field(default_factory=list)
    """Of `.git`: what git is in the middle of."""

    @property
    def is_empty(self) -> bool:
        return not (self.repositories or self.hidden or self.sockets or self.submodules or self.under_way)


def look(folder: Folder, parts: tuple[str, ...]) -> Found | None:
    """What is at a place, the link itself if it is one; None if there is nothing."""
    try:
        there = os.stat("/".join(parts), dir_fd=folder.fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _found(parts, there)


def survey(folder: Folder, *, hides: bool) -> Survey:
    result = Survey()
    left = MOST_ENTRIES_HIDING if hides else MOST_ENTRIES
    for parts, entry in _walk(folder, hides=hides):
        left -= 1
        if left < 0:
            if hides:
                raise WorkspaceError(
                    "The folder has too many files to be sure that hidden ones stay hidden from commands.",
                    remedy="Name fewer places under `hidden:`, or move what shall be hidden out of the folder.",
                )
            break
        _sort(folder, result, parts, entry, hides=hides)
    if len(result.hidden) > MOST_MASKS:
        raise WorkspaceError(
            f"More than {MOST_MASKS} files are hidden, too many for commands to run beside them.",
            remedy="Hide the folder that they are in rather than each of them.",
        )
    return result


def _sort(folder: Folder, result: Survey, parts: tuple[str, ...], entry: os.DirEntry[str], *, hides: bool) -> None:
    is_hidden = hides and not folder.readable(Spot(parts))
    if is_hidden or entry.name.casefold() == GIT or _is_special(entry):
        found = _found(parts, entry.stat(follow_symlinks=False))
        if is_hidden:
            result.hidden.append(found)
        elif entry.name.casefold() == GIT:
            result.repositories.append(found)
        elif stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            result.sockets.append(found)


def _walk(folder: Folder, *, hides: bool) -> Iterator[tuple[tuple[str, ...], os.DirEntry[str]]]:
    """All entries, the near ones first as far as folders go; into no link, no `.git`, nothing hidden."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop(0)
        try:
            descriptor = os.open("/".join(parts) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder.fd)
        except OSError:
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    here = (*parts, entry.name)
                    if here in {(GIT,), (TOOLCRIB,)}:
                        continue
                    yield here, entry
                    if entry.is_dir(follow_symlinks=False) and _goes_into(folder, here, hides=hides):
                        waiting.append(here)
        finally:
            os.close(descriptor)


def _goes_into(folder: Folder, parts: tuple[str, ...], *, hides: bool) -> bool:
    if hides:
        return len(parts) < MOST_DEPTH_HIDING and folder.readable(Spot(parts))
    return len(parts) < MOST_DEPTH and parts[-1] not in NOT_WALKED and parts[-1].casefold() != GIT


def _is_special(entry: os.DirEntry[str]) -> bool:
    return not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink())


def _found(parts: tuple[str, ...], there: os.stat_result) -> Found:
    kind = {stat.S_IFDIR: Kind.FOLDER, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.LINK}
    return Found(
        parts=parts,
        kind=kind.get(stat.S_IFMT(there.st_mode), Kind.OTHER),
        device=there.st_dev,
        inode=there.st_ino,
    )
