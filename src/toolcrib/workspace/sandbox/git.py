"""What of a repository is dangerous: whatever git runs or follows later, when a person uses it outside.

In: the folder. Out: parts of `.git` that stay read-only while commands may commit, and folders of submodules. What is
not there is held by placeholders: a missing file that nobody protects is the oldest way in.

    config, config.worktree      name programs: core.fsmonitor, core.sshCommand, filters, aliases …
    hooks                        are programs
    commondir                    says that configuration and hooks are elsewhere
    info                         attributes choose filters; grafts rewrite history
    modules, worktrees           have configuration, hooks and pointers of their own
    objects/info                 alternates read objects from elsewhere
    remotes, branches            the old way to name where to fetch from

Some things can only be put right after a command (`Before.mend`): `rebase-merge`, `rebase-apply` and `sequencer` hold
commands that `git rebase --continue` runs, but their mere existence tells git that something is under way, so nothing
can stand in for them; a HEAD that is none makes git look for a repository in the folder itself; and a new submodule
brings a configuration that `git status` follows. Until then, while a command that may commit still runs, a person's
git can be led astray by these three. It cannot by anything where `.git` is read-only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass

from toolcrib.workspace.confined.folder import Folder
from toolcrib.workspace.sandbox.gitlinks import MOST_LINKS, NotAnIndex, TooMuch, gitlinks
from toolcrib.workspace.sandbox.placeholders import Placeholders
from toolcrib.workspace.sandbox.steps import inside, may_enter
from toolcrib.workspace.sandbox.survey import GIT, Kind, look

FOLDERS: tuple[tuple[str, ...], ...] = (
    ("hooks",),
    ("info",),
    ("modules",),
    ("worktrees",),
    ("remotes",),
    ("branches",),
    ("objects", "info"),
)
FILES: tuple[tuple[tuple[str, ...], bytes], ...] = (
    (("config",), b""),
    (("config.worktree",), b""),
    # git dies of an empty one; this one says that everything is where it is.
    (("commondir",), b".\n"),
)
PINNED: tuple[tuple[str, ...], ...] = (("objects",), ("refs",))
"""Writable, but not to be renamed or removed: without them git would take the folder itself for a repository."""
UNDER_WAY = ("rebase-merge", "rebase-apply", "sequencer")
MOST_INDEX = 128 * 1024 * 1024
MOST_SHARED = 100
MOST_DEPTH = 32
SECONDS = 10.0
"""For reading all of a repository's indexes."""
_KEPT_OF_NAME = 50
"""Characters: the new name must not be too long for the file system."""
_HEAD = re.compile(rb"(ref: refs/[^\0\n]+|[0-9a-f]{40}|[0-9a-f]{64})\n?")


def is_plain(folder: Folder) -> bool:
    """Whether all its parts are what git makes them. A link among them could be exchanged."""
    wanted = [
        *((part, Kind.FOLDER) for part in PINNED),
        *((part, Kind.FOLDER) for part in FOLDERS),
        *((part, Kind.FILE) for part, _ in FILES),
    ]
    found = [(look(folder, (GIT, *part)), kind) for part, kind in wanted]
    return all(there is None or there.kind is kind for there, kind in found) and all(
        look(folder, (GIT, *part)) is not None for part in PINNED
    )


def hold_missing(folder: Folder, placeholders: Placeholders) -> list[tuple[str, ...]]:
    """All parts to be mounted over, outer ones first; every one is there afterwards."""
    parts = list(PINNED)
    for part in FOLDERS:
        path = "/".join((GIT, *part))
        if look(folder, (GIT, *part)) is None or placeholders.may_be_one(path, None):
            placeholders.hold_folder(path)
        parts.append(part)
    for part, content in FILES:
        path = "/".join((GIT, *part))
        if look(folder, (GIT, *part)) is None or placeholders.may_be_one(path, content):
            placeholders.hold_file(path, content)
        parts.append(part)
    return parts


def under_way(folder: Folder) -> list[str]:
    return [name for name in UNDER_WAY if look(folder, (GIT, name)) is not None]


def submodules(folder: Folder) -> list[tuple[str, ...]]:
    """Where git goes in by itself, by the index of the folder's own `.git`; NotAnIndex if that cannot be told."""
    until = time.monotonic() + SECONDS
    found: list[tuple[str, ...]] = []
    for name in _indexes(folder):
        try:
            data = _read(folder, f"{GIT}/{name}", MOST_INDEX + 1)
            if len(data) > MOST_INDEX:
                raise TooMuch("too large")
            paths = [os.fsdecode(path).split("/") for path in gitlinks(data, until)]
        except FileNotFoundError:
            continue
        except (OSError, NotAnIndex) as error:
            raise NotAnIndex(f"{GIT}/{name}: {error}") from error
        # Git itself takes no such names.
        found += [tuple(parts) for parts in paths if not {"", ".", "..", GIT} & {part.casefold() for part in parts}]
    if any(len(parts) > MOST_DEPTH for parts in found) or len(set(found)) > MOST_LINKS:
        raise TooMuch(f"{GIT}: submodules too many or too deep")
    return list(dict.fromkeys(found))


def _indexes(folder: Folder) -> list[str]:
    try:
        with inside(folder, (GIT,)) as place:
            names = [name for name in os.listdir(f"/proc/self/fd/{place}") if name.startswith("sharedindex.")]  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    if len(names) > MOST_SHARED:
        raise TooMuch(f"{GIT}: more than {MOST_SHARED} shared indexes")
    return ["index", *names]


