"""Other names, in a run's folder, for what is to be kept from a program's own hands.

In: a folder, the names of the folders in it that are kept. Out: `Aliases`: what the links are called that lead there,
symbolic ones and hard ones. For programs that are told by a path's writing where they may not write: a project may
come with a link. `known/` asks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.errors import UsageError

MOST_ENTRIES = 50_000
SECONDS = 2.0
MOST_ALIASES = 200


@dataclass(frozen=True, kw_only=True)
class Aliases:
    names: frozenset[str] = frozenset()
    """The last parts of their paths."""
    are_all: bool = True
    """False: the folder is too large to be looked through."""


def aliases_of(kept: Collection[str], workdir: Path, *, not_into: Collection[str]) -> Aliases:
    """`kept`: names in small letters; `not_into`: folders that are not looked into.

    Raises UsageError if a kept folder is the whole one, or if there are more links than a program can be told of.
    """
    walk = _Walk(root=os.path.realpath(workdir), not_into=not_into)
    walk.go()
    # A kept folder may be a link itself, and what it leads to is called otherwise.
    places = {to for link, to in walk.links if link.name.lower() in kept and _lies_in(to, walk.root)}
    folders = " or ".join(sorted(kept))
    if walk.root in places:
        raise UsageError(f"In {workdir}, {folders} is a link to the folder itself.", remedy="Remove the link.")
    inside = _Inside(root=walk.root, kept=kept, places=places)
    names = {os.path.basename(place) for place in places}  # noqa: PTH119 - of words, for there are many
    names |= {link.name for link, to in walk.links if inside.has(to)} | set(inside.hard_links(walk.files))
    others = frozenset(name for name in names if name.lower() not in kept)
    if len(others) > MOST_ALIASES:
        raise UsageError(f"In {workdir}, {len(others)} links lead into {folders}.", remedy="Remove the links.")
    return Aliases(names=others, are_all=not walk.was_cut)


@dataclass(kw_only=True)
class _Walk:
    """A folder and all beneath, links not followed, as far as the limits let it."""

    root: str
    not_into: Collection[str]
    links: list[tuple[os.DirEntry[str], str]] = field(default_factory=list)
    """With the place that each leads to, be there something or not."""
    files: list[os.DirEntry[str]] = field(default_factory=list)
    was_cut: bool = False

    def go(self) -> None:
        waiting, left, until = deque([self.root]), MOST_ENTRIES, time.monotonic() + SECONDS
        while waiting and not self.was_cut:
            with contextlib.suppress(OSError), os.scandir(waiting.popleft()) as found:
                for entry in found:
                    left -= 1
                    if left < 0 or time.monotonic() > until:
                        self.was_cut = True
                        break
                    if entry.is_symlink():
                        self.links.append((entry, os.path.realpath(entry.path)))
                    elif entry.is_file():
                        self.files.append(entry)
                    elif entry.is_dir() and entry.name not in self.not_into:
                        waiting.append(entry.path)


@dataclass(frozen=True, kw_only=True)
class _Inside:
    """What lies in the kept folders, under whatever name."""

    root: str
    kept: Collection[str]
    places: Collection[str]

    def has(self, path: str) -> bool:
        if not _lies_in(path, self.root):
            return False
        within = f"{path[len(self.root) :].lower()}{os.sep}"
        named = any(f"{os.sep}{name}{os.sep}" in within for name in self.kept)
        return named or any(_lies_in(path, place) for place in self.places)

    def hard_links(self, files: Iterable[os.DirEntry[str]]) -> Iterator[str]:
        inodes = {file.inode() for file in files if self.has(file.path) and _has_other_names(file)}
        return (file.name for file in files if file.inode() in inodes and not self.has(file.path))


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _has_other_names(file: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return file.stat().st_nlink > 1
    return False