@dataclass(frozen=True, kw_only=True)
class Before:
    """How a repository was when nothing ran that may commit."""

    head: bytes
    submodules: frozenset[tuple[str, ...]]
    has_index: bool
    """Whether it could be told which submodules there are."""
    under_way: frozenset[str]

    @classmethod
    def look(cls, folder: Folder) -> Before:
        head = b""
        with contextlib.suppress(OSError):
            head = _read(folder, f"{GIT}/HEAD", 4096)
        there = _submodules_or_none(folder)
        return cls(
            head=head,
            submodules=frozenset(there or ()),
            has_index=there is not None,
            under_way=frozenset(under_way(folder)),
        )

    def mend(self, folder: Folder) -> list[str]:
        """Puts right what could not be held, when nothing runs any more; says what it did."""
        done: list[str] = []
        _open_way(folder, (GIT,))
        for name in UNDER_WAY:
            if name not in self.under_way and look(folder, (GIT, name)) is not None:
                with contextlib.suppress(OSError):
                    _put_away(folder, name)
                    done.append(f"{GIT}/{name} was removed: what it says would be run later, outside.")
        there = _submodules_or_none(folder)
        if self.has_index and there is None:
            _disarm_indexes(folder)
            done.append(f"{GIT}/index is now disarmed.index: it cannot be read. `git reset` makes a new one.")
        for parts in there or ():
            if parts in self.submodules:
                continue
            with contextlib.suppress(OSError):
                if look(folder, (*parts, GIT)) is not None:
                    name = put_aside(folder, (*parts, GIT))
                    done.append(f"{'/'.join((*parts, GIT))} is now {name}: git would follow it by itself.")
        if self.head and not self._has_head(folder):
            _restore(folder, "HEAD", self.head)
            done.append(f"{GIT}/HEAD was put back: it was none.")
        return done

    def _has_head(self, folder: Folder) -> bool:
        try:
            return bool(_HEAD.fullmatch(_read(folder, f"{GIT}/HEAD", 4096)))
        except OSError:
            return False


def _submodules_or_none(folder: Folder) -> list[tuple[str, ...]] | None:
    try:
        return submodules(folder)
    except (NotAnIndex, PermissionError):
        return None


def _open_way(folder: Folder, parts: tuple[str, ...]) -> None:
    """What a command has closed is opened, as its owner could at any time; else nothing in it could be put right."""
    for length in range(1, len(parts) + 1):
        with contextlib.suppress(OSError), inside(folder, parts[:length]) as place:
            if not may_enter(folder, place):
                os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(os.fstat(place).st_mode) | stat.S_IRWXU)  # noqa: PTH101


def put_aside(folder: Folder, parts: tuple[str, ...]) -> str:
    """Gives it a name by which no program knows it, and tells the name. What a command has closed is opened."""
    name = f"{parts[-1][:_KEPT_OF_NAME]}.disarmed-{os.urandom(4).hex()}"
    _open_way(folder, parts[:-1])
    with inside(folder, parts[:-1]) as place:
        try:
            os.rename(parts[-1], name, src_dir_fd=place, dst_dir_fd=place)
        except PermissionError:
            os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(os.fstat(place).st_mode) | stat.S_IRWXU)  # noqa: PTH101
            os.rename(parts[-1], name, src_dir_fd=place, dst_dir_fd=place)
    return name


def _disarm_indexes(folder: Folder) -> None:
    with contextlib.suppress(OSError), inside(folder, (GIT,)) as place:
        for name in os.listdir(f"/proc/self/fd/{place}"):  # noqa: PTH208 - by descriptor
            if name == "index" or name.startswith("sharedindex."):
                with contextlib.suppress(OSError):
                    os.rename(name, f"disarmed.{name}", src_dir_fd=place, dst_dir_fd=place)


def _read(folder: Folder, path: str, most: int) -> bytes:
    """A regular file and nothing else; never through a link."""
    *way, name = path.split("/")
    with inside(folder, way) as place:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no file")
        return file.read(most)


def _remove(folder: Folder, path: str) -> None:
    *way, name = path.split("/")
    with inside(folder, way) as place:
        if stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=place)
        else:
            os.unlink(name, dir_fd=place)


def _put_away(folder: Folder, name: str) -> None:
    """Out of git's sight, whatever can be removed of it."""
    away = f"disarmed.{name}-{os.urandom(4).hex()}"
    with inside(folder, (GIT,)) as place:
        os.rename(name, away, src_dir_fd=place, dst_dir_fd=place)
    _open_way(folder, (GIT, away))
    with contextlib.suppress(OSError):
        _remove(folder, f"{GIT}/{away}")


def _restore(folder: Folder, name: str, content: bytes) -> None:
    """A file of `.git`."""
    spare = f"{name}.toolcrib"
    with contextlib.suppress(FileNotFoundError):
        _remove(folder, f"{GIT}/{spare}")
    with inside(folder, (GIT,)) as place:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(spare, flags, 0o644, dir_fd=place)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - by descriptor
            file.write(content)
            if os.geteuid() == 0:
                os.fchown(descriptor, *folder.owner)
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):
            os.rename(spare, name, src_dir_fd=place, dst_dir_fd=place)
            return
        _remove(folder, f"{GIT}/{name}")
        os.rename(spare, name, src_dir_fd=place, dst_dir_fd=place)
